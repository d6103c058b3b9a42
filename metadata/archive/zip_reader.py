"""Read an untrusted zip file: its central directory, and one small entry.

Layouts are those of PKWARE's APPNOTE 6.3 (sections 4.3 and 4.5). Sizes and offsets in the file only ever make
it read less: at most WINDOW_BYTES of the directory are in memory, and an entry never becomes longer than its
caller allows. All calls block, and raise OSError if the disk fails.

Tested by tests/unit/metadata/archive/test_manifest.py.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from metadata.archive.zip_methods import EntryDamaged, decode

DIRECTORY_BYTES_MAX = 16 * 1024 * 1024  # looked at; the directory of 100,000 files with long names
ENTRIES_MAX = 100_000
WINDOW_BYTES = 256 * 1024  # more than the longest entry: 46 bytes and three fields of up to 65,535

LOCAL_MAGIC = b"PK\x03\x04"
END_MAGIC = b"PK\x05\x06"  # the end record: an archive of nothing begins with it
_LOCATOR_MAGIC, _END64_MAGIC, _ENTRY_MAGIC = b"PK\x06\x07", b"PK\x06\x06", b"PK\x01\x02"
_END = struct.Struct("<4s4H2LH")  # ..., directory size, directory offset, length of the comment
_LOCATOR = struct.Struct("<4sLQL")  # magic, disk, offset of the zip64 end record, disks
_END64 = struct.Struct("<4sQ2H2L4Q")  # ..., directory size, directory offset
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_COMMENT_BYTES_MAX = 65_535
_IN_ZIP64 = 0xFFFFFFFF  # this value means that the number is in the zip64 field
_ZIP64_FIELD = 1
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_UTF8 = 0x0800


class ZipDamaged(Exception):
    """It looks like a zip, and cannot be read as one."""


class TooLarge(Exception):
    """The bounds of what is looked at were reached; the archive may well be sound."""


@dataclass(frozen=True, slots=True)
class CentralDirectory:
    """The position of the central directory.

    `base` is the number of bytes before the zip in the file, for example of a program.
    """

    start: int
    stop: int
    base: int


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """The directory's claims about one file."""

    name: bytes
    flags: int
    method: int
    crc32: int
    compressed_bytes: int
    size_bytes: int
    header_offset: int

    @property
    def shown_name(self) -> str:
        """Return the name as text; malformed parts are replaced."""
        return self.name.decode("utf-8" if self.flags & _UTF8 else "cp437", "replace")


def find_directory(descriptor: int, size_bytes: int) -> CentralDirectory | None:
    """Return the central directory, or None for a file that is not a zip. Raises ZipDamaged.

    A file counts as a zip if it begins like one, or ends in an end record whose comment has exactly the right
    length.
    """
    begins_as_zip = _begins_as_zip(descriptor, size_bytes)
    tail_bytes = min(size_bytes, _END.size + _COMMENT_BYTES_MAX)
    tail = _read(descriptor, size_bytes - tail_bytes, tail_bytes)
    at = _find_end(tail, exact=True)
    if at < 0 and begins_as_zip:
        at = _find_end(tail, exact=False)
    if at < 0:
        if begins_as_zip:
            raise ZipDamaged("has no end-of-directory record")
        return None
    *_, length_bytes, offset, _ = _END.unpack_from(tail, at)
    end = size_bytes - tail_bytes + at
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size :].startswith(_LOCATOR_MAGIC):
        end, length_bytes, offset = _zip64(descriptor, tail[at - _LOCATOR.size :], end - _LOCATOR.size)
    start = end - length_bytes
    if start < 0 or start < offset:
        raise ZipDamaged("has a directory that is larger than the data before it")
    return CentralDirectory(start, end, start - offset)


def entries(descriptor: int, directory: CentralDirectory) -> Iterator[ZipEntry]:
    """The entries in the order of the directory. Raises ZipDamaged, TooLarge."""
    position, window, window_start = directory.start, b"", directory.start
    for _ in range(ENTRIES_MAX):
        if position == directory.stop:
            return
        if position - directory.start >= DIRECTORY_BYTES_MAX:
            break
        entry_bytes = _entry_bytes(window, position - window_start)
        if position + entry_bytes > window_start + len(window):
            window_start = position
            window = _read(descriptor, position, min(WINDOW_BYTES, directory.stop - position))
            entry_bytes = _entry_bytes(window, 0)
            if entry_bytes > len(window):
                raise ZipDamaged("has a directory that ends within an entry")
        yield _decode_entry(window, position - window_start, directory)
        position += entry_bytes
    if position != directory.stop:
        raise TooLarge


