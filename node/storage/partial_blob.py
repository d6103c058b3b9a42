"""One replica on its way here: bytes in any order, each segment verified, spans of them made durable.

Layout and rules are those of `node/storage/partial_store.py`, which hands partials out. Calls block; those of
one partial may come from several threads at once.

Tested by tests/unit/node/storage/test_partial_store.py.
"""

import hashlib
import os
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import xxhash

from node.base.spans import Coverage, Span
from node.diskio.durable import CRC_BYTES, Disk, Octets, with_crc, without_crc, write_all
from node.diskio.fs import remove_tree, storage_errors
from node.storage.blob_files import BlobFiles
from node.storage.content_file import ContentFile, open_content, open_or_create
from node.storage.segments import SEGMENT_BYTES, FinishedBlob, SegmentHasher, SegmentSums, segment_count

CONTENT = "content"
STATE = "state"

_HEADER = struct.Struct(
    "<8s32sQ32s"
)  # magic, sha256 of the blob, its size, sha256 of its segments' checksums
_MAGIC = b"FSTPART1"
_SPAN = struct.Struct("<QQ")  # the first segment, and the one after the last
HEADER_BYTES = _HEADER.size + CRC_BYTES
RECORD_BYTES = _SPAN.size + CRC_BYTES


class SegmentMismatch(Exception):
    """The received bytes of a segment do not match its checksum."""

    def __init__(self, index: int) -> None:
        super().__init__(f"segment {index} does not match its checksum")
        self.index = index


class _OtherState(OSError):
    """The stored state does not belong to this partial."""


class SpanRecord:
    """Which segments are verified and durable, as recorded on disk.

    Records are added behind the last sound one.
    """

    def __init__(self, descriptor: int, disk: Disk, blob: FinishedBlob, sums: SegmentSums) -> None:
        """Read the record, or create it. Raises OSError, also for the record of another blob."""
        self.descriptor, self._disk, self._blob = descriptor, disk, blob
        self.coverage = Coverage()
        header = encode_header(blob, sums)
        bytes_max = HEADER_BYTES + RECORD_BYTES * segment_count(blob.size_bytes)
        raw = os.pread(descriptor, bytes_max + 1, 0)
        if not raw:
            write_all(disk, descriptor, header, 0)  # durable with the first record
        elif raw[:HEADER_BYTES] != header or len(raw) > bytes_max:
            raise _OtherState
        self._stop = HEADER_BYTES
        while len(body := without_crc(raw[self._stop : self._stop + RECORD_BYTES]) or b"") == _SPAN.size:
            first, stop = _SPAN.unpack(body)
            if not first < stop <= segment_count(blob.size_bytes):
                raise _OtherState
            self._count(first, stop)

    def add(self, first: int, stop: int) -> None:
        """Record durably that these segments are durable, which the caller has ensured.

        After an OSError the state on the disk is unknown.
        """
        write_all(self._disk, self.descriptor, with_crc(_SPAN.pack(first, stop)), self._stop)
        self._disk.fdatasync(self.descriptor)
        self._count(first, stop)

    def _count(self, first: int, stop: int) -> None:
        self._stop += RECORD_BYTES
        self.coverage.add(first * SEGMENT_BYTES, byte_stop(stop, self._blob))


