"""One request that writes an upload on the node that holds it: receive, make durable, complete.

While what has come is hashed and written by threads more is read from the socket, into a bounded number of
buffers (`coordinator/http/buffer_ring.py`), whatever the size of the body. Other nodes receive at the same
time (`node/uploads/chain.py`). However the request ends, its bytes are made durable on the write quorum and
reported: what is acknowledged is what the log says.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from aiohttp import web

from ca.errors import (
    ChecksumMismatch,
    FilestoreError,
    Forbidden,
    Gone,
    InvalidRequest,
    NotFound,
    OffsetMismatch,
    Unauthorized,
    Unavailable,
)
from coordinator.http.app import body_batches
from coordinator.http.request_body import Batch
from coordinator.model.records import PROJECT_FILE, Caller, ContentRecord, Manifest, UploadRecord
from coordinator.model.time_limits import failing, moved
from coordinator.protocol.commands import CompleteUpload
from coordinator.protocol.queries import GetUpload
from coordinator.runtime.lasting_troubles import LastingTroubles
from node.archive.manifest import read_manifest
from node.content.context import ContentContext
from node.diskio.executor import write_overlapped
from node.diskio.fs import DiskFailed, DiskFull, DiskRefused
from node.http.digests import Checksum
from node.staging.upload_file import Upload
from node.storage.blobs import BlobStore
from node.storage.damage import verify_blob
from node.storage.segments import BlobDamaged, BlobMissing
from node.uploads.forwarding import PASSED_ON
from node.uploads.holder import EMPTY_SHA256, SMALL_BYTES, Holding
from node.uploads.recorded import Overtaken
from node.uploads.reserving import NO_ROOM
from node.uploads.retaining import record_completion
from node.uploads.write_locks import Hold

Check = Callable[[int], None]
_log = logging.getLogger(__name__)
_TROUBLES = LastingTroubles(_log)


class WrongContent(ChecksumMismatch):
    """All of the content has come, and it is not what was declared: nothing of it is right for certain."""


class HolderFails(Unavailable):
    """The disk of this node refuses the bytes, and no other node goes on with them."""

    lasts = True


class HandedOver(Unavailable):
    """This disk takes no more of the upload: another node, `successor`, goes on with it.

    `is_untouched`: nothing of the request's body was read, so that it can be passed on there.
    """

    def __init__(self, successor: str, *, is_untouched: bool) -> None:
        super().__init__(f"Node {successor} goes on with this upload: ask for the offset.")
        self.successor = successor
        self.is_untouched = is_untouched


@dataclass(slots=True)
class Session:
    """A request's exclusive use of an upload.

    `kept` is None once the file is available: there is nothing to write. `has_read`: of the request's body.
    `expected_bytes`: the content's size as far as it is known before it was declared, else 0.
    """

    request: web.Request
    services: ContentContext
    caller: Caller
    holding: Holding
    hold: Hold
    has_read: bool = False
    expected_bytes: int = 0

    @property
    def record(self) -> UploadRecord:
        """The upload as the log had it last."""
        return self.holding.record

    @property
    def kept(self) -> Upload | None:
        """The file with the bytes so far."""
        return self.holding.kept

    @property
    def upload(self) -> Upload:
        """The same. Only while `kept`."""
        return self.holding.upload

    @property
    def is_complete(self) -> bool:
        """Whether all declared bytes are here."""
        return self.record.size_bytes is not None and self.upload.offset == self.record.size_bytes

    async def stand_at(self, offset: int) -> None:
        """Make sure that the next byte of the upload is that at `offset`.

        Bytes that an earlier request left unacknowledged are settled first, or dropped for a client that goes
        on where HEAD has sent it. Raises OffsetMismatch with the right offset, Unavailable.
        """
        acknowledged = self.record.offset_bytes
        if self.upload.offset > acknowledged:
            if offset == acknowledged and (offset == 0 or self.upload.finished is None):
                await self.holding.rewind(offset, self.record.prefix_sha256 or EMPTY_SHA256)
            else:
                await self.holding.settle()
        if self.upload.offset != offset:
            stands_at = self.record.offset_bytes
            raise OffsetMismatch(f"This upload stands at {stands_at}.", offset=stands_at)

    async def receive_whole(
        self, *, whole_sha256: str, check: Check, checksums: Sequence[Checksum] = ()
    ) -> None:
        """Take the whole content in, in place of what came before: as `receive` does, from offset 0.

        What came before is dropped when the first byte is here, not for a body that never comes. Raises
        InvalidRequest for an empty body where bytes were declared.
        """
        async with aclosing(self._batches()) as batches:
            with self.receiving():
                first: Batch = await anext(batches, [])
            if not first and self.record.size_bytes:
                raise InvalidRequest(f"The body is empty; {self.record.size_bytes} bytes were declared.")
            if self.upload.offset or self.record.offset_bytes:
                await self.holding.rewind(0, EMPTY_SHA256)
            await self.receive(
                checksums=checksums,
                whole_sha256=whole_sha256,
                check=check,
                batches=_joined(first, batches),
                is_whole=True,
            )

    async def receive(
        self,
        *,
        checksums: Sequence[Checksum] = (),
        whole_sha256: str = "",
        check: Check = lambda _received_bytes: None,
        batches: AsyncGenerator[Batch, None] | None = None,
        is_whole: bool = False,
    ) -> None:
        """Take the request's body in and make it durable. `batches`: the body, if its reading has begun.

        `is_whole`: it is all of the content, which `complete` is called for next. Small content is then made
        durable by that only. `whole_sha256`: what the content must hash to as the request says, which the log
        does not know: what may be the last of it is on hold until that was looked at.

        Bytes of a client that vanished or stalled are kept, and what ended it is raised. Nothing of this
        request is kept when it has more bytes than were declared or the quota has room for (NO_ROOM), does
        not match one of `checksums` (ChecksumMismatch), is malformed (InvalidRequest), comes from a caller
        who lost the permission meanwhile (Forbidden, Unauthorized), or `check`, which is handed the length of
        the whole body, raises one of these; nothing of the upload when all of it is here and does not hash to
        `whole_sha256` (WrongContent). With checksums nothing is kept of a body that ends early either.
        """
        start, start_sha256 = self.upload.offset, self.upload.sha256
        hashes = [checksum.new() for checksum in checksums]
        if hashes and self.upload.finished is None:
            self.upload.hold()

        def write(batch: Batch) -> None:  # in a worker thread
            for found in hashes:
                for piece in batch:
                    found.update(piece)
            if whole_sha256 and not hashes:
                self.upload.hold()
            self.upload.append(*batch)
            self.holding.written()

        try:
            with self.receiving():
                await write_overlapped(self.services.disk, batches or self._batches(), write)
            for checksum, found in zip(checksums, hashes, strict=True):
                checksum.require(found)
            check(self.upload.offset - start)
            if whole_sha256 and (is_whole or self.is_complete):
                self._require_whole(whole_sha256)
            self.upload.release()
            if self.upload.offset > SMALL_BYTES or not (is_whole or self.is_complete):
                await self.holding.settle()
        except Overtaken:
            raise
        except WrongContent:
            await self._roll_back(0, EMPTY_SHA256)
            raise
        except (*NO_ROOM, ChecksumMismatch, InvalidRequest, Forbidden, Unauthorized):
            await self._roll_back(start, start_sha256)
            raise
        except BaseException as error:
            failing(error)
            with suppress(FilestoreError):
                await (self._roll_back(start, start_sha256) if hashes else self._keep())
            raise

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """While the client is expected to send."""
        self.hold.touch()
        self.hold.receiving = True
        try:
            yield
        finally:
            self.hold.receiving = False

    async def _roll_back(self, offset: int, sha256: str) -> None:
        """Drop the bytes from `offset` on; of a caller who may not any more, what the log does not know.

        That goes too when the log cannot be told, which is raised: who asks for the completion next may say
        nothing of a digest.
        """
        try:
            await self.holding.rewind(offset, sha256)
        except (Forbidden, Unauthorized, NotFound, Gone):
            await self.holding.drop_unrecorded()
        except FilestoreError:
            with suppress(FilestoreError):
                await self.holding.drop_unrecorded()
            raise

    async def _keep(self) -> None:
        """Keep what came, if the caller may write still; not the last of what may be all, on hold still."""
        if self.record.size_bytes in (None, self.upload.offset):
            await self.services.disk.run(self.upload.drop_held)
        self.upload.release()
        try:
            await self.holding.settle()
        except (Forbidden, Unauthorized, *NO_ROOM):
            await self.holding.drop_unrecorded()

    def _require_whole(self, sha256: str) -> None:
        """Raises WrongContent when the content, all of which is here, does not hash to `sha256`.

        Once the log knows of all bytes whoever asks for the offset completes the upload. Where its creator
        has declared another digest, which the log knows, `complete` tells of it.
        """
        if self.record.expected_sha256 in ("", sha256) and self.upload.sha256 != sha256:
            raise WrongContent(f"The content has sha256 {self.upload.sha256}, declared was {sha256}.")

    async def require_room(self, size_bytes: int) -> None:
        """Raises InsufficientStorage for a whole content that this disk cannot take."""
        self.expected_bytes = size_bytes
        if size_bytes > SMALL_BYTES:
            await self.services.disk.run(self.upload.require_room, size_bytes)

    async def reserve(self, size_bytes: int) -> None:
        """Before the bytes of content that will have so many at least, of a size that nobody has declared.

        Raises NO_ROOM when the bucket's quota has no room for them.
        """
        await self.holding.reserve(size_bytes, is_told=True)

    async def declare(self, size_bytes: int) -> None:
        """Fix the size of an upload that began without one. Raises Conflict when it has another by now."""
        await self.holding.declare(size_bytes)

    async def declare_received(self) -> None:
        """All of the content is here: fix its size. Nothing is kept of what the bucket has no room for."""
        try:
            await self.declare(self.upload.offset)
        except NO_ROOM:
            await self._roll_back(0, EMPTY_SHA256)
            raise

    async def complete(self, sha256: str = "", *, patch_offset: int = -1) -> ContentRecord:
        """Everything between the last byte and `available`; may be repeated after any failure.

        `patch_offset`: where the bytes of this request began, if it is a PATCH.

        Raises ChecksumMismatch when the content does not hash to `sha256` or to what its creator declared
        (it is dropped then), or when these two contradict each other; Unavailable when too few copies could
        be made (it is kept); OffsetMismatch when it was whole before but its disk has damaged it since: it
        has to come again.
        """
        try:
            return await self._complete(sha256, patch_offset)
        except WrongContent:
            raise  # nothing of it shall be acknowledged
        except (Forbidden, Unauthorized):
            if self.kept is not None:
                with suppress(FilestoreError):  # else whoever may complete it would, with these bytes
                    await self.holding.drop_unrecorded()
            raise
        except FilestoreError as error:
            failing(error)
            if self.kept is not None:
                with suppress(FilestoreError):  # small content is nowhere else yet
                    await self._keep()
            raise

    async def _complete(self, sha256: str, patch_offset: int) -> ContentRecord:
        services, holding = self.services, self.holding
        if self.upload.finished is not None:
            await self._check_finished(self.upload.finished.sha256)
        elif self.upload.offset > SMALL_BYTES:
            await holding.settle()
        await self._check_expected(sha256)
        blob = await services.disk.run(self.upload.finish)
        moved()
        made = await services.replication.finish(holding.terms, blob, holding.made)
        record = self.record
        replicas = await services.replication.spread(blob, record.placement, made=made)
        manifest, md5 = await self._manifest(blob.sha256), await services.disk.run(self.upload.md5)
        moved()
        command = CompleteUpload(
            caller=self.caller,
            file_uuid=record.file_uuid,
            blob_sha256=blob.sha256,
            size_bytes=blob.size_bytes,
            replicas=replicas,
            md5=md5,
            manifest=manifest,
            as_of=record.as_of,
            node_id=services.node_id,
            epoch=record.epoch,
            patch_offset=patch_offset,
        )
        content = await record_completion(services, command)
        services.metrics.uploads_completed.inc()
        await holding.discard()
        return content

    async def _check_expected(self, sha256: str) -> None:
        """Raises ChecksumMismatch; other content than was declared is dropped."""
        expected = {digest for digest in (sha256, self.record.expected_sha256) if digest}
        if len(expected) > 1:
            raise ChecksumMismatch("The digests declared for this content contradict each other.")
        found = self.upload.sha256
        if expected - {found}:
            if self.upload.finished is None:
                await self.holding.rewind(0, EMPTY_SHA256)
            raise WrongContent(f"The content has sha256 {found}, declared was {expected.pop()}.")

    async def _check_finished(self, sha256: str) -> None:
        """Content that an earlier request put into place: is it sound still?"""
        services = self.services
        try:
            await verify_blob(services.disk, services.blobs, services.metrics, sha256)
            await services.disk.run(self.upload.md5)
        except (BlobMissing, BlobDamaged) as error:
            await self.holding.drop_lost(error)

    async def _manifest(self, sha256: str) -> Manifest | None:
        """What a project's archive says of itself: a help, and no obstacle when it cannot be had."""
        if self.record.kind != PROJECT_FILE:
            return None
        try:
            return await self.services.disk.run(_read_manifest, self.services.blobs, sha256)
        except (OSError, FilestoreError, BlobMissing, BlobDamaged) as error:
            _log.warning("an archive was not looked at", extra={"sha256": sha256, "reason": str(error)})
            return None

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """The request's body; keeps the hold alive and the log informed while it flows."""
        self.has_read = True
        async with aclosing(body_batches(self.request)) as batches:
            async for batch in batches:
                self.hold.receiving = False  # what the client waits for now is this node
                self.services.metrics.upload_bytes.inc(sum(map(len, batch)))
                yield batch
                moved()  # this disk has taken it
                await self.holding.keep_up()
                self.hold.touch()
                self.hold.receiving = True
        self.hold.receiving = False  # all has come


