"""How a request gets to write an upload: at its holder, alone, until another node holds it.

`run_at_holder` is the one entry for every request that names an upload. If the process finds that another
node holds it now, it raises `HolderChanged`, and the record is read from the log again, as long as nothing of
the body was read (docs/uploads.md).

Tested by tests/unit/node/content/test_holder_changes.py.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Final, Self

from aiohttp import hdrs, web

from api.access import authenticate
from api.bodies.checks import path_uuid
from ca.errors import FilestoreError, Gone, NotFound, Unavailable
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.queries import GetUpload
from node.diskio.fs import DiskFailed, DiskFull, DiskRefused
from node.staging.upload_file import UploadFile
from node.uploads.forwarding import PASSED_ON, HolderAddress, node_holding, pass_on, worker_holding
from node.uploads.holder import UploadHolder
from node.uploads.progress import SMALL_BYTES, Overtaken
from node.uploads.services import NODE, NodeServices
from node.uploads.succession import take_over
from node.uploads.write_locks import WRITE_DOUBT_S, UploadLock
from runtime.logs import LastingTroubles
from runtime.time_limits import bounded_s, note_progress
from web.headers.conditions import require_content

# At the log, for one request: the holder of an upload changes once, or twice during a drain.
LOOKS_MAX: Final = 4

Connection = tuple[Callable[[], bool], Callable[[], object]]  # whether it is open, and how to end it
Forward = Callable[[web.Request, HolderAddress], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)
_TROUBLES = LastingTroubles(_log)


class HolderFails(Unavailable):
    """The disk of this node refuses the bytes, and no other node can continue."""

    lasts = True


class HolderChanged(Unavailable):
    """Another node holds the upload now. `is_untouched`: nothing of the request's body was read."""

    def __init__(self, *, is_untouched: bool) -> None:
        super().__init__("Another node holds this upload now: ask for the offset there.")
        self.is_untouched = is_untouched


@dataclass(slots=True)
class UploadRequest:
    """A request for an upload, with the record that the log had last.

    `seen_releases`: `UploadLocks.releases` before that was read. A request that ended since may have changed
    the upload.
    """

    request: web.Request
    services: NodeServices
    caller: Caller
    record: UploadRecord
    seen_releases: int

    @classmethod
    async def begin(cls, request: web.Request) -> Self:
        """Authenticate, and read the upload in the path. Raises what the log refuses."""
        services = request.app[NODE]
        seen_releases = services.locks.releases
        caller = await authenticate(request)
        query = GetUpload(caller=caller, file_uuid=path_uuid(request, "file_uuid"))
        record = await services.api.metadata.read(query, UploadRecord)
        note_progress()
        return cls(request, services, caller, record, seen_releases)

    async def refresh(self) -> None:
        """Read the upload from the log again. Raises what the log refuses."""
        self.seen_releases = self.services.locks.releases
        query = GetUpload(caller=self.caller, file_uuid=self.record.file_uuid)
        self.record = await self.services.api.metadata.read(query, UploadRecord)

    @property
    def other_holder(self) -> HolderAddress | None:
        """The node or worker that holds the upload; None if it has ended, or this process holds it."""
        if not self.record.placement:
            return None
        if self.record.placement[0] != self.services.node_id:
            return node_holding(self.services, self.record.placement[0])
        if (owner := self.services.siblings.owner(self.record.file_uuid)) is None:
            return None
        return worker_holding(self.services, owner)

    @property
    def is_hung(self) -> bool:
        """Return whether the upload needs the disk of this node, which hangs."""
        return bool(self.record.placement) and self.services.disk.hangs()

    def require_tags(self) -> None:
        """Raise PreconditionFailed, except for HEAD, which asks about the upload and not its content."""
        sha256 = self.record.blob_sha256
        if self.request.method != hdrs.METH_HEAD:
            require_content(self.request.headers, f'"{sha256}"' if sha256 else "")

    def place(self) -> AbstractContextManager[None]:
        """Take one of the caller's places on this node; requests that only look need none.

        Raises RateLimited.
        """
        if self.request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
            return nullcontext()
        return self.services.locks.writer(self.caller.subject, self.record.file_uuid)


Act = Callable[[UploadRequest], Awaitable[web.StreamResponse]]


async def run_at_holder(
    asked: UploadRequest, act: Act, *, forward: Forward = pass_on, without_holder: Act | None = None
) -> web.StreamResponse:
    """Return the answer of `act` if this process holds the upload, else that of the holder.

    If the holder does not answer, or the disk of this one hangs, another node takes the upload over;
    `without_holder` answers here instead. Raises Unavailable if the upload keeps changing hands.
    """
    for look in range(LOOKS_MAX):
        if look:
            await asked.refresh()
        holder = asked.other_holder
        if holder is None and not asked.is_hung:
            try:
                return await act(asked)
            except HolderChanged as change:
                if not change.is_untouched:
                    raise
                continue
        with asked.place():  # connections to peers are bounded too
            if holder is not None and await _is_reachable(asked.request, holder):
                return await forward(asked.request, holder)
            if without_holder is not None:
                return await without_holder(asked)
            await take_over(asked.services, asked.caller, asked.record)
    raise Unavailable("No node was found that can continue this upload. Ask again.", retry_after_s=2)


