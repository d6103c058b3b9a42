"""Who is the odd one: by majority of the voters, from reports that come in any order."""

import itertools

import msgspec
import pytest

from coordinator.member.divergence import (
    INDEXES_MAX,
    REPORTERS_MAX,
    DigestComparison,
    Divergence,
    DivergenceWatch,
    ReportedDigest,
    confirmed_digest,
    majority_digest,
)
from coordinator.storage.snapshot_origins import UNKNOWN
from metadata.model.records import StateHash

VOTERS = ("c1", "c2", "c3")


def test_equal_digests_are_no_divergence() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    assert [watch.process_report(voter, 10, "a", VOTERS) for voter in VOTERS] == [None, None, None]


@pytest.mark.parametrize("order", list(itertools.permutations(VOTERS)))
@pytest.mark.parametrize("own_id", VOTERS)
def test_every_member_finds_the_same_odd_one_in_any_order(own_id: str, order: tuple[str, ...]) -> None:
    digests = {"c1": "a", "c2": "a", "c3": "b"}
    watch = DivergenceWatch(own_id)
    watch.note_own(10, digests[own_id])
    found = [watch.process_report(voter, 10, digests[voter], VOTERS) for voter in order]
    assert [one for one in found if one is not None][-1] == Divergence(10, ("c3",))


def test_difference_is_told_before_it_is_known_who_is_odd() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    assert watch.process_report("c2", 10, "b", VOTERS) == Divergence(10, ())
    assert watch.process_report("c2", 10, "b", VOTERS) is None
    assert watch.process_report("c3", 10, "b", VOTERS) == Divergence(10, ("c1",))


def test_half_of_the_voters_is_no_majority() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    voters = (*VOTERS, "c4")
    assert watch.process_report("c2", 10, "a", voters) is None
    assert watch.process_report("c3", 10, "b", voters) == Divergence(10, ())
    assert watch.process_report("c4", 10, "b", voters) is None


def test_learner_can_be_odd_but_makes_no_majority() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    assert watch.process_report("l1", 10, "b", VOTERS) == Divergence(10, ())
    assert watch.process_report("l2", 10, "b", VOTERS) is None
    assert watch.process_report("c2", 10, "a", VOTERS) == Divergence(10, ("l1", "l2"))


def test_own_report_does_not_take_the_place_of_the_own_digest() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    watch.process_report("c1", 10, "b", VOTERS)
    watch.process_report("c2", 10, "b", VOTERS)
    assert watch.process_report("c3", 10, "b", VOTERS) == Divergence(10, ("c1",))


def test_own_report_counts_when_the_own_digest_was_forgotten_in_a_restart() -> None:
    watch = DivergenceWatch("c1")
    watch.process_report("c1", 10, "b", VOTERS)
    watch.process_report("c2", 10, "a", VOTERS)
    assert watch.process_report("c3", 10, "a", VOTERS) == Divergence(10, ("c1",))


def test_digests_of_other_places_are_not_compared() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    watch.note_own(20, "b")
    assert watch.process_report("c2", 20, "b", VOTERS) is None
    assert watch.process_report("c2", 10, "a", VOTERS) is None


def test_second_odd_one_is_told_too() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    voters = (*VOTERS, "c4", "c5")
    for voter in ("c2", "c3"):
        watch.process_report(voter, 10, "a", voters)
    assert watch.process_report("c4", 10, "b", voters) == Divergence(10, ("c4",))
    assert watch.process_report("c5", 10, "c", voters) == Divergence(10, ("c4", "c5"))


def test_old_places_are_forgotten() -> None:
    watch = DivergenceWatch("c1")
    for index in range(1, INDEXES_MAX + 2):
        watch.note_own(index, "a")
    assert watch.process_report("c2", 1, "b", VOTERS) is None
    assert watch.process_report("c2", INDEXES_MAX + 1, "b", VOTERS) == Divergence(INDEXES_MAX + 1, ())


def test_report_of_a_member_that_was_away_for_a_hundred_places_is_compared() -> None:
    watch = DivergenceWatch("c1")
    for log_index in range(10, 110):
        watch.note_own(log_index, "a")
        assert watch.process_report("c2", log_index, "a", VOTERS) is None
    assert watch.process_report("c3", 10, "b", VOTERS) == Divergence(10, ("c3",))


def test_reporters_beyond_the_bound_are_not_remembered() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    for number in range(REPORTERS_MAX - 1):
        watch.process_report(f"l{number}", 10, "a", VOTERS)
    assert watch.process_report("c2", 10, "b", VOTERS) is None


