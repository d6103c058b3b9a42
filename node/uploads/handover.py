"""An upload whose holder's disk takes no more of it goes on at a node that has room.

The holder lives and gives it up by itself, unlike in `node/uploads/takeover.py`, whose compare and set in the
log it uses. First asked are the members that have what is acknowledged; then nodes outside the placement, of
which one is sent it before it joins. Where nothing is acknowledged yet all of the upload is placed anew. What
lies at the old holder stays a copy of what is acknowledged until the upload ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from aiohttp import web

from ca.errors import FilestoreError, Unavailable
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.commands import RecordProgress
from node.peer.client import PeerClient, PeerFailed
from node.uploads.services import NODE, NodeServices
from node.uploads.takeover import propose_takeover, who_has_prefix
from runtime.time_limits import bounded_s

SENT_BYTES_MAX = 4 << 30  # the client waits for it, and nobody else can write: a minute or so
UNKNOWN_BYTES = 4 << 20  # of room, for an upload that may have any size: who has most comes first
ASKED_MAX = 32  # nodes, for one upload
ANSWER_TIMEOUT_S = 3.0
ROOM_HEADER = "Filestore-Room-Bytes"
_PATH = "/room"

_log = logging.getLogger(__name__)


async def hand_over(
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    send_to: Callable[[str], Awaitable[bool]],
    *,
    expected_bytes: int = 0,
) -> str:
    """The node that holds the upload from now on; "" when none has room for the rest.

    `expected_bytes`: the size of the content if it is known and not declared yet. `send_to` gives a node
    what is acknowledged, and tells whether that is durable there. Raises what the log refuses, Conflict when
    it knows of another holder.
    """
    offset_bytes = record.offset_bytes
    size_bytes = expected_bytes or offset_bytes + UNKNOWN_BYTES
    if record.size_bytes is not None:
        size_bytes = record.size_bytes
    missing_bytes = size_bytes - offset_bytes
    members = await roomy_nodes(services.peers, record.placement[1:], missing_bytes)
    successor, _ = await who_has_prefix(services, members, record)
    if successor:
        await propose_takeover(services, caller, record, successor)
        return successor
    nodes = services.api.view.current.nodes
    known = [node.node_id for node in nodes if node.takes_replicas and node.node_id not in record.placement]
    strangers = await roomy_nodes(services.peers, known, size_bytes)
    if not offset_bytes:
        chosen = strangers[: services.api.view.current.replicas]
        return await _place(services, caller, record, chosen, []) if chosen else ""
    if strangers and offset_bytes <= SENT_BYTES_MAX and await send_to(strangers[0]):
        others = known_nodes(services, record.placement[1:])
        return await _place(services, caller, record, strangers[:1], others)
    return ""


def known_nodes(services: NodeServices, node_ids: Sequence[str]) -> list[str]:
    """Return the nodes that were not removed, as far as this node knows, in their order."""
    return [node_id for node_id in node_ids if services.api.view.node(node_id) is not None]


async def _place(
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    chosen: Sequence[str],
    others: Sequence[str],
) -> str:
    """The first of `chosen` becomes the holder, in two steps; after the first alone it is a member."""
    command = RecordProgress(
        caller=caller,
        file_uuid=record.file_uuid,
        node_id=services.node_id,
        offset_bytes=record.offset_bytes,
        epoch=record.epoch,
        prefix_sha256=record.prefix_sha256,
        placement=[services.node_id, *chosen, *others],
    )
    placed = await services.api.metadata.propose(command, UploadRecord)
    if placed.placement[:2] != [services.node_id, chosen[0]]:
        return ""  # it has ended meanwhile
    await propose_takeover(services, caller, placed, chosen[0])
    return chosen[0]


async def roomy_nodes(peers: PeerClient, node_ids: Iterable[str], size_bytes: int) -> list[str]:
    """Ask the first ASKED_MAX of these nodes for room; return those with enough, most room first.

    The nodes are asked when it is needed, so that each answers with what its disk takes in this moment;
    heartbeats are a second old and tell the coordinators only.

    Nodes of older versions do not tell, and count as full.
    """
    asked = list(node_ids)[:ASKED_MAX]
    asked = [node_id for node_id in asked if node_id not in peers.silent] or asked
    rooms = await asyncio.gather(*(_room_of(peers, node_id) for node_id in asked))
    found = [(-room, node_id) for room, node_id in zip(rooms, asked, strict=True) if room > size_bytes]
    return [node_id for _, node_id in sorted(found)]


def room_routes() -> list[web.RouteDef]:
    """Return the route for other nodes; `node/peerapi/admission.py` controls access."""
    return [web.head(_PATH, _tell_room)]


async def _room_of(peers: PeerClient, node_id: str) -> int:
    if not (within_s := bounded_s(ANSWER_TIMEOUT_S)):
        return 0
    with suppress(PeerFailed, ValueError):
        async with peers.ask(node_id, "HEAD", _PATH, within_s=within_s) as answer:
            return int(answer.headers.get(ROOM_HEADER, "0"))
    return 0


async def _tell_room(request: web.Request) -> web.Response:
    """204 with the bytes that uploads may take of this disk: none if it cannot be written to now.

    503 where it hangs: whoever asks waits for that to end, and not for this node.
    """
    services, found_bytes = request.app[NODE], 0
    try:
        await services.disk.run(services.blobs.probe)
        found_bytes = await services.disk.run(services.blobs.room_bytes)
    except TimeoutError as error:
        raise Unavailable("The disk of this node does not respond.", retry_after_s=5) from error
    except (FilestoreError, OSError):
        pass
    return web.Response(status=204, headers={ROOM_HEADER: str(max(found_bytes, 0))})
