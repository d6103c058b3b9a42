"""Elections as transcripts: who gets a vote, who is left in peace, what waits for the disk."""

import random

import pytest

from coordinator.raft.core import Config, NotLeader, ProposalRefused, Raft, RaftRole
from coordinator.raft.membership import Membership
from coordinator.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    Members,
    Message,
    MessageKind,
    Reluctance,
)
from tests.sim.group import Group, Member, kinds, make_group, make_member
from tests.sim.memory_storage import MemoryStorage

ABC = ("a", "b", "c")


def ask_vote(
    voter: Member, *, term: int, index: int, last_term: int, kind: MessageKind = MessageKind.VOTE
) -> Message:
    """The voter's answer to b."""
    voter.raft.step(Message(kind, "b", "a", term, log_index=index, log_term=last_term))
    return voter.turn()[-1]


def test_single_member_elects_itself_after_its_own_sync() -> None:
    member = make_member("a", ("a",))

    member.raft.campaign()
    member.begin()
    role_before_sync = member.raft.status().role
    member.finish()
    member.turn()

    assert role_before_sync is RaftRole.CANDIDATE
    assert member.raft.status().role is RaftRole.LEADER
    assert [entry.term for entry in member.applied] == [1]


def test_silence_starts_an_election_within_twice_the_timeout() -> None:
    group = make_group(3)

    group.tick(21)

    assert len({member.raft.leader for member in group.members.values()}) == 1
    assert group["a"].raft.leader in ABC


@pytest.mark.parametrize(
    ("index", "last_term", "granted"),
    [(2, 2, True), (3, 2, True), (1, 3, True), (1, 2, False), (9, 1, False)],
    ids=["equal", "longer", "later term though shorter", "shorter", "longer but of an older term"],
)
@pytest.mark.parametrize("kind", [MessageKind.VOTE, MessageKind.PRE_VOTE])
def test_follower_with_better_log_refuses_vote(
    index: int, last_term: int, granted: bool, kind: MessageKind
) -> None:
    voter = make_member("a", ABC, (1, 2))

    reply = ask_vote(voter, term=4, index=index, last_term=last_term, kind=kind)

    assert reply.reject is not granted


def test_member_votes_once_per_term() -> None:
    voter = make_member("a", ABC)
    voter.raft.step(Message(MessageKind.VOTE, "c", "a", 1))
    assert not voter.turn()[-1].reject

    assert ask_vote(voter, term=1, index=0, last_term=0).reject


def test_vote_survives_a_crash() -> None:
    voter = make_member("a", ABC)
    voter.raft.step(Message(MessageKind.VOTE, "c", "a", 1))
    voter.turn()

    voter.restart()

    assert ask_vote(voter, term=1, index=0, last_term=0).reject
    voter.raft.step(Message(MessageKind.VOTE, "c", "a", 1))
    assert not voter.turn()[-1].reject, "the same candidate may ask again"


def test_vote_leaves_only_after_its_sync() -> None:
    voter = make_member("a", ABC)
    voter.raft.step(Message(MessageKind.VOTE, "c", "a", 1))

    ready = voter.raft.ready()

    assert ready.must_sync
    assert ready.send_now == []
    assert kinds(ready.send_after_sync) == [MessageKind.VOTE_REPLY]
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (1, "c")


def test_crash_before_the_sync_of_a_vote_lets_nobody_know_of_it() -> None:
    voter = make_member("a", ABC)
    voter.raft.step(Message(MessageKind.VOTE, "c", "a", 1))

    sent = voter.begin()
    voter.restart()

    assert sent == []
    assert not ask_vote(voter, term=1, index=0, last_term=0).reject


def test_requests_for_votes_wait_for_the_candidates_own_sync() -> None:
    candidate = make_member("a", ABC)
    candidate.raft.campaign()
    candidate.turn()
    candidate.raft.step(Message(MessageKind.PRE_VOTE_REPLY, "b", "a", 1))

    ready = candidate.raft.ready()

    assert ready.must_sync
    assert MessageKind.VOTE not in kinds(ready.send_now)
    assert kinds(ready.send_after_sync) == [MessageKind.VOTE, MessageKind.VOTE]


def test_candidate_counts_its_own_vote_only_after_its_sync() -> None:
    candidate = make_member("a", ABC)
    candidate.raft.campaign()
    candidate.turn()
    candidate.raft.step(Message(MessageKind.PRE_VOTE_REPLY, "b", "a", 1))
    candidate.begin()

    candidate.raft.step(Message(MessageKind.VOTE_REPLY, "b", "a", 1))
    role_with_one_vote = candidate.raft.status().role
    candidate.finish()

    assert role_with_one_vote is RaftRole.CANDIDATE
    assert candidate.raft.status().role is RaftRole.LEADER


