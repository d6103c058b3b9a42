"""The leader's view of one member's log, and the limit of messages in flight to it.

PROBE: it is not known where the logs meet, so one append travels at a time. REPLICATE: they meet, so appends
are pipelined (dissertation, 10.2.1) up to a bound in messages and in bytes. SNAPSHOT: its next entry is no
longer in the log, so only offers of a snapshot are sent, until it acknowledges one. (The three states are
those of etcd-io/raft, tracker/state.go.)
"""

from collections import deque
from enum import Enum

from coordinator.raft.config import Config
from coordinator.raft.messages import Reluctance


class ProgressState(Enum):
    """How appends are sent to this member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One member as its leader sees it. `match` is durable there; `next` is the first index not yet sent."""

    __slots__ = (
        "_inflight",
        "acked_round",
        "active",
        "commit_owed",
        "commit_sent",
        "inflight_bytes",
        "match",
        "match_at_tick",
        "next",
        "offer_due",
        "probe_due",
        "probe_sent",
        "reluctance",
        "snapshot_index",
        "state",
        "unanswered",
        "was_active",
    )

    def __init__(self, next_index: int) -> None:
        assert next_index >= 1, f"next index {next_index} is before the log"
        self.match = 0
        self.next = next_index
        self.state = ProgressState.PROBE
        self.active = False  # a message arrived since the last quorum check
        self.was_active = False  # a message arrived between the two checks before
        self.reluctance = Reluctance.WILLING  # from its last answer to a heartbeat
        self.unanswered = 0  # heartbeats since its last message
        self.acked_round = 0
        self.commit_sent = 0
        self.commit_owed = 0  # a read of this member waits for this index
        self.match_at_tick = 0
        self.probe_sent = False  # PROBE: one append is in flight, and no message arrived since
        self.probe_due = False  # an append is due even if it carries nothing
        self.offer_due = False  # SNAPSHOT: an offer may go out
        self.snapshot_index = 0  # SNAPSHOT: the last offer, 0 if there was none
        self.inflight_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each append in flight

    @property
    def inflight_messages(self) -> int:
        """Return how many appends with entries are in flight."""
        return len(self._inflight)

    def may_send(self, config: Config) -> bool:
        """Return True if flow control allows one more append with entries."""
        if self.state is ProgressState.SNAPSHOT:
            return False
        if self.state is ProgressState.PROBE:
            return not self.probe_sent
        return (
            len(self._inflight) < config.inflight_messages_max
            and self.inflight_bytes < config.inflight_bytes_max
        )

    def note_sent(self, last_index: int, size_bytes: int) -> None:
        """Note that entries up to `last_index` were sent in one append."""
        assert last_index >= self.next, f"append up to {last_index} was already sent (next is {self.next})"
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
            return
        self.next = last_index + 1
        self._inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes

    def note_acknowledged(self, index: int) -> bool:
        """Note that the member's log matches up to `index` and is durable. Return True if that is news."""
        is_news = index > self.match
        if is_news:
            self.match = index
        has_snapshot = self.state is ProgressState.SNAPSHOT and 0 < self.snapshot_index <= index
        if has_snapshot or (self.state is ProgressState.PROBE and index >= self.match):
            self.state = ProgressState.REPLICATE
            self.next = self.match + 1
            self.probe_sent = False
        self.next = max(self.next, self.match + 1)
        while self._inflight and self._inflight[0][0] <= self.match:
            self.inflight_bytes -= self._inflight.popleft()[1]
        return is_news

    def note_rejected(self, refused_index: int, next_index: int) -> bool:
        """Note that the logs do not meet at `refused_index`; `next_index` is the leader's better guess.

        Return False if the news is stale.
        """
        if refused_index <= self.match or self.state is ProgressState.SNAPSHOT:
            return False
        if self.state is ProgressState.REPLICATE:
            next_index = self.match + 1  # the logs are known to meet there
        elif refused_index != self.next - 1:
            return False
        self.state = ProgressState.PROBE
        self.next = max(min(refused_index, next_index), self.match + 1)
        self.probe_sent = False
        self.probe_due = True
        self.inflight_bytes = 0
        self._inflight.clear()
        return True

    def receive_heartbeat_reply(self) -> None:
        """Note a reply to a heartbeat: messages that seem lost are sent again.

        A silent member is sent only heartbeats.
        """
        if self.state is ProgressState.SNAPSHOT:
            self.offer_due = True
        elif self.state is ProgressState.PROBE:
            self.probe_sent = False
            self.probe_due = True
        elif self.match == self.match_at_tick and self.match < self.next - 1:
            self.probe_due = True
            self.match_at_tick = -1  # once per heartbeat interval

    @property
    def is_live(self) -> bool:
        """Return True after a message of the member within one to two election timeouts."""
        return self.active or self.was_active

    @property
    def owes_news(self) -> bool:
        """Return True if the member waits for a commit index that it now has the entries for."""
        is_owed = self.commit_sent < self.commit_owed <= self.match
        return is_owed and self.state is ProgressState.REPLICATE

    @property
    def is_without_offer(self) -> bool:
        """Return True if it needs a snapshot, and none was offered."""
        return self.state is ProgressState.SNAPSHOT and not self.snapshot_index

    def needs_snapshot(self) -> None:
        """Record that the member's next entry is no longer in the log.

        It is offered a snapshot if it is live.
        """
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = 0
        self.offer_due = self.is_live
        self.probe_sent = self.probe_due = False
        self.inflight_bytes = 0
        self._inflight.clear()

    def note_offered(self, index: int) -> None:
        """Note that a snapshot at `index` was offered; the next offer follows the member's next message."""
        self.snapshot_index = index
        self.next = index + 1
        self.offer_due = False

    def heartbeat_sent(self) -> None:
        """Note that a heartbeat interval begins.

        If `match` does not change until its reply, appends may be lost.
        """
        self.match_at_tick = self.match
        self.unanswered += 1

    def note_message(self) -> None:
        """Note that a message of the member arrived."""
        self.active = True
        self.unanswered = 0

    def waits(self, last_index: int, commit: int, config: Config) -> bool:
        """Return True if the member, which answered lately, lacks some news or owes an answer.

        It lacks entries, or must be asked for the end of its log, or does not know the commit index.
        """
        is_behind = self.match < last_index or self.commit_sent < commit
        return self.unanswered < config.election_ticks and (
            is_behind or self.state is not ProgressState.REPLICATE
        )
