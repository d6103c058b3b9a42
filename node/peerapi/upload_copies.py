"""Copies of unfinished uploads, ordered by the leader. Apart from `uploads`: the writing chain.

    POST /custody/uploads/{file_uuid}   have the acknowledged bytes, from `sources`; how that stands
    GET  /uploads/{file_uuid}           the bytes from `start` to `stop`, which must be durable here

The first is an order of the leading coordinator (`node/uploads/upload_copies.py`); the second serves the
bytes for its copies. `node/peerapi/admission.py` controls access.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Final

from aiohttp import web
from msgspec import Struct

from ca.errors import InvalidRequest, Unavailable
from node.peerapi.uploads import by_owner, number_in, upload_named
from node.sending.body_writer import BodyWriter
from node.uploads.services import NODE
from node.uploads.upload_copies import CopyOrder, CopyStanding
from web.app import json_response, read_json
from web.internals.aiohttp_server import BodyResponse

READ_BYTES: Final = 1 << 20


class CopyState(Struct, frozen=True, kw_only=True):
    """The state of an order, and a number that changes whenever a copy here makes progress."""

    state: CopyStanding
    moved: int


def upload_copy_routes() -> list[web.RouteDef]:
    """Return the routes of orders and of reading."""
    return [
        web.post("/custody/uploads/{file_uuid}", by_owner(_order)),
        web.get("/uploads/{file_uuid}", _bytes, allow_head=False),
    ]


async def _order(request: web.Request) -> web.StreamResponse:
    """Return the state of the order. Raises Conflict for an old epoch, Unavailable, InsufficientStorage."""
    services, file_uuid = request.app[NODE], upload_named(request)
    order = await read_json(request, CopyOrder)
    state = await services.copies.give(file_uuid, order)
    return json_response(CopyState(state=state, moved=services.copies.moved))


async def _bytes(request: web.Request) -> web.StreamResponse:
    """Send durable bytes of an upload. Raises NotFound unless all are here.

    If the disk loses bytes while they are sent, the response is cut off: the requester compares the sha256 of
    the whole.
    """
    services, file_uuid = request.app[NODE], upload_named(request)
    start, stop = (number_in(request, name) for name in ("start", "stop"))
    if start > stop:
        raise InvalidRequest("start: is beyond stop.")
    prefix = await services.disk.open(services.uploads.open_prefix, file_uuid, stop)

    async def reading() -> AsyncGenerator[bytes, None]:
        position = start
        while position < stop:
            size_bytes = min(READ_BYTES, stop - position)
            piece = await services.disk.run(os.pread, prefix.fileno(), size_bytes, position)
            if not piece:
                raise Unavailable("The upload went back.")
            position += len(piece)
            sent.inc(len(piece))
            yield piece

    with closing(prefix):
        sent = services.metrics.replica_bytes.labels("sent")
        response = BodyResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = stop - start
        with BodyWriter.for_response(request, response) as out:
            await out.send(reading())
            await out.end()
    return response
