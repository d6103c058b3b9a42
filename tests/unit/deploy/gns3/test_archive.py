"""What is read from the zip of a project, and what is changed at its end."""

import io
import json
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard

from deploy.gns3.archive import (
    COMMENT_BYTES_MAX,
    END_BYTES,
    NOTHING_MISSING,
    Archive,
    ExportDamaged,
    Missing,
    end_with_missing,
    end_with_topology,
    missing_of,
    missing_of_tail,
    read_archive,
    topology_of,
    topology_span,
)
from deploy.gns3.fingerprint import fingerprint_of
from tests.unit.deploy.gns3.test_fingerprint import export

TOPOLOGY = {"project_id": "original", "name": "lab", "auto_open": True}
FILES = {"project.gns3": json.dumps(TOPOLOGY).encode(), "project-files/ü": b"x" * 3000, "empty/": b""}


def marked(content: bytes, missing: Missing) -> bytes:
    return content[:-END_BYTES] + end_with_missing(content[-END_BYTES:], missing)


def test_missing_files_are_recorded_in_the_comment_and_change_nothing_else() -> None:
    content = export(FILES)
    missing = missing_of(["b/ü", "a", "a"])
    stored = marked(content, missing)
    assert missing == Missing(2, ["a", "b/ü"])
    archive = read_archive(stored, len(stored))
    assert missing_of_tail(stored[-66_000:]) == archive.missing == missing
    assert fingerprint_of(archive) == fingerprint_of(read_archive(content, len(content)))
    with zipfile.ZipFile(io.BytesIO(stored)) as opened:
        assert opened.testzip() is None
    assert marked(content, NOTHING_MISSING) == content


@pytest.mark.parametrize("comment", [b"by hand", b"{}", b'{"filestore_missing": 7}', b"\xff"])
def test_comment_of_somebody_else_says_nothing(comment: bytes) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("project.gns3", b"{}")
        archive.comment = comment
    assert missing_of_tail(target.getvalue()) == NOTHING_MISSING
    assert read_archive(target.getvalue(), len(target.getvalue())).missing == NOTHING_MISSING


def test_more_files_than_a_comment_holds_are_counted() -> None:
    missing = missing_of(f"{number:05} {'x' * 200}" for number in range(2000))
    assert missing.count == 2000
    assert 200 < len(missing.names) < 2000
    stored = marked(export(FILES), missing)
    assert len(stored) - len(export(FILES)) <= COMMENT_BYTES_MAX + 100
    assert missing_of_tail(stored) == missing
    assert missing.told.endswith("and 1995 more")


def test_names_that_are_no_text_are_recorded_all_the_same() -> None:
    missing = missing_of(["a\udcff", "b\n\x1b[31m"])
    assert missing_of_tail(marked(export(FILES), missing)) == missing
    assert "\x1b" not in missing.told


def test_import_gets_another_topology_and_unpacks_it_last(tmp_path: Path) -> None:
    content = export(FILES)
    archive = read_archive(content, len(content))
    renamed = json.dumps({**TOPOLOGY, "project_id": "other"}).encode()
    sent = content[: archive.start] + end_with_topology(archive, renamed)
    with zipfile.ZipFile(io.BytesIO(sent)) as found:
        assert found.testzip() is None
        assert found.namelist()[-1] == "project.gns3"
        assert sorted(found.namelist()) == sorted(FILES)
        assert json.loads(found.read("project.gns3"))["project_id"] == "other"
        found.extractall(tmp_path)
    assert (tmp_path / "project-files/ü").read_bytes() == FILES["project-files/ü"]
    assert b"original" not in (tmp_path / "project.gns3").read_bytes()


def test_all_topologies_of_an_archive_are_replaced(tmp_path: Path) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        made.writestr("project.gns3", b'{"project_id": "first"}')
        with pytest.warns(UserWarning, match="Duplicate"):
            made.writestr("project.gns3", b'{"project_id": "second"}')
    content = target.getvalue()
    archive = read_archive(content, len(content))
    assert len(archive.topologies) == 2
    sent = content[: archive.start] + end_with_topology(archive, b"{}")
    with zipfile.ZipFile(io.BytesIO(sent)) as found:
        assert found.namelist() == ["project.gns3"]
        assert found.read("project.gns3") == b"{}"


def test_topology_of_a_large_archive_is_found_behind_four_gigabytes() -> None:
    disk = zipfile.ZipInfo("project-files/disk")
    disk.file_size, disk.compress_size, disk.CRC, disk.header_offset = 7 << 30, 6 << 30, 1, 0
    start = (6 << 30) + 100
    end = end_with_topology(Archive([disk], start, NOTHING_MISSING), b"{}")
    found = read_archive(end, start + len(end))
    assert [(entry.filename, entry.file_size, entry.compress_size) for entry in found.entries] == [
        ("project-files/disk", 7 << 30, 6 << 30),
        ("project.gns3", 2, 2),
    ]
    assert found.topologies[0].header_offset == start
    assert topology_of(end, found.topologies[0]) == {}


def zstd_export(topology: bytes) -> bytes:
    """A stored entry that claims to be zstd, which this Python cannot write."""
    packed = zstandard.ZstdCompressor().compress(topology)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("project.gns3", packed)
        entry = archive.getinfo("project.gns3")
        entry.compress_type, entry.file_size, entry.CRC = 93, len(topology), zlib.crc32(topology)
    return target.getvalue()


@pytest.mark.parametrize("packed", ["deflate", "zstd"])
def test_topology_is_read_as_gns3_packs_it(packed: str) -> None:
    content = export(FILES) if packed == "deflate" else zstd_export(FILES["project.gns3"])
    archive = read_archive(content, len(content))
    entry = archive.topologies[0]
    start, stop = topology_span(entry)
    assert topology_of(content[start:stop], entry) == TOPOLOGY
    assert archive.has_zstd == (packed == "zstd")
    with pytest.raises(ExportDamaged):
        topology_of(content[start : start + 40], entry)
    with pytest.raises(ExportDamaged):
        topology_of(content[start + 1 :], entry)


@pytest.mark.parametrize("topology", [b"no json", b"[]", b"\xff\xfe"])
def test_topology_that_is_none_is_damage(topology: bytes) -> None:
    content = export({"project.gns3": topology})
    with pytest.raises(ExportDamaged, match="cannot be read"):
        topology_of(content, read_archive(content, len(content)).topologies[0])
