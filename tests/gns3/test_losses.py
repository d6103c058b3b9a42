"""Neither a restore nor a backup takes the place of a whole project or of a whole backup."""

import json
import os
import secrets
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.gns3.installed import VERSION, VERSION_2, gns3server
from tests.gns3.lab_server import LabServer, LabServer2
from tests.gns3.operator import Operator

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MIB: Final = 1 << 20
DISK: Final = "project-files/qemu/1/hda_disk.qcow2"
DISK_BYTES: Final = 200 * MIB


@contextmanager
def server(
    operator: Operator, version: str, directory: Path, *options: str, obeys_modes: bool = False
) -> Iterator[LabServer]:
    """A server of this version, to which the operator is signed in as `lab`."""
    kind = LabServer2 if version == VERSION_2 else LabServer
    with kind(gns3server(version), directory, obeys_modes=obeys_modes) as started:
        access = ["--password-file", str(started.password_file), *options]
        if kind is LabServer:
            access += [
                "--compute-user",
                "gns3",
                "--compute-password-file",
                str(started.compute_password_file),
            ]
        operator.do("login", started.url, "--name", "lab", *access)
        try:
            yield started
        finally:
            operator.do("logout", "lab")


@pytest.fixture(params=[VERSION, VERSION_2])
def lab(request: pytest.FixtureRequest, operator: Operator, tmp_path: Path) -> Iterator[LabServer]:
    """A server of each version for one test, called `lab`."""
    with server(operator, request.param, tmp_path / "lab") as started:
        yield started


def topologies_of(lab: LabServer, project_id: str) -> list[Path]:
    """The files in GNS3's folder by which it would list this project."""
    found = []
    for path in lab.projects_path.glob("*/*.gns3"):
        try:
            is_of_it = json.loads(path.read_bytes())["project_id"] == project_id
        except ValueError:  # half written
            is_of_it = project_id.encode() in path.read_bytes()
        if is_of_it:
            found.append(path)
    return found


