"""Syncs of a file behind whoever writes it: what came is made durable while more comes.

One sync of a file is under way at a time. What it made durable counts once it has ended well; what it raised
is raised to the writer, who must end it before it looks back, cuts the file, or closes it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from node.pools import started_pool

FLUSH_THREADS = 4  # syncs at a time in one process; more would only wait for the same disk


class FlushThreads:
    """The threads of one store. `close` waits for the syncs that run."""

    def __init__(self) -> None:
        self._pool = started_pool(FLUSH_THREADS, "flush")

    def behind(self) -> "Behind":
        """For one file."""
        return Behind(self._pool)

    def close(self) -> None:
        """No new ones are taken."""
        self._pool.shutdown(wait=True)


class Behind:
    """The sync of one file that is under way, if any. For one thread at a time."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._running: Future[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the disk is still at it."""
        return self._running is not None and not self._running.done()

    def begin(self, sync: Callable[[], None]) -> None:
        """Run `sync` in a thread; the one before was ended."""
        assert self._running is None
        self._running = self._pool.submit(sync)

    def end(self) -> bool:
        """Wait for it; whether there was one. Raises what it raised, once."""
        running, self._running = self._running, None
        if running is None:
            return False
        running.result()
        return True

    def drop(self) -> None:
        """Wait for it, whatever comes of it."""
        running, self._running = self._running, None
        if running is not None:
            wait([running])
