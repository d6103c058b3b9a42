"""The small blobs of a store, which are kept in packs (`node/packs/store.py`), as `BlobStore` uses them.

Opening a packed blob reads it whole and compares it with its checksum. Its bytes are then in memory under a
descriptor of their own, so readers and senders treat it like a file. If a blob is not packed, the caller
looks for a file. All calls block, except those that say otherwise.
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

PAGE_BLOBS = 1000  # this many names are read at once


class OpenPackedBlob(OpenBlob):
    """A packed blob; `fd` is a descriptor of its bytes in memory, which were found sound."""

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
        """Hold packed content in memory. Raises OSError.

        `fd`: a descriptor of memory that has the content already. `is_afresh`: the content was just read from
        the medium.
        """
        descriptor = fd if fd >= 0 else memory_descriptor(content)
        super().__init__(fd=descriptor, sha256=found.sha256.hex(), sums=sums_of(found), trusted=trusted)
        self._content, self._found, self._store = content, found, store
        self._is_afresh = is_afresh

    def state(self) -> object:
        """Return its position: bytes that were read from there stay right, even if the record is removed."""
        return self._found.place

    def is_here(self) -> bool:
        """Return whether the record is still in its place. Raises OSError."""
        return any(each.place == self._found.place for each in self._store.index.copies(self._found.sha256))

    def is_cached(self, start: int, stop: int) -> bool:  # noqa: ARG002
        """Return True: all of it is in memory."""
        return stop <= len(self._content)

    def read_cached(self, start: int, size_bytes: int) -> bytes:
        """Return these bytes."""
        return self._content[start : start + size_bytes]

    def read_now(self, start: int, buffer: memoryview) -> int:
        """Fill the buffer from `start` on; return how many bytes."""
        piece = self._content[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def verify_on_medium(self, index: int, whole: WholeRead) -> bool:
        """Read the record from the disk, unless opening it did so, and compare it."""
        if self._is_afresh:
            return self.verify_segment(index, whole)
        self._store.drop_pages(self._found)
        try:
            loaded = self._store.load(self._found.sha256)
        except RecordDamaged:
            return False
        return (loaded is None or loaded[1] == self._content) and self.verify_segment(index, whole)

    def verify_range(self, start: int, stop: int) -> None:
        """Do nothing: opening the blob compared it."""
        assert 0 <= start <= stop <= self.size_bytes

    def is_trusted(self, _start: int, _stop: int, *, identity: FileIdentity | None = None) -> bool:
        """Return True: opening the blob compared it."""
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

    `takes_new`: whether new blobs are stored in packs. Release 0.1.0 would not find them, so this is set only
    after the cluster has switched to newer rules.
    """

    def __init__(self, directory: Path, disk: Disk, trusted: TrustedSegments) -> None:
        """Open the packs in the directory. Raises OSError."""
        self.takes_new: Callable[[], bool] = lambda: False
        self._trusted = trusted
        self.store = PackStore(directory / "packs", disk=disk)

    def close(self) -> None:
        """Close the packs."""
        self.store.close()

    def is_packable(self, size_bytes: int) -> bool:
        """Return whether a new blob of this size is stored in a pack. Does not block."""
        return size_bytes <= BLOB_BYTES_MAX and self.takes_new()

    def put(self, blobs: Sequence[tuple[str, Octets]]) -> None:
        """Store blobs that hash to their names under one sync; durable on return. Raises OSError."""
        self.store.put([(bytes.fromhex(sha256), content) for sha256, content in blobs])

    def open(self, sha256: str, *, is_afresh: bool = False) -> OpenPackedBlob | None:
        """Open a blob; the caller closes it. Return None if it is not packed. Raises BlobDamaged, OSError.

        `is_afresh`: read from the medium, even if it is in memory. Then other records of the blob are
        forgotten: a rebuilt index brings them back, and a damaged one would keep its pack for ever.
        """
        copies = self.copies(sha256) if is_afresh else []
        for copy in copies:
            with suppress(OSError):  # the pack may be unreadable, which the next read reports
                self.store.drop_pages(copy)
        try:
            loaded = self.store.load(bytes.fromhex(sha256))
        except RecordDamaged as error:
            raise damage_error(error.blob) from error
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
        """Return every position of the blob; more than one only for a moment. Raises OSError."""
        return self.store.index.copies(bytes.fromhex(sha256))

    def is_within_pack(self, found: PackedBlob) -> bool:
        """Return whether its pack is long enough to contain it; reads none of it. Raises OSError."""
        return self.store.reaches(found)

    def remove(self, sha256: str, *, unless: Callable[[], bool]) -> bool:
        """Remove a blob like `PackStore.remove`. Raises OSError."""
        return self.store.remove(bytes.fromhex(sha256), unless=unless)

    def remove_copy(self, found: PackedBlob) -> bool:
        """Remove one record; return False if it is gone or its blob was affirmed since it was found.

        Raises OSError.
        """
        return bool(self.store.index.take_out([found]))

    def read_damaged(self, found: PackedBlob) -> bytes:
        """Return the bytes in its place like `PackStore.read_damaged`. Raises OSError."""
        return self.store.read_damaged(found)

    def names(self) -> Iterator[str]:
        """Yield all names, ascending. A blob that arrives meanwhile may be missed. Raises OSError."""
        after = b""
        while page := self.store.after(after, PAGE_BLOBS):
            yield from (sha256.hex() for sha256, _ in page)
            after = page[-1][0]

    def affirm(self, sha256: str) -> bool:
        """Keep the blob for a while, as a caller reports that it is here; return False if it is not packed.

        Raises OSError.
        """
        return self.store.index.affirm(bytes.fromhex(sha256), time.time_ns())

    def list_unclaimed(self, limit: int) -> list[tuple[str, int]]:
        """Return unclaimed blobs, with their arrival in ns since the epoch. Raises OSError."""
        found = self.store.index.list_unclaimed(limit)
        return [(sha256.hex(), at_ns) for sha256, at_ns in found]

    def unclaimed_at_ns(self, sha256: str) -> int | None:
        """Return when a blob arrived that no record of the log has claimed yet. Raises OSError."""
        return self.store.index.unclaimed_at_ns(bytes.fromhex(sha256))

    def forget_unclaimed(self, sha256: str, at_ns: int) -> None:
        """Forget the arrival of a blob that was claimed or deleted; a later arrival stays. Raises OSError."""
        self.store.index.forget_unclaimed(bytes.fromhex(sha256), at_ns)

    def heal(self) -> bool:
        """Rebuild a damaged index like `PackStore.heal`. Raises OSError."""
        return self.store.heal()

    def drop_gone(self) -> None:
        """Close packs that another process has removed. Raises OSError."""
        self.store.drop_gone()


def identity_of(found: PackedBlob) -> tuple[int, int]:
    """Return the identity of a packed blob, as in `BlobDamaged.file`."""
    return found.place.pack, found.place.offset


def damage_error(found: PackedBlob) -> BlobDamaged:
    """Return the error for a record that is not what was written."""
    why = "its record in a pack does not match its checksum"
    segment = 0 if segment_count(found.length) else None
    return BlobDamaged(found.sha256.hex(), why, file=identity_of(found), segment=segment)


def sums_of(found: PackedBlob) -> SegmentSums:
    """Return the checksums that a sidecar would have."""
    return SegmentSums(found.length, found.digest * segment_count(found.length))


def memory_descriptor(content: bytes) -> int:
    """Return a descriptor of memory with these bytes. Raises OSError."""
    descriptor = os.memfd_create("blob", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
