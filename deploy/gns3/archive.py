"""The zip of an exported project: its directory, its topology, and what this product changes in it. No I/O.

Two changes are made, both at the end of the bytes, so that nothing before them moves. A backup that lacks
files of its project says so in the comment of the zip. An archive that is about to be imported gets another
topology: it is appended, and the directory names it in place of the original one.
"""

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from deploy.base.printed import printable_name
from metadata.archive.zip_methods import EntryDamaged, decode

TOPOLOGY: Final = "project.gns3"
END_BYTES: Final = 22  # of the end record of a zip without a comment
TOPOLOGY_BYTES_MAX: Final = 64 << 20
COMMENT_BYTES_MAX: Final = 60_000  # a zip has 65,535
_END_MAGIC: Final = b"PK\x05\x06"
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC: Final = b"PK\x03\x04"
ZSTD: Final = 93
_LONE: Final = re.compile("[\ud800-\udfff]")


class ExportDamaged(Exception):
    """An export that is not whole, or no project at all."""


class Missing(msgspec.Struct, frozen=True):
    """The files that a backup lacks: their `count`, and as many `names` as fit the comment of a zip."""

    count: int = 0
    names: list[str] = []

    @property
    def told(self) -> str:
        """One phrase for people, such as `2 files: a, b`; it names five at most."""
        shown = ", ".join(printable_name(name) for name in self.names[:5])
        more = f" and {self.count - 5} more" if self.count > 5 else ""
        return f"{self.count} {'file' if self.count == 1 else 'files'}: {shown}{more}"


NOTHING_MISSING: Final = Missing()


def missing_of(names: Iterable[str]) -> Missing:
    """The record of these files; names are left out, and still counted, once the comment is full."""
    shown = sorted({_LONE.sub("\ufffd", name) for name in names})
    kept: list[str] = []
    left_bytes = COMMENT_BYTES_MAX
    for name in shown:
        left_bytes -= len(msgspec.json.encode(name)) + 1
        if left_bytes < 0:
            break
        kept.append(name)
    return Missing(len(shown), kept)


class _Comment(msgspec.Struct, frozen=True):
    """The comment of a stored zip. The name of the field distinguishes it from other comments."""

    filestore_missing: Missing


def end_with_missing(end: bytes, missing: Missing) -> bytes:
    """The end record of a zip, its last END_BYTES, with `missing` in its comment.

    Returns `end` unchanged if nothing is missing.
    """
    if not missing.count or len(end) != END_BYTES or not end.startswith(_END_MAGIC):
        return end
    comment = msgspec.json.encode(_Comment(missing))
    return end[:-2] + struct.pack("<H", len(comment)) + comment


def missing_of_tail(tail: bytes) -> Missing:
    """Read the missing files from the last bytes of a zip; none if the comment is not ours."""
    at = tail.rfind(_END_MAGIC)
    return _missing_in(tail[at + END_BYTES :]) if at >= 0 else NOTHING_MISSING


@dataclass(frozen=True, slots=True)
class Archive:
    """The end of a zip of a project. `start` is the beginning of its directory."""

    entries: Sequence[zipfile.ZipInfo]
    start: int
    missing: Missing

    @property
    def topologies(self) -> list[zipfile.ZipInfo]:
        """The entries that GNS3 takes for the topology: one, in a project that is sound."""
        return [entry for entry in self.entries if entry.filename == TOPOLOGY]

    @property
    def unpacked_bytes(self) -> int:
        """The size of all files in it."""
        return sum(entry.file_size for entry in self.entries)

    @property
    def has_zstd(self) -> bool:
        """Whether something in it is compressed with zstd, which GNS3 2.2 cannot read."""
        return any(entry.compress_type == ZSTD for entry in self.entries)


