"""Make snapshots for members that lag behind the log, and send none that may be wrong.

No snapshot is made or sent while members differ and it is not known which one is odd: its receiver would have
the damage of the source, and be one more member with this state. If a majority can be asked, all members hash
their state at one log entry, and the snapshot is of this entry: it is sent once they agree on the content. If
that is impossible, because the lagging member is needed for a majority, it is sent nevertheless. It is then
only checked for itself, and marked with the source of the state.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ca.errors import Conflict, FilestoreError, InsufficientStorage
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import SnapshotMeta
from coordinator.storage.page_sums import PageSums
from coordinator.storage.pinned_state import PinnedState
from coordinator.storage.snapshot_store import SnapshotStore, UnpublishedSnapshot
from coordinator.storage.state_damage import StateDamaged, damage_in
from metadata.rpc.websocket import end
from runtime.sqlite import DATABASE_ERRORS
from runtime.stopping import run_in_thread

SNAPSHOT_AGE_S = 600.0  # since its last part was fetched
FETCHED_S = 60.0  # after its last part was fetched: the receiver may continue
TAKE_AGAIN_S = 30.0  # after a failed attempt
PINNED_MAX = 4  # states held for others; each prevents the WAL from being reset

_log = logging.getLogger(__name__)


class Witnesses(Protocol):
    """The comparison of member states: `coordinator.member.state_digests.Digests`, or `NoWitnesses`."""

    @property
    def forbids(self) -> str:
        """Return why no state may be sent now, "" if it may."""

    async def call(self) -> int:
        """Let all members hash their state at one entry; return its index, 0 if no majority could answer."""

    def hash_pinned(self, pinned: PinnedState) -> None:
        """Hash and close the state pinned at such an entry."""

    async def confirm(self, made: UnpublishedSnapshot) -> bool:
        """Return whether a majority has the same state at that entry; False if it does not answer.

        Raises Conflict if a member has another one.
        """


class NoWitnesses:
    """A group that compares nothing."""

    forbids = ""

    async def call(self) -> int:
        """Return 0, as no member answers."""
        return 0

    def hash_pinned(self, pinned: PinnedState) -> None:
        """Do nothing, as no member asked."""
        pinned.close()

    async def confirm(self, made: UnpublishedSnapshot) -> bool:
        """Return False, as no member confirms."""
        del made
        return False


@dataclass(frozen=True, slots=True)
class Hooks:
    """The callbacks to the driver."""

    taken: Callable[[SnapshotMeta], None]
    gone: Callable[[], None]
    is_fetched_from: Callable[[], bool]
    failed: Callable[[Exception], None]


class SnapshotMaker:
    """Everything on the event loop; the disk is touched in threads."""

    def __init__(self, own_id: str, snapshots: SnapshotStore, hooks: Hooks) -> None:
        self.witnesses: Witnesses = NoWitnesses()
        self._own_id = own_id
        self._snapshots = snapshots
        self._hooks = hooks
        self._task: asyncio.Task[None] | None = None
        self._again_at_s = 0.0  # no attempt before, after a failure
        self._taken_at_s: float | None = None  # when the present snapshot was made, or found
        self._pinned: dict[int, PinnedState] | None = None  # while a requested state is awaited
        self._logged = ""

    @property
    def is_busy(self) -> bool:
        """Return whether a snapshot is being made: the log must be able to continue it."""
        return self._task is not None and not self._task.done()

    def compaction_limit(self, index: int) -> int:
        """Return the last entry up to `index` that the log may delete.

        Entries after a snapshot stay while it is being fetched, even if the receiver is silent for a moment,
        as it would have to start again.
        """
        newest, taken_at_s = self._snapshots.newest(), self._taken_at_s
        if newest is None or taken_at_s is None:
            return index
        since_s = time.monotonic() - max(taken_at_s, self._snapshots.served_at_s)
        return min(index, newest.index) if since_s < FETCHED_S else index

    def resume_offer(self) -> None:
        """Continue, at start, to offer the snapshot of the previous process."""
        newest = self._snapshots.newest()
        if newest is not None and not self.witnesses.forbids:
            self._taken_at_s = time.monotonic()
            self._hooks.taken(newest)

    def begin(self) -> None:
        """Make a snapshot that a member needs, unless one is being made, or failed a moment ago."""
        if not self.is_busy and time.monotonic() >= self._again_at_s:
            self._task = asyncio.create_task(self._guard(), name="snapshot")

    def pin(self, file: PageSums | None) -> None:
        """Pin the state just after a HashWhole was applied. `file` as in Pinned."""
        try:
            pinned = self._snapshots.pin(file)
        except DATABASE_ERRORS as error:
            if (damage := damage_in(error)) is not None:
                self._hooks.failed(damage)
            else:
                _log.warning("the state at this entry cannot be pinned: %s", error)
            return
        if self._pinned is not None and len(self._pinned) < PINNED_MAX:
            self._pinned[pinned.index] = pinned
        else:
            self.witnesses.hash_pinned(pinned)

    async def tidy(self) -> None:
        """Remove a snapshot that is not fetched any more, or that may be wrong.

        If a receiver cannot fetch it to its end, a new one is made.
        """
        if self._taken_at_s is None or self.is_busy:
            return
        if self.witnesses.forbids:
            await self._discard()
            return
        if time.monotonic() - max(self._taken_at_s, self._snapshots.served_at_s) < SNAPSHOT_AGE_S:
            return
        if self._hooks.is_fetched_from():
            self.begin()
        else:
            await self._discard()

    async def close(self) -> None:
        """End the making."""
        if self._task is not None:
            await end(self._task)

    async def _discard(self) -> None:
        self._taken_at_s = None
        self._hooks.gone()
        await asyncio.to_thread(self._snapshots.forget_outgoing)

    async def _guard(self) -> None:
        """End the process if work outside of the cycle fails."""
        try:
            await self._take()
        except Exception as error:  # noqa: BLE001 - nothing is handled: it ends the process
            self._hooks.failed(error)

    async def _take(self) -> None:
        """Make a snapshot for a lagging member; if that fails the leader asks again."""
        started_at = time.monotonic()
        if not self._may_hand_out():
            return
        try:
            made, is_asked = await self._make()
            is_vouched = is_asked and await self.witnesses.confirm(made)
            if not self._may_hand_out():
                return
            origin = "" if is_vouched else self._snapshots.origin() or self._own_id
            meta = await asyncio.to_thread(self._snapshots.publish, made, origin=origin)
        except StateDamaged:
            raise
        except (FilestoreError, NotLeader, OSError, *DATABASE_ERRORS) as error:
            is_known = isinstance(error, (Conflict, NotLeader))
            _log.warning("no snapshot could be made: %s", error, exc_info=not is_known)
            self._again_at_s = time.monotonic() + (0 if is_known else TAKE_AGAIN_S)
            if isinstance(error, InsufficientStorage) and self._taken_at_s is not None:
                await self._discard()  # the previous snapshot is too old, and the next attempt needs its room
            return
        spent_s = time.monotonic() - started_at
        vouched = "a majority confirms it" if is_vouched else "no other member confirms it"
        _log.info("made a snapshot at index %d in %.1f s: %s", meta.index, spent_s, vouched)
        self._taken_at_s = time.monotonic()
        self._hooks.taken(meta)

    def _may_hand_out(self) -> bool:
        why = self.witnesses.forbids
        if why and why != self._logged:
            _log.error("a member that lags behind the log waits for its snapshot: %s", why)
        self._logged = why
        return not why

    async def _make(self) -> tuple[UnpublishedSnapshot, bool]:
        """Make a snapshot; return it, and whether others were asked about it."""
        self._pinned = {}
        try:
            index = await self.witnesses.call()
            pinned = self._pinned.pop(index, None)
        finally:
            others, self._pinned = self._pinned, None
            for other in others.values():
                self.witnesses.hash_pinned(other)
        is_asked = pinned is not None
        made = await run_in_thread(partial(self._snapshots.make, pinned or self._snapshots.pin()))
        return made, is_asked
