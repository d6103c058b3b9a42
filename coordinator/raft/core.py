"""The entry points of the Raft core: ticks, messages, proposals and reads in; `Ready` out.

The package docstring is the contract.

Tested by tests/unit/coordinator/raft/test_election.py.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.raft import election, reads, replication, snapshots
from coordinator.raft.config import Config
from coordinator.raft.log_view import LogView
from coordinator.raft.membership import MembershipHistory
from coordinator.raft.messages import (
    ENTRY_OVERHEAD_BYTES,
    Entry,
    EntryKind,
    HardState,
    Members,
    MembershipChange,
    Message,
    MessageKind,
    Ready,
    Reluctance,
    SnapshotMeta,
)
from coordinator.raft.progress import ProgressState
from coordinator.raft.state import RaftRole, State
from coordinator.raft.storage import Storage

__all__ = ["Config", "MemberProgress", "NotLeader", "ProposalRefused", "Raft", "RaftRole", "Status"]

PROPOSAL_ENTRIES_MAX = 65_536  # in one call of propose
QUIET_GRACE_TICKS = 2  # a heartbeat this late counts as missed
MESSAGES_WAITING_MAX = 65_536  # while the disk hangs; beyond this the oldest are dropped, as on a network
# No term is further ahead: ten elections a second for 13 years. Without the bound, one flipped bit in one
# member's term would take all others to the largest number, at which no leader can be elected any more.
TERM_LEAP_MAX = 2**32


class NotLeader(Exception):
    """This member does not lead. `leader_id` names the member that does, "" if none is known."""

    def __init__(self, leader_id: str) -> None:
        super().__init__(f"not the leader; the leader is {leader_id or 'unknown'}")
        self.leader_id = leader_id


class ProposalRefused(Exception):
    """The leader cannot accept this now (a bound is reached, the lead is handed over) or ever (too large)."""


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """The leader's view of one member. `match` is durable there."""

    match: int
    next: int
    state: ProgressState
    inflight_messages: int
    inflight_bytes: int
    active: bool
    snapshot_index: int
    reluctance: Reluctance


@dataclass(frozen=True, slots=True)
class Status:
    """A member's view of itself, for metrics and tests. `progress` is empty unless it leads."""

    id: str
    term: int
    role: RaftRole
    leader: str
    commit: int
    applied: int
    last_index: int
    first_index: int
    members: Members
    messages_refused: int
    recovering: bool
    progress: Mapping[str, MemberProgress]


_Handler = Callable[[State, Message], None]
_BY_ANYONE: dict[MessageKind, _Handler] = {
    MessageKind.PRE_VOTE: election.on_pre_vote,
    MessageKind.PRE_VOTE_REPLY: election.on_pre_vote_reply,
    MessageKind.VOTE: election.on_vote,
    MessageKind.VOTE_REPLY: election.on_vote_reply,
    MessageKind.APPEND: replication.on_append,
    MessageKind.HEARTBEAT: replication.on_heartbeat,
    MessageKind.READ_INDEX: reads.on_read_index,
    MessageKind.READ_INDEX_REPLY: reads.on_read_index_reply,
    MessageKind.TIMEOUT_NOW: election.on_timeout_now,
    MessageKind.SNAPSHOT: snapshots.on_snapshot,
}
_BY_LEADER: dict[MessageKind, _Handler] = {
    MessageKind.APPEND_REPLY: replication.on_append_reply,
    MessageKind.HEARTBEAT_REPLY: replication.on_heartbeat_reply,
}
_FROM_LEADER = frozenset({MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT})


