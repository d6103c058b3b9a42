"""Durable small records: disk calls that may fail, a CRC after each record, offsets in two slots.

Every record carries its own CRC, so that a torn one is known for what it is.

Tested by tests/unit/node/diskio/test_head_start.py.
"""

import ctypes
import errno
import itertools
import os
import struct
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass

Octets = bytes | bytearray | memoryview

CRC_BYTES = 4
SLOT_SPACING_BYTES = 4096  # a torn write of one slot cannot reach the other: they share no sector

_CRC = struct.Struct("<I")
_SLOT = struct.Struct("<8sQQ")  # magic, sequence, offset in bytes
_SLOT_MAGIC = b"FSTOFFS\0"
SLOT_BYTES = _SLOT.size + CRC_BYTES
RECORD_BYTES = SLOT_BYTES + 16 + CRC_BYTES  # with the UUID of the upload, which 0.1.0 does not know
_FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_CANNOT_BE_ASKED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ESPIPE})
_LIBC = ctypes.CDLL(None, use_errno=True)


def preallocate(descriptor: int, start: int, length: int) -> None:
    """Reserves room on the disk for bytes to come; the file's size stays. Raises OSError.

    os.posix_fallocate would grow the file, and writes zeros where the file system cannot reserve.
    """
    _call("fallocate", descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(start), ctypes.c_int64(length))


def write_out(descriptor: int, start: int, length: int) -> None:
    """Has the disk begin with these bytes: the sync that makes them durable then has less to wait for.

    Does nothing where there is no sync_file_range(2). Raises OSError for bytes that the disk refuses: a file
    system may have given them up, and not tell the next sync.
    """
    numbers = (ctypes.c_int64(start), ctypes.c_int64(length))
    try:
        _call("sync_file_range", descriptor, *numbers, _SYNC_FILE_RANGE_WRITE)
    except OSError as error:
        if error.errno not in _CANNOT_BE_ASKED:
            raise


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError; with ENOSYS if there is no such function."""
    function = getattr(_LIBC, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@dataclass(frozen=True, slots=True)
class Disk:
    """The calls that fail when a disk is full or dying; handed in, so that tests can have them fail."""

    pwrite: Callable[[int, Octets, int], int] = os.pwrite
    fsync: Callable[[int], None] = os.fsync
    fdatasync: Callable[[int], None] = os.fdatasync
    preallocate: Callable[[int, int, int], None] = preallocate
    write_out: Callable[[int, int, int], None] = write_out


class DirectorySyncs:
    """The directories that could not be synced: changes there may not be durable.

    The kernel reports an error only once. A later caller that finds nothing left to do must check here, and
    sync first. For any thread; names are those of the caller.
    """

    def __init__(self) -> None:
        self._turns = itertools.count()
        self._failed: dict[str, int] = {}

    def sync(self, disk: Disk, descriptor: int, name: str) -> None:
        """Makes the names in a directory durable. Raises OSError."""
        began = next(self._turns)
        try:
            disk.fsync(descriptor)
        except OSError:
            self._failed[name] = next(self._turns)
            raise
        if self._failed.get(name, began) < began:  # not one that failed while this was under way
            self._failed.pop(name, None)

    def is_due(self, name: str) -> bool:
        """Whether the last sync of this directory has failed."""
        return name in self._failed


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


def encode_offset(sequence: int, offset: int) -> bytes:
    """One slot of an upload's offset record, SLOT_BYTES long."""
    return with_crc(_SLOT.pack(_SLOT_MAGIC, sequence, offset))


def decode_offset(raw: bytes) -> tuple[int, int]:
    """Sequence and offset of a slot; zeros if it is torn or was never written."""
    body = without_crc(raw) if len(raw) == SLOT_BYTES else None
    if body is None or body[:8] != _SLOT_MAGIC:
        return 0, 0
    _, sequence, offset = _SLOT.unpack(body)
    return sequence, offset


def with_crc(body: bytes, *, of: str = "") -> bytes:
    """Return the record with its CRC-32 behind it, little-endian; it covers `of`, whose record that is."""
    return body + _CRC.pack(zlib.crc32(body, zlib.crc32(of.encode())))


def without_crc(raw: bytes, *, of: str = "") -> bytes | None:
    """Return the record before its CRC-32, or None if the two do not match."""
    body = raw[: -_CRC.size]
    return body if raw == with_crc(body, of=of) else None


class OffsetRecord:
    """The durable offset on disk. A write goes to the older slot, so that a torn one costs only itself.

    Each slot names its upload. A file that was exchanged with that of another upload holds no offset.
    """

    def __init__(self, descriptor: int, disk: Disk, file_uuid: str = "") -> None:
        """Reads both slots; the valid one with the higher sequence counts, none means offset 0."""
        self._fd = descriptor
        self._disk = disk
        self._owner = with_crc(uuid.UUID(file_uuid).bytes) if file_uuid else b""
        self.sequence, self.offset = max(self._slot(0), self._slot(1))

    def write(self, offset: int) -> None:
        """Make `offset` durable; the data must be. After an OSError the content on disk is unknown."""
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

    def _slot(self, number: int) -> tuple[int, int]:
        """Sequence and offset, zeros if the slot is of another upload. One without a name is of 0.1.0."""
        raw = os.pread(self._fd, RECORD_BYTES, number * SLOT_SPACING_BYTES)
        named = raw[SLOT_BYTES:]
        is_named = len(named) == len(self._owner) and without_crc(named) is not None
        if is_named and named != self._owner:
            return 0, 0
        return decode_offset(raw[:SLOT_BYTES])

    def _put(self, sequence: int, offset: int) -> None:
        slot = encode_offset(sequence, offset) + self._owner
        write_all(self._disk, self._fd, slot, sequence % 2 * SLOT_SPACING_BYTES)
        self._disk.fdatasync(self._fd)