def read_archive(tail: bytes, size_bytes: int) -> Archive:
    """The directory of a zip of `size_bytes` that ends in `tail`. Raises ExportDamaged."""
    try:
        with zipfile.ZipFile(_Tail(tail, size_bytes)) as archive:
            entries, start, comment = archive.infolist(), archive.start_dir, archive.comment
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise ExportDamaged(f"it has no directory at its end: {error}") from error
    if not entries or min(entry.header_offset for entry in entries) != 0:
        raise ExportDamaged("bytes are missing in it")
    found = Archive(entries, start, _missing_in(comment))
    if not found.topologies:
        raise ExportDamaged(f"it has no {TOPOLOGY}")
    return found


def topology_of(content: bytes, entry: zipfile.ZipInfo) -> dict[str, Any]:
    """The topology, by bytes that begin where its entry does. Raises ExportDamaged."""
    if len(content) < _LOCAL.size or not content.startswith(_LOCAL_MAGIC):
        raise ExportDamaged(f"{TOPOLOGY} is not at the offset in its directory")
    *_, name_bytes, extra_bytes = _LOCAL.unpack_from(content)
    start = _LOCAL.size + name_bytes + extra_bytes
    packed = content[start : start + entry.compress_size]
    try:
        if len(packed) != entry.compress_size or entry.file_size > TOPOLOGY_BYTES_MAX:
            raise ValueError("its length differs from its directory")
        unpacked = decode(entry.compress_type, io.BytesIO(packed), entry.file_size)
        if zlib.crc32(unpacked) != entry.CRC:
            raise ValueError("its checksum does not match")
        topology = json.loads(unpacked)  # as GNS3 reads it, with numbers of any size
        if not isinstance(topology, dict):
            raise ValueError("it is not a topology")
    except (EntryDamaged, RecursionError, ValueError) as error:
        raise ExportDamaged(f"{TOPOLOGY} cannot be read: {error}") from error
    return topology


def topology_span(entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Return the span of bytes that `topology_of` needs; more bytes after it do no harm."""
    return entry.header_offset, entry.header_offset + _LOCAL.size + 2 * 65_535 + entry.compress_size


def end_with_topology(archive: Archive, topology: bytes) -> bytes:
    """Build a new end of an archive, from its directory on: another topology, and a new directory.

    The topology comes last in the directory. A server that unpacks the archive has it last, too, and a folder
    without one is no project.
    """
    end = _Appended(archive.start)
    with zipfile.ZipFile(end, "w") as made:
        others = [entry for entry in archive.entries if entry.filename != TOPOLOGY]
        made.filelist.extend(others)
        made.writestr(zipfile.ZipInfo(TOPOLOGY, (1980, 1, 1, 0, 0, 0)), topology)
    return bytes(end.written)


def _missing_in(comment: bytes) -> Missing:
    try:
        return msgspec.json.decode(comment, type=_Comment).filestore_missing
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return NOTHING_MISSING


class _Appended(io.RawIOBase):
    """Collects what is written behind `start` bytes that are elsewhere."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.written = bytearray()
        self._start = start

    def writable(self) -> bool:
        return True

    def seek(self, _offset: int, _whence: int = io.SEEK_SET) -> int:
        raise io.UnsupportedOperation  # of Python 3.13, that of RawIOBase does not know large offsets

    def tell(self) -> int:
        return self._start + len(self.written)

    def write(self, part: Any) -> int:
        self.written += part
        return len(part)


class _Tail(io.RawIOBase):
    """The end of a file, at its position in the file. Reading before it is an OSError."""

    def __init__(self, tail: bytes, size_bytes: int) -> None:
        super().__init__()
        self._tail, self._size_bytes, self._at = tail, size_bytes, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._at = base + offset
        return self._at

    def read(self, length: int = -1) -> bytes:
        at = self._at - (self._size_bytes - len(self._tail))
        if at < 0:
            raise OSError("its directory is too large")
        part = self._tail[at:] if length < 0 else self._tail[at : at + length]
        self._at += len(part)
        return part
