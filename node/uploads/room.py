"""Room for the rest of an upload whose holder's disk takes no more: which node could go on with it.

The nodes are asked when it is needed, so that each answers with what its disk takes in this moment;
heartbeats are a second old and tell the coordinators only.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from aiohttp import web

from ca.errors import FilestoreError, Unavailable
from coordinator.model.time_limits import bounded_s
from node.peer.client import PeerClient, PeerFailed
from node.uploads.context import UPLOADS

ASKED_MAX = 32  # nodes, for one upload
ANSWER_TIMEOUT_S = 3.0
ROOM_HEADER = "Filestore-Room-Bytes"
_PATH = "/room"


async def roomy_nodes(peers: PeerClient, node_ids: Iterable[str], size_bytes: int) -> list[str]:
    """Those of the first ASKED_MAX of these nodes that have room for so many bytes, most room first.

    Nodes of older versions do not tell, and count as full.
    """
    asked = list(node_ids)[:ASKED_MAX]
    asked = [node_id for node_id in asked if node_id not in peers.silent] or asked
    rooms = await asyncio.gather(*(_room_of(peers, node_id) for node_id in asked))
    found = [(-room, node_id) for room, node_id in zip(rooms, asked, strict=True) if room > size_bytes]
    return [node_id for _, node_id in sorted(found)]


def room_routes() -> list[web.RouteDef]:
    """What others ask here; who may is decided by `node/peerapi/admission.py`."""
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
    services, found_bytes = request.app[UPLOADS], 0
    try:
        await services.disk.run(services.blobs.probe)
        found_bytes = await services.disk.run(services.blobs.room_bytes)
    except TimeoutError as error:
        raise Unavailable("The disk of this node hangs.", retry_after_s=5) from error
    except (FilestoreError, OSError):
        pass
    return web.Response(status=204, headers={ROOM_HEADER: str(max(found_bytes, 0))})
