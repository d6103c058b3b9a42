"""Which segments of which files were found sound lately, so that they need not be read twice.

Trust belongs to a file as it was when it was read: device, inode, size and times of change. Whatever writes
to the file, or puts another in its place, changes one of them, and the trust is gone. What changes none of
them is rot of the medium below the file system: within TRUSTED_S it goes unnoticed. That is the price of
serving at the speed of the page cache, which would not show such rot either.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

TRUSTED_S = 3600.0  # how long a segment that was found sound is not read again
TRUSTED_SEGMENTS_MAX = 65_536  # 256 GiB of content, in about 10 MB of memory
# The kernel stamps changes by a clock that ticks every 1 to 10 ms: two changes within a tick look like one.
SETTLED_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file in one state of its content. Times in ns since the epoch."""

    device: int
    inode: int
    size_bytes: int
    modified_at_ns: int
    changed_at_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """The open file as it is now. Raises OSError."""
        facts = os.fstat(descriptor)
        return cls(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)

    def is_settled(self, at_ns: int) -> bool:
        """Whether a change after `at_ns` would show."""
        return abs(at_ns - self.changed_at_ns) > SETTLED_NS


@dataclass(slots=True)
class _Trusted:
    """The segments of one file: when each was found sound."""

    identity: FileIdentity
    found_at_s: dict[int, float] = field(default_factory=dict)


class TrustedSegments:
    """Bounded; forgets the blob used longest ago. For any thread."""

    def __init__(
        self, *, segments_max: int = TRUSTED_SEGMENTS_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._segments_max = segments_max
        self._clock = clock
        self._lock = threading.Lock()
        self._blobs: OrderedDict[str, _Trusted] = OrderedDict()
        self._count = 0

    def contains(self, sha256: str, index: int, identity: FileIdentity) -> bool:
        """Whether the segment was found sound within TRUSTED_S; a file that is another now is forgotten."""
        with self._lock:
            blob = self._blobs.get(sha256)
            if blob is None:
                return False
            if blob.identity is not identity:
                if blob.identity != identity:
                    self._drop(sha256)
                    return False
                blob.identity = identity  # who asks again mostly asks with the same object
            self._blobs.move_to_end(sha256)
            found_at_s = blob.found_at_s.get(index)
            return found_at_s is not None and self._clock() - found_at_s < TRUSTED_S

    def add(self, sha256: str, index: int, identity: FileIdentity, *, age_s: float = 0.0) -> None:
        """Notes that the segment was sound so long ago; `identity` is the file's from before it was read."""
        with self._lock:
            blob = self._blobs.get(sha256)
            if blob is None or blob.identity != identity:
                self._drop(sha256)
                blob = self._blobs[sha256] = _Trusted(identity)
            self._blobs.move_to_end(sha256)
            self._count += index not in blob.found_at_s
            blob.found_at_s[index] = self._clock() - age_s
            if self._count > self._segments_max:
                self._forget_one()

    def forget(self, sha256: str) -> None:
        """The file under that name is not the one that was read."""
        with self._lock:
            self._drop(sha256)

    def _drop(self, sha256: str) -> None:
        blob = self._blobs.pop(sha256, None)
        self._count -= 0 if blob is None else len(blob.found_at_s)

    def _forget_one(self) -> None:
        sha256, blob = next(iter(self._blobs.items()))
        del blob.found_at_s[next(iter(blob.found_at_s))]
        self._count -= 1
        if not blob.found_at_s:
            del self._blobs[sha256]