# Copies, and what was agreed before


def hashed(log_index: int, digest: str, *, table: str = "files", touched: bool = False) -> StateHash:
    return StateHash(
        log_index=log_index,
        table=table,
        digest=digest,
        rows=1,
        position="p",
        tracked=True,
        touched=touched,
    )


def test_copy_and_its_source_are_no_majority_against_the_sound_third() -> None:
    """What happened: the damaged leader's snapshot was installed, two agreed, and the sound one ended."""
    watch = DivergenceWatch("c3")
    watch.note_own(10, "sound")
    assert watch.process_report("c1", 10, "damaged", VOTERS) == Divergence(10, ())
    assert watch.process_report("c2", 10, ReportedDigest("damaged", origin="c1"), VOTERS) is None
    assert (watch.odd, watch.open_places(VOTERS)) == (set(), [10])


def test_copy_that_differs_from_its_source_is_a_witness_against_it() -> None:
    watch = DivergenceWatch("c2")
    watch.note_own(10, "sound")
    watch.process_report("c1", 10, "damaged since", VOTERS)
    watch.process_report("c2", 10, ReportedDigest("sound", origin="c1"), VOTERS)
    assert watch.process_report("c3", 10, "sound", VOTERS) == Divergence(10, ("c1",))


def test_copies_of_copies_are_one_witness() -> None:
    voters = ("c1", "c2", "c3", "c4", "c5")
    reports = {
        "c1": ReportedDigest("d"),
        "c2": ReportedDigest("d", origin="c1"),
        "c3": ReportedDigest("d", origin="c2"),
    }
    assert majority_digest(reports, voters) == ""
    in_a_circle = {
        "c1": ReportedDigest("d", origin="c2"),
        "c2": ReportedDigest("d", origin="c1"),
        "c3": ReportedDigest("d"),
    }
    assert majority_digest(in_a_circle, VOTERS) == "d"


def test_two_copies_of_one_that_is_gone_are_one_witness() -> None:
    reports = {"c2": ReportedDigest("d", origin="c1"), "c3": ReportedDigest("d", origin="c1")}
    assert majority_digest(reports, VOTERS) == ""


def watch_of_a_pass(own_id: str) -> DivergenceWatch:
    """One in which all have agreed on the files at 10, in the pass before."""
    watch = DivergenceWatch(own_id)
    watch.note_own(10, "a", hashed(10, "a"))
    for voter in VOTERS:
        watch.process_report(voter, 10, "a", VOTERS)
    watch.note_own(11, "x", hashed(11, "x", table="blobs"))
    return watch


def test_digest_that_was_agreed_before_of_untouched_rows_shows_who_is_odd() -> None:
    watch = watch_of_a_pass("c1")
    again = hashed(20, "a")
    watch.note_own(20, "a", again)
    assert watch.agreed_at(again) == 10
    watch.process_report("c2", 20, "b", VOTERS)
    assert watch.process_report("c1", 20, ReportedDigest("a", agreed_at=10), VOTERS) == Divergence(
        20, ("c2",)
    )
    assert watch.open_places(VOTERS) == []


@pytest.mark.parametrize(
    "again",
    [
        hashed(20, "a", touched=True),
        msgspec.structs.replace(hashed(20, "a"), tracked=False),
        msgspec.structs.replace(hashed(20, "a"), position="q"),
        hashed(20, "b"),
    ],
)
def test_what_was_agreed_before_proves_nothing_of_other_or_touched_rows(again: StateHash) -> None:
    assert watch_of_a_pass("c1").agreed_at(again) == 0


def test_what_was_agreed_two_passes_ago_is_forgotten() -> None:
    watch = watch_of_a_pass("c1")
    for log_index, table in ((20, "files"), (21, "blobs"), (30, "files")):
        watch.note_own(
            log_index, "y", msgspec.structs.replace(hashed(log_index, "y", table=table), position="q")
        )
    assert watch.agreed_at(hashed(31, "a")) == 0


def test_one_that_knows_the_rows_were_touched_makes_the_past_no_proof() -> None:
    """It may be the other that is right: a page that lost a write is as it was."""
    reports = {"c1": ReportedDigest("a", agreed_at=10), "c2": ReportedDigest("b", touched=True)}
    assert confirmed_digest(reports, VOTERS) == ""
    assert confirmed_digest({"c1": reports["c1"], "c2": ReportedDigest("b")}, VOTERS) == "a"