class Partial(ContentFile):
    """Some segments of a blob, for one fetch until `close`."""

    def __init__(
        self,
        blobs: BlobFiles,
        blob: FinishedBlob,
        sums: SegmentSums,
        *,
        content: int,
        record: SpanRecord,
        directory: int,
        unsynced: Sequence[int],
        discard: Callable[[], None],
        give_back: Callable[["Partial"], None],
    ) -> None:
        """Created by `PartialStore.open` only. It owns its descriptors; `directory` is locked."""
        super().__init__(blobs, content, name=CONTENT, directory=directory, unsynced=unsynced)
        self._record, self._give_back = record, give_back
        self._syncing = threading.Lock()
        self._is_open = True
        self.blob = blob
        self.sums = sums
        self.discard = discard  # removes the files; the partial is still to be closed

    @property
    def prefix_bytes(self) -> int:
        """Return how many bytes are there without a gap from the beginning."""
        return self._record.coverage.prefix_bytes

    @property
    def lacking_bytes(self) -> int:
        """Return how many bytes are still to be written."""
        return self.blob.size_bytes - self._record.coverage.size_bytes

    def missing_segments(self) -> list[Span]:
        """Return the segments that are not there, ascending."""
        spans = self._record.coverage.gaps(self.blob.size_bytes)
        return [(start // SEGMENT_BYTES, segment_count(stop)) for start, stop in spans]

    def writer(self, first: int, stop: int) -> "SpanWriter":
        """Return a writer for segments `first` to `stop` (excluded), in order.

        Raises InsufficientStorage if they would use the reserve.
        """
        self._blobs.require_room(byte_stop(stop, self.blob) - first * SEGMENT_BYTES)
        return SpanWriter(self, first, stop)

    def write(self, buffer: Octets, offset: int) -> None:
        """Write bytes, which are not durable and do not count yet. Raises InsufficientStorage, Internal."""
        with storage_errors():
            write_all(self._disk, self._data, buffer, offset)

    def keep(self, first: int, stop: int) -> None:
        """Make these verified segments durable, then record that.

        Raises InsufficientStorage or Internal; then no more can be kept, only `discard` is possible.
        """
        with self._syncing:
            self._require_usable()
            with self._breaking():
                self._make_durable(lambda: self._record.add(first, stop))

    def install(self, hasher: SegmentHasher) -> None:
        """Put the blob into place; durable on return. `hasher` has processed all of it.

        Raises ChecksumMismatch if that is not the blob, InsufficientStorage, Internal.
        """
        self._install(hasher, self.blob)
        self.discard()

    def close(self) -> None:
        """Release the partial; kept segments are found by the next `open`. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._give_back(self)
            for descriptor in (self._data, self._record.descriptor, self._directory):
                os.close(descriptor)  # closing the directory ends the lock


class SpanWriter:
    """Write the bytes of some segments, in order, into a partial. Not for two threads at once."""

    def __init__(self, partial: Partial, first: int, stop: int) -> None:
        assert 0 <= first < stop
        self._partial = partial
        self.stop_bytes = byte_stop(stop, partial.blob)
        self._digest = xxhash.xxh3_64()
        self.verified = first  # the segment after the last one that arrived whole and sound
        self.offset = first * SEGMENT_BYTES

    @property
    def is_complete(self) -> bool:
        """Return whether all segments have arrived."""
        return self.offset == self.stop_bytes

    def write(self, buffer: Octets) -> None:
        """Write the next bytes and check each segment that they complete.

        Raises SegmentMismatch, also for bytes beyond the span; InsufficientStorage, Internal.
        """
        view = memoryview(buffer)
        while view:
            if self.is_complete:
                raise SegmentMismatch(self.verified)
            segment_stop = byte_stop(self.verified + 1, self._partial.blob)
            piece = view[: segment_stop - self.offset]
            self._partial.write(piece, self.offset)
            self._digest.update(piece)
            self.offset += len(piece)
            view = view[len(piece) :]
            if self.offset == segment_stop:
                self._end_segment()

    def _end_segment(self) -> None:
        if self._digest.digest() != self._partial.sums.digest(self.verified):
            raise SegmentMismatch(self.verified)
        self._digest = xxhash.xxh3_64()
        self.verified += 1


def byte_stop(stop: int, blob: FinishedBlob) -> int:
    """Return the end of the segment before segment `stop`, in bytes."""
    return min(stop * SEGMENT_BYTES, blob.size_bytes)


def open_files(disk: Disk, blob: FinishedBlob, sums: SegmentSums, directory: int) -> tuple[int, SpanRecord]:
    """Open content and record of a partial, both emptied if they belong to another blob.

    Raises OSError.
    """
    with suppress(OSError):  # a link, a directory or a broken sector: start over
        return _open_files(disk, blob, sums, directory)
    for name in os.listdir(directory):
        remove_tree(name, parent=directory)
    return _open_files(disk, blob, sums, directory)


def _open_files(disk: Disk, blob: FinishedBlob, sums: SegmentSums, directory: int) -> tuple[int, SpanRecord]:
    with ExitStack() as undo:
        content = open_content(CONTENT, parent=directory)
        undo.callback(os.close, content)
        state = open_or_create(STATE, parent=directory)
        undo.callback(os.close, state)
        record = SpanRecord(state, disk, blob, sums)
        kept_bytes = record.coverage.spans[-1][1] if record.coverage.spans else 0
        if not kept_bytes <= os.fstat(content).st_size <= blob.size_bytes:
            raise _OtherState  # the content is shorter or longer than the state allows
        undo.pop_all()
    return content, record


def encode_header(blob: FinishedBlob, sums: SegmentSums) -> bytes:
    """Encode the header of a partial's state, HEADER_BYTES long."""
    digest = hashlib.sha256(sums.digests).digest()
    return with_crc(_HEADER.pack(_MAGIC, bytes.fromhex(blob.sha256), blob.size_bytes, digest))