def reached(moment: Callable[[], bool], *, timeout_s: float = 120) -> bool:
    """Whether this moment came; looked for without a pause, as it may last for milliseconds."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        if moment():
            return True
    return False


def unpacked_bytes(lab: LabServer, known: set[str]) -> int:
    """How much of a disk lies in a folder that is new; -1 without such a folder."""
    for folder in os.listdir(lab.projects_path):
        if folder not in known and not folder.startswith("tmp"):
            path = lab.projects_path / folder / DISK
            return path.stat().st_size if path.exists() else 0
    return -1


def test_server_that_is_killed_while_it_imports_keeps_its_project(operator: Operator, lab: LabServer) -> None:
    name = f"kept {secrets.token_hex(3)}"
    project_id = lab.make_project(name, {DISK: os.urandom(DISK_BYTES), "project-files/a": b"a"})
    operator.do("backup", name, "--server", "lab")
    before = lab.files_of(project_id)
    for least_bytes in (0, DISK_BYTES // 4, DISK_BYTES):
        known = set(os.listdir(lab.projects_path))
        running = operator.start("restore", name, "--to", "lab", "--deadline", "3")
        assert reached(lambda: unpacked_bytes(lab, known) >= least_bytes)  # noqa: B023
        lab.kill()
        _, err = running.communicate(timeout=120)
        assert running.returncode == 6, err
        assert [path.parent.name for path in topologies_of(lab, project_id)] == [project_id]
        lab.start()
        listed = [each for each in lab.call("GET", "/projects") if each["project_id"] == project_id]
        assert [Path(each["path"]).name for each in listed] == [project_id]
        assert lab.files_of(project_id) == before
    assert operator.backup(name, "--server", "lab") == {name: "unchanged"}
    restored = operator.json("restore", name, "--to", "lab")[0]
    assert lab.files_of(restored["project_id"]) == before


def test_project_in_the_folder_of_another_is_not_backed_up(operator: Operator, lab: LabServer) -> None:
    name = f"half {secrets.token_hex(3)}"
    project_id = lab.make_project(name, {"project-files/a": os.urandom(MIB)})
    whole = operator.json("backup", name, "--server", "lab")[0]["file_uuid"]
    lab.kill()
    half = lab.projects_path / str(uuid.uuid4())
    half.mkdir()
    shutil.copy(lab.projects_path / project_id / f"{name}.gns3", half / "project.gns3")
    (lab.projects_path / project_id).rename(lab.directory / "aside")
    lab.start()
    code, _, err = operator.run("backup", name, "--server", "lab")
    assert (code, half.name in err, "--accept-loss" in err) == (5, True, True), err
    assert [file["file_uuid"] for file in operator.project_files(project_id=project_id)] == [whole]
    assert operator.backup(name, "--server", "lab", "--accept-loss") == {name: "stored"}


def test_folder_with_two_topologies_is_not_backed_up(operator: Operator, lab: LabServer) -> None:
    name = f"double {secrets.token_hex(3)}"
    project_id = lab.make_project(name)
    folder = lab.projects_path / project_id
    shutil.copy(folder / f"{name}.gns3", folder / "copy.gns3")
    code, _, err = operator.run("backup", name, "--server", "lab")
    assert (code, "2 topologies" in err) == (5, True), err
    assert operator.project_files(project_id=project_id) == []


@pytest.mark.parametrize(("before", "after"), [(3 * MIB, MIB), (90 * MIB, 35 * MIB)], ids=["small", "large"])
def test_project_that_shrank_by_half_is_not_backed_up_until_a_person_says_so(
    operator: Operator, lab: LabServer, before: int, after: int
) -> None:
    name = f"shrunk {secrets.token_hex(3)}"
    project_id = lab.make_project(name, {DISK: os.urandom(before)})
    whole = operator.json("backup", name, "--server", "lab")[0]["file_uuid"]
    lab.write(project_id, DISK, os.urandom(after))
    code, _, err = operator.run("backup", name, "--server", "lab")
    assert (code, whole in err, "It has shrunk from" in err, "--accept-loss" in err) == (5, True, True, True)
    assert [file["file_uuid"] for file in operator.project_files(project_id=project_id)] == [whole]
    assert operator.backup(name, "--server", "lab", "--accept-loss") == {name: "stored"}
    assert operator.backup(name, "--server", "lab") == {name: "unchanged"}


def test_project_that_shrank_while_its_server_was_upgraded_is_not_backed_up(
    operator: Operator, tmp_path: Path
) -> None:
    name = f"upgraded {secrets.token_hex(3)}"
    with server(operator, VERSION_2, tmp_path / "2.2") as before:
        project_id = before.make_project(name, {DISK: os.urandom(3 * MIB)})
        whole = operator.json("backup", name, "--server", "lab")[0]["file_uuid"]
        [server_id] = [row["server_id"] for row in operator.json("servers") if row["name"] == "lab"]
        status, export = before.request("GET", f"/projects/{project_id}/export")
        assert status == 200
    with server(operator, VERSION, tmp_path / "3.0", "--server-id", server_id) as after:
        after.call("POST", f"/projects/{project_id}/import", content=export)
        after.write(project_id, DISK, os.urandom(MIB))
        code, _, err = operator.run("backup", name, "--server", "lab")
        assert (code, whole in err, "It has shrunk from" in err) == (5, True, True), err
        assert [file["file_uuid"] for file in operator.project_files(project_id=project_id)] == [whole]
        after.write(project_id, DISK, os.urandom(2 * MIB))
        assert operator.backup(name, "--server", "lab") == {name: "stored"}


@pytest.mark.parametrize("version", [VERSION, VERSION_2])
def test_project_that_gns3_exports_no_file_of_is_not_backed_up(
    operator: Operator, tmp_path: Path, version: str
) -> None:
    name = f"hidden {secrets.token_hex(3)}"
    with server(operator, version, tmp_path / "snapshots" / "lab") as hidden:
        project_id = hidden.make_project(name, {DISK: os.urandom(MIB)})
        code, _, err = operator.run("backup", name, "--server", "lab", "--accept-loss")
        assert (code, "below a folder named snapshots" in err) == (5, True), err
        assert operator.project_files(project_id=project_id) == []


@pytest.mark.parametrize("version", [VERSION, VERSION_2])
def test_folder_and_file_that_gns3_may_not_read_are_told(
    operator: Operator, tmp_path: Path, version: str
) -> None:
    names = [f"{kind} {secrets.token_hex(3)}" for kind in ("folder", "file", "sound")]
    with server(operator, version, tmp_path / "lab", obeys_modes=True) as lab:
        ids = [lab.make_project(name, {"project-files/private/a": b"a"}) for name in names]
        (lab.projects_path / ids[0] / "project-files/private").chmod(0)
        (lab.projects_path / ids[1] / "project-files/private/a").chmod(0)
        code, out, err = operator.run("backup", *names, "--server", "lab", "--json")
        rows = {row["name"]: row for row in map(json.loads, out.splitlines())}
        assert code == 6, (out, err)
        assert [rows[name]["status"] for name in names] == ["failed", "stored", "stored"]
        assert "folder" in rows[names[0]]["errors"][0] or "private" in rows[names[0]]["errors"][0]
        assert rows[names[1]]["missing"] == {"count": 1, "names": ["project-files/private/a"]}
        assert rows[names[2]]["missing"]["count"] == 0
        assert operator.project_files(project_id=ids[0]) == []


@pytest.mark.parametrize(
    ("version", "left_out"),
    [(VERSION, "project-files/old-snapshots"), (VERSION_2, "project-files/old-snapshots/a")],
)
def test_what_each_version_takes_for_a_snapshot_stays_recorded(
    operator: Operator, tmp_path: Path, version: str, left_out: str
) -> None:
    name = f"snapshots {secrets.token_hex(3)}"
    with server(operator, version, tmp_path / "lab") as lab:
        project_id = lab.make_project(name, {left_out: b"a", "project-files/b": b"b"})
        lab.open(project_id)
        [row] = operator.json("backup", name, "--server", "lab", codes=[10])
        told = {"count": 1, "names": [left_out]}
        assert (row["status"], row["missing"]) == ("stored", told)
        lab.close(project_id)
        [row] = operator.json("backup", name, "--server", "lab", codes=[10])
        assert (row["status"], row["missing"]) == ("unchanged", told)


def make_socket(lab: LabServer, project_id: str, path: str) -> None:
    """A file that nobody can open, root included."""
    target = lab.projects_path / project_id / path
    target.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{directory}/{target.name}")
    finally:
        os.close(directory)


@pytest.mark.parametrize("size_bytes", [MIB, 40 * MIB], ids=["small", "large"])
def test_file_that_gns3_cannot_read_is_told_with_the_backup(
    operator: Operator, lab: LabServer, size_bytes: int
) -> None:
    name, skipped = f"skipped {secrets.token_hex(3)}", "project-files/mysql.sock"
    project_id = lab.make_project(name, {"project-files/a": os.urandom(size_bytes)})
    make_socket(lab, project_id, skipped)
    row = operator.json("backup", name, "--server", "lab", codes=[10])[0]
    assert (row["status"], row["missing"]) == ("stored", {"count": 1, "names": [skipped]})
    code, out, err = operator.run("backup", name, "--server", "lab")
    assert (code, "unchanged" in out, skipped in err) == (10, True, True)
    listed = {each["name"]: each for each in operator.json("ls", "--server", "lab", "--exact")}
    assert (listed[name]["changed"], listed[name]["files_missing"]) == ("no", 1)
    for command in (["verify", project_id], ["restore", project_id, "--to", "lab"]):
        code, _, err = operator.run(*command)
        assert (code, f"the backup lacks 1 file: {skipped}" in err) == (10, True), err
    (lab.projects_path / project_id / skipped).unlink()
    assert operator.backup(project_id, "--server", "lab") == {name: "unchanged"}


def test_files_of_an_opened_project_that_gns3_never_exports_are_told(
    operator: Operator, lab: LabServer
) -> None:
    name = f"logs {secrets.token_hex(3)}"
    left_out = ["project-files/captures/a.pcap", "project-files/notes.log", "project-files/x/inner.gns3"]
    project_id = lab.make_project(name, dict.fromkeys([*left_out, "project-files/b"], b"x"))
    assert operator.backup(name, "--server", "lab") == {
        name: "stored"
    }  # of a closed project nobody lists them
    lab.open(project_id)
    row = operator.json("backup", name, "--server", "lab", codes=[10])[0]
    assert (row["status"], row["missing"]) == ("stored", {"count": 3, "names": left_out})
    code, _, err = operator.run("verify", project_id)
    assert (code, left_out[0] in err) == (10, True)
    assert lab.projects()[name]["status"] == "opened"
    lab.close(project_id)
    [row] = operator.json("backup", name, "--server", "lab", codes=[10])  # its backup is known to lack them
    assert (row["status"], row["missing"]) == ("unchanged", {"count": 3, "names": left_out})
    make_socket(lab, project_id, skipped := "project-files/x.sock")
    told = {"count": 4, "names": sorted([*left_out, skipped])}
    [row] = operator.json("backup", name, "--server", "lab", codes=[10])
    assert (row["status"], row["missing"]) == ("stored", told)
    lab.open(project_id)
    [row] = operator.json("backup", name, "--server", "lab", codes=[10])
    assert (row["status"], row["missing"]) == ("unchanged", told)
    lab.close(project_id)
    (lab.projects_path / project_id / skipped).unlink()
    [row] = operator.json("backup", name, "--server", "lab", codes=[10])
    assert (row["status"], row["missing"]) == ("unchanged", {"count": 3, "names": left_out})


def test_opened_project_is_not_closed_by_a_backup(operator: Operator, lab: LabServer) -> None:
    name = f"stays open {secrets.token_hex(3)}"
    project_id = lab.make_project(name)
    lab.call("POST", f"/projects/{project_id}/open", {})
    operator.run("backup", name, "--server", "lab")
    assert not reached(lambda: lab.projects()[name]["status"] == "closed", timeout_s=8)  # GNS3 waits for 5 s
    lab.close(project_id)


@pytest.mark.parametrize("size_bytes", [MIB, 40 * MIB], ids=["small", "large"])
def test_changed_project_is_exported_once(operator: Operator, lab: LabServer, size_bytes: int) -> None:
    name = f"once {secrets.token_hex(3)}"
    project_id = lab.make_project(name, {DISK: os.urandom(size_bytes)})
    began_at = time.time() - 86_400
    os.utime(lab.projects_path / project_id / DISK, (began_at, began_at))
    operator.do("backup", name, "--server", "lab")
    for changed_at in (began_at + 3600, began_at + 7200):
        lab.write(project_id, DISK, os.urandom(size_bytes))
        os.utime(lab.projects_path / project_id / DISK, (changed_at, changed_at))
        before = lab.log.count(f"Project '{name}' exported in")
        assert operator.backup(name, "--server", "lab") == {name: "stored"}
        assert lab.log.count(f"Project '{name}' exported in") == before + 1
    for _ in range(2):
        assert operator.backup(name, "--server", "lab") == {name: "unchanged"}
    backups = operator.project_files(project_id=project_id)
    assert {file["status"] for file in backups} == {"available"}
    assert len(backups) == 3


def test_settings_of_a_project_come_back(operator: Operator, lab: LabServer) -> None:
    name = f"settings {secrets.token_hex(3)}"
    project_id = lab.make_project(name, nodes=0)
    wanted = {"auto_open": True, "auto_start": True, "auto_close": False}
    lab.call("PUT", f"/projects/{project_id}", wanted)
    operator.do("backup", name, "--server", "lab")
    restored = operator.json("restore", name, "--to", "lab")[0]
    project = lab.call("GET", f"/projects/{restored['project_id']}")
    assert {setting: project[setting] for setting in wanted} == wanted
    assert (project["status"], restored["lost_settings"]) == ("closed", [])


def test_project_whose_name_has_a_slash_comes_back(operator: Operator, lab: LabServer) -> None:
    name = f"plain {secrets.token_hex(3)}"
    project_id = lab.make_project(name)
    lab.call("PUT", f"/projects/{project_id}", {"name": f"a/{name}"})
    operator.do("backup", project_id, "--server", "lab")
    restored = operator.json("restore", project_id, "--to", "lab")[0]
    assert restored["name"] == f"a_{name}"
