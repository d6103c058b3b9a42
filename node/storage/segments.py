"""Verify bytes on disk: checksums of blobs and their segments, verified reading, upload records.

A finished blob has a sidecar with its size and one checksum per segment. A segment is read and compared when
it is first needed after a start, and again after an hour or any change of the file. In between it is trusted
(`node/storage/verified_segments.py`, which also says what this misses).

Checksums and bytes may match each other under a wrong name. Content of one segment is therefore also compared
with its name before it is sent. Of larger content only the scrub reads all, and a size that differs from that
in the log is noticed.

Tested by tests/unit/node/storage/test_blobs.py.
"""

import hashlib
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import xxhash

from node.diskio.durable import CRC_BYTES, Octets, with_crc, without_crc
from node.diskio.fs import MEDIUM_ERRORS, storage_error
from node.diskio.pagecache import is_cached, read_cached, read_now
from node.storage.verified_segments import FileIdentity, TrustedSegments

SEGMENT_BYTES = 4 * 1024 * 1024
DIGEST_BYTES = 8  # one XXH3 of 64 bits, in its canonical, big-endian form
READ_BYTES = 256 * 1024  # per read while hashing: the bytes stay in the processor's cache in between
VERSION = 1

_MAGIC = b"FSTSUMS\0"
_HEADER = struct.Struct("<8sIIQ")  # magic, version, segment size, size of the blob, all in bytes
_FINISHED = struct.Struct("<8s32sQ")  # magic, sha256, size in bytes
_FINISHED_MAGIC = b"FSTDONE\0"
FINISHED_BYTES = _FINISHED.size + CRC_BYTES
_TRUSTED_AT_ONCE = 4096  # segments: 16 GiB
_NAME = -1  # in place of a segment's number: the whole content matches its name


class BlobMissing(Exception):
    """This disk does not have the blob."""

    def __init__(self, sha256: str) -> None:
        super().__init__(sha256)
        self.sha256 = sha256


class BlobDamaged(Exception):
    """The file or record under the blob's name is not the blob: use another replica, and repair.

    `file` is the (device, inode) of the damaged file, or the (pack, offset) of the record; None if it could
    not be opened. `segment` is the segment that does not match its checksum; None for another fault.
    `is_other_content`: all segments match, but the whole does not match the name.
    """

    def __init__(
        self,
        sha256: str,
        why: str,
        *,
        file: tuple[int, int] | None = None,
        segment: int | None = None,
        is_other_content: bool = False,
    ) -> None:
        super().__init__(f"{sha256}: {why}")
        self.sha256 = sha256
        self.why = why
        self.file = file
        self.segment = segment
        self.is_other_content = is_other_content


class SidecarInvalid(Exception):
    """The bytes are not the sidecar of a blob of that size."""


@dataclass(frozen=True, slots=True)
class FinishedBlob:
    """Content that is durable under its name."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentSums:
    """The size of a blob and its checksums: n x 8 bytes for n segments. The last segment may be short."""

    size_bytes: int
    digests: bytes

    def __post_init__(self) -> None:
        """Check that there are as many checksums as segments."""
        assert len(self.digests) == segment_count(self.size_bytes) * DIGEST_BYTES

    def digest(self, index: int) -> bytes:
        """Return the checksum of segment `index`, 8 bytes."""
        return self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a hasher after `size_bytes`, to restore later."""

    size_bytes: int
    sha256: "hashlib._Hash"
    segment: "xxhash.xxh3_64"
    md5: "hashlib._Hash | None" = None