class Raft:
    """One member. Not safe for threads: all calls come from one."""

    def __init__(
        self,
        config: Config,
        storage: Storage,
        hard_state: HardState,
        applied_index: int,
        rand: random.Random,
        *,
        lost_term: int = 0,
    ) -> None:
        """Make a member from its configuration and the state on its disk.

        The promises of this member in terms up to `lost_term` are forgotten; `hard_state` is of a later term
        then.
        """
        assert lost_term == 0 or hard_state.term > lost_term, "a member continues in a term that it forgot"
        memberships = MembershipHistory(config.id, Members(config.members, config.learners))
        log = LogView(storage, commit=hard_state.commit, applied=applied_index, memberships=memberships)
        assert log.last_term <= hard_state.term, (
            f"the log holds term {log.last_term}, the member {hard_state.term}"
        )
        self._state = State(config, log, hard_state, rand, lost_term)
        self._written = hard_state  # the last hard state in a Ready
        self._in_flight: Ready | None = None

    @property
    def id(self) -> str:
        """Return this member's own id."""
        return self._state.own_id

    @property
    def leader(self) -> str:
        """Return the id of the leader of this member's term, "" if unknown."""
        return self._state.leader

    @property
    def reluctance(self) -> Reluctance:
        """Return why this member should lead only if no other can.

        Set by the driver; irrelevant for safety.
        """
        return self._state.reluctance

    @reluctance.setter
    def reluctance(self, reluctance: Reluctance) -> None:
        self._state.reluctance = reluctance

    @property
    def led_term(self) -> int:
        """Return the term that this member leads, 0 if it leads none."""
        return self._state.term if self._state.is_leader else 0

    @property
    def term(self) -> int:
        """Return the term of this member."""
        return self._state.term

    @property
    def others_match(self) -> int:
        """Return the highest index that a majority without this leader has on disk; 0 without leading."""
        matches = {member: progress.match for member, progress in self._state.progress.items()}
        return self._state.membership.reached_by_majority(matches | {self.id: 0})

    @property
    def members(self) -> Members:
        """Return the members of the group, by the latest entry in the log, committed or not."""
        return self._state.membership.members

    @property
    def due_in_ticks(self) -> int:
        """Return after how many ticks of the driver's clock `tick` must be called, at the latest.

        Without news of its leader a member counts the last ticks one by one: after a sleep or a busy time, it
        processes the messages that arrived meanwhile before it starts an election.
        """
        state = self._state
        if state.reads.forwarded:
            return 1
        if not state.is_leader:
            return max(1, state.config.quiet_ticks + QUIET_GRACE_TICKS - state.election_elapsed)
        to_heartbeat = replication.heartbeat_interval_ticks(state) - state.heartbeat_elapsed
        return max(1, min(to_heartbeat, state.config.election_ticks - state.election_elapsed))

    def tick(self, ticks: int = 1) -> bool:
        """Count ticks of the driver's clock, `due_in_ticks` at most.

        Return True if heartbeats are to be sent. One call with several ticks is the same as several calls.
        """
        assert 0 < ticks <= self.due_in_ticks, f"{ticks} ticks at once, {self.due_in_ticks} at most"
        state = self._state
        self._bound_outbox()
        reads.expire(state, ticks)
        if not state.is_leader:
            election.tick_waiting(state, ticks)
            return False
        state.election_elapsed += ticks
        if state.election_elapsed >= state.config.election_ticks:
            election.check_quorum(state)
            state.heartbeat_elapsed = state.config.quiet_ticks  # both on one timer
        return state.is_leader and replication.tick_leader(state, ticks)

    def step(self, message: Message) -> None:
        """Process one message of a peer.

        Never raises for its content: a senseless message is dropped and counted.
        """
        state = self._state
        self._bound_outbox()
        if not self._is_acceptable(message):
            state.messages_refused += 1
            return
        asks_for_vote = message.kind in (MessageKind.PRE_VOTE, MessageKind.VOTE)
        is_handed_over = message.kind is MessageKind.VOTE and message.transfer
        if asks_for_vote and not is_handed_over and election.has_live_leader(state):
            return  # a member that came back must not depose a live leader (dissertation, 4.2.3)
        if not self._align_term(message):
            return
        handler = _BY_ANYONE.get(message.kind)
        if handler is None and state.is_leader:
            handler = _BY_LEADER[message.kind]
        if handler is not None:
            handler(state, message)
            if message.kind is MessageKind.HEARTBEAT_REPLY and state.is_leader:
                reads.serve_confirmed(state)

    def _bound_outbox(self) -> None:
        state = self._state
        del state.send_now[:-MESSAGES_WAITING_MAX]
        del state.send_after_sync[:-MESSAGES_WAITING_MAX]

    def _is_acceptable(self, message: Message) -> bool:
        state = self._state
        # A sender that our log does not list yet may be the leader by now (dissertation, 4.1).
        if message.target != state.own_id or message.source in ("", state.own_id):
            return False
        if message.term > state.term + TERM_LEAP_MAX:
            return False
        if message.kind is MessageKind.SNAPSHOT and not snapshots.is_well_formed_offer(message):
            return False
        return replication.is_well_formed_append(message)

    def _align_term(self, message: Message) -> bool:
        """Bring this member to a later term, or answer a message of an earlier one.

        Return True if the message is to be handled.
        """
        state, kind = self._state, message.kind
        asks_ahead = kind is MessageKind.PRE_VOTE or (
            kind is MessageKind.PRE_VOTE_REPLY and not message.reject
        )
        if asks_ahead:
            return True  # no member has entered its term yet
        if message.term > state.term:
            state.become_follower(message.term, message.source if kind in _FROM_LEADER else "")
            return True
        if message.term < state.term and kind in _FROM_LEADER:
            # A former leader learns the term, otherwise a member ahead of it could never rejoin.
            state.send_after_sync.append(
                Message(MessageKind.APPEND_REPLY, state.own_id, message.source, state.term, reject=True)
            )
        return message.term == state.term

    def propose(self, datas: Sequence[bytes]) -> tuple[int, int]:
        """Append commands, all or none, in order, at consecutive indexes. Return (first index, term).

        Raises NotLeader, or ProposalRefused if a bound of Config is reached. An accepted command is not yet
        committed: see the contract.
        """
        state = self._state
        if not state.is_leader:
            raise NotLeader(state.leader)
        if state.transfer_target:
            raise ProposalRefused(f"the lead is being handed over to {state.transfer_target}")
        if not 0 < len(datas) <= PROPOSAL_ENTRIES_MAX:
            raise ProposalRefused(
                f"{len(datas)} entries in one proposal; 1 to {PROPOSAL_ENTRIES_MAX} are taken"
            )
        largest_bytes = max(map(len, datas))
        if largest_bytes > state.config.entry_bytes_max:
            raise ProposalRefused(
                f"an entry of {largest_bytes} bytes; {state.config.entry_bytes_max} are taken"
            )
        size_bytes = sum(map(len, datas)) + len(datas) * ENTRY_OVERHEAD_BYTES
        if state.uncommitted_bytes + size_bytes > state.config.uncommitted_bytes_max:
            raise ProposalRefused(f"{state.uncommitted_bytes} bytes of proposals wait for a majority")
        return replication.append_own(state, datas, EntryKind.COMMAND), state.term

    def propose_membership(self, members: Members, payload: bytes) -> tuple[int, int]:
        """Append a change of membership, in force at once. Return (index, term).

        Raises NotLeader; ProposalRefused if an earlier change is not committed, if the leader has not
        committed an entry of its term, or if more than one member changes.
        """
        state = self._state
        if not state.is_leader:
            raise NotLeader(state.leader)
        if state.transfer_target:
            raise ProposalRefused(f"the lead is being handed over to {state.transfer_target}")
        if state.log.memberships.latest_index > state.log.commit:
            raise ProposalRefused("the membership change before this one is not committed yet")
        if state.log.term(state.log.commit) != state.term:
            raise ProposalRefused("the leader is new and has not committed anything yet")
        if why_not := state.membership.why_not(members):
            raise ProposalRefused(why_not)
        return replication.change_membership(state, MembershipChange(members, payload)), state.term

    def read_index(self, context: bytes) -> None:
        """Request a linearizable read; `context` comes back in a Ready, with an index or refused."""
        reads.ask(self._state, context)

    def transfer_leader(self, target: str) -> None:
        """Hand the lead to `target` within an election timeout, or give up silently.

        Proposals are refused meanwhile. Raises NotLeader; ProposalRefused if `target` is not another member.
        """
        if not self._state.is_leader:
            raise NotLeader(self._state.leader)
        if target not in self._state.membership.voting_peers:
            raise ProposalRefused(f"{target!r} is not another voter")
        replication.start_transfer(self._state, target)

    def campaign(self) -> None:
        """Start an election as if the timeout had passed. For tests and the first start."""
        if not self._state.is_leader and self._state.may_stand:
            election.campaign(self._state)

    def has_ready(self) -> bool:
        """Return True if `ready()` may be called and has work."""
        state = self._state
        if self._in_flight is not None:
            return False
        return bool(
            state.flush_due
            or state.send_now
            or state.send_after_sync
            or state.log.has_unstable
            or state.log.may_hand_out(state.config.applying_bytes_max)
            or state.offer is not None
            or state.take_snapshot
            or state.reads.answered
            or state.reads.refused
            or (state.term, state.vote) != (self._written.term, self._written.vote)
        )

    def ready(self) -> Ready:
        """Take all pending work out. Not called again before `advance`."""
        assert self._in_flight is None, "ready() before advance() of the one before"
        state = self._state
        self._flush()
        hard_state = self._hard_state()
        snapshot = state.log.take_snapshot()
        truncate_from, entries = state.log.take_batch()
        promise_changed = (hard_state.term, hard_state.vote) != (self._written.term, self._written.vote)
        must_sync = promise_changed or bool(entries) or truncate_from is not None or snapshot is not None
        # A new commit index alone is not written: it is written with the next entries, and a leader knows it.
        is_written = must_sync and hard_state != self._written
        ready = Ready(
            send_now=state.send_now,
            hard_state=hard_state if is_written else None,
            truncate_from=truncate_from,
            entries=entries,
            snapshot=snapshot,
            must_sync=must_sync,
            send_after_sync=state.send_after_sync,
            committed=self._take_committed(),
            read_states=state.reads.answered,
            reads_refused=state.reads.refused,
            offer=state.offer,
            take_snapshot=state.take_snapshot,
        )
        state.offer, state.take_snapshot = None, False
        state.send_now, state.send_after_sync = [], []
        state.reads.answered, state.reads.refused = [], []
        if is_written:
            self._written = hard_state
        self._in_flight = ready
        return ready

    def ready_without_disk(self) -> Ready:
        """Return the messages and reads that need not wait until the batch of the last `ready` is written.

        All of them could have been in that Ready, as none depends on the disk.
        """
        assert self._in_flight is not None, "ready_without_disk() outside of ready() and advance()"
        assert self._in_flight.snapshot is None, "ready_without_disk() while the state is replaced"
        state = self._state
        self._flush()
        found = Ready(
            send_now=state.send_now, read_states=state.reads.answered, reads_refused=state.reads.refused
        )
        state.send_now, state.reads.answered, state.reads.refused = [], [], []
        return found

    def _take_committed(self) -> list[Entry]:
        log, config = self._state.log, self._state.config
        if not log.may_hand_out(config.applying_bytes_max):
            return []
        return log.take_committed(config.committed_bytes_max)

    def _flush(self) -> None:
        state = self._state
        if state.flush_due:
            state.flush_due = False
            reads.flush(state)
            if state.is_leader:
                replication.flush_appends(state)

    def _hard_state(self) -> HardState:
        # Never beyond the entries on disk before this batch: if the batch were torn, the commit index would
        # point past the log.
        state = self._state
        return HardState(state.term, state.vote, min(state.log.commit, state.log.stable_last))

    def advance(self, ready: Ready) -> None:
        """Note that `ready` is persisted and sent; its committed entries may not be applied yet."""
        assert ready is self._in_flight, "advance() with another Ready than the last"
        self._in_flight = None
        state = self._state
        state.log.batch_written()
        vote = ready.hard_state
        if vote is not None and (vote.term, vote.vote) == (state.term, state.own_id):
            election.count_vote(state, state.own_id, granted=True)
        if state.is_leader:
            replication.own_log_synced(state)

    def note_applied(self, index: int) -> None:
        """Note that the state machine has applied everything up to `index`."""
        self._state.log.applied_to(index)

    def restore(self, meta: SnapshotMeta) -> bool:
        """Use an offered snapshot that is fetched and verified.

        Return False if it is not (or not now) to be installed. Only between two Readys; the next one begins
        with it.
        """
        assert self._in_flight is None, "a snapshot is restored between two Readys"
        return snapshots.restore(self._state, meta)

    def snapshot_taken(self, meta: SnapshotMeta) -> None:
        """Note that the driver holds this snapshot for others to fetch."""
        snapshots.note_taken(self._state, meta)

    def snapshot_gone(self) -> None:
        """Note that the snapshot of the last `snapshot_taken` can no longer be fetched."""
        self._state.snapshot = None

    def status(self) -> Status:
        """Return the state of this member, cheap enough for every metrics scrape."""
        state = self._state
        progress = {
            member: MemberProgress(
                each.match,
                each.next,
                each.state,
                each.inflight_messages,
                each.inflight_bytes,
                each.is_live,
                each.snapshot_index,
                each.reluctance,
            )
            for member, each in state.progress.items()
        }
        return Status(
            id=state.own_id,
            term=state.term,
            role=state.role,
            leader=state.leader,
            commit=state.log.commit,
            applied=state.log.applied,
            last_index=state.log.last_index,
            first_index=state.log.first_index,
            members=state.membership.members,
            messages_refused=state.messages_refused,
            recovering=state.is_recovering,
            progress=progress,
        )
