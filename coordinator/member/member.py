"""One member of the group without clock, threads and sockets: core, log, state and waiting callers.

`coordinator.member.driver` runs it on an event loop, and the simulator on simulated time; all decisions are
made here, so both run the same code. A turn, in the order of the contract in coordinator/raft:

1. `begin()`: hands waiting proposals and reads to the core; returns the Ready, None if there is no work.
2. If `needs_disk(ready)`: `hand_out(ready)`, then `persist(ready)`, which writes and syncs; it blocks, and
   its errors end the process. In parallel, while it takes long: `messages_without_disk()`.
3. `finish(ready)`: persisted and sent. Its committed entries are due, and `next_to_apply()` returns them.
4. `apply(entries)`, blocking, then `note_applied(entries, replies)`: another turn may begin and end
   meanwhile, so the log syncs while the state machine works.

All but `persist` and `apply` are called from one thread.

Tested by tests/unit/coordinator/storage/test_reopening.py.
"""

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ca.errors import Conflict, Unavailable
from coordinator.member.succession import successor, why_not
from coordinator.raft.config import Config
from coordinator.raft.core import MemberProgress, NotLeader, ProposalRefused, Raft, Status
from coordinator.raft.messages import Entry, HardState, Members, Message, Ready, Reluctance, SnapshotMeta
from coordinator.raft.progress import ProgressState
from coordinator.storage.pinned_state import up_to_whole_hash
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.state_store import Store

PROPOSALS_WAITING_MAX = 16_384
PROPOSED_AT_ONCE_MAX = 1024  # the core accepts all of a slice or nothing
READS_WAITING_MAX = 65_536
ROUND_TICKS_MAX = 5  # a ReadIndex round without an answer is repeated after this
LOG_BYTES_MAX = 512 << 20  # beyond this a lagging member gets a snapshot
TRAILING_ENTRIES = 20_000  # kept behind the database: a member that was away for seconds needs no snapshot


class Waiter(Protocol):
    """A waiter for a reply or a read: an asyncio.Future, or the simulator's client."""

    def done(self) -> bool:
        """Return whether the caller has given up."""

    def set_result(self, result: bytes, /) -> None:
        """Deliver the result; b"" for a read."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Deliver an error."""


