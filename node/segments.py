"""What proves bytes on disk: checksums of blobs and their segments, reading that checks them, upload records.

A finished blob has a sidecar with its size and one checksum per segment. A segment is read and compared the
first time that it is wanted since start, and again after an hour; in between it is trusted. Every record here
carries its own CRC, so that a torn one is known for what it is.
"""

import errno
import hashlib
import os
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import xxhash

from ca.errors import Internal

Octets = bytes | bytearray | memoryview

SEGMENT_BYTES = 4 * 1024 * 1024
DIGEST_BYTES = 8  # one XXH3 of 64 bits, in its canonical, big-endian form
READ_BYTES = 256 * 1024  # one read while hashing: it stays in the processor's cache between read and hash
TRUSTED_S = 3600.0  # how long a segment that was found sound is not read again
TRUSTED_SEGMENTS_MAX = 65_536  # 256 GiB of content, in about 10 MB of memory
VERSION = 1

_MAGIC = b"FSTSUMS\0"
_HEADER = struct.Struct("<8sIIQ")  # magic, version, segment size, size of the blob, all in bytes
_CRC = struct.Struct("<I")
_SLOT = struct.Struct("<8sQQ")  # magic, sequence, offset in bytes
_SLOT_MAGIC = b"FSTOFFS\0"
_FINISHED = struct.Struct("<8s32sQ")  # magic, sha256, size in bytes
_FINISHED_MAGIC = b"FSTDONE\0"
SLOT_BYTES = _SLOT.size + _CRC.size
SLOT_SPACING_BYTES = 4096  # a torn write of one slot cannot reach the other: they share no sector
FINISHED_BYTES = _FINISHED.size + _CRC.size

# What file systems answer when the medium is at fault; other errors say nothing about a blob.
MEDIUM_ERRORS = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EILSEQ, errno.ENODATA})


class BlobMissing(Exception):
    """This disk does not have the blob."""

    def __init__(self, sha256: str) -> None:
        super().__init__(sha256)
        self.sha256 = sha256


class BlobDamaged(Exception):
    """This disk has something under the blob's name that is not the blob: use another replica, and repair."""

    def __init__(self, sha256: str, why: str) -> None:
        super().__init__(f"{sha256}: {why}")
        self.sha256 = sha256
        self.why = why


class SidecarInvalid(Exception):
    """The bytes are not the sidecar of a blob of that size."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The calls that fail when a disk is full or dying; handed in, so that tests can have them fail."""

    pwrite: Callable[[int, Octets, int], int] = os.pwrite
    fsync: Callable[[int], None] = os.fsync
    fdatasync: Callable[[int], None] = os.fdatasync


@dataclass(frozen=True, slots=True)
class FinishedBlob:
    """Content that lies under its name, durable."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentSums:
    """A blob's size and its checksums: n x 8 bytes, n = segments, the last of which may be short."""

    size_bytes: int
    digests: bytes

    def __post_init__(self) -> None:
        """As many checksums as the size has segments."""
        assert len(self.digests) == segment_count(self.size_bytes) * DIGEST_BYTES

    def digest(self, index: int) -> bytes:
        """The checksum of segment `index`, 8 bytes."""
        return self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A hasher's state after `size_bytes`, to come back to."""

    size_bytes: int
    sha256: "hashlib._Hash"
    segment: "xxhash.xxh3_64"


