"""Membership as transcripts: who counts when, and what a leader refuses to change."""

import pytest

from coordinator.raft.core import ProposalRefused, RaftRole
from coordinator.raft.membership import encode_membership
from coordinator.raft.messages import Entry, EntryKind, Members, MembershipChange, Message, MessageKind
from coordinator.raft.progress import ProgressState
from tests.sim.group import Group, Member, kinds, make_group, make_member

ABC = ("a", "b", "c")


def join(group: Group, name: str) -> Member:
    """A member that is let in begins with an empty log and knows the group that it was told of."""
    group.members[name] = make_member(name, (*ABC, name), founders=ABC)
    return group[name]


def change(group: Group, leader: str, voters: str, learners: str = "") -> tuple[int, int]:
    return group[leader].raft.propose_membership(Members(tuple(voters), tuple(learners)), b"payload")


def membership_entry(index: int, term: int, voters: str, learners: str = "") -> Entry:
    data = encode_membership(MembershipChange(Members(tuple(voters), tuple(learners)), b""))
    return Entry(index, term, EntryKind.MEMBERSHIP, data)


def test_learner_gets_the_log_and_counts_for_nothing() -> None:
    group = make_group(3)
    group.elect("a")
    join(group, "d")
    change(group, "a", "abc", "d")
    group.settle()
    assert group["d"].log() == group["a"].log()

    group.cut = {"b", "c"}
    first, _ = group["a"].raft.propose([b"not committed"])
    group.settle()

    assert group["a"].raft.status().progress["d"].match == first
    assert group["a"].raft.status().commit < first


def test_learner_never_campaigns() -> None:
    group = make_group(3)
    group.elect("a")
    join(group, "d")
    change(group, "a", "abc", "d")
    group.settle()

    for _ in range(100):
        group["d"].raft.tick()
        assert not group["d"].turn()

    assert group["d"].raft.status().role is RaftRole.FOLLOWER


def test_learner_answers_a_vote_because_it_may_not_know_of_its_promotion() -> None:
    learner = make_member("d", (*ABC, "d"), founders=ABC)

    learner.raft.step(Message(MessageKind.VOTE, "a", "d", 5, log_index=3, log_term=4))
    (reply,) = learner.turn()

    assert (reply.kind, reply.reject) == (MessageKind.VOTE_REPLY, False)


def test_promoted_learner_counts() -> None:
    group = make_group(3)
    group.elect("a")
    join(group, "d")
    change(group, "a", "abc", "d")
    group.settle()
    change(group, "a", "abcd")
    group.settle()

    group.cut = {"c"}
    index, _ = group["a"].raft.propose([b"with three of four"])
    group.settle()
    assert group["a"].raft.status().commit == index
    group.cut = {"c", "b"}
    index, _ = group["a"].raft.propose([b"two of four are no majority"])
    group.settle()
    assert group["a"].raft.status().commit < index


def test_change_is_in_force_as_soon_as_it_is_in_the_log() -> None:
    follower = make_member("a", ABC)

    follower.raft.step(Message(MessageKind.APPEND, "b", "a", 1, entries=(membership_entry(1, 1, "abcd"),)))

    assert follower.raft.members == Members(tuple("abcd"))


def test_truncated_change_is_taken_back() -> None:
    follower = make_member("a", ABC)
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", 1, entries=(membership_entry(1, 1, "abcd"),)))
    follower.turn()

    noop = Entry(1, 2, EntryKind.NOOP, b"")
    follower.raft.step(Message(MessageKind.APPEND, "c", "a", 2, entries=(noop,)))

    assert follower.raft.members == Members(ABC)


def test_restart_finds_a_change_that_is_not_applied_yet() -> None:
    follower = make_member("a", ABC)
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", 1, entries=(membership_entry(1, 1, "abcd"),)))
    follower.turn()

    follower.restart()

    assert follower.raft.members == Members(tuple("abcd"))


def test_second_change_waits_until_the_first_is_committed() -> None:
    group = make_group(3)
    leader = group.elect("a")
    change(group, "a", "abc", "d")

    with pytest.raises(ProposalRefused, match="not committed yet"):
        change(group, "a", "abcd")

    group.settle()
    assert change(group, "a", "abcd") == (leader.storage.last_index() + 1, leader.raft.status().term)


def test_new_leader_changes_nothing_before_it_committed_an_entry_of_its_term() -> None:
    group = make_group(3)
    group.elect("a")
    group.elect("b")  # its no-op is committed now
    group.cut = {"a", "c"}
    lonely = make_member("b", ABC, (1, 2), term=2, commit=1)
    group.members["b"] = lonely
    lonely.raft.campaign()
    lonely.turn()
    for voter in ("a", "c"):
        lonely.raft.step(Message(MessageKind.PRE_VOTE_REPLY, voter, "b", 3))
        lonely.turn()
        lonely.raft.step(Message(MessageKind.VOTE_REPLY, voter, "b", 3))
        lonely.turn()
    assert lonely.raft.status().role is RaftRole.LEADER

    with pytest.raises(ProposalRefused, match="has not committed anything yet"):
        change(group, "b", "ab")


