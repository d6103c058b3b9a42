"""Which backups of a project stay: the rules of restic. Pure.

Each rule goes from the newest to the oldest and keeps the newest of each period, for so many periods that
have a backup. What any rule keeps stays. So `daily=7` are seven days with backups, however long ago.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRules:
    """How many each rule keeps; 0 keeps none."""

    last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0

    @property
    def keep_nothing(self) -> bool:
        """Whether everything would go."""
        return not (self.last or self.daily or self.weekly or self.monthly)


_PERIODS: Final[Sequence[tuple[str, Callable[[datetime], tuple[int, ...]]]]] = (
    ("daily", lambda moment: (moment.year, moment.month, moment.day)),
    ("weekly", lambda moment: tuple(moment.isocalendar())[:2]),
    ("monthly", lambda moment: (moment.year, moment.month)),
)


def reasons_to_keep(made_at: Sequence[datetime], rules: KeepRules) -> list[list[str]]:
    """For each backup, in the order given, the rules that keep it; [] for one that goes.

    Days, weeks (from Monday, ISO 8601) and months are those of the zone that the moments are in.
    """
    newest_first = sorted(range(len(made_at)), key=lambda number: made_at[number], reverse=True)
    reasons: list[list[str]] = [[] for _ in made_at]
    for number in newest_first[: rules.last]:
        reasons[number].append("last")
    for rule, period_of in _PERIODS:
        left: int = getattr(rules, rule)
        seen: set[tuple[int, ...]] = set()
        for number in newest_first:
            period = period_of(made_at[number])
            if len(seen) < left and period not in seen:
                seen.add(period)
                reasons[number].append(rule)
    return reasons
