"""Full backups on the server's machine: every file comes back equal, in place, alone, on another server."""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.gns3.folders.copies import WORK
from deploy.gns3.folders.entries import FolderEntry, opened_folder, scan
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_images import MIB, an_image, qcow2
from tests.gns3.test_restore import with_image
from tests.unit.deploy.gns3.folders.test_copies import btrfs
from tests.unit.deploy.gns3.folders.test_packing import full_folder

__all__ = ["btrfs"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ONE = "project-files/odd/project-files/mode 640"
SNAPSHOT = "snapshots/one.gns3project"
VOLUME_BYTES = 128 << 20
SETTLED_S = 0.2  # a file that is younger makes its project be stored again


def entries(folder: Path) -> list[FolderEntry]:
    with opened_folder(folder) as descriptor:
        return list(scan(descriptor, "", first=".gns3").entries)


def require_equal(before: list[FolderEntry], folder: Path, content: dict[str, bytes]) -> None:
    """Every entry is what it was, and so is every byte."""
    assert entries(folder) == before
    assert contents(folder) == content


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {os.fsencode(path.relative_to(folder)).hex(): path.read_bytes() for path in files}


def full_lab(server: LabServer, name: str) -> tuple[str, Path]:
    """A closed project with every kind of entry; its id and its folder."""
    project_id = server.make_project(name)
    folder = server.projects_path / project_id
    fill(folder)
    return project_id, folder


def fill(folder: Path) -> None:
    """Add every kind of entry to a project's folder. GNS3 cannot export it then: there is a pipe."""
    odd = folder / "project-files" / "odd"
    full_folder(odd)
    (odd / "b lab.gns3").rename(odd / "below.gns3")
    for name in ("project-files/captures/a.pcap", "project-files/vpcs/x/vpcs.log", SNAPSHOT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(secrets.token_bytes(2000))


def local(server: LabServer) -> tuple[str, str]:
    return "--local", str(server.projects_path)


@pytest.fixture
def name() -> str:
    return f"local {secrets.token_hex(3)}"


def settle() -> None:
    time.sleep(SETTLED_S)


def test_folder_comes_back_equal_on_another_server(
    operator: Operator, old: LabServer, new: LabServer, name: str
) -> None:
    project_id, folder = full_lab(old, name)
    settle()
    first = operator.json("backup", name, "--server", "old", *local(old))[0]
    assert (first["status"], first["consistency"], first["missing"]["count"]) == ("stored", "stopped", 0)
    before, content = entries(folder), contents(folder)
    again = operator.json("backup", name, "--server", "old", *local(old))[0]
    assert (again["status"], again["file_uuid"]) == ("unchanged", first["file_uuid"])
    listed = {row["name"]: row for row in operator.json("ls", "--server", "old")}[name]
    assert (listed["kind"], listed["backups"], listed["changed"]) == ("full", 1, "")
    assert "whole" in operator.do("verify", name, "--read-data")

    code, _, err = operator.run("restore", name, "--to", "new")
    assert (code, "--local" in err) == (4, True), err
    planned = operator.json("restore", name, "--to", "new", *local(new), "--dry-run")[0]
    assert {each["change"] for each in planned["changes"]} == {"new"}
    assert not (new.projects_path / project_id).exists()
    said = operator.do("restore", name, "--to", "new", *local(new))
    assert f"{len(before)} changes" in said
    require_equal(before, new.projects_path / project_id, content)
    project = new.projects()[name]
    assert (project["project_id"], project["status"]) == (project_id, "closed")
    assert {path.name for path in new.projects_path.iterdir() if path.name.startswith(".")} == set()
    new.open(project_id)
    assert len(new.call("GET", f"/projects/{project_id}/nodes")) == 2
    new.close(project_id)


def test_opened_and_closed_project_is_unchanged_and_a_change_is_stored(
    operator: Operator, old: LabServer, name: str
) -> None:
    project_id = old.make_project(name, {ONE: b"1"})  # which GNS3 can export, too
    folder = old.projects_path / project_id
    old.open(project_id)
    old.close(project_id)
    settle()
    assert operator.backup(name, "--server", "old", *local(old)) == {name: "stored"}
    old.open(project_id)
    settle()
    assert operator.backup(name, "--server", "old", *local(old)) == {name: "unchanged"}
    old.close(project_id)
    (folder / ONE).chmod(0o600)
    settle()
    assert operator.backup(name, "--server", "old", *local(old)) == {name: "stored"}
    assert operator.backup(name, "--server", "old") == {name: "stored"}  # an export is another kind
    assert operator.backup(name, "--server", "old", *local(old)) == {name: "unchanged"}
    rows = operator.json("prune", name, "--keep-last", "1", "--dry-run")
    assert [row["kept_by"] for row in rows] == [[], ["last"], ["last"]]


def test_project_in_place_and_single_files_go_back(operator: Operator, old: LabServer, name: str) -> None:
    project_id, folder = full_lab(old, name)
    settle()
    operator.do("backup", name, "--server", "old", *local(old))
    before, content = entries(folder), contents(folder)
    shutil.rmtree(folder / "snapshots")
    (folder / ONE).write_bytes(b"changed by hand")
    (folder / "added").write_bytes(b"a")
    code, out, err = operator.run("restore", name, "--to", "old", *local(old))
    assert (code, "--in-place" in err) == (5, True), err
    assert f"content  {ONE}" in out
    old.open(project_id)
    code, _, err = operator.run("restore", name, "--to", "old", *local(old), "--in-place")
    assert (code, "Close it first" in err) == (5, True), err
    old.close(project_id)

    one = ("--file", ONE)
    code, out, err = operator.run("restore", name, "--to", "old", *local(old), *one)
    assert (code, "1 changes" in out, "the replaced project is in the backup" in err) == (0, True, True), err
    changed = {path for path, data in contents(folder).items() if content.get(path) != data}
    assert b"added".hex() in changed
    assert os.fsencode(ONE).hex() not in changed
    code, _, err = operator.run("restore", name, "--to", "old", *local(old), "--file", SNAPSHOT)
    assert code == 0, err
    code, _, err = operator.run("restore", name, "--to", "old", *local(old), "--file", "no such file")
    assert (code, "no file 'no such file'" in err) == (4, True)

    newest = [row["file_uuid"] for row in operator.json("prune", name, "--keep-last", "9", "--dry-run")]
    code, _, err = operator.run("restore", newest[0], "--to", "old", *local(old), "--in-place")
    assert code == 0, err
    require_equal(before, folder, content)
    old.open(project_id)
    old.close(project_id)
    assert old.projects()[name]["project_id"] == project_id


def test_stopped_server_is_backed_up_and_restored(operator: Operator, old: LabServer, name: str) -> None:
    project_id, folder = full_lab(old, name)
    settle()
    old.kill()
    assert operator.backup(name, "--server", "old", *local(old)) == {name: "stored"}
    before, content = entries(folder), contents(folder)
    shutil.rmtree(folder)
    operator.do("restore", name, "--to", "old", *local(old))
    require_equal(before, folder, content)
    old.start()
    assert old.projects()[name]["project_id"] == project_id


def test_stopped_server_is_needed_only_for_images_that_the_store_lacks(
    operator: Operator, old: LabServer, name: str
) -> None:
    stored, lacking = an_image(), an_image()
    other = f"{name}, other"
    for project, image in ((name, stored), (other, lacking)):
        old.upload_image(image, qcow2(MIB))
        with_image(old, project, image)
    operator.do("images", "push", stored, "--server", "old")
    settle()
    backup = ("backup", name, other, "--server", "old", "--with-images", *local(old))
    old.kill()
    try:
        rows = {row["name"]: row for row in operator.json(*backup, codes=[6])}
    finally:
        old.start()
    assert {each: (row["status"], row["images"]) for each, row in rows.items()} == {
        name: ("stored", 0),
        other: ("stored", 0),
    }
    assert rows[name]["errors"] == []
    [error] = rows[other]["errors"]
    assert f"The image {lacking}" in error
    assert "is not in the store, and GNS3 server old does not run" in error
    again = {row["name"]: (row["status"], row["images"]) for row in operator.json(*backup)}
    assert again == {name: ("unchanged", 0), other: ("unchanged", 1)}


def test_running_project_needs_a_snapshot_or_copies(
    operator: Operator, old: LabServer, btrfs: Path, tmp_path: Path, name: str
) -> None:
    project_id, _ = full_lab(old, name)
    old.start_nodes(project_id)
    code, _, err = operator.run("backup", name, "--server", "old", *local(old))
    has_reflinks = code == 0  # the file system of this machine
    assert has_reflinks or (code, "is running and was skipped" in err) == (5, True), err
    old.stop_nodes(project_id)
    old.close(project_id)
    subprocess.run(["btrfs", "subvolume", "create", str(btrfs / name)], check=True, capture_output=True)
    with LabServer(gns3server(), btrfs / name / "lab") as lab:
        operator.login("btrfs", lab)
        project_id, folder = full_lab(lab, name)
        lab.start_nodes(project_id)
        result = operator.json("backup", name, "--server", "btrfs", *local(lab))[0]
        assert (result["status"], result["consistency"]) == ("stored", "snapshot")
        (lab.projects_path / WORK).rmdir()  # nothing is left in it
        for place in (folder / "project-files" / "subvolume", folder):
            make_subvolume(place)
            (place / "file").write_bytes(str(place).encode())
            result = operator.json("backup", name, "--server", "btrfs", *local(lab))[0]
            assert (result["status"], result["consistency"]) == ("stored", "copies")
            content = operator.store.request("GET", f"/files/{result['file_uuid']}").body
            assert str(place).encode() in content  # which no snapshot has
        lab.stop_nodes(project_id)
        lab.close(project_id)


def make_subvolume(place: Path) -> None:
    """Make a folder a subvolume, with what is in it."""
    before = place.with_name(f"{place.name} before")
    if place.exists():
        place.rename(before)
    subprocess.run(["btrfs", "subvolume", "create", str(place)], check=True, capture_output=True)
    if before.exists():
        subprocess.run(["cp", "-a", f"{before}/.", str(place)], check=True)
        shutil.rmtree(before)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A new file system in `image`, mounted at `volume`; skips the test where none can be mounted."""
    image, mounted = tmp_path / "image", tmp_path / "volume"
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("mounts a file system")
    with image.open("wb") as file:
        file.truncate(VOLUME_BYTES)
    mounted.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a file: {done.stderr.decode()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@contextmanager
def snapshot_of(volume: Path) -> Iterator[Path]:
    """What LVM does: all blocks of a file system as at one moment, without a word to its programs."""
    kept, mounted = volume.with_name("image of the snapshot"), volume.with_name("snapshot")
    mounted.mkdir(exist_ok=True)
    subprocess.run(["fsfreeze", "--freeze", str(volume)], check=True)
    try:
        subprocess.run(["cp", "--sparse=always", str(volume.with_name("image")), str(kept)], check=True)
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(volume)], check=True)
    subprocess.run(["mount", "-o", "ro,loop", str(kept), str(mounted)], check=True)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_running_project_is_read_from_a_given_snapshot(
    operator: Operator, new: LabServer, volume: Path, name: str
) -> None:
    with LabServer(gns3server(), volume / "lab") as lab:
        operator.login("volume", lab)
        project_id, folder = full_lab(lab, name)
        (lab.projects_path / WORK).mkdir()
        lab.start_nodes(project_id)
        settle()
        command = ("backup", name, "--server", "volume", *local(lab), "--snapshot")
        with snapshot_of(volume) as snapshot:
            place = str(snapshot / "lab" / "projects")
            (folder / ONE).write_bytes(b"written after the snapshot")
            before, content = entries(snapshot / folder.relative_to(volume)), contents(folder)
            result = operator.json(*command, place)[0]
            assert (result["status"], result["consistency"]) == ("stored", "snapshot")
            (folder / ONE).write_bytes(b"written after the backup")
            code, _, err = operator.run(*command, place)
            assert (code, "has no new snapshot" in err) == (5, True), err
        lab.stop_nodes(project_id)
        lab.close(project_id)
        settle()
        row = operator.json(*command, place)[0]
        assert (row["status"], row["consistency"]) == ("stored", "stopped")  # it needs none
        operator.do("restore", result["file_uuid"], "--to", "new", *local(new))
        restored = new.projects_path / project_id
        assert entries(restored) == before
        content[os.fsencode(ONE).hex()] = (restored / ONE).read_bytes()
        assert contents(restored) == content
        assert b"written after" not in (restored / ONE).read_bytes()
    assert operator.run(*command[:4], "--snapshot", place)[0] == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_device_nodes_are_told(operator: Operator, old: LabServer, new: LabServer, name: str) -> None:
    _, folder = full_lab(old, name)
    os.mknod(folder / "sda", 0o600 | 0o020000, os.makedev(1, 3))
    row = operator.json("backup", name, "--server", "old", *local(old), codes=[10])[0]
    assert row["missing"]["names"] == ["sda"]
    settle()
    code, _, err = operator.run("backup", name, "--server", "old", *local(old))
    assert (code, "lacks 1 file: sda" in err) == (10, True)
    assert operator.run("verify", name)[0] == 10
    operator.do("restore", name, "--to", "new", *local(new))
    assert [entry for entry in entries(folder) if entry.path] == [
        entry for entry in entries(new.projects_path / folder.name) if entry.path
    ]


def test_options_belong_together(operator: Operator) -> None:
    for options in (["--in-place"], ["--dry-run"], ["--file", "x"]):
        assert operator.run("restore", "lab", *options)[0] == 2
    here = ["--local", "."]
    for options in (["--start"], ["--name", "x"], ["--in-place", "--file", "x"], ["--owner", "somebody"]):
        assert operator.run("restore", "lab", *here, *options)[0] == 2
