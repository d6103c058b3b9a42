"""One thread for blocking work, one piece after the other, awaited from the event loop.

A thread pool of one does the same for three times the overhead: two futures per call, each with a lock or a
condition, and callbacks that chain them. A change to the state waits for two such calls.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class ThreadCall(Generic[_T]):
    """A piece of work that is queued. `await` returns its result or raises its error; once, by one task.

    Work whose caller is cancelled is skipped if it has not begun, and continues if it has.
    """

    __slots__ = ("_arguments", "_call", "_done", "_ended", "_error", "_loop", "_value")

    def __init__(self, call: Callable[..., _T], arguments: tuple[Any, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] | None = None  # while a task waits
        self._ended = threading.Lock()
        self._ended.acquire()
        self._value: _T | None = None
        self._error: BaseException | None = None

    def ends_within(self, timeout_s: float) -> bool:
        """Return whether it has ended within this time.

        Blocks the loop: for work that is nearly always quicker.
        """
        if self._ended.acquire(timeout=timeout_s):
            self._ended.release()
            return True
        return False

    def __await__(self) -> Generator[Any, None, _T]:
        """Return or raise the result of the call."""
        self._done = self._loop.create_future()
        if self._ended.locked():  # otherwise the thread may not have seen that a task waits
            yield from self._done.__await__()
        if self._error is not None:
            raise self._error
        value: _T = self._value  # type: ignore[assignment]  # None only if that is a _T
        return value

    def do(self) -> None:
        """Do the work, in the thread."""
        if self._done is not None and self._done.cancelled():
            return
        try:
            self._value = self._call(*self._arguments)
        except StopIteration:
            self._error = RuntimeError("work raised StopIteration, which no future takes")
        except BaseException as error:  # noqa: BLE001 - not handled here: the caller gets it
            self._error = error
        self._ended.release()
        if self._done is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        assert self._done is not None, "somebody waits"
        if not self._done.done():
            self._done.set_result(None)


class Worker:
    """`run` queues work for the thread, which starts with the first; `close` ends it. For one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[ThreadCall[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def begin(self, call: Callable[..., _T], *arguments: Any) -> ThreadCall[_T]:
        """Queue `call(*arguments)`, which the thread does in the order of these calls."""
        assert not self._is_closed, f"the thread {self._name} has ended"
        if self._thread is None:
            # A process that ends without `close` must not wait for it.
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(work := ThreadCall(call, arguments))
        return work

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Run `call(*arguments)` in the thread, in the order of the calls, and return or raise its result."""
        return await self.begin(call, *arguments)

    def close(self) -> None:
        """End the thread after all queued work. Blocks meanwhile; may be called twice."""
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Wait for work and do it; return False at the end.

        Its references are released before the next wait.
        """
        if (work := self._queue.get()) is None:
            return False
        work.do()
        return True
