"""Directories that no process may run on: each is refused in one line that says what to do."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from deploy.development import CLUSTER_NAME, Member
from tests.cluster.harness import Cluster
from tests.cluster.test_doctor import lose_end_of_log

NEW_FILES = 20


def copied(cluster: Cluster, member: Member, directory: Path) -> Path:
    """Its directory as it is now, elsewhere."""
    return Path(shutil.copytree(cluster.data(member), directory / member.id, symlinks=True))


def refusal(cluster: Cluster, role: str, data: Path) -> str:
    """What the command says about a directory on which it must not run, beside its log."""
    done = cluster.filestore(role, "run", "--data", str(data))
    assert done.returncode == 1
    said = [line for line in done.stderr.decode().splitlines() if not line.startswith("{")]
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_port_of_another_process_is_named(cluster: Cluster, tmp_path: Path, role: str) -> None:
    member = next(member for member in cluster.members if member.role == role)
    line = refusal(cluster, role, copied(cluster, member, tmp_path))
    assert line == f"filestore: 127.0.0.1:{member.peer_port}: Address already in use"


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_credential_that_others_may_read_is_refused(cluster: Cluster, tmp_path: Path, role: str) -> None:
    member = next(member for member in cluster.members if member.role == role)
    data = copied(cluster, member, tmp_path)
    (data / "credential.pem").chmod(0o644)
    assert refusal(cluster, role, data).endswith("open to others than its owner: chmod 600 it")


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_credential_of_another_member_is_refused(cluster: Cluster, tmp_path: Path, role: str) -> None:
    member, other = [member for member in cluster.members if member.role == role][:2]
    data = copied(cluster, member, tmp_path)
    shutil.copyfile(cluster.data(other) / "credential.pem", data / "credential.pem")
    line = refusal(cluster, role, data)
    assert f"is the certificate of spiffe://{CLUSTER_NAME}/{role}/{other.id}, not of" in line


def test_address_that_the_certificate_is_not_for_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    data = copied(cluster, cluster.nodes[0], tmp_path)
    config = data / "node.json"
    config.write_text(config.read_text().replace('"127.0.0.1"', '"127.0.0.2"', 1))
    line = refusal(cluster, "node", data)
    assert "is for the address 127.0.0.1, not for 127.0.0.2. A node at another address joins anew." in line


def test_state_of_a_newer_version_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    data = copied(cluster, cluster.coordinators[0], tmp_path)
    with closing(sqlite3.connect(data / "state.sqlite")) as state, state:
        state.execute("INSERT OR REPLACE INTO rules (one, version) VALUES (1, 99)")
    line = refusal(cluster, "coordinator", data)
    assert line.endswith("run a newer version of Filestore here.")


@pytest.mark.parametrize("spoil", [lambda key: os.urandom(len(key)), lambda key: key[:-1]])
def test_key_of_another_cluster_is_refused(
    cluster: Cluster, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    data = copied(cluster, cluster.coordinators[0], tmp_path)
    key = data / "cluster.key"
    key.write_bytes(spoil(key.read_bytes()))
    assert "cluster key" in refusal(cluster, "coordinator", data)


def test_log_that_lost_its_end_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    data = copied(cluster, cluster.coordinators[0], tmp_path)
    lose_end_of_log(data)
    line = refusal(cluster, "coordinator", data)
    assert "its end was lost" in line
    assert "filestore coordinator rebuild" in line


def test_earlier_copy_of_a_coordinator_is_refused(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    member = next(member for member in cluster.coordinators if member != cluster.leader())
    cluster.kill(member)
    earlier = copied(cluster, member, tmp_path)
    cluster.restart(member)
    cluster.wait_healthy()
    for number in range(NEW_FILES):
        cluster.create(f"{number}.gns3p")
    cluster.wait_healthy()
    cluster.kill(member)
    line = refusal(cluster, "coordinator", earlier)
    assert line.startswith("filestore: internal: Entries are gone that this member acknowledged")
    assert "filestore coordinator rebuild" in line