class SegmentHasher:
    """Hashes a stream once for both: sha256 of all of it, XXH3 of each segment. For one thread at a time."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._segment = xxhash.xxh3_64()
        self._digests = bytearray()  # of whole segments only
        self.size_bytes = 0

    def update(self, buffer: Octets) -> None:
        """Takes the next bytes; large buffers are hashed without the interpreter's lock, and never copied."""
        view = memoryview(buffer)
        self._sha256.update(view)
        position = 0
        while position < len(view):
            room_bytes = SEGMENT_BYTES - self.size_bytes % SEGMENT_BYTES
            piece = view[position : position + room_bytes]
            self._segment.update(piece)
            self.size_bytes += len(piece)
            position += len(piece)
            if self.size_bytes % SEGMENT_BYTES == 0:
                self._digests += self._segment.digest()
                self._segment = xxhash.xxh3_64()

    def sha256(self) -> str:
        """The hash of everything so far, 64 lower-case hexadecimal digits."""
        return self._sha256.hexdigest()

    def sums(self) -> SegmentSums:
        """The checksums so far; those of whole segments will not change."""
        partial = self._segment.digest() if self.size_bytes % SEGMENT_BYTES else b""
        return SegmentSums(self.size_bytes, bytes(self._digests) + partial)

    def checkpoint(self) -> Checkpoint:
        """The present state; it stays valid while the stream goes on."""
        return Checkpoint(self.size_bytes, self._sha256.copy(), self._segment.copy())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Back to an earlier state of this same stream."""
        assert checkpoint.size_bytes <= self.size_bytes
        self._sha256 = checkpoint.sha256.copy()
        self._segment = checkpoint.segment.copy()
        del self._digests[checkpoint.size_bytes // SEGMENT_BYTES * DIGEST_BYTES :]
        self.size_bytes = checkpoint.size_bytes

    def update_from(self, descriptor: int, stop: int) -> None:
        """Hashes a file from where this stream stands to `stop`. Raises OSError; EOFError if it is short."""
        buffer = memoryview(bytearray(READ_BYTES))
        while self.size_bytes < stop:
            wanted = buffer[: min(READ_BYTES, stop - self.size_bytes)]
            count = os.preadv(descriptor, [wanted], self.size_bytes)
            if count == 0:
                raise EOFError(f"the file ends at {self.size_bytes}, before {stop}")
            self.update(wanted[:count])


def write_all(disk: Disk, descriptor: int, buffer: Octets, offset: int) -> None:
    """Writes the whole buffer at `offset`, uncopied. Raises OSError; some of it may be written then."""
    view = memoryview(buffer)
    assert view.itemsize == 1
    done = 0
    while done < len(view):
        count = disk.pwrite(descriptor, view[done:], offset + done)
        if count == 0:
            raise OSError(errno.EIO, "the disk takes no bytes")
        done += count


def segment_count(size_bytes: int) -> int:
    """How many segments content of that size has; none if it is empty."""
    return -(-size_bytes // SEGMENT_BYTES)


def sidecar_bytes(size_bytes: int) -> int:
    """The size of the sidecar of a blob of `size_bytes`."""
    return _HEADER.size + segment_count(size_bytes) * DIGEST_BYTES + _CRC.size


def encode_sidecar(sums: SegmentSums) -> bytes:
    """The sidecar: header, checksums, CRC-32 of both; integers are little-endian."""
    return _with_crc(_HEADER.pack(_MAGIC, VERSION, SEGMENT_BYTES, sums.size_bytes) + sums.digests)


def decode_sidecar(raw: bytes, size_bytes: int) -> SegmentSums:
    """The sums in the sidecar of a blob whose file has `size_bytes`. Raises SidecarInvalid."""
    if len(raw) != sidecar_bytes(size_bytes):
        raise SidecarInvalid(f"a sidecar of {len(raw)} bytes does not fit a file of {size_bytes}")
    body = _without_crc(raw)
    if body is None:
        raise SidecarInvalid("the sidecar does not match its own checksum")
    magic, version, segment_bytes, recorded_bytes = _HEADER.unpack_from(body)
    if (magic, version, segment_bytes) != (_MAGIC, VERSION, SEGMENT_BYTES):
        raise SidecarInvalid("the sidecar is of an unknown kind")
    if recorded_bytes != size_bytes:
        raise SidecarInvalid(f"the file has {size_bytes} bytes, its sidecar says {recorded_bytes}")
    return SegmentSums(size_bytes, body[_HEADER.size :])


def encode_offset(sequence: int, offset: int) -> bytes:
    """One slot of an upload's offset record, SLOT_BYTES long."""
    return _with_crc(_SLOT.pack(_SLOT_MAGIC, sequence, offset))


def decode_offset(raw: bytes) -> tuple[int, int]:
    """Sequence and offset of a slot; zeros if it is torn or was never written."""
    body = _without_crc(raw) if len(raw) == SLOT_BYTES else None
    if body is None or body[:8] != _SLOT_MAGIC:
        return 0, 0
    _, sequence, offset = _SLOT.unpack(body)
    return sequence, offset


def encode_finished(blob: FinishedBlob) -> bytes:
    """What an upload leaves behind that became `blob`, FINISHED_BYTES long."""
    return _with_crc(_FINISHED.pack(_FINISHED_MAGIC, bytes.fromhex(blob.sha256), blob.size_bytes))


def decode_finished(raw: bytes) -> FinishedBlob | None:
    """The blob that an upload became; None if the record is not sound."""
    body = _without_crc(raw) if len(raw) == FINISHED_BYTES else None
    if body is None or body[:8] != _FINISHED_MAGIC:
        return None
    _, digest, size_bytes = _FINISHED.unpack(body)
    return FinishedBlob(digest.hex(), size_bytes)


def _with_crc(body: bytes) -> bytes:
    return body + _CRC.pack(zlib.crc32(body))


def _without_crc(raw: bytes) -> bytes | None:
    body = raw[: -_CRC.size]
    return body if raw[-_CRC.size :] == _CRC.pack(zlib.crc32(body)) else None


