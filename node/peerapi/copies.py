"""Serves this node's copies of a blob to other nodes. Apart from `blobs`: damaged copies too, for salvage.

`node/peer/salvage.py` reads them.

GET /copies/{sha256}/sums                          the sidecar GET
/copies/{sha256}/segments/{index}?xxh3=DIGEST  a segment, if it matches the checksum (16 hexadecimal digits)

Who may ask is decided by `node/peerapi/admission.py`, as for whole blobs.
"""

import re
from typing import Final

from aiohttp import web

from ca.errors import InvalidRequest, NotFound
from metadata.model.identifiers import is_sha256
from node.peer.salvage import PATH, local_segment, local_sums
from node.storage.segments import encode_sidecar
from node.uploads.services import NODE

_DIGEST: Final = re.compile(r"[0-9a-f]{16}")
_INDEX: Final = re.compile(r"[0-9]{1,12}")


def copy_routes() -> list[web.RouteDef]:
    """Below `/copies/{sha256}`."""
    path = f"{PATH}/{{sha256}}"
    return [
        web.get(f"{path}/sums", _sums, allow_head=False),
        web.get(f"{path}/segments/{{index}}", _segment, allow_head=False),
    ]


async def _sums(request: web.Request) -> web.StreamResponse:
    """The checksums of this node's copy, of any size. Raises NotFound."""
    services = request.app[NODE]
    sums = await services.disk.run(local_sums, services.blobs, _sha256(request))
    if sums is None:
        raise NotFound("No copy of this blob that has checksums is here.")
    return web.Response(body=encode_sidecar(sums))


async def _segment(request: web.Request) -> web.StreamResponse:
    """Raises NotFound when no copy here has it, InvalidRequest."""
    services, sha256 = request.app[NODE], _sha256(request)
    digest, index = request.query.get("xxh3", ""), request.match_info["index"]
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest("xxh3: expected 16 hexadecimal digits.")
    if not _INDEX.fullmatch(index):
        raise NotFound("No such segment.")
    found = await services.disk.run(local_segment, services.blobs, sha256, int(index), bytes.fromhex(digest))
    if found is None:
        raise NotFound("No copy of this blob that has this segment is here.")
    services.metrics.replica_bytes.labels("sent").inc(len(found))
    return web.Response(body=found)


def _sha256(request: web.Request) -> str:
    sha256 = request.match_info["sha256"]
    if not is_sha256(sha256):
        raise NotFound("No such blob.")
    return sha256
