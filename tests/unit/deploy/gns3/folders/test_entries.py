"""The digest of a folder shows every change, and no digest stands for a file that has only just changed."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ca.errors import Conflict
from deploy.gns3.folders.entries import DEPTH_MAX, opened_folder, scan

OLD_NS = 200_000_000


def digest(folder: Path) -> str:
    with opened_folder(folder) as descriptor:
        found = scan(descriptor, "lab", first=".gns3")
    topologies = [("a.gns3", (folder / "a.gns3").read_bytes())]
    return found.digest(passing=["a.gns3.backup"], by_content=topologies)


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "a.gns3").write_text("{}")
    (folder / "a.gns3.backup").write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_bytes(b"1234")
    (folder / "link").symlink_to("sub")
    settle()
    return folder


def settle() -> None:
    """Let the changes so far become older than the clock of a file system can hide."""
    began_ns = time.time_ns()
    while time.time_ns() < began_ns + OLD_NS:
        time.sleep(0.01)


CHANGES: dict[str, Callable[[Path], object]] = {
    "content, with the time set back": lambda lab: rewritten(lab / "sub" / "file"),
    "mode": lambda lab: (lab / "sub" / "file").chmod(0o600),
    "attribute": lambda lab: os.setxattr(lab / "sub", "user.x", b"1"),
    "hard link": lambda lab: os.link(lab / "sub" / "file", lab / "other"),
    "new name": lambda lab: (lab / "link").rename(lab / "other"),
    "removed": lambda lab: (lab / "sub" / "file").unlink(),
    "topology": lambda lab: (lab / "a.gns3").write_text("{ }"),
}


def rewritten(path: Path) -> None:
    facts = path.stat()
    path.write_bytes(b"4321")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES)
def test_change_gives_another_digest(lab: Path, change: str) -> None:
    before = digest(lab)
    assert digest(lab) == before
    CHANGES[change](lab)
    settle()
    assert digest(lab) != before


def test_project_that_was_only_opened_has_the_same_digest(lab: Path) -> None:
    before = digest(lab)
    (lab / "a.gns3.backup").write_text("a copy that GNS3 makes")
    (lab / "a.gns3").rename(lab / "a.gns3.tmp")
    (lab / "a.gns3").write_text("{}")
    (lab / "a.gns3.tmp").unlink()
    settle()
    assert digest(lab) == before


def test_file_that_has_just_changed_never_has_the_digest_of_another_scan(lab: Path) -> None:
    os.utime(lab / "sub" / "file")
    assert digest(lab) != digest(lab)


def test_folders_that_are_too_deep_are_refused(lab: Path) -> None:
    deep = lab / "/".join("d" * (DEPTH_MAX + 2))
    deep.mkdir(parents=True)
    with pytest.raises(Conflict), opened_folder(lab) as descriptor:
        scan(descriptor, "lab")


def test_only_files_of_the_folder_itself_are_kept(lab: Path) -> None:
    with opened_folder(lab) as descriptor:
        found = scan(descriptor, "lab", keep=lambda name: name != "a.gns3.backup")
    assert [entry.path for entry in found.entries] == ["", "a.gns3", "link"]
