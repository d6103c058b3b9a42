"""One request that writes an upload on the node that holds it: its lock, and what ends its use of the upload.

If this disk accepts no more bytes, the session hands the upload over to another node.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from aiohttp import web

from ca.errors import (
    FilestoreError,
    Gone,
    NotFound,
    Unavailable,
)
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.queries import GetUpload
from node.diskio.fs import DiskFailed, DiskFull, DiskRefused
from node.staging.upload_file import UploadFile
from node.uploads.forwarding import PASSED_ON
from node.uploads.holder import UploadHolder
from node.uploads.progress import SMALL_BYTES
from node.uploads.recorded import Overtaken
from node.uploads.services import NodeServices
from node.uploads.write_locks import UploadLock
from runtime.logs import LastingTroubles
from runtime.time_limits import moved

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
        super().__init__(f"Node {successor} continues this upload. Ask for the offset.")
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

    async def begin(self, *, opens: bool = True) -> None:
        """Begin to write, before a byte of the body is read; without a file if the request needs none yet.

        Raises what `UploadHolder.open` raises.
        """
        if opens:
            await self.holder.open()
        moved()

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """While the client is expected to send."""
        self.lock.touch()
        self.lock.receiving = True
        try:
            yield
        finally:
            self.lock.receiving = False

    async def require_room(self, size_bytes: int) -> None:
        """Raises InsufficientStorage for a whole content that this disk cannot take."""
        self.expected_bytes = size_bytes
        if size_bytes > SMALL_BYTES:
            await self.services.disk.run(self.file.require_room, size_bytes)


@asynccontextmanager
async def upload_session(
    request: web.Request,
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    *,
    seen_releases: int,
    connection: Connection | None = None,
) -> AsyncIterator[UploadSession]:
    """Exclusive use of the upload, for the handlers of this package; its file is not open yet.

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
            moved()
            yield session
        except Overtaken as error:
            raise _held_elsewhere() from error
        except (DiskFull, DiskRefused) as error:
            if successor := await _handed_over(session, error):
                raise HandedOver(successor, is_untouched=not session.has_read) from error
            if not isinstance(error, DiskFailed):
                raise
            trouble = "the disk rejects an upload, and no other node can continue it"
            _TROUBLES.met(trouble, error.details, file_uuid=record.file_uuid)
            raise HolderFails(
                "The disk of the node that holds this upload failed, and no other node can continue it now.",
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
        _TROUBLES.met("cannot hand over an upload", refusal.details)
        return ""


def _held_elsewhere() -> Unavailable:
    return Unavailable("Another node holds this upload now. Ask for the offset there.")


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
