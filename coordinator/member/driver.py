"""The asyncio shell around one member: owns its clock, its threads and its network.

All decisions are made in `coordinator.member.member`. One cycle: send messages that need not wait, persist
(one write, one sync), send the messages that had to wait. Committed entries are applied concurrently, in
`applying`, so that the log syncs while the state machine works. The core is only ever touched on the event
loop. A failed write or sync ends the process: the page cache may have dropped the data.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ca.errors import Conflict, InsufficientStorage, Unavailable
from coordinator.member.applying import EntryApplier
from coordinator.member.fitness import Fitness
from coordinator.member.lease_subscribers import LeaseSubscribers
from coordinator.member.member import TRAILING_ENTRIES, RaftMember
from coordinator.member.member_clocks import MemberClocks
from coordinator.member.proposing import check_known, encode_entry, frees, is_ending
from coordinator.member.record_leases import LEASE_S
from coordinator.member.snapshot_making import Hooks, SnapshotMaker
from coordinator.member.thread import Worker
from coordinator.raft.config import Config
from coordinator.raft.core import NotLeader, Status
from coordinator.raft.messages import Entry, Members, Message, MessageKind, Ready, SnapshotMeta, SnapshotOffer
from coordinator.storage.pinned_state import is_whole_hash
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store, members_of
from metadata.protocol import commands
from metadata.protocol.commands import AnyCommand
from metadata.protocol.invalidation import invalidated_keys
from metadata.rpc.websocket import end

TICK_S = 0.08  # an election starts after 12 to 21 of these without a leader (coordinator/raft/config.py)
TIDY_TICKS = 25  # every two seconds: room, spare segment, compaction
COMPACTED_BYTES_MIN = 64 << 20  # a smaller log is not compacted: two segments, read in a second at start
ROOM_BYTES_MIN = 192 << 20  # two segments, and as much again twice for the database and a snapshot
WAITED_FOR_S = 0.001  # the loop waits this long for a short write; a good disk takes a fraction of it
WAITED_FOR_MAX = 4  # entries: a batch of one moment
LOG_THREAD = "log"
TIMER_GRAIN_S = 0.002  # uvloop's timers may fire a millisecond too early
SILENT_AFTER_S = 1.0  # for a write: longer than the shortest election timeout
Applied = Callable[[Sequence[Entry], Sequence[bytes]], None]

_log = logging.getLogger(__name__)


class Driver:
    """Drives one member of the group.

    `run` is owned by the process; everything else is called on its event loop. `fetch` is called with each
    snapshot that the leader offers; `applied` with every applied batch and its replies. Neither may block.
    """

    def __init__(
        self,
        config: Config,
        log: SegmentLog,
        store: Store,
        snapshots: SnapshotStore,
        send: Callable[[Sequence[Message]], None],
        fetch: Callable[[SnapshotOffer], None],
        applied: Applied,
        *,
        compacted_bytes_min: int = COMPACTED_BYTES_MIN,
        trailing_entries: int = TRAILING_ENTRIES,
        cache_lease_s: float = LEASE_S,
        clocks: MemberClocks | None = None,
    ) -> None:
        self.id = config.id
        self.ticks = self._tidy_at_ticks = 0
        self._log = log
        self._store = store
        self._snapshots = snapshots
        self._send = send
        self._fetch = fetch
        self._applied = applied
        self._clocks = clocks or MemberClocks()  # the time in changes
        self._compacted_bytes_min = compacted_bytes_min
        rand, trailing = random.Random(), trailing_entries
        self._member = member = RaftMember(config, log, store, snapshots, rand, trailing_entries=trailing)
        self.following = LeaseSubscribers(self._leadership, self.read_barrier, lease_s=cache_lease_s)
        hooks = Hooks(self._taken, member.snapshot_gone, lambda: member.is_fetched_from, self._fail)
        self.making = SnapshotMaker(config.id, snapshots, hooks)
        self._log_thread = Worker(LOG_THREAD)
        self._wake = asyncio.Event()
        self._timer: asyncio.Handle | None = None  # of the next tick, at `_timer_at_s`
        self._timer_at_s = 0.0
        self._ticked_at_s = 0.0  # the member knows the time up to here
        self._writing: Ready | None = None  # is being written to the log
        self._is_writing_long = False  # the timer has fired meanwhile
        self._writing_since_s = self._last_write_s = 0.0  # the duration of the last write
        self._is_meanwhile_due = False
        self._fitness = Fitness(self._member, self._clocks)
        self._applying = EntryApplier(self._member, store, self._fitness, self._note_applied)
        self._tidying: asyncio.Task[None] | None = None
        self._takes_entries = True  # False while there is no room even for the next segment of the log
        self._broken: BaseException | None = None  # the error that ends the process
        self._has_ended = False

    @property
    def applied_index(self) -> int:
        """Return the last entry that queries can see."""
        return self._member.applied_index

    @property
    def leader(self) -> str:
        """Return the leader of this member's term, "" if unknown."""
        return self._member.leader

    @property
    def is_leader(self) -> bool:
        """Return whether this member leads, as far as it knows."""
        return self._member.leader == self.id

    @property
    def has_room(self) -> bool:
        """Return False while the disk is nearly full: then only changes that free space are accepted."""
        return self._fitness.has_room

    @property
    def is_clock_wrong(self) -> bool:
        """Return whether most others call this member's clock wrong, so it leads only if no other can."""
        return self._fitness.is_clock_wrong

    @property
    def is_suspect(self) -> bool:
        """Return whether this member's state is known to be wrong, so it leads only if no other can."""
        return self._fitness.is_state_wrong

    def suspect(self) -> None:
        """Note that this member's state is wrong: it hands over, and does not lead while others can."""
        self._fitness.suspect()
        self._rouse()

    async def reread(self) -> None:
        """Drop the cache of the database, so that the next reads come from the file, which shows damage."""
        await self._applying.on_state(self._store.drop_cache)

    async def log_answers(self) -> None:
        """Return when the thread of the log has done its earlier work."""
        await self._log_thread.run(bool)

    def status(self) -> Status:
        """Return the state of this member."""
        return self._member.status()

    def transfer_leader(self, target: str = "") -> None:
        """Ask `target` or the most advanced voter to take over, if this member leads.

        It promises no success. Raises NotLeader, Conflict.
        """
        self._member.transfer_leader(target)
        self._rouse()

    def step(self, message: Message) -> None:
        """Process a message of a peer. An internal error ends `run`, not the peer's connection."""
        if message.entries and not self._takes_entries:
            return  # there is no room for entries; heartbeats, votes and reads continue
        try:
            if self._writing is None:
                self._tell_time()
            self._member.step(message)
            if self._fitness.pace.is_measuring and message.kind is MessageKind.APPEND_REPLY:
                self._fitness.pace.note_durable_elsewhere(self._member.others_match, at_s=time.monotonic())
        except AssertionError as error:
            self._broken = error
        self._rouse()

    def snapshot(self, index_min: int) -> SnapshotMeta | None:
        """Return the offered snapshot, of this entry or a later one; None while one is being made.

        Raises Unavailable if the state here is older, Conflict while no snapshot may be sent.
        """
        self._check_running()
        if why := self.making.witnesses.forbids:
            raise Conflict(why)
        newest = self._snapshots.newest()
        if newest is not None and newest.index >= index_min:
            return newest
        if self.applied_index < index_min:
            raise Unavailable(f"The state here ends at {self.applied_index}, before {index_min}.")
        self.making.begin()
        return None

    def note_fetched(self, meta: SnapshotMeta) -> None:
        """Note that an offered snapshot is fetched and verified."""
        self._member.note_fetched(meta)
        self._rouse()

    async def propose(
        self, command: AnyCommand, *, session: int = 0, sequence: int = 0, acknowledged_below: int = 0
    ) -> bytes:
        """Return the encoded Reply once the command is committed and applied here.

        Raises NotLeader if another member leads or took over before this command was committed (it was not
        applied then); InsufficientStorage on a full disk; Unavailable if too many wait, if the outcome is
        unknown, or while a coordinator may not know this command yet. The caller sets the deadline. A command
        that invalidates cached records waits until no node has them (coordinator/member/record_leases.py).
        """
        self._check_leads()
        check_known(command, self._store.rules())
        if not self.has_room and not frees(command):
            raise InsufficientStorage(f"The disk of the leading coordinator {self.id} is full.")
        numbers = session, sequence, acknowledged_below
        if not (keys := invalidated_keys(command)):
            return await self._handed_in(command, numbers)
        block = await self.following.clear(keys)
        try:
            done = self._handed_in(command, numbers)
        except BaseException:
            self.following.release(block)
            raise
        # Not when the caller gives up: the change may still be made.
        done.add_done_callback(lambda _: self.following.release(block))
        return await asyncio.shield(done)

    def _handed_in(self, command: AnyCommand, numbers: tuple[int, int, int]) -> "asyncio.Future[bytes]":
        """Propose the command; return its future reply. Raises the early errors of `propose`."""
        self._check_leads()
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        at_ms = self._clocks.ending_ms() if is_ending(command) else self._clocks.now_ms()
        self._member.propose(encode_entry(command, *numbers, at_ms=at_ms), done)
        self._rouse()
        return done

    async def change_members(self, before: Members, command: commands.RecordCoordinators) -> bytes:
        """Change the membership from `before` to that of `command`, and apply it; return the encoded Reply.

        Raises NotLeader, Unavailable as `propose` does; Conflict if this change cannot be made now.
        """
        self._check_leads()
        if self._member.members != before:
            raise Conflict("The membership has just been changed by another request.")
        # The log and the state must agree on the members: a contradiction would stop every member.
        members = members_of(command.coordinators)
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._member.propose_membership(
            members, encode_entry(command, 0, 0, 0, at_ms=self._clocks.now_ms()), done
        )
        self._rouse()
        return await done

    async def read_barrier(self, *, patient: bool = False) -> None:
        """Return when a query sees everything that was acknowledged before this call (ReadIndex).

        A patient call may take half a second longer, and costs almost nothing then. Raises Unavailable if
        there is no leader to ask or too many wait. The caller sets the deadline.
        """
        self._check_running()
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._member.read(done, patient=patient)
        self._rouse()
        await done

    def _leadership(self) -> tuple[int, str]:
        """Return the term that this member leads, 0 if none, and the leader, "" if unknown."""
        return self._member.led_term, self._member.leader

    def _check_running(self) -> None:
        if self._has_ended:
            raise Unavailable("This coordinator is stopping.")

    def _check_leads(self) -> None:
        self._check_running()
        if not self.is_leader:
            raise NotLeader(self._member.leader)

    async def run(self) -> None:
        """Drive until cancelled. Raises what the log or the store raised: the process must end then."""
        self.making.resume_offer()
        loop = asyncio.get_running_loop()
        self._store.watch(lambda damage: _call_soon(loop, self._fail, damage))
        applying = asyncio.create_task(self._guard(self._applying.run), name="apply")
        try:
            await self._drive()
        finally:
            self._has_ended = True
            self._store.watch(None)
            if self._timer is not None:
                self._timer.cancel()
            await self.making.close()
            for task in (applying, self._tidying):
                if task is not None:
                    await end(task)
            self._member.fail_all(Unavailable("This coordinator is stopping."))
            self._log_thread.close()
            self._applying.close()

    async def _drive(self) -> None:
        self._ticked_at_s = asyncio.get_running_loop().time() - TICK_S
        while True:
            self._tell_time()
            self._arm()
            await self._turn_due()
            self.following.observe()
            if self._broken is not None:
                raise self._broken
            self._tell_time()
            if (ready := self._member.begin()) is not None:
                await self._cycle(ready)

    def _arm(self) -> None:
        """Set the timer for the member's next tick, or sooner during a write."""
        ticks = self._member.due_in_ticks if self._writing is None else 1
        at_s = self._ticked_at_s + ticks * TICK_S
        if self._timer is not None:
            if abs(self._timer_at_s - at_s) < TIMER_GRAIN_S:
                return
            self._timer.cancel()
        self._timer_at_s = at_s  # uvloop returns no TimerHandle for a time that has passed
        self._timer = asyncio.get_running_loop().call_at(at_s, self._ring)

    def _ring(self) -> None:
        """Handle the timer: ticks may have passed."""
        self._timer = None
        self._wake.set()
        if self._writing is not None:
            self._is_writing_long = True
            self._meanwhile()

    def _rouse(self) -> None:
        """Wake the cycle for work that need not wait for a slow disk."""
        self._wake.set()
        if self._is_writing_long and not self._is_meanwhile_due:
            self._is_meanwhile_due = True
            asyncio.get_running_loop().call_soon(self._meanwhile)

    def _meanwhile(self) -> None:
        """Do a turn without the busy disk. A hanging disk must show: its member becomes silent then."""
        self._is_meanwhile_due = False
        at_s, ready = time.monotonic(), self._writing
        if ready is None or at_s - self._writing_since_s > SILENT_AFTER_S or self._broken is not None:
            return
        try:
            if self._member.led_term:
                self._tell_time()
                self._arm()
            self._send(self._member.messages_without_disk())
            self._applying.schedule()
        except AssertionError as error:
            self._broken = error

    def _tell_time(self) -> None:
        """Report the ticks that have passed to the member."""
        now_s = asyncio.get_running_loop().time() + TIMER_GRAIN_S
        if (passed := int((now_s - self._ticked_at_s) / TICK_S)) <= 0:
            return
        # The rest was a stall: a member that slept must depose no leader.
        ticks = min(passed, self._member.due_in_ticks)
        self._ticked_at_s = self._ticked_at_s + ticks * TICK_S if ticks == passed else now_s
        self._member.tick(ticks)
        self._fitness.tick(at_s=time.monotonic())
        self.ticks += ticks
        if self.ticks >= self._tidy_at_ticks and (self._tidying is None or self._tidying.done()):
            self._tidy_at_ticks = self.ticks + TIDY_TICKS
            self._tidying = asyncio.create_task(self._guard(self._tidy), name="tidy")

    async def _turn_due(self) -> None:
        """Wait until there is work; let other tasks run in any case."""
        if self._member.has_turn:
            await asyncio.sleep(0)
        else:
            await self._wake.wait()
        self._wake.clear()

    async def _cycle(self, ready: Ready) -> None:
        self._send(ready.send_now)
        if ready.snapshot is not None:
            # The database changes under every query: nothing else may run meanwhile.
            if self._tidying is not None:
                await asyncio.wait([self._tidying])
            async with self._applying.lock:
                self._member.persist(ready)
            _log.info("installed the snapshot at index %d", ready.snapshot.index)
        elif self._member.needs_disk(ready):
            await self._persist(ready)
        self._send(ready.send_after_sync)
        self._member.finish(ready)
        self._applying.schedule()
        if ready.offer is not None:
            self._fetch(ready.offer)
        if ready.take_snapshot and not self._member.has_snapshot:  # one may have been made meanwhile
            self.making.begin()

    async def _persist(self, ready: Ready) -> None:
        at_s = self._writing_since_s = time.monotonic()
        if ready.entries and self._member.led_term:
            self._fitness.pace.note_sent(ready.entries[-1].index, at_s=at_s)
        self._writing = ready
        try:
            writing = self._log_thread.begin(self._member.persist, ready)
            if not (self._is_write_short(ready) and writing.ends_within(WAITED_FOR_S)):
                self._member.hand_out(ready)
                self._applying.schedule()
                self._arm()
            await writing
        finally:
            self._writing, self._is_writing_long = None, False
            if not self._member.led_term:  # the leader's messages meanwhile did not wait for the disk
                self._ticked_at_s = max(self._ticked_at_s, asyncio.get_running_loop().time() - TICK_S)
        written_at_s = time.monotonic()
        self._last_write_s = written_at_s - at_s
        if ready.entries:
            self._fitness.pace.note_durable_here(ready.entries[-1].index, at_s=written_at_s)

    def _is_write_short(self, ready: Ready) -> bool:
        """Return whether the loop waits for the write: for a few entries, if the disk was fast the last time.

        In a thread, the write would wait for the interpreter as long as for the disk, while the loop applies
        earlier entries. No caller waits for these, but others wait for our answer.
        """
        return len(ready.entries) <= WAITED_FOR_MAX and self._last_write_s < WAITED_FOR_S

    async def _guard(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End `run` if a task outside of the cycle fails."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - nothing is handled: it ends the process
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End `run` with this."""
        self._broken = self._broken or error
        self._rouse()

    def _taken(self, meta: SnapshotMeta) -> None:
        self._member.snapshot_taken(meta)
        self._rouse()

    async def _note_applied(self, entries: Sequence[Entry], replies: Sequence[bytes]) -> None:
        if is_whole_hash(entries[-1]):
            self.making.pin(await self._applying.on_state(self._store.settle))
        self._member.note_applied(entries, replies)
        self._applied(entries, replies)
        self._rouse()

    async def _tidy(self) -> None:
        """Check the free room, keep a spare segment, and compact the log up to the durable database."""
        is_taking = self._takes_entries and not self._applying.is_stuck
        self._fitness.check(has_room=is_taking and self._log.free_bytes() >= ROOM_BYTES_MIN)
        self._rouse()  # another may have been asked to lead
        if not self._log.is_spare_ready:
            self._takes_entries = await self._log_thread.run(self._log.prepare_spare)
        if self._log.size_bytes() > self._compacted_bytes_min and not self.making.is_busy:
            durable_index = await self._applying.on_state(self._store.checkpoint)
            spared_index = self.making.compaction_limit(self._member.compactable(durable_index))
            forgotten = self._log.forget(spared_index)
            await self._log_thread.run(self._log.discard, forgotten)
        await self.making.tidy()


def _call_soon(
    loop: asyncio.AbstractEventLoop, receive: Callable[[StateDamaged], None], damage: StateDamaged
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends already
        loop.call_soon_threadsafe(receive, damage)
