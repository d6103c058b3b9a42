"""The shared state of one core: term, vote, role, log, progress, pending reads, messages to send.

Only transitions that every part needs are here; the rules are in `election`, `replication` and `reads`.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from coordinator.raft.config import Config
from coordinator.raft.log_view import LogView
from coordinator.raft.membership import Membership
from coordinator.raft.messages import HardState, Message, ReadState, Reluctance, SnapshotMeta, SnapshotOffer
from coordinator.raft.progress import Progress

BATCH_NUMBER_BITS = 48


class RaftRole(Enum):
    """The role of a member in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Reads that share one answer: our own contexts, or a follower's batch of them."""

    source: str
    batch: int = 0
    contexts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRound:
    """Reads at a leader that wait until a majority has answered heartbeats of this round or a later one."""

    number: int
    index: int
    requests: tuple[ReadRequest, ...]


@dataclass(slots=True)
class ForwardedReads:
    """A batch of our own contexts that was sent to the leader."""

    contexts: tuple[bytes, ...]
    ticks_left: int


@dataclass(slots=True)
class Reads:
    """All reads between `read_index` and their answer in a Ready."""

    next_batch: int
    waiting: list[bytes] = field(default_factory=list)  # requested here, not yet in a round or a batch
    forwarded: dict[int, ForwardedReads] = field(default_factory=dict)
    requests: list[ReadRequest] = field(default_factory=list)  # followers' batches, not yet in a round
    rounds: deque[ReadRound] = field(default_factory=deque)
    last_round: int = 0
    pending: int = 0  # our own contexts without an answer
    answered: list[ReadState] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)

    def answer(self, contexts: tuple[bytes, ...], index: int) -> None:
        """Answer our own contexts: they are linearizable at `index`."""
        self.pending -= len(contexts)
        self.answered.extend(ReadState(context, index) for context in contexts)

    def refuse(self, contexts: tuple[bytes, ...]) -> None:
        """Refuse our own contexts; the driver fails them at once."""
        self.pending -= len(contexts)
        self.refused.extend(contexts)

    def refuse_all(self) -> None:
        """Refuse everything that is not yet answered: we lost the leader, or the lead."""
        self.refuse(tuple(self.waiting))
        for batch in self.forwarded.values():
            self.refuse(batch.contexts)
        for read_round in self.rounds:
            for request in read_round.requests:
                self.refuse(request.contexts)
        self.waiting.clear()
        self.forwarded.clear()
        self.requests.clear()
        self.rounds.clear()
        assert self.pending == 0, f"{self.pending} reads were forgotten"


class State:
    """Everything that one member knows. Fields are public only within this package."""

    __slots__ = (
        "config",
        "election_elapsed",
        "election_timeout",
        "flush_due",
        "heartbeat_elapsed",
        "leader",
        "log",
        "lost_term",
        "messages_refused",
        "offer",
        "own_id",
        "progress",
        "rand",
        "reads",
        "reluctance",
        "role",
        "send_after_sync",
        "send_now",
        "snapshot",
        "take_snapshot",
        "term",
        "transfer_target",
        "uncommitted",
        "uncommitted_bytes",
        "vote",
        "votes",
    )

    def __init__(
        self, config: Config, log: LogView, hard_state: HardState, rand: random.Random, lost_term: int
    ) -> None:
        self.config = config
        self.own_id = config.id
        self.rand = rand
        self.log = log
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.lost_term = lost_term  # its promises in terms up to this are forgotten, 0 for none
        self.role = RaftRole.FOLLOWER
        self.leader = ""
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.election_timeout = 0
        self.votes: dict[str, bool] = {}
        self.progress: dict[str, Progress] = {}  # at the leader, itself included
        self.transfer_target = ""
        self.reluctance = Reluctance.WILLING  # it can lead, but others should if they can
        self.uncommitted: deque[tuple[int, int]] = (
            deque()
        )  # (last index, bytes) of each proposal, at the leader
        self.uncommitted_bytes = 0
        self.send_now: list[Message] = []
        self.send_after_sync: list[Message] = []
        self.flush_due = False  # appends or reads may have to be sent with the next Ready
        self.messages_refused = 0
        self.snapshot: SnapshotMeta | None = None  # the newest that this member can send
        self.take_snapshot = False  # a follower needs one that this log can continue
        self.offer: SnapshotOffer | None = None  # the leader's last offer to us
        # A random start keeps answers to batches that we asked for before a restart from answering those
        # after it.
        self.reads = Reads(next_batch=rand.getrandbits(BATCH_NUMBER_BITS))
        self.draw_election_timeout()

    @property
    def membership(self) -> Membership:
        """Return the latest membership in the log, committed or not (dissertation, 4.1)."""
        return self.log.memberships.latest

    @property
    def is_recovering(self) -> bool:
        """Return True while this member must neither vote nor lead.

        It has forgotten promises, and its log holds no entry yet of a term that began without them. A single
        member has made no promises to others.
        """
        if not self.lost_term or not self.membership.voting_peers:
            return False
        return self.log.term(self.log.stable_last) <= self.lost_term

    @property
    def may_stand(self) -> bool:
        """Return whether this member may start an election."""
        return self.log.memberships.may_stand and not self.is_recovering

    @property
    def is_leader(self) -> bool:
        """Return True while this member leads its term."""
        return self.role is RaftRole.LEADER

    def draw_election_timeout(self) -> None:
        """Restart the wait for a leader, at random so that votes are seldom split (dissertation, 3.4)."""
        self.election_elapsed = 0
        self.election_timeout = self.config.election_ticks + self.rand.randrange(self.config.spread_ticks)

    def become_follower(self, term: int, leader: str) -> None:
        """Follow `leader` ("" if unknown) in `term`, which is the present one or a later one."""
        self.enter(term, RaftRole.FOLLOWER, leader)

    def enter(self, term: int, role: RaftRole, leader: str) -> None:
        """Change role, leader or term.

        The vote lasts for its term; reads requested under the former leader are refused.
        """
        assert term >= self.term, f"term {term} falls behind {self.term}"
        if term > self.term:
            self.term = term
            self.vote = ""
        self.reads.refuse_all()
        self.role = role
        self.leader = leader
        self.votes = {}
        self.progress = {}
        self.transfer_target = ""
        self.uncommitted.clear()
        self.uncommitted_bytes = 0
        self.heartbeat_elapsed = 0
        self.flush_due = False
        self.draw_election_timeout()

    def follow(self, leader: str) -> None:
        """Follow `leader`, as a message proves that it leads the present term (dissertation, 3.4)."""
        assert self.role is not RaftRole.LEADER, f"{leader} and {self.own_id} both lead term {self.term}"
        assert self.leader in ("", leader), f"{leader} and {self.leader} both lead term {self.term}"
        if self.role is RaftRole.FOLLOWER and self.leader == leader:
            self.election_elapsed = 0
        else:
            self.become_follower(self.term, leader)
