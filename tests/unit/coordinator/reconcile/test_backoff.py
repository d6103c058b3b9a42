"""Who has failed at copies rests, longer each time, and is tried again one copy at a time."""

from dataclasses import replace

from coordinator.reconcile.backoff import CopyFailures
from coordinator.reconcile.facts import Copy, Facts
from metadata.model.placement import Candidate
from runtime.failures import FORGOTTEN_S, KEYS_MAX, REST_S_MAX, REST_S_MIN, SHOWN_S_MIN, Backoff

WHY = "answered 500 internal"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def copy(number: int, target: str = "n3", sources: tuple[str, ...] = ("n1", "n2")) -> Copy:
    return Copy(f"{number:064x}", 5, target, sources)


def takers(failures: CopyFailures, number: int) -> list[str]:
    """Who may take this blob now, of three that could."""
    candidates = tuple(Candidate(name, "", 100, 50, 100) for name in ("n1", "n2", "n3"))
    facts = Facts(nodes=(), candidates=candidates, reachable=frozenset(), replicas=3, write_quorum=2)
    return [each.node_id for each in failures.eligible(facts, f"{number:064x}").candidates]


def test_rests_double_up_to_a_bound_and_a_success_ends_them() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    rests = []
    for _ in range(12):
        backoff.note_failure("n1", WHY)
        began_s = clock.now_s
        while backoff.is_resting("n1"):
            clock.now_s += 1.0
        rests.append(clock.now_s - began_s)
    assert rests[:4] == [REST_S_MIN * 2**step for step in range(4)]
    assert rests[-3:] == [REST_S_MAX] * 3
    assert backoff.failures("n1") == 12
    backoff.note_success("n1")
    assert backoff.failures("n1") == 0


def test_failures_of_one_event_count_once() -> None:
    backoff = Backoff(Clock())
    for _ in range(50):
        backoff.note_failure("n1", WHY)
    assert backoff.failures("n1") == 1
    assert backoff.failing_keys() == {}


def test_what_failed_last_is_remembered_within_a_bound_of_number_and_time() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for number in range(KEYS_MAX + 10):
        backoff.note_failure(f"{number}", WHY)
    assert not backoff.is_resting("9")
    assert backoff.is_resting("10")
    assert backoff.is_resting(f"{KEYS_MAX + 9}")
    clock.now_s += FORGOTTEN_S
    assert backoff.failures("10") == 0


def test_one_blob_that_is_refused_says_nothing_of_the_node() -> None:
    clock = Clock()
    failures = CopyFailures(clock)
    for _ in range(5):
        failures.note_failed_target(copy(1), WHY, has_answered=True)
        clock.now_s += REST_S_MAX
    failures.note_failed_target(copy(1), WHY, has_answered=True)
    assert takers(failures, 1) == ["n1", "n2"]
    assert takers(failures, 2) == ["n1", "n2", "n3"]
    assert failures.sentences() == {}
    failures.note_failed_target(copy(2), WHY, has_answered=True)
    assert takers(failures, 3) == ["n1", "n2"]


def test_node_that_does_not_answer_is_passed_over_at_once() -> None:
    failures = CopyFailures(Clock())
    failures.note_failed_target(copy(1), "TimeoutError", has_answered=False)
    assert takers(failures, 2) == ["n1", "n2"]
    assert failures.is_passed_over(copy(2))


def test_node_that_has_failed_is_tried_with_one_copy_at_a_time_and_is_well_after_a_success() -> None:
    clock = Clock()
    failures = CopyFailures(clock)
    failures.note_failed_target(copy(1), "TimeoutError", has_answered=False)
    clock.now_s += REST_S_MIN
    assert "n3" in takers(failures, 2)
    failures.note_begin(copy(2))
    assert "n3" not in takers(failures, 3)
    failures.note_made(copy(2), [])
    assert "n3" in takers(failures, 3)
    failures.note_end(copy(2))


def test_node_that_fails_again_and_again_is_told_with_a_sentence_until_it_succeeds() -> None:
    clock = Clock()
    failures = CopyFailures(clock)
    told = {"n3": "failed 2 times in a row to create its assigned replicas (answered 500 internal)"}
    for number in range(3):
        clock.now_s += REST_S_MAX
        failures.note_failed_target(copy(number), WHY, has_answered=True)
    assert failures.sentences() == told
    failures.note_made(copy(9), [])
    assert failures.sentences() == {}


def test_node_that_failed_and_of_which_nothing_is_wanted_any_more_is_told_no_longer() -> None:
    clock = Clock()
    failures = CopyFailures(clock)
    for number in range(3):
        clock.now_s += REST_S_MAX
        failures.note_failed_target(copy(number), WHY, has_answered=True)
    clock.now_s += SHOWN_S_MIN - 1
    assert list(failures.sentences()) == ["n3"]
    clock.now_s += 1
    assert failures.sentences() == {}


def test_who_rests_is_tried_again_when_somebody_says_so_or_the_node_was_away() -> None:
    failures = CopyFailures(Clock())
    failures.note_failed_target(copy(1), WHY, has_answered=False)
    failures.note_failed_sources(copy(2), ["n1"], WHY)
    failures.answers.note_failure("n3", WHY)
    failures.forget_node("n3")
    assert (takers(failures, 3), failures.answers.is_resting("n3")) == (["n1", "n2", "n3"], False)
    assert takers(failures, 1) == ["n1", "n2"]  # this copy failed
    assert takers(failures, 2) == []
    failures.forget()
    assert [takers(failures, number) for number in (1, 2)] == [["n1", "n2", "n3"]] * 2


def test_sources_that_fail_are_named_only_where_no_other_is() -> None:
    clock = Clock()
    failures = CopyFailures(clock)
    for number in range(2):
        failures.note_made(copy(number), ["n1"])
    assert failures.with_sources(copy(3)).sources == ("n2",)
    assert failures.with_sources(copy(3, sources=("n1",))).sources == ("n1",)
    assert failures.with_sources(replace(copy(3), needs_all=True)).sources == ("n1", "n2")
    clock.now_s += REST_S_MIN
    assert failures.with_sources(copy(3)).sources == ("n1", "n2")
    failures.note_made(copy(3), ["n1"])
    assert "n1" in failures.sentences()
    failures.note_made(copy(4, sources=("n1",)), [])
    assert failures.sentences() == {}


def test_target_is_not_blamed_for_sources_and_the_blob_rests() -> None:
    failures = CopyFailures(Clock())
    for number in range(5):
        failures.note_failed_sources(copy(number), ["n1", "n2"], "answered 503 unavailable")
    assert takers(failures, 4) == []
    assert takers(failures, 5) == ["n1", "n2", "n3"]
