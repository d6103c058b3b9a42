"""The rules of what stays."""

from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from deploy.gns3.prune import DAMAGED, KeepRules, in_order, reasons_to_keep

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a Friday


def kept(days_ago: list[float], rules: KeepRules, *damaged: int) -> list[float]:
    times = [NOON - timedelta(days=days) for days in days_ago]
    found = reasons_to_keep(times, rules, damaged=damaged)
    return [days for days, reasons in zip(days_ago, found, strict=True) if reasons]


def test_last_are_the_newest() -> None:
    assert kept([5, 3, 2, 1], KeepRules(last=2)) == [2, 1]


def test_daily_keeps_the_newest_of_each_day_that_has_one() -> None:
    assert kept([41, 40.1, 40, 1.2, 1, 0.2, 0.1], KeepRules(daily=3)) == [40, 1, 0.1]


def test_weeks_begin_on_monday() -> None:
    monday, sunday = 4, 5
    assert kept([sunday, monday, 0], KeepRules(weekly=5)) == [sunday, 0]


def test_backup_of_the_future_takes_no_place_and_stays() -> None:
    ahead = -3
    assert kept([2, 1, ahead, 0.3, 0.2], KeepRules(last=1)) == [ahead, 0.2]
    assert kept([2, ahead, 1], KeepRules(last=1)) == [ahead, 1]
    assert kept([2, 1, ahead, 0.3, 0.2, 0.1], KeepRules(daily=2)) == [1, ahead, 0.1]


def test_backup_that_was_dated_too_early_stays() -> None:
    long_ago = 3000
    assert kept([3, 2, long_ago, 1], KeepRules(last=1)) == [long_ago, 1]
    assert kept([3, 2, 1, long_ago], KeepRules(daily=1)) == [1, long_ago]


def test_damaged_backup_counts_for_no_rule_and_stays() -> None:
    assert kept([3, 2, 1], KeepRules(last=1), 2) == [2, 1]
    assert kept([1.2, 1.1, 1], KeepRules(daily=1), 2) == [1.1, 1]
    assert kept([3, 2, 1], KeepRules(monthly=1), 0, 1, 2) == [3, 2, 1]


def test_tagged_backup_stays_and_counts() -> None:
    times = [NOON - timedelta(days=days) for days in (3, 2, 1)]
    assert reasons_to_keep(times, KeepRules(last=1), tags=["golden", "", ""]) == [
        ["tag golden"],
        [],
        ["last"],
    ]
    assert reasons_to_keep(times, KeepRules(last=1), tags=["", "", "v1"]) == [[], [], ["tag v1", "last"]]


@given(st.lists(st.integers(0, 9), max_size=7))
def test_in_order_is_the_longest_part_that_never_goes_back(days: list[int]) -> None:
    moments = [NOON + timedelta(days=day) for day in days]
    found = in_order(moments)
    assert found == sorted(set(found))
    assert all(days[one] <= days[other] for one, other in pairwise(found))
    longest = max(
        len(part)
        for length in range(len(days) + 1)
        for part in combinations(days, length)
        if list(part) == sorted(part)
    )
    assert len(found) == longest


def test_weeks_of_the_turn_of_the_year_are_those_of_iso_8601() -> None:
    times = [datetime(2026, 12, 31, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)]
    assert reasons_to_keep(times, KeepRules(weekly=5)) == [[], ["weekly"]]


def test_monthly_keeps_the_newest_of_each_month() -> None:
    assert kept([60, 25, 15, 0], KeepRules(monthly=2)) == [25, 0]


def test_what_any_rule_keeps_stays() -> None:
    found = reasons_to_keep([NOON], KeepRules(last=1, daily=1, weekly=1, monthly=1))
    assert found == [["last", "daily", "weekly", "monthly"]]


@given(
    st.lists(st.floats(0, 4000), min_size=1, max_size=60),
    st.sets(st.integers(0, 59)),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_newest_whole_one_stays_under_any_rule_and_no_rule_keeps_too_many(
    days_ago: list[float], lost: set[int], last: int, daily: int, weekly: int, monthly: int
) -> None:
    rules = KeepRules(last=last, daily=daily, weekly=weekly, monthly=monthly)
    times = [NOON - timedelta(days=days) for days in days_ago]
    damaged = {number for number in lost if number < len(times)}
    found = reasons_to_keep(times, rules, damaged=damaged)
    whole = [number for number in range(len(times)) if number not in damaged]
    assert all(found[number] == [DAMAGED] for number in damaged)
    if whole and not rules.keep_nothing:
        assert found[whole[-1]]
        assert [DAMAGED] not in [found[number] for number in whole]
    for rule in ("last", "daily", "weekly", "monthly"):
        assert sum(rule in reasons for reasons in found) <= getattr(rules, rule)
