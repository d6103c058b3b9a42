"""Blobs that stay open, so that a hot one costs no walk through directories and no sidecar read per request.

The bytes of a small one stay too once they were read, and are handed out under the same conditions as those
in the page cache: the file is what it was, and its segment is trusted now. They were right when they were
read, whatever becomes of the file: so it is looked at every LOOK_S only, for its own sake.

Bounded: the one used longest ago is closed first. What is kept under a name is handed out only while the file
is what it was when it was opened: a link less, a rename or a write shows in what the kernel tells about it.
So that no descriptor here holds the room of a file that is gone, the store also says at once when a name is
deleted, replaced or quarantined (`forget`), and what other processes did to files is looked for now and then
(`drop_changed`). For any thread.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from node.packs.store import BLOB_BYTES_MAX
from node.storage.segments import OpenBlob
from node.storage.verified_segments import FileIdentity
from runtime.lifetime import descriptor_limit

OPEN_BLOBS_MAX = 256  # descriptors
OPEN_BLOBS_SHARE = 10  # of those that a process may have, where that is less
CONTENT_BYTES_MAX = BLOB_BYTES_MAX  # of one that is in memory too: 32 MiB for all, twice that for packed ones
LOOK_S = 0.1  # between two looks at the file of a blob that is in memory


@dataclass(slots=True)
class _CachedBlob:
    blob: OpenBlob
    identity: FileIdentity
    state: object
    content: bytes = b""  # all of it, of a small blob that was read
    looked_at_s: float = float("-inf")  # at the file, since the content was read

    def is_sound(self) -> bool:
        """Whether the content in memory is that of the file. Raises OSError."""
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
        """Whether the file is what it was when it was opened. Raises OSError."""
        return self.blob.state() == self.state


class OpenBlobs:
    """Open blobs by their sha256. Whoever takes one has a descriptor of its own, and closes it."""

    def __init__(self, *, blobs_max: int = OPEN_BLOBS_MAX) -> None:
        self._blobs_max = min(blobs_max, descriptor_limit() // OPEN_BLOBS_SHARE)
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, _CachedBlob] = OrderedDict()
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def forgotten(self) -> int:
        """How often something was forgotten: take this before opening what is to be kept."""
        return self._forgotten

    def take(self, sha256: str) -> OpenBlob | None:
        """The blob, opened once more, or None when it is not kept. No disk is touched. Raises OSError."""
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
        """These bytes (not empty) if nothing has to be waited for.

        That is so for a kept blob, trusted, in memory or the page cache. `size_bytes`: its size, as the log
        names it; one of another size is left to `OpenBlob.require_size`.

        Else b"". For the event loop, and for little at a time: others wait meanwhile. Raises OSError.
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
            if cached.content:
                return cached.content[start:stop]
            piece = cached.blob.read_cached(start, stop - start)
            if stop - start == cached.blob.size_bytes <= CONTENT_BYTES_MAX:
                # A change since the look at the file shows at the next look, before this is used.
                cached.content, cached.looked_at_s = piece, float("-inf")
            return piece

    def keep(self, blob: OpenBlob, *, forgotten: int) -> None:
        """Keep another descriptor of a blob that was just opened; the caller goes on with its own.

        Nothing is kept when anything was forgotten since `forgotten`: it may have been this very file.
        """
        with self._lock:
            if forgotten != self._forgotten or blob.sha256 in self._cached:
                return
            state = blob.state()
            if state is None:  # no name leads to it any more
                return
            self._cached[blob.sha256] = _CachedBlob(blob.duplicate(), FileIdentity.of(blob.fd), state)
            if len(self._cached) > self._blobs_max:
                self._drop(next(iter(self._cached)))

    def forget(self, sha256: str) -> None:
        """Forget the blob with this name, as its file is or will be another one."""
        with self._lock:
            self._forgotten += 1
            self._drop(sha256)

    def drop_changed(self) -> None:
        """Close those whose file is not what it was: another process may have deleted it."""
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
        """Close all of them; those that were taken stay readable."""
        with self._lock:
            self._forgotten += 1
            for sha256 in list(self._cached):
                self._drop(sha256)

    def _drop(self, sha256: str) -> None:
        cached = self._cached.pop(sha256, None)
        if cached is not None:
            cached.blob.close()
