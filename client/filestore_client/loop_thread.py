"""An event loop in a thread of its own, for callers that do not await."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread until `close`. Of uvloop where that is installed."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="filestore-client", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it was not closed."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises. An interrupt cancels it, and waits for its end."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is closed, or used within its own loop")
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            if not running.done():
                running.cancel()
                _wait_for_end(self._loop)
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items one by one; ends the iterator when the caller stops early."""

        async def following() -> list[T]:
            async for item in items:
                return [item]
            return []

        async def end() -> None:
            if (close := getattr(items, "aclose", None)) is not None:
                await close()

        try:
            while found := self.run(following()):
                yield found[0]
        finally:
            self.run(end())

    def close(self) -> None:
        """End the thread. Again is harmless."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


def _wait_for_end(loop: asyncio.AbstractEventLoop) -> None:
    """Let what was cancelled clean up."""

    async def turn() -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        cancelling = [task for task in others if task.cancelling()]
        if cancelling:
            await asyncio.wait(cancelling, timeout=5.0)

    asyncio.run_coroutine_threadsafe(turn(), loop).result()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
