"""The blobs of this node for other nodes, on the peer port.

It serves HEAD, GET with one range, the checksums of the segments, and PUT of a replica. One request can bring
many small blobs (`node/uploads/small_copies.py` encodes them), or ask this node to fetch one from others. Of
copies, including damaged ones in quarantine, it serves the checksums and single segments
(`node/peer/salvage.py` reads them).

A blob's name is its sha256, so a PUT cannot replace a blob by another one: content that does not match its
name is rejected, and an existing intact blob is confirmed at once. A damaged blob is taken out of service, so
that the next PUT stores a new copy.
"""

import asyncio
import re
from contextlib import aclosing
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta, Struct

from ca.errors import InvalidRequest, NotFound, PayloadTooLarge, Unavailable
from metadata.model.identifiers import is_sha256
from node.base.metrics import count_bytes
from node.diskio.executor import write_overlapped
from node.packs.store import BLOB_BYTES_MAX
from node.peer.chunk_lists import CUT, SAMPLE, list_chunks, send_list
from node.peer.fetch import SOURCES_MAX
from node.peer.range_fetch import SourcesFailed
from node.peer.salvage import PATH, local_segment, local_sums
from node.sending.body_writer import BodyWriter
from node.storage.blob_reader import read_blob
from node.storage.cold_blobs import OpenColdBlob
from node.storage.damage import affirm_sound, miss, remove_from_service
from node.storage.segments import (
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
    OpenBlob,
    encode_sidecar,
    segment_count,
)
from node.uploads.services import NODE, NodeServices
from node.uploads.small_copies import PATH as SMALL_PATH
from node.uploads.small_copies import REQUEST_BYTES_MAX, decode_small_blobs
from runtime.bounds import Text
from web.app import body_batches, read_json
from web.headers.ranges import SIZE_BYTES_MAX, ByteRange, parse_range
from web.internals.aiohttp_server import BodyResponse
from web.request_body import Batch
from web.responses import error_body, json_response, request_id

_NUMBER = re.compile(r"[0-9]{1,12}")
_DIGEST: Final = re.compile(r"[0-9a-f]{16}")
_SMALL_BYTES_MAX: Final = 2 * REQUEST_BYTES_MAX  # for the body of one request


class PullOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A blob to fetch: its size, and nodes that may have it, the best first."""

    size_bytes: Annotated[int, Meta(ge=0, le=SIZE_BYTES_MAX)]
    sources: Annotated[list[Text], Meta(min_length=1, max_length=SOURCES_MAX)]


def transfer_routes() -> list[web.RouteDef]:
    """Return the routes for blobs. `node/peerapi/admission.py` controls access."""
    path, copies = "/blobs/{sha256}", f"{PATH}/{{sha256}}"
    return [
        web.get(path, _get, allow_head=False),
        web.head(path, _head),
        web.put(path, _put),
        web.get(f"{path}/sums", _sums, allow_head=False),
        web.get(f"{path}/chunks", _chunks, allow_head=False),
        web.post(f"{path}/pull", _pull),
        web.post(f"{path}/retain", _retain),
        web.post(SMALL_PATH, _take_small),
        web.get(f"{copies}/sums", _copy_sums, allow_head=False),
        web.get(f"{copies}/segments/{{index}}", _copy_segment, allow_head=False),
    ]


async def _head(request: web.Request) -> web.StreamResponse:
    """Return 200 with the size if a whole blob is here. Raises NotFound.

    Its bytes are read with `?verify=1` only, which is required to count copies. With `?segment=N`, this
    segment is read now, however recently it was verified, as a node received wrong bytes. With `?expected=1`,
    a missing blob is reported, as the log lists it for this node.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    size_bytes: int | None
    if "segment" in request.query:
        size_bytes = await _recheck(services, sha256, request.query["segment"])
    elif request.query.get("verify") == "1":
        size_bytes = await _affirmed_bytes(services, sha256)
    elif request.query.get("expected") == "1":
        size_bytes = await _expected_bytes(services, sha256)
    else:
        size_bytes = await _size_bytes(services, sha256)
    if size_bytes is None:
        raise NotFound("There is no complete replica of this blob here.")
    return web.Response(headers={"Content-Length": str(size_bytes), "Accept-Ranges": "bytes"})


