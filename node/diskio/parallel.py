"""Runs parts of one piece of work side by side on free cores. Shared by upload files and their store.

The hashes let go of the interpreter's lock for as long as they work on a large buffer.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import wait

from node.diskio.executor import started_pool

THREADS_MAX = 8  # of one process: more large uploads at a time keep its cores busy anyhow


class ParallelParts:
    """Threads of one store, fewer than there are cores. For any thread; `close` waits for what runs."""

    def __init__(self) -> None:
        threads = min(THREADS_MAX, max(1, (os.cpu_count() or 1) - 1))
        self._pool = started_pool(threads, "parallel")
        self._free = threading.Semaphore(threads)

    def run(self, here: Callable[[], object], beside: Callable[[], object]) -> None:
        """Run both functions concurrently; return when both have ended.

        If no other thread is free, the second one runs in this thread, after `here`: work never waits for
        other callers. Raises the error of `here`, otherwise the error of the second one.
        """
        if not self._free.acquire(blocking=False):
            here()
            beside()
            return
        begun = self._pool.submit(self._freeing, beside)
        try:
            here()
        finally:
            wait([begun])
        begun.result()

    def close(self) -> None:
        """Reject new work, and wait for the end."""
        self._pool.shutdown(wait=True)

    def _freeing(self, part: Callable[[], object]) -> None:
        try:
            part()
        finally:
            self._free.release()