@pytest.mark.parametrize(
    ("voters", "learners"),
    [("a", ""), ("abcde", ""), ("ab", "d"), ("abc", "de"), ("", "abc"), ("abcc", ""), ("abc", "c")],
    ids=["two leave", "two come", "one leaves, one comes", "two learners", "none", "twice", "both roles"],
)
def test_more_than_one_step_at_a_time_is_refused(voters: str, learners: str) -> None:
    group = make_group(3)
    group.elect("a")

    with pytest.raises(ProposalRefused):
        change(group, "a", voters, learners)

    assert group["a"].raft.members == Members(ABC)


def test_removed_follower_learns_of_it_and_is_forgotten() -> None:
    group = make_group(3)
    group.elect("a")

    change(group, "a", "ab")
    group.settle()

    assert [entry.kind for entry in group["c"].applied][-1] is EntryKind.MEMBERSHIP
    assert "c" not in group["c"].raft.members.voters
    assert set(group["a"].raft.status().progress) == {"a", "b"}


def test_removed_member_does_not_campaign() -> None:
    group = make_group(3)
    group.elect("a")
    change(group, "a", "ab")
    group.settle()

    for _ in range(100):
        group["c"].raft.tick()

    assert group["c"].turn() == []


def test_removed_leader_leads_to_the_end_without_counting_itself() -> None:
    group = make_group(3)
    group.elect("a")
    group.cut = {"c"}
    index, _ = change(group, "a", "bc")
    group.settle()
    assert group["a"].raft.status().commit < index, "a and b are no majority of b and c"
    assert group["a"].raft.status().role is RaftRole.LEADER

    group.cut = set()
    group.tick(3)

    assert group["a"].raft.status().commit == index
    assert group["a"].raft.status().role is RaftRole.FOLLOWER


def test_voter_stands_while_its_removal_is_not_committed() -> None:
    """Only its log may be good enough to win: without it, the group would never have a leader again."""
    group = make_group(4)
    group.elect("a")
    group.cut = {"c", "d"}
    change(group, "a", "acd")
    group.settle()

    group.cut = {"a"}
    terms = {name: group[name].raft.status().term for name in "bcd"}
    group.tick(60)

    assert all(group[name].raft.status().term > terms[name] for name in "bcd"), "b was never elected"
    assert "b" not in group["b"].raft.members.voters, "b's first commit was its own removal"
    assert group["c"].raft.members == group["d"].raft.members == Members(("a", "c", "d"))
    assert group["c"].raft.leader in ("c", "d")


def test_group_goes_on_after_its_leader_was_removed() -> None:
    group = make_group(3)
    group.elect("a")
    change(group, "a", "bc")
    group.settle()

    group.cut = {"a"}
    group.elect("b")
    group["b"].raft.propose([b"without a"])
    group.tick()

    assert group["c"].applied[-1].data == b"without a"


def test_lead_is_not_handed_to_a_learner() -> None:
    group = make_group(3)
    group.elect("a")
    change(group, "a", "abc", "d")
    group.settle()

    with pytest.raises(ProposalRefused, match="'d' is not another voter"):
        group["a"].raft.transfer_leader("d")


def test_appends_of_a_leader_that_the_log_does_not_name_yet_are_taken() -> None:
    behind = make_member("a", ABC)

    behind.raft.step(Message(MessageKind.APPEND, "x", "a", 4, entries=(membership_entry(1, 4, "abcx"),)))
    (reply,) = behind.turn()

    assert (reply.target, reply.log_index, reply.reject) == ("x", 1, False)


def test_membership_that_can_not_be_read_is_the_senders_fault() -> None:
    member = make_member("a", ABC)
    garbage = Entry(1, 1, EntryKind.MEMBERSHIP, b"\xc1")

    member.raft.step(Message(MessageKind.APPEND, "b", "a", 1, entries=(garbage,)))

    assert member.raft.status().messages_refused == 1
    assert member.turn() == []


def test_votes_of_learners_elect_nobody() -> None:
    group = make_group(3)
    group.elect("a")
    join(group, "d")
    change(group, "a", "abc", "d")
    group.settle()
    group.cut = {"a", "c"}
    group["b"].raft.tick()
    for _ in range(30):
        group["b"].raft.tick()
    sent = group.settle()

    assert not any(message.target == "d" for message in sent)
    assert MessageKind.VOTE not in kinds(sent)


def test_single_member_grows_to_two_and_back() -> None:
    group = make_group(1)
    group.elect("a")
    group.members["b"] = make_member("b", ("a", "b"), founders=("a",))
    change(group, "a", "a", "b")
    group.settle()
    assert group["a"].raft.status().progress["b"].state is ProgressState.REPLICATE
    change(group, "a", "ab")
    group.settle()

    change(group, "a", "a")
    group.settle()
    group.cut = {"b"}
    index, _ = group["a"].raft.propose([b"alone again"])
    group.settle()

    assert group["a"].raft.status().commit == index
