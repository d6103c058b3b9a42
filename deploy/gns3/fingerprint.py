"""Identify the content of an exported project by its zip's directory while it is streamed. No I/O.

Two exports of an unchanged project differ in their bytes, but only in the time of one entry. Names, CRC-32
and sizes of the entries do not: a digest of them is the fingerprint. GNS3 makes a copy of the topology each
time a project is opened (`NAME.gns3.backup`), which is no part of it.
"""

import hashlib
import re
import struct
import zipfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from deploy.gns3.archive import TOPOLOGY, Archive, read_archive, topology_of
from deploy.gns3.archive import ExportDamaged as ExportDamaged

TAIL_BYTES_MAX: Final = 32 << 20  # kept of an export; the directory of 250,000 files
HEAD_BYTES_MAX: Final = 8 << 20  # looked at for the end of the first entry
_TAG: Final = re.compile(r"gns3-(full-)?1:([0-9a-f]{8}):([0-9a-f]{40})")
Kind = Literal["export", "full"]
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_DESCRIPTOR: Final = struct.Struct("<4s3L")
_DESCRIPTOR_MAGIC: Final = b"PK\x07\x08"
_LOCAL_SLACK_BYTES: Final = 4096  # more than the header of a topology takes
_LOCAL_START: Final = struct.Struct("<4s5H")  # of a local header: up to time and date


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a backup's content, of the topology alone and of all entries.

    `kind`: an export of GNS3, or a full backup of the folder. The digest of an export is of contents; for a
    folder it is of what `stat` says.
    """

    topology_crc32: int
    digest: str
    kind: Kind = "export"

    @property
    def tag(self) -> str:
        """Return the fingerprint as in the `version_tag` of a backup."""
        form = "gns3-full-1" if self.kind == "full" else "gns3-1"
        return f"{form}:{self.topology_crc32:08x}:{self.digest}"

    @staticmethod
    def of_tag(tag: str) -> "Fingerprint | None":
        """Parse the fingerprint in a `version_tag`; None if it is not of a backup."""
        match = _TAG.fullmatch(tag)
        if match is None:
            return None
        return Fingerprint(int(match[2], 16), match[3], "full" if match[1] else "export")


class ExportScan:
    """Sees the parts of an export in order, and keeps what its end needs."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    def feed(self, part: bytes) -> None:
        """The next bytes."""
        self.size_bytes += len(part)
        if len(self._head) < HEAD_BYTES_MAX:
            self._head += part
        self._tail.append(part)
        self._tail_bytes += len(part)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES_MAX:
            self._tail_bytes -= len(self._tail.popleft())

    def archive(self) -> Archive:
        """The directory, once all bytes were seen. Raises ExportDamaged for what is not whole."""
        return read_archive(b"".join(self._tail), self.size_bytes)

    def finish(self) -> Fingerprint:
        """The fingerprint, once all bytes were seen. Raises ExportDamaged for what is not whole."""
        return fingerprint_of(self.archive())

    def project_ids(self, archive: Archive) -> list[str]:
        """The ids that the topologies in the archive name. Raises ExportDamaged.

        GNS3 writes topologies first; one that ends beyond HEAD_BYTES_MAX is left out.
        """
        return [
            str(topology_of(bytes(self._head[entry.header_offset :]), entry).get("project_id", ""))
            for entry in archive.topologies
            if entry.header_offset + entry.compress_size + _LOCAL_SLACK_BYTES <= len(self._head)
            or len(self._head) == self.size_bytes
        ]

    @property
    def last_name(self) -> str:
        """Which file was passing by last, as far as the bytes that are kept tell; "" if they do not."""
        kept = b"".join(self._tail)
        at = kept.rfind(_LOCAL_MAGIC)
        if at < 0 or at + _LOCAL.size > len(kept):
            return ""
        *_, name_bytes, _ = _LOCAL.unpack_from(kept, at)
        name = kept[at + _LOCAL.size : at + _LOCAL.size + name_bytes]
        return name.decode("utf-8", "replace") if len(name) == name_bytes else ""


class ChangeScan:
    """Sees the parts of an export in order, and compares when its files were changed with an older archive.

    GNS3 writes the time of a file before its content, and in an unchanged project each file is at the same
    place. So a change is mostly noticed before the changed file has passed by. Only fingerprints are certain.
    """

    def __init__(self, archive: Archive) -> None:
        entries = sorted(archive.entries, key=lambda entry: entry.header_offset)
        # The topology has the time of the export, and so do files of other computes.
        made_at = archive.topologies[0].date_time
        known = [entry for entry in entries if entry.date_time < made_at]
        self._expected = deque((entry.header_offset, _dos_time(entry)) for entry in known)
        self._held = b""
        self._held_at = 0  # the place of its first byte

    def has_changed(self, part: bytes) -> bool:
        """Whether a file that begins in the next bytes was changed since, or is not where it was."""
        held, at = self._held + part, self._held_at
        while self._expected and self._expected[0][0] + _LOCAL_START.size <= at + len(held):
            offset, expected = self._expected.popleft()
            magic, _, _, _, time, date = _LOCAL_START.unpack_from(held, offset - at)
            if (magic, date, time) != (_LOCAL_MAGIC, *expected):
                return True
        needed_from = self._expected[0][0] - at if self._expected else len(held)
        self._held, self._held_at = held[needed_from:], at + min(needed_from, len(held))
        return False


def _dos_time(entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Date and time as a local header has them."""
    year, month, day, hour, minute, second = entry.date_time
    return (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2


def fingerprint_of(archive: Archive) -> Fingerprint:
    """The fingerprint of a zip by its directory."""
    lines = sorted(
        f"{entry.CRC:08x} {entry.file_size} {entry.filename}\n"
        for entry in archive.entries
        if not _is_made_by_opening(entry.filename)
    )
    return Fingerprint(archive.topologies[0].CRC, _digest(lines))


def topology_crc32_of_head(head: bytes) -> int | None:
    """Return the CRC-32 of the topology, which GNS3 writes first, from the first bytes of an export.

    None if they do not contain it. It is after the entry, in a descriptor that is recognised by its magic and
    its length. A wrong guess costs only that the export is read to its end.
    """
    if len(head) < _LOCAL.size or not head.startswith(_LOCAL_MAGIC):
        return None
    *_, name_bytes, extra_bytes = _LOCAL.unpack_from(head)
    if head[_LOCAL.size : _LOCAL.size + name_bytes] != TOPOLOGY.encode():
        return None
    start = _LOCAL.size + name_bytes + extra_bytes
    at = head.find(_DESCRIPTOR_MAGIC, start)
    while at >= 0 and at + _DESCRIPTOR.size <= len(head):
        _, crc32, compressed_bytes, _ = _DESCRIPTOR.unpack_from(head, at)
        if compressed_bytes == at - start:
            return int(crc32)
        at = head.find(_DESCRIPTOR_MAGIC, at + 1)
    return None


def _is_made_by_opening(name: str) -> bool:
    return "/" not in name and name.endswith((".gns3.backup", ".gns3.tmp"))


def _digest(lines: Iterable[str]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode("utf-8", "surrogateescape"))
    return found.hexdigest()[:40]
