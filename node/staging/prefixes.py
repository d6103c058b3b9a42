"""The sha256 of the first bytes of an upload, read in steps: nobody waits for all. Shared by files and links.

Whoever asks waits a bounded time, whatever the size. What was hashed until then is kept, and the next one who
asks goes on there. So a member that was restarted under a large upload keeps no client waiting: it is told to
come back, and finds more done each time.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from node.base.shared_work import SharedWork

READ_BYTES: Final = 1 << 20
ANSWER_S: Final = 2.0  # less than whoever asks waits for
RESULT_AGE_MAX_S: Final = 60.0  # an answer that nobody has come back for
RESULTS_MAX: Final = 256

_Name = tuple[str, int]  # of an upload, and up to where


class PrefixHash:
    """A hash of a prefix so far. One reader at a time; the next ones continue it."""

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
        """Return the sha256 of the hashed bytes."""
        return self._digest.hexdigest()


class PrefixAnswers(SharedWork[_Name, str]):
    """Answers under way, and for RESULT_AGE_MAX_S those that nobody waits for."""

    def __init__(self) -> None:
        super().__init__("hashes of unfinished uploads", at_most=RESULTS_MAX, keep_s=RESULT_AGE_MAX_S)

    async def find(self, name: _Name, work: Callable[[], Awaitable[str]]) -> str:
        """Call `join` with the limit ANSWER_S."""
        return await self.join(name, work, answer_s=ANSWER_S)
