"""The facts of Raft: entries, hard state, messages between members, and `Ready`, the driver's work.

All structs are immutable. `Message` crosses the wire: `msgspec.msgpack.Decoder(Message)` rejects wrong types
and values beyond the bounds named here, so the core sees only well-formed messages.
"""

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

ENTRY_OVERHEAD_BYTES = (
    32  # the cost of an entry in addition to its data; bounds the number of empty entries in a message
)
# No entry on the wire is larger, even if a member's Config allows it.
ENTRY_DATA_BYTES_LIMIT = 8 * 1024 * 1024
APPEND_ENTRIES_LIMIT = 65_536
APPEND_BYTES_LIMIT = APPEND_ENTRIES_LIMIT * ENTRY_OVERHEAD_BYTES  # 2 MiB; a larger single entry travels alone
MEMBER_ID_CHARS_MAX = 128
MEMBERS_MAX = 32  # of voters, and of learners; far beyond what anyone should run

Counter = Annotated[int, Meta(ge=0, le=2**62)]
MemberId = Annotated[str, Meta(max_length=MEMBER_ID_CHARS_MAX)]
MemberIds = Annotated[tuple[MemberId, ...], Meta(max_length=MEMBERS_MAX)]
EntryData = Annotated[bytes, Meta(max_length=ENTRY_DATA_BYTES_LIMIT)]


class EntryKind(IntEnum):
    """The kind of an entry's data. Only COMMAND reaches the state machine with data."""

    COMMAND = 0
    NOOP = 1  # the first entry of each leader (dissertation, 6.4)
    MEMBERSHIP = 2  # a MembershipChange; in force from the moment it is in the log (dissertation, 4.1)


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """One place in the log. The first index is 1."""

    index: Counter
    term: Counter
    kind: EntryKind
    data: EntryData


class Members(Struct, frozen=True, array_like=True):
    """The members of the group, each list sorted.

    A learner receives the log and does not count for majorities (dissertation, 4.2.1).
    """

    voters: MemberIds
    learners: MemberIds = ()


class MembershipChange(Struct, frozen=True, array_like=True):
    """The data of a MEMBERSHIP entry: the whole new membership, and the data for the state machine."""

    members: Members
    payload: EntryData


class SnapshotMeta(Struct, frozen=True, array_like=True):
    """A snapshot of the state machine, named by the last entry in it; `members` is the membership there."""

    index: Counter
    term: Counter
    members: Members


class SnapshotOffer(Struct, frozen=True):
    """`source` holds this snapshot for us to fetch."""

    source: str
    meta: SnapshotMeta


class HardState(Struct, frozen=True, array_like=True, gc=False):
    """The state that a member must not forget.

    `vote` is "" for none; `commit` may lag behind, but never beyond the synced log.
    """

    term: Counter = 0
    vote: MemberId = ""
    commit: Counter = 0


class Reluctance(IntEnum):
    """Why a member should lead only if no other can; the worst last. The numbers are the wire format."""

    WILLING = 0
    CLOCK_WRONG = 1  # most other members call its clock wrong
    NO_ROOM = 2  # its disk accepts no changes
    STATE_WRONG = 3  # its state differs from the one that the log builds
    RECOVERING = 4  # it has forgotten its promises, and must not lead at all


class MessageKind(IntEnum):
    """The kind of a message. The numbers are the wire format and never change."""

    PRE_VOTE = 1
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    APPEND = 5
    APPEND_REPLY = 6
    HEARTBEAT = 7
    HEARTBEAT_REPLY = 8
    READ_INDEX = 9
    READ_INDEX_REPLY = 10
    TIMEOUT_NOW = 11
    SNAPSHOT = 12


class Message(Struct, frozen=True, array_like=True, gc=False):
    """One message between two members. Fields that a kind does not list are left at their defaults.

    PRE_VOTE, VOTE: `log_index`, `log_term` of the candidate's last entry; `transfer` if a leader asked for
    this election. The term of a PRE_VOTE and of its grant is the one that the candidate would have.

    PRE_VOTE_REPLY, VOTE_REPLY: `reject`.

    APPEND: `log_index`, `log_term` of the entry before `entries`; `commit`; `entries` (may be none).

    APPEND_REPLY: accepted: `log_index` is the last index known to match the leader. With `reject`:
    `log_index` is the APPEND's own, and the follower's log may match up to `hint_index`, whose term there is
    `hint_term`.

    HEARTBEAT: `commit`, never beyond the follower's entries; `round` of reads.

    HEARTBEAT_REPLY: its `round`; from a member that should not be asked to lead `reject`, with the
    Reluctance in `hint_index`.

    SNAPSHOT: the sender offers a snapshot of its state at `log_index`, `log_term`, with `members`; the bytes
    are fetched outside of Raft. The receiver answers with an APPEND_REPLY, once it has that state.

    READ_INDEX: `round` is the asking member's number for a batch.

    READ_INDEX_REPLY: that `round`, and `log_index` and `commit` (as in HEARTBEAT) or `reject`.
    """

    kind: MessageKind
    source: MemberId
    target: MemberId
    term: Counter
    log_index: Counter = 0
    log_term: Counter = 0
    commit: Counter = 0
    round: Counter = 0
    hint_index: Counter = 0
    hint_term: Counter = 0
    reject: bool = False
    transfer: bool = False
    entries: Annotated[tuple[Entry, ...], Meta(max_length=APPEND_ENTRIES_LIMIT)] = ()
    members: Members | None = None


class ReadState(Struct, frozen=True, gc=False):
    """The read named `context` is linearizable on this member as soon as `index` is applied here."""

    context: bytes
    index: int


class Ready(Struct, frozen=True):
    """The work for the driver, in the order of the package's docstring."""

    send_now: list[Message] = []
    hard_state: HardState | None = None
    truncate_from: int | None = None
    entries: list[Entry] = []
    snapshot: SnapshotMeta | None = None
    must_sync: bool = False
    send_after_sync: list[Message] = []
    committed: list[Entry] = []
    read_states: list[ReadState] = []
    reads_refused: list[bytes] = []
    offer: SnapshotOffer | None = None
    take_snapshot: bool = False


def entry_size_bytes(entry: Entry) -> int:
    """Return the size of an entry for every byte bound: its data and a fixed overhead."""
    return len(entry.data) + ENTRY_OVERHEAD_BYTES
