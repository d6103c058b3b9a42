"""Night after night: what is gone is missed, what fails ages alone, a watch that can do nothing ends."""

import fcntl
import json
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.renewed import Renewed
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

GOOD = re.compile(
    r'^filestore_gns3_good_backup_timestamp_seconds\{project_id="([^"]+)",.*\} (\S+)$', re.MULTILINE
)
OLDEST = re.compile(r"^filestore_gns3_oldest_good_backup_timestamp_seconds\{.*\} (\S+)$", re.MULTILINE)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabServer]:
    """A server of the test's own."""
    with LabServer(gns3server(), tmp_path / "lab") as started:
        yield started


@pytest.fixture
def keeper(store: Cluster, lab: LabServer, tmp_path: Path) -> Operator:
    """Who is signed in to it, and has never backed it up."""
    made = Operator(store, tmp_path / "keeper")
    made.login("lab", lab)
    return made


def metrics(directory: Path) -> tuple[dict[str, float], float]:
    """When each project was last good, and the oldest of all."""
    (file,) = directory.glob("filestore_gns3_*.prom")
    text = file.read_text()
    (oldest,) = OLDEST.findall(text)
    return {project_id: float(at) for project_id, at in GOOD.findall(text)}, float(oldest)


def night(keeper: Operator, tmp_path: Path, *options: str) -> tuple[int, dict[str, str], str]:
    """A run of all; its exit code, the status of each project by its name, and what it says of errors."""
    arguments = ("--all", "--with-images", "--metrics", str(tmp_path), "--json")
    code, out, err = keeper.run("backup", *arguments, *options)
    rows = [json.loads(line) for line in out.splitlines()]
    told = [f"{row['name']}: {error}\n" for row in rows for error in row["errors"]]
    return code, {row["name"]: row["status"] for row in rows}, err + "".join(told)


def test_project_that_vanished_is_missed_until_it_is_forgotten(
    keeper: Operator, lab: LabServer, tmp_path: Path
) -> None:
    kept_id, damaged_id = lab.make_project("kept"), lab.make_project("damaged")
    assert night(keeper, tmp_path)[:2] == (0, {"kept": "stored", "damaged": "stored"})
    before, _ = metrics(tmp_path)
    assert before.keys() == {kept_id, damaged_id}
    lab.kill()
    (lab.projects_path / damaged_id / "damaged.gns3").write_bytes(b"")
    lab.start()
    for _ in range(2):
        code, statuses, told = night(keeper, tmp_path)
        assert (code, statuses) == (4, {"kept": "unchanged", "damaged": "gone"})
        assert "damaged: not_found: The GNS3 server has not listed it since" in told
    assert keeper.backup("kept", "--server", "lab") == {"kept": "unchanged"}  # the other was not asked for
    now, oldest = metrics(tmp_path)
    assert now[damaged_id] == before[damaged_id] == oldest
    assert now[kept_id] > before[kept_id]

    code, _, err = keeper.run("forget", "kept")
    assert (code, "reported no missing project 'kept'" in err) == (4, True)
    assert damaged_id in keeper.do("forget", "damaged")
    assert night(keeper, tmp_path)[:2] == (0, {"kept": "unchanged"})
    assert metrics(tmp_path)[0].keys() == {kept_id}
    assert keeper.project_files(project_id=damaged_id, status="available")


def test_server_whose_user_lost_the_role_is_no_success(
    keeper: Operator, lab: LabServer, tmp_path: Path
) -> None:
    project_id = lab.make_project("seen")
    user, password_file = lab.user_with("Auditor")
    keeper.do("login", lab.url, "--name", "lab", "--user", user, "--password-file", str(password_file))
    assert night(keeper, tmp_path)[0] == 0
    before, _ = metrics(tmp_path)
    for entry in lab.call("GET", "/access/acl"):
        if entry["user_id"]:
            lab.call("DELETE", f"/access/acl/{entry['ace_id']}")
    code, statuses, told = night(keeper, tmp_path)
    assert (code, statuses) == (4, {"seen": "gone"})
    assert "GNS3 server lab lists no projects" in told
    assert metrics(tmp_path) == (before, before[project_id])
    keeper.do("forget", "--all")
    assert night(keeper, tmp_path)[:2] == (4, {})
    assert metrics(tmp_path)[0] == {}


