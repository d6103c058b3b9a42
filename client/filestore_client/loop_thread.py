"""An event loop in its own thread, for blocking callers.

The loop ends when it is closed, when the last reference to it is gone, or when the program exits.

Tested by tests/unit/filestore_client/test_blocking.py.
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
    """Runs coroutines for any thread until it is closed. Uses uvloop if that is installed.

    A forked process does not inherit the thread: it starts a new one for its first coroutine.
    """

    def __init__(
        self, at_start: Callable[[], Coroutine[Any, Any, object]], at_end: Callable[[], Awaitable[None]]
    ) -> None:
        """Start the thread. `at_start` runs first in its loop, and `at_end` last.

        Raises any exception of `at_start`.
        """
        self._at_start, self._at_end = at_start, at_end
        # Reentrant: a finalizer may run at any moment, also while this thread holds the lock.
        self._lock = threading.RLock()
        self._worker: _Worker | None = None
        self._is_closed = False
        self._here()
        _LOOPS.add(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return or raise its result. An interrupt cancels it and waits until it ends.

        Raises RuntimeError if the loop is closed, also during the call, or if the loop itself calls this.
        """
        try:
            worker = self._here()
        except BaseException:
            work.close()
            raise
        return worker.run(work)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items one by one. If the caller stops early, `items` is closed soon after."""

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
        finally:  # the garbage collector may run this in any thread, so it must not wait
            if self._worker is worker:
                worker.end(items)
            else:
                never_collect(items)

    def abandon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start this work in the loop and do not wait, for finalizers. Do nothing if the loop is closed."""
        if self._worker is not None:
            self._worker.schedule(work)

    def close(self) -> None:
        """Cancel all coroutines and end the thread. A second call does nothing."""
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
        """Return the worker of this process, and start it if there is none.

        Raises any exception of `at_start`; RuntimeError if this is closed.
        """
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
            self._end = weakref.finalize(self, worker.stop)  # may run in any thread: must not wait
            self._end.atexit = False
            self._worker = worker
            return worker


class _Worker:
    """The thread and its loop. The thread refers to this object, so that a LoopThread can be collected."""

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._loop = _new_loop()
        self._lock = threading.RLock()  # reentrant, because finalizers take it too
        self._is_closed = False
        self._ending: set[asyncio.Task[object]] = set()
        self._thread = threading.Thread(target=self._main, name="filestore-client", daemon=True)
        self._thread.start()
        _WORKERS.add(self)

    def begin(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine in the loop, and return its future.

        Raises RuntimeError if this is closed, or if its own thread calls, which would wait for itself.
        """
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
            if running is None:  # interrupted before `begin` returned: the work may have started
                with suppress(RuntimeError, ValueError):
                    work.close()
            elif not running.done():
                running.cancel()
                self.wait_for_cancelled()
            raise

    def wait_for_cancelled(self) -> None:
        """Wait until the cancelled tasks have cleaned up, for at most CLEANING_S."""

        async def turn() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if cancelled := [task for task in others if task is not None and task.cancelling()]:
                await asyncio.wait(cancelled, timeout=CLEANING_S)

        waiting = turn()
        try:
            _wait_for(self.begin(waiting))
        except (RuntimeError, concurrent.futures.CancelledError):  # closed: `_finish` waited for the tasks
            waiting.close()

    def end(self, items: AsyncIterator[object]) -> None:
        """Close an abandoned iterator, without waiting."""
        if (close := getattr(items, "aclose", None)) is not None:
            self.schedule(close)

    def schedule(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start this work in the loop. Do nothing if the loop is closed."""

        def begin() -> None:
            task = asyncio.ensure_future(_without_failure(work()))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(begin)

    def stop(self) -> None:
        """Start to end the loop, without waiting. A second call does nothing."""

        def begin() -> None:
            self._ending.add(asyncio.ensure_future(self._finish()))

        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(begin)

    def close(self) -> None:
        """End the thread and wait for it, unless that thread calls. An interrupt ends the wait."""
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
            with suppress(RuntimeError):  # no thread can be started while the interpreter shuts down
                await self._loop.shutdown_default_executor()
        finally:
            self._loop.stop()


_LOOPS: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_WORKERS: "weakref.WeakSet[_Worker]" = weakref.WeakSet()


def never_collect(left: object) -> None:
    """Keep an object alive until this process ends."""
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
    """Wait for the result of a future. An interrupt ends the wait within INTERRUPT_S.

    Some signals do not end a wait for a lock: those that arrive just before the wait, and those that the
    kernel delivers to another thread. Python runs the handler when the wait ends, so each wait is short.
    """
    while True:
        try:
            return running.result(INTERRUPT_S)
        except TimeoutError:
            if running.done():  # then the TimeoutError may be the result of the work
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
