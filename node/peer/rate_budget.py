"""The number of bytes per second that this node spends on its replicas. Shared by pulls and scrubbing.

One rate for all of them. While any worker of the node transfers clients' bytes, the rate is halved each
second, down to a minimum that still reads a large disk within a month; without such transfers it doubles
again. Unused budget does not add up.

Tested by tests/unit/node/custody/test_scrub.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

RATE_MAX: Final = 400_000_000  # bytes per second: what one good disk gives, and more than a gigabit wire
RATE_MIN: Final = 20_000_000  # 50 TB in 30 days
BUSY_BYTES_PER_S: Final = 100_000  # of clients: 25 small files, whose readers feel it as well
LOOK_S: Final = 1.0
STEPS_S_MAX: Final = 30.0  # that one look makes up for: enough to come from any rate to any other
WAIT_S_MAX: Final = 1.0  # in one sleep: then the rate is looked at again


class Budget:
    """Bytes per second, for one event loop. `client_bytes` returns the total of bytes from and to clients."""

    def __init__(
        self,
        client_bytes: Callable[[], float] = lambda: 0.0,
        *,
        rate_max: float = RATE_MAX,
        rate_min: float = RATE_MIN,
    ) -> None:
        assert 0 < rate_min <= rate_max
        self._client_bytes = client_bytes
        self._rate_max, self._rate_min = rate_max, rate_min
        self._rate = rate_max
        self._looked_at_s = float("-inf")
        self._seen_bytes = 0.0
        self._free_at_s = float("-inf")  # when all bytes so far are within the budget

    @property
    def rate(self) -> float:
        """Bytes per second now."""
        return self._rate

    def observe(self, at_s: float) -> None:
        """Take the clients' bytes since the last look into account; `at_s` is any steady clock's."""
        passed_s = at_s - self._looked_at_s
        if passed_s < LOOK_S:
            return
        seen_bytes = self._client_bytes()
        is_busy = (seen_bytes - self._seen_bytes) / passed_s > BUSY_BYTES_PER_S
        self._looked_at_s, self._seen_bytes = at_s, seen_bytes
        factor = 2.0 ** (min(passed_s, STEPS_S_MAX) // LOOK_S)  # no check in between means no bytes either
        if is_busy:
            self._rate = max(self._rate / factor, self._rate_min)
        else:
            self._rate = min(self._rate * factor, self._rate_max)

    async def take(self, size_bytes: int) -> None:
        """Wait until this many bytes may be read or requested, in the order of the calls."""
        clock = asyncio.get_running_loop().time
        self.observe(clock())
        begins_at_s = max(self._free_at_s, clock())
        self._free_at_s = begins_at_s + size_bytes / self._rate
        while (wait_s := begins_at_s - clock()) > 0:
            await asyncio.sleep(min(wait_s, WAIT_S_MAX))
            self.observe(clock())
