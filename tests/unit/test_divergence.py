"""Who is the odd one: by majority of the voters, from reports that come in any order."""

import itertools

import pytest

from coordinator.divergence import INDEXES_MAX, REPORTERS_MAX, Divergence, DivergenceWatch

VOTERS = ("c1", "c2", "c3")


def test_equal_digests_are_no_divergence() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    assert [watch.reported(voter, 10, "a", VOTERS) for voter in VOTERS] == [None, None, None]


@pytest.mark.parametrize("order", list(itertools.permutations(VOTERS)))
@pytest.mark.parametrize("own_id", VOTERS)
def test_every_member_finds_the_same_odd_one_in_any_order(own_id: str, order: tuple[str, ...]) -> None:
    digests = {"c1": "a", "c2": "a", "c3": "b"}
    watch = DivergenceWatch(own_id)
    watch.own(10, digests[own_id])
    found = [watch.reported(voter, 10, digests[voter], VOTERS) for voter in order]
    assert [one for one in found if one is not None][-1] == Divergence(10, ("c3",))


def test_difference_is_told_before_it_is_known_who_is_odd() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    assert watch.reported("c2", 10, "b", VOTERS) == Divergence(10, ())
    assert watch.reported("c2", 10, "b", VOTERS) is None
    assert watch.reported("c3", 10, "b", VOTERS) == Divergence(10, ("c1",))


def test_half_of_the_voters_is_no_majority() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    voters = (*VOTERS, "c4")
    assert watch.reported("c2", 10, "a", voters) is None
    assert watch.reported("c3", 10, "b", voters) == Divergence(10, ())
    assert watch.reported("c4", 10, "b", voters) is None


def test_learner_can_be_odd_but_makes_no_majority() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    assert watch.reported("l1", 10, "b", VOTERS) == Divergence(10, ())
    assert watch.reported("l2", 10, "b", VOTERS) is None
    assert watch.reported("c2", 10, "a", VOTERS) == Divergence(10, ("l1", "l2"))


def test_own_report_does_not_take_the_place_of_the_own_digest() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    watch.reported("c1", 10, "b", VOTERS)
    watch.reported("c2", 10, "b", VOTERS)
    assert watch.reported("c3", 10, "b", VOTERS) == Divergence(10, ("c1",))


def test_own_report_counts_when_the_own_digest_was_forgotten_in_a_restart() -> None:
    watch = DivergenceWatch("c1")
    watch.reported("c1", 10, "b", VOTERS)
    watch.reported("c2", 10, "a", VOTERS)
    assert watch.reported("c3", 10, "a", VOTERS) == Divergence(10, ("c1",))


def test_digests_of_other_places_are_not_compared() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    watch.own(20, "b")
    assert watch.reported("c2", 20, "b", VOTERS) is None
    assert watch.reported("c2", 10, "a", VOTERS) is None


def test_second_odd_one_is_told_too() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    voters = (*VOTERS, "c4", "c5")
    for voter in ("c2", "c3"):
        watch.reported(voter, 10, "a", voters)
    assert watch.reported("c4", 10, "b", voters) == Divergence(10, ("c4",))
    assert watch.reported("c5", 10, "c", voters) == Divergence(10, ("c4", "c5"))


def test_old_places_are_forgotten() -> None:
    watch = DivergenceWatch("c1")
    for index in range(1, INDEXES_MAX + 2):
        watch.own(index, "a")
    assert watch.reported("c2", 1, "b", VOTERS) is None
    assert watch.reported("c2", INDEXES_MAX + 1, "b", VOTERS) == Divergence(INDEXES_MAX + 1, ())


def test_report_of_a_member_that_was_away_for_a_hundred_places_is_compared() -> None:
    watch = DivergenceWatch("c1")
    for log_index in range(10, 110):
        watch.own(log_index, "a")
        assert watch.reported("c2", log_index, "a", VOTERS) is None
    assert watch.reported("c3", 10, "b", VOTERS) == Divergence(10, ("c3",))


def test_reporters_beyond_the_bound_are_not_remembered() -> None:
    watch = DivergenceWatch("c1")
    watch.own(10, "a")
    for number in range(REPORTERS_MAX - 1):
        watch.reported(f"l{number}", 10, "a", VOTERS)
    assert watch.reported("c2", 10, "b", VOTERS) is None
