"""Choose the backups of a chain to keep, by the rules of restic. Pure.

The order is that of the log. A backup whose date does not fit into it was made while a clock was wrong, and a
damaged one may be all that is left of a state: both stay, and a person decides. A damaged one counts for no
rule, so that it never replaces a complete one. A tagged one stays as long as it has its tag, and counts too.

Each rule goes from the newest to the oldest backup and keeps the newest of each period, for the given number
of periods that have a backup. A backup stays if any rule keeps it. So `daily=7` are seven days with backups,
however long ago.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

DAMAGED: Final = "damaged"
OUT_OF_ORDER: Final = "dated out of order"
TAGGED: Final = "tag "


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


def reasons_to_keep(
    made_at: Sequence[datetime],
    rules: KeepRules,
    *,
    damaged: Collection[int] = (),
    tags: Sequence[str] = (),
) -> list[list[str]]:
    """For each backup, in the order of the log, the rules that keep it; [] for one that goes.

    `damaged`: the numbers of those that count for no rule. `tags`: the tag of each, "" for none. Days,
    weeks (from Monday, ISO 8601) and months are those of the zone that the moments are in.
    """
    whole = [number for number in range(len(made_at)) if number not in damaged]
    ordered = [whole[place] for place in in_order([made_at[number] for number in whole])]
    reasons: list[list[str]] = [[] for _ in made_at]
    for number, tag in enumerate(tags):
        if tag:
            reasons[number].append(f"{TAGGED}{tag}")
    for number in damaged:
        reasons[number].append(DAMAGED)
    for number in set(whole) - set(ordered):
        reasons[number].append(OUT_OF_ORDER)
    for number in whole[::-1][: rules.last]:
        reasons[number].append("last")
    for rule, period_of in _PERIODS:
        left: int = getattr(rules, rule)
        seen: set[tuple[int, ...]] = set()
        for number in reversed(ordered):
            period = period_of(made_at[number])
            if len(seen) < left and period not in seen:
                seen.add(period)
                reasons[number].append(rule)
    return reasons


def in_order(moments: Sequence[datetime]) -> list[int]:
    """Return the places of the longest part that never goes back in time: the others are dated out of order.

    Of several that are as long it is the one that ends earliest: a single date in the future is not in it.
    """
    ends: list[datetime] = []  # ends[n]: the earliest end of a part of n + 1 moments
    last: list[int] = []  # its place
    before: list[int] = []
    for place, at in enumerate(moments):
        length = bisect_right(ends, at)
        before.append(last[length - 1] if length else -1)
        ends[length:] = [at, *ends[length + 1 :]]
        last[length:] = [place, *last[length + 1 :]]
    found: list[int] = []
    place = last[-1] if last else -1
    while place >= 0:
        found.append(place)
        place = before[place]
    return found[::-1]
