"""One replica on its way here: bytes in any order, each segment verified, spans of them made durable.

Layout and rules are those of `node/storage/partial_store.py`, which hands partials out. Calls block; those of
one partial may come from several threads at once.
"""

import hashlib
import os
import stat
import struct
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import xxhash

from ca.errors import ChecksumMismatch, Internal
from node.base.spans import Coverage, Span
from node.diskio.durable import CRC_BYTES, Disk, Octets, with_crc, without_crc, write_all
from node.diskio.fs import READ_FLAGS, read_whole, remove_tree, storage_error
from node.storage.blobs import BlobStore
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
_WRITE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL


class SegmentMismatch(Exception):
    """What came for a segment is not what its checksum says."""

    def __init__(self, index: int) -> None:
        super().__init__(f"segment {index} does not match its checksum")
        self.index = index


class PartialOwner(Protocol):
    """What a partial needs of the store that handed it out.

    A Protocol, as `node.storage.partial_store`, which has the one class of this kind, imports this module.
    """

    blobs: BlobStore

    def note_lacking(self, sha256: str, lacking_bytes: int) -> None:
        """How much it will still write; 0 when it is let go."""

    def remove(self, sha256: str) -> None:
        """Remove its directory."""


@dataclass(slots=True)
class PartialFiles:
    """The open files of a partial, and what its state says. `state_bytes` ends the last sound record."""

    directory: int
    content: int
    state: int
    coverage: Coverage  # of segments, not of bytes
    state_bytes: int

    def close(self) -> None:
        """Gives the descriptors back; with the directory's the lock ends."""
        for descriptor in (self.content, self.state, self.directory):
            os.close(descriptor)


class Partial:
    """Some segments of a blob, for one fetch until `close`."""

    def __init__(
        self, holder: PartialOwner, blob: FinishedBlob, sums: SegmentSums, files: PartialFiles
    ) -> None:
        self._holder = holder
        self._disk = holder.blobs.disk
        self._files: PartialFiles | None = files
        self._syncing = threading.Lock()
        self._broken = False
        self.blob = blob
        self.sums = sums

    @property
    def prefix_bytes(self) -> int:
        """How much is there without a gap from the beginning on."""
        return min(self._open.coverage.prefix_bytes * SEGMENT_BYTES, self.blob.size_bytes)

    @property
    def lacking_bytes(self) -> int:
        """How much will still be written."""
        return sum(byte_stop(stop, self.blob) - first * SEGMENT_BYTES for first, stop in self.missing())

    def missing(self) -> list[Span]:
        """The segments that are not there, ascending."""
        return list(self._open.coverage.missing(segment_count(self.blob.size_bytes)))

    def writer(self, first: int, stop: int) -> "SpanWriter":
        """Takes the bytes of segments `first` to `stop` (excluded), in order.

        Raises InsufficientStorage when they would take of the reserve.
        """
        self._holder.blobs.require_room(byte_stop(stop, self.blob) - first * SEGMENT_BYTES)
        return SpanWriter(self, first, stop)

    def write(self, buffer: Octets, offset: int) -> None:
        """Not durable, and not counted as there. Raises InsufficientStorage, Internal."""
        try:
            write_all(self._disk, self._open.content, buffer, offset)
        except OSError as error:
            raise storage_error(error) from error

    def keep(self, first: int, stop: int) -> None:
        """These segments are verified: make them durable, then note that.

        Raises InsufficientStorage or Internal, and then nothing more can be kept, only `discard` is left:
        after a failed sync nobody knows what is on the disk, and a second one would not tell.
        """
        files = self._open
        with self._syncing:
            if self._broken:
                raise Internal("The disk refused this replica before.")
            try:
                self._disk.fdatasync(files.content)
                write_all(self._disk, files.state, with_crc(_SPAN.pack(first, stop)), files.state_bytes)
                self._disk.fdatasync(files.state)
            except OSError as error:
                self._broken = True
                raise storage_error(error) from error
            files.state_bytes += RECORD_BYTES
            files.coverage.add(first, stop)
            self._holder.note_lacking(self.blob.sha256, self.lacking_bytes)

    def hash_until(self, hasher: SegmentHasher, stop: int) -> None:
        """Hashes what the disk gives, from where the hasher stands to `stop`. Raises Internal."""
        try:
            hasher.update_from(self._open.content, stop)
        except OSError as error:
            raise storage_error(error) from error
        except EOFError as error:
            raise Internal(f"A partial replica was cut: {error}.") from error

    def install(self, hasher: SegmentHasher) -> None:
        """Puts the blob into place; durable on return. `hasher` has seen all of it.

        Raises ChecksumMismatch when that is not the blob, InsufficientStorage, Internal.
        """
        if (hasher.sha256(), hasher.size_bytes) != (self.blob.sha256, self.blob.size_bytes):
            raise ChecksumMismatch(f"What came is {hasher.size_bytes} bytes with sha256 {hasher.sha256()}.")
        blobs, files = self._holder.blobs, self._open
        try:
            blobs.seal(files.content)
            blobs.install(self.blob, hasher.sums(), source=CONTENT, parent=files.directory)
        except OSError as error:
            raise storage_error(error) from error
        self.discard()

    def discard(self) -> None:
        """Removes what lies here; the partial is still to be closed."""
        self._holder.remove(self.blob.sha256)

    def close(self) -> None:
        """Lets it go; what was kept is found again. Again is harmless."""
        files, self._files = self._files, None
        if files is not None:
            self._holder.note_lacking(self.blob.sha256, 0)
            files.close()

    @property
    def _open(self) -> PartialFiles:
        assert self._files is not None, "the partial is closed"
        return self._files


