"""One request that writes an upload on the node that holds it: its lock, its body, and its checks.

While what has come is hashed and written by threads more is read from the socket, into a bounded number of
buffers (`web/buffer_ring.py`), whatever the size of the body. Other nodes receive at the same
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
    Unauthorized,
    Unavailable,
)
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.queries import GetUpload
from node.diskio.executor import write_overlapped
from node.diskio.fs import DiskFailed, DiskFull, DiskRefused
from node.staging.upload_file import UploadFile
from node.uploads.forwarding import PASSED_ON
from node.uploads.holder import EMPTY_SHA256, UploadHolder
from node.uploads.progress import SMALL_BYTES
from node.uploads.recorded import NO_ROOM, Overtaken
from node.uploads.services import NodeServices
from node.uploads.write_locks import UploadLock
from runtime.logs import LastingTroubles
from runtime.time_limits import failing, moved
from web.app import body_batches
from web.headers.digests import Checksum, WrongContent, agreed_sha256
from web.request_body import Batch

Check = Callable[[int], None]
Connection = tuple[Callable[[], bool], Callable[[], None]]  # whether it stands, and how to end it
_log = logging.getLogger(__name__)
_TROUBLES = LastingTroubles(_log)


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
class UploadSession:
    """A request's exclusive use of an upload.

    `has_read`: whether anything of the request's body was read. `expected_bytes`: the content's size as far
    as it is known before it was declared, else 0.
    """

    request: web.Request
    services: NodeServices
    caller: Caller
    holder: UploadHolder
    lock: UploadLock
    has_read: bool = False
    expected_bytes: int = 0

    @property
    def record(self) -> UploadRecord:
        """The upload as the log had it last."""
        return self.holder.record

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing to write any more: the file is available."""
        return not self.record.placement

    @property
    def file(self) -> UploadFile:
        """The bytes so far. Not once it `has_ended`."""
        return self.holder.file

    async def receive_whole(
        self,
        *,
        whole_sha256: str,
        check: Check,
        checksums: Sequence[Checksum] = (),
        batches: AsyncGenerator[Batch, None] | None = None,
    ) -> None:
        """Take the whole content in, in place of what came before: as `receive` does, from offset 0.

        `batches`: the body, if its reading has begun.

        What came before is dropped when the first byte is here, not for a body that never comes. Raises
        InvalidRequest for an empty body where bytes were declared.
        """
        async with aclosing(batches or self._batches()) as rest:
            with self.receiving():
                first: Batch = await anext(rest, [])
            if not first and self.record.size_bytes:
                raise InvalidRequest(f"The body is empty; {self.record.size_bytes} bytes were declared.")
            if self.file.offset or self.record.offset_bytes:
                await self.holder.rewind(0, EMPTY_SHA256)
            await self.receive(
                checksums=checksums,
                whole_sha256=whole_sha256,
                check=check,
                batches=_joined(first, rest),
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

        `is_whole`: it is all of the content, and `complete_upload` is called next, which alone makes small
        content durable. `whole_sha256`: what the content must hash to as the request says, not the log: what
        may be the last of it is withheld until that was looked at.

        Bytes of a client that vanished or stalled are kept, and what ended it is raised. Nothing of this
        request is kept when it has more bytes than were declared or the quota has room for (NO_ROOM), does
        not match one of `checksums` (ChecksumMismatch), is malformed (InvalidRequest), comes from a caller
        who lost the permission meanwhile (Forbidden, Unauthorized), or `check`, which is handed the length of
        the whole body, raises one of these; nothing of the upload when all of it is here and does not hash to
        `whole_sha256` (WrongContent). With checksums nothing is kept of a body that ends early either.
        """
        holder, start, start_sha256 = self.holder, self.file.offset, self.file.sha256
        hashes = [checksum.new() for checksum in checksums]
        if hashes and self.file.finished is None:
            self.file.withhold()

        def write(batch: Batch) -> None:  # in a worker thread
            for found in hashes:
                for piece in batch:
                    found.update(piece)
            if whole_sha256 and not hashes:
                self.file.withhold()
            self.file.append(*batch)
            holder.written()

        try:
            with self.receiving():
                await write_overlapped(self.services.disk, batches or self._batches(), write)
            for checksum, found in zip(checksums, hashes, strict=True):
                checksum.require(found)
            check(self.file.offset - start)
            if whole_sha256 and (is_whole or holder.is_complete):
                self._require_whole(whole_sha256)
            self.file.release()
            if self.file.offset > SMALL_BYTES or not (is_whole or holder.is_complete):
                await holder.settle()
        except Overtaken:
            raise
        except WrongContent:
            await holder.roll_back(0, EMPTY_SHA256)
            raise
        except (*NO_ROOM, ChecksumMismatch, InvalidRequest, Forbidden, Unauthorized):
            await holder.roll_back(start, start_sha256)
            raise
        except BaseException as error:
            failing(error)
            with suppress(FilestoreError):
                await (holder.roll_back(start, start_sha256) if hashes else holder.settle_received())
            raise

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """While the client is expected to send."""
        self.lock.touch()
        self.lock.receiving = True
        try:
            yield
        finally:
            self.lock.receiving = False

    def _require_whole(self, sha256: str) -> None:
        """Raises WrongContent when the content, all of which is here, does not hash to `sha256`.

        Once the log knows of all bytes whoever asks for the offset completes the upload. Where its creator
        has declared another digest, which the log knows, `complete_upload` raises it.
        """
        if self.record.expected_sha256 in ("", sha256):
            agreed_sha256(sha256, found=self.file.sha256)

    async def require_room(self, size_bytes: int) -> None:
        """Raises InsufficientStorage for a whole content that this disk cannot take."""
        self.expected_bytes = size_bytes
        if size_bytes > SMALL_BYTES:
            await self.services.disk.run(self.file.require_room, size_bytes)

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """The request's body; keeps the lock alive and the log informed while it flows."""
        self.has_read = True
        async with aclosing(body_batches(self.request)) as batches:
            async for batch in batches:
                self.lock.receiving = False  # what the client waits for now is this node
                self.services.metrics.upload_bytes.inc(sum(map(len, batch)))
                yield batch
                moved()  # this disk has taken it
                await self.holder.keep_up()
                self.lock.touch()
                self.lock.receiving = True
        self.lock.receiving = False  # all has come


@asynccontextmanager
async def upload_session(
    request: web.Request,
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    *,
    seen_releases: int,
    opens: bool = True,
    connection: Connection | None = None,
) -> AsyncIterator[UploadSession]:
    """Exclusive use of the upload, for the handlers of this package; without its file unless it `opens`.

    `connection`: in place of the request's own, for work that outlives it. `record` was read before anybody
    was kept out: it is read again if a request ended after `seen_releases`, the count of
    `UploadLocks.releases` before that read. Raises UploadLocked while another request writes, RateLimited
    when the caller writes too many uploads.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(services.locks.writer(caller.subject, record.file_uuid))
        locking = services.locks.lock(record.file_uuid, *(connection or _connection_of(request)))
        lock = await stack.enter_async_context(locking)
        if services.locks.releases != seen_releases:
            query = GetUpload(caller=caller, file_uuid=record.file_uuid)
            record = await services.api.metadata.read(query, UploadRecord)
            if record.placement and record.placement[0] != services.node_id:
                raise _held_elsewhere()
        holder = UploadHolder(services, caller, record)
        stack.push_async_callback(holder.close)
        session = UploadSession(request, services, caller, holder, lock)
        try:
            if record.placement and opens:
                await holder.open()
            moved()
            yield session
        except Overtaken as error:
            raise _held_elsewhere() from error
        except (DiskFull, DiskRefused) as error:
            if successor := await _handed_over(session, error):
                raise HandedOver(successor, is_untouched=not session.has_read) from error
            if not isinstance(error, DiskFailed):
                raise
            trouble = "the disk refuses an upload, and no other node goes on with it"
            _TROUBLES.met(trouble, error.details, file_uuid=record.file_uuid)
            raise HolderFails(
                "The disk of the node that holds this upload fails, and no other node can go on with it now.",
                retry_after_s=2,
            ) from error


async def _handed_over(session: UploadSession, error: DiskFull | DiskRefused) -> str:
    """The node that goes on with what this disk refuses, "" when there is none.

    A refusal that is no failure of the disk may be the same everywhere: nothing tells before. So that is
    handed over once in a request. Raises Unavailable; NotFound or Gone when the upload has ended meanwhile.
    """
    may_be_anywhere = not isinstance(error, (DiskFull, DiskFailed))
    if may_be_anywhere and PASSED_ON in session.request.headers:
        return ""
    try:
        return await session.holder.hand_over(session.expected_bytes)
    except Overtaken as overtaken:
        raise _held_elsewhere() from overtaken
    except (NotFound, Gone):
        raise
    except FilestoreError as refusal:
        _TROUBLES.met("an upload cannot be handed over", refusal.details)
        return ""


def _held_elsewhere() -> Unavailable:
    return Unavailable("Another node holds this upload now: ask for the offset there.")


async def _joined(first: Batch, rest: AsyncGenerator[Batch, None]) -> AsyncGenerator[Batch, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for batch in rest:
            yield batch


def _connection_of(request: web.Request) -> Connection:
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
