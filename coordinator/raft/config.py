"""The bounds that one member of the group runs with. Shared by all parts of the core, and no I/O.

Tested by tests/unit/coordinator/raft/test_membership.py.
"""

from dataclasses import dataclass

from coordinator.raft.messages import APPEND_BYTES_LIMIT, ENTRY_DATA_BYTES_LIMIT, ENTRY_OVERHEAD_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Config:
    """The id of this member, the group as of its applied index, and its bounds.

    Times are in ticks of the driver.

    `members` vote, `learners` do not; later entries of the log may change both. A member in neither list
    waits to be added. Without a leader, an election starts after `election_ticks`, and up to `spread_ticks`
    more. Heartbeats are sent every `heartbeat_ticks` while live followers lack some news, otherwise every
    `quiet_ticks`. Sizes count `entry_size_bytes` of each entry.
    """

    id: str
    members: tuple[str, ...]
    learners: tuple[str, ...] = ()
    election_ticks: int = 12  # two heartbeats of a quiet group, so that one may be lost
    spread_ticks: int = 10
    heartbeat_ticks: int = 1
    quiet_ticks: int = 6
    append_bytes_max: int = MIB  # of entries in one append; a larger single entry travels alone
    inflight_messages_max: int = 128  # per follower
    inflight_bytes_max: int = 8 * MIB  # per follower; the last append may exceed it
    entry_bytes_max: int = 2 * MIB  # of data in one proposal
    uncommitted_bytes_max: int = 64 * MIB  # proposed here and not yet committed
    committed_bytes_max: int = 4 * MIB  # in one Ready
    applying_bytes_max: int = 8 * MIB  # handed out and not yet applied; the last Ready may exceed it
    reads_pending_max: int = 65_536  # asked here and not yet answered

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ticks <= self.quiet_ticks < self.election_ticks, (
            "heartbeats must come within an election timeout"
        )
        assert 0 < self.spread_ticks <= self.election_ticks, "a reluctant member would not wait for others"
        assert 0 < self.append_bytes_max <= APPEND_BYTES_LIMIT, "append_bytes_max is beyond the wire's bound"
        assert 0 < self.entry_bytes_max <= ENTRY_DATA_BYTES_LIMIT, (
            "entry_bytes_max is beyond the wire's bound"
        )
        assert self.inflight_messages_max > 0, "nothing could ever be sent"
        assert self.inflight_bytes_max > 0, "nothing could ever be sent"
        assert self.committed_bytes_max > 0, "nothing could ever be applied"
        assert self.applying_bytes_max > 0, "nothing could ever be applied"
        assert self.reads_pending_max > 0, "nothing could ever be read"
        assert self.uncommitted_bytes_max >= self.entry_bytes_max + ENTRY_OVERHEAD_BYTES, (
            "an entry could never fit"
        )
