"""Replicas in transfer to this node, kept over a crash: verified and durable segments are not sent again.

    DIR/partials/SHA256/content   the bytes so far, each in its place; holes where none has come
    DIR/partials/SHA256/state     which segments of it are verified and durable

`state` is a header, which names the checksums that segments were verified against, and one record for each
span of segments. Header and records carry their own CRC. `node/storage/content_file.py` says in which order
they are written. Everything behind a torn record counts as never written.

A partial has one holder, known by a lock on its directory that ends with the process. A partial that no
process holds is deleted if it is older than PARTIAL_S, or if its room is needed. All calls block: they belong
into worker threads.
"""

import fcntl
import os
import threading
import time
from contextlib import ExitStack, suppress

from ca.errors import Unavailable
from metadata.model.identifiers import is_sha256
from node.diskio.fs import open_directory, opened_directory, remove_tree, storage_errors
from node.storage.blobs import BlobStore
from node.storage.partial_blob import STATE, Partial, open_files
from node.storage.segments import FinishedBlob, SegmentSums

AREA = "partials"
PARTIALS_MAX = 32  # on one disk, including those that no request fetches now
PARTIAL_S = 86_400.0  # after this time without a new segment, the blob was stored some other way
_HOLD_TRIES_MAX = 3  # another process may remove the directory between our opening and locking it


class PartialStore:
    """The partial replicas of one blob store. For any thread, and for several processes on one disk."""

    def __init__(self, blobs: BlobStore, *, partials_max: int = PARTIALS_MAX) -> None:
        self.blobs = blobs
        self._partials_max = partials_max
        self._root = blobs.partials_directory
        self._lock = threading.Lock()
        self._held = set[Partial]()

    def open(self, blob: FinishedBlob, sums: SegmentSums) -> Partial:
        """Open the existing part of the blob, verified against `sums`; empty if nothing is usable.

        Raises Unavailable while another holds it or too many are held, InsufficientStorage if there is no
        room for the rest, Internal.
        """
        assert sums.size_bytes == blob.size_bytes
        with storage_errors(), ExitStack() as undo:
            directory = self._hold(blob.sha256)
            undo.callback(os.close, directory)
            content, record = open_files(self.blobs.disk, blob, sums, directory)
            undo.pop_all()
            partial = Partial(
                self.blobs,
                blob,
                sums,
                content=content,
                record=record,
                directory=directory,
                unsynced=(directory, self._root),  # the process that created it may have died just before
                discard=lambda: self.remove(blob.sha256),
                give_back=self._give_back,
            )
            undo.callback(partial.close)
            partial.sync_names()
            self._require_room(partial)
            undo.pop_all()
        return partial

    def clean(self, older_than_s: float = PARTIAL_S) -> int:
        """Remove partials that no process holds and that got no segment for this long; return how many.

        Other names in the directory are left alone, and so is what cannot be removed.
        """
        names: list[str] = []
        with self.blobs.poison.skipping(AREA, ""):
            names = self._names()
            self.blobs.poison.keep(AREA, names)
        old = [name for name in names if time.time() - self._changed_at_s(name) >= older_than_s]
        return sum(self._remove_idle(name) for name in old)

    def remove(self, sha256: str) -> None:
        """Remove a partial, which the caller holds. If that fails, it is reported and stays."""
        with self.blobs.poison.skipping(AREA, sha256), suppress(FileNotFoundError):
            remove_tree(sha256, parent=self._root)

    def _require_room(self, partial: Partial) -> None:
        """Raise InsufficientStorage unless this partial, the other held ones and the reserve have room."""
        with self._lock:
            self._held.add(partial)
            lacking_bytes = sum(each.lacking_bytes for each in self._held)
        if lacking_bytes > self.blobs.room_bytes():
            for name in self._names():
                self._remove_idle(name)
        self.blobs.require_room(lacking_bytes)

    def _give_back(self, partial: Partial) -> None:
        with self._lock:
            self._held.discard(partial)

    def _hold(self, name: str) -> int:
        """Open and lock the directory of the partial; return its descriptor. Raises Unavailable, OSError."""
        for _ in range(_HOLD_TRIES_MAX):
            self._make(name)
            try:
                directory = open_directory(name, parent=self._root)
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                self.remove(name)  # a foreign file: no process of ours put it there
                continue
            if self._is_locked(name, directory):
                return directory
            os.close(directory)
        raise Unavailable("This blob is already being fetched.", retry_after_s=2)

    def _make(self, name: str) -> None:
        # Partials that cannot be removed are useless.
        names = set(self._names()) - self.blobs.poison.names(AREA)
        if name not in names and len(names) >= self._partials_max and not self._remove_oldest_idle():
            raise Unavailable(f"{len(names)} blobs are already being fetched.", retry_after_s=2)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._root)

    def _is_locked(self, name: str, directory: int) -> bool:
        """Return whether this process has the lock now, and the directory still has that name."""
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            named = os.stat(name, dir_fd=self._root, follow_symlinks=False)
        except (BlockingIOError, FileNotFoundError):
            return False
        return os.path.samestat(named, os.fstat(directory))

    def _remove_oldest_idle(self) -> bool:
        return any(self._remove_idle(name) for name in sorted(self._names(), key=self._changed_at_s))

    def _remove_idle(self, name: str) -> bool:
        """Remove a partial that no process holds; return whether it is gone now."""
        try:
            with opened_directory(name, parent=self._root) as directory:
                if not self._is_locked(name, directory):
                    return False
                self.remove(name)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            self.remove(name)
        except OSError as error:
            self.blobs.poison.note(AREA, name, error)
        return name not in self.blobs.poison.names(AREA)

    def _names(self) -> list[str]:
        return [name for name in os.listdir(self._root) if is_sha256(name)]

    def _changed_at_s(self, name: str) -> float:
        """Return when its last record was written; 0 if it has none."""
        try:
            with opened_directory(name, parent=self._root) as directory:
                return os.stat(STATE, dir_fd=directory, follow_symlinks=False).st_mtime
        except OSError:
            return 0.0
