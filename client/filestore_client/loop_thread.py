"""An event loop in a thread of its own, for callers that do not await.

It ends with `close`, with the last reference to it, or with the program, whichever comes first.
"""

import asyncio
import atexit
import concurrent.futures
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

CLEANING_S = 5.0  # what was cancelled has this long to clean up
T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread until it is closed. On uvloop where that is installed."""

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        """`at_end` runs in the loop as the last thing."""
        self._worker = _Worker(at_end)
        self._end = weakref.finalize(self, self._worker.stop)  # in any thread, which must not wait there
        self._end.atexit = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises. An interrupt cancels it, and waits for its end.

        Raises RuntimeError when this is closed, also meanwhile, or used within its own loop.
        """
        running: concurrent.futures.Future[T] | None = None
        try:
            running = self._worker.begin(work)
            return running.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("the client was closed meanwhile") from None
        except BaseException:
            if running is None:  # interrupted before it began, or so soon that nobody knows
                with suppress(RuntimeError, ValueError):
                    work.close()
            elif not running.done():
                running.cancel()
                self._worker.wait_for_cancelled()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items one by one. The iterator ends soon after the caller stops early."""

        async def following() -> list[T]:
            async for item in items:
                return [item]
            return []

        try:
            while found := self.run(following()):
                yield found[0]
        finally:  # of a generator that is collected, in any thread: this must not wait
            self._worker.end(items)

    def abandon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin this in the loop, unless it is closed, and do not wait: for finalizers."""
        self._worker.soon(work)

    def close(self) -> None:
        """End what runs, and the thread. Again is harmless."""
        self._worker.close()


class _Worker:
    """The thread, which keeps this and not a LoopThread alive."""

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._loop = _new_loop()
        # Reentrant: a finalizer may come at any moment, also while this thread has it.
        self._lock = threading.RLock()
        self._is_closed = False
        self._ending: set[asyncio.Task[object]] = set()
        self._thread = threading.Thread(target=self._main, name="filestore-client", daemon=True)
        self._thread.start()
        _WORKERS.add(self)

    def begin(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Raises RuntimeError when this is closed, or when its own thread would wait for itself."""
        with self._lock:
            if self._is_closed or threading.current_thread() is self._thread:
                raise RuntimeError("the client is closed, or used within its own loop")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait_for_cancelled(self) -> None:
        """Let what was cancelled clean up."""

        async def turn() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if cancelled := [task for task in others if task is not None and task.cancelling()]:
                await asyncio.wait(cancelled, timeout=CLEANING_S)

        waiting = turn()
        try:
            self.begin(waiting).result()
        except (RuntimeError, concurrent.futures.CancelledError):  # closed: then it was waited for
            waiting.close()

    def end(self, items: AsyncIterator[object]) -> None:
        """Let an iterator clean up that nobody goes on with."""
        if (close := getattr(items, "aclose", None)) is not None:
            self.soon(close)

    def soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin this in the loop, unless it is closed."""

        def begin() -> None:
            task = asyncio.ensure_future(_without_failure(work()))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(begin)

    def stop(self) -> None:
        """Begin to end. Again is harmless."""

        def begin() -> None:
            self._ending.add(asyncio.ensure_future(self._finish()))

        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(begin)

    def close(self) -> None:
        """End, and wait for it, but in the own thread."""
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _main(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _finish(self) -> None:
        """Those that wait for what still runs are told that it was cancelled."""
        try:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                if task is not None and task not in self._ending:
                    task.cancel()
            await asyncio.gather(*(task for task in others if task), return_exceptions=True)
            await self._at_end()
            await self._loop.shutdown_asyncgens()
            with suppress(RuntimeError):  # while the interpreter ends no thread can be begun
                await self._loop.shutdown_default_executor()
        finally:
            self._loop.stop()


_WORKERS: "weakref.WeakSet[_Worker]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """What nobody has closed would complain while the interpreter takes it apart."""
    for worker in list(_WORKERS):
        worker.close()


async def _without_failure(work: Coroutine[Any, Any, object]) -> object:
    with suppress(Exception):  # nobody waits for it
        return await work
    return None


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
