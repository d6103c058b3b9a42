"""Another intermediate certificate signs for the members of a running cluster."""

import base64
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ca.certificates import certificates_in, new_root
from ca.keys import key_from_pem, key_to_pem
from ca.secretfiles import write_secret
from coordinator.admin.authority import make_intermediate
from coordinator.server import RENEWAL_CHECK_S
from coordinator.storage.config import CoordinatorFiles
from deploy.dev_cluster import CLUSTER_NAME, Member
from deploy.processes import wait_until
from tests.cluster.clocks import library, set_clock
from tests.cluster.drills import drill
from tests.cluster.harness import Cluster, run_filestore


def issuer_of(cluster: Cluster, member: Member) -> x509.Certificate:
    return certificates_in((cluster.data(member) / "credential.pem").read_text())[1]


def renewed(cluster: Cluster, root_key: Path, *, token: str | None = None) -> tuple[int, str]:
    """How the command ended, and what it said."""
    changes = {} if token is None else {"FILESTORE_TOKEN_FILE": token}
    data = str(cluster.data(cluster.coordinators[0]))
    done = cluster.filestore(
        "coordinator", "renew-intermediate", "--data", data, "--root-key", str(root_key), stdin=b"", **changes
    )
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.long
def test_members_get_certificates_by_the_newest_intermediate(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    first, follower = cluster.coordinators[0], cluster.coordinators[2]
    earlier = issuer_of(cluster, first)
    stored = cluster.store(b"before")
    with drill("root key used to renew the intermediate"):
        code, said = renewed(cluster, cluster.data(first) / "root.key")
        assert code == 0
        assert "It signs until 20" in said
        cluster.terminate(follower)
        cluster.restart(follower)
        wait_until(  # at once, or at its next look, if it learns of the new one only now
            lambda: issuer_of(cluster, follower) != earlier,
            what="a certificate by the new one",
            timeout_s=RENEWAL_CHECK_S + 30,
        )
    token = cluster.post("/cluster/join-tokens", {}).json["token"]
    node = cluster.add_node("n9", cluster.remember(str(token)))
    cluster.wait_healthy()
    assert issuer_of(cluster, node) == issuer_of(cluster, follower)
    assert issuer_of(cluster, node).issuer == earlier.issuer
    assert cluster.get(f"/files/{stored}", node=node).body == b"before"


def test_intermediate_that_the_cluster_cannot_use_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    _, key = new_root("lab", now=datetime.now(UTC))
    foreign = tmp_path / "root.key"
    write_secret(foreign, key_to_pem(key))
    code, said = renewed(cluster, foreign)
    assert (code, said) == (
        1,
        "filestore: the root key does not belong to this cluster's root certificate\n",
    )
    user = tmp_path / "user.token"
    write_secret(user, cluster.user_token("somebody").encode())
    root_key = cluster.data(cluster.coordinators[0]) / "root.key"
    code, said = renewed(cluster, root_key, token=str(user))
    assert code == 3
    assert said.startswith("filestore: forbidden: ")
    foreign.chmod(0o644)
    code, said = renewed(cluster, foreign)
    assert code == 1
    assert said.endswith(f"Run: chmod 600 {foreign}\n")


@pytest.mark.long
def test_cluster_whose_intermediate_has_ended_comes_back(
    own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = own_cluster
    files = CoordinatorFiles(cluster.data(cluster.coordinators[0]))
    key, made_at = key_from_pem(files.root_key.read_bytes()), datetime.now(UTC) - timedelta(days=364)
    ending = make_intermediate(
        files.root.read_text(), key, CLUSTER_NAME, files.read_cluster_key(), now=made_at
    )
    sealed = base64.b64encode(ending.wrapped).decode()
    body = {"certificate": ending.pem, "wrapped_key": sealed}
    assert cluster.post("/cluster/intermediates", body).status == 201
    stored = cluster.store(b"before")
    cluster.terminate(*cluster.members)
    set_clock(monkeypatch, library(tmp_path), 20 * 24 * 3600)
    first = cluster.coordinators[0]
    cluster.restart(first)
    why = '"reason": "the intermediate certificate has expired: sign a new one with the root key"'
    wait_until(lambda: why in cluster.logs()[first.id], what="why nothing is renewed", timeout_s=30)
    cluster.terminate(first)
    assert "Traceback" not in cluster.logs()[first.id]
    for member in cluster.coordinators:
        done = cluster.filestore(
            *("coordinator", "renew-certificate", "--data", str(cluster.data(member))),
            *("--root-key", str(files.root_key)),
        )
        assert done.returncode == 0, done.stderr
    cluster.restart(*cluster.coordinators)
    token = tmp_path / "token"
    done = cluster.filestore("token", "admin", "--data", str(files.data), "--output", str(token))
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("FILESTORE_URL", cluster.coordinators[0].url)
    environment = os.environ | {"FILESTORE_CA": str(cluster.ca), "FILESTORE_TOKEN_FILE": str(token)}
    renew = ["coordinator", "renew-intermediate", "--data", str(files.data), "--root-key"]
    wait_until(
        lambda: run_filestore([*renew, str(files.root_key)], environment).returncode == 0,
        what="a leader that takes the new one",
        timeout_s=30,
    )
    cluster.restart(*cluster.nodes)

    def got() -> bytes:
        return cluster.filestore("get", stored, "-o", "-", FILESTORE_TOKEN_FILE=str(token)).stdout

    wait_until(lambda: got() == b"before", what="nodes with certificates by it", timeout_s=60)
