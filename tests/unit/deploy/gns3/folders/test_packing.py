"""A folder with every kind of entry becomes one archive, always the same bytes, and comes back equal."""

import io
import os
import secrets
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.gns3.folders.entries import FolderChanges, FolderScan, open_file, opened_folder, scan
from deploy.gns3.folders.packing import pack
from deploy.gns3.folders.unpacking import FolderArchive, differences, read_archive, unpack

HOLE = 3 << 20


def full_folder(root: Path) -> None:
    """Fill a folder with every kind of entry, mode, link, hole and name that this user can make."""
    files = root / "project-files"
    files.mkdir(parents=True)
    (root / "b lab.gns3").write_text('{"project_id": "1"}')
    (root / "a.txt").write_bytes(b"")
    with (files / "disk.img").open("wb") as disk:
        disk.write(b"begin")
        disk.seek(HOLE)
        disk.write(secrets.token_bytes(70_001))
        disk.truncate(2 * HOLE)
    with (files / "empty disk").open("wb") as disk:
        disk.truncate(HOLE)
    os.link(files / "disk.img", root / "twin")
    (root / "to outside").symlink_to("/etc/passwd")
    (files / "broken").symlink_to("nowhere/at all")
    os.mkfifo(files / "pipe", 0o620)
    for mode in (0o000, 0o4755, 0o2644, 0o1777, 0o640):
        path = files / f"mode {mode:o}"
        path.write_bytes(secrets.token_bytes(513))
        path.chmod(mode)
    deep = files / ("long " * 30)
    deep.mkdir()
    (deep / ("name " * 40)).write_bytes(b"x")
    with open(os.fsencode(files) + b"/bytes \xff\xfe \n", "wb") as odd:
        odd.write(b"odd")
    (files / "ünï").write_bytes(b"u")
    os.setxattr(files / "ünï", "user.a=b%", b"\xff\x00\n=")
    os.setxattr(files, "user.of a folder", b"1")
    os.utime(files / "ünï", ns=(5, 1_700_000_000_123_456_789))
    os.utime(root / "a.txt", ns=(5, -3_500_000_000))
    if os.geteuid() == 0:
        os.chown(files / "mode 640", 4_000_000, 65_534)
        os.lchown(files / "broken", 1, 2)
    (root / "read only").mkdir()
    (root / "read only" / "in it").write_bytes(b"1")
    (root / "read only").chmod(0o555)
    os.mknod(root / "socket", 0o600 | stat.S_IFSOCK)


def scanned(folder: Path) -> FolderScan:
    with opened_folder(folder) as descriptor:
        return scan(descriptor, folder.name, first=".gns3")


def packed(folder: Path) -> bytes:
    with opened_folder(folder) as descriptor:
        found = scan(descriptor, folder.name, first=".gns3")
        return b"".join(pack(found, lambda entry: open_file(descriptor, entry), comments={}))


def unpacked(content: bytes, place: Path, name: str) -> FolderArchive:
    archive = read_archive(io.BytesIO(content))
    with opened_folder(place) as descriptor:
        unpack(io.BytesIO(content), archive.members, descriptor, name)
    return archive


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "lab"
    full_folder(folder)
    yield folder
    for path in (folder, tmp_path / "again"):
        if path.exists():
            (path / "read only").chmod(0o755)


def without_name(folder: Path) -> list[object]:
    return [each for each in scanned(folder).entries if each.path != "socket"]


def test_every_kind_of_entry_comes_back_equal(lab: Path, tmp_path: Path) -> None:
    content = packed(lab)
    archive = unpacked(content, tmp_path, "again")
    assert (archive.name, archive.comments["FILESTORE.folder"]) == ("lab", "1")
    before = scanned(lab).entries
    assert list(before) == archive.entries
    after = scanned(tmp_path / "again").entries
    assert differences(archive.entries, after) == []
    assert list(before) == list(after)
    kinds = {entry.kind for entry in after}
    assert kinds == {"directory", "file", "link", "pipe"}
    for name in ("project-files/disk.img", "project-files/empty disk", "twin"):
        here, there = (lab / name).stat(), (tmp_path / "again" / name).stat()
        assert (here.st_size, here.st_blocks, here.st_nlink) == (
            there.st_size,
            there.st_blocks,
            there.st_nlink,
        )
        assert (lab / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert len(content) < HOLE, "holes take no room"
    assert before[1].path == "b lab.gns3", "the topology comes first"


def test_same_folder_gives_the_same_bytes(lab: Path) -> None:
    assert packed(lab) == packed(lab)


def test_gnu_tar_and_python_unpack_the_archive(lab: Path, tmp_path: Path) -> None:
    content = packed(lab)
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        assert len(opened.getmembers()) == len(scanned(lab).entries)
        disk = opened.extractfile("lab/project-files/disk.img")
        assert disk is not None
        assert disk.read() == (lab / "project-files" / "disk.img").read_bytes()
    if os.geteuid() != 0 or shutil.which("tar") is None:
        pytest.skip("GNU tar restores owners as root only")
    place = tmp_path / "by tar"
    place.mkdir()
    command = ["tar", "-xf", "-", "--xattrs", "--xattrs-include=*", "--warning=no-unknown-keyword"]
    subprocess.run(command, input=content, cwd=place, check=True)
    assert differences(scanned(lab).entries, scanned(place / "lab").entries) == []


def test_file_that_is_replaced_or_shortened_meanwhile_is_noticed(lab: Path) -> None:
    with opened_folder(lab) as descriptor:
        found = scan(descriptor, "lab")
        (lab / "a.txt").unlink()
        (lab / "a.txt").symlink_to("/etc/passwd")
        with pytest.raises(FolderChanges):
            list(pack(found, lambda entry: open_file(descriptor, entry), comments={}))
        found = scan(descriptor, "lab")
        with (lab / "twin").open("ab") as disk:
            disk.truncate(10)
        with pytest.raises(FolderChanges):
            list(pack(found, lambda entry: open_file(descriptor, entry), comments={}))


def test_folder_swapped_for_a_link_is_not_followed(tmp_path: Path) -> None:
    lab, outside = tmp_path / "lab", tmp_path / "outside"
    for folder, content in ((lab / "sub", b"mine"), (outside, b"same")):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(content)
    with opened_folder(lab) as descriptor:
        found = scan(descriptor, "lab")
        (lab / "sub").rename(lab / "away")
        (lab / "sub").symlink_to(outside)
        with pytest.raises(FolderChanges):
            list(pack(found, lambda entry: open_file(descriptor, entry), comments={}))
    (lab / "self").symlink_to(lab)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"), opened_folder(lab / "self"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_device_nodes_are_left_out_and_named(lab: Path) -> None:
    os.mknod(lab / "device", 0o600 | 0o020000, os.makedev(1, 3))
    found = scanned(lab)
    assert found.left_out == ("device",)
    assert "device" not in {entry.path for entry in found.entries}