def read_entry(
    descriptor: int, directory: CentralDirectory, entry: ZipEntry, *, size_bytes_max: int
) -> bytes:
    """The content of one entry, checked against its CRC-32. Raises ZipDamaged, TooLarge."""
    if entry.flags & _ENCRYPTED:
        raise ZipDamaged("has an encrypted entry")
    if entry.size_bytes > size_bytes_max:
        raise TooLarge
    at = directory.base + entry.header_offset
    local = _read(descriptor, at, _LOCAL.size)
    magic, *_, name_bytes, extra_bytes = _LOCAL.unpack(local)
    if magic != LOCAL_MAGIC or _read(descriptor, at + _LOCAL.size, name_bytes) != entry.name:
        raise ZipDamaged("has an entry whose name differs from the directory")
    start = at + _LOCAL.size + name_bytes + extra_bytes
    stop = min(start + entry.compressed_bytes, directory.start)
    try:
        content = decode(entry.method, Source(descriptor, start, stop), entry.size_bytes)
    except EntryDamaged as damage:
        raise ZipDamaged(str(damage)) from damage
    if len(content) != entry.size_bytes or zlib.crc32(content) != entry.crc32:
        raise ZipDamaged("has an entry that does not match its checksum")
    return content


class Source:
    """The compressed bytes of an entry, read in order."""

    def __init__(self, descriptor: int, start: int, stop: int) -> None:
        self._descriptor, self._position, self._stop = descriptor, start, stop

    def read(self, size_bytes: int) -> bytes:
        """Up to `size_bytes` more; none at the end. Raises OSError."""
        size_bytes = min(size_bytes, max(0, self._stop - self._position))
        part = os.pread(self._descriptor, size_bytes, self._position) if size_bytes else b""
        self._position += len(part)
        return part


def _begins_as_zip(descriptor: int, size_bytes: int) -> bool:
    if size_bytes < len(LOCAL_MAGIC):
        return False
    return _read(descriptor, 0, len(LOCAL_MAGIC)) in (LOCAL_MAGIC, END_MAGIC)


def _find_end(tail: bytes, *, exact: bool) -> int:
    """Return the position of the last end record in `tail`, or -1. `exact`: nothing may follow it."""
    at = tail.rfind(END_MAGIC)
    while at >= 0:
        if at + _END.size <= len(tail):
            comment_bytes = _END.unpack_from(tail, at)[-1]
            if not exact or at + _END.size + comment_bytes == len(tail):
                return at
        at = tail.rfind(END_MAGIC, 0, at + len(END_MAGIC) - 1)
    return -1


def _zip64(descriptor: int, locator: bytes, locator_at: int) -> tuple[int, int, int]:
    """End, size and offset of the directory by the zip64 end record, which ends where its locator begins."""
    _, _, offset, _ = _LOCATOR.unpack_from(locator)
    for at in (locator_at - _END64.size, offset):
        if 0 <= at <= locator_at - _END64.size:
            record = _END64.unpack(_read(descriptor, at, _END64.size))
            if record[0] == _END64_MAGIC:
                return at, record[-2], record[-1]
    raise ZipDamaged("has no zip64 end record at the offset in its locator")


def _entry_bytes(window: bytes, at: int) -> int:
    """How long the entry is that begins there; of one that the window cuts off, at least as long."""
    if at + _ENTRY.size > len(window):
        return _ENTRY.size
    if not window.startswith(_ENTRY_MAGIC, at):
        raise ZipDamaged("has a record in its directory that is not an entry")
    name_bytes, extra_bytes, comment_bytes = struct.unpack_from("<3H", window, at + 28)
    return int(_ENTRY.size + name_bytes + extra_bytes + comment_bytes)


def _decode_entry(window: bytes, at: int, directory: CentralDirectory) -> ZipEntry:
    fields = _ENTRY.unpack_from(window, at)
    flags, method, crc32 = fields[3], fields[4], fields[7]
    name_bytes, extra_bytes = fields[10], fields[11]
    names_at = at + _ENTRY.size
    extra = window[names_at + name_bytes : names_at + name_bytes + extra_bytes]
    size_bytes, compressed_bytes, header_offset = _sizes(fields[9], fields[8], fields[16], extra)
    if directory.base + header_offset + _LOCAL.size + compressed_bytes > directory.start:
        raise ZipDamaged("has an entry that overlaps its directory")
    name = window[names_at : names_at + name_bytes]
    return ZipEntry(name, flags, method, crc32, compressed_bytes, size_bytes, header_offset)


def _sizes(size_bytes: int, compressed_bytes: int, header_offset: int, extra: bytes) -> tuple[int, int, int]:
    """Size, compressed size and offset, each from the zip64 field where it is too large (section 4.5.3)."""
    values = [size_bytes, compressed_bytes, header_offset]
    missing = [place for place, value in enumerate(values) if value == _IN_ZIP64]
    at = 0
    while missing and at + 4 <= len(extra):
        kind, length_bytes = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == _ZIP64_FIELD:
            if length_bytes < 8 * len(missing) or at + length_bytes > len(extra):
                raise ZipDamaged("has a zip64 field that is too short")
            for number, place in enumerate(missing):
                values[place] = struct.unpack_from("<Q", extra, at + 8 * number)[0]
            break
        at += length_bytes
    return values[0], values[1], values[2]


def _read(descriptor: int, start: int, size_bytes: int) -> bytes:
    """Exactly these bytes. Raises OSError; ZipDamaged when the file ends before."""
    content = bytearray()
    while len(content) < size_bytes:
        part = os.pread(descriptor, size_bytes - len(content), start + len(content))
        if not part:
            raise ZipDamaged("ends early")
        content += part
    return bytes(content)
