"""When a pass stops and asks an operator. Shared by coordinators and nodes, so that both stop alike.

What does away with this many blobs at once is, and so is a clock that is far from the others.

For the leader's runs, of all blobs, and for each node's passes, of its own.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

# Two clocks that differ by no more from most others' differ by less from each other than tokens are taken
# before their time (`ca.usertoken.LEEWAY_S`, 30 s): what one leader mints the next one takes.
CLOCK_OFF_MAX_MS: Final = 10_000
SAFETY_SHARE_MAX: Final = 0.1
SAFETY_BLOBS_MAX: Final = 100  # fewer never are too many
SAFETY_WAIT_S: Final = 7 * 86_400.0  # what has waited for an answer for so long goes without one


def is_too_many(going: int, blobs: int) -> bool:
    """Whether so many of so many blobs are more than goes without a question."""
    return going > SAFETY_BLOBS_MAX and going > blobs * SAFETY_SHARE_MAX


def clock_doubt(offsets_ms: Iterable[int]) -> str:
    """Why nothing may end because our clock says that its time is over; "" for no reason.

    `offsets_ms`: other clocks less ours. The median of all, ours among them, is taken for the truth; of an
    even number the earlier one, which ends less.
    """
    ahead_ms = statistics.median_high([0, *(-offset_ms for offset_ms in offsets_ms)])
    if ahead_ms <= CLOCK_OFF_MAX_MS:
        return ""
    return f"The clock of this coordinator is {ahead_ms // 1000} s ahead of most other coordinators."


def are_split(offsets_ms: Sequence[int]) -> bool:
    """Whether as many of these clocks are far from ours as are not, ours among them: then none is right."""
    off = sum(abs(offset_ms) > CLOCK_OFF_MAX_MS for offset_ms in offsets_ms)
    return 2 * off == len(offsets_ms) + 1


def correction_ms(offsets_ms: Iterable[int]) -> int:
    """What our clock lacks of the time that most clocks show; 0 while no majority calls it wrong.

    `offsets_ms`: other clocks less ours. The median of all, ours among them; of an even number the one that
    is closer to ours. So there is no verdict of fewer than three clocks, nor where they are split in halves;
    where most are wrong together, they are right.
    """
    clocks_ms = [0, *offsets_ms]
    low_ms, high_ms = statistics.median_low(clocks_ms), statistics.median_high(clocks_ms)
    closest_ms = low_ms if low_ms > 0 else high_ms if high_ms < 0 else 0
    return closest_ms if abs(closest_ms) > CLOCK_OFF_MAX_MS else 0
