"""Small blobs of many requests, made durable together: what comes while a sync is under way shares the next.

As databases do with commits of many sessions ("group commit"; DeWitt and others, "Implementation techniques
for main memory database systems", SIGMOD 1984). For the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ca.errors import FilestoreError, Unavailable
from node.diskio.durable import Octets
from node.diskio.executor import DiskWorkers
from node.diskio.fs import storage_error

BATCH_BYTES_MAX: Final = 4 << 20
BATCH_BLOBS_MAX: Final = 256
WAITING_BYTES_MAX: Final = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingWrite:
    """A blob that is not durable yet, and who waits for it."""

    sha256: str
    content: Octets
    done: asyncio.Future[None]


class GroupCommit:
    """Stores small blobs. One call of `store` at a time, which blocks in a thread."""

    def __init__(self, disk: DiskWorkers, store: Callable[[Sequence[tuple[str, Octets]]], None]) -> None:
        """`store` makes all of them durable or none. Raises OSError, FilestoreError."""
        self._disk, self._store = disk, store
        self._waiting = deque[_WaitingWrite]()
        self._waiting_bytes = 0
        self._is_storing = False

    def put(self, sha256: str, content: Octets) -> asyncio.Future[None]:
        """Done when the blob is durable; raises FilestoreError where the disk refuses.

        Raises Unavailable while too many wait.
        """
        if self._waiting_bytes + len(content) > WAITING_BYTES_MAX:
            raise Unavailable("The disk of this node is too slow for small files.", retry_after_s=1)
        waiting = _WaitingWrite(sha256, content, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._waiting_bytes += len(content)
        if not self._is_storing:
            self._begin()
        return waiting.done

    def _begin(self) -> None:
        batch, batch_bytes = list[_WaitingWrite](), 0
        while self._waiting and len(batch) < BATCH_BLOBS_MAX and batch_bytes < BATCH_BYTES_MAX:
            batch.append(self._waiting.popleft())
            batch_bytes += len(batch[-1].content)
        self._waiting_bytes -= batch_bytes
        self._is_storing = True
        loop = asyncio.get_running_loop()

        def ended(storing: Future[None]) -> None:  # in the thread
            with suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(self._end, batch, storing)

        blobs = [(each.sha256, each.content) for each in batch]
        try:
            storing = self._disk.begin(self._store, blobs)
        except RuntimeError:
            self._is_storing = False
            _tell(batch, Unavailable("This node is stopping."))
        else:
            storing.add_done_callback(ended)

    def _end(self, batch: Sequence[_WaitingWrite], storing: Future[None]) -> None:
        _tell(batch, storing.exception())
        self._is_storing = False
        if self._waiting:
            self._begin()


def _tell(batch: Sequence[_WaitingWrite], error: BaseException | None) -> None:
    for each in batch:
        if each.done.done():  # the caller was cancelled
            continue
        if error is None:
            each.done.set_result(None)
        else:
            each.done.set_exception(_own(error))
            each.done.exception()  # retrieved, even if no caller waits


def _own(error: BaseException) -> BaseException:
    """Return a separate error for each caller, as raising changes it."""
    if isinstance(error, OSError):
        return storage_error(error)
    if isinstance(error, FilestoreError):
        return type(error)(error.details)
    return error
