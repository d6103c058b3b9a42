"""The sha256 of the first bytes of an upload, read from the disk in steps: nobody has to wait for all.

Whoever asks waits a bounded time, whatever the size. What was hashed until then is kept, and the next one who
asks goes on there. So a member that was restarted under a large upload keeps no client waiting: it is told to
come back, and finds more done each time.
"""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ca.errors import Unavailable

READ_BYTES: Final = 1 << 20
ANSWER_S: Final = 2.0  # less than whoever asks waits for
RESULT_AGE_MAX_S: Final = 60.0  # an answer that nobody has come back for
RESULTS_MAX: Final = 256


_Name = tuple[str, int]  # of an upload, and up to where


class PrefixHash:
    """What has been hashed so far. One reader at a time; those after it go on."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.is_busy = False
        self._digest = hashlib.sha256()

    @contextmanager
    def used(self) -> Iterator[None]:
        """For one reader."""
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def read_until(self, descriptor: int, stop: int) -> None:
        """Hash up to `stop`. Blocks. Raises OSError, EOFError; what was hashed stays so."""
        while self.size_bytes < stop:
            piece = os.pread(descriptor, min(READ_BYTES, stop - self.size_bytes), self.size_bytes)
            if not piece:
                raise EOFError("the upload went back")
            self._digest.update(piece)
            self.size_bytes += len(piece)

    def sha256(self) -> str:
        """Of what was hashed."""
        return self._digest.hexdigest()


class PrefixAnswers:
    """Answers under way, and for RESULT_AGE_MAX_S those that nobody waits for. For one loop."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[_Name, asyncio.Task[str]] = OrderedDict()

    async def find(self, name: _Name, work: Callable[[], Awaitable[str]]) -> str:
        """What `work` found, now or for one who asked before.

        Raises what it raised; Unavailable where that takes longer than ANSWER_S, and it goes on.
        """
        task = self._tasks.get(name)
        if task is None:
            task = self._begin(name, work)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_S)
        if not done:
            raise Unavailable("This node still reads what it has of the upload: ask again.", retry_after_s=1)
        if self._tasks.get(name) is task:
            del self._tasks[name]
        return task.result()

    async def close(self) -> None:
        """End what is under way."""
        tasks, self._tasks = list(self._tasks.values()), OrderedDict()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, name: _Name, work: Callable[[], Awaitable[str]]) -> asyncio.Task[str]:
        if len(self._tasks) >= RESULTS_MAX:
            raise Unavailable("This node reads too many uploads already.", retry_after_s=2)

        async def found() -> str:
            return await work()

        task = self._tasks[name] = asyncio.create_task(found(), name="hash of an upload's first bytes")
        task.add_done_callback(lambda task: self._keep(name, task))
        return task

    def _keep(self, name: _Name, task: asyncio.Task[str]) -> None:
        """Whoever asked may come back for it; nobody has to."""
        if not task.cancelled():
            task.exception()
        asyncio.get_running_loop().call_later(RESULT_AGE_MAX_S, self._forget, name, task)

    def _forget(self, name: _Name, task: asyncio.Task[str]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
