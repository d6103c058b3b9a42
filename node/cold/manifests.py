"""The manifests of a node on its disk, and drafts of manifests.

    DIR/cold/ab/SHA256    a manifest, mode 0400; its time of change is the last affirmation
    DIR/drafts/NAME       a manifest under way, locked by its process

`cold` is changed only under the lock for placing (`node/storage/placement_lock.py`). Each change is durable
when the lock is released. All calls block, and raise OSError. For any thread.
"""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Self

from metadata.model.identifiers import is_sha256
from node.cold.chunks import ChunkStore
from node.cold.manifest import (
    HEADER_BYTES,
    MANIFEST_BYTES_MAX,
    ColdManifest,
    ContentChunk,
    encode_chunks,
    encode_manifest,
)
from node.diskio.areas import Areas
from node.diskio.durable import DirectorySyncs, Disk, write_all
from node.diskio.fs import READ_FLAGS, closing_descriptor, mkdir, opened_directory, remove_tree, unlink

COLD: Final = "cold"
DRAFTS: Final = "drafts"
_CREATE_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UPPERS: Final = tuple(f"{number:02x}" for number in range(256))


class ManifestFiles:
    """The directories of manifests. One per process and data directory."""

    def __init__(self, areas: Areas, disk: Disk, placing: AbstractContextManager[None]) -> None:
        self._disk, self._placing = disk, placing
        self._cold, self.drafts = areas.keep_open(COLD), areas.keep_open(DRAFTS)
        self.syncs = DirectorySyncs()
        self._durable = set[str]()  # directories whose names this process has synced

    def open(self, sha256: str) -> int:
        """Return a descriptor of a manifest. Raises FileNotFoundError."""
        with self._upper(sha256) as upper:
            return os.open(sha256, READ_FLAGS, dir_fd=upper)

    def stat(self, sha256: str) -> os.stat_result:
        """Return the facts about a manifest. Raises FileNotFoundError."""
        with self._upper(sha256) as upper:
            return os.stat(sha256, dir_fd=upper, follow_symlinks=False)

    def names(self) -> Iterator[str]:
        """Yield the blobs with a manifest, ascending, one directory in memory at a time."""
        for upper in _UPPERS:
            yield from self._listed(upper)

    def all_names(self) -> list[str]:
        """Return the blobs with a manifest at one moment.

        Raises OSError also if a change of a directory cannot be made durable.
        """
        with self._placing:
            for upper in filter(self.syncs.is_due, _UPPERS):
                with opened_directory(upper, parent=self._cold) as directory:
                    self.syncs.sync(self._disk, directory, upper)
            return list(self.names())

    def state(self) -> tuple[int, ...]:
        """Return a state that changes when a manifest or a draft comes or goes, in any process."""
        found = [os.fstat(self.drafts).st_mtime_ns]
        for upper in _UPPERS:
            with suppress(FileNotFoundError):
                found.append(os.stat(upper, dir_fd=self._cold).st_mtime_ns)
        return tuple(found)

    def place(self, draft: str, sha256: str, *, unless: Callable[[], bool]) -> bool:
        """Give a synced draft the name of its blob, durably; return False if `unless` returns True.

        `unless` is called while no blob is placed or removed.
        """
        mkdir(sha256[:2], parent=self._cold)
        if sha256[:2] not in self._durable:  # another process may have made it and been killed
            self._disk.fsync(self._cold)
            self._durable.add(sha256[:2])
        with self._placing, self._upper(sha256) as upper:
            if unless():
                return False
            os.rename(draft, sha256, src_dir_fd=self.drafts, dst_dir_fd=upper)
            self.syncs.sync(self._disk, upper, sha256[:2])
        return True

    def remove(self, sha256: str, *, unless: Callable[[], bool]) -> bool:
        """Remove a manifest, durably; return False if there was none, or `unless` returns True.

        `unless` is called while no blob is placed or removed.
        """
        try:
            with self._placing, self._upper(sha256) as upper:
                os.stat(sha256, dir_fd=upper, follow_symlinks=False)
                if unless():
                    return False
                remove_tree(sha256, parent=upper)
                self.syncs.sync(self._disk, upper, sha256[:2])
        except FileNotFoundError:
            return False
        return True

    def touch(self, sha256: str, at_ns: int) -> bool:
        """Set the time of the last affirmation; return False without a manifest."""
        try:
            with self._upper(sha256) as upper:
                os.utime(sha256, ns=(at_ns, at_ns), dir_fd=upper, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def draft_names(self) -> list[str]:
        """Return the drafts of running processes; those that a crash has left are removed."""
        found = []
        for name in sorted(os.listdir(self.drafts)):
            with suppress(FileNotFoundError):
                if self._is_locked(name):
                    found.append(name)
        return found

    def _is_locked(self, name: str) -> bool:
        with closing_descriptor(os.open(name, READ_FLAGS, dir_fd=self.drafts)) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            unlink(name, parent=self.drafts)
            return False

    def _listed(self, upper: str) -> list[str]:
        """Return the blobs with a manifest in a directory, ascending."""
        try:
            with opened_directory(upper, parent=self._cold) as directory:
                names = os.listdir(directory)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.startswith(upper) and is_sha256(name))

    @contextmanager
    def _upper(self, sha256: str) -> Iterator[int]:
        with opened_directory(sha256[:2], parent=self._cold) as upper:
            yield upper


