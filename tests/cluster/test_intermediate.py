"""Another intermediate certificate signs for the members of a running cluster."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from ca.certificates import certificates_in, new_root
from ca.keys import key_to_pem
from ca.secretfiles import write_secret
from deploy.development import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster


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


def test_members_get_certificates_by_the_newest_intermediate(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    first, follower = cluster.coordinators[0], cluster.coordinators[2]
    earlier = issuer_of(cluster, first)
    stored = cluster.store(b"before")
    code, said = renewed(cluster, cluster.data(first) / "root.key")
    assert code == 0
    assert "It signs until 20" in said
    cluster.terminate(follower)
    cluster.restart(follower)
    wait_until(
        lambda: issuer_of(cluster, follower) != earlier, what="a certificate by the new one", timeout_s=20
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
        "filestore: internal: the root key is not the one of this cluster's root certificate\n",
    )
    user = tmp_path / "user.token"
    write_secret(user, cluster.user_token("somebody").encode())
    root_key = cluster.data(cluster.coordinators[0]) / "root.key"
    code, said = renewed(cluster, root_key, token=str(user))
    assert code == 1
    assert said.startswith("filestore: forbidden: ")
    foreign.chmod(0o644)
    code, said = renewed(cluster, foreign)
    assert code == 1
    assert said.endswith("chmod 600 it\n")
