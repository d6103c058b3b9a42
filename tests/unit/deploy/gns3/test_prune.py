"""The rules of what stays."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from deploy.gns3.prune import KeepRules, reasons_to_keep

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a Friday


def kept(days_ago: list[float], rules: KeepRules) -> list[float]:
    times = [NOON - timedelta(days=days) for days in days_ago]
    found = reasons_to_keep(times, rules)
    return [days for days, reasons in zip(days_ago, found, strict=True) if reasons]


def test_last_are_the_newest() -> None:
    assert kept([5, 1, 3, 2], KeepRules(last=2)) == [1, 2]


def test_daily_keeps_the_newest_of_each_day_that_has_one() -> None:
    assert kept([0.1, 0.2, 1, 1.2, 40, 40.1, 41], KeepRules(daily=3)) == [0.1, 1, 40]


def test_weeks_begin_on_monday() -> None:
    monday, sunday = 4, 5
    assert kept([0, monday, sunday], KeepRules(weekly=5)) == [0, sunday]


def test_weeks_of_the_turn_of_the_year_are_those_of_iso_8601() -> None:
    times = [datetime(2026, 12, 31, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)]
    assert reasons_to_keep(times, KeepRules(weekly=5)) == [[], ["weekly"]]


def test_monthly_keeps_the_newest_of_each_month() -> None:
    assert kept([0, 15, 25, 60], KeepRules(monthly=2)) == [0, 25]


def test_what_any_rule_keeps_stays() -> None:
    found = reasons_to_keep([NOON], KeepRules(last=1, daily=1, weekly=1, monthly=1))
    assert found == [["last", "daily", "weekly", "monthly"]]


@given(
    st.lists(st.floats(0, 4000), min_size=1, max_size=60, unique=True),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_newest_stays_under_any_rule_and_no_rule_keeps_too_many(
    days_ago: list[float], last: int, daily: int, weekly: int, monthly: int
) -> None:
    rules = KeepRules(last=last, daily=daily, weekly=weekly, monthly=monthly)
    times = [NOON - timedelta(days=days) for days in days_ago]
    found = reasons_to_keep(times, rules)
    assert bool(found[times.index(max(times))]) is not rules.keep_nothing
    for rule in ("last", "daily", "weekly", "monthly"):
        assert sum(rule in reasons for reasons in found) <= getattr(rules, rule)
