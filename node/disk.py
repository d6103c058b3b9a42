"""The threads that do blocking disk work, so that the event loop never waits for a disk.

A job that has begun is always waited for: whoever is cancelled meanwhile goes on only when its thread has
let go of the files, so no lock or descriptor is given away under a running thread.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, ParamSpec, TypeVar

# Reads and uploads that may wait for the disk at once, an upload in two of them; more only queue up behind
# the same disk.
DISK_THREADS = 24

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DiskWorkers:
    """A named pool of DISK_THREADS threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")

    async def run(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What `job` returns or raises.

        When the caller is cancelled, the job ends first and its result is lost.
        """
        running = asyncio.wrap_future(self.begin(job, *args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await _outlast(running)
            raise

    def begin(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have it done; the caller sees to it that its end is waited for."""
        return self._pool.submit(job, *args, **kwargs)

    def close(self) -> None:
        """Wait for the jobs that run; no new ones are taken."""
        self._pool.shutdown(wait=True)


async def write_overlapped(
    disk: DiskWorkers, pieces: AsyncGenerator[_T, None], write: Callable[[_T], object]
) -> None:
    """Hand every piece to `write` in a thread, one at a time and in order, while the next ones are awaited.

    A piece is written before the second one after it is asked for; the next begins without a turn of the
    event loop. A write that fails ends the asking at once, and is what is raised, whatever else goes wrong.
    By then no write runs any more, none has begun after one that failed, and `pieces` is closed.
    """
    latest: _Writing | None = None
    async with aclosing(pieces):
        try:
            while (piece := await _next(pieces, latest)) is not None:
                earlier, latest = latest, _Writing(disk, latest, write, piece)
                if earlier is not None:
                    await asyncio.shield(earlier.ended)
            if latest is not None:
                await asyncio.shield(latest.ended)
        except Exception as error:
            if latest is not None:
                await _outlast(latest.ended)
                failure = latest.ended.exception()
                if failure is not None and failure is not error:
                    raise failure from error
            raise
        finally:
            if latest is not None:
                await _outlast(latest.ended)


class _Writing:
    """The write of one piece in a thread, behind that of the one before."""

    def __init__(
        self, disk: DiskWorkers, earlier: "_Writing | None", write: Callable[[_T], object], piece: _T
    ) -> None:
        self._thread = disk.begin(self._run, earlier, write, piece)
        self.ended = asyncio.wrap_future(self._thread)
        self.ended.add_done_callback(asyncio.Future.exception)  # seen: the one behind it fails of the same

    @staticmethod
    def _run(earlier: "_Writing | None", write: Callable[[_T], object], piece: _T) -> None:
        if earlier is not None:
            earlier._thread.result()
        write(piece)


async def _next(pieces: AsyncGenerator[_T, None], latest: _Writing | None) -> _T | None:
    """The next piece, None when there is none. Raises what the write under way raises, as soon as it does."""
    if latest is None:
        return await anext(pieces, None)
    asking = asyncio.create_task(_asked(pieces))
    either: set[asyncio.Future[Any]] = {asking, latest.ended}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if latest.ended.done():
            latest.ended.result()
        return await asking
    finally:
        asking.cancel()
        await _outlast(asking)


async def _asked(pieces: AsyncGenerator[_T, None]) -> _T | None:
    return await anext(pieces, None)


async def _outlast(running: asyncio.Future[_T]) -> None:
    """Wait for its end, whoever is cancelled meanwhile; CancelledError comes after it."""
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
