"""Projects are backed up once, and again when they have changed; restored ones are equal, file by file."""

import json
import os
import secrets
import signal
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.thirty_projects import odd_name, thirty_projects

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_unchanged_project_is_not_stored_again(operator: Operator, old: LabServer) -> None:
    name = f"lab {secrets.token_hex(3)}"
    project_id = old.make_project(name, {"project-files/vpcs/a/startup.vpc": b"ip 10.0.0.1\n"})
    assert operator.backup(name, "--server", "old") == {name: "stored"}
    before = operator.stored_bytes()
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}
    assert operator.stored_bytes() == before
    old.write(project_id, "project-files/vpcs/a/startup.vpc", b"ip 10.0.0.2\n")
    assert operator.backup(name, "--server", "old") == {name: "stored"}
    assert len(operator.project_files(project_id=project_id)) == 2
    assert {file["status"] for file in operator.project_files(project_id=project_id)} == {"available"}


def test_project_that_was_only_opened_is_unchanged(operator: Operator, old: LabServer) -> None:
    name = f"opened {secrets.token_hex(3)}"
    project_id = old.make_project(name)
    old.call("POST", f"/projects/{project_id}/open", {})
    old.close(project_id)
    operator.backup(name, "--server", "old")
    old.call("POST", f"/projects/{project_id}/open", {})
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}
    old.close(project_id)
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}


def test_auditor_may_back_up_what_is_there(operator: Operator, old: LabServer, tmp_path: Path) -> None:
    name = f"audited {secrets.token_hex(3)}"
    old.make_project(name)
    user, password_file = old.user_with("Auditor")
    operator.do("login", old.url, "--name", "audit", "--user", user, "--password-file", str(password_file))
    assert operator.backup(name, "--server", "audit") == {name: "stored"}
    code, _, err = operator.run("restore", name, "--to", "audit")
    assert code == 3
    assert "privilege" in err
    operator.do("logout", "audit")


def test_running_project_is_told_and_the_others_go_on(operator: Operator, old: LabServer) -> None:
    running, resting = f"running {secrets.token_hex(3)}", f"resting {secrets.token_hex(3)}"
    project_id = old.make_project(running)
    old.make_project(resting)
    old.start_nodes(project_id)
    assert operator.backup(running, resting, "--server", "old", codes=[5]) == {
        running: "running",
        resting: "stored",
    }
    code, _, err = operator.run("backup", running, "--server", "old")
    assert (code, "is running and was skipped" in err) == (5, True)
    code, _, err = operator.run("backup", running, "--server", "old", "--leave-running")
    assert (code, "is running and was skipped" in err) == (0, True)
    waiting = operator.start("backup", running, "--server", "old", "--wait-stopped", "2m", "--json")
    time.sleep(2)  # it has seen by then that the project runs; else it has the less to wait for
    old.stop_nodes(project_id)
    out, err_bytes = waiting.communicate(timeout=120)
    assert (waiting.returncode, json.loads(out)["status"]) == (0, "stored"), err_bytes
    old.close(project_id)


def test_project_is_backed_up_when_it_is_closed(operator: Operator, old: LabServer, tmp_path: Path) -> None:
    name = f"closing {secrets.token_hex(3)}"
    project_id = old.make_project(name)
    watching = operator.start("backup", name, "--server", "old", "--on-close", "--json")
    wait_until(lambda: len(operator.project_files(project_id=project_id)) == 1, what="a backup", timeout_s=60)
    old.call("POST", f"/projects/{project_id}/open", {})
    old.write(project_id, "project-files/new", b"x")

    def again() -> bool:
        # The connection for notifications may not be there yet the first time.
        old.call("POST", f"/projects/{project_id}/open", {})
        old.close(project_id)
        return len(operator.project_files(project_id=project_id, status="available")) > 1

    wait_until(again, what="a second backup", timeout_s=60)
    assert watching.stdout is not None
    told: list[str] = []
    while told.count("stored") < 2:
        told.append(json.loads(watching.stdout.readline())["status"])
    watching.send_signal(signal.SIGTERM)
    _, err = watching.communicate(timeout=30)
    assert watching.returncode == 130, err


def test_project_that_is_being_opened_is_backed_up_whole(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, nodes = f"opening {secrets.token_hex(3)}", 100
    project_id = old.make_project(name, nodes=nodes)
    with ThreadPoolExecutor() as threads:
        opening = threads.submit(old.call, "POST", f"/projects/{project_id}/open", {})
        wait_until(lambda: old.projects()[name]["status"] == "opened", what="a beginning", timeout_s=30)
        was_opened = opening.done()
        operator.do("backup", name, "--server", "old")
        opening.result()
    assert not was_opened
    restored = operator.json("restore", name, "--to", "new")[0]
    assert restored["nodes"] == nodes
    old.close(project_id)


def test_watch_writes_metrics_and_backs_up_everything(
    operator: Operator, old: LabServer, tmp_path: Path
) -> None:
    name = f"watched {secrets.token_hex(3)}"
    project_id = old.make_project(name)
    watching = operator.start("watch", "--server", "old", "--every", "1h", "--metrics", str(tmp_path))
    wait_until(lambda: any(tmp_path.iterdir()), what="metrics", timeout_s=120)
    watching.send_signal(signal.SIGTERM)
    watching.communicate(timeout=30)
    assert operator.project_files(project_id=project_id)
    ids = {row["name"]: row["server_id"] for row in operator.json("servers")}
    text = (tmp_path / f"filestore_gns3_{ids['old']}.prom").read_text()
    assert f'filestore_gns3_projects{{server="old",server_id="{ids["old"]}",status="stored"}}' in text
    oldest = next(line for line in text.splitlines() if line.startswith("filestore_gns3_oldest_good_backup"))
    assert time.time() - float(oldest.rpartition(" ")[2]) < 3600


def test_thirty_projects_come_back_equal_on_an_empty_server(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    ids = thirty_projects(old)
    assert set(operator.backup("--all", "--server", "old").values()) <= {"stored", "unchanged"}

    before = operator.stored_bytes()
    assert set(operator.backup("--all", "--server", "old").values()) == {"unchanged"}
    assert operator.stored_bytes() == before

    changed = odd_name(7)
    old.write(ids[changed], "project-files/qemu/1/hda_disk.qcow2", os.urandom(4096))
    night = operator.backup("--all", "--server", "old")
    assert [name for name, status in night.items() if status == "stored"] == [changed]

    for name, project_id in ids.items():
        restored = operator.json("restore", project_id, "--to", "new")[0]
        assert restored["name"] == name
        assert new.files_of(restored["project_id"]) == old.files_of(project_id)


def test_stored_backup_is_a_zip_that_gns3_reads(operator: Operator, old: LabServer, tmp_path: Path) -> None:
    name = f"zip {secrets.token_hex(3)}"
    old.make_project(name)
    file_uuid = operator.json("backup", name, "--server", "old")[0]["file_uuid"]
    done = operator.store.filestore("get", file_uuid, "-o", str(tmp_path / "x.zip"))
    assert done.returncode == 0
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert "project.gns3" in archive.namelist()
