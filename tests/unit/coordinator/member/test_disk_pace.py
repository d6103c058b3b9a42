"""When a leader is too slow: decided on times alone."""

import random

import pytest

from coordinator.member.disk_pace import CALM_S, HANGING_S, LATE_BATCHES, LATE_S, LEAD_S_MIN, Pace

SLOW_S, FAST_S = 0.7, 0.01


class Leader:
    """A leader whose time passes as batches are written."""

    def __init__(self) -> None:
        self.pace, self.at_s, self.index, self.term = Pace(), 1000.0, 0, 1
        self.pace.note_term(1, leads=False, at_s=self.at_s)
        self.lead()

    def lead(self) -> None:
        self.term += 1
        self.pace.note_term(self.term, leads=False, at_s=self.at_s)  # as a candidate
        self.pace.note_term(self.term, leads=True, at_s=self.at_s)

    def follow(self) -> None:
        self.term += 1
        self.pace.note_term(self.term, leads=False, at_s=self.at_s)

    def write(self, own_s: float, others_s: float) -> None:
        self.index += 1
        began_at_s = self.at_s
        self.pace.note_sent(self.index, at_s=began_at_s)
        if others_s <= own_s:
            self.pace.note_durable_elsewhere(self.index, at_s=began_at_s + others_s)
        self.pace.note_durable_here(self.index, at_s=began_at_s + own_s)
        self.at_s = began_at_s + max(own_s, others_s)
        if others_s > own_s:
            self.pace.note_durable_elsewhere(self.index, at_s=self.at_s)

    def write_many(self, count: int, own_s: float, others_s: float) -> None:
        for _ in range(count):
            self.write(own_s, others_s)

    @property
    def is_too_slow(self) -> bool:
        return self.pace.is_too_slow(at_s=self.at_s)


@pytest.fixture
def leader() -> Leader:
    """One that has led for long enough."""
    leader = Leader()
    leader.at_s += LEAD_S_MIN
    return leader


def test_leader_is_too_slow_after_several_late_batches_in_a_row(leader: Leader) -> None:
    leader.write_many(LATE_BATCHES - 1, SLOW_S, FAST_S)
    assert not leader.is_too_slow
    leader.write(SLOW_S, FAST_S)
    assert leader.is_too_slow


def test_one_batch_in_time_begins_the_count_anew(leader: Leader) -> None:
    for own_s in (SLOW_S, SLOW_S, FAST_S, SLOW_S, SLOW_S):
        leader.write(own_s, FAST_S)
        assert not leader.is_too_slow


@pytest.mark.parametrize(
    ("own_s", "others_s"),
    [
        (LATE_S - 0.01, 0.001),  # slower by far, and fast enough
        (SLOW_S, SLOW_S),  # all are slow: another would be no better
        (SLOW_S, SLOW_S / 3),
        (SLOW_S, 2 * SLOW_S),
    ],
)
def test_lead_stays_where_another_would_gain_little(leader: Leader, own_s: float, others_s: float) -> None:
    leader.write_many(50, own_s, others_s)
    assert not leader.is_too_slow


def test_batch_that_hangs_is_late_enough_alone(leader: Leader) -> None:
    leader.pace.note_sent(1, at_s=leader.at_s)
    leader.pace.note_durable_elsewhere(1, at_s=leader.at_s + FAST_S)
    assert not leader.pace.is_too_slow(at_s=leader.at_s + HANGING_S - 0.01)
    assert leader.pace.is_too_slow(at_s=leader.at_s + HANGING_S)


def test_batch_that_hangs_everywhere_is_nobodys_fault(leader: Leader) -> None:
    leader.pace.note_sent(1, at_s=leader.at_s)
    assert not leader.pace.is_too_slow(at_s=leader.at_s + 60)


def test_new_leader_leads_for_a_while() -> None:
    leader = Leader()
    leader.write_many(LATE_BATCHES, SLOW_S, FAST_S)
    assert not leader.is_too_slow
    leader.write_many(int(LEAD_S_MIN / SLOW_S), SLOW_S, FAST_S)
    assert leader.is_too_slow


def test_hand_over_that_nobody_followed_is_not_tried_again_at_once(leader: Leader) -> None:
    leader.write_many(LATE_BATCHES, SLOW_S, FAST_S)
    leader.pace.note_transfer(at_s=leader.at_s)
    leader.write_many(LATE_BATCHES, SLOW_S, FAST_S)
    assert not leader.is_too_slow
    leader.at_s += LEAD_S_MIN
    assert leader.is_too_slow


def test_what_was_measured_under_an_earlier_lead_does_not_count(leader: Leader) -> None:
    leader.write_many(LATE_BATCHES, SLOW_S, FAST_S)
    leader.follow()
    leader.lead()
    leader.at_s += CALM_S
    assert not leader.is_too_slow


def test_disks_that_are_slow_wherever_the_lead_goes_move_it_seldom() -> None:
    """The worst case: each leader is the slow one. The lead must come to rest, and go on once in a while."""
    rand, leader, changes, began_at_s = random.Random(1), Leader(), 0, 1000.0
    while leader.at_s < began_at_s + 3600:
        leader.write(SLOW_S * rand.uniform(0.9, 1.1), FAST_S)
        if leader.is_too_slow:
            changes += 1
            leader.follow()
            leader.lead()
    assert 6 <= changes <= 20
