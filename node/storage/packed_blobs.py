"""The small blobs of a store, which lie in packs (`node/packs/store.py`): what `BlobStore` asks about them.

A packed blob is read whole when it is opened, and compared with its checksum then: what is handed out lies in
memory, under a descriptor of its own, so that whoever reads or sends a blob need not know where it lies. What
is not packed is not here: callers look for a file then. All calls block, but for those that say otherwise.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from node.diskio.durable import Disk, Octets
from node.packs.rows import PackedBlob
from node.packs.store import BLOB_BYTES_MAX, PackStore, RecordDamaged
from node.storage.segments import (
    BlobDamaged,
    OpenBlob,
    SegmentSums,
    WholeRead,
    segment_count,
)
from node.storage.verified_segments import FileIdentity, TrustedSegments

PAGE_BLOBS = 1000  # names that are read at once


class OpenPackedBlob(OpenBlob):
    """A packed blob; `fd` is that of its bytes in memory, which were found sound."""

    def __init__(
        self,
        content: bytes,
        found: PackedBlob,
        store: PackStore,
        trusted: TrustedSegments,
        *,
        fd: int = -1,
        is_afresh: bool = False,
    ) -> None:
        """`fd`: of memory that has the content already. `is_afresh`: it was read from the medium for this.

        Raises OSError.
        """
        descriptor = fd if fd >= 0 else in_memory(content)
        super().__init__(fd=descriptor, sha256=found.sha256.hex(), sums=sums_of(found), trusted=trusted)
        self._content, self._found, self._store = content, found, store
        self._is_afresh = is_afresh

    def state(self) -> object:
        """Its place: what was read from there was right, whatever becomes of that."""
        return self._found.place

    def is_here(self) -> bool:
        """Whether it is in its place still. Raises OSError."""
        return any(each.place == self._found.place for each in self._store.index.copies(self._found.sha256))

    def is_cached(self, start: int, stop: int) -> bool:  # noqa: ARG002
        """All of it is in memory."""
        return stop <= len(self._content)

    def read_cached(self, start: int, size_bytes: int) -> bytes:
        """These bytes."""
        return self._content[start : start + size_bytes]

    def read_now(self, start: int, buffer: memoryview) -> int:
        """Fill the buffer from `start` on: how many bytes."""
        piece = self._content[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def verify_on_medium(self, index: int, whole: WholeRead) -> bool:
        """Reads the record from the disk, unless that was done when it was opened, and compares it."""
        if self._is_afresh:
            return self.verify_segment(index, whole)
        self._store.drop_pages(self._found)
        try:
            loaded = self._store.load(self._found.sha256)
        except RecordDamaged:
            return False
        return (loaded is None or loaded[1] == self._content) and self.verify_segment(index, whole)

    def verify_range(self, start: int, stop: int) -> None:
        """It was compared when it was opened."""
        assert 0 <= start <= stop <= self.size_bytes

    def is_trusted(self, _start: int, _stop: int, *, identity: FileIdentity | None = None) -> bool:
        """It was compared when it was opened."""
        del identity
        return True

    def duplicate(self) -> "OpenPackedBlob":
        """Return a copy with its own descriptor. Raises OSError."""
        return OpenPackedBlob(self._content, self._found, self._store, self._trusted, fd=os.dup(self.fd))

    def identity(self) -> tuple[int, int]:
        """Return its identity: pack and offset."""
        return identity_of(self._found)


class PackedBlobs:
    """The packed blobs of one store. For any thread.

    `takes_new`: whether new blobs come into packs. 0.1.0 would not find them, so that is said once the
    cluster has gone on to rules that it does not know.
    """

    def __init__(self, directory: Path, disk: Disk, trusted: TrustedSegments) -> None:
        """Open what is there. Raises OSError."""
        self.takes_new: Callable[[], bool] = lambda: False
        self._trusted = trusted
        self.store = PackStore(directory / "packs", disk=disk)

    def close(self) -> None:
        """Give the packs back."""
        self.store.close()

    def takes(self, size_bytes: int) -> bool:
        """Whether a new blob of so many bytes comes into a pack. Blocks for nothing."""
        return size_bytes <= BLOB_BYTES_MAX and self.takes_new()

    def put(self, blobs: Sequence[tuple[str, Octets]]) -> None:
        """Store blobs that hash to their names under one sync; durable on return. Raises OSError."""
        self.store.put([(bytes.fromhex(sha256), content) for sha256, content in blobs])

    def open(self, sha256: str, *, is_afresh: bool = False) -> OpenPackedBlob | None:
        """The blob, to be closed by the caller; None when it is not packed. Raises BlobDamaged, OSError.

        `is_afresh`: as the medium has it, whatever lies in memory. Other records of the blob count no more
        then. They are back if the index was rebuilt, and a damaged one would keep its pack for ever.
        """
        copies = self.copies(sha256) if is_afresh else []
        for copy in copies:
            with suppress(OSError):  # of a pack that is not to be read, as is found next
                self.store.drop_pages(copy)
        try:
            loaded = self.store.load(bytes.fromhex(sha256))
        except RecordDamaged as error:
            raise damaged(error.blob) from error
        if loaded is None:
            return None
        others = [each for each in copies if each.place != loaded[0].place]
        with suppress(OSError):  # the next time, then
            if others:
                self.store.index.take_out(others)
        return OpenPackedBlob(loaded[1], loaded[0], self.store, self._trusted, is_afresh=is_afresh)

    def find(self, sha256: str) -> PackedBlob | None:
        """Return the position of a packed blob, the newest of several, or None. Raises OSError."""
        copies = self.copies(sha256)
        return max(copies, key=lambda each: each.affirmed_at_ns) if copies else None

    def copies(self, sha256: str) -> list[PackedBlob]:
        """Every place that it lies in; more than one for a moment. Raises OSError."""
        return self.store.index.copies(bytes.fromhex(sha256))

    def lies_there(self, found: PackedBlob) -> bool:
        """Whether its pack reaches as far as it; nothing of it is read. Raises OSError."""
        return self.store.reaches(found)

    def remove(self, sha256: str, *, unless: Callable[[], bool]) -> bool:
        """Remove a blob like `PackStore.remove`. Raises OSError."""
        return self.store.remove(bytes.fromhex(sha256), unless=unless)

    def remove_copy(self, found: PackedBlob) -> bool:
        """Have one record count no more; False if it does not, or somebody was told of it since it was found.

        Raises OSError.
        """
        return self.store.index.take_out([found])

    def read_damaged(self, found: PackedBlob) -> bytes:
        """Return the bytes in its place like `PackStore.read_damaged`. Raises OSError."""
        return self.store.read_damaged(found)

    def names(self) -> Iterator[str]:
        """The names of all, ascending. One that comes meanwhile may be missed. Raises OSError."""
        after = b""
        while page := self.store.after(after, PAGE_BLOBS):
            yield from (sha256.hex() for sha256, _ in page)
            after = page[-1][0]

    def affirm(self, sha256: str) -> bool:
        """Somebody is told that it is here; False when it is not packed. Raises OSError."""
        return self.store.index.affirm(bytes.fromhex(sha256), time.time_ns())

    def unclaimed(self, limit: int) -> list[tuple[str, int]]:
        """Return unclaimed blobs, with their arrival in ns since the epoch. Raises OSError."""
        found = self.store.index.unclaimed(limit)
        return [(sha256.hex(), at_ns) for sha256, at_ns in found]

    def unclaimed_at_ns(self, sha256: str) -> int | None:
        """When a blob came that nobody has claimed yet. Raises OSError."""
        return self.store.index.unclaimed_at_ns(bytes.fromhex(sha256))

    def forget_unclaimed(self, sha256: str, at_ns: int) -> None:
        """It was claimed, or is gone; one that came again since stays. Raises OSError."""
        self.store.index.forget_unclaimed(bytes.fromhex(sha256), at_ns)

    def heal(self) -> bool:
        """Rebuild a damaged index like `PackStore.heal`. Raises OSError."""
        return self.store.heal()

    def drop_gone(self) -> None:
        """Give back the room of packs that another process has removed. Raises OSError."""
        self.store.drop_gone()


def identity_of(found: PackedBlob) -> tuple[int, int]:
    """Return the identity of a packed blob, as in `BlobDamaged.file`."""
    return found.place.pack, found.place.offset


def damaged(found: PackedBlob) -> BlobDamaged:
    """The error to raise about a record that is not what was written."""
    why = "its record in a pack does not match its checksum"
    segment = 0 if segment_count(found.length) else None
    return BlobDamaged(found.sha256.hex(), why, file=identity_of(found), segment=segment)


def sums_of(found: PackedBlob) -> SegmentSums:
    """Return the checksums that a sidecar would have."""
    return SegmentSums(found.length, found.digest * segment_count(found.length))


def in_memory(content: bytes) -> int:
    """A descriptor of these bytes. Raises OSError."""
    descriptor = os.memfd_create("blob", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
