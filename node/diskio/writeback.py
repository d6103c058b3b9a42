"""Syncs a file behind its writer, while more comes. Shared by upload files and their store.

One sync of a file is under way at a time. What it made durable counts once it has ended well; what it raised
is raised to the writer, who must end it before it looks back, cuts the file, or closes it. The last sync,
which the writer waits for, has little left to do: the disk had a head start.

Tested by tests/unit/node/diskio/test_head_start.py.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from node.diskio.durable import Disk
from node.diskio.executor import started_pool

FLUSH_THREADS = 4  # syncs at a time in one process; more would only wait for the same disk
HEAD_START_BYTES = 2 << 20  # written back at once
BEHIND_BYTES = 16 << 20  # so far behind it has enough to do without being told
END_BYTES = 32 << 20  # except for the last bytes, which a caller waits for


class FlushThreads:
    """The threads of one store. `close` waits for the syncs that run."""

    def __init__(self) -> None:
        self._pool = started_pool(FLUSH_THREADS, "flush")

    def for_file(self) -> "BackgroundFlush":
        """For one file."""
        return BackgroundFlush(self._pool)

    def close(self) -> None:
        """Reject new requests."""
        self._pool.shutdown(wait=True)


class BackgroundFlush:
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
        """Wait for it, and ignore its result."""
        running, self._running = self._running, None
        if running is not None:
            wait([running])


class HeadStart:
    """Start writeback on a disk before a sync; this makes nothing durable.

    Little content is then on the disk when its sync begins, and so is the end of a large one. In the middle
    of a long body, a disk that is behind gets no request: it is busy enough, and the writer would lose time.
    """

    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._begun_bytes = 0

    def note_written(self, stop: int, durable_bytes: int, size_bytes: int | None) -> None:
        """Note that the file has this many bytes; `size_bytes`: its final size, if that is known.

        Raises OSError for bytes that the disk refuses, as their sync would.
        """
        start = max(self._begun_bytes, durable_bytes)
        is_amid = size_bytes is None or size_bytes - stop > END_BYTES
        if stop - start < HEAD_START_BYTES or (is_amid and stop - durable_bytes > BEHIND_BYTES):
            return
        self._disk.write_out(self._descriptor, start, stop - start)
        self._begun_bytes = stop

    def note_sync(self, stop: int) -> None:
        """A sync is at all that lies before this offset."""
        self._begun_bytes = stop

    def cut(self, stop: int) -> None:
        """Treat the bytes after this offset as new."""
        self._begun_bytes = min(self._begun_bytes, stop)
