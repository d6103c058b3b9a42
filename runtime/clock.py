"""The clocks of this machine. Apart, so that imports show which code may read a clock.

Tested by tests/unit/coordinator/test_service_time.py.
"""

import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC. Never for ordering: the log orders things."""
    return time.time_ns() // 1_000_000


def boot_time_s() -> float:
    """Return the time of a clock that is never set, and that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
