"""Apply committed entries to the state machine: at once if a caller waits, otherwise a moment later.

On a follower only reads wait. There, entries that are committed within APPLIED_AFTER_S are applied in one
transaction, which costs a fraction of many, and leaves the processor to the log while a change is in
progress. On a full disk a batch is retried until it succeeds. Only one task at a time writes to the database.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from coordinator.member.fitness import Fitness
from coordinator.member.member import RaftMember
from coordinator.member.thread import Worker
from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage.state_store import Store, StoreFull
from metadata.protocol import commands

APPLIED_AFTER_S = 0.01  # on a follower: some changes of one client, and an eighth of a heartbeat
APPLIED_INLINE_MAX = 4  # entries: less work than the hand-over to a thread and back
FULL_PAUSE_S = 0.5  # between two attempts on a full disk
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class EntryApplier:
    """Applies entries for one member.

    `run` is owned by the driver; `done` receives each batch with replies.
    """

    def __init__(
        self,
        member: RaftMember,
        store: Store,
        fitness: Fitness,
        done: Callable[[Sequence[Entry], Sequence[bytes]], Awaitable[None]],
    ) -> None:
        self._member = member
        self._store = store
        self._fitness = fitness
        self._done = done
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = Worker("state")
        self.lock = asyncio.Lock()  # its holder may change the database, or replace its file
        self.is_stuck = False  # while the database accepts nothing

    def schedule(self) -> None:
        """Schedule the application of due entries, sooner if a caller may wait for them."""
        if self._member.led_term or self._member.has_waiting_reads:
            self._due.set()
        elif self._timer is None and self._member.has_due:
            self._timer = asyncio.get_running_loop().call_later(APPLIED_AFTER_S, self._due.set)

    async def run(self) -> None:
        """Apply until cancelled. Raises what the store raises: the process must end then."""
        while True:
            await self._due.wait()
            self._due.clear()
            self._stop_timer()
            while entries := self._member.next_to_apply():
                await self._done(entries, await self._apply(entries))

    async def on_state(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Run in the thread of the database, one piece of work at a time."""
        async with self.lock:
            return await self._thread.run(work, *arguments)

    def close(self) -> None:
        """End the thread; nothing is applied afterwards. Blocks."""
        self._stop_timer()
        self._thread.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """Apply a batch; on a full disk retry until there is room."""
        while True:
            try:
                if self._is_short(entries):
                    replies = self._member.apply(entries, may_sync=False)
                else:
                    replies = await self.on_state(self._member.apply, entries)
                self.is_stuck = False
                return replies
            except StoreFull:
                if self._fitness.has_room:
                    _log.error("the disk is full: committed changes wait to be applied")
                self.is_stuck = True
                self._fitness.has_room = False
            await asyncio.sleep(FULL_PAUSE_S)

    def _is_short(self, entries: Sequence[Entry]) -> bool:
        """Return whether these are applied sooner here than a thread wakes up: a few, of a few rows each."""
        return (
            len(entries) <= APPLIED_INLINE_MAX
            and not self.lock.locked()
            and not self._store.is_checkpoint_due
            and not any(entry.kind == EntryKind.COMMAND and commands.is_long(entry.data) for entry in entries)
        )
