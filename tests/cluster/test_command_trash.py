"""`filestore trash`, `protect` and `rm`: what was deleted comes back, and what must go leaves every disk."""

import hashlib
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.gns3.fingerprint import Fingerprint
from deploy.gns3.identity import BackupTag, ServerIdentity
from deploy.processes import wait_until
from tests.blobs_on_disk import age_all_on
from tests.browser.console_world import project_archive
from tests.clients.restic_server import LOGIN, ask, gateway, password_file
from tests.cluster.command_output import objects, output, refusal
from tests.cluster.drills import drill
from tests.cluster.harness import Cluster
from tests.cluster.small_disks import fill, move_to_small_disks

MIB = 1 << 20
GONE_S = 15 * 60.0  # as docs/undo.md promises
FILES = 120


@pytest.fixture
def name(tmp_path: Path) -> str:
    """One that no other test has."""
    return f"lab-{tmp_path.name}"


def test_deleted_file_is_listed_and_restored_by_its_name(cluster: Cluster, name: str) -> None:
    file_uuid = cluster.store(b"hello, lab", name)
    assert output(cluster, "rm", name) == f"{name} is deleted.\n"
    assert refusal(cluster, "show", name)[0] == 4
    assert name in output(cluster, "trash", "ls")
    (listed,) = [each for each in objects(cluster, "trash", "ls") if each["file_uuid"] == file_uuid]
    assert (listed["filename"], listed["kind"]) == (name, "project")
    assert output(cluster, "trash", "restore", name) == f"{name} is restored.\n"
    assert output(cluster, "cat", name) == "hello, lab"
    code, line = refusal(cluster, "trash", "restore", name)
    assert (code, line.endswith("There is no such file in the trash.")) == (4, True)
    assert cluster.filestore("trash", "restore").returncode == 2


def test_files_of_one_name_are_told_apart(cluster: Cluster, name: str) -> None:
    first, second = (cluster.store(content, name) for content in (b"1", b"2"))
    assert cluster.filestore("rm", first, second).returncode == 0
    code, line = refusal(cluster, "trash", "restore", name)
    assert (code, first in line, second in line) == (5, True, True)
    assert output(cluster, "trash", "empty", "--yes", first) == "1 files are deleted for good.\n"
    assert output(cluster, "trash", "restore", name) == f"{name} is restored.\n"
    assert output(cluster, "cat", name) == "2"


def test_protected_file_stays_until_an_admin_says_otherwise(cluster: Cluster, name: str) -> None:
    cluster.store(b"x", name)
    assert output(cluster, "protect", name, "--for", "30d").startswith(f"{name} is protected until 2")
    code, line = refusal(cluster, "rm", name)
    assert (code, "protected: The file is protected until 2" in line) == (5, True)
    assert refusal(cluster, "protect", name, "--for", "29d")[0] == 2
    assert cluster.filestore("protect", name).returncode == 2
    assert cluster.filestore("protect", name, "--for", "36h").returncode == 2
    assert output(cluster, "protect", name, "--until", "2030-01-01T00:00:00Z").startswith(name)
    (shown,) = objects(cluster, "show", name)
    assert shown["protected_until"] == "2030-01-01T00:00:00.000Z"
    assert output(cluster, "rm", "--override-protection", name) == f"{name} is deleted.\n"


def test_bucket_has_days_and_put_protects(cluster: Cluster, name: str, tmp_path: Path) -> None:
    output(cluster, "bucket", "create", name)
    (changed,) = objects(cluster, "bucket", "set", name, "--trash-days", "30d", "--protect-days", "14")
    assert (changed["trash_days"], changed["protect_days"]) == (30, 14)
    assert cluster.filestore("bucket", "set", name).returncode == 2
    content = tmp_path / f"{name}.bin"
    content.write_bytes(b"x")
    file_uuid = output(cluster, "put", "--bucket", name, "--protect", "0", str(content)).strip()
    assert output(cluster, "rm", file_uuid) == f"{file_uuid} is deleted.\n"
    file_uuid = output(cluster, "put", "--bucket", name, str(content)).strip()
    assert refusal(cluster, "rm", file_uuid)[0] == 5


@pytest.fixture
def stored(own_cluster: Cluster) -> tuple[Cluster, dict[str, bytes]]:
    """Files of a lab, of every size that is kept in another way."""
    files = {}
    for number in range(FILES):
        content = os.urandom(3 * MIB if number % 40 == 0 else 1000 + number)
        files[own_cluster.store(content, f"f{number}")] = content
    return own_cluster, files


