"""Directories that no process may run on: each is refused in one line that says what to do."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.storage.stored_sums import SUMS
from deploy.dev_cluster import CLUSTER_NAME, Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.test_doctor import lose_end_of_log, reword
from tests.web_certificates import write_pair

EITHER_ROLE = pytest.mark.parametrize("role", ["coordinator", pytest.param("node", marks=pytest.mark.long)])


def copied(cluster: Cluster, member: Member, directory: Path) -> Path:
    """Its directory as it is now, elsewhere."""
    return Path(shutil.copytree(cluster.data(member), directory / member.id, symlinks=True))


def refusal(cluster: Cluster, role: str, data: Path, *options: str) -> str:
    """What the command says about a directory on which it must not run, beside its log."""
    done = cluster.filestore(role, "run", "--data", str(data), *options)
    codes = {b"\nfilestore: conflict: ": 5, b"\nfilestore: invalid_request: ": 2}
    assert done.returncode == next((code for line, code in codes.items() if line in b"\n" + done.stderr), 1)
    said = [line for line in done.stderr.decode().splitlines() if not line.startswith("{")]
    assert len(said) == 1, said
    return said[0]


@EITHER_ROLE
def test_port_of_another_process_is_named(cluster: Cluster, tmp_path: Path, role: str) -> None:
    member = next(member for member in cluster.members if member.role == role)
    line = refusal(cluster, role, copied(cluster, member, tmp_path))
    assert line == f"filestore: 127.0.0.1:{member.peer_port}: Address already in use"


def test_second_coordinator_in_one_directory_is_refused(cluster: Cluster) -> None:
    line = refusal(cluster, "coordinator", cluster.data(cluster.coordinators[0]))
    assert line.startswith("filestore: conflict: A coordinator already runs in this directory: ")


@EITHER_ROLE
def test_credential_that_others_may_read_is_refused(cluster: Cluster, tmp_path: Path, role: str) -> None:
    member = next(member for member in cluster.members if member.role == role)
    data = copied(cluster, member, tmp_path)
    (data / "credential.pem").chmod(0o644)
    assert "which lets other users access it. Run: chmod 600" in refusal(cluster, role, data)


@EITHER_ROLE
def test_options_for_browsers_that_cannot_be_used_are_named(
    cluster: Cluster, tmp_path: Path, role: str
) -> None:
    member = next(member for member in cluster.members if member.role == role)
    data = copied(cluster, member, tmp_path)
    pair, other = write_pair(tmp_path / "one"), write_pair(tmp_path / "two")
    options = ("--web-certificate", str(pair.certificate), "--web-key", str(other.key))
    line = refusal(cluster, role, data, *options)
    assert line.startswith(f"filestore: --web-key: {other.key} does not belong to {pair.certificate}. ")
    line = refusal(cluster, role, data, "--public-url", "https://someone:secret@files.example.org")
    assert line.startswith("filestore: invalid_request: --public-url: expected https://HOST ")
    assert "secret" not in line


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("coordinator", "ca.pem"),
        ("node", "credential.pem"),
        pytest.param("coordinator", "credential.pem", marks=pytest.mark.long),
        pytest.param("node", "ca.pem", marks=pytest.mark.long),
    ],
)
def test_certificate_that_was_overwritten_is_named(
    cluster: Cluster, tmp_path: Path, role: str, name: str
) -> None:
    member = next(member for member in cluster.members if member.role == role)
    data = copied(cluster, member, tmp_path)
    (data / name).write_bytes(bytes(range(256)))
    line = refusal(cluster, role, data)
    assert f"{name} cannot be used: the certificates are not PEM text" in line


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_credential_of_another_member_is_refused(cluster: Cluster, tmp_path: Path, role: str) -> None:
    member, other = [member for member in cluster.members if member.role == role][:2]
    data = copied(cluster, member, tmp_path)
    shutil.copyfile(cluster.data(other) / "credential.pem", data / "credential.pem")
    line = refusal(cluster, role, data)
    assert f"is the certificate of spiffe://{CLUSTER_NAME}/{role}/{other.id}, not of" in line


def test_address_that_the_certificate_is_not_for_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    data = copied(cluster, cluster.nodes[0], tmp_path)
    reword(data / "node.json", '"127.0.0.1"', '"127.0.0.2"')
    line = refusal(cluster, "node", data)
    assert "is for the address 127.0.0.1, not for 127.0.0.2. To change it, use `node set-address`." in line


def test_coordinator_at_an_address_that_its_certificate_is_not_for_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    data = copied(cluster, cluster.coordinators[0], tmp_path)
    reword(data / "coordinator.json", '"127.0.0.1"', '"127.0.0.2"')
    assert "is for the address 127.0.0.1, not for 127.0.0.2" in refusal(cluster, "coordinator", data)


def test_damaged_database_is_kept_and_built_again(cluster: Cluster, tmp_path: Path) -> None:
    data = copied(cluster, cluster.coordinators[0], tmp_path)
    with closing(sqlite3.connect(data / "state.sqlite")) as state:
        state.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (data / "state.sqlite").open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(1 << 16))
    refusal(cluster, "coordinator", data)  # the original listens where it would listen
    assert len([path for path in data.glob("state.sqlite.damaged-*") if path.suffix != SUMS]) == 1
    with closing(sqlite3.connect(data / "state.sqlite")) as state:
        assert state.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_state_of_a_newer_version_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    data = copied(cluster, cluster.coordinators[0], tmp_path)
    with closing(sqlite3.connect(data / "state.sqlite")) as state, state:
        state.execute("INSERT OR REPLACE INTO rules (one, version) VALUES (1, 99)")
    line = refusal(cluster, "coordinator", data)
    assert line.endswith("Run a newer version of Filestore here.")


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


def until_refused(cluster: Cluster, member: Member) -> str:
    """How a member ends that begins on a directory which is not its own any more."""
    cluster.restart(member)
    wait_until(lambda: not cluster.runs(member), what="its end", timeout_s=20)
    return cluster.last_words(member)


@pytest.mark.long
def test_earlier_copy_of_a_coordinator_is_refused(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    member = next(member for member in cluster.coordinators if member != cluster.leader())
    cluster.kill(member)
    earlier = copied(cluster, member, tmp_path)
    cluster.restart(member)
    cluster.wait_healthy()
    wait_until(lambda: is_known_by_all(cluster, member), what="its start known by the others", timeout_s=20)
    cluster.kill(member)
    cluster.data(member).rename(tmp_path / "newest")
    earlier.rename(cluster.data(member))
    said = until_refused(cluster, member)  # by its start, or by the leader that heard its acknowledgements
    assert "by a later start of this one" in said or "its directory is an old copy" in said
    assert "filestore coordinator rebuild" in said
    shutil.rmtree(cluster.data(member))
    (tmp_path / "newest").rename(cluster.data(member))
    cluster.restart(member)
    cluster.wait_healthy()


def is_known_by_all(cluster: Cluster, member: Member) -> bool:
    """Whether every other coordinator has kept the present start of this one."""
    own = json.loads((cluster.data(member) / "instance.json").read_bytes())["content"]
    others = [other for other in cluster.coordinators if other != member]
    known = [json.loads((cluster.data(other) / "instances.json").read_bytes()) for other in others]
    return all(each["content"].get(member.id) == own for each in known)


@pytest.mark.long
def test_coordinator_that_was_made_anew_under_its_old_name_is_refused(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    """Even where those that remember what it acknowledged are down, and the rest would follow it."""
    cluster = own_cluster
    first, away, remembers = cluster.coordinators
    bundle = tmp_path / "bundle"
    shutil.copy(cluster.data(first) / "cluster.bundle", bundle)
    cluster.kill(away)
    stored = cluster.store(b"away has not seen this")
    cluster.kill(first, remembers)
    cluster.data(first).rename(tmp_path / "lost")
    done = cluster.filestore(
        *("coordinator", "init", "--bundle", str(bundle), "--id", first.id),
        *("--data", str(cluster.data(first))),
    )
    assert done.returncode == 0, done.stderr
    cluster.restart(away)
    cluster.restart(first)
    refused = "knows this one by another directory"
    wait_until(lambda: refused in cluster.logs()[first.id], what="its refusal", timeout_s=20)
    assert cluster.get(f"/files/{stored}").status == 503  # the two have not come together
    cluster.restart(remembers)
    wait_until(lambda: not cluster.runs(first), what="its end", timeout_s=20)
    assert "know this name by another directory" in cluster.last_words(first)
    wait_until(lambda: cluster.get(f"/files/{stored}").status == 200, what="what was stored", timeout_s=30)
