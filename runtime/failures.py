"""The memory of recent failures, with growing pauses between attempts. No I/O; the clock is passed in.

After a failure follows a pause, which doubles each time, and then one attempt; a success ends it. So a broken
item costs only one attempt now and then, and delays nothing else.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

REST_S_MIN: Final = 2.0
REST_S_MAX: Final = 300.0
FORGOTTEN_S: Final = 3600.0  # after its last failure: it was tried since if there was anything to do
KEYS_MAX: Final = 10_000  # of one kind
FAILING_MIN: Final = 2  # failures in a row before the operator is informed
SHOWN_S_MIN: Final = 20.0  # at least this long; due work is retried sooner


@dataclass(slots=True)
class _Record:
    """How often something failed in a row, with what the last time, and until when it rests."""

    failures: int = 0
    reason: str = ""
    failed_at_s: float = 0.0
    rest_s: float = 0.0


class Backoff:
    """Recent failures by key. The last KEYS_MAX failed keys are kept."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        rest_s_min: float = REST_S_MIN,
        rest_s_max: float = REST_S_MAX,
    ) -> None:
        """`rest_s_min`: after the first failure; `rest_s_max`: after any."""
        self._clock_s = clock_s
        self._rest_s_min, self._rest_s_max = rest_s_min, rest_s_max
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def note_failure(self, key: str, reason: str) -> None:
        """Record a failure. A failure during the pause belongs to the same event and is ignored."""
        if self.is_resting(key):
            return
        record = self._records.setdefault(key, _Record())
        self._records.move_to_end(key)
        while len(self._records) > KEYS_MAX:
            self._records.popitem(last=False)
        record.failures += 1
        record.reason, record.failed_at_s = reason, self._clock_s()
        record.rest_s = min(max(2 * record.rest_s, self._rest_s_min), self._rest_s_max)

    def note_success(self, key: str) -> None:
        """All is forgotten."""
        self._records.pop(key, None)

    def clear(self) -> None:
        """Forget all failures."""
        self._records.clear()

    def is_resting(self, key: str) -> bool:
        """Whether it has failed just now."""
        return self.left_s(key) > 0

    def left_s(self, key: str) -> float:
        """Return for how many seconds more it rests; 0 if it may be tried now."""
        record = self._records.get(key)
        return 0.0 if record is None else max(0.0, record.failed_at_s + record.rest_s - self._clock_s())

    def failures(self, key: str) -> int:
        """How often in a row, the last time within FORGOTTEN_S."""
        record = self._records.get(key)
        if record is None or self._clock_s() >= record.failed_at_s + FORGOTTEN_S:
            return 0
        return record.failures

    def failing_keys(self) -> dict[str, tuple[int, str]]:
        """Return the keys that have recently failed FAILING_MIN times in a row or more.

        Each has its number of failures and the last reason. If there was work for it, it was tried again
        within twice its pause; so a node that is back but has no work is not reported forever.
        """
        return {
            key: (record.failures, record.reason)
            for key, record in self._records.items()
            if record.failures >= FAILING_MIN
            and self._clock_s() < record.failed_at_s + max(2 * record.rest_s, SHOWN_S_MIN)
        }
