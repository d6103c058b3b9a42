"""Hostile and damaged archives are rejected before anything is made; parts of archives come back too."""

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from deploy.gns3.folders.entries import opened_folder
from deploy.gns3.folders.packing import BLOCK_BYTES, FORMAT
from deploy.gns3.folders.unpacking import ArchiveRejected, differences, read_archive, unpack
from tests.unit.deploy.gns3.folders.test_packing import full_folder, packed, scanned

HEAD = tarfile.TarInfo.create_pax_global_header({FORMAT: "1"})
END = bytes(2 * BLOCK_BYTES)
REG, DIR, SYM, LNK = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def member(name: str, kind: bytes = REG, link: str = "", content: bytes = b"", **records: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.pax_headers = kind, link, len(content), dict(records)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % BLOCK_BYTES)


def sparse(places: bytes, content: bytes) -> bytes:
    """A sparse file of ten bytes."""
    info = tarfile.TarInfo("lab/a")
    info.size = BLOCK_BYTES + len(content)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "lab/a", "GNU.sparse.realsize": "10"}
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + places.ljust(BLOCK_BYTES, b"\0") + content.ljust(BLOCK_BYTES, b"\0")


ROOT = member("lab", DIR)
HOSTILE = {
    "parent": [ROOT, member("lab/../etc", DIR)],
    "parent itself": [ROOT, member("lab/..", DIR)],
    "same folder": [ROOT, member("lab/.", DIR)],
    "absolute": [ROOT, member("/etc/passwd")],
    "beside": [ROOT, member("labs/x")],
    "root that is a parent": [member("..", DIR)],
    "root with a folder": [member("a/b", DIR)],
    "hidden root": [member(".filestore", DIR)],
    "first is a link": [member("lab", SYM, "/etc")],
    "below a link": [ROOT, member("lab/etc", SYM, "/etc"), member("lab/etc/passwd")],
    "below a file": [ROOT, member("lab/a"), member("lab/a/b")],
    "link replaced": [ROOT, member("lab/a", SYM, "/etc"), member("lab/a", DIR)],
    "without a parent": [ROOT, member("lab/a/b")],
    "hard link outside": [ROOT, member("lab/a", LNK, "/etc/passwd")],
    "hard link up": [ROOT, member("lab/a", LNK, "lab/../../etc/passwd")],
    "hard link to a link": [ROOT, member("lab/s", SYM, "/etc/passwd"), member("lab/a", LNK, "lab/s")],
    "hard link to a later one": [ROOT, member("lab/a", LNK, "lab/b"), member("lab/b")],
    "device": [ROOT, member("lab/sda", tarfile.BLKTYPE)],
    "terminal": [ROOT, member("lab/tty", tarfile.CHRTYPE)],
    "old sparse file": [ROOT, member("lab/a", tarfile.GNUTYPE_SPARSE)],
    "long name of GNU": [ROOT, member("././@LongLink", tarfile.GNUTYPE_LONGNAME)],
    "path in a record": [ROOT, member("lab/a", path="lab/../b")],
    "zero in a name": [ROOT, member("lab/a", path="lab/b\0c")],
    "negative size": [ROOT, member("lab/a", size="-512")],
    "size beyond the end": [ROOT, member("lab/a", size="999999999999")],
    "time of no number": [ROOT, member("lab/a", mtime="NaN")],
    "endless time": [ROOT, member("lab/a", mtime="Infinity")],
    "sparse beyond its size": [
        ROOT,
        sparse(b"1\n100\n5\n", b"12345"),
    ],
    "sparse backwards": [
        ROOT,
        sparse(b"2\n5\n1\n0\n1\n", b"12"),
    ],
    "second global header": [ROOT, HEAD],
    "sparse with another count": [ROOT, sparse(b"2\n0\n1\n", b"1")],
    "sparse with too little content": [ROOT, sparse(b"1\n0\n5\n", b"123")],
    "nothing": [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_rejected(name: str) -> None:
    with pytest.raises(ArchiveRejected):
        read_archive(io.BytesIO(HEAD + b"".join(HOSTILE[name]) + END))


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04" + bytes(2000), ROOT + END, HEAD + ROOT, HEAD + ROOT + bytes(512)]
)
def test_what_is_no_archive_of_a_folder_is_rejected(content: bytes) -> None:
    with pytest.raises(ArchiveRejected):
        read_archive(io.BytesIO(content))


def test_link_that_leads_out_is_made_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    content = HEAD + ROOT + member("lab/a", SYM, str(outside)) + member("lab/b", content=b"12") + END
    archive = read_archive(io.BytesIO(content))
    with opened_folder(tmp_path) as place:
        unpack(io.BytesIO(content), archive.members, place, "lab")
    assert (tmp_path / "lab" / "a").readlink() == outside
    assert list(outside.iterdir()) == []
    assert (tmp_path / "lab" / "b").read_bytes() == b"12"


def test_damaged_archives_are_rejected_or_stay_below_the_folder(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    full_folder(lab)
    content, dice = packed(lab), random.Random(7)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            archive = read_archive(io.BytesIO(damaged[: dice.randrange(len(damaged) + 1)]))
        except ArchiveRejected:
            continue
        for entry in archive.entries:
            assert not entry.path.startswith("/")
            assert ".." not in entry.path.split("/")
    (lab / "read only").chmod(0o755)


def test_single_files_come_back_with_their_parents(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    full_folder(lab)
    os.link(lab / "twin", lab / "zwilling")
    content = packed(lab)
    archive = read_archive(io.BytesIO(content))
    for number, path in enumerate(("twin", "project-files", "read only/in it")):
        members = archive.chosen(path)
        with opened_folder(tmp_path) as place:
            unpack(io.BytesIO(content), members, place, f"part{number}")
        part = tmp_path / f"part{number}"
        changed = differences(archive.entries, scanned(part).entries)
        assert path not in {name for name, what in changed if what in ("new", "content")}
        kept = {entry.path for entry in scanned(part).entries}
        assert {member.entry.path for member in members} == kept
        if (lab / path).is_file():
            assert (part / path).read_bytes() == (lab / path).read_bytes()
    with pytest.raises(KeyError):
        archive.chosen("no such file")
    for folder in (lab, tmp_path / "part2"):
        (folder / "read only").chmod(0o755)


def test_differences_say_what_would_change(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    full_folder(lab)
    before = scanned(lab).entries
    files = lab / "project-files"
    (files / "mode 640").write_bytes(b"other")
    (files / "ünï").chmod(0o600)
    (files / "pipe").unlink()
    (lab / "added").write_bytes(b"")
    (lab / "to outside").unlink()
    (lab / "to outside").symlink_to("/etc/hosts")
    (lab / "a.txt").unlink()
    (lab / "a.txt").mkdir()
    told = dict(differences(before, scanned(lab).entries))
    assert told["project-files/mode 640"] == "content"
    assert told["project-files/ünï"] == "mode"
    assert told["project-files/pipe"] == "new"
    assert told["added"] == "removed"
    assert "links" in told["to outside"]
    assert told["a.txt"] == "type"
    (lab / "read only").chmod(0o755)