class Snapshots(Protocol):
    """The store of snapshots: `coordinator.storage.snapshot_store.SnapshotStore`, or a simulated one."""

    def install(self, meta: SnapshotMeta, store: Store) -> None:
        """Make the fetched snapshot the database of `store`, durable on return."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    data: bytes
    waiter: Waiter


@dataclass(frozen=True, slots=True)
class _MembershipProposal:
    members: Members
    payload: bytes
    waiter: Waiter


@dataclass(slots=True)
class _Round:
    """Reads that share one ReadIndex."""

    started_tick: int
    readers: list[Waiter] = field(default_factory=list)


def with_membership(config: Config, store: Store) -> Config:
    """Return the configuration with the membership of the applied state."""
    members = store.members()
    return replace(config, members=members.voters, learners=members.learners)


class RaftMember:
    """One member. See the module's docstring for the order of calls."""

    def __init__(
        self,
        config: Config,
        log: SegmentLog,
        store: Store,
        snapshots: Snapshots,
        rand: random.Random,
        *,
        trailing_entries: int = TRAILING_ENTRIES,
    ) -> None:
        self.id = config.id
        index, _ = store.applied()
        known = log.hard_state
        # The database may have entries whose commit index did not reach the disk: they are committed.
        hard_state = HardState(known.term, known.vote, max(known.commit, index))
        self._raft = Raft(config, log, hard_state, index, rand, lost_term=log.promised.lost_term)
        self._log = log
        self._store = store
        self._snapshots = snapshots
        self._trailing_entries = trailing_entries
        self.applied_index = index
        self._ticks = 0
        self._proposals: list[_Proposal] = []
        self._membership_proposals: list[_MembershipProposal] = []
        self._waiting: dict[int, tuple[int, Waiter]] = {}  # by log index: (term, the waiting caller)
        self._readers: list[Waiter] = []  # requested since the last round began
        self._is_round_due = False  # not while all of them are patient
        self._rounds: dict[bytes, _Round] = {}
        self._round_numbers = itertools.count(1)
        self._at_index: list[tuple[int, list[Waiter]]] = []  # reads that wait for an index to be applied
        self._due: deque[list[Entry]] = deque()  # committed and persisted, not handed out to be applied
        self._early_entries = 0  # of a Ready that is not finished: due already
        self._is_applying = False
        self._fetched: SnapshotMeta | None = None
        self._taken_index = 0  # of the snapshot on disk, 0 if there is none
        if self._raft.members.voters == (self.id,):
            self._raft.campaign()  # a single member need not wait for others

    @property
    def leader(self) -> str:
        """Return the leader of this member's term, "" if unknown."""
        return self._raft.leader

    @property
    def led_term(self) -> int:
        """Return the term that this member leads, 0 if it leads none."""
        return self._raft.led_term

    @property
    def term(self) -> int:
        """Return the term of this member."""
        return self._raft.term

    @property
    def others_match(self) -> int:
        """Return the highest index that a majority without this leader has on disk; 0 without leading."""
        return self._raft.others_match

    @property
    def members(self) -> Members:
        """Return the members of the group, according to this member's log."""
        return self._raft.members

    @property
    def has_turn(self) -> bool:
        """Return whether `begin` has work, apart from input since the last turn."""
        return self._raft.has_ready()

    @property
    def has_due(self) -> bool:
        """Return whether entries wait to be applied."""
        return bool(self._due)

    @property
    def has_waiting_reads(self) -> bool:
        """Return whether a read waits for an entry to be applied."""
        return bool(self._at_index)

    def status(self) -> Status:
        """Return the state of this member."""
        return self._raft.status()

    # Input

    @property
    def due_in_ticks(self) -> int:
        """Return after how many ticks `tick` is due."""
        return 1 if self._rounds else self._raft.due_in_ticks

    def tick(self, ticks: int = 1) -> None:
        """Count passed ticks, `due_in_ticks` at most.

        Rounds of reads without an answer are repeated; patient reads are sent with heartbeats.
        """
        self._ticks += ticks
        if self._raft.tick(ticks) or not self.led_term:
            self._is_round_due = bool(self._readers)
        for context, asked in list(self._rounds.items()):
            if self._ticks - asked.started_tick >= ROUND_TICKS_MAX:
                del self._rounds[context]
                self._readers.extend(asked.readers)
                self._is_round_due = True

    def step(self, message: Message) -> None:
        """Process a message of a peer. After an AssertionError, a broken invariant, the process must end."""
        self._raft.step(message)

    def propose(self, data: bytes, waiter: Waiter) -> None:
        """Accept a command; `waiter` gets its reply once it is committed and applied here.

        The waiter gets NotLeader if it was not applied, and Unavailable if it was not accepted or the outcome
        is unknown. Raises Unavailable if too many wait.
        """
        if len(self._proposals) >= PROPOSALS_WAITING_MAX:
            raise Unavailable("Too many changes are waiting on this coordinator.")
        self._proposals.append(_Proposal(data, waiter))

    def propose_membership(self, members: Members, payload: bytes, waiter: Waiter) -> None:
        """Propose a change of membership; it fails with Conflict if it is not possible now."""
        if len(self._membership_proposals) >= PROPOSED_AT_ONCE_MAX:
            raise Unavailable("Too many changes are waiting on this coordinator.")
        self._membership_proposals.append(_MembershipProposal(members, payload, waiter))

    def read(self, waiter: Waiter, *, patient: bool = False) -> None:
        """Finish `waiter` when a query sees all earlier acknowledged changes.

        Patient: within half a second.
        """
        if len(self._readers) >= READS_WAITING_MAX:
            raise Unavailable("Too many reads are waiting on this coordinator.")
        self._readers.append(waiter)
        self._is_round_due |= not (patient and self.led_term)

    def transfer_leader(self, target: str = "") -> None:
        """If this member leads, ask `target`, or the fittest member, to take over; success is not promised.

        Raises NotLeader; Conflict if `target` cannot take over, or is more reluctant than this member.
        """
        status = self._raft.status()
        if not target:
            target = successor(status, reluctance_max=max(Reluctance))
        elif refusal := why_not(status, target, reluctance=self.reluctance):
            raise Conflict(refusal)
        if target:
            try:
                self._raft.transfer_leader(target)
            except ProposalRefused as refused:
                raise Conflict(f"The lead cannot be transferred: {refused}.") from refused

    @property
    def reluctance(self) -> Reluctance:
        """Return why this member leads only if no other can."""
        return self._raft.reluctance

    @reluctance.setter
    def reluctance(self, reluctance: Reluctance) -> None:
        self._raft.reluctance = reluctance

    def note_fetched(self, meta: SnapshotMeta) -> None:
        """Note that an offered snapshot is on disk, ready to be installed."""
        self._fetched = meta

    def snapshot_taken(self, meta: SnapshotMeta) -> None:
        """Note that a snapshot of this member's state is on disk for others to fetch."""
        self._taken_index = meta.index
        self._raft.snapshot_taken(meta)

    def snapshot_gone(self) -> None:
        """Record that the snapshot was deleted."""
        self._taken_index = 0
        self._raft.snapshot_gone()

    @property
    def has_snapshot(self) -> bool:
        """Return whether there is a snapshot that this log continues."""
        return self._taken_index > 0 and self._taken_index >= self._log.first_index() - 1

    @property
    def is_fetched_from(self) -> bool:
        """Return whether an active member was offered a snapshot, and does not have it yet."""
        return any(_is_fetching(progress) for progress in self._raft.status().progress.values())

    # A turn

    def begin(self) -> Ready | None:
        """Return the next Ready, if there is any work. See the module's docstring."""
        self._restore_fetched()
        if self._proposals:
            self._propose_waiting()
        for proposal in self._take_membership_proposals():
            self._propose_membership(proposal)
        self._start_round()
        return self._raft.ready() if self._raft.has_ready() else None

    def _restore_fetched(self) -> None:
        if self._fetched is None or self._is_applying or self._due:
            return  # the entries being applied would be applied to the new state
        meta, self._fetched = self._fetched, None
        self._raft.restore(meta)

    def _propose_waiting(self) -> None:
        # Proposals of callers that gave up are skipped, as they were not proposed yet.
        waiting = [proposal for proposal in self._proposals if not proposal.waiter.done()]
        self._proposals = []
        for start in range(0, len(waiting), PROPOSED_AT_ONCE_MAX):
            self._propose_slice(waiting[start : start + PROPOSED_AT_ONCE_MAX])

    def _propose_slice(self, proposals: Sequence[_Proposal]) -> None:
        try:
            first_index, term = self._raft.propose([proposal.data for proposal in proposals])
        except NotLeader as refusal:
            _fail([proposal.waiter for proposal in proposals], refusal)
        except ProposalRefused:
            full = Unavailable(
                "Too many changes are waiting for a majority, or the lead is being transferred."
            )
            _fail([proposal.waiter for proposal in proposals], full)
        else:
            for index, proposal in enumerate(proposals, first_index):
                self._await_reply(index, term, proposal.waiter)

    def _take_membership_proposals(self) -> list[_MembershipProposal]:
        waiting, self._membership_proposals = self._membership_proposals, []
        return [proposal for proposal in waiting if not proposal.waiter.done()]

    def _propose_membership(self, proposal: _MembershipProposal) -> None:
        try:
            index, term = self._raft.propose_membership(proposal.members, proposal.payload)
        except NotLeader as refusal:
            _fail([proposal.waiter], refusal)
        except ProposalRefused as refusal:
            _fail([proposal.waiter], Conflict(f"The membership cannot change now: {refusal}."))
        else:
            self._await_reply(index, term, proposal.waiter)

    def _await_reply(self, index: int, term: int, waiter: Waiter) -> None:
        # An older proposal at this index was truncated while this member was not leading.
        earlier = self._waiting.pop(index, None)
        if earlier is not None:
            _fail([earlier[1]], _unknown())
        self._waiting[index] = (term, waiter)

    def _start_round(self) -> None:
        if not self._readers or self._rounds or not self._is_round_due:
            return
        self._is_round_due = False
        readers = [reader for reader in self._readers if not reader.done()]
        self._readers = []
        if readers:
            context = next(self._round_numbers).to_bytes(8)
            self._rounds[context] = _Round(self._ticks, readers)
            self._raft.read_index(context)

    def hand_out(self, ready: Ready) -> None:
        """Release committed entries that were already on this disk, as they need not wait for `persist`."""
        new_from = ready.entries[0].index if ready.entries else None
        early = [each for each in ready.committed if new_from is None or each.index < new_from]
        self._due.extend([early] if early else ())
        self._early_entries = len(early)

    @staticmethod
    def needs_disk(ready: Ready) -> bool:
        """Return whether `persist` has anything to write."""
        return bool(
            ready.hard_state is not None
            or ready.entries
            or ready.truncate_from is not None
            or ready.snapshot is not None
        )

    def persist(self, ready: Ready) -> None:
        """Write hard state, snapshot, truncation and entries, in this order. Blocks."""
        hard_state = ready.hard_state
        if ready.snapshot is not None:
            # A crash between the two leaves a database beyond the log: a start must know why (`reopening`).
            index, term = ready.snapshot.index, ready.snapshot.term
            self._log.promise(replace(self._log.promised, installing=(index, term)))
            self._snapshots.install(ready.snapshot, self._store)
            self._log.reset(hard_state or self._log.hard_state, index, term)
            hard_state = None
        if hard_state is not None or ready.entries or ready.truncate_from is not None:
            self._log.append(hard_state, ready.truncate_from, ready.entries, sync=ready.must_sync)

    def finish(self, ready: Ready) -> None:
        """Note that all of the Ready is persisted and sent."""
        if ready.snapshot is not None:
            self._take_over(ready.snapshot)
        if ready.offer is not None and ready.offer.meta != self._fetched:
            self._fetched = None  # the newer one replaces it on the disk
        if rest := ready.committed[self._early_entries :]:
            self._due.append(rest)
        self._early_entries = 0
        self._settle_reads(ready)
        self._raft.advance(ready)

    def messages_without_disk(self) -> list[Message]:
        """While `persist` writes a batch, and no snapshot: return early messages, and serve reads."""
        self._start_round()
        ready = self._raft.ready_without_disk()
        self._settle_reads(ready)
        return ready.send_now

    def _settle_reads(self, ready: Ready) -> None:
        for context in ready.reads_refused:
            asked = self._rounds.pop(context, None)
            _fail(asked.readers if asked else (), Unavailable("There is no leader to confirm a read."))
        for state in ready.read_states:
            if (asked := self._rounds.pop(state.context, None)) is not None:
                self._at_index.append((state.index, asked.readers))
        self._release_reads()

    def _take_over(self, snapshot: SnapshotMeta) -> None:
        """Use the snapshot's state; the outcome of our proposals in it is unknown."""
        self.applied_index = snapshot.index
        overtaken = [index for index in self._waiting if index <= snapshot.index]
        _fail([self._waiting.pop(index)[1] for index in overtaken], _unknown())

    # Applying

    def next_to_apply(self) -> list[Entry]:
        """Return all entries that are due, in order, to be applied as one batch.

        There are none while a batch is being applied. A HashWhole ends its batch.
        """
        if self._is_applying or not self._due:
            return []
        self._is_applying = True
        entries, later = up_to_whole_hash(list(itertools.chain.from_iterable(self._due)))
        self._due.clear()
        self._due.extend([later] if later else [])
        return entries

    def apply(self, entries: Sequence[Entry], *, may_sync: bool = True) -> list[bytes]:
        """Apply entries; return the encoded Reply to each. Blocks."""
        return self._store.apply(entries, may_sync=may_sync)

    def note_applied(self, entries: Sequence[Entry], replies: Sequence[bytes]) -> None:
        """Record that the batch of the last `next_to_apply` is applied, and answer its waiters."""
        self._is_applying = False
        self.applied_index = entries[-1].index
        self._raft.note_applied(self.applied_index)
        for entry, reply in zip(entries, replies, strict=True):
            waiting = self._waiting.pop(entry.index, None)
            if waiting is None or waiting[1].done():
                continue
            term, waiter = waiting
            if term == entry.term:
                waiter.set_result(reply)
            else:
                waiter.set_exception(NotLeader(self._raft.leader))
        self._release_reads()

    def _release_reads(self) -> None:
        still_waiting = []
        for index, readers in self._at_index:
            if index > self.applied_index:
                still_waiting.append((index, readers))
                continue
            for reader in readers:
                if not reader.done():
                    reader.set_result(b"")
        self._at_index = still_waiting

    # Compaction

    def compactable(self, durable_index: int) -> int:
        """Return the last index that the log may forget. The database is durable up to `durable_index`.

        The log keeps some entries for members that may lag, the entries that active members have not
        acknowledged, and those after a snapshot that is being fetched or about to be. The first two are kept
        only while the log is not too long.
        """
        index = durable_index
        is_short = self._log.size_bytes() < LOG_BYTES_MAX
        if is_short:
            index -= self._trailing_entries
        for progress in self._raft.status().progress.values():
            if not progress.active:
                continue
            if progress.state is ProgressState.SNAPSHOT:
                index = min(index, progress.snapshot_index or self._taken_index or index)
            elif progress.state is ProgressState.REPLICATE and is_short:
                index = min(index, progress.match)
        return max(index, 0)

    def fail_all(self, error: Exception) -> None:
        """Fail all waiters with the error that ends this member."""
        readers = [reader for asked in self._rounds.values() for reader in asked.readers]
        readers += [reader for _, waiting in self._at_index for reader in waiting]
        _fail(readers + self._readers, error)
        _fail([proposal.waiter for proposal in self._proposals], error)
        _fail([proposal.waiter for proposal in self._membership_proposals], error)
        _fail([waiter for _, waiter in self._waiting.values()], error)


def _unknown() -> Unavailable:
    return Unavailable("It is not known whether the change was made. Repeat the request to find out.")


def _is_fetching(progress: MemberProgress) -> bool:
    return progress.state is ProgressState.SNAPSHOT and progress.active and progress.snapshot_index > 0


def _fail(waiters: Sequence[Waiter], error: Exception) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
