"""Snapshots and reflink copies keep what a folder was while it is written to; btrfs on a loop device."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.gns3.folders.copies import (
    WORK,
    copied_by_reflink,
    is_new_snapshot,
    make_snapshot,
    remove_snapshot,
    work_in,
)
from deploy.gns3.folders.entries import open_file, opened_folder, scan
from deploy.gns3.folders.packing import pack
from tests.unit.deploy.gns3.folders.test_packing import packed

IMAGE_BYTES = 256 << 20


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new file system; skips the test where none can be mounted."""
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None:
        pytest.skip("mounts a file system")
    image = tmp_path_factory.mktemp("btrfs") / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    mounted = image.parent / "mounted"
    mounted.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount btrfs: {done.stderr.decode()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def projects(btrfs: Path) -> Iterator[Path]:
    """A directory of projects in a subvolume of its own, with one project."""
    subvolume = btrfs / "sub"
    subprocess.run(["btrfs", "subvolume", "create", str(subvolume)], check=True, capture_output=True)
    lab = subvolume / "projects" / "lab"
    lab.mkdir(parents=True)
    (lab / "disk").write_bytes(b"before" * 10_000)
    os.link(lab / "disk", lab / "twin")
    (lab / "gone").write_bytes(b"linked" * 1000)
    (lab / "gone with it").hardlink_to(lab / "gone")
    for name in ("its twin", "twin of it"):
        (lab / name).hardlink_to(lab / "gone")
    (lab / "empty").touch()
    yield subvolume / "projects"
    subprocess.run(["btrfs", "subvolume", "delete", str(subvolume)], check=True, capture_output=True)


def test_snapshot_has_what_was_there(projects: Path) -> None:
    before = packed(projects / "lab")
    with work_in(projects) as work:
        assert work is not None
        directory = make_snapshot(projects, work)
        assert directory is not None
        (projects / "lab" / "disk").write_bytes(b"after")
        (projects / "lab" / "gone").unlink()
        assert packed(directory / "lab") == before
        with pytest.raises(OSError, match="Read-only"):
            (directory / "lab" / "new").touch()
        remove_snapshot(work)
        assert list((projects / WORK).iterdir()) == []
        assert make_snapshot(projects, work) is not None
    assert list((projects / WORK).iterdir()) == []  # it ends with the run
    subprocess.run(
        ["btrfs", "subvolume", "snapshot", projects.parent, projects / WORK / "snapshot"], check=True
    )
    with work_in(projects):  # after a run that was killed
        assert list((projects / WORK).iterdir()) == []


def test_reflink_copies_have_what_was_there(projects: Path) -> None:
    lab = projects / "lab"
    with work_in(projects) as work, opened_folder(lab) as folder:
        assert work is not None
        found = scan(folder, "lab")
        for name in ("gone", "gone with it"):
            (lab / name).unlink()
        with copied_by_reflink(found, folder, work) as copies:
            assert copies is not None
            still, open_copy = copies
            (lab / "disk").write_bytes(b"after")
            content = b"".join(pack(still, open_copy, comments={}))
            assert (projects / WORK / "copies").stat().st_mode & 0o777 == 0o700
        assert b"before" * 10_000 in content
        assert b"after" not in content
        assert content.count(b"linked" * 1000) == 1
        twins = {entry.path: entry.twin for entry in still.entries}
        # A file whose first names are gone has the next one as its first.
        assert twins == {
            "": "",
            "disk": "",
            "empty": "",
            "its twin": "",
            "twin": "disk",
            "twin of it": "its twin",
        }
        assert list((projects / WORK).iterdir()) == []


def test_other_file_systems_have_neither(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "disk").write_bytes(b"1")
    with work_in(tmp_path) as work, opened_folder(tmp_path / "lab") as folder:
        assert work is not None
        found = scan(folder, "lab")
        with copied_by_reflink(found, folder, work) as copies:
            if copies is None:
                assert make_snapshot(tmp_path, work) is None
            else:
                assert copies[0].entries == found.entries  # this directory has reflinks
        assert list((tmp_path / WORK).iterdir()) == []
        content = b"".join(pack(found, lambda entry: open_file(folder, entry), comments={}))
        assert content


def test_snapshot_of_another_program_is_new_once(tmp_path: Path) -> None:
    projects, snapshot, other = tmp_path / "projects", tmp_path / "snapshot", tmp_path / "other"
    for each in (projects, other):
        (each / WORK).mkdir(parents=True)
    assert not is_new_snapshot(snapshot, projects)
    shutil.copytree(projects, snapshot)  # with its times
    assert not is_new_snapshot(snapshot, other)
    assert is_new_snapshot(snapshot, projects)
    assert not is_new_snapshot(snapshot, projects)
    shutil.rmtree(snapshot)
    shutil.copytree(projects, snapshot)
    with work_in(projects) as work:
        assert work is not None
        assert is_new_snapshot(snapshot, projects)
    shutil.rmtree(projects / WORK)
    (projects / WORK).symlink_to(snapshot / WORK)
    assert not is_new_snapshot(snapshot, projects)


def test_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / WORK).mkdir()
    (tmp_path / WORK).chmod(0o777)
    (tmp_path / WORK / "theirs").touch()
    with work_in(tmp_path) as work:
        assert work is None
    assert (tmp_path / WORK / "theirs").exists()
    shutil.rmtree(tmp_path / WORK)
    (tmp_path / WORK).symlink_to("/etc")
    with work_in(tmp_path) as work:
        assert work is None