def test_majority_goes_before_what_was_agreed() -> None:
    watch = DivergenceWatch("c1")
    watch.process_report("c2", 20, "b", VOTERS)
    watch.process_report("c3", 20, "b", VOTERS)
    assert watch.process_report("c1", 20, ReportedDigest("a", agreed_at=10), VOTERS) == Divergence(
        20, ("c1",)
    )


def test_member_that_cannot_read_its_state_is_odd_by_its_own_word() -> None:
    watch = DivergenceWatch("c1")
    assert watch.process_report("c2", 10, "", VOTERS) == Divergence(10, ("c2",))
    watch.note_own(20, "a")
    assert watch.process_report("c2", 20, "b", VOTERS) == Divergence(20, ("c2",))
    assert watch.process_report("c3", 20, "a", VOTERS) is None


def test_difference_ends_with_the_removal_of_one_that_differed() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    watch.process_report("c2", 10, "b", VOTERS)
    assert watch.open_places(("c1", "c2", "c3")) == [10]
    assert watch.open_places(("c1", "c3")) == []


def test_difference_that_was_open_before_a_restart_is_recalled() -> None:
    watch = DivergenceWatch("c1")
    watch.recall(10, {"c1": "a", "c2": "b"})
    assert watch.open_places(VOTERS) == [10]
    assert watch.process_report("c3", 10, "a", VOTERS) == Divergence(10, ("c2",))
    assert watch.open_places(VOTERS) == []


def test_open_difference_outlives_the_places_that_come_after_it() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(1, "a")
    watch.process_report("c2", 1, "b", VOTERS)
    for log_index in range(2, 2 * INDEXES_MAX):
        watch.note_own(log_index, "a")
    assert watch.open_places(VOTERS) == [1]


def test_odd_one_is_needed_until_the_others_are_a_majority_with_one_digest() -> None:
    watch = DivergenceWatch("c1")
    watch.odd.add("c1")
    watch.note_own(10, "b")
    watch.process_report("c2", 10, "a", VOTERS)
    assert not watch.can_do_without(10, VOTERS)
    watch.process_report("c3", 10, ReportedDigest("a", origin="c2"), VOTERS)
    assert watch.can_do_without(10, VOTERS)
    assert not watch.can_do_without(11, VOTERS)


def test_state_is_vouched_for_by_a_majority_of_witnesses_and_by_no_copy() -> None:
    watch = DivergenceWatch("c1")
    watch.note_own(10, "a")
    assert watch.compare_own(10, VOTERS) is DigestComparison.OPEN
    watch.process_report("c2", 10, ReportedDigest("a", origin="c1"), VOTERS)
    assert watch.compare_own(10, VOTERS) is DigestComparison.OPEN
    watch.process_report("c3", 10, "a", VOTERS)
    assert watch.compare_own(10, VOTERS) is DigestComparison.AGREED
    other = DivergenceWatch("c1")
    other.process_report("c2", 10, "b", VOTERS)  # before this member has hashed its own
    other.note_own(10, "a")
    assert other.compare_own(10, VOTERS) is DigestComparison.DIFFERS


def test_copy_is_a_witness_once_all_that_are_sound_have_the_same() -> None:
    watch = DivergenceWatch("c2")
    watch.origins["c2"] = "c1"
    watch.note_own(10, "a")
    watch.process_report("c1", 10, "a", VOTERS)
    assert not watch.is_right(10, VOTERS)  # the third may know better
    watch.odd.add("c3")
    assert watch.is_right(10, VOTERS)


def test_word_of_a_state_that_was_given_up_is_void() -> None:
    watch = DivergenceWatch("c2")
    watch.note_own(5, "sound")
    watch.process_report("c2", 5, "sound", VOTERS)
    watch.process_report("c1", 5, "damaged", VOTERS)
    assert watch.open_places(VOTERS) == [5]
    watch.forget("c1")
    assert watch.open_places(VOTERS) == []
    watch.process_report("c3", 5, "sound", VOTERS)
    assert watch.odd == set()


def test_who_cannot_tell_whose_state_it_has_is_no_witness() -> None:
    reports = {
        "c1": ReportedDigest("x"),
        "c2": ReportedDigest("x", origin=UNKNOWN),
        "c3": ReportedDigest("y"),
    }
    assert majority_digest(reports, VOTERS) == ""
    assert majority_digest(reports | {"c2": ReportedDigest("x")}, VOTERS) == "x"