def test_project_that_always_fails_ages_alone(keeper: Operator, lab: LabServer, tmp_path: Path) -> None:
    good_id, bad_id = lab.make_project("good"), lab.make_project("bad")
    lab.upload_image("lost.qcow2", secrets.token_bytes(1 << 20))
    lab.add_qemu(bad_id, "vm", hda_disk_image="lost.qcow2")
    lab.close(bad_id)
    (image,) = (lab.directory / "images").rglob("lost.qcow2")
    lab.call("DELETE", "/images/lost.qcow2")
    assert not image.exists()
    began_at = time.time()
    for _ in range(2):
        code, statuses, told = night(keeper, tmp_path)
        assert (code, set(statuses)) == (4, {"good", "bad"})
        assert "bad: not_found: The image lost.qcow2" in told
    good_at, oldest = metrics(tmp_path)
    assert good_at[bad_id] == oldest < good_at[good_id]
    assert began_at < good_at[good_id]
    for file in keeper.project_files(project_id=bad_id):  # which other tests would find damaged
        assert keeper.store.request("DELETE", f"/files/{file['file_uuid']}").status == 200


def test_project_that_failed_comes_last_the_next_night(keeper: Operator, lab: LabServer) -> None:
    bad_id = lab.make_project("a bad one")
    lab.make_project("good")
    second = lab.projects_path / bad_id / "second.gns3"
    second.write_bytes((lab.projects_path / bad_id / "a bad one.gns3").read_bytes())
    assert list(keeper.backup("--all", codes=[5]).items()) == [("a bad one", "failed"), ("good", "stored")]
    assert list(keeper.backup("--all", codes=[5])) == ["good", "a bad one"]
    second.unlink()
    assert list(keeper.backup("--all").items()) == [("good", "unchanged"), ("a bad one", "stored")]
    assert list(keeper.backup("--all")) == ["a bad one", "good"]


def test_project_that_gns3_never_exports_is_told_in_plain_words(keeper: Operator, lab: LabServer) -> None:
    project_id = lab.make_project("of another hypervisor")
    lab.make_project("good")
    topology = lab.projects_path / project_id / "of another hypervisor.gns3"
    for kind in ("virtualbox", "vmware"):
        content = json.loads(topology.read_text())
        content["topology"]["nodes"][0]["node_type"] = kind
        topology.write_text(json.dumps(content))
        code, out, err = keeper.run("backup", "--all")
        assert (code, "good" in out) == (5, True)
        assert "of another hypervisor: conflict: GNS3 exports no project with a VirtualBox or VMware" in err


