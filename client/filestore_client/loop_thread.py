"""An event loop in its own thread, for callers that do not await.

It ends with the first of these: `close`, the end of the last reference to it, the end of the program.
"""

import asyncio
import atexit
import concurrent.futures
import ctypes
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

CLEANING_S = 5.0  # cancelled tasks have this long to clean up
INTERRUPT_S = 0.5  # an interrupt is noticed within this time
T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread until it is closed. On uvloop where that is installed.

    A forked process has no thread of its parent: it starts a new one with the first coroutine.
    """

    def __init__(
        self, at_start: Callable[[], Coroutine[Any, Any, object]], at_end: Callable[[], Awaitable[None]]
    ) -> None:
        """`at_start` and `at_end` run in the loop as the first and the last thing.

        Raises what `at_start` does.
        """
        self._at_start, self._at_end = at_start, at_end
        # Reentrant: a finalizer may come at any moment, also while this thread has it.
        self._lock = threading.RLock()
        self._worker: _Worker | None = None
        self._is_closed = False
        self._here()
        _LOOPS.add(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return or raise its result. An interrupt cancels it, and waits for its end.

        Raises RuntimeError if this is closed, also during the call, or used in its own loop.
        """
        try:
            worker = self._here()
        except BaseException:
            work.close()
            raise
        return worker.run(work)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items one by one. The iterator ends soon after the caller stops early."""

        async def following() -> list[T]:
            async for item in items:
                return [item]
            return []

        worker = self._here()
        try:
            while found := worker.run(following()):
                yield found[0]
                if self._worker is not worker:
                    raise RuntimeError("this was started before the process was forked: start it again")
        finally:  # of a generator that is collected, in any thread: this must not wait
            if self._worker is worker:
                worker.end(items)
            else:
                never_collect(items)

    def abandon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin this in the loop, unless it is closed, and do not wait: for finalizers."""
        if self._worker is not None:
            self._worker.schedule(work)

    def close(self) -> None:
        """End what runs, and the thread. Again is harmless."""
        self._is_closed = True
        if self._worker is not None:
            self._worker.close()

    def leave_to_parent(self) -> None:
        """Start again in a forked process.

        The parent's loop must not be touched or collected: its sockets and their registrations are shared,
        and closing them here would cut off the parent.
        """
        self._lock = threading.RLock()
        if self._worker is not None:
            never_collect((self._worker, self._at_start))
            self._end.detach()
            self._worker = None

    def _here(self) -> "_Worker":
        """The worker of this process. Raises what `at_start` does; RuntimeError when this is closed."""
        with self._lock:
            if self._worker is not None:
                return self._worker
            if self._is_closed:
                raise RuntimeError("the client is closed")
            worker = _Worker(self._at_end)
            try:
                worker.run(self._at_start())
            except BaseException:
                worker.close()
                raise
            self._end = weakref.finalize(self, worker.stop)  # in any thread, which must not wait there
            self._end.atexit = False
            self._worker = worker
            return worker


class _Worker:
    """The thread, which keeps this and not a LoopThread alive."""

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._loop = _new_loop()
        self._lock = threading.RLock()  # for finalizers, too
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

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """See `LoopThread.run`."""
        running: concurrent.futures.Future[T] | None = None
        try:
            running = self.begin(work)
            return _wait_for(running)
        except concurrent.futures.CancelledError:
            raise RuntimeError("the client was closed in the meantime") from None
        except BaseException:
            if running is None:  # interrupted before it began, or too soon to know
                with suppress(RuntimeError, ValueError):
                    work.close()
            elif not running.done():
                running.cancel()
                self.wait_for_cancelled()
            raise

    def wait_for_cancelled(self) -> None:
        """Let what was cancelled clean up."""

        async def turn() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if cancelled := [task for task in others if task is not None and task.cancelling()]:
                await asyncio.wait(cancelled, timeout=CLEANING_S)

        waiting = turn()
        try:
            _wait_for(self.begin(waiting))
        except (RuntimeError, concurrent.futures.CancelledError):  # closed: then it was waited for
            waiting.close()

    def end(self, items: AsyncIterator[object]) -> None:
        """Let an abandoned iterator clean up."""
        if (close := getattr(items, "aclose", None)) is not None:
            self.schedule(close)

    def schedule(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
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
        """End, and wait for it, but in the own thread. An interrupt ends the waiting, as in `_wait_for`."""
        self.stop()
        while threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(INTERRUPT_S)

    def _main(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _finish(self) -> None:
        """Cancel the remaining tasks, so that their waiters end."""
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


_LOOPS: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_WORKERS: "weakref.WeakSet[_Worker]" = weakref.WeakSet()


def never_collect(left: object) -> None:
    """Let something live until this process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def _leave_to_parent() -> None:
    """Reset all loops in a forked process, before anything else runs."""
    for each in list(_LOOPS):
        each.leave_to_parent()
    _WORKERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _close_all() -> None:
    """Close the remaining loops, which would otherwise complain at interpreter shutdown."""
    for worker in list(_WORKERS):
        worker.close()


def _wait_for(running: "concurrent.futures.Future[T]") -> T:
    """Wait for the result of a future; an interrupt ends the waiting within INTERRUPT_S.

    A signal that arrives just before a thread waits for a lock does not end that wait, nor does one that the
    kernel hands to another thread. Python runs its handler when the wait ends, so each wait is short.
    """
    while True:
        try:
            return running.result(INTERRUPT_S)
        except TimeoutError:
            if running.done():  # the work may raise TimeoutError, too
                return running.result()


async def _without_failure(work: Coroutine[Any, Any, object]) -> object:
    with suppress(Exception):  # its result is not used
        return await work
    return None


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
