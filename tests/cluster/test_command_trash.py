"""`filestore trash`, `protect` and `rm`: what was deleted comes back, and what must go leaves every disk."""

import hashlib
import os
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.command_output import objects, output, refusal
from tests.cluster.drills import drill
from tests.cluster.harness import Cluster

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
    assert output(cluster, "rm", "--now", files[0]).endswith("is deleted for good.\n")
    output(cluster, "rm", files[1])
    output(cluster, "trash", "empty", "--yes", files[1])
    sha256s = [hashlib.sha256(content).hexdigest() for content in contents]

    def are_gone() -> bool:
        return not any(cluster.holds(node, sha256) for node in cluster.nodes for sha256 in sha256s)

    with drill("bytes gone from every disk"):
        wait_until(are_gone, what="disks without the content", timeout_s=GONE_S)
