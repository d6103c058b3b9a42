"""A coordinator that says what is not true. Raft is for members that fail, not for members that lie: this is
what its core does not take all the same, since no member says it that only fails.
"""

import pytest

from coordinator.raft.core import TERM_LEAP_MAX
from coordinator.raft.messages import Entry, EntryKind, Members, Message, MessageKind, ReadState
from coordinator.raft.progress import ProgressState
from coordinator.raft.replication import AcknowledgedLost, CommittedContradicted
from tests.sim.group import Group, Member, make_group, make_member

FIVE = ("a", "b", "c", "d", "e")
ABC = FIVE[:3]


def candidate(kind: MessageKind) -> Member:
    """One of five that asks for votes of this kind, and needs two more."""
    member = make_member("a", FIVE, (1,))
    member.raft.campaign()
    member.turn()
    if kind is MessageKind.VOTE_REPLY:
        for voter in ("b", "c"):
            member.raft.step(Message(MessageKind.PRE_VOTE_REPLY, voter, "a", member.raft.term + 1))
        member.turn()
    return member


@pytest.mark.parametrize("kind", [MessageKind.PRE_VOTE_REPLY, MessageKind.VOTE_REPLY])
def test_member_that_votes_twice_counts_once(kind: MessageKind) -> None:
    member = candidate(kind)
    term = 2
    before = member.raft.status().role
    for _ in range(3):
        member.raft.step(Message(kind, "b", "a", term))
        member.turn()
    assert member.raft.status().role is before
    member.raft.step(Message(kind, "c", "a", term))
    member.turn()
    assert member.raft.status().role is not before


@pytest.mark.parametrize("kind", [MessageKind.PRE_VOTE_REPLY, MessageKind.VOTE_REPLY])
def test_member_that_takes_its_vote_back_has_voted(kind: MessageKind) -> None:
    member = candidate(kind)
    before = member.raft.status().role
    for reject in (True, False):
        term = 2 if kind is MessageKind.VOTE_REPLY or not reject else 1
        member.raft.step(Message(kind, "b", "a", term, reject=reject))
    member.raft.step(Message(kind, "stranger", "a", 2))
    member.turn()
    assert member.raft.status().role is before
    member.raft.step(Message(kind, "c", "a", 2))
    member.turn()
    assert member.raft.status().role is before, "the own vote, and one"


def led_by_a(group: Group) -> Member:
    leader = group.elect("a")
    group.settle()
    leader.raft.propose([b"x", b"y"])
    leader.turn()
    return leader


@pytest.mark.parametrize("beyond", [1, 2**61])
def test_acknowledgement_of_what_was_never_sent_commits_nothing(beyond: int) -> None:
    leader = led_by_a(make_group(3))
    status = leader.raft.status()
    said = Message(MessageKind.APPEND_REPLY, "b", "a", status.term, log_index=status.last_index + beyond)
    leader.raft.step(said)
    leader.turn()
    after = leader.raft.status()
    assert (after.commit, after.progress["b"].match) == (status.commit, status.progress["b"].match)
    assert after.messages_refused == status.messages_refused + 1


def test_acknowledgements_out_of_order_take_nothing_back() -> None:
    leader = led_by_a(make_group(3))
    term, last = leader.raft.term, leader.raft.status().last_index
    for index in (last, 0, 1, last - 1):
        leader.raft.step(Message(MessageKind.APPEND_REPLY, "b", "a", term, log_index=index))
        leader.turn()
        status = leader.raft.status()
        assert (status.commit, status.progress["b"].match, status.progress["b"].next) == (
            last,
            last,
            last + 1,
        )


@pytest.mark.parametrize(("hint_index", "hint_term"), [(2**61, 2**61), (0, 0), (2**61, 0)])
def test_refusal_of_what_was_acknowledged_takes_nothing_back(hint_index: int, hint_term: int) -> None:
    leader = led_by_a(make_group(3))
    term, last = leader.raft.term, leader.raft.status().last_index
    leader.raft.step(Message(MessageKind.APPEND_REPLY, "b", "a", term, log_index=last))
    leader.turn()
    for index in (last, 1, 2**61):
        refusal = Message(
            MessageKind.APPEND_REPLY,
            "b",
            "a",
            term,
            log_index=index,
            hint_index=hint_index,
            hint_term=hint_term,
            reject=True,
        )
        leader.raft.step(refusal)
        leader.turn()
        status = leader.raft.status()
        assert (status.commit, status.progress["b"].match) == (last, last)
        assert status.progress["b"].next == last + 1
        is_known = index <= last
        assert (status.progress["b"].state is ProgressState.REPLICATE) == is_known, "what is known stays so"


def test_stranger_confirms_and_acknowledges_nothing() -> None:
    leader = led_by_a(make_group(3))
    status = leader.raft.status()
    leader.raft.read_index(b"r")
    leader.turn()
    for who in ("x", "y", "z"):
        leader.raft.step(
            Message(MessageKind.APPEND_REPLY, who, "a", status.term, log_index=status.last_index)
        )
        leader.raft.step(Message(MessageKind.HEARTBEAT_REPLY, who, "a", status.term, round=1))
        leader.turn()
    assert leader.raft.status().commit == status.commit
    assert leader.read_states == []


