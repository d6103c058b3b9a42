"""Hashes an upload in bounded steps. Shared by the upload store, its holder, links and takeovers.

When an upload is closed, the state of its hash is kept (`HashedUploads`), so that opening an upload of any
size takes bounded time. A node keeps a bounded number of uploads open; without kept states, a request beyond
that number would hash its upload from the beginning. The state after some durable bytes is small. It stays
true as long as the file is not cut below it. Only an open upload cuts its file, and it has taken its state
from here by then. For any thread; forgotten with the process.

After a restart a node has to read its bytes of an upload. Only a few such jobs have a thread at a time, and a
job ends after each step, so a small upload never waits for all of a large one, nor for several. A caller
waits a bounded time, even for a large upload. The state after that is kept, and the next caller
continues there. So a member that was restarted during a large upload does not block a client: it asks the
client to come back, and has made progress by then.

A hash of bytes read from the disk (`PrefixHash`, `PrefixAnswers`) never reuses a hash of bytes as they were
written: the disk may return other bytes.

Tested by tests/unit/node/staging/test_opening.py.
"""

import asyncio
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from ca.errors import Unavailable
from node.base.shared_work import SharedWork
from node.diskio.executor import DiskWorkers
from node.storage.segments import SegmentHasher
from runtime.time_limits import note_progress

STATES_MAX: Final = 16_384
SEGMENTS_MAX: Final = 4 << 20  # of all states together: their checksums take 32 MiB
STEP_BYTES: Final = 256 << 20  # five seconds at most, on a slow disk with other readers
OPEN_S: Final = 15.0  # a client waits this long; the bytes hashed by then are not hashed again
READ_BYTES: Final = 1 << 20
ANSWER_S: Final = 2.0  # less than the caller's patience
RESULT_AGE_MAX_S: Final = 60.0  # an answer that no caller has come back for
RESULTS_MAX: Final = 256

_T = TypeVar("_T")
_Name = tuple[str, int]  # of an upload, and the end of the prefix


class HashingUnfinished(Unavailable):
    """There is more to hash than one step does: the next opening of the upload continues there."""


class HashedUploads:
    """States by upload; the longest unused are dropped first."""

    def __init__(self, *, states_max: int = STATES_MAX, segments_max: int = SEGMENTS_MAX) -> None:
        self._states_max, self._segments_max = states_max, segments_max
        self._lock = threading.Lock()
        self._states: OrderedDict[str, SegmentHasher] = OrderedDict()
        self._segments = 0

    def keep(self, file_uuid: str, hasher: SegmentHasher) -> None:
        """Keep a state that the caller no longer uses."""
        with self._lock:
            self._drop(file_uuid)
            self._states[file_uuid] = hasher
            self._segments += hasher.whole_segments
            while len(self._states) > self._states_max or self._segments > self._segments_max:
                self._drop(next(iter(self._states)))

    def take(self, file_uuid: str) -> SegmentHasher | None:
        """Remove and return a state, which belongs to the caller from now on."""
        with self._lock:
            return self._drop(file_uuid)

    def known_bytes(self, file_uuid: str) -> int:
        """Return how many bytes need not be read again."""
        with self._lock:
            hasher = self._states.get(file_uuid)
            return hasher.size_bytes if hasher is not None else 0

    def _drop(self, file_uuid: str) -> SegmentHasher | None:
        hasher = self._states.pop(file_uuid, None)
        if hasher is not None:
            self._segments -= hasher.whole_segments
        return hasher


async def open_in_steps(disk: DiskWorkers, step: Callable[[int], _T], *, within_s: float = OPEN_S) -> _T:
    """Return the result of `step`, which hashes up to a number of bytes each time it is called.

    Raises Unavailable if that takes longer than `within_s` and a step; the next call continues there.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while True:
        try:
            return await disk.run_long(step, STEP_BYTES)
        except HashingUnfinished as unfinished:
            note_progress()
            if loop.time() >= until_s:
                raise Unavailable(
                    "This node is still reading its bytes of the upload. Ask again.", retry_after_s=1
                ) from unfinished


class PrefixHash:
    """The hash of what was read so far. One reader at a time; later ones continue."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.is_busy = False
        self._digest = hashlib.sha256()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use it alone."""
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def read_until(self, descriptor: int, stop: int) -> None:
        """Hash up to `stop`. Blocks. Raises OSError, EOFError; the bytes hashed before that count."""
        while self.size_bytes < stop:
            piece = os.pread(descriptor, min(READ_BYTES, stop - self.size_bytes), self.size_bytes)
            if not piece:
                raise EOFError("the upload went back")
            self._digest.update(piece)
            self.size_bytes += len(piece)

    def sha256(self) -> str:
        """Return the digest of what was hashed."""
        return self._digest.hexdigest()


async def read_prefix(
    disk: DiskWorkers,
    step: Callable[[PrefixHash, int], None],
    stop: int,
    count: Callable[[int], None] = lambda _read_bytes: None,
) -> str:
    """Return the sha256 of the first `stop` bytes; `step` reads up to the position that it is given.

    `count` is called with the bytes of each step. Raises what `step` raises.
    """
    prefix = PrefixHash()
    while (before := prefix.size_bytes) < stop:
        await disk.run_long(step, prefix, min(stop, before + STEP_BYTES))
        count(prefix.size_bytes - before)
    return prefix.sha256()


class PrefixAnswers(SharedWork[_Name, str]):
    """Answers in the making, and for RESULT_AGE_MAX_S those that no caller waits for."""

    def __init__(self) -> None:
        super().__init__("hashes of unfinished uploads", at_most=RESULTS_MAX, keep_s=RESULT_AGE_MAX_S)

    async def find(self, name: _Name, work: Callable[[], Awaitable[str]]) -> str:
        """Wait as `join` does, within ANSWER_S."""
        return await self.join(name, work, answer_s=ANSWER_S)
