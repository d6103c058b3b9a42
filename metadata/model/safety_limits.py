"""When a pass stops and asks an operator. Shared by coordinators and nodes, so that both stop alike.

What does away with this many blobs at once is, and so is a clock that is far from the others.

For the leader's runs, of all blobs, and for each node's passes, of its own.

Tested by tests/unit/coordinator/reconcile/test_gc_safety_limits.py.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

# Two clocks within this bound of most others differ by less from each other than the tolerance of tokens
# (`ca.usertoken.LEEWAY_S`, 30 s): the next leader accepts what one leader mints.
CLOCK_OFF_MAX_MS: Final = 10_000
SAFETY_SHARE_MAX: Final = 0.1
SAFETY_BLOBS_MAX: Final = 100  # fewer never are too many
SAFETY_WAIT_S: Final = 7 * 86_400.0  # a run that has waited this long for an answer continues without one


def is_too_many(going: int, blobs: int) -> bool:
    """Return whether deleting this many of these blobs exceeds the safety limit."""
    return going > SAFETY_BLOBS_MAX and going > blobs * SAFETY_SHARE_MAX


def clock_doubt(offsets_ms: Iterable[int]) -> str:
    """Return why nothing may expire by our clock, or "" for no reason.

    `offsets_ms`: other clocks minus ours. The median of all clocks, including ours, counts as the true time;
    of an even number the earlier one, by which less expires.
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
    """Return the difference from our clock to that of most others; 0 while no majority calls it wrong.

    `offsets_ms`: other clocks minus ours. The result is the median of all, including ours; of an even number
    the one that is closer to ours. So there is no verdict with fewer than three clocks, nor if they are split
    in halves. If most are wrong in the same way, they win.
    """
    clocks_ms = [0, *offsets_ms]
    low_ms, high_ms = statistics.median_low(clocks_ms), statistics.median_high(clocks_ms)
    closest_ms = low_ms if low_ms > 0 else high_ms if high_ms < 0 else 0
    return closest_ms if abs(closest_ms) > CLOCK_OFF_MAX_MS else 0