@pytest.mark.long
@pytest.mark.timeout(600)
def test_everything_that_an_admin_deleted_comes_back(stored: tuple[Cluster, dict[str, bytes]]) -> None:
    cluster, files = stored
    with drill("delete everything as admin"):
        output(cluster, "rm", *files)
    assert objects(cluster, "ls") == []
    with drill(f"get {FILES} files back from the trash"):
        output(cluster, "trash", "restore", "--all")
    assert objects(cluster, "trash", "ls") == []
    assert len(objects(cluster, "ls")) == FILES
    for number, (file_uuid, content) in enumerate(files.items()):
        node = cluster.nodes[number % len(cluster.nodes)]
        assert cluster.get(f"/files/{file_uuid}", node=node).body == content


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_bytes_deleted_for_good_leave_every_disk_in_time(cluster: Cluster, name: str) -> None:
    contents = [os.urandom(3 * MIB) for _ in range(2)]
    files = [cluster.store_everywhere(content) for content in contents]
    for node in cluster.nodes:  # what has just arrived is spared for ten of the fifteen minutes
        age_all_on(cluster.data(node), time.time() - 3600)
    assert output(cluster, "rm", "--now", files[0]).endswith("is deleted for good.\n")
    output(cluster, "rm", files[1])
    output(cluster, "trash", "empty", "--yes", files[1])
    sha256s = [hashlib.sha256(content).hexdigest() for content in contents]

    def are_gone() -> bool:
        return not any(cluster.holds(node, sha256) for node in cluster.nodes for sha256 in sha256s)

    with drill("bytes gone from every disk"):
        wait_until(are_gone, what="disks without the content", timeout_s=GONE_S)


def test_prune_keeps_protected_backups_and_says_so(cluster: Cluster, name: str) -> None:
    project = hashlib.sha256(name.encode()).hexdigest()[:12]
    tags = [BackupTag(Fingerprint(number, "a" * 40), ServerIdentity("b" * 16, "lab")) for number in range(3)]
    fields = {"project_id": project, "project_name": project}
    first, protected, newest = (
        cluster.store(
            project_archive(), name, version_tag=tag.text, protect_days=30 * (number == 1), **fields
        )
        for number, tag in enumerate(tags)
    )
    pruned = objects(cluster, "gns3", "prune", project, "--keep-last", "1")
    kept = {each["file_uuid"]: (each["deleted"], each["kept_by"]) for each in pruned}
    assert kept[first] == (True, [])
    assert kept[newest] == (False, ["last"])
    is_deleted, (reason,) = kept[protected]
    assert (is_deleted, reason[:15]) == (False, "protected until")
    assert cluster.filestore("trash", "restore", first).returncode == 0


def test_restic_is_told_what_is_protected_and_removes_its_locks(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    output(cluster, "bucket", "create", name)
    output(cluster, "bucket", "set", name, "--protect-days", "14d")
    login = password_file(tmp_path)
    login.write_text(f"{LOGIN}\n")
    content = os.urandom(1000)
    named = hashlib.sha256(content).hexdigest()
    with gateway(cluster, name, "--password-file", str(login)) as served:
        for path in ("/r/config", f"/r/locks/{named}", f"/r/snapshots/{named}"):
            assert ask(served.port, "POST", path, body=content).status == 200
        assert ask(served.port, "DELETE", f"/r/locks/{named}").status == 200
        for path in ("/r/config", f"/r/snapshots/{named}"):
            answer = ask(served.port, "DELETE", path)
            assert (answer.status, b"protected until" in answer.body) == (403, True)
            assert ask(served.port, "GET", path).body == content


@pytest.mark.long
@pytest.mark.timeout(600)
def test_oldest_files_leave_the_trash_when_disks_are_almost_full_and_status_says_so(tmp_path: Path) -> None:
    contents = [os.urandom(10 * MIB) for _ in range(5)]
    with ExitStack() as disks, Cluster(tmp_path / "cluster") as cluster:
        move_to_small_disks(cluster, cluster.nodes, disks, aside=tmp_path, size_bytes=200 * MIB)
        files = [cluster.store_everywhere(content) for content in contents]
        output(cluster, "rm", *files)
        for node in cluster.nodes:
            fill(cluster, node, 25 * MIB)  # of which 10 are its reserve

        def problems() -> str:
            return " ".join(cluster.get("/cluster/status").json["problems"])

        wait_until(lambda: "will soon be deleted" in problems(), what="the warning", timeout_s=60)
        assert len(objects(cluster, "trash", "ls")) == 5
        for node in cluster.nodes:
            (cluster.data(node) / "more").write_bytes(os.urandom(10 * MIB))
        wait_until(lambda: len(objects(cluster, "trash", "ls")) < 5, what="room", timeout_s=90)
        for node in cluster.nodes:
            age_all_on(cluster.data(node), time.time() - 3600)
        left = [each["file_uuid"] for each in objects(cluster, "trash", "ls")]
        assert left == files[-len(left) :]
        sha256 = hashlib.sha256(contents[0]).hexdigest()
        wait_until(
            lambda: not any(cluster.holds(node, sha256) for node in cluster.nodes),
            what="disks without the oldest",
            timeout_s=GONE_S,
        )
        output(cluster, "trash", "restore", files[-1])
        assert cluster.get(f"/files/{files[-1]}").body == contents[-1]
