"""What breaks in the middle ends in a clear sentence, and nothing is half done."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.small_disks import move_to_small_disks, small_disk
from tests.gns3.cutting_proxy import CuttingProxy
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_images import an_image, qcow2
from tests.gns3.test_losses import make_socket
from tests.gns3.test_restore import with_image

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MIB: Final = 1 << 20
LARGE_BYTES: Final = 200 * MIB
TMP: Final = "project-files/qemu/1/hda_disk.qcow2"


def large(server: LabServer, size_bytes: int = LARGE_BYTES) -> tuple[str, str]:
    """A project that takes a while to export; its name and its id."""
    name = f"large {secrets.token_hex(3)}"
    return name, server.make_project(name, {TMP: os.urandom(size_bytes)})


def uploaded_bytes(operator: Operator, project_id: str) -> int:
    """How far the unfinished upload of a project is."""
    for file in operator.project_files(project_id=project_id):
        if file["status"] != "available":
            path = f"/files/{file['file_uuid']}/content"
            answer = operator.store.request("HEAD", path, headers={"Tus-Resumable": "1.0.0"})
            return int(answer.headers.get("upload-offset", "0"))
    return 0


def in_the_middle(operator: Operator, project_id: str) -> Callable[[], bool]:
    return lambda: uploaded_bytes(operator, project_id) > 8 * MIB


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out.decode(), err.decode()


def statuses(operator: Operator, project_id: str) -> list[str]:
    return [file["status"] for file in operator.project_files(project_id=project_id)]


@pytest.fixture
def mortal(operator: Operator, tmp_path: Path) -> Iterator[LabServer]:
    """A server for one test, called `mortal`."""
    with LabServer(gns3server(), tmp_path / "mortal") as started:
        operator.login("mortal", started)
        yield started
        operator.do("logout", "mortal")


def test_server_that_is_killed_and_comes_back_costs_a_second_export(
    operator: Operator, mortal: LabServer
) -> None:
    name, project_id = large(mortal)
    running = operator.start("backup", name, "--server", "mortal")
    wait_until(in_the_middle(operator, project_id), what="half a backup", timeout_s=60)
    mortal.kill()
    mortal.start()
    code, out, err = ended(running)
    assert code == 0, (out, err)
    assert statuses(operator, project_id) == ["available"]
    restored = operator.json("restore", name, "--to", "mortal")[0]
    assert mortal.files_of(restored["project_id"]) == mortal.files_of(project_id)


def test_server_that_stays_away_is_told(operator: Operator, mortal: LabServer) -> None:
    name, project_id = large(mortal)
    other = "other " + name
    mortal.make_project(other)
    running = operator.start("backup", name, other, "--server", "mortal", "--deadline", "3")
    wait_until(in_the_middle(operator, project_id), what="half a backup", timeout_s=60)
    mortal.kill()
    code, _, err = ended(running)
    assert code == 6
    assert "GNS3 server mortal" in err
    assert "Connection refused" in err
    assert statuses(operator, project_id) == []
    mortal.start()
    assert operator.backup(name, other, "--server", "mortal") == {name: "stored", other: "stored"}


def test_node_that_is_killed_in_the_middle_costs_nothing(operator: Operator, old: LabServer) -> None:
    name, project_id = large(old)
    running = operator.start("backup", name, "--server", "old")
    wait_until(in_the_middle(operator, project_id), what="half a backup", timeout_s=60)
    node = operator.store.nodes[0]
    operator.store.kill(node)
    try:
        code, out, err = ended(running)
    finally:
        operator.store.restart(node)
        operator.store.wait_healthy()
    assert code == 0, (out, err)
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["kill", "term", "int"]
)
def test_command_that_is_ended_in_the_middle_leaves_nothing_half(
    operator: Operator, old: LabServer, number: signal.Signals
) -> None:
    name, project_id = large(old)
    running = operator.start("backup", name, "--server", "old")
    wait_until(in_the_middle(operator, project_id), what="half a backup", timeout_s=60)
    running.send_signal(number)
    code, _, err = ended(running)
    if number != signal.SIGKILL:
        assert (code, err.strip()) == (130, "interrupted")
        assert statuses(operator, project_id) == []
    assert "available" not in statuses(operator, project_id)
    assert operator.backup(name, "--server", "old") == {name: "stored"}
    assert statuses(operator, project_id) == ["available"]


def test_token_that_ends_in_the_middle_of_an_export_is_renewed(operator: Operator, tmp_path: Path) -> None:
    with LabServer(gns3server(), tmp_path / "brief", token_minutes=1) as brief:
        operator.login("brief", brief)
        name, project_id = large(brief)
        other = "other " + name
        brief.make_project(other)
        running = operator.start("backup", name, other, "--server", "brief", "--json", "--deadline", "120")
        wait_until(in_the_middle(operator, project_id), what="half a backup", timeout_s=60)
        brief.send(signal.SIGSTOP)
        time.sleep(61)  # a minute is the shortest life that a token can have
        brief.send(signal.SIGCONT)
        code, out, err = ended(running)
        assert code == 0, (out, err)
        assert out.count('"stored"') == 2
        operator.do("logout", "brief")


def test_password_that_is_not_taken_is_told(operator: Operator, old: LabServer, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n")
    code, _, err = operator.run("login", old.url, "--name", "wrong", "--password-file", str(wrong))
    assert code == 3
    assert "rejects this password of 'admin'" in err
    assert "wrong" not in operator.do("servers").split()


@pytest.mark.parametrize("politely", [False, True], ids=["cut", "short"])
def test_truncated_export_is_not_stored(operator: Operator, old: LabServer, politely: bool) -> None:
    name, project_id = large(old, 20 * MIB)
    proxy = CuttingProxy(old, cut_after=12 * MIB, politely=politely)
    with proxy.listening() as url:
        operator.do("login", url, "--name", "cut", "--password-file", str(old.password_file))
        code, _, err = operator.run("backup", name, "--server", "cut", "--deadline", "5")
        operator.do("logout", "cut")
    assert code == 6
    assert "interrupted the export 2 times" in err
    assert statuses(operator, project_id) == []


def test_export_that_is_cut_once_is_begun_again(operator: Operator, old: LabServer) -> None:
    name, project_id = large(old, 20 * MIB)
    proxy = CuttingProxy(old, cut_after=12 * MIB, politely=False, cuts=1)
    with proxy.listening() as url:
        operator.do("login", url, "--name", "cut", "--password-file", str(old.password_file))
        assert operator.backup(name, "--server", "cut") == {name: "stored"}
        operator.do("logout", "cut")
    assert statuses(operator, project_id) == ["available"]


def test_bucket_without_room_is_told_and_small_projects_still_fit(operator: Operator, old: LabServer) -> None:
    (name, project_id), small = large(old, 20 * MIB), f"small {secrets.token_hex(3)}"
    old.make_project(small)
    bucket = f"full-{secrets.token_hex(3)}"
    body = {"name": bucket, "quota_bytes": 12 * MIB}
    assert operator.store.post("/buckets", body).status == 201
    code, out, err = operator.run("backup", name, small, "--server", "old", "--bucket", bucket)
    assert code == 1
    assert f"{name}: payload_too_large" in err
    assert statuses(operator, project_id) == []
    assert small in out


def test_server_without_room_has_nothing_of_it(operator: Operator, old: LabServer, mortal: LabServer) -> None:
    name, _ = large(old, 60 * MIB)
    operator.do("backup", name, "--server", "old")
    with small_disk(
        mortal.projects_path, 90 * MIB, 10_000
    ):  # the archive has room, and what it unpacks has not
        code, _, err = operator.run("restore", name, "--to", "mortal")
        assert code == 6
        assert "No space left on device" in err
        assert mortal.projects() == {}
        assert [path.name for path in mortal.projects_path.iterdir()] == []


def test_server_that_is_killed_during_a_restore_has_nothing_of_it(
    operator: Operator, old: LabServer, mortal: LabServer
) -> None:
    name, _ = large(old)
    operator.do("backup", name, "--server", "old")
    running = operator.start("restore", name, "--to", "mortal", "--deadline", "3")
    unpacking = lambda: any(mortal.projects_path.glob("tmp*/project.zip"))  # noqa: E731
    wait_until(unpacking, what="an upload", timeout_s=60)
    mortal.kill()
    code, _, err = ended(running)
    assert code == 6
    assert "GNS3 server mortal" in err
    mortal.start()
    assert mortal.projects() == {}
    assert operator.json("restore", name, "--to", "mortal")[0]["name"] == name


def test_store_that_fails_during_a_restore_is_told(
    operator: Operator, old: LabServer, mortal: LabServer
) -> None:
    name, _ = large(old)
    operator.do("backup", name, "--server", "old")
    running = operator.start("restore", name, "--to", "mortal", "--deadline", "3")
    arriving = lambda: any(mortal.projects_path.glob("tmp*/project.zip"))  # noqa: E731
    wait_until(arriving, what="an upload", timeout_s=60)
    for node in operator.store.nodes:
        operator.store.kill(node)
    try:
        code, _, err = ended(running)
    finally:
        for node in operator.store.nodes:
            operator.store.restart(node)
        operator.store.wait_healthy()
    assert code == 6, err
    assert "Traceback" not in err
    assert "aclose" not in err
    assert mortal.projects() == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_restore_that_is_ended_in_the_middle_leaves_nothing(
    operator: Operator, old: LabServer, mortal: LabServer, number: signal.Signals
) -> None:
    name, _ = large(old)
    operator.do("backup", name, "--server", "old")
    running = operator.start("restore", name, "--to", "mortal")
    arriving = lambda: any(mortal.projects_path.glob("tmp*/project.zip"))  # noqa: E731
    wait_until(arriving, what="an upload", timeout_s=60)
    running.send_signal(number)
    code, _, err = ended(running)
    assert (code, err.strip()) == (130, "interrupted")
    assert mortal.projects() == {}


@pytest.mark.parametrize("silent_after", [0, 12 * MIB], ids=["at once", "in the middle"])
def test_project_whose_export_is_silent_fails_in_bounded_time_and_the_others_are_tried(
    operator: Operator, old: LabServer, silent_after: int
) -> None:
    name, project_id = large(old, 60 * MIB)
    other = "other " + name
    old.make_project(other)
    proxy = CuttingProxy(old, cut_after=silent_after, politely=False, silent=project_id)
    with proxy.listening() as url:
        operator.do("login", url, "--name", "silent", "--password-file", str(old.password_file))
        began_at = time.monotonic()
        statuses_by_name = operator.backup(name, other, "--server", "silent", "--deadline", "3", codes=[6])
        took_s = time.monotonic() - began_at
        operator.do("logout", "silent")
    assert statuses_by_name == {name: "failed", other: "stored"}
    assert took_s < 60
    assert statuses(operator, project_id) == []


def test_others_are_tried_if_a_server_that_was_silent_answers_again(
    operator: Operator, old: LabServer
) -> None:
    name, project_id = large(old, 2 * MIB)
    others = [f"{number} after {name}" for number in range(2)]
    for other in others:
        old.make_project(other)
    proxy = CuttingProxy(old, cut_after=0, politely=False, silent=project_id, unanswered=1)
    with proxy.listening() as url:
        operator.do("login", url, "--name", "silent", "--password-file", str(old.password_file))
        found = operator.backup(project_id, *others, "--server", "silent", "--deadline", "3", codes=[6])
        operator.do("logout", "silent")
    assert found == {name: "failed"} | dict.fromkeys(others, "stored")


def test_project_that_is_silent_hides_no_other_one_from_ls(operator: Operator, old: LabServer) -> None:
    name, project_id = large(old, 2 * MIB)
    other = "other " + name
    old.make_project(other)
    operator.do("backup", name, other, "--server", "old")
    [server_id] = [row["server_id"] for row in operator.json("servers") if row["name"] == "old"]
    proxy = CuttingProxy(old, cut_after=0, politely=False, silent=project_id)
    with proxy.listening() as url:
        access = ("--password-file", str(old.password_file), "--server-id", server_id)
        operator.do("login", url, "--name", "silent", *access)
        rows = operator.json("ls", "--server", "silent", "--deadline", "3", codes=[6])
        operator.do("logout", "silent")
    assert other in [row["name"] for row in rows]
    assert name not in [row["name"] for row in rows]


def test_projects_are_stored_if_the_server_does_not_list_its_images(
    operator: Operator, old: LabServer
) -> None:
    image, names = an_image(), [f"{number} without {secrets.token_hex(3)}" for number in range(2)]
    old.upload_image(image, qcow2(MIB))
    for name in names:
        with_image(old, name, image)
    proxy = CuttingProxy(old, cut_after=0, politely=False, path="/images")
    with proxy.listening() as url:
        operator.do("login", url, "--name", "cut", "--password-file", str(old.password_file))
        options = ("--with-images", "--server", "cut", "--deadline", "3")
        rows = operator.json("backup", *names, *options, codes=[6])
        operator.do("logout", "cut")
    assert [(row["status"], len(row["errors"])) for row in rows] == [("stored", 1)] * 2


def test_server_that_is_silent_altogether_is_told_in_bounded_time(
    operator: Operator, mortal: LabServer
) -> None:
    name, project_id = large(mortal)
    running = operator.start("backup", name, "--server", "mortal", "--deadline", "3")
    wait_until(in_the_middle(operator, project_id), what="half a backup", timeout_s=60)
    mortal.send(signal.SIGSTOP)
    began_at = time.monotonic()
    code, _, err = ended(running)
    took_s = time.monotonic() - began_at
    mortal.send(signal.SIGCONT)
    assert (code, "GNS3 server mortal" in err) == (6, True)
    assert took_s < 60
    assert statuses(operator, project_id) == []


def test_server_that_is_silent_before_an_export_is_told_in_bounded_time(
    operator: Operator, mortal: LabServer
) -> None:
    name, _ = large(mortal)
    mortal.send(signal.SIGSTOP)
    began_at = time.monotonic()
    code, _, err = operator.run("backup", name, "--server", "mortal", "--deadline", "3")
    took_s = time.monotonic() - began_at
    mortal.send(signal.SIGCONT)
    assert (code, "GNS3 server mortal" in err, took_s < 60) == (6, True, True), (err, took_s)


def test_server_that_is_silent_during_a_restore_is_told_in_bounded_time(
    operator: Operator, old: LabServer, mortal: LabServer
) -> None:
    name, _ = large(old)
    operator.do("backup", name, "--server", "old")
    running = operator.start("restore", name, "--to", "mortal", "--deadline", "3")
    arriving = lambda: any(mortal.projects_path.glob("tmp*/project.zip"))  # noqa: E731
    wait_until(arriving, what="an upload", timeout_s=60)
    mortal.send(signal.SIGSTOP)
    began_at = time.monotonic()
    code, _, err = ended(running)
    took_s = time.monotonic() - began_at
    mortal.send(signal.SIGCONT)
    assert (code, "GNS3 server mortal" in err, took_s < 60) == (6, True, True), (err, took_s)


def test_export_that_fails_says_what_is_at_fault(operator: Operator, old: LabServer) -> None:
    name, skipped = f"fault {secrets.token_hex(3)}", "project-files/x.sock"
    project_id = old.make_project(name, {TMP: os.urandom(20 * MIB)})
    make_socket(old, project_id, skipped)
    proxy = CuttingProxy(old, cut_after=12 * MIB, politely=False)
    with proxy.listening() as url:
        operator.do("login", url, "--name", "cut", "--password-file", str(old.password_file))
        code, _, err = operator.run("backup", name, "--server", "cut", "--deadline", "5")
        operator.do("logout", "cut")
    assert (code, f"The last file that arrived was {TMP}" in err, skipped in err) == (6, True, True), err


def test_list_of_files_that_breaks_off_is_no_empty_list(operator: Operator, old: LabServer) -> None:
    name = f"listed {secrets.token_hex(3)}"
    project_id = old.make_project(name, {"project-files/captures/a.pcap": b"a"})
    old.call("POST", f"/projects/{project_id}/open", {})
    proxy = CuttingProxy(old, cut_after=0, politely=False, path=f"/compute/projects/{project_id}/files")
    with proxy.listening() as url:
        compute = ("--compute-user", "gns3", "--compute-password-file", str(old.compute_password_file))
        operator.do("login", url, "--name", "cut", "--password-file", str(old.password_file), *compute)
        code, _, err = operator.run("backup", name, "--server", "cut", "--deadline", "3")
        operator.do("logout", "cut")
    old.close(project_id)
    assert (code, name in err) == (6, True), err
    assert statuses(operator, project_id) == []


def test_full_store_is_told_and_keeps_nothing(old: LabServer, tmp_path: Path) -> None:
    (tmp_path / "aside").mkdir()
    with ExitStack() as disks, Cluster(tmp_path / "cluster") as small:
        move_to_small_disks(small, small.nodes, disks, aside=tmp_path / "aside", size_bytes=100 * MIB)
        operator = Operator(small, tmp_path / "operator")
        operator.login("old", old)
        name, project_id = large(old)
        code, _, err = operator.run("backup", name, "--server", "old", "--deadline", "10")
        assert code == 6
        assert f"{name}: insufficient_storage" in err
        assert statuses(operator, project_id) == []