async def _get(request: web.Request) -> web.StreamResponse:
    """Send the blob or one range of it, verified segment by segment before it is sent.

    Damage that is found while sending closes the connection; the peer continues with another node. Raises
    NotFound, RangeNotSatisfiable, Unavailable when the first bytes are damaged.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    size_bytes = await _expected_bytes(services, sha256)
    ranges = parse_range(request.headers.get("Range"), size_bytes)
    if ranges is not None and len(ranges) > 1:
        raise InvalidRequest("Range: only one range is supported.")
    response = BodyResponse(headers={"Content-Type": "application/octet-stream"})
    start, stop = 0, size_bytes
    if ranges is not None:
        start, stop = ranges[0].start, ranges[0].stop
        response.set_status(206)
        response.headers["Content-Range"] = ByteRange(start, stop).content_range(size_bytes)
    response.content_length = stop - start
    try:
        async with aclosing(read_blob(services.disk, services.blobs, sha256, start, stop)) as reading:
            with BodyWriter.for_response(request, response) as out:
                await out.send(count_bytes(reading, services.metrics.replica_bytes.labels("sent")))
                await out.end()
    except BlobDamaged as damage:
        await remove_from_service(services.disk, services.blobs, services.metrics, damage)
        raise Unavailable(f"This replica cannot be read: {damage}") from damage
    except BlobMissing as error:
        raise Unavailable("This replica has disappeared.") from error
    return response


async def _put(request: web.Request) -> web.StreamResponse:
    """Receive a replica: 200 if it is whole, verified and durable.

    Raises ChecksumMismatch (nothing is kept), InsufficientStorage, InvalidRequest without a Content-Length.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    size_bytes = request.content_length
    if size_bytes is None or size_bytes > SIZE_BYTES_MAX:
        raise InvalidRequest("Content-Length: is required.")
    if await _affirmed_bytes(services, sha256) is not None:
        return web.Response()
    await services.disk.run(services.blobs.require_room, size_bytes)
    received = services.metrics.replica_bytes.labels("received")
    writer = await services.disk.run(services.blobs.receive, sha256, size_bytes)

    def write(batch: Batch) -> None:  # in a worker thread
        for piece in batch:
            writer.write(piece)
            received.inc(len(piece))

    try:
        await write_overlapped(services.disk, body_batches(request), write)
        await services.disk.run(writer.finish)
    finally:
        await services.disk.run(writer.abort)
    return web.Response()


async def _sums(request: web.Request) -> web.StreamResponse:
    """Return the checksums of the segments, as in a sidecar (`node/storage/segments.py`). Raises NotFound."""
    services, sha256 = request.app[NODE], _sha256(request)
    with await _opened(services, sha256) as blob:
        return web.Response(body=encode_sidecar(blob.sums))


async def _chunks(request: web.Request) -> web.StreamResponse:
    """Return the list of the chunks of a cold replica (`node/peer/chunk_lists.py`), with `?cut=` of any.

    Raises NotFound if there is none, and without that for one that is hot.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    with await _opened(services, sha256) as blob:
        cut = request.query.get("cut")
        if not isinstance(blob, OpenColdBlob) and cut not in (CUT, SAMPLE):
            raise NotFound("This replica is not cold.")
        try:
            chunks = list_chunks(services.disk, blob, services.cuttings, is_sample=cut == SAMPLE)
            return await send_list(request, chunks)
        except BlobDamaged as damage:
            await remove_from_service(services.disk, services.blobs, services.metrics, damage)
            raise Unavailable(f"This replica cannot be read: {damage}") from damage


async def _pull(request: web.Request) -> web.StreamResponse:
    """Fetch the blob from the given nodes: 200 if it is whole, verified and durable here.

    202 if that takes longer than 20 s; a repeated request joins it. Both have a PullState as body. Raises
    Unavailable if none of the nodes can send it, and keeps what has arrived for the next time;
    InsufficientStorage. The error for failed sources names them.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    order = await read_json(request, PullOrder)
    try:
        state = await services.pulls.pull(FinishedBlob(sha256, order.size_bytes), order.sources)
    except SourcesFailed as failure:
        body = error_body(failure, request_id(request)) | {"failed_sources": failure.sources}
        return json_response(body, status=failure.status, headers=failure.headers)
    return json_response(state, status=200 if state.is_here else 202)


async def _retain(request: web.Request) -> web.StreamResponse:
    """Keep a replica that the log has marked for deletion, and make the log withdraw the mark.

    Returns 200 if the replica is here, whole according to its name and size, and no longer marked for
    deletion.

    Raises NotFound if it is not here: then it can be stored again. Unavailable.
    """
    services, sha256 = request.app[NODE], _sha256(request)
    if services.custody is None:
        raise Unavailable("This process does not manage the replicas of its node.")
    if not await services.custody.retain(sha256):
        raise NotFound("There is no complete replica of this blob here.")
    return web.Response()