async def _is_reachable(request: web.Request, holder: HolderAddress) -> bool:
    """Return whether the request can be passed on, or was passed on already and must be refused here."""
    return holder.is_reachable is None or PASSED_ON in request.headers or await holder.is_reachable()


@dataclass(slots=True)
class UploadSession:
    """A request's exclusive use of an upload.

    `has_read`: whether part of the request's body was read. `expected_bytes`: the content's size if it is
    known before it was declared, otherwise 0.
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
        """Return the last record from the log."""
        return self.holder.record

    @property
    def has_ended(self) -> bool:
        """Return whether the file is available, so that nothing more can be written."""
        return not self.record.placement

    @property
    def file(self) -> UploadFile:
        """Return the bytes so far. Not after it `has_ended`."""
        return self.holder.file

    async def begin(self, *, opens: bool = True) -> None:
        """Begin to write, before a byte of the body is read; without a file if the request needs none yet.

        Raises what `UploadHolder.open` raises.
        """
        if opens:
            await self.holder.open()
        note_progress()

    @contextmanager
    def expect_client(self) -> Iterator[None]:
        """Mark the time in which the client is expected to send."""
        self.lock.touch()
        self.lock.receiving = True
        try:
            yield
        finally:
            self.lock.receiving = False

    async def require_room(self, size_bytes: int) -> None:
        """Raise InsufficientStorage for a whole content that has no room on this disk."""
        self.expected_bytes = size_bytes
        if size_bytes > SMALL_BYTES:
            await self.services.disk.run(self.file.require_room, size_bytes)


@asynccontextmanager
async def upload_session(
    asked: UploadRequest, *, connection: Connection | None = None
) -> AsyncIterator[UploadSession]:
    """Yield exclusive use of the upload, for the handlers of this package; its file is not open yet.

    `connection`: in place of the request's own, for work that outlives it. Raises UploadLocked while another
    request writes, RateLimited if the caller writes too many uploads, HolderChanged.
    """
    services, file_uuid = asked.services, asked.record.file_uuid
    async with AsyncExitStack() as stack:
        stack.enter_context(services.locks.writer(asked.caller.subject, file_uuid))
        connected, disconnect = connection or _connection_of(asked.request)
        locking = services.locks.lock(file_uuid, connected, disconnect, doubt_s=bounded_s(WRITE_DOUBT_S))
        lock = await stack.enter_async_context(locking)
        if services.locks.releases != asked.seen_releases:
            await asked.refresh()
            if asked.record.placement and asked.record.placement[0] != services.node_id:
                raise HolderChanged(is_untouched=True)
        holder = UploadHolder(services, asked.caller, asked.record)
        stack.push_async_callback(holder.close)
        session = UploadSession(asked.request, services, asked.caller, holder, lock)
        try:
            note_progress()
            yield session
        except Overtaken as error:
            raise HolderChanged(is_untouched=not session.has_read) from error
        except (DiskFull, DiskRefused) as error:
            if await _is_handed_over(session, error):
                raise HolderChanged(is_untouched=not session.has_read) from error
            if not isinstance(error, DiskFailed):
                raise
            trouble = "the disk refuses an upload, and no other node can continue it"
            _TROUBLES.note(trouble, error.details, file_uuid=file_uuid)
            raise HolderFails(
                "The disk of the node that holds this upload failed, and no other node can continue it now.",
                retry_after_s=2,
            ) from error


async def _is_handed_over(session: UploadSession, error: DiskFull | DiskRefused) -> bool:
    """Hand an upload that this disk refuses over to another node; return whether that was possible.

    A refusal without a failing disk may repeat on every node, so this is done once in a request. Raises
    Unavailable; NotFound or Gone if the upload has ended meanwhile.
    """
    may_be_anywhere = not isinstance(error, (DiskFull, DiskFailed))
    if may_be_anywhere and PASSED_ON in session.request.headers:
        return False
    try:
        return bool(await session.holder.hand_over(session.expected_bytes))
    except Overtaken:
        return True
    except (NotFound, Gone):
        raise
    except FilestoreError as refusal:
        _TROUBLES.note("an upload cannot be handed over", refusal.details)
        return False


def _connection_of(request: web.Request) -> Connection:
    """Return whether the client's connection is open, as a function, and how to end it.

    A client that has closed its side may be gone, or wait for its response: another request for the upload
    goes first.
    """
    transport, connection = request.transport, request.protocol

    def connected() -> bool:
        has_ended: bool = connection.has_ended  # type: ignore[attr-defined]  # it is a connection of ours
        return transport is not None and not transport.is_closing() and not has_ended

    def disconnect() -> None:
        if transport is not None:
            transport.abort()

    return connected, disconnect