class SegmentHasher:
    """Hashes a stream once for both: sha256 of all of it, XXH3 of each segment. For one thread at a time.

    On request also MD5 of all of it, as emulators identify their images by it. MD5 proves nothing here.
    """

    def __init__(self, *, with_md5: bool = False) -> None:
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False) if with_md5 else None
        self._segment = xxhash.xxh3_64()
        self._digests = bytearray()  # of whole segments
        self.size_bytes = 0

    def update(self, buffer: Octets) -> None:
        """Process the next bytes.

        Large buffers are hashed without the interpreter's lock, and never copied.
        """
        self.update_sums(buffer)
        self.update_md5([buffer])

    def update_md5(self, buffers: Sequence[Octets]) -> None:
        """Process the next bytes for MD5, if it was requested.

        This is the second half of `update`, for any thread.
        """
        if self._md5 is not None:
            for buffer in buffers:
                self._md5.update(buffer)

    def update_sums(self, buffer: Octets) -> None:
        """Process the next bytes for all hashes but MD5: the first half of `update`."""
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

    @property
    def whole_segments(self) -> int:
        """Return how many segments are complete, so that this object has their checksums."""
        return len(self._digests) // DIGEST_BYTES

    @property
    def with_md5(self) -> bool:
        """Return whether MD5 was requested."""
        return self._md5 is not None

    def sha256(self) -> str:
        """Return the hash of everything so far, 64 lower-case hexadecimal digits."""
        return self._sha256.hexdigest()

    def md5(self) -> str:
        """Return the MD5, 32 digits; "" if it was not requested."""
        return self._md5.hexdigest() if self._md5 is not None else ""

    def sums(self) -> SegmentSums:
        """Return the checksums so far; those of whole segments will not change."""
        partial = self._segment.digest() if self.size_bytes % SEGMENT_BYTES else b""
        return SegmentSums(self.size_bytes, bytes(self._digests) + partial)

    def checkpoint(self) -> Checkpoint:
        """Return the present state; it stays valid when more bytes are hashed."""
        md5 = self._md5.copy() if self._md5 is not None else None
        return Checkpoint(self.size_bytes, self._sha256.copy(), self._segment.copy(), md5)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to an earlier state of this stream."""
        assert checkpoint.size_bytes <= self.size_bytes
        self._sha256 = checkpoint.sha256.copy()
        self._segment = checkpoint.segment.copy()
        self._md5 = checkpoint.md5.copy() if checkpoint.md5 is not None else None
        del self._digests[checkpoint.size_bytes // SEGMENT_BYTES * DIGEST_BYTES :]
        self.size_bytes = checkpoint.size_bytes

    def update_from(self, descriptor: int, stop: int) -> None:
        """Hash a file from the position of this stream to `stop`. Raises OSError; EOFError if it is short."""
        buffer = memoryview(bytearray(READ_BYTES))
        while self.size_bytes < stop:
            wanted = buffer[: min(READ_BYTES, stop - self.size_bytes)]
            count = os.preadv(descriptor, [wanted], self.size_bytes)
            if count == 0:
                raise EOFError(f"the file ends at {self.size_bytes}, before {stop}")
            self.update(wanted[:count])


def segment_count(size_bytes: int) -> int:
    """Return how many segments content of this size has; none if it is empty."""
    return -(-size_bytes // SEGMENT_BYTES)


def sidecar_bytes(size_bytes: int) -> int:
    """Return the size of the sidecar of a blob of `size_bytes`."""
    return _HEADER.size + segment_count(size_bytes) * DIGEST_BYTES + CRC_BYTES


def encode_sidecar(sums: SegmentSums) -> bytes:
    """Encode the sidecar: header, checksums, CRC-32 of both; integers are little-endian."""
    return with_crc(_HEADER.pack(_MAGIC, VERSION, SEGMENT_BYTES, sums.size_bytes) + sums.digests)


def decode_sidecar(raw: bytes, size_bytes: int) -> SegmentSums:
    """Return the sums in the sidecar of a blob whose file has `size_bytes`. Raises SidecarInvalid."""
    if len(raw) != sidecar_bytes(size_bytes):
        raise SidecarInvalid(f"a sidecar of {len(raw)} bytes does not match a file of {size_bytes}")
    body = without_crc(raw)
    if body is None:
        raise SidecarInvalid("the sidecar does not match its own checksum")
    magic, version, segment_bytes, recorded_bytes = _HEADER.unpack_from(body)
    if (magic, version, segment_bytes) != (_MAGIC, VERSION, SEGMENT_BYTES):
        raise SidecarInvalid("the sidecar has an unknown format")
    if recorded_bytes != size_bytes:
        raise SidecarInvalid(f"the file has {size_bytes} bytes, its sidecar says {recorded_bytes}")
    return SegmentSums(size_bytes, body[_HEADER.size :])


def decode_sidecar_alone(raw: bytes) -> SegmentSums:
    """Return the sums in a sidecar of a blob whose file is unknown. Raises SidecarInvalid."""
    if len(raw) < _HEADER.size:
        raise SidecarInvalid(f"a sidecar has more than {len(raw)} bytes")
    *_, size_bytes = _HEADER.unpack_from(raw)
    return decode_sidecar(raw, size_bytes)


def encode_finished(blob: FinishedBlob, file_uuid: str) -> bytes:
    """Return the record of the blob that this upload became, FINISHED_BYTES long."""
    packed = _FINISHED.pack(_FINISHED_MAGIC, bytes.fromhex(blob.sha256), blob.size_bytes)
    return with_crc(packed, of=file_uuid)


def decode_finished(raw: bytes, file_uuid: str) -> FinishedBlob | None:
    """Return the blob that this upload became, or None if the record is damaged or that of another upload.

    until 0.3.0: records of 0.1.0 do not say whose they are.
    """
    body = (without_crc(raw, of=file_uuid) or without_crc(raw)) if len(raw) == FINISHED_BYTES else None
    if body is None or body[:8] != _FINISHED_MAGIC:
        return None
    _, digest, size_bytes = _FINISHED.unpack(body)
    return FinishedBlob(digest.hex(), size_bytes)


@dataclass(frozen=True, slots=True)
class WholeRead:
    """The state of a blob while all of it is read."""

    identity: FileIdentity  # before the first byte
    at_ns: int  # when that was; since the epoch
    digest: "hashlib._Hash"


def segment_digest(content: Octets) -> bytes:
    """Return the checksum of a segment, DIGEST_BYTES long."""
    return xxhash.xxh3_64(content).digest()


def read_segment(descriptor: int, index: int, size_bytes: int) -> bytes | None:
    """Return segment `index` of a file of that size as it is on the disk, unverified.

    Return None if there is no such segment, or the medium does not return it. Blocks. Raises FilestoreError.
    """
    start = index * SEGMENT_BYTES
    wanted = min(SEGMENT_BYTES, size_bytes - start)
    if wanted <= 0:
        return None
    try:
        found = os.pread(descriptor, wanted, start)
    except OSError as error:
        if error.errno in MEDIUM_ERRORS:
            return None  # readers treat this like wrong bytes
        raise storage_error(error) from error
    return found if len(found) == wanted else None


class OpenBlob:
    """A blob open for reading; `fd` belongs to this object, and is for pread and sendfile only."""

    def __init__(self, *, fd: int, sha256: str, sums: SegmentSums, trusted: TrustedSegments) -> None:
        self.fd = fd
        self.sha256 = sha256
        self.sums = sums
        self._trusted = trusted

    @property
    def size_bytes(self) -> int:
        """Return the size of the content."""
        return self.sums.size_bytes

    def state(self) -> object:
        """Return a state that differs after any change of the file; None if no name leads to it any more.

        A link, a rename and a write: all of them change it. Raises OSError.
        """
        facts = os.fstat(self.fd)
        if not facts.st_nlink:
            return None
        return facts.st_ctime_ns, facts.st_nlink, facts.st_size, facts.st_mtime_ns

    def is_here(self) -> bool:
        """Return whether the file is still in its place; False if the disk does not answer. Blocks."""
        return True  # `state` shows whether the file has changed

    def is_cached(self, start: int, stop: int) -> bool:
        """Return whether these bytes can probably be read without waiting for the disk."""
        return is_cached(self.fd, start, stop)

    def read_cached(self, start: int, size_bytes: int) -> bytes:
        """Return these bytes if `is_cached` says so, otherwise b"". For few bytes at a time."""
        return read_cached(self.fd, start, size_bytes)

    def read_now(self, start: int, buffer: memoryview) -> int:
        """Fill the buffer from `start` on as far as possible without waiting; return how many bytes."""
        return read_now(self.fd, start, buffer)

    def segment_range(self, index: int) -> tuple[int, int]:
        """Return the beginning and the end (excluded) of a segment."""
        start = index * SEGMENT_BYTES
        return start, min(start + SEGMENT_BYTES, self.size_bytes)

    def begin(self) -> WholeRead:
        """Begin to read all of the blob: every segment by `verify_segment`, then `require_name`."""
        return WholeRead(FileIdentity.of(self.fd), time.time_ns(), hashlib.sha256())

    def verify_segment(self, index: int, whole: WholeRead | None = None) -> bool:
        """Read segment `index` and compare it; return False also if the medium fails.

        Blocks. Raises FilestoreError.

        `whole` receives the bytes too.
        """
        assert 0 <= index < segment_count(self.size_bytes)
        start, stop = self.segment_range(index)
        buffer = memoryview(bytearray(READ_BYTES))
        digest = xxhash.xxh3_64()
        while start < stop:
            wanted = buffer[: min(READ_BYTES, stop - start)]
            try:
                count = os.preadv(self.fd, [wanted], start)
            except OSError as error:
                if error.errno in MEDIUM_ERRORS:
                    return False  # readers treat this like wrong bytes
                raise storage_error(error) from error
            if count == 0:
                return False
            digest.update(wanted[:count])
            if whole is not None:
                whole.digest.update(wanted[:count])
            start += count
        return digest.digest() == self.sums.digest(index)

    def verify_on_medium(self, index: int, whole: WholeRead) -> bool:
        """Verify a segment past the page cache; bytes that were cached are read into the cache again."""
        start, stop = self.segment_range(index)
        is_hot = is_cached(self.fd, start, stop)
        os.posix_fadvise(self.fd, start, stop - start, os.POSIX_FADV_DONTNEED)
        is_sound = self.verify_segment(index, whole)
        if not is_hot:
            os.posix_fadvise(self.fd, start, stop - start, os.POSIX_FADV_DONTNEED)
        return is_sound

    def require_name(self, whole: WholeRead) -> None:
        """Raise BlobDamaged if the content that was read does not match the name.

        Checksums and bytes may match each other under a wrong name.
        """
        if whole.digest.hexdigest() != self.sha256:
            raise self.damage_error("has other content than its name says", is_other_content=True)

    def trust(self, whole: WholeRead) -> None:
        """Trust all that was read: every segment is sound, and the content matches its name.

        From now on `has_its_name` and `verify_range` use that, dated from the beginning of the reading. For a
        large blob only the name is trusted: its segments would evict those of other blobs.
        """
        if not whole.identity.is_settled(whole.at_ns):
            return
        age_s = max(time.time_ns() - whole.at_ns, 0) / 1e9
        segments = segment_count(self.size_bytes)
        for index in range(_NAME, segments if segments <= _TRUSTED_AT_ONCE else 0):
            self._trusted.add(self.sha256, index, whole.identity, age_s=age_s)

    def has_its_name(self) -> bool:
        """Return whether the unchanged file was found to match its name within TRUSTED_S."""
        return self._trusted.contains(self.sha256, _NAME, FileIdentity.of(self.fd))

    def verify_range(self, start: int, stop: int) -> None:
        """Verify that bytes `start` to `stop` (excluded) may be sent. Blocks. Raises BlobDamaged.

        Segments that were found sound within TRUSTED_S are not read, if the file has not changed, which is
        checked before each segment.
        """
        assert 0 <= start <= stop <= self.size_bytes
        for index in range(start // SEGMENT_BYTES, segment_count(stop) if start < stop else 0):
            at_ns, identity = time.time_ns(), FileIdentity.of(self.fd)
            if self._trusted.contains(self.sha256, index, identity):
                continue
            self.require_segment(index)
            if identity.is_settled(at_ns):
                self._trusted.add(self.sha256, index, identity)

    def require_segment(self, index: int) -> None:
        """Read segment `index`. Raise BlobDamaged unless it is sound, and has its name if it is the only one.

        Blocks. Raises FilestoreError.
        """
        whole = self.begin() if self.size_bytes <= SEGMENT_BYTES else None
        if not self.verify_segment(index, whole):
            raise self.damage_error(f"segment {index} does not match its checksum", segment=index)
        if whole is not None:
            self.require_name(whole)

    def require_size(self, size_bytes: int) -> None:
        """Raise BlobDamaged if the log has another size: then this is the file of another blob."""
        if self.size_bytes != size_bytes:
            why = f"has {self.size_bytes} bytes instead of the recorded {size_bytes}"
            raise self.damage_error(why, is_other_content=True)

    def is_trusted(self, start: int, stop: int, *, identity: FileIdentity | None = None) -> bool:
        """Return whether `verify_range` would read nothing. Never waits for a disk.

        `identity`: the present identity of the file, if the caller just read it.
        """
        found = identity or FileIdentity.of(self.fd)
        if 0 <= start < stop <= SEGMENT_BYTES:
            return self._trusted.contains(self.sha256, 0, found)
        for index in range(start // SEGMENT_BYTES, segment_count(stop) if start < stop else 0):
            if not self._trusted.contains(self.sha256, index, found):
                return False
        return True

    def duplicate(self) -> "OpenBlob":
        """Return a copy with its own descriptor. Raises OSError."""
        return OpenBlob(fd=os.dup(self.fd), sha256=self.sha256, sums=self.sums, trusted=self._trusted)

    def damage_error(
        self, why: str, *, segment: int | None = None, is_other_content: bool = False
    ) -> BlobDamaged:
        """Return the error to raise about this file; no segment of it is trusted any more."""
        self._trusted.forget(self.sha256)
        return BlobDamaged(
            self.sha256, why, file=self.identity(), segment=segment, is_other_content=is_other_content
        )

    def identity(self) -> tuple[int, int]:
        """Return its identity: device and inode."""
        facts = os.fstat(self.fd)
        return facts.st_dev, facts.st_ino

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def md5_of(blob: OpenBlob) -> str:
    """Return the MD5 of all of it, 32 lower-case hexadecimal digits. Blocks. Raises BlobDamaged, Internal."""
    hasher = SegmentHasher(with_md5=True)
    try:
        hasher.update_from(blob.fd, blob.size_bytes)
    except EOFError as error:
        raise blob.damage_error("is shorter than it was") from error
    except OSError as error:
        raise storage_error(error) from error
    if hasher.sha256() != blob.sha256:
        raise blob.damage_error("does not have its sha256")
    return hasher.md5()
