"""The blobs of this node for other nodes, on the peer port.

HEAD and GET with one range, PUT of a replica.

A blob's name is its sha256, so a PUT cannot replace anything by something else: what does not hash to its
name is refused, what is there already and sound is answered at once. What is found damaged is withdrawn, so
that the next PUT brings a fresh copy.
"""

import re
from contextlib import aclosing

from aiohttp import web

from ca.errors import InsufficientStorage, InvalidRequest, NotFound, Unavailable
from coordinator.web import body_pieces
from node.damage import verify_blob, withdraw
from node.disk import write_overlapped
from node.metrics import counted
from node.ranges import SIZE_BYTES_MAX, ByteRange, parse_range
from node.reading import read_blob
from node.segments import BlobDamaged, BlobMissing
from node.sending import send_body
from node.services import NODE, NodeServices

SPARE_BYTES = 64 << 20  # left free by replicas, so that a node whose disk is full can still record and delete

_SHA256 = re.compile(r"[0-9a-f]{64}")


def transfer_routes() -> list[web.RouteDef]:
    """`/blobs/{sha256}`; who may ask is decided by `node/admission.py`."""
    path = "/blobs/{sha256}"
    return [web.get(path, _get, allow_head=False), web.head(path, _head), web.put(path, _put)]


async def _head(request: web.Request) -> web.StreamResponse:
    """200 with the size when a whole blob lies here. Raises NotFound.

    Its bytes are read with `?verify=1` only: who counts copies must ask for that.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    if request.query.get("verify") == "1":
        size_bytes = await _verified_bytes(services, sha256)
        if size_bytes is None:
            raise NotFound("No whole replica of this blob is here.")
    else:
        size_bytes = await _size_bytes(services, sha256)
    return web.Response(headers={"Content-Length": str(size_bytes), "Accept-Ranges": "bytes"})


async def _get(request: web.Request) -> web.StreamResponse:
    """The blob or one range of it, verified segment by segment before it goes out.

    Damage found on the way breaks the connection; the peer goes on elsewhere. Raises NotFound,
    RangeNotSatisfiable, Unavailable when the first bytes are damaged.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    size_bytes = await _size_bytes(services, sha256)
    ranges = parse_range(request.headers.get("Range"), size_bytes)
    if ranges is not None and len(ranges) > 1:
        raise InvalidRequest("Range: one range at a time.")
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    start, stop = 0, size_bytes
    if ranges is not None:
        start, stop = ranges[0].start, ranges[0].stop
        response.set_status(206)
        response.headers["Content-Range"] = ByteRange(start, stop).content_range(size_bytes)
    response.content_length = stop - start
    try:
        async with aclosing(read_blob(services.disk, services.blobs, sha256, start, stop)) as reading:
            body = counted(reading, services.metrics.replica_bytes.labels("sent"))
            await send_body(request, response, body)
    except BlobDamaged as damage:
        await withdraw(services.disk, services.blobs, services.metrics, damage)
        raise Unavailable(f"This replica cannot be read: {damage}") from damage
    except BlobMissing as error:
        raise Unavailable("This replica is gone.") from error
    return response


async def _put(request: web.Request) -> web.StreamResponse:
    """Take a replica in: 200 when it is whole, verified and durable.

    Raises ChecksumMismatch (nothing is kept), InsufficientStorage, InvalidRequest without a Content-Length.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    size_bytes = request.content_length
    if size_bytes is None or size_bytes > SIZE_BYTES_MAX:
        raise InvalidRequest("Content-Length: is required.")
    if await _verified_bytes(services, sha256) is not None:
        return web.Response()
    if size_bytes + SPARE_BYTES > await services.disk.run(services.blobs.free_bytes):
        raise InsufficientStorage("This node has no room for the replica.")
    writer = await services.disk.run(services.blobs.receive, sha256, size_bytes)
    try:
        chunks = counted(body_pieces(request), services.metrics.replica_bytes.labels("received"))
        await write_overlapped(services.disk, chunks, writer.write)
        await services.disk.run(writer.finish)
    finally:
        await services.disk.run(writer.abort)
    return web.Response()


async def _size_bytes(services: NodeServices, sha256: str) -> int:
    try:
        return await services.disk.run(services.blobs.size_bytes, sha256)
    except BlobMissing as error:
        raise NotFound("No whole replica of this blob is here.") from error
    except BlobDamaged as damage:
        await withdraw(services.disk, services.blobs, services.metrics, damage)
        raise NotFound("No whole replica of this blob is here.") from damage


async def _verified_bytes(services: NodeServices, sha256: str) -> int | None:
    """The size of a sound blob, None when there is none."""
    try:
        return await verify_blob(services.disk, services.blobs, services.metrics, sha256)
    except (BlobMissing, BlobDamaged):
        return None


def _sha256(request: web.Request) -> str:
    sha256 = request.match_info["sha256"]
    if _SHA256.fullmatch(sha256) is None:
        raise NotFound("No such blob.")
    return sha256
