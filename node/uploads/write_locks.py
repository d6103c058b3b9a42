"""Lock uploads for writing: at most one request at a time, and never a dead one for long.

A request whose connection is gone still has to sync its bytes; a new one waits for that and continues there.
A request whose connection only seems alive (its client has vanished) is ended after TAKEOVER_STALL_S without
a byte, once another request arrives. A request that is really writing keeps the upload: the other gets 423.
A client that breaks off one request and sends the next, perhaps to another node, is often faster than the
news of the end of the first: so the other gets 423 when bytes have come since it arrived, or after
WRITE_DOUBT_S.

A request for the offset may come from the client of a request that has just been cut off, before this node
has noticed: some of its bytes may still be in a proxy, or in the node that forwards them. So the response
waits for the end of that request, as long as a silent one is given. A request that keeps receiving is
considered alive, and continues. Repeated requests for the offset end no other request, as a sender may pause.

Tested by tests/unit/node/uploads/test_upload_locks.py.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from ca.errors import RateLimited, UploadLocked
from runtime.time_limits import bounded_s

TAKEOVER_STALL_S = 3.0  # a living client sends something within this; only then may another take over
WRITERS_MAX = 32  # uploads that one principal writes on a node at a time: a quarter of all
DOUBT_S = TAKEOVER_STALL_S + 0.25  # a request without a client has ended by then
POLL_DOUBT_S = 1.0  # for requests that poll, and do not resume from the reported offset
WRITE_DOUBT_S = 0.5  # for requests that write: a node that forwards notices a lost client within this
_LOOK_S = 0.05  # between two looks at a request that seems alive
TAKEOVER_WAIT_S = 30.0  # for the old request to sync; longer means a faulty disk


@dataclass(eq=False, slots=True)
class UploadLock:
    """One request's use of one upload."""

    connected: Callable[[], bool]
    disconnect: Callable[[], object]
    receiving: bool = False
    moved_at_s: float = 0.0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def touch(self) -> None:
        """Note that a byte arrived."""
        self.moved_at_s = asyncio.get_running_loop().time()

    def is_silent(self) -> bool:
        """Return whether a client that should send has sent nothing for TAKEOVER_STALL_S."""
        stalled_s = asyncio.get_running_loop().time() - self.moved_at_s
        return self.receiving and stalled_s >= TAKEOVER_STALL_S


class UploadLocks:
    """The uploads that are in use now, by file_uuid. `releases` counts the uses that have ended."""

    def __init__(self) -> None:
        self._locks: dict[str, UploadLock] = {}
        # By principal, the number of requests by file_uuid; no empty ones.
        self._writers: dict[str, Counter[str]] = {}
        self.releases = 0

    def is_locked(self, file_uuid: str) -> bool:
        """Whether a request or the sweep uses this upload now."""
        return file_uuid in self._locks

    def __len__(self) -> int:
        """Return how many uploads are in use."""
        return len(self._locks)

    def break_off(self) -> None:
        """End the connections of all writers: the disk hangs, and another node may continue."""
        for lock in self._locks.values():
            lock.disconnect()

    @contextmanager
    def writer(self, principal: str, file_uuid: str) -> Iterator[None]:
        """Take one of the principal's places. Raises RateLimited as `require_place` does.

        So one user's uploads, however slow, leave room for those of others.
        """
        self.require_place(principal, file_uuid)
        taken = self._writers.setdefault(principal, Counter())
        taken[file_uuid] += 1
        try:
            yield
        finally:
            taken[file_uuid] -= 1
            if not taken[file_uuid]:
                del taken[file_uuid]
            if not taken:
                self._writers.pop(principal, None)

    def require_place(self, principal: str, file_uuid: str) -> None:
        """Raise RateLimited if all WRITERS_MAX places of the principal are in use.

        A new request for an upload whose place a dead request has gets another place: it is about to end that
        request.
        """
        taken = self._writers.get(principal, Counter())
        if taken.total() >= WRITERS_MAX and taken[file_uuid] != 1:
            raise RateLimited(
                f"A node accepts at most {WRITERS_MAX} of your uploads at a time.", retry_after_s=5
            )

    async def wait_until_settled(
        self, file_uuid: str, *, doubt_s: float = 0.0, ends_silent: bool = True, trusts_bytes: bool = False
    ) -> bool:
        """Wait until no dead request uses this upload; return False if a live one does. Raises UploadLocked.

        A request that seems alive is awaited for `doubt_s`; with `trusts_bytes`, until it receives a byte.
        With `ends_silent`, a silent request counts as dead even if its connection is open.
        """
        loop = asyncio.get_running_loop()
        asked_at_s = loop.time()
        until_s = asked_at_s + bounded_s(TAKEOVER_WAIT_S)
        while (present := self._locks.get(file_uuid)) is not None:
            if present.connected() and not (ends_silent and present.is_silent()):
                has_moved = trusts_bytes and present.moved_at_s > asked_at_s
                if has_moved or loop.time() >= asked_at_s + doubt_s:
                    return False
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await present.released.wait()
                continue
            present.disconnect()
            try:
                async with asyncio.timeout_at(until_s):
                    await present.released.wait()
            except TimeoutError as error:
                raise UploadLocked("An earlier request for this upload has not ended yet.") from error
        return True

    @asynccontextmanager
    async def lock(
        self,
        file_uuid: str,
        connected: Callable[[], bool],
        disconnect: Callable[[], object],
        *,
        doubt_s: float = 0.0,
    ) -> AsyncIterator[UploadLock]:
        """Use the upload alone. Raises UploadLocked while a live request writes it, as seen for `doubt_s`."""
        if not await self.wait_until_settled(file_uuid, doubt_s=doubt_s, trusts_bytes=True):
            raise UploadLocked("Another request is writing this upload now.")
        lock = UploadLock(connected, disconnect)
        lock.touch()
        self._locks[file_uuid] = lock
        try:
            yield lock
        finally:
            del self._locks[file_uuid]
            self.releases += 1
            lock.released.set()

    @asynccontextmanager
    async def lock_until_wanted(
        self, file_uuid: str, disconnect: Callable[[], object] | None = None
    ) -> AsyncIterator[None]:
        """Use the upload alone until another request needs it, which ends this by `disconnect`.

        By default that cancels this task. Raises UploadLocked while a live request writes the upload.
        """
        task = asyncio.current_task()
        assert task is not None
        async with self.lock(file_uuid, lambda: True, disconnect or task.cancel) as lock:
            lock.receiving, lock.moved_at_s = True, float("-inf")
            yield
