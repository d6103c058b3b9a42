"""A member of a chain: receives an upload's bytes from the node before it, and passes them on to the next.

On the peer port, for members of the cluster only:

    POST /uploads/{file_uuid}/agree    go back to `limit` if beyond it; the offset and its sha256
    PUT  /uploads/{file_uuid}/link     bytes from `start` on, as they come; the answer tells what is durable
    POST /uploads/{file_uuid}/finish   the content is whole: put it into place
    HEAD /uploads/{file_uuid}          the sha256 of the first `stop` bytes; for a takeover, changes nothing
    HEAD /room                         the bytes that uploads may take of this disk

A link belongs to an epoch of the log. The highest epoch that a member has seen is stored with the bytes.
Requests of an earlier epoch are rejected, since another node holds the upload now. A new link ends an older
one, as its sender knows more (`node/uploads/chain_link.py`). A member never restores a broken link: the
holder does.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial

import msgspec
from aiohttp import web

from api.spec.operation import Handler
from ca.errors import (
    Conflict,
    FilestoreError,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    OffsetMismatch,
    RequestTimeout,
    Unavailable,
)
from metadata.model.identifiers import is_sha256, is_uuid
from node.diskio.executor import write_overlapped
from node.peer.client import PeerFailed
from node.staging.resumed_hash import open_in_steps
from node.staging.upload_file import UploadFile
from node.staging.upload_store import UploadStore
from node.uploads.chain_link import (
    OFFSET_HEADER,
    SHA256_HEADER,
    TELL_S,
    Link,
    LinkFences,
    LinkReport,
    LinkSource,
    LinkTerms,
)
from node.uploads.forwarding import pass_on, worker_holding
from node.uploads.services import NODE
from node.uploads.succession import ROOM_HEADER, ROOM_PATH, own_prefix
from runtime.lifetime import end_tasks
from web.app import ClientGone, body_batches
from web.headers.ranges import SIZE_BYTES_MAX
from web.rate_limits import BodyPace
from web.request_body import Batch

SYNC_BYTES = 16 << 20
SYNC_S = 1.0
IDLE_S = 120.0  # without a byte, the holder has abandoned this link or lost us
MEMBERS_MAX = 64
_DIGITS_MAX = 16

_log = logging.getLogger(__name__)


LINKS = web.AppKey("links", set[asyncio.Transport])  # incoming connections of links
FENCES = web.AppKey("laid", LinkFences)


def prepare_following(app: web.Application) -> None:
    """Make links end when the listener begins to drain: their senders then skip this node."""
    app[LINKS] = set()
    app[FENCES] = LinkFences()

    async def break_links(app: web.Application) -> None:
        for transport in app[LINKS]:
            transport.abort()

    app.on_shutdown.append(break_links)


def following_routes() -> list[web.RouteDef]:
    """Return the routes `/uploads/{file_uuid}` and `/room`; `node/peerapi/admission.py` controls access."""
    path = "/uploads/{file_uuid}"
    return [
        web.head(path, _prefix),
        web.head(ROOM_PATH, _tell_room),
        web.post(f"{path}/agree", by_owner(_agree)),
        web.put(f"{path}/link", by_owner(_link)),
        web.post(f"{path}/finish", by_owner(_finish)),
    ]


def by_owner(handler: Handler) -> Handler:
    """Run the handler, which gets a `file_uuid`, in the worker of this node that owns the upload."""

    async def handle(request: web.Request) -> web.StreamResponse:
        services = request.app[NODE]
        if (owner := services.siblings.owner(upload_named(request))) is not None:
            return await pass_on(request, worker_holding(services, owner), pace=_pace(), from_peer=True)
        return await handler(request)

    return handle


def _pace() -> BodyPace:
    """Return the pace of a link: it has nothing to send while its client pauses or bytes are unverified."""
    return BodyPace(IDLE_S, bytes_per_s_min=1 / IDLE_S)


async def _prefix(request: web.Request) -> web.StreamResponse:
    """Return 200 with the sha256 of the first `stop` bytes.

    Raises NotFound if fewer are durable here. Raises Unavailable if the leader is lost or the disk hangs, so
    that an upload cannot continue here, and while the bytes are still being read: a repeated request makes
    progress.
    """
    services = request.app[NODE]
    services.api.view.require_leader()
    if services.disk.hangs():
        raise Unavailable("The disk of this node does not respond.", retry_after_s=5)
    sha256 = await own_prefix(services, upload_named(request), number_in(request, "stop"))
    return web.Response(headers={SHA256_HEADER: sha256})


async def _tell_room(request: web.Request) -> web.Response:
    """Return 204 with the space for uploads on this disk; 0 if it cannot be written to now.

    Return 503 if the disk hangs: the caller then waits for that to end, and not for this node.
    """
    services, found_bytes = request.app[NODE], 0
    try:
        await services.disk.run(services.blobs.probe)
        found_bytes = await services.disk.run(services.blobs.room_bytes)
    except TimeoutError as error:
        raise Unavailable("The disk of this node hangs.", retry_after_s=5) from error
    except (FilestoreError, OSError):
        pass
    return web.Response(status=204, headers={ROOM_HEADER: str(max(found_bytes, 0))})


async def _agree(request: web.Request) -> web.StreamResponse:
    """Return the durable offset, at most `limit`, and the sha256 of the bytes before it.

    Raises Conflict for an old epoch, UploadLocked while a client writes the upload here.
    """
    async with _followed(request, number_in(request, "limit")) as upload:
        return web.Response(headers={OFFSET_HEADER: str(upload.offset), SHA256_HEADER: upload.sha256})


async def _link(request: web.Request) -> web.StreamResponse:
    """Receive bytes from `start` on; those up to `stop` are waiting already.

    Raises OffsetMismatch if fewer are here, InsufficientStorage if those have no room; also what `_agree`
    raises.
    """
    services, start = request.app[NODE], number_in(request, "start")
    stop = number_in(request, "stop")
    behind = [name for name in request.query.get("behind", "").split(",") if name]
    if len(behind) > MEMBERS_MAX:
        raise InvalidRequest(f"behind: at most {MEMBERS_MAX} nodes.")
    await services.disk.run(services.blobs.require_room, max(0, stop - start))
    async with _followed(request, start) as upload:
        if upload.offset != start:
            raise OffsetMismatch(f"This node has {upload.offset} bytes.", offset=upload.offset)
        if request.transport is None:
            raise ClientGone("the previous node in the chain disconnected")
        links, transport = request.app[LINKS], request.transport
        links.add(transport)
        try:
            return await _ReceivedLink(request, upload, _terms(request), behind).run()
        finally:
            links.discard(transport)


async def _finish(request: web.Request) -> web.StreamResponse:
    """Put the content into place: 200 if it is durable there. Raises ChecksumMismatch, OffsetMismatch."""
    services, size_bytes = request.app[NODE], number_in(request, "size")
    sha256 = request.query.get("sha256", "")
    if not is_sha256(sha256):
        raise InvalidRequest("sha256: must be 64 hexadecimal digits.")
    async with _followed(request, size_bytes) as upload:
        if upload.offset != size_bytes:
            raise OffsetMismatch(f"This node has {upload.offset} bytes.", offset=upload.offset)
        await services.disk.run(upload.finish, sha256)
    return web.Response()


@asynccontextmanager
async def _followed(request: web.Request, stop: int) -> AsyncIterator[UploadFile]:
    """Yield the upload for this request alone, durable, with at most `stop` bytes, in the given epoch.

    A newer request may end this one, as it knows more. Raises Conflict for an old epoch and for an older
    link, UploadLocked while a client writes the upload here.
    """
    services, terms, fencing_token = request.app[NODE], _terms(request), request.app[FENCES]
    disk, uploads = services.disk, services.uploads
    has_bytes = await disk.run(_has_bytes, uploads, terms)  # before another request is disturbed

    def require_newest() -> None:
        fencing_token.require_newest(
            terms.file_uuid,
            terms.epoch,
            terms.fencing_token,
            is_relayed=terms.is_relayed,
            has_bytes=has_bytes,
        )

    require_newest()

    def disconnect() -> None:
        if request.transport is not None:
            request.transport.abort()

    async with services.locks.lock_until_wanted(terms.file_uuid, disconnect):
        require_newest()  # a newer one may have arrived meanwhile
        if uploads.opens_quickly(terms.file_uuid, stop):
            upload = await disk.run(_open, uploads, terms, stop)
        else:
            upload = await open_in_steps(disk, partial(_open, uploads, terms, stop))
        try:
            yield upload
        finally:
            with suppress(FilestoreError):
                await disk.run(upload.sync)
            upload.close()


def _open(uploads: UploadStore, terms: LinkTerms, stop: int, hash_bytes_max: int = 0) -> UploadFile:
    """Open the upload and cut it to `stop`. Blocks. Raises HashingUnfinished."""
    upload = uploads.open(terms.file_uuid, None, with_md5=terms.with_md5, hash_bytes_max=hash_bytes_max)
    try:
        _require_not_over(terms, upload.epoch)  # another link may have arrived while this one waited
        if upload.finished is not None and upload.offset != stop:  # of content that was abandoned since
            upload = uploads.reopen(upload, min(stop, terms.acknowledged_offset))
        upload.size_bytes = None  # only the holder knows the declared size
        upload.enter_epoch(terms.epoch)
        if upload.finished is None:
            upload.rollback_to(stop)
            upload.sync()
    except BaseException:
        upload.close()
        raise
    return upload


def _has_bytes(uploads: UploadStore, terms: LinkTerms) -> bool:
    """Return whether bytes of this epoch are here. Raises Conflict if it is old."""
    seen = uploads.epoch(terms.file_uuid)
    _require_not_over(terms, seen)
    if seen < terms.epoch or not terms.is_relayed:
        return False
    with suppress(NotFound):
        return uploads.durable_offset(terms.file_uuid) > 0
    return False


def _require_not_over(terms: LinkTerms, seen: int) -> None:
    if terms.epoch < seen:
        raise Conflict(f"Another node holds this upload, in epoch {seen}.")


def _terms(request: web.Request) -> LinkTerms:
    return LinkTerms(
        upload_named(request),
        number_in(request, "epoch"),
        request.query.get("md5") == "1",
        number_in(request, "acknowledged"),
        request.query.get("laid", ""),
        number_in(request, "proposed"),
        request.query.get("relayed") == "1",
    )


def upload_named(request: web.Request) -> str:
    """Return the upload in the path. Raises NotFound."""
    file_uuid = request.match_info["file_uuid"]
    if not is_uuid(file_uuid):
        raise NotFound("There is no such upload.")
    return file_uuid


def number_in(request: web.Request, name: str) -> int:
    """Return a number of the query, SIZE_BYTES_MAX at most. Raises InvalidRequest."""
    digits = request.query.get(name, "")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX):
        raise InvalidRequest(f"{name}: must be a whole number.")
    return min(int(digits), SIZE_BYTES_MAX)


class _ReceivedLink:
    """One link, at the member that receives it."""

    def __init__(self, request: web.Request, upload: UploadFile, terms: LinkTerms, behind: list[str]) -> None:
        services = request.app[NODE]
        self._request, self._upload, self._services = request, upload, services
        self._file_uuid = terms.file_uuid
        self._received = services.metrics.replica_bytes.labels("received")
        self._source = LinkSource(services.disk, upload)
        self._next = (
            Link(
                services.peers,
                self._source,
                replace(terms, is_relayed=True),
                behind,
                on_change=self._wake,
                sent=services.metrics.replica_bytes.labels("sent"),
            )
            if behind
            else None
        )
        self._is_next_lost = False
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._synced_at_s = time.monotonic()
        self._told_offset = upload.durable_offset

    async def run(self) -> web.StreamResponse:
        """Receive until the sender ends the body, all is durable here, and the next link has ended too.

        Ends earlier if this node has no more room.
        """
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        with closing(self._source):
            await response.prepare(self._request)
            telling = asyncio.create_task(self._tell(response), name="telling the node before")
            passing = asyncio.create_task(self._pass_on(), name="link to the next member")
            try:
                await write_overlapped(self._services.disk, self._batches(), self._write)
                self._source.move(self._upload.offset)
                # The members behind sync their ends in parallel, and need not wait for this disk.
                self._source.end()
                await self._services.disk.run(self._upload.sync)
                self._wake()
                await asyncio.wait({telling, passing}, return_when=asyncio.FIRST_COMPLETED)
                if not passing.done():
                    raise ClientGone("the previous node in the chain disconnected")
                passing.result()
                last_line = self._line(ended=True)
            except InsufficientStorage:  # reported by a line, as the status has gone out
                _log.warning("no room for the bytes of a link", extra={"file_uuid": self._file_uuid})
                last_line = self._line(full=True)
            finally:
                await end_tasks((telling, passing))
        await response.write(last_line)
        await response.write_eof()
        return response

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """Yield the body as it arrives. Raises ClientGone if the sender is lost, or silent for IDLE_S."""
        try:
            async with aclosing(body_batches(self._request, _pace(), from_peer=True)) as batches:
                async for batch in batches:
                    yield batch
        except (RequestTimeout, InvalidRequest) as error:
            raise ClientGone("the previous node in the chain disconnected") from error

    def _write(self, batch: Batch) -> None:
        """Write a batch. Runs in a worker thread."""
        upload = self._upload
        upload.append(*batch)
        self._received.inc(sum(map(len, batch)))
        durable_offset = upload.durable_offset
        if durable_offset != self._told_offset:
            self._told_offset = durable_offset
            self._loop.call_soon_threadsafe(self._wake)
        is_old = time.monotonic() - self._synced_at_s >= SYNC_S
        if upload.offset - durable_offset >= SYNC_BYTES or is_old:
            upload.begin_sync()  # more is received meanwhile; the next piece reports the durable offset
            self._synced_at_s = time.monotonic()
        self._loop.call_soon_threadsafe(self._source.move, upload.offset)

    async def _pass_on(self) -> None:
        if self._next is None:
            return
        try:
            await self._next.run()
        except PeerFailed as failure:
            facts = {"peer": failure.node_id, "reason": failure.reason}
            _log.warning("lost the next member of a chain", extra=facts)
            self._is_next_lost = True
            self._wake()

    async def _tell(self, response: web.StreamResponse) -> None:
        """Send a line after each change, and every TELL_S; end when the connection does."""
        with suppress(OSError):
            while True:
                await response.write(self._line())
                with suppress(TimeoutError):
                    async with asyncio.timeout(TELL_S):
                        await self._changed.wait()
                self._changed.clear()

    def _line(self, *, ended: bool = False, full: bool = False) -> bytes:
        durable = {self._services.node_id: self._upload.durable_offset}
        lost: list[str] = []
        if self._next is not None and self._is_next_lost:
            lost = [self._next.member, *self._next.behind]
        elif self._next is not None:
            durable |= self._next.durable
            lost = sorted(self._next.lost)
        report = LinkReport(
            received_bytes=self._upload.offset, durable=durable, lost=lost, full=full, ended=ended
        )
        return msgspec.json.encode(report) + b"\n"

    def _wake(self) -> None:
        self._changed.set()
