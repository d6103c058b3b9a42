"""What must hold after every step, whatever fails. Each check costs little, and looks only at what moved.

Names in the messages are those of the dissertation (figure 3.2): election safety, log matching, leader
completeness, state machine safety. What a disk holds for good is modelled here beside the real log: a
batch counts once the simulated disk has nothing left that is not synced, and after a crash the real log must
hold all that counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.raft.core import RaftRole
from coordinator.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    Members,
    Message,
    MessageKind,
    Ready,
    SnapshotMeta,
)
from tests.sim.genesis import Genesis

if TYPE_CHECKING:
    from tests.sim.machine import Machine

_DEPENDS_ON_DISK = frozenset({MessageKind.VOTE, MessageKind.VOTE_REPLY, MessageKind.APPEND_REPLY})


class Violation(AssertionError):
    """A promise of the protocol was broken."""


@dataclass(slots=True)
class Disk:
    """What one machine's log holds, and what of it would survive any crash."""

    base: int = 0  # entries up to here are in the database
    terms: list[int] = field(default_factory=list)  # of the entries after it
    hard_state: HardState = field(default_factory=HardState)
    unsynced: list[Ready] = field(default_factory=list)
    applied: int = 0  # what the database of the running process holds
    commit: int = 0
    term: int = 0
    role: RaftRole = RaftRole.FOLLOWER
    is_hurt: bool = False  # it lost the end of its log, and no start was on what is left yet

    @property
    def last(self) -> int:
        return self.base + len(self.terms)

    def term_at(self, index: int) -> int | None:
        """The term of a durable entry, None if it is not in the log."""
        return self.terms[index - self.base - 1] if self.base < index <= self.last else None

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry would survive any crash, in the log or in the database."""
        return index <= self.base or self.term_at(index) == term

    def take(self, ready: Ready) -> None:
        """A batch became durable."""
        self.hard_state = ready.hard_state or self.hard_state
        if ready.snapshot is not None:
            self.base, self.terms = ready.snapshot.index, []
        if ready.truncate_from is not None:
            del self.terms[ready.truncate_from - self.base - 1 :]
        self.terms += [entry.term for entry in ready.entries]


class Checkers:
    """All checks of one run. Every method raises Violation."""

    def __init__(self) -> None:
        self.disks: dict[str, Disk] = {}
        self.leaders: dict[int, str] = {}  # by term
        self.votes: dict[tuple[str, int], str] = {}  # (member, term): whom it promised its vote
        self.seen: dict[
            tuple[int, int], tuple[bytes, int]
        ] = {}  # (index, term): data, and the term before it
        self.history: list[Entry] = []  # what was applied at each index from 1 on
        self.replies: dict[int, bytes] = {}  # by index
        self.committed_datas: set[bytes] = set()
        self.committed = 0  # the highest index that any member took for committed
        self.commit_by_term: dict[
            int, tuple[int, int]
        ] = {}  # term of the leader: (index, term of that entry)
        self.elections = 0
        self.installs = 0
        self.compactions = 0
        self.membership_changes = 0

    # Machines

    def machine_made(self, machine: "Machine", genesis: Genesis | None) -> None:
        """A new machine; with `genesis` its disk holds the beginning of the log."""
        disk = self.disks[machine.name] = Disk()
        if genesis is None:
            return
        last = genesis.entries[-1]
        disk.terms = [entry.term for entry in genesis.entries]
        disk.hard_state = HardState(last.term, "", last.index)
        if not self.committed:
            self.committed = last.index
            self.commit_by_term[last.term] = (last.index, last.term)
            self.history = list(genesis.entries)

    def started(self, machine: "Machine", replayed_after: int) -> None:
        """A process came up: its log must hold all that was durable, its database only what was committed.

        That held everything up to `replayed_after` before the log was replayed.
        """
        disk, log = self.disks[machine.name], machine.log
        self._check_kept(machine, disk)
        first = log.first_index()
        disk.base = first - 1
        disk.terms = [log.term(index) for index in range(first, log.last_index() + 1)]
        disk.hard_state = log.hard_state
        disk.unsynced.clear()
        disk.applied = machine.store.applied_index()
        if disk.applied > self.committed:
            self._fail(f"{machine.name} has applied {disk.applied}, but only {self.committed} was committed")
        if disk.applied > replayed_after:
            entries = log.entries(replayed_after + 1, disk.applied + 1, 1 << 40)
            while entries[-1].index < disk.applied:
                entries += log.entries(entries[-1].index + 1, disk.applied + 1, 1 << 40)
            self._same_entries(machine, entries)
        disk.commit = disk.applied
        disk.term, disk.role = 0, RaftRole.FOLLOWER

    def _check_kept(self, machine: "Machine", disk: Disk) -> None:
        """What was durable is there, but for what a batch took away that was being written, and for what the
        disk has lost.
        """
        if disk.is_hurt:
            disk.is_hurt = False
            return
        log, known = machine.log, disk.hard_state
        found = log.hard_state
        if found.term < known.term or (found.term == known.term and known.vote not in ("", found.vote)):
            self._fail(f"{machine.name} forgot {known}, which was on its disk; it has {found}")
        if any(batch.snapshot is not None for batch in disk.unsynced):
            return
        truncated = [batch.truncate_from for batch in disk.unsynced if batch.truncate_from is not None]
        for index in range(max(disk.base + 1, log.first_index()), min([disk.last + 1, *truncated])):
            if index > log.last_index() or log.term(index) != disk.term_at(index):
                self._fail(f"{machine.name} forgot entry {index}, which was on its disk")

    def lost(self, machine: "Machine") -> None:
        """Its disk has lost the end of the log. What it promised is still held against it."""
        self.disks[machine.name].is_hurt = True

    def told(self, machine: "Machine", *, is_lost: bool) -> None:
        """What a start said of the log: a loss is always told, and nothing else for one."""
        is_hurt = self.disks[machine.name].is_hurt
        if is_hurt != is_lost:
            self._fail(f"{machine.name} {'lost' if is_hurt else 'did not lose'} the end of its log")

    # Disk and network

    def writes(self, machine: "Machine", ready: Ready) -> None:
        """A batch is going to be written: from now on a crash may leave it, or parts of it."""
        self.disks[machine.name].unsynced.append(ready)

    def persisted(self, machine: "Machine", ready: Ready) -> None:
        """A batch was written. Log matching: index and term name one entry, and the one before it."""
        disk = self.disks[machine.name]
        self._match(machine, ready)
        if all(not node.unsynced for node in machine.directory._nodes.values()):
            for batch in disk.unsynced:
                disk.take(batch)
            disk.unsynced.clear()

    def _match(self, machine: "Machine", ready: Ready) -> None:
        seen = self.seen
        if not ready.entries:
            return
        first = ready.entries[0].index
        term_before = machine.log.term(first - 1)
        for entry in ready.entries:
            key = (entry.index, entry.term)
            known = seen.get(key)
            if known is None:
                seen[key] = (entry.data, term_before)
                if entry.kind is EntryKind.MEMBERSHIP:
                    self.membership_changes += 1
            elif known[1] != term_before or known[0] != entry.data:
                self._fail(f"log matching: two entries have index {entry.index} and term {entry.term}")
            term_before = entry.term

    def promises(self, machine: "Machine", messages: Sequence[Message]) -> None:
        """Messages that wait for the disk leave: what they promise must survive any crash."""
        disk = self.disks[machine.name]
        for message in messages:
            kind = message.kind
            if message.reject or kind not in _DEPENDS_ON_DISK:
                continue
            if kind is MessageKind.APPEND_REPLY:
                self._promise_entries(machine, disk, message)
            else:
                self._promise_vote(machine, disk, message)

    def _promise_entries(self, machine: "Machine", disk: Disk, message: Message) -> None:
        # One of an older term may follow the truncation of what it acknowledges: as that term is over on this
        # disk, the acknowledgement says no more than if it had left just before.
        durable = disk.hard_state
        if durable.term < message.term:
            self._fail(f"{machine.name} acknowledges in term {message.term}; on its disk is {durable}")
        if durable.term == message.term and disk.last < message.log_index:
            self._fail(f"{machine.name} acknowledges entry {message.log_index}; its disk holds {disk.last}")

    def _promise_vote(self, machine: "Machine", disk: Disk, message: Message) -> None:
        voted_for = machine.name if message.kind is MessageKind.VOTE else message.target
        earlier = self.votes.setdefault((machine.name, message.term), voted_for)
        if earlier != voted_for:
            self._fail(f"{machine.name} votes for {earlier} and for {voted_for} in term {message.term}")
        durable = disk.hard_state
        if durable.term < message.term or (durable.term == message.term and durable.vote != voted_for):
            self._fail(
                f"{machine.name} votes for {voted_for} in term {message.term}; on its disk is {durable}"
            )

    def sends_now(self, machine: str, messages: Sequence[Message]) -> None:
        """Messages leave before the sync: none of them may promise what is on the disk."""
        for message in messages:
            if message.kind in _DEPENDS_ON_DISK and not message.reject:
                self._fail(f"{machine} sends {message.kind.name} before its disk has synced")

    # The core

    def leader_of(self, machines: "dict[str, Machine]") -> "Machine | None":
        """Whoever leads the highest term, as far as it knows itself."""
        leading = [
            (self.disks[name].term, name)
            for name, machine in machines.items()
            if machine.is_up and self.disks[name].role is RaftRole.LEADER
        ]
        return machines[max(leading)[1]] if leading else None

    def look(self, machine: "Machine") -> None:
        """After a step of a machine: its term, role and commit index."""
        assert machine.member is not None, "a process that runs"
        state = machine.member._raft._state
        disk = self.disks[machine.name]
        if state.term != disk.term:
            if state.term < disk.term:
                self._fail(f"{machine.name} went back from term {disk.term} to {state.term}")
            disk.term, disk.role = state.term, RaftRole.FOLLOWER
        if state.role is not disk.role:
            disk.role = state.role
            if state.role is RaftRole.LEADER:
                self._new_leader(machine, disk, state.term)
        commit = state.log.commit
        if commit != disk.commit:
            if commit < disk.commit:
                self._fail(f"the commit index of {machine.name} fell from {disk.commit} to {commit}")
            disk.commit = commit
            entry_term = state.log.term(commit)
            if commit > self.committed:
                self._new_commit(machine, commit, entry_term, state.term)
            elif commit <= len(self.history) and self.history[commit - 1].term != entry_term:
                self._fail(
                    f"{machine.name} takes entry {commit} of term {entry_term} for committed; it is not"
                )

    def _new_leader(self, machine: "Machine", disk: Disk, term: int) -> None:
        self.elections += 1
        earlier = self.leaders.setdefault(term, machine.name)
        if earlier != machine.name:
            self._fail(f"election safety: {earlier} and {machine.name} both lead term {term}")
        below = [mark for of_term, mark in self.commit_by_term.items() if of_term < term]
        index, entry_term = max(below, default=(0, 0))
        if not disk.holds(index, entry_term):
            self._fail(
                f"leader completeness: {machine.name} leads term {term}"
                f" without entry {index} of term {entry_term}"
            )

    def _new_commit(self, machine: "Machine", index: int, entry_term: int, leader_term: int) -> None:
        """Somebody takes more for committed than anyone before: a majority must hold it, whatever happens."""
        assert machine.member is not None, "a process that runs"
        voters = machine.member.members.voters
        holders = [
            name for name in voters if name in self.disks and self.disks[name].holds(index, entry_term)
        ]
        if 2 * len(holders) <= len(voters):
            self._fail(
                f"{machine.name} takes entry {index} of term {entry_term} for committed, but of the voters"
                f" {', '.join(voters)} only {', '.join(holders) or 'none'} have it on disk"
            )
        self.committed = index
        self.commit_by_term[leader_term] = (index, entry_term)

    def bounds(self, machine: "Machine") -> None:
        """Now and then: no buffer is larger than its bound."""
        assert machine.member is not None, "a process that runs"
        state, config = machine.member._raft._state, machine.member._raft._state.config
        if state.uncommitted_bytes > config.uncommitted_bytes_max:
            self._fail(f"{machine.name} holds {state.uncommitted_bytes} bytes of proposals")
        for follower, progress in state.progress.items():
            if progress.inflight_messages > config.inflight_messages_max:
                self._fail(
                    f"{machine.name} has {progress.inflight_messages} appends on the way to {follower}"
                )
            if progress.inflight_bytes > config.inflight_bytes_max + max(config.append_bytes_max, 4096):
                self._fail(f"{machine.name} has {progress.inflight_bytes} bytes on the way to {follower}")
        if len(state.reads.rounds) > 4 or state.reads.pending > config.reads_pending_max:
            self._fail(
                f"{machine.name} holds {state.reads.pending} reads in {len(state.reads.rounds)} rounds"
            )

    # The state machine

    def handed_out(self, machine: "Machine", entries: Sequence[Entry]) -> None:
        """Committed entries are on the own disk before they are applied."""
        disk = self.disks[machine.name]
        for entry in entries:
            if not disk.holds(entry.index, entry.term):
                self._fail(f"{machine.name} is to apply entry {entry.index}, which is not on its disk")

    def applied(self, machine: "Machine", entries: Sequence[Entry], replies: Sequence[bytes]) -> None:
        """State machine safety: every index once, in order, and the same entry and reply everywhere."""
        disk, known = self.disks[machine.name], self.replies
        if entries[0].index != disk.applied + 1:
            self._fail(f"{machine.name} applies entry {entries[0].index} after entry {disk.applied}")
        self._same_entries(machine, entries)
        disk.applied = entries[-1].index
        for entry, reply in zip(entries, replies, strict=True):
            if known.setdefault(entry.index, reply) != reply:
                self._fail(
                    f"{machine.name} replies {reply!r} to entry {entry.index}; others {known[entry.index]!r}"
                )

    def _same_entries(self, machine: "Machine", entries: Sequence[Entry]) -> None:
        history = self.history
        for entry in entries:
            index = entry.index
            if index <= len(history):
                if history[index - 1] != entry:
                    self._fail(
                        f"state machine safety: {machine.name} applies {entry}, others {history[index - 1]}"
                    )
            elif index != len(history) + 1 or index > self.committed:
                self._fail(f"{machine.name} applies entry {index}, but only {self.committed} is committed")
            else:
                history.append(entry)
                self.committed_datas.add(entry.data)

    def acknowledged(self, data: bytes) -> None:
        """A client is told that its command was done."""
        if data not in self.committed_datas:
            self._fail("a command is acknowledged that nobody committed")

    def read_served(self, machine: "Machine", floor: int) -> None:
        """A read is answered from the state as it is now; `floor` was committed when it was asked."""
        applied = self.disks[machine.name].applied
        if applied < floor:
            self._fail(
                f"{machine.name} serves a read from the state at {applied};"
                f" {floor} was committed when it was asked"
            )

    # Snapshots

    def snapshot_taken(self, machine: "Machine", meta: SnapshotMeta) -> None:
        """A snapshot names the last entry that is in it, and who belonged to the group then."""
        entry = self.history[meta.index - 1]
        if (entry.index, entry.term) != (meta.index, meta.term):
            self._fail(
                f"a snapshot of {machine.name} says {meta}, but entry {meta.index} has term {entry.term}"
            )

    def installed(self, machine: "Machine", meta: SnapshotMeta) -> None:
        """A snapshot took the place of the database: it never goes back."""
        disk = self.disks[machine.name]
        self.installs += 1
        if meta.index < disk.applied:
            self._fail(f"{machine.name} goes back from {disk.applied} to a snapshot at {meta.index}")
        disk.applied = meta.index

    def compacted(self, machine: "Machine") -> None:
        """The log forgot its beginning: the database must hold it, whatever happens."""
        self.compactions += 1
        disk = self.disks[machine.name]
        first, durable = machine.log.first_index(), machine.database.durable_index
        if first > durable + 1:
            self._fail(
                f"{machine.name} compacted its log up to {first}, its database is durable up to {durable}"
            )
        if first - 1 > disk.base:
            del disk.terms[: first - 1 - disk.base]
            disk.base = first - 1

    def same_members(self, machine: "Machine", members: Members) -> None:
        """In the calm at the end, all agree who belongs to the group."""
        assert machine.member is not None, "a process that runs"
        if machine.member.members != members:
            self._fail(f"{machine.name} takes {machine.member.members} for the group, others {members}")

    def _fail(self, what: str) -> None:
        raise Violation(what)
