"""What was hashed of uploads whose files are closed, so that opening one again does not read all of it anew.

A node keeps only so many uploads open. With more than that under way each request would find its upload
closed, and hash what it has from the beginning; and one that opens a large upload after a restart would have
to wait for all of it. A stream's state after some durable bytes is small, and stays true as long as nothing
cuts the file below it, which only an open upload does: it has taken its state from here by then. For any
thread; forgotten with the process.
"""

import threading
from collections import OrderedDict
from typing import Final

from ca.errors import Unavailable
from node.storage.segments import SegmentHasher

STATES_MAX: Final = 16_384
SEGMENTS_MAX: Final = 4 << 20  # of all together: their checksums take 32 MiB


class HashingUnfinished(Unavailable):
    """There is more to be hashed than one step takes: whoever opens the upload next goes on there."""


class HashedUploads:
    """States by upload; the longest unused go first."""

    def __init__(self, *, states_max: int = STATES_MAX, segments_max: int = SEGMENTS_MAX) -> None:
        self._states_max, self._segments_max = states_max, segments_max
        self._lock = threading.Lock()
        self._states: OrderedDict[str, SegmentHasher] = OrderedDict()
        self._segments = 0

    def keep(self, file_uuid: str, hasher: SegmentHasher) -> None:
        """The caller does not use it any more."""
        with self._lock:
            self._drop(file_uuid)
            self._states[file_uuid] = hasher
            self._segments += hasher.whole_segments
            while len(self._states) > self._states_max or self._segments > self._segments_max:
                self._drop(next(iter(self._states)))

    def take(self, file_uuid: str) -> SegmentHasher | None:
        """The state, which is the caller's from now on."""
        with self._lock:
            return self._drop(file_uuid)

    def known_bytes(self, file_uuid: str) -> int:
        """How many bytes need not be read again."""
        with self._lock:
            hasher = self._states.get(file_uuid)
            return hasher.size_bytes if hasher is not None else 0

    def _drop(self, file_uuid: str) -> SegmentHasher | None:
        hasher = self._states.pop(file_uuid, None)
        if hasher is not None:
            self._segments -= hasher.whole_segments
        return hasher
