"""Segments of files that were found sound lately, so that they need not be read twice.

Trust applies to a file as it was when it was read: device, inode, size and times of change. Any write to the
file, or another file in its place, changes one of them and ends the trust. Damage of the medium below the
file system changes none: it stays unnoticed for TRUSTED_S. This is the price of serving at the speed of the
page cache, which would hide such damage as well.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

TRUSTED_S = 3600.0  # for this time a sound segment is not read again
TRUSTED_SEGMENTS_MAX = 65_536  # 256 GiB of content, in about 10 MB of memory
# The kernel dates changes by a clock that ticks every 1 to 10 ms: two changes within a tick have the same
# time.
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
        """Return the present identity of the open file. Raises OSError."""
        facts = os.fstat(descriptor)
        return cls(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)

    def is_settled(self, at_ns: int) -> bool:
        """Return whether a change after `at_ns` would be visible."""
        return abs(at_ns - self.changed_at_ns) > SETTLED_NS


@dataclass(slots=True)
class _TrustedFile:
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
        self._blobs: OrderedDict[str, _TrustedFile] = OrderedDict()
        self._count = 0

    def contains(self, sha256: str, index: int, identity: FileIdentity) -> bool:
        """Return whether the segment was found sound within TRUSTED_S. Forgets a file that has changed."""
        with self._lock:
            blob = self._blobs.get(sha256)
            if blob is None:
                return False
            if blob.identity is not identity:
                if blob.identity != identity:
                    self._drop(sha256)
                    return False
                blob.identity = identity  # the next caller often has the same object
            self._blobs.move_to_end(sha256)
            found_at_s = blob.found_at_s.get(index)
            return found_at_s is not None and self._clock() - found_at_s < TRUSTED_S

    def add(self, sha256: str, index: int, identity: FileIdentity, *, age_s: float = 0.0) -> None:
        """Record that the segment was sound `age_s` ago; `identity` was read from the file before that."""
        with self._lock:
            blob = self._blobs.get(sha256)
            if blob is None or blob.identity != identity:
                self._drop(sha256)
                blob = self._blobs[sha256] = _TrustedFile(identity)
            self._blobs.move_to_end(sha256)
            self._count += index not in blob.found_at_s
            blob.found_at_s[index] = self._clock() - age_s
            if self._count > self._segments_max:
                self._forget_one()

    def forget(self, sha256: str) -> None:
        """Forget the file with that name, as it was replaced."""
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
