"""A leader without an entry that was committed: those that elected it have lost what they acknowledged."""

import pytest

from coordinator.raft.messages import Entry, EntryKind, Members, Message, MessageKind
from coordinator.raft.replication import CommittedContradicted
from tests.sim.group import make_member

ABC = ("a", "b", "c")
TERM = 9


@pytest.mark.parametrize("index", [1, 2])
@pytest.mark.parametrize("kind", [MessageKind.APPEND, MessageKind.SNAPSHOT])
def test_leader_with_another_entry_where_ours_is_committed_stops_the_process(
    index: int, kind: MessageKind
) -> None:
    follower = make_member("a", ABC, (1, 1, 1))
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", TERM, log_index=2, log_term=1, commit=2))
    follower.turn()
    wrong = Message(kind, "b", "a", TERM, log_index=index, log_term=5, members=Members(ABC))
    with pytest.raises(CommittedContradicted, match=f"at {index}, ours is of term 1"):
        follower.raft.step(wrong)


def test_leader_that_continues_what_is_committed_is_followed() -> None:
    follower = make_member("a", ABC, (1, 1, 1))
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", TERM, log_index=2, log_term=1, commit=2))
    follower.turn()
    entry = Entry(3, 5, EntryKind.COMMAND, b"x")
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", TERM, log_index=2, log_term=1, entries=(entry,)))
    assert follower.turn()[-1].log_index == 3
