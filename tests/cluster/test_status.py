"""`filestore status`: what it shows of real processes, and its exit code by how the cluster is."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ca.secretfiles import write_secret
from deploy.processes import wait_until
from metadata.model.safety_limits import SAFETY_BLOBS_MAX
from runtime.clock import now_ms
from runtime.timestamps import parse_rfc3339
from runtime.version import VERSION
from tests.cluster.clocks import library, set_clock
from tests.cluster.harness import Cluster

LEAF_MS_MAX = 8 * 86_400_000  # a certificate of a member lives for a week


def status(cluster: Cluster) -> dict[str, Any]:
    answer = cluster.get("/cluster/status")
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


def test_every_member_has_its_clock_and_nothing_is_wrong(cluster: Cluster) -> None:
    cluster.leader()
    found = status(cluster)
    assert (found["health"], found["problems"], found["certificates"]) == ("healthy", [], [])
    members = found["coordinators"] + found["nodes"]
    assert len(members) == len(cluster.members)
    assert all(abs(member["clock_offset_ms"]) < 60_000 for member in members)  # one machine, one clock


def test_every_member_tells_its_version_and_when_its_certificate_ends(cluster: Cluster) -> None:
    cluster.leader()
    found = status(cluster)
    for member in found["coordinators"] + found["nodes"]:
        assert member["version"] == VERSION
        assert now_ms() < parse_rfc3339(member["certificate_expires_at"], "end") < now_ms() + LEAF_MS_MAX


def test_nodes_tell_how_many_replicas_they_have(cluster: Cluster) -> None:
    before = {node["id"]: node["replicas"] for node in status(cluster)["nodes"]}
    cluster.store_everywhere(b"counted on each node")

    def all_more() -> bool:
        return all(node["replicas"] > before[node["id"]] for node in status(cluster)["nodes"])

    wait_until(all_more, what="the replicas in the status", timeout_s=30)


@pytest.mark.long
def test_table_shows_problems_and_the_exit_code_follows(own_cluster: Cluster) -> None:
    leader = own_cluster.leader()
    first, second = (member for member in own_cluster.coordinators if member != leader)

    def ends_with(code: int) -> bool:
        return own_cluster.filestore("status").returncode == code

    own_cluster.kill(first)
    wait_until(lambda: ends_with(10), what="degraded", timeout_s=30)
    shown = own_cluster.filestore("status").stdout.decode()
    assert f"! The coordinator {first.id} does not answer at 127.0.0.1:{first.peer_port}." in shown
    assert "DEGRADED" in shown
    own_cluster.kill(second)
    wait_until(lambda: ends_with(6), what="unavailable", timeout_s=30)
    wait_until(lambda: own_cluster.get("/project-files").status == 503, what="an old view", timeout_s=30)
    done = own_cluster.filestore("status")
    assert done.returncode == 6
    shown = done.stdout.decode()
    for gone in (first, second):
        assert f"! The coordinator {gone.id} does not answer at 127.0.0.1:{gone.peer_port}." in shown
    assert "! No coordinator leads: nothing can be changed." in shown
    done = own_cluster.filestore("coordinator", "status")
    assert done.returncode == 10
    assert done.stdout.decode().endswith("\n! No coordinator leads: nothing can be changed.\n")


def test_cluster_whose_certificates_have_ended_does_not_answer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of who asks, here."""
    set_clock(monkeypatch, library(tmp_path), 20 * 24 * 3600)
    done = cluster.filestore("status")
    assert b"the certificate has expired" in done.stderr
    assert done.returncode == 6


@pytest.mark.parametrize("command", [("status",), ("coordinator", "status")])
def test_status_that_could_not_be_asked_has_a_code_of_its_own(
    cluster: Cluster, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A script must not take it for a cluster that needs attention."""
    token = tmp_path / "token"
    write_secret(token, cluster.user_token("no-operator").encode())
    done = cluster.filestore(*command, FILESTORE_TOKEN_FILE=str(token))
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"filestore: forbidden: ")
    assert cluster.filestore(*command, FILESTORE_TOKEN_FILE=str(tmp_path / "none")).returncode == 2


def test_revoked_user_has_no_token_any_more_until_another_is_minted(cluster: Cluster) -> None:
    token = cluster.user_token("leaves")
    assert cluster.get("/auth/whoami", token=token).status == 200
    done = cluster.filestore("user", "revoke", "leaves")
    assert done.returncode == 0, done.stderr
    assert [cluster.get("/auth/whoami", node=node, token=token).status for node in cluster.nodes] == [401] * 3
    assert cluster.get("/auth/whoami", token=cluster.user_token("leaves")).status == 200
    assert cluster.filestore("user", "revoke", "nobody-of-that-name").returncode == 4


@pytest.mark.long
def test_node_without_its_blobs_is_told_until_it_has_them_again(own_cluster: Cluster) -> None:
    """As when it starts before its disk is mounted."""
    own_cluster.leader()
    contents = [os.urandom(100) for _ in range(SAFETY_BLOBS_MAX + 1)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(own_cluster.store_everywhere, contents))
    node = own_cluster.nodes[-1]
    data, aside = own_cluster.data(node), own_cluster.data(node) / "unmounted"
    aside.mkdir()
    own_cluster.terminate(node)
    for area in ("blobs", "packs"):
        (data / area).rename(aside / area)
    own_cluster.restart(node)
    told = f"A compare on the node {node.id} stopped, because it would remove too many replicas at once."
    told += " See the node's log."
    wait_until(lambda: told in status(own_cluster)["problems"], what="a stopped pass", timeout_s=60)
    assert status(own_cluster)["health"] == "degraded"
    own_cluster.terminate(node)
    for area in ("blobs", "packs"):
        shutil.rmtree(data / area)
        (aside / area).rename(data / area)
    own_cluster.restart(node)
    own_cluster.wait_healthy()
    assert status(own_cluster)["nodes"][-1]["custody_stopped"] == []