@contextmanager
def watching(keeper: Operator, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A watch that listens; it is killed if it does not end by itself."""
    with keeper.start(*arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def closed_until_it_is_stored(keeper: Operator, lab: LabServer, project_id: str, count: int) -> None:
    """Change a project and close it, until so many backups of it are there."""

    def again() -> bool:
        lab.call("POST", f"/projects/{project_id}/open", {})
        lab.write(project_id, "project-files/new", secrets.token_bytes(8))
        lab.close(project_id)
        return len(keeper.project_files(project_id=project_id, status="available")) >= count

    wait_until(again, what="a backup on close", timeout_s=60)


def test_watch_takes_a_renewed_token_and_ends_without_one(
    keeper: Operator, lab: LabServer, tmp_path: Path
) -> None:
    project_id, user = lab.make_project("closing"), Renewed(keeper.store, tmp_path)
    arguments = ("backup", "--all", "--on-close", "--token-file", str(user.file))
    with watching(keeper, *arguments) as process:
        closed_until_it_is_stored(keeper, lab, project_id, 2)
        user.end()
        user.renew()
        count = len(keeper.project_files(project_id=project_id, status="available"))
        closed_until_it_is_stored(keeper, lab, project_id, count + 2)  # one may have been under way
        user.end()

        def ended() -> bool:
            lab.call("POST", f"/projects/{project_id}/open", {})
            lab.close(project_id)
            return process.poll() is not None

        wait_until(ended, what="the end of the watch", timeout_s=60)
        _, err = process.communicate()
    assert process.returncode == 3, err
    assert "was rejected" in err.decode().splitlines()[-1]


def test_watch_ends_when_the_server_does_not_take_its_user(
    keeper: Operator, lab: LabServer, tmp_path: Path
) -> None:
    lab.make_project("watched")
    name, password_file = lab.user_with("Auditor")
    keeper.do("login", lab.url, "--name", "lab", "--user", name, "--password-file", str(password_file))
    with watching(keeper, "watch", "--every", "1h", "--metrics", str(tmp_path)) as process:
        wait_until(lambda: any(tmp_path.glob("*.prom")), what="a first run", timeout_s=60)
        (user_id,) = [
            each["user_id"] for each in lab.call("GET", "/access/users") if each["username"] == name
        ]
        lab.call("DELETE", f"/access/users/{user_id}")
        lab.kill()
        lab.start()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert f"rejects this password of '{name}'" in err.decode().splitlines()[-1]


def test_watch_outlives_a_server_that_is_away(keeper: Operator, lab: LabServer, tmp_path: Path) -> None:
    project_id = lab.make_project("away")
    with watching(keeper, "backup", "--all", "--on-close") as process:
        closed_until_it_is_stored(keeper, lab, project_id, 2)
        lab.kill()
        lab.start()
        count = len(keeper.project_files(project_id=project_id, status="available"))
        closed_until_it_is_stored(keeper, lab, project_id, count + 1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err


def test_watch_whose_first_run_cannot_begin_tries_again_soon(
    keeper: Operator, lab: LabServer, tmp_path: Path
) -> None:
    project_id = lab.make_project("waiting")

    def is_stored() -> bool:
        return bool(keeper.project_files(project_id=project_id, status="available"))

    lab.kill()
    with watching(keeper, "watch", "--every", "24h", "--deadline", "15") as process:
        assert process.stderr is not None
        assert b"Retrying in 10 s." in process.stderr.readline()
        lab.start()
        wait_until(is_stored, what="a backup", timeout_s=180)
    for file in keeper.project_files(project_id=project_id):
        assert keeper.store.request("DELETE", f"/files/{file['file_uuid']}").status == 200
    (lock,) = (keeper.directory / "state").rglob("*.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as another backup of this machine has it
        with watching(keeper, "watch", "--every", "24h") as process:
            assert process.stderr is not None
            assert b"Watching GNS3 server" in process.stderr.readline()
            assert b"is running on this machine. Retrying in 10 s." in process.stderr.readline()
            fcntl.flock(held, fcntl.LOCK_UN)
            wait_until(is_stored, what="a backup", timeout_s=180)


def test_first_run_that_reaches_nothing_is_in_the_metrics(
    keeper: Operator, lab: LabServer, tmp_path: Path
) -> None:
    lab.kill()
    began_at = time.time()
    assert night(keeper, tmp_path, "--deadline", "1")[:2] == (6, {})
    projects, first = metrics(tmp_path)
    assert projects == {}
    assert began_at <= first <= time.time()
    lab.start()
    project_id = lab.make_project("late")
    assert night(keeper, tmp_path, "--url", "https://127.0.0.1:9", "--deadline", "15")[0] == 6
    seen, oldest = metrics(tmp_path)
    assert list(seen) == [project_id]
    assert first < oldest == seen[project_id]
    assert night(keeper, tmp_path)[:2] == (0, {"late": "stored"})
    assert oldest < metrics(tmp_path)[1]


def test_another_server_that_gets_the_name_misses_none_of_its_projects(
    keeper: Operator, lab: LabServer, new: LabServer, tmp_path: Path
) -> None:
    first_id, second_id = lab.make_project("of the first"), new.make_project("of the second")
    assert night(keeper, tmp_path)[:2] == (0, {"of the first": "stored"})
    [before] = keeper.json("servers")
    options = ("--password-file", str(new.password_file))
    code, _, err = keeper.run("login", new.url, "--name", "lab", *options)
    assert (code, "is another server than before" in err) == (0, True)
    [after] = keeper.json("servers")
    assert keeper.backup("--all", "--metrics", str(tmp_path)) == {"of the second": "stored"}
    code, _, err = keeper.run("forget", "of the first")
    assert (code, "reported no missing project" in err) == (4, True)
    ids = [before["server_id"], after["server_id"]]
    files = [tmp_path / f"filestore_gns3_{each}.prom" for each in ids]
    assert set(tmp_path.glob("*.prom")) == set(files)
    shown = [GOOD.findall(file.read_text())[0][0] for file in files]
    assert shown == [first_id, second_id]

    keep = ("--keep-last", "1", "--from")
    code, _, err = keeper.run("prune", first_id, second_id, *keep, "lab")
    assert (code, ids[0] in err, ids[1] in err) == (5, True, True), err
    code, _, err = keeper.run("prune", first_id, second_id, *keep, ids[1])
    assert (code, first_id in err) == (4, True), err
    [kept] = keeper.json("prune", second_id, *keep, ids[1])
    assert kept["project_id"] == second_id
    again = ("--password-file", str(lab.password_file), "--server-id", ids[0])
    keeper.do("login", lab.url, "--name", "first", *again)
    assert keeper.backup("--all", "--server", "first") == {"of the first": "unchanged"}


def test_login_tries_what_images_are_read_with(keeper: Operator, lab: LabServer, tmp_path: Path) -> None:
    access = ("login", lab.url, "--name", "lab", "--password-file", str(lab.password_file))
    assert "Its images cannot be read" in keeper.do(*access)
    compute = ("--compute-user", "gns3", "--compute-password-file")
    code, _, err = keeper.run(*access, *compute, str(lab.password_file))
    assert code == 3
    assert "The compute of GNS3 server lab rejects this password of 'gns3'" in err
    assert "cannot be read" not in keeper.do(*access, *compute, str(lab.compute_password_file))
    code, _, err = keeper.run(*access, "--compute-user", "gns3")
    assert (code, "--compute-password-file: is required if there is no terminal to ask on" in err) == (
        2,
        True,
    )


def test_one_of_several_servers_that_fails_stops_no_other(
    keeper: Operator, lab: LabServer, tmp_path: Path
) -> None:
    every = ("backup", "--all", "--all-servers", "--metrics", str(tmp_path))
    one_id = lab.make_project("one")
    with LabServer(gns3server(), tmp_path / "first") as first:
        keeper.login("first", first)
        first.make_project("two")
        rows = keeper.json(*every)
        assert [(row["server"], row["name"], row["status"]) for row in rows] == [
            ("first", "two", "stored"),
            ("lab", "one", "stored"),
        ]
        assert len(list(tmp_path.glob("filestore_gns3_*.prom"))) == 2
        said = keeper.do(*every)
        assert re.findall(r"^GNS3 server (\w+):$", said, re.MULTILINE) == ["first", "lab"]
        lab.start_nodes(one_id)
        assert keeper.run(*every)[0] == 5
        assert keeper.run(*every, "--leave-running")[0] == 0
    named = ("backup", "--all", "--server", "lab", "--server", "first", "--deadline", "1")
    code, said, err = keeper.run(*named)
    assert (code, "one: is running" in err, "filestore: first: unavailable" in err) == (6, True, True), err
    assert "1 projects: 0 stored (0 bytes), 0 unchanged, 1 running." in said
    assert keeper.run(*every, "--deadline", "1")[0] == 6
    for wrong in (["--local", str(tmp_path)], ["--on-close"]):
        assert keeper.run(*named, *wrong)[0] == 2
    assert keeper.run(*named, "--all-servers")[0] == 2