class OffsetRecord:
    """The durable offset on disk. A write goes to the older slot, so that a torn one costs only itself."""

    def __init__(self, descriptor: int, disk: Disk) -> None:
        """Reads both slots; the valid one with the higher sequence counts, none means offset 0."""
        self._fd = descriptor
        self._disk = disk
        slots = [decode_offset(os.pread(descriptor, SLOT_BYTES, n * SLOT_SPACING_BYTES)) for n in (0, 1)]
        self.sequence, self.offset = max(slots)

    def write(self, offset: int) -> None:
        """Makes `offset` durable; the data must be. Raises OSError, and then nobody knows what is on disk."""
        self._put(self.sequence + 1, offset)
        self.sequence, self.offset = self.sequence + 1, offset

    def confirm(self) -> None:
        """Makes durable what was read: the process before may have died between writing and syncing it.

        The same bytes go over the same slot: the other one is the only good one if that sync had failed.
        """
        if self.sequence:
            self._put(self.sequence, self.offset)

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self._fd)

    def _put(self, sequence: int, offset: int) -> None:
        slot = encode_offset(sequence, offset)
        write_all(self._disk, self._fd, slot, sequence % 2 * SLOT_SPACING_BYTES)
        self._disk.fdatasync(self._fd)


class TrustedSegments:
    """Which segments were found sound lately. Bounded; forgets the blob used longest ago. For any thread."""

    def __init__(
        self, *, segments_max: int = TRUSTED_SEGMENTS_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._segments_max = segments_max
        self._clock = clock
        self._lock = threading.Lock()
        self._blobs: OrderedDict[str, dict[int, float]] = OrderedDict()
        self._count = 0

    def __contains__(self, key: tuple[str, int]) -> bool:
        sha256, index = key
        with self._lock:
            segments = self._blobs.get(sha256)
            if segments is None:
                return False
            self._blobs.move_to_end(sha256)
            found_at_s = segments.get(index)
            return found_at_s is not None and self._clock() - found_at_s < TRUSTED_S

    def add(self, sha256: str, index: int) -> None:
        """Notes that the segment is sound as of now."""
        with self._lock:
            segments = self._blobs.setdefault(sha256, {})
            self._blobs.move_to_end(sha256)
            self._count += index not in segments
            segments[index] = self._clock()
            if self._count > self._segments_max:
                self._forget_one()

    def forget(self, sha256: str) -> None:
        """The file under that name is not the one that was read."""
        with self._lock:
            self._count -= len(self._blobs.pop(sha256, ()))

    def _forget_one(self) -> None:
        sha256, segments = next(iter(self._blobs.items()))
        del segments[next(iter(segments))]
        self._count -= 1
        if not segments:
            del self._blobs[sha256]


class OpenBlob:
    """A blob open for reading; `fd` belongs to this object, and is for pread and sendfile only."""

    def __init__(self, *, fd: int, sha256: str, sums: SegmentSums, trusted: TrustedSegments) -> None:
        self.fd = fd
        self.sha256 = sha256
        self.sums = sums
        self._trusted = trusted

    @property
    def size_bytes(self) -> int:
        """The size of the content."""
        return self.sums.size_bytes

    def verify_segment(self, index: int) -> bool:
        """Reads segment `index` and compares it; False also if the medium fails. Blocks. Raises Internal."""
        assert 0 <= index < segment_count(self.size_bytes)
        start = index * SEGMENT_BYTES
        stop = min(start + SEGMENT_BYTES, self.size_bytes)
        buffer = memoryview(bytearray(READ_BYTES))
        digest = xxhash.xxh3_64()
        while start < stop:
            wanted = buffer[: min(READ_BYTES, stop - start)]
            try:
                count = os.preadv(self.fd, [wanted], start)
            except OSError as error:
                if error.errno in MEDIUM_ERRORS:
                    return False  # to a reader it is the same as wrong bytes
                raise Internal(f"The disk refused: {os.strerror(error.errno or errno.EIO)}.") from error
            if count == 0:
                return False
            digest.update(wanted[:count])
            start += count
        return digest.digest() == self.sums.digest(index)

    def verify_range(self, start: int, stop: int) -> None:
        """Makes sure that bytes `start` to `stop` (excluded) may be sent. Blocks. Raises BlobDamaged.

        Reads only segments that were not found sound within TRUSTED_S.
        """
        assert 0 <= start <= stop <= self.size_bytes
        for index in range(start // SEGMENT_BYTES, segment_count(stop) if start < stop else 0):
            if (self.sha256, index) in self._trusted:
                continue
            if not self.verify_segment(index):
                self._trusted.forget(self.sha256)
                raise BlobDamaged(self.sha256, f"segment {index} does not match its checksum")
            self._trusted.add(self.sha256, index)

    def close(self) -> None:
        """Gives the descriptor back; again is harmless."""
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
