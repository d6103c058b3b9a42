"""Blobs that stay open, so that a hot one needs no walk through directories and no sidecar read per request.

The content of a small blob is kept too once it was read. It is handed out under the same conditions as bytes
in the page cache: the file is unchanged, and its segment is trusted now. The bytes were right when they were
read, so the file is looked at only every LOOK_S.

The number is bounded: the least recently used blob is closed first. A kept blob is handed out only while its
file is unchanged since it was opened: a removed link, a rename or a write changes what the kernel reports. A
descriptor here must not hold the room of a deleted file. So the store calls `forget` at once when a name is
deleted, replaced or quarantined, and `drop_changed` looks now and then for changes by other processes. For
any thread.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from node.packs.store import BLOB_BYTES_MAX
from node.storage.segments import OpenBlob
from node.storage.verified_segments import FileIdentity
from runtime.lifetime import descriptor_limit

OPEN_BLOBS_MAX = 256  # descriptors
OPEN_BLOBS_SHARE = 10  # this part of the descriptors of the process, if that is less
CONTENT_BYTES_MAX = BLOB_BYTES_MAX  # of content in memory too: 32 MiB for all, twice that for packed ones
LOOK_S = 0.1  # between two looks at the file of a blob that is in memory


@dataclass(slots=True)
class _CachedBlob:
    blob: OpenBlob
    identity: FileIdentity
    state: object
    content: bytes = b""  # all of it, of a small blob that was read
    looked_at_s: float = float("-inf")  # at the file, since the content was read

    def is_sound(self) -> bool:
        """Return whether the content in memory is that of the file. Raises OSError."""
        now_s = time.monotonic()
        if self.content and now_s - self.looked_at_s < LOOK_S:
            return True
        self.looked_at_s = now_s
        return self.is_unchanged()

    def is_known(self) -> bool:
        """Return whether the blob is unchanged and still here; False if the disk fails."""
        try:
            return self.is_unchanged() and self.blob.is_here()
        except OSError:
            return False

    def is_unchanged(self) -> bool:
        """Return whether the file is unchanged since it was opened. Raises OSError."""
        return self.blob.state() == self.state


class OpenBlobs:
    """Open blobs by their sha256.

    `take` returns a descriptor of the caller's own, which the caller closes.
    """

    def __init__(self, *, blobs_max: int = OPEN_BLOBS_MAX) -> None:
        self._blobs_max = min(blobs_max, descriptor_limit() // OPEN_BLOBS_SHARE)
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, _CachedBlob] = OrderedDict()
        self._forgotten = 0
        self.asked: Callable[[str], None] = lambda _sha256: None  # is called with each name that is read

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def forgotten(self) -> int:
        """Return how many names were forgotten: read this before opening a blob that is to be kept."""
        return self._forgotten

    def take(self, sha256: str) -> OpenBlob | None:
        """Return another descriptor of a kept blob, or None. Does no disk I/O. Raises OSError."""
        self.asked(sha256)
        with self._lock:
            cached = self._cached.get(sha256)
            if cached is None:
                return None
            if not cached.is_unchanged():
                self._drop(sha256)
                return None
            self._cached.move_to_end(sha256)
            return cached.blob.duplicate()

    def read_cached(self, sha256: str, start: int, stop: int, *, size_bytes: int | None = None) -> bytes:
        """Return these bytes (not an empty range) if that needs no waiting, otherwise b"".

        That holds for a kept, trusted blob in memory or the page cache. `size_bytes`: the size in the log; a
        blob of another size is left to `OpenBlob.require_size`.

        For the event loop and few bytes at a time, as others wait meanwhile. Raises OSError.
        """
        with self._lock:
            cached = self._cached.get(sha256)
            if cached is None or stop > cached.blob.size_bytes:
                return b""
            if size_bytes not in (None, cached.blob.size_bytes):
                return b""
            if not cached.is_sound():
                self._drop(sha256)
                return b""
            self._cached.move_to_end(sha256)
            if not cached.blob.is_trusted(start, stop, identity=cached.identity):
                return b""
            self.asked(sha256)
            if cached.content:
                return cached.content[start:stop]
            piece = cached.blob.read_cached(start, stop - start)
            if stop - start == cached.blob.size_bytes <= CONTENT_BYTES_MAX:
                # A change since the look at the file shows at the next look, before this is used.
                cached.content, cached.looked_at_s = piece, float("-inf")
            return piece

    def keep(self, blob: OpenBlob, *, forgotten: int) -> None:
        """Keep another descriptor of a blob that was just opened; the caller keeps its own.

        Nothing is kept if any name was forgotten since `forgotten`, as that may have been this file.
        """
        with self._lock:
            if forgotten != self._forgotten or blob.sha256 in self._cached:
                return
            state = blob.state()
            if state is None:  # the file has no name any more
                return
            self._cached[blob.sha256] = _CachedBlob(blob.duplicate(), blob.file_identity(), state)
            if len(self._cached) > self._blobs_max:
                self._drop(next(iter(self._cached)))

    def forget(self, sha256: str) -> None:
        """Forget the blob with this name, as its file is or will be replaced."""
        with self._lock:
            self._forgotten += 1
            self._drop(sha256)

    def drop_changed(self) -> None:
        """Close the blobs whose file has changed, for example because another process deleted it."""
        with self._lock:
            kept = list(self._cached.items())
        changed = [
            (sha256, cached) for sha256, cached in kept if not cached.is_known()
        ]  # may wait for the disk
        with self._lock:
            for sha256, cached in changed:
                if self._cached.get(sha256) is cached:
                    self._drop(sha256)

    def close(self) -> None:
        """Close all kept blobs; those that were handed out stay readable."""
        with self._lock:
            self._forgotten += 1
            for sha256 in list(self._cached):
                self._drop(sha256)

    def _drop(self, sha256: str) -> None:
        cached = self._cached.pop(sha256, None)
        if cached is not None:
            cached.blob.close()
