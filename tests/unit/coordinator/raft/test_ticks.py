"""Time as the core is told of it: several ticks at once, how far apart heartbeats are, who may sleep."""

import copy
import random

import pytest

from coordinator.raft.messages import Message, MessageKind
from tests.sim.group import Group, make_group
from tests.unit.seeds import seeds

BEAT = MessageKind.HEARTBEAT


def beats(sent: list[Message], target: str) -> int:
    """How many heartbeats went there."""
    return sum(message.kind is BEAT and message.target == target for message in sent)


@pytest.mark.parametrize("seed", seeds(range(12), range(12, 60)))
def test_ticks_at_once_are_the_same_as_one_after_the_other(seed: int) -> None:
    rand, group = random.Random(seed), make_group(3)
    group.dropped = lambda _: rand.random() < 0.2
    for _ in range(150):
        member = group[rand.choice("abc")]
        ticks = rand.randint(1, member.raft.due_in_ticks)
        other = copy.deepcopy(member)

        member.raft.tick(ticks)
        for _ in range(ticks):
            other.raft.tick()

        assert member.raft.status() == other.raft.status()
        assert member.raft.due_in_ticks == other.raft.due_in_ticks
        assert copy.deepcopy(member).turn() == other.turn()
        if member.raft.led_term and rand.random() < 0.3:
            member.raft.propose([b"x"])
        if rand.random() < 0.2:
            member.raft.read_index(b"r")
        group.settle()


def settled() -> Group:
    """A group led by a, in which all is told."""
    group = make_group(3)
    group.elect("a")
    group.tick(2 * group["a"].config.election_ticks)
    return group


def test_quiet_leader_sleeps_from_one_heartbeat_to_the_next() -> None:
    group, sent = settled(), list[Message]()
    quiet_ticks = group["a"].config.quiet_ticks

    while group["a"].raft.due_in_ticks < quiet_ticks:
        group.tick()
    for _ in range(10):
        group["a"].raft.tick(quiet_ticks)
        sent += group.settle()

    assert beats(sent, "b") == beats(sent, "c") == 10


def test_what_is_committed_is_told_with_the_next_tick() -> None:
    group = settled()
    group["a"].raft.propose([b"x"])
    group.settle()
    told = group["b"].raft.status().commit

    group.tick()

    assert (told, group["b"].raft.status().commit) == (1, 2)
    assert beats(group.tick(group["a"].config.quiet_ticks - 1), "b") == 0


def test_lost_append_is_asked_after_with_the_next_tick() -> None:
    group = settled()
    group.dropped = lambda message: message.kind is MessageKind.APPEND
    group["a"].raft.propose([b"x"])
    group.settle()
    group.dropped = lambda _: False

    group.tick(2)

    assert group["b"].log() == group["a"].log()


def test_member_that_is_away_costs_no_more_heartbeats_than_others() -> None:
    group = settled()
    config = group["a"].config
    group.cut = {"c"}
    group["a"].raft.propose([b"x"])
    group.tick(2 * config.election_ticks)

    sent = group.tick(10 * config.quiet_ticks)

    assert beats(sent, "c") == beats(sent, "b") <= 16  # and one with each check of the quorum


def test_follower_sleeps_past_a_heartbeat_and_counts_the_rest_one_by_one() -> None:
    group = settled()
    follower, config = group["b"].raft, group["b"].config
    while group["a"].raft.due_in_ticks < config.quiet_ticks:
        group.tick()

    asked = [follower.due_in_ticks]
    follower.tick(asked[0])
    while follower.term == 1 and not group["b"].turn():
        asked.append(follower.due_in_ticks)
        follower.tick()

    assert asked[0] > config.quiet_ticks
    assert set(asked[1:]) == {1}
    assert config.election_ticks <= sum(asked) < config.election_ticks + config.spread_ticks


def test_follower_that_slept_too_long_hears_its_leader_before_it_stands() -> None:
    group = settled()

    # However long it was: no more is told at once than was asked for.
    group["b"].raft.tick(group["b"].raft.due_in_ticks)

    assert group["b"].turn() == []
    with pytest.raises(AssertionError):
        group["b"].raft.tick(group["b"].raft.due_in_ticks + 1)