class SpanWriter:
    """The bytes of some segments, in order, on their way into a partial. Not for two threads at once."""

    def __init__(self, partial: Partial, first: int, stop: int) -> None:
        assert 0 <= first < stop
        self._partial = partial
        self.stop_bytes = byte_stop(stop, partial.blob)
        self._digest = xxhash.xxh3_64()
        self.first = first
        self.verified = first  # the segment after the last one that came whole and sound
        self.offset = first * SEGMENT_BYTES

    @property
    def is_complete(self) -> bool:
        """Whether all of it came."""
        return self.offset == self.stop_bytes

    def write(self, buffer: Octets) -> None:
        """Writes the next bytes and checks each segment that they end.

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
    """Where the segment before segment `stop` ends, in bytes."""
    return min(stop * SEGMENT_BYTES, blob.size_bytes)


def open_files(disk: Disk, blob: FinishedBlob, sums: SegmentSums, directory: int) -> PartialFiles:
    """What lies in a partial's directory, emptied when that is not a partial of this blob. Raises OSError."""
    if (found := _resume(blob, sums, directory)) is None:
        return _begin(disk, blob, sums, directory)
    try:
        disk.fsync(directory)  # who began it may have failed, or died, just before
    except BaseException:
        os.close(found.content)
        os.close(found.state)
        raise
    return found


def encode_header(blob: FinishedBlob, sums: SegmentSums) -> bytes:
    """What the state of a partial begins with, HEADER_BYTES long."""
    digest = hashlib.sha256(sums.digests).digest()
    return with_crc(_HEADER.pack(_MAGIC, bytes.fromhex(blob.sha256), blob.size_bytes, digest))


def decode_state(raw: bytes, header: bytes, segments: int) -> tuple[Coverage, int] | None:
    """What is kept, and where its last sound record ends; None when it is the state of something else."""
    if raw[:HEADER_BYTES] != header:
        return None
    coverage, at = Coverage(), HEADER_BYTES
    while body := without_crc(raw[at : at + RECORD_BYTES]):
        if len(body) != _SPAN.size:
            break
        first, stop = _SPAN.unpack(body)
        if not first < stop <= segments:
            return None
        coverage.add(first, stop)
        at += RECORD_BYTES
    return coverage, at


def _resume(blob: FinishedBlob, sums: SegmentSums, directory: int) -> PartialFiles | None:
    """None for anything that is not what a crashed fetch of this blob leaves."""
    segments = segment_count(blob.size_bytes)
    state_bytes_max = HEADER_BYTES + RECORD_BYTES * segments
    try:
        raw = read_whole(STATE, parent=directory, bytes_max=state_bytes_max)
        if len(raw) > state_bytes_max:
            return None
        known = decode_state(raw, encode_header(blob, sums), segments)
        if known is None:
            return None
        coverage, state_bytes = known
        with ExitStack() as undo:
            content = _open_again(CONTENT, directory)
            undo.callback(os.close, content)
            state = _open_again(STATE, directory)
            undo.callback(os.close, state)
            if not _fits(os.fstat(content).st_size, coverage, blob):
                return None
            undo.pop_all()
        return PartialFiles(directory, content, state, coverage, state_bytes)
    except OSError:
        return None  # missing, a link, a directory, a broken sector: begun anew it is as good


def _begin(disk: Disk, blob: FinishedBlob, sums: SegmentSums, directory: int) -> PartialFiles:
    for name in os.listdir(directory):
        remove_tree(name, parent=directory)
    with ExitStack() as undo:
        content = os.open(CONTENT, _NEW_FLAGS, 0o600, dir_fd=directory)
        undo.callback(os.close, content)
        state = os.open(STATE, _NEW_FLAGS, 0o600, dir_fd=directory)
        undo.callback(os.close, state)
        write_all(disk, state, encode_header(blob, sums), 0)
        disk.fdatasync(state)
        disk.fsync(directory)
        undo.pop_all()
    return PartialFiles(directory, content, state, Coverage(), HEADER_BYTES)


def _open_again(name: str, directory: int) -> int:
    """A regular file, to be written: it may have been sealed before the crash. Raises OSError."""
    descriptor = os.open(name, READ_FLAGS, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{name} is no regular file")
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return os.open(name, _WRITE_FLAGS, dir_fd=directory)


def _fits(size_bytes: int, coverage: Coverage, blob: FinishedBlob) -> bool:
    """Whether a file of this size can hold what is said to be in it, and nothing else."""
    kept_bytes = byte_stop(coverage.spans[-1][1], blob) if coverage.spans else 0
    return kept_bytes <= size_bytes <= blob.size_bytes
