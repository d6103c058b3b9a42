"""One request that writes an upload on the node that holds it: receive, make durable, complete.

While one piece is hashed and written by a thread the next ones are read from the socket, into a bounded
number of buffers (`coordinator/body_ring.py`), whatever the size of the body. However the request ends, its
bytes are made durable and reported.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from aiohttp import web

from ca.errors import (
    ChecksumMismatch,
    FilestoreError,
    Forbidden,
    InvalidRequest,
    OffsetMismatch,
    PayloadTooLarge,
    Unauthorized,
    Unavailable,
)
from coordinator.commands import CompleteUpload, DeclareSize, RecordProgress
from coordinator.queries import GetUpload
from coordinator.records import PROJECT_FILE, VM, Caller, ContentRecord, Manifest, UploadRecord
from coordinator.web import body_pieces
from node.archive import read_manifest
from node.blobs import BlobStore
from node.content.digests import Checksum
from node.content.locks import Hold
from node.damage import verify_blob
from node.disk import write_overlapped
from node.durable import Octets
from node.segments import BlobDamaged, BlobMissing
from node.services import NodeServices
from node.upload import Upload

PROGRESS_S = 30.0  # how often a long request reports: its expiry moves on, and a deleted file ends it

Check = Callable[[int], None]
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Session:
    """A request's exclusive use of an upload.

    `kept` is None once the file is available: there is nothing to write.
    """

    request: web.Request
    services: NodeServices
    caller: Caller
    record: UploadRecord
    hold: Hold
    kept: Upload | None = None

    @property
    def upload(self) -> Upload:
        """The bytes so far. Only while `kept`."""
        assert self.kept is not None
        return self.kept

    @property
    def is_complete(self) -> bool:
        """Whether all declared bytes are here."""
        return self.record.size_bytes is not None and self.upload.offset == self.record.size_bytes

    async def receive_whole(self, *, check: Check) -> None:
        """Take the whole content in, in place of what came before: as `receive` does, from offset 0.

        What came before is dropped when the first byte is here, not for a body that never comes. Raises
        InvalidRequest for an empty body where bytes were declared.
        """
        chunks = self._chunks()
        with self._receiving():
            first = await anext(chunks, b"")
        if not first and self.record.size_bytes:
            raise InvalidRequest(f"The body is empty; {self.record.size_bytes} bytes were declared.")
        await self._restart()
        await self.receive(check=check, chunks=_joined(first, chunks))

    async def receive(
        self,
        *,
        checksums: Sequence[Checksum] = (),
        check: Check = lambda _received_bytes: None,
        chunks: AsyncGenerator[Octets, None] | None = None,
    ) -> None:
        """Take the request's body in and make it durable. `chunks`: the body, if its reading has begun.

        Bytes of a client that vanished or stalled are kept, and what ended it is raised. Nothing of this
        request is kept when it has more bytes than were declared (PayloadTooLarge), does not match one of
        `checksums` (ChecksumMismatch), is malformed (InvalidRequest), comes from a caller who lost the
        permission meanwhile (Forbidden, Unauthorized), or `check`, which is handed the length of the whole
        body, raises one of these. With checksums nothing is kept either of a body that ends
        early: nobody could check it.
        """
        start = self.upload.offset
        hashes = [checksum.new() for checksum in checksums]
        if hashes:
            self.upload.hold()

        def write(chunk: Octets) -> None:  # in a worker thread
            for found in hashes:
                found.update(chunk)
            self.upload.append(chunk)

        try:
            with self._receiving():
                await write_overlapped(self.services.disk, chunks or self._chunks(), write)
            for checksum, found in zip(checksums, hashes, strict=True):
                checksum.require(found)
            check(self.upload.offset - start)
            self.upload.release()
            await self.settle()
        except (PayloadTooLarge, ChecksumMismatch, InvalidRequest, Forbidden, Unauthorized):
            await self._roll_back(start)
            raise
        except BaseException:
            with suppress(FilestoreError):
                await (self._roll_back(start) if hashes else self.settle())
            raise

    @contextmanager
    def _receiving(self) -> Iterator[None]:
        """While the client is expected to send."""
        self.hold.touch()
        self.hold.receiving = True
        try:
            yield
        finally:
            self.hold.receiving = False

    async def settle(self) -> None:
        """Make what came durable, and tell the log. Raises FilestoreError when either cannot be done."""
        durable_offset = await self.services.disk.run(self.upload.sync)
        if durable_offset != self.record.offset_bytes:
            await self._report(durable_offset)

    async def _roll_back(self, offset: int) -> None:
        """Drop the bytes from `offset` on, and tell the log as far as it listens."""
        await self.services.disk.run(self.upload.rollback_to, offset)
        with suppress(Unavailable, Forbidden, Unauthorized):
            await self.settle()

    async def _restart(self) -> None:
        """Back to offset 0, also from content that was complete but never committed."""
        if self.upload.finished is None:
            if self.upload.offset:
                await self.services.disk.run(self.upload.rollback_to, 0)
            return
        self.upload.close()
        self.kept = None
        await self.services.disk.run(self.services.uploads.discard, self.record.file_uuid)
        await self.open()

    async def open(self) -> None:
        """Open the bytes so far; after a restart of the node this hashes them."""
        uploads, record = self.services.uploads, self.record
        self.kept = await self.services.disk.run(
            uploads.open, record.file_uuid, record.size_bytes, with_md5=record.kind == VM
        )

    async def declare(self, size_bytes: int) -> None:
        """Fix the size of an upload that began without one. Raises Conflict when it has another by now."""
        command = DeclareSize(caller=self.caller, file_uuid=self.record.file_uuid, size_bytes=size_bytes)
        self.record = await self.services.api.metadata.propose(command, UploadRecord)
        self.upload.size_bytes = size_bytes

    async def complete(self, sha256: str = "") -> ContentRecord:
        """Everything between the last byte and `available`; may be repeated after any failure.

        Raises ChecksumMismatch when the content does not hash to `sha256` or to what its creator declared
        (it is dropped then), or when these two contradict each other; Unavailable when too few copies could
        be made (it is kept); OffsetMismatch when it was whole before but its disk has damaged it since: it
        has to come again.
        """
        services, record = self.services, self.record
        if self.upload.finished is not None:
            await self._check_finished(self.upload.finished.sha256)
        expected = {digest for digest in (sha256, record.expected_sha256) if digest}
        if len(expected) > 1:
            raise ChecksumMismatch("The digests declared for this content contradict each other.")
        blob = await services.disk.run(self.upload.finish, next(iter(expected), None))
        replicas = await services.replication.spread(blob, record.placement)
        command = CompleteUpload(
            caller=self.caller,
            file_uuid=record.file_uuid,
            blob_sha256=blob.sha256,
            size_bytes=blob.size_bytes,
            replicas=replicas,
            md5=await services.disk.run(self.upload.md5),
            manifest=await self._manifest(blob.sha256),
            as_of=record.as_of,
        )
        content = await services.api.metadata.propose(command, ContentRecord)
        services.metrics.uploads_completed.inc()
        self.upload.close()
        self.kept = None
        await services.disk.run(services.uploads.discard, record.file_uuid)
        return content

    async def _check_finished(self, sha256: str) -> None:
        """Content that an earlier request put into place: is it sound still?"""
        services = self.services
        try:
            await verify_blob(services.disk, services.blobs, services.metrics, sha256)
            await services.disk.run(self.upload.md5)
        except (BlobMissing, BlobDamaged) as error:
            await self._restart()
            await self.settle()
            raise OffsetMismatch("The disk has lost this content; send it again.", offset=0) from error

    async def _manifest(self, sha256: str) -> Manifest | None:
        """What a project's archive says of itself: a help, and no obstacle when it cannot be had."""
        if self.record.kind != PROJECT_FILE:
            return None
        try:
            return await self.services.disk.run(_read_manifest, self.services.blobs, sha256)
        except (OSError, FilestoreError, BlobMissing, BlobDamaged) as error:
            _log.warning("an archive was not looked at", extra={"sha256": sha256, "reason": str(error)})
            return None

    async def _chunks(self) -> AsyncGenerator[Octets, None]:
        """The request's body; keeps the hold alive and the log informed while it flows."""
        loop = asyncio.get_running_loop()
        reported_at_s = loop.time()
        async with aclosing(body_pieces(self.request)) as pieces:
            async for piece in pieces:
                self.hold.touch()
                self.services.metrics.upload_bytes.inc(len(piece))
                yield piece
                if loop.time() - reported_at_s >= PROGRESS_S:
                    reported_at_s = loop.time()
                    await self._report_underway()

    async def _report_underway(self) -> None:
        """A coordinator that does not answer does not stop the bytes; a refusal (deleted, revoked) does."""
        with suppress(Unavailable):
            await self._report(self.upload.durable_offset)

    async def _report(self, durable_offset: int) -> None:
        command = RecordProgress(
            caller=self.caller,
            file_uuid=self.record.file_uuid,
            node_id=self.services.node_id,
            offset_bytes=durable_offset,
        )
        self.record = await self.services.api.metadata.propose(command, UploadRecord)


