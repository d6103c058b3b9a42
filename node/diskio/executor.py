"""The threads that do blocking disk work, so that the event loop never waits for a disk.

A running job is always waited for: a cancelled caller continues only when the thread has released the files,
so that no lock or descriptor is reused under a running thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, ParamSpec, Protocol, TypeVar

from ca.errors import Unavailable

# Reads and uploads that may wait for the disk at once; more only queue up behind the same disk.
DISK_THREADS = 24
DISK_THREAD = "disk"  # how their names begin
# that read a file of any size, to hash an upload again: the other threads are for everything else
LONG_JOBS_MAX = 3


class Closable(Protocol):
    """An object that holds descriptors."""

    def close(self) -> None:
        """Give them back. May block."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRequest:
    """A request that waits for the disk, and its connection."""

    transport: asyncio.BaseTransport | None


_P = ParamSpec("_P")
_T = TypeVar("_T")
_O = TypeVar("_O", bound=Closable | None)


class DiskWorkers:
    """A named pool of DISK_THREADS threads."""

    def __init__(self) -> None:
        """Raises Unavailable when the threads cannot be started: now, and never later."""
        self._pool = started_pool(DISK_THREADS, DISK_THREAD)
        self._long = asyncio.Semaphore(LONG_JOBS_MAX)
        self._lock = threading.Lock()
        self._waiting = 0
        self._guarded: set[WaitingRequest] = set()
        self.hangs: Callable[[], bool] = lambda: False  # see `DiskWatch.hangs`

    async def run(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return or raise the result of `job`.

        If the caller is cancelled, the job ends first and its result is lost; see `open`.
        """
        return await _ended(asyncio.wrap_future(self.begin(job, *args, **kwargs)))

    async def answers(self) -> None:
        """Returns when one of the threads has taken a job."""
        await self.run(_nothing)

    async def run_long(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a job that may take minutes: LONG_JOBS_MAX of them have a thread, in their order.

        The limit leaves threads for short jobs.
        """
        async with self._long:
            return await self.run(job, *args, **kwargs)

    async def open(self, job: Callable[_P, _O], *args: _P.args, **kwargs: _P.kwargs) -> _O:
        """Return the object that `job` opens, or None; the caller closes it. Raises the errors of `job`.

        If the caller is cancelled, it is closed here.
        """
        running = asyncio.wrap_future(self.begin(job, *args, **kwargs))
        try:
            return await _ended(running)
        except asyncio.CancelledError:
            opened = None if running.cancelled() or running.exception() else running.result()
            if opened is not None:
                await _outlast(asyncio.wrap_future(self.begin(opened.close)))
            raise

    def begin(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have it done; the caller sees to it that its end is waited for. Raises RuntimeError after `close`.

        Any thread may ask for it.
        """

        def run_begun() -> _T:
            self._count_waiting(-1)
            return job(*args, **kwargs)

        self._count_waiting(1)
        try:
            return self._pool.submit(run_begun)
        except RuntimeError:
            self._count_waiting(-1)
            raise

    @contextmanager
    def waited_for(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """Whose client waits for a read within: it is broken off while the disk hangs, and can ask elsewhere.

        A job that has begun cannot be given up.
        """
        waiting = WaitingRequest(transport)
        self._guarded.add(waiting)
        try:
            yield
        finally:
            self._guarded.discard(waiting)

    def break_off(self) -> None:
        """End the connections of those who wait for this disk."""
        for waiting in self._guarded:
            if isinstance(waiting.transport, asyncio.WriteTransport):
                waiting.transport.abort()

    @property
    def has_waiting(self) -> bool:
        """Whether jobs wait for a thread. Any thread may ask."""
        return self._waiting > 0

    def close(self) -> None:
        """Wait for the running jobs; new ones are rejected."""
        self._pool.shutdown(wait=True)

    def _count_waiting(self, change: int) -> None:
        with self._lock:
            self._waiting += change


async def write_overlapped(
    disk: DiskWorkers, pieces: AsyncGenerator[_T, None], write: Callable[[_T], object]
) -> None:
    """Pass every piece to `write` in a thread, one at a time and in order, while the next ones are awaited.

    A piece is written before the second one after it is requested; the next begins without a turn of the
    event loop. A write that fails ends the requests at once, and its error is raised, even if other errors
    follow. By then no write is running, none has begun after the failed one, and `pieces` is closed.
    """
    latest: asyncio.Future[None] | None = None
    async with aclosing(pieces):
        try:
            async with asyncio.timeout(None) as asking:  # its time has come when a write fails
                line = _Line(disk, write, asking)
                async for piece in pieces:
                    earlier, latest = latest, line.put(piece)
                    del piece  # its memory is the line's
                    if earlier is not None:
                        await asyncio.shield(earlier)
                if latest is not None:
                    await asyncio.shield(latest)
        except Exception as error:
            if latest is not None:
                await _outlast(latest)
                failure = latest.exception()
                if failure is not None and failure is not error:
                    raise failure from (failure.__cause__ if asking.expired() else error)
            raise
        finally:
            if latest is not None:
                await _outlast(latest)


def _nothing() -> None:
    """A job that shows that a thread takes jobs."""


class _Line(Generic[_T]):
    """Pieces that wait for a thread. It continues with the next one directly, unless other jobs wait."""

    def __init__(self, disk: DiskWorkers, write: Callable[[_T], object], asking: asyncio.Timeout) -> None:
        self._disk, self._write, self._asking = disk, write, asking
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[_T, asyncio.Future[None]]] = deque()
        self._is_served = False  # by a thread, or one will come
        self._failure: BaseException | None = None

    def put(self, piece: _T) -> asyncio.Future[None]:
        """Done when it is written; fails as the first of the line that failed."""
        ended = self._loop.create_future()
        ended.add_done_callback(asyncio.Future.exception)  # seen: who waits for it may be cancelled
        with self._lock:
            self._waiting.append((piece, ended))
            was_served, self._is_served = self._is_served, True
        if not was_served:
            self._disk.begin(self._serve)
        return ended

    def _serve(self) -> None:
        """Run jobs. Runs in a thread."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_served = False
                    return
                piece, ended = self._waiting.popleft()
            if self._failure is None:
                try:
                    self._write(piece)
                except BaseException as error:  # noqa: BLE001  # raised in the waiting task
                    self._failure = error
            self._loop.call_soon_threadsafe(self._settle, ended, self._failure)
            if self._disk.has_waiting and self._serve_later():
                return

    def _serve_later(self) -> bool:
        """Whether others may go first: not where no thread would come back any more."""
        try:
            self._disk.begin(self._serve)
        except RuntimeError:
            return False
        return True

    def _settle(self, ended: asyncio.Future[None], failure: BaseException | None) -> None:
        if failure is None:
            ended.set_result(None)
            return
        ended.set_exception(failure)
        with suppress(RuntimeError):  # the asking has ended, or ends already
            self._asking.reschedule(self._loop.time())


async def _ended(running: asyncio.Future[_T]) -> _T:
    """Its result, or what it raises. CancelledError comes after its end."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _outlast(running)
        raise


async def _outlast(running: asyncio.Future[_T]) -> None:
    """Wait for its end, even if the caller is cancelled; CancelledError is raised after it."""
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cancelled = error
    if not running.cancelled():
        running.exception()  # marks it as seen; the caller is leaving anyway
    if cancelled is not None:
        raise cancelled


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """The pool, whose threads are named after it. Raises Unavailable when they cannot be started.

    A pool that cannot start a thread for a job says so only when it has queued the job, which others of its
    threads may do all the same. Of this one `submit` fails only after its shutdown, and queues nothing then.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    met = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(met.wait)
        met.wait()
    except BaseException as error:
        met.abort()
        pool.shutdown(wait=True)
        if isinstance(error, RuntimeError):
            raise Unavailable(
                f"The system allows fewer than {threads} more threads for this process."
            ) from error
        raise
    return pool
