"""Blobs that stay open, so that a hot one costs no walk through directories and no sidecar read per request.

Bounded: the one used longest ago is closed first. What is kept under a name is handed out only while the
file is what it was when it was opened: a link less, a rename or a write shows in what the kernel tells about
it. The store also says at once when a name is deleted, replaced or put aside (`forget`), so that no
descriptor here holds the room of a file that is gone. For any thread.
"""

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

from node.pagecache import read_cached
from node.segments import OpenBlob

OPEN_BLOBS_MAX = 256  # descriptors; a tenth of what a process may have where the limit is low

_State = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Kept:
    blob: OpenBlob
    state: _State


class OpenBlobs:
    """Open blobs by their sha256. Whoever takes one has a descriptor of its own, and closes it."""

    def __init__(self, *, blobs_max: int = OPEN_BLOBS_MAX) -> None:
        self._blobs_max = blobs_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def forgotten(self) -> int:
        """How often something was forgotten: take this before opening what is to be kept."""
        return self._forgotten

    def take(self, sha256: str) -> OpenBlob | None:
        """The blob, opened once more, or None when it is not kept. No disk is touched. Raises OSError."""
        with self._lock:
            kept = self._kept.get(sha256)
            if kept is None:
                return None
            if _state(kept.blob.fd) != kept.state:
                self._drop(sha256)
                return None
            self._kept.move_to_end(sha256)
            return kept.blob.duplicate()

    def read_cached(self, sha256: str, start: int, stop: int) -> bytes:
        """These bytes (not empty) if nothing has to be waited for: a kept blob, trusted, in the page cache.

        Else b"". For the event loop, and for little at a time: others wait meanwhile. Raises OSError.
        """
        with self._lock:
            kept = self._kept.get(sha256)
            if kept is None or stop > kept.blob.size_bytes:
                return b""
            if _state(kept.blob.fd) != kept.state:
                self._drop(sha256)
                return b""
            self._kept.move_to_end(sha256)
            trusted = kept.blob.is_trusted(start, stop)
            return read_cached(kept.blob.fd, start, stop - start) if trusted else b""

    def keep(self, blob: OpenBlob, *, forgotten: int) -> None:
        """Keep another descriptor of a blob that was just opened; the caller goes on with its own.

        Nothing is kept when anything was forgotten since `forgotten`: it may have been this very file.
        """
        with self._lock:
            if forgotten != self._forgotten or blob.sha256 in self._kept:
                return
            state = _state(blob.fd)
            if state[0] == 0:  # no name leads to it any more
                return
            self._kept[blob.sha256] = _Kept(blob.duplicate(), state)
            if len(self._kept) > self._blobs_max:
                self._drop(next(iter(self._kept)))

    def forget(self, sha256: str) -> None:
        """What lies under that name is, or will be, another file or none."""
        with self._lock:
            self._forgotten += 1
            self._drop(sha256)

    def close(self) -> None:
        """Close all of them; those that were taken stay readable."""
        with self._lock:
            self._forgotten += 1
            for sha256 in list(self._kept):
                self._drop(sha256)

    def _drop(self, sha256: str) -> None:
        kept = self._kept.pop(sha256, None)
        if kept is not None:
            kept.blob.close()


def _state(descriptor: int) -> _State:
    facts = os.fstat(descriptor)
    return (
        facts.st_nlink,
        facts.st_dev,
        facts.st_ino,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
    )
