"""Work that several requests wait for, and that goes on without them. Apart: it knows of no request.

Whoever asks for it while it is under way waits for the same. So a client that lost the connection, and asks
again, neither begins it a second time nor has to wait for the end of the first.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from ca.errors import Unavailable

_T = TypeVar("_T")


class SharedWork(Generic[_T]):
    """What is under way, by its name. For one loop; `close` ends it."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[_T]] = {}

    async def join(self, name: str, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """What the work of this name comes to, begun now unless it is under way; or what it raises.

        Raises Unavailable when somebody has ended it.
        """
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(work(), name=f"work on {name}")
            task.add_done_callback(partial(self._forget, name))
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("This was broken off: ask again.", retry_after_s=1)
        return task.result()

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, name: str, task: asyncio.Task[_T]) -> None:
        del self._tasks[name]
        _ = task.cancelled() or task.exception()  # seen: nobody may wait for it any more
