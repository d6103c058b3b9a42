"""The wall clock, read in one place: whatever must not read a clock does not import this."""

import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC. Never for ordering: the log orders things."""
    return time.time_ns() // 1_000_000