def test_repeated_vote_of_one_member_counts_once() -> None:
    candidate = make_member("a", ("a", "b", "c", "d", "e"))
    candidate.raft.campaign()
    candidate.turn()
    for voter in "bc":
        candidate.raft.step(Message(MessageKind.PRE_VOTE_REPLY, voter, "a", 1))
    candidate.turn()

    for _ in range(3):
        candidate.raft.step(Message(MessageKind.VOTE_REPLY, "b", "a", 1))

    assert candidate.raft.status().role is RaftRole.CANDIDATE


def test_vote_of_an_earlier_term_does_not_count() -> None:
    candidate = make_member("a", ABC, term=5)
    candidate.raft.campaign()
    candidate.turn()
    candidate.raft.step(Message(MessageKind.PRE_VOTE_REPLY, "b", "a", 6))
    candidate.turn()

    candidate.raft.step(Message(MessageKind.VOTE_REPLY, "b", "a", 5))

    assert candidate.raft.status().role is RaftRole.CANDIDATE


@pytest.mark.parametrize(("count", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_majority_is_more_than_half(count: int, quorum: int) -> None:
    names = tuple("abcdef"[:count])
    membership = Membership("a", Members(names))

    assert membership.quorum == quorum
    assert membership.election_outcome(dict.fromkeys(names[: quorum - 1], True)) is None
    assert membership.election_outcome(dict.fromkeys(names[:quorum], True)) is True
    assert membership.reached_by_majority(dict.fromkeys(names[: quorum - 1], 7)) == 0
    assert membership.reached_by_majority(dict.fromkeys(names[:quorum], 7)) == 7


def test_half_of_an_even_group_elects_nobody() -> None:
    group = make_group(4)
    group.cut = {"c", "d"}

    group.tick(60)

    assert group["a"].raft.leader == group["b"].raft.leader == ""
    assert group["a"].raft.status().term == 0, "pre-votes must not raise the term"


def test_member_that_was_cut_off_does_not_unseat_the_leader() -> None:
    group = make_group(3)
    group.elect("a")
    group.cut = {"c"}
    group.tick(60)
    group.cut = set()

    group["c"].raft.campaign()
    group.tick(group["a"].config.quiet_ticks)

    assert {member.raft.leader for member in group.members.values()} == {"a"}
    assert {member.raft.status().term for member in group.members.values()} == {1}


def test_request_for_a_vote_is_not_answered_while_a_leader_is_live() -> None:
    group = make_group(3)
    group.elect("a")

    for target in "ab":
        group[target].raft.step(Message(MessageKind.VOTE, "c", target, 9, log_index=99, log_term=9))

    assert group["a"].turn() == group["b"].turn() == []
    assert group["a"].raft.status().term == group["b"].raft.status().term == 1


def test_member_ahead_of_the_leaders_term_rejoins() -> None:
    # Its term is real: it voted there before the leader of term 1 was cut off from it.
    group = Group(make_member("a", ABC), make_member("b", ABC), make_member("c", ABC, term=5))
    group.cut = {"c"}
    group.elect("a")
    group.cut = set()

    group.tick(60)

    assert len({member.raft.leader for member in group.members.values()} - {""}) == 1
    assert {member.raft.leader for member in group.members.values()} != {""}
    assert all(member.raft.status().term > 5 for member in group.members.values())


def test_leader_without_a_majority_steps_down() -> None:
    group = make_group(3)
    group.elect("a")
    group.cut = {"b", "c"}

    group.tick(2 * group["a"].config.election_ticks)

    assert group["a"].raft.leader == ""
    with pytest.raises(NotLeader):
        group["a"].raft.propose([b"x"])


def test_two_leaders_in_one_term_stop_the_process() -> None:
    group = make_group(3)
    group.elect("a")

    with pytest.raises(AssertionError, match="both lead term 1"):
        group["a"].raft.step(Message(MessageKind.HEARTBEAT, "b", "a", 1))


def test_follower_names_the_leader_when_it_refuses_a_proposal() -> None:
    group = make_group(3)
    group.elect("b")

    with pytest.raises(NotLeader) as caught:
        group["a"].raft.propose([b"x"])

    assert caught.value.leader_id == "b"


def test_lead_is_handed_over_to_a_member_with_the_whole_log() -> None:
    group = make_group(3)
    group.elect("a").raft.propose([b"x"])

    group["a"].raft.transfer_leader("c")
    with pytest.raises(ProposalRefused, match="handed over to c"):
        group["a"].raft.propose([b"y"])
    group.settle()

    assert {member.raft.leader for member in group.members.values()} == {"c"}
    assert group["a"].log() == group["c"].log()


def test_hand_over_that_fails_ends_with_the_election_timeout() -> None:
    group = make_group(3)
    group.elect("a")
    group.cut = {"c"}
    group["a"].raft.transfer_leader("c")

    group.tick(group["a"].config.election_ticks)

    assert group["a"].raft.leader == "a"
    assert group["a"].raft.propose([b"x"]) == (2, 1)


@pytest.mark.parametrize("willing", ABC)
def test_reluctant_members_stand_only_after_all_others(willing: str) -> None:
    for _ in range(20):
        group = make_group(3)
        for member in group.members.values():
            if member.raft.id != willing:
                member.raft.reluctance = Reluctance.NO_ROOM
        group.tick(22)  # nobody willing waits for longer
        assert group["a"].raft.leader == willing


def test_reluctant_members_lead_when_there_are_no_others() -> None:
    group = make_group(3)
    for member in group.members.values():
        member.raft.reluctance = Reluctance.NO_ROOM
    group.tick(40)
    assert group["a"].raft.leader in ABC


def test_leader_hears_who_is_reluctant() -> None:
    group = make_group(3)
    group.elect("a")
    for reluctance in reversed(Reluctance):
        group["b"].raft.reluctance = reluctance
        group.tick(10)
        progress = group["a"].raft.status().progress
        assert (progress["b"].reluctance, progress["c"].reluctance) == (reluctance, Reluctance.WILLING)


def test_member_whose_clock_is_wrong_stands_before_those_without_room() -> None:
    for _ in range(20):
        group = make_group(3)
        for member in group.members.values():
            member.raft.reluctance = Reluctance.NO_ROOM
        group["b"].raft.reluctance = Reluctance.CLOCK_WRONG
        group.tick(30)
        assert group["a"].raft.leader == "b"


def test_older_member_that_says_no_more_than_that_it_should_not_lead_has_no_room() -> None:
    group = make_group(3)
    group.elect("a")
    group.tick(1)
    reply = Message(MessageKind.HEARTBEAT_REPLY, "b", "a", 1, reject=True)
    group["a"].raft.step(reply)
    assert group["a"].raft.status().progress["b"].reluctance is Reluctance.NO_ROOM


def test_lead_is_not_handed_to_a_stranger() -> None:
    group = make_group(3)
    group.elect("a")

    with pytest.raises(ProposalRefused, match="'z' is not another voter"):
        group["a"].raft.transfer_leader("z")
    with pytest.raises(NotLeader):
        group["b"].raft.transfer_leader("c")


@pytest.mark.parametrize(
    "message",
    [
        Message(MessageKind.VOTE, "", "a", 9),
        Message(MessageKind.VOTE, "b", "c", 9),
        Message(MessageKind.VOTE, "a", "a", 9),
        Message(MessageKind.SNAPSHOT, "b", "a", 9),
    ],
    ids=["from nobody", "for another", "from itself", "an offer of nothing"],
)
def test_message_that_is_not_for_us_is_dropped_and_counted(message: Message) -> None:
    member = make_member("a", ABC)

    member.raft.step(message)

    assert member.raft.status().messages_refused == 1
    assert member.raft.status().term == 0
    assert not member.raft.has_ready()


def test_member_that_forgot_its_promises_stands_and_votes_only_with_an_entry_of_a_later_term() -> None:
    config, entry = Config("a", ("a", "b", "c")), Entry(1, 3, EntryKind.COMMAND, b"x")
    storage = MemoryStorage([entry])
    raft = Raft(config, storage, HardState(4), 0, random.Random(1), lost_term=3)
    for _ in range(4 * config.election_ticks):
        raft.tick()
    raft.campaign()
    raft.step(Message(MessageKind.HEARTBEAT, "b", "a", 4))
    raft.step(Message(MessageKind.TIMEOUT_NOW, "b", "a", 4))
    assert (raft.term, raft.status().role) == (4, RaftRole.FOLLOWER)
    raft.step(Message(MessageKind.VOTE, "c", "a", 5, log_index=9, log_term=4, transfer=True))
    ready = raft.ready()
    assert [message.reject for message in ready.send_after_sync] == [True]
    assert not {message.kind for message in ready.send_now} & {MessageKind.PRE_VOTE, MessageKind.VOTE}
    raft.advance(ready)
    late = Entry(2, 5, EntryKind.COMMAND, b"y")
    raft.step(Message(MessageKind.APPEND, "c", "a", 5, log_index=1, log_term=3, entries=(late,)))
    ready = raft.ready()
    storage.append(ready.truncate_from, ready.entries)
    raft.advance(ready)
    for _ in range(4 * config.election_ticks):
        raft.tick()
    assert raft.status().role is RaftRole.PRE_CANDIDATE