def test_answer_to_a_round_that_has_not_begun_confirms_no_read() -> None:
    leader = make_group(3).elect("a")
    leader.raft.step(Message(MessageKind.HEARTBEAT_REPLY, "b", "a", leader.raft.term, round=2**61))
    leader.turn()
    leader.raft.read_index(b"r")
    (beat, _) = leader.turn()
    assert leader.read_states == []
    leader.raft.step(Message(MessageKind.HEARTBEAT_REPLY, "b", "a", leader.raft.term, round=beat.round))
    leader.turn()
    assert leader.read_states == [ReadState(b"r", 1)]


def test_read_is_answered_by_the_leader_alone() -> None:
    group = make_group(3)
    group.elect("a")
    follower = group["b"]
    follower.raft.read_index(b"r")
    (asked,) = follower.turn()
    answer = Message(MessageKind.READ_INDEX_REPLY, "c", "b", asked.term, round=asked.round, log_index=0)
    refused = follower.raft.status().messages_refused
    follower.raft.step(answer)
    follower.turn()
    assert (follower.read_states, follower.reads_refused) == ([], [])
    assert follower.raft.status().messages_refused == refused + 1
    follower.raft.step(
        Message(MessageKind.READ_INDEX_REPLY, "a", "b", asked.term, round=asked.round, log_index=1)
    )
    follower.turn()
    assert follower.read_states == [ReadState(b"r", 1)]


def test_lead_is_taken_at_the_word_of_the_leader_alone() -> None:
    group = make_group(3)
    group.elect("a")
    follower = group["b"]
    follower.raft.step(Message(MessageKind.TIMEOUT_NOW, "c", "b", follower.raft.term))
    assert follower.turn() == []
    follower.raft.step(Message(MessageKind.TIMEOUT_NOW, "a", "b", follower.raft.term))
    assert {message.kind for message in follower.turn()} == {MessageKind.VOTE}


@pytest.mark.parametrize("kind", list(MessageKind))
def test_term_that_no_election_leads_to_is_not_entered(kind: MessageKind) -> None:
    """Otherwise one flipped bit would take all members to the last number that there is."""
    leader = make_group(3).elect("a")
    before = leader.raft.status()
    for term in (before.term + TERM_LEAP_MAX + 1, 2**62):
        leader.raft.step(
            Message(kind, "b", "a", term, log_index=9, log_term=term, members=Members(ABC), transfer=True)
        )
    leader.turn()
    after = leader.raft.status()
    assert (after.term, after.role, after.messages_refused) == (
        before.term,
        before.role,
        before.messages_refused + 2,
    )


def test_term_that_is_far_ahead_costs_the_lead_and_nothing_that_is_committed() -> None:
    group = make_group(3)
    leader = group.elect("a")
    leader.raft.propose([b"x"])
    group.settle()
    commit, term = leader.raft.status().commit, leader.raft.term + TERM_LEAP_MAX
    leader.raft.step(Message(MessageKind.HEARTBEAT, "b", "a", term))
    assert (leader.raft.term, leader.raft.leader) == (term, "b")
    group.tick(100)
    (led,) = (member for member in group.members.values() if member.raft.led_term)
    assert led.raft.led_term >= term
    assert led.raft.status().commit > commit
    assert led.applied[:commit] == leader.applied[:commit]


def test_leader_that_counts_on_what_was_never_acknowledged_is_not_followed() -> None:
    follower = make_member("a", ABC, (1, 1))
    with pytest.raises(AcknowledgedLost):
        follower.raft.step(Message(MessageKind.HEARTBEAT, "b", "a", 2, commit=3))
    assert follower.raft.status().commit == 0


def test_leader_commits_nothing_beyond_what_it_has_shown() -> None:
    """What follows in the own log may be of a leader of the past."""
    follower = make_member("a", ABC, (1, 1, 1))
    for shown in (1, 2):
        follower.raft.step(
            Message(MessageKind.APPEND, "b", "a", 2, log_index=shown, log_term=1, commit=2**61)
        )
        follower.turn()
        assert follower.raft.status().commit == shown
    entry = Entry(3, 2, EntryKind.COMMAND, b"of this leader")
    said = Message(MessageKind.APPEND, "b", "a", 2, log_index=2, log_term=1, commit=2**61, entries=(entry,))
    follower.raft.step(said)
    follower.turn()
    assert [each.data for each in follower.applied] == [b"1@1", b"2@1", b"of this leader"]


def test_other_entry_in_the_place_of_a_committed_one_is_not_taken() -> None:
    follower = make_member("a", ABC, (1, 1))
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", 1, log_index=2, log_term=1, commit=2))
    follower.turn()
    other = Entry(2, 3, EntryKind.COMMAND, b"other")
    said = Message(MessageKind.APPEND, "c", "a", 3, log_index=1, log_term=1, entries=(other,))
    follower.raft.step(said)
    follower.turn()
    assert follower.log() == [(1, b"1@1"), (1, b"2@1")]
    with pytest.raises(CommittedContradicted):
        follower.raft.step(Message(MessageKind.APPEND, "c", "a", 3, log_index=2, log_term=3))