@asynccontextmanager
async def upload_session(
    request: web.Request, services: NodeServices, caller: Caller, record: UploadRecord, *, seen_releases: int
) -> AsyncIterator[Session]:
    """Exclusive use of the upload, for the handlers of this package.

    `record` was read before anybody was kept out: it is read again if a request ended after
    `seen_releases`, the count of `UploadLocks.releases` before that read. Raises UploadLocked while another
    request writes, RateLimited when the caller writes too many uploads.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(services.locks.writer(caller.subject))
        holding = services.locks.hold(record.file_uuid, *_connection_of(request))
        hold = await stack.enter_async_context(holding)
        if services.locks.releases != seen_releases:
            query = GetUpload(caller=caller, file_uuid=record.file_uuid)
            record = await services.api.metadata.read(query, UploadRecord)
        session = Session(request, services, caller, record, hold)
        if record.placement:
            await session.open()
        try:
            yield session
        finally:
            if session.kept is not None:
                session.kept.close()


def _read_manifest(blobs: BlobStore, sha256: str) -> Manifest:
    with blobs.open(sha256) as blob:
        return read_manifest(blob.fd, blob.size_bytes)


async def _joined(first: Octets, rest: AsyncGenerator[Octets, None]) -> AsyncGenerator[Octets, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for chunk in rest:
            yield chunk


def _connection_of(request: web.Request) -> tuple[Callable[[], bool], Callable[[], None]]:
    """Whether the client's connection stands, and how to end it."""
    transport = request.transport

    def connected() -> bool:
        return transport is not None and not transport.is_closing()

    def disconnect() -> None:
        if transport is not None:
            transport.abort()

    return connected, disconnect
