"""The threads that do blocking disk work, so that the event loop never waits for a disk.

A job that has begun is always waited for: whoever is cancelled meanwhile goes on only when its thread has
let go of the files, so no lock or descriptor is given away under a running thread.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import ParamSpec, TypeVar

DISK_THREADS = (
    16  # uploads and reads that may wait for the disk at once; more only queue up behind the same disk
)

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
        running = asyncio.wrap_future(self._pool.submit(job, *args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await _outlast(running)
            raise

    def close(self) -> None:
        """Wait for the jobs that run; no new ones are taken."""
        self._pool.shutdown(wait=True)


async def write_overlapped(
    disk: DiskWorkers, chunks: AsyncGenerator[_T, None], write: Callable[[_T], object]
) -> None:
    """Hand every chunk to `write` in a thread, one at a time, while the next chunk is awaited.

    A chunk is written before the second one after it is asked for. Whatever is raised by either side, the
    last write has ended by then, and `chunks` is closed.
    """
    writing: asyncio.Task[object] | None = None
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                if writing is not None:
                    await writing
                writing = asyncio.create_task(disk.run(write, chunk))
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                await asyncio.wait({writing})
                _ = writing.cancelled() or writing.exception()  # seen: what ended the reading is raised


async def write_batches(
    disk: DiskWorkers, batches: AsyncGenerator[_T, None], write: Callable[[_T], object]
) -> None:
    """Hand every batch to `write` in a thread, and only then ask for the next one: more comes meanwhile.

    Whatever is raised, no write runs any more by then, and `batches` is closed.
    """
    async with aclosing(batches):
        async for batch in batches:
            await disk.run(write, batch)


async def _outlast(running: asyncio.Future[_T]) -> None:
    while not running.done():
        with suppress(asyncio.CancelledError):  # cancelled again: the thread still has to end first
            await asyncio.wait({running})
    if not running.cancelled():
        running.exception()  # marks it as seen; the caller is leaving anyway
