"""When to stop and ask: what does away with this many blobs at once is more likely a mistake than the truth,
and so is a clock that is far from the others.

For the leader's runs, of all blobs, and for each node's passes, of its own.
"""

import statistics
from collections.abc import Iterable
from typing import Final

CLOCK_OFF_MAX_MS: Final = 60_000
CAUTION_SHARE: Final = 0.1
CAUTION_BLOBS: Final = 100  # fewer never are too many
CAUTION_S: Final = 7 * 86_400.0  # what has waited for an answer for so long goes without one


def is_too_many(going: int, blobs: int) -> bool:
    """Whether so many of so many blobs are more than goes without a question."""
    return going > CAUTION_BLOBS and going > blobs * CAUTION_SHARE


def clock_doubt(offsets_ms: Iterable[int]) -> str:
    """Why nothing may end because our clock says that its time is over; "" for no reason.

    `offsets_ms`: other clocks less ours. The median of all, ours among them, is taken for the truth; of an
    even number the earlier one, which ends less.
    """
    ahead_ms = statistics.median_high([0, *(-offset_ms for offset_ms in offsets_ms)])
    if ahead_ms <= CLOCK_OFF_MAX_MS:
        return ""
    return f"The clock of this coordinator is {ahead_ms // 1000} s ahead of the nodes' clocks."


def clock_behind_ms(offsets_ms: Iterable[int]) -> int:
    """How far our clock is behind, where that is more than a minute: what it dates would end too early.

    Told by the same median; of an even number the earlier one is taken, which leaves a clock alone that only
    half of the others contradict.
    """
    behind_ms = statistics.median_low([0, *offsets_ms])
    return behind_ms if behind_ms > CLOCK_OFF_MAX_MS else 0
