"""One thread for blocking work, one piece after the other, awaited from the event loop.

A thread pool of one does the same for three times the overhead: two futures per call, each with a lock or a
condition, and callbacks that chain them. A change to the state waits for two such calls.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Work = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Worker:
    """`run` queues work for the thread, which starts with the first; `close` ends it. For one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """What `work(*arguments)` returns or raises, done in the thread in the order of the calls.

        Work whose caller is cancelled is left out if it has not begun, and goes on if it has.
        """
        assert not self._is_closed, f"the thread {self._name} has ended"
        if self._thread is None:
            # A process that dies without `close` must not wait for it.
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._queue.put((done, work, arguments))
        return await done

    def close(self) -> None:
        """End the thread after everything that is queued. Blocks so long; may be repeated."""
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Wait for work and do it; False at the end. What it held is let go before the next wait."""
        if (queued := self._queue.get()) is None:
            return False
        done, work, arguments = queued
        if done.cancelled():
            return True
        try:
            value = work(*arguments)
        except StopIteration:
            _settle_soon(
                done, done.set_exception, RuntimeError("work raised StopIteration, which no future takes")
            )
        except BaseException as error:  # noqa: BLE001 - nothing is handled here: it is the caller's
            _settle_soon(done, done.set_exception, error)
        else:
            _settle_soon(done, done.set_result, value)
        return True


def _settle_soon(done: asyncio.Future[Any], settle: Callable[[Any], None], outcome: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        done.get_loop().call_soon_threadsafe(_settle, done, settle, outcome)


def _settle(done: asyncio.Future[Any], settle: Callable[[Any], None], outcome: object) -> None:
    if not done.cancelled():
        settle(outcome)
