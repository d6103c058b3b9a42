"""Orders of the leading coordinator to this node. Apart from requests between nodes.

They arrive on the peer port as `POST /custody/KIND`, and start work on the replicas now. The kinds:

- `collect`: delete what the log has marked for deletion.
- `compare`: hold the disk against the log.
- `scrub`: read everything.
- `freeze`: store replicas in the form that their buckets want (docs/cold.md).
- `thaw`: store all replicas as whole files.

An order defines when to work, not what to do: it may arrive late, twice, or from a former leader. The first
request queues it; repeating the request returns its state. `node/peerapi/admission.py` controls access.
"""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from ca.errors import NotFound, Unavailable
from node.custody.orders import PassReport
from node.uploads.services import NODE
from web.app import json_response, read_json

OrderId = Annotated[str, Meta(min_length=1, max_length=64)]


class OrderBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an order. `yes_really`: run even if it deletes a large part of this node's blobs."""

    order_id: OrderId
    yes_really: bool = False


def custody_routes() -> list[web.RouteDef]:
    """`/custody/{kind}`."""
    return [web.post("/custody/{kind}", _order)]


async def _order(request: web.Request) -> web.StreamResponse:
    """Return the state of the order at once. Raises NotFound for an unknown kind, Unavailable."""
    custody = request.app[NODE].custody
    body = await read_json(request, OrderBody)
    if custody is None:
        raise Unavailable("This process does not manage the replicas of its node.")
    orders = custody.orders.get(request.match_info["kind"])
    if orders is None:
        raise NotFound("There is no such order.")
    standing: PassReport = orders.give(body.order_id, yes_really=body.yes_really)
    return json_response(standing)