class Draft:
    """A manifest under way. It names chunks before its owner counts on them, so that they stay.

    Leave it with `with`: without `place` it is removed. Not for two threads at once.
    """

    def __init__(self, files: ManifestFiles, chunks: ChunkStore, disk: Disk) -> None:
        self._files, self._chunks, self._disk = files, chunks, disk
        self._entries = bytearray()
        self.size_bytes = 0
        self._name, self._descriptor = self._created()

    def add(self, chunks: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """Add the next chunks, ids with sizes; return which are here. The others are to be `put`.

        From now on neither goes, as long as this draft, or its manifest, is there.
        """
        added, at = [], self.size_bytes
        for chunk_id, size_bytes in chunks:
            added.append(ContentChunk(chunk_id, at, at + size_bytes))
            at += size_bytes
        encoded = encode_chunks(added)
        write_all(self._disk, self._descriptor, encoded, HEADER_BYTES + len(self._entries))
        self._entries += encoded
        self.size_bytes = at
        return self._chunks.affirm(chunk_id for chunk_id, _ in chunks)

    def manifest(self, sha256: str, digests: bytes = b"") -> ColdManifest:
        """Return the manifest so far."""
        return ColdManifest(sha256, self.size_bytes, bytes(self._entries), digests)

    def place(self, manifest: ColdManifest, *, unless: Callable[[], bool]) -> tuple[int, int] | None:
        """Make it the manifest of a blob, durable on return, and return its device and inode.

        The caller has proved that the chunks are the blob, and that they are durable. None if `unless`, which
        is called while no blob is placed or removed, returns True.
        """
        raw = encode_manifest(manifest)
        assert len(raw) <= MANIFEST_BYTES_MAX
        # The same ids stay in their place meanwhile: a collection may read it now.
        write_all(self._disk, self._descriptor, raw, 0)
        os.ftruncate(self._descriptor, len(raw))
        os.fchmod(self._descriptor, 0o400)
        self._disk.fsync(self._descriptor)
        if not self._files.place(self._name, manifest.sha256, unless=unless):
            return None
        self._name = ""
        facts = os.fstat(self._descriptor)
        return facts.st_dev, facts.st_ino

    def close(self) -> None:
        """Give it up, unless it was placed. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            if self._name:
                unlink(self._name, parent=self._files.drafts)
        finally:
            os.close(descriptor)

    def _created(self) -> tuple[str, int]:
        while True:
            name = secrets.token_hex(16)
            descriptor = os.open(name, _CREATE_FLAGS, 0o600, dir_fd=self._files.drafts)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return name, descriptor
            os.close(descriptor)  # a collection took it for one that a crash has left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_descriptor(descriptor: int) -> bytes:
    """Return the content of a manifest or draft, one byte over MANIFEST_BYTES_MAX at most."""
    content, at = bytearray(), 0
    while at <= MANIFEST_BYTES_MAX and (piece := os.pread(descriptor, 1 << 20, at)):
        content += piece
        at += len(piece)
    return bytes(content)
