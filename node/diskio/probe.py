"""Test whether a disk accepts bytes: a small synced write, one at a time. Apart from its contents.

Tested by tests/unit/node/membership/test_hung_disk.py.
"""

import errno
import threading
import time
from collections.abc import Callable

WAIT_S = 1.0  # for another probe to end: a synced write of a few bytes


class DiskProbe:
    """Calls `write` for its callers. `waits_since_s`: the start of an unfinished write, or None.

    The time is of the monotonic clock; any thread may read it.
    """

    def __init__(self, write: Callable[[], None]) -> None:
        """`write`: makes a few bytes durable, and removes them. Raises OSError."""
        self._write = write
        self._writing = threading.Lock()
        self.waits_since_s: float | None = None

    def __call__(self) -> None:
        """Raises OSError when the disk takes no bytes, TimeoutError while it has not taken those before.

        One at a time: a disk that hangs gets no more threads than one, however many ask.
        """
        if not self._writing.acquire(timeout=WAIT_S):
            raise TimeoutError(errno.ETIMEDOUT, "the disk has not finished the previous write")
        try:
            self.waits_since_s = time.monotonic()
            self._write()
        finally:
            self.waits_since_s = None
            self._writing.release()