@asynccontextmanager
async def upload_session(
    request: web.Request,
    services: ContentContext,
    caller: Caller,
    record: UploadRecord,
    *,
    seen_releases: int,
    opens: bool = True,
) -> AsyncIterator[Session]:
    """Exclusive use of the upload, for the handlers of this package; without its file unless it `opens`.

    `record` was read before anybody was kept out: it is read again if a request ended after
    `seen_releases`, the count of `UploadLocks.releases` before that read. Raises UploadLocked while another
    request writes, RateLimited when the caller writes too many uploads.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(services.locks.writer(caller.subject, record.file_uuid))
        holding_alone = services.locks.hold(record.file_uuid, *_connection_of(request))
        hold = await stack.enter_async_context(holding_alone)
        if services.locks.releases != seen_releases:
            query = GetUpload(caller=caller, file_uuid=record.file_uuid)
            record = await services.api.metadata.read(query, UploadRecord)
            if record.placement and record.placement[0] != services.node_id:
                raise _held_elsewhere()
        holding = Holding(services, caller, record)
        stack.push_async_callback(holding.close)
        session = Session(request, services, caller, holding, hold)
        try:
            if record.placement and opens:
                await holding.open()
            moved()
            yield session
        except Overtaken as error:
            raise _held_elsewhere() from error
        except (DiskFull, DiskRefused) as error:
            if successor := await _handed_over(session, error):
                raise HandedOver(successor, is_untouched=not session.has_read) from error
            if not isinstance(error, DiskFailed):
                raise
            told = "the disk refuses an upload, and no other node goes on with it"
            _TROUBLES.met(told, error.details, file_uuid=record.file_uuid)
            raise HolderFails(
                "The disk of the node that holds this upload fails, and no other node can go on with it now.",
                retry_after_s=2,
            ) from error


async def _handed_over(session: Session, error: DiskFull | DiskRefused) -> str:
    """The node that goes on with what this disk refuses, "" when there is none.

    A refusal that is no failure of the disk may be the same everywhere: nothing tells before. So that is
    handed over once in a request. Raises Unavailable; NotFound or Gone when the upload has ended meanwhile.
    """
    may_be_anywhere = not isinstance(error, (DiskFull, DiskFailed))
    if may_be_anywhere and PASSED_ON in session.request.headers:
        return ""
    try:
        return await session.holding.hand_over(session.expected_bytes)
    except Overtaken as overtaken:
        raise _held_elsewhere() from overtaken
    except (NotFound, Gone):
        raise
    except FilestoreError as refusal:
        _TROUBLES.met("an upload cannot be handed over", refusal.details)
        return ""


def _held_elsewhere() -> Unavailable:
    return Unavailable("Another node holds this upload now: ask for the offset there.")


def _read_manifest(blobs: BlobStore, sha256: str) -> Manifest:
    with blobs.open(sha256) as blob:
        return read_manifest(blob.fd, blob.size_bytes)


async def _joined(first: Batch, rest: AsyncGenerator[Batch, None]) -> AsyncGenerator[Batch, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for batch in rest:
            yield batch


def _connection_of(request: web.Request) -> tuple[Callable[[], bool], Callable[[], None]]:
    """Whether the client's connection stands, and how to end it.

    One that has closed its side may be gone, or wait for its answer: who asks for the same upload goes first.
    """
    transport, connection = request.transport, request.protocol

    def connected() -> bool:
        has_ended: bool = connection.has_ended  # type: ignore[attr-defined]  # it is a connection of ours
        return transport is not None and not transport.is_closing() and not has_ended

    def disconnect() -> None:
        if transport is not None:
            transport.abort()

    return connected, disconnect