async def _take_small(request: web.Request) -> web.StreamResponse:
    """Store small blobs: 200 if all of them are durable here.

    Raises InvalidRequest, and keeps nothing, if one does not hash to its name; InsufficientStorage.
    """
    services = request.app[NODE]
    if request.content_length is None or request.content_length > _SMALL_BYTES_MAX:
        raise PayloadTooLarge(f"Content-Length: is required, and at most {_SMALL_BYTES_MAX}.")
    pieces = list[bytes]()
    async with aclosing(body_batches(request)) as batches:
        async for batch in batches:
            pieces += map(bytes, batch)
    try:
        blobs = decode_small_blobs(b"".join(pieces))
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    if any(len(content) > BLOB_BYTES_MAX for _, content in blobs):
        raise PayloadTooLarge(f"A small blob has at most {BLOB_BYTES_MAX} bytes.")
    await asyncio.gather(*(services.small_blobs.put(*blob) for blob in blobs))
    services.metrics.replica_bytes.labels("received").inc(sum(len(content) for _, content in blobs))
    return web.Response()


async def _copy_sums(request: web.Request) -> web.StreamResponse:
    """Return the checksums of this node's copy, of any size. Raises NotFound."""
    services = request.app[NODE]
    sums = await services.disk.run(local_sums, services.blobs, _sha256(request))
    if sums is None:
        raise NotFound("There is no copy of this blob with checksums here.")
    return web.Response(body=encode_sidecar(sums))


async def _copy_segment(request: web.Request) -> web.StreamResponse:
    """Return a segment that matches the checksum `xxh3` of the query. Raises NotFound, InvalidRequest."""
    services, sha256 = request.app[NODE], _sha256(request)
    digest, index = request.query.get("xxh3", ""), request.match_info["index"]
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest("xxh3: expected 16 hexadecimal digits.")
    if not _NUMBER.fullmatch(index):
        raise NotFound("No such segment.")
    found = await services.disk.run(local_segment, services.blobs, sha256, int(index), bytes.fromhex(digest))
    if found is None:
        raise NotFound("There is no copy of this blob with this segment here.")
    services.metrics.replica_bytes.labels("sent").inc(len(found))
    return web.Response(body=found)


async def _size_bytes(services: NodeServices, sha256: str) -> int:
    with await _opened(services, sha256) as blob:
        return blob.size_bytes


async def _expected_bytes(services: NodeServices, sha256: str) -> int:
    """Return the size of a blob that the log lists for this node. Raises NotFound, and leaves a note."""
    try:
        return await _size_bytes(services, sha256)
    except NotFound:
        await miss(services.disk, services.blobs, sha256)
        raise


async def _opened(services: NodeServices, sha256: str) -> OpenBlob:
    """Open the blob; the caller closes it. Raises NotFound."""
    try:
        return await services.disk.open(services.blobs.open, sha256)
    except BlobMissing as error:
        raise NotFound("There is no complete replica of this blob here.") from error
    except BlobDamaged as damage:
        await remove_from_service(services.disk, services.blobs, services.metrics, damage)
        raise NotFound("There is no complete replica of this blob here.") from damage


async def _recheck(services: NodeServices, sha256: str, number: str) -> int:
    """Return the size if that segment is sound on the disk. Raises NotFound, InvalidRequest."""
    with await _opened(services, sha256) as blob:
        index = int(number) if _NUMBER.fullmatch(number) else segment_count(blob.size_bytes)
        if index >= segment_count(blob.size_bytes):
            raise InvalidRequest("segment: there is no such segment.")
        try:
            await services.disk.run(blob.require_segment, index)
        except BlobDamaged as damage:
            await remove_from_service(services.disk, services.blobs, services.metrics, damage)
            raise NotFound("There is no complete replica of this blob here.") from damage
        return blob.size_bytes


async def _affirmed_bytes(services: NodeServices, sha256: str) -> int | None:
    return await affirm_sound(services.disk, services.blobs, services.metrics, sha256)


def _sha256(request: web.Request) -> str:
    sha256 = request.match_info["sha256"]
    if not is_sha256(sha256):
        raise NotFound("No such blob.")
    return sha256
