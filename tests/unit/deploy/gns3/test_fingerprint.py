"""Two exports of one project have one fingerprint; of a changed or damaged one they have not."""

import io
import struct
import zipfile
from collections.abc import Mapping

import pytest

from deploy.gns3.archive import read_archive
from deploy.gns3.fingerprint import (
    ChangeScan,
    ExportDamaged,
    ExportScan,
    Fingerprint,
    fingerprint_of,
    topology_crc32_of_head,
)

FILES = {"project.gns3": b'{"name": "lab"}', "project-files/disk": b"x" * 3000, "README.txt": b""}


class Unseekable(io.RawIOBase):
    """What a zip is written to as GNS3 does: sizes and checksums follow each entry."""

    def __init__(self) -> None:
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, part: bytes) -> int:  # type: ignore[override]
        self.content += bytes(part)
        return len(part)


def export(files: Mapping[str, bytes] = FILES, *, year: int = 2026) -> bytes:
    target = Unseekable()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 2, 3, 4, 6)), content)
    return target.content


def fingerprint(content: bytes, *, piece: int = 97) -> Fingerprint:
    scan = ExportScan()
    for at in range(0, len(content), piece):
        scan.feed(content[at : at + piece])
    return scan.finish()


def test_time_of_an_entry_does_not_count() -> None:
    first, second = export(year=2026), export(year=2027)
    assert first != second
    assert fingerprint(first) == fingerprint(second)


def test_order_and_compression_do_not_count() -> None:
    turned = export(dict(reversed(FILES.items())))
    assert fingerprint(turned).digest == fingerprint(export()).digest


@pytest.mark.parametrize(
    "changed",
    [
        {"project-files/disk": b"y" + b"x" * 2999},
        {"project-files/disk": b"x" * 3001},
        {"project-files/more": b""},
        {"project.gns3": b'{"name": "lob"}'},
    ],
    ids=["content", "size", "name", "topology"],
)
def test_what_changes_counts(changed: Mapping[str, bytes]) -> None:
    assert fingerprint(export({**FILES, **changed})) != fingerprint(export())


def test_copy_that_opening_makes_does_not_count() -> None:
    assert fingerprint(export({**FILES, "lab.gns3.backup": b"{}"})) == fingerprint(export())
    assert fingerprint(export({**FILES, "project-files/lab.gns3.backup": b"{}"})) != fingerprint(export())


def test_tag_says_all_of_it() -> None:
    found = fingerprint(export())
    assert Fingerprint.of_tag(found.tag) == found
    assert Fingerprint.of_tag("v2") is None
    assert Fingerprint.of_tag(found.tag + "x") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content[100:],
        lambda content: content[:50] + content[60:],
        lambda content: content[:0],
        lambda content: content[:0] + b"no zip at all",
    ],
    ids=["end", "half", "beginning", "middle", "empty", "other"],
)
def test_export_that_is_not_whole_is_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ExportDamaged):
        fingerprint(damage(export()))


def test_zip_without_a_topology_is_refused() -> None:
    with pytest.raises(ExportDamaged, match=r"project\.gns3"):
        fingerprint(export({"other": b""}))


def test_end_alone_is_enough_and_too_little_of_it_is_told() -> None:
    content = export()
    assert fingerprint_of(read_archive(content[-400:], len(content))) == fingerprint(content)
    with pytest.raises(ExportDamaged, match="too large"):
        read_archive(content[-60:], len(content))


def test_topology_is_known_by_the_beginning() -> None:
    content = export()
    known_from = next(size for size in range(len(content)) if topology_crc32_of_head(content[:size]))
    assert topology_crc32_of_head(content) == fingerprint(content).topology_crc32
    assert known_from < content.index(b"project-files/disk")


def test_descriptor_within_the_content_is_no_end_of_it() -> None:
    fake = b"PK\x07\x08" + struct.pack("<3L", 1, 2, 3)
    content = io.BytesIO()
    target = Unseekable()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("project.gns3", b"{" + fake + b"}")
    assert content.getvalue() == b""
    assert topology_crc32_of_head(target.content) == fingerprint(target.content).topology_crc32


@pytest.mark.parametrize(
    "head",
    [b"", b"PK\x03\x04", b"other" * 30, export({"a": b"", **FILES})],
    ids=["none", "cut", "other", "second"],
)
def test_beginning_that_does_not_tell(head: bytes) -> None:
    assert topology_crc32_of_head(head) is None


def dated_export(**months: int) -> bytes:
    """Files of 3,000 bytes that were changed in these months; GNS3 has exported them in May."""
    target = Unseekable()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("project.gns3", (2026, 5, 2, 3, 4, 6)), FILES["project.gns3"])
        for name, month in months.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, month, 2, 3, 4, 6)), b"x" * 3000)
    return target.content


def noticed_at(older: bytes, newer: bytes, piece: int) -> int:
    """How many bytes pass until a change is noticed; -1 if none is."""
    scan = ExportScan()
    scan.feed(older)
    changes = ChangeScan(scan.archive())
    for at in range(0, len(newer), piece):
        if changes.has_changed(newer[at : at + piece]):
            return min(at + piece, len(newer))
    return -1


@pytest.mark.parametrize("piece", [1, 13, 97, 4096, 1 << 20])
def test_change_is_noticed_before_the_changed_file_has_passed_by(piece: int) -> None:
    older = dated_export(a=1, b=2, c=3)
    start = older.index(b"PK\x03\x04", older.index(b"PK\x03\x04", 40) + 40)  # of b
    assert noticed_at(older, older, piece) == -1
    assert noticed_at(older, dated_export(a=1, b=4, c=3), piece) in range(start, start + 14 + piece)
    assert noticed_at(older, dated_export(b=2, c=3), piece) >= 0
    of_other_computes = dated_export(a=1, b=5)
    assert noticed_at(of_other_computes, dated_export(a=1, b=6), piece) == -1
