"""Custody by real nodes: damage is found, put aside, reported to the log, and the disk agrees with it."""

import hashlib
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ca.tls import peer_client_context
from coordinator.storage.config import CoordinatorFiles
from deploy.dev_cluster import CLUSTER_NAME, Member
from deploy.processes import wait_until
from tests.blobs_on_disk import change_byte, change_byte_on, content_on, lose_on, sizes_on
from tests.cluster.harness import Cluster
from tests.cluster.test_damage import replica
from tests.cluster.test_jobs import run_job
from tests.cluster.test_metrics import families, value
from tests.unit.custody_node import cut

SOON_S = 60.0
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two processes to a node: either may meet damage, the first one reports it."""
    with Cluster(tmp_path_factory.mktemp("custody"), node_options=("--workers", "2")) as started:
        yield started


def holders(cluster: Cluster, path: Path) -> list[str]:
    sql = "SELECT node_id FROM blob_replicas WHERE sha256 = ? ORDER BY node_id"
    return [row[0] for row in cluster.logged(sql, path.name)]


def until_lost(cluster: Cluster, node: Member, path: Path) -> None:
    """The log has taken the report; a new replica may be there before anybody sees that one was missing."""
    wait_until(
        lambda: "replica.lost" in audited(cluster, node, path), what="the report of a loss", timeout_s=SOON_S
    )


def told(cluster: Cluster, node: Member, path: str, body: Any) -> tuple[int, bytes]:
    """What a node's peer port answers to a coordinator: a status and a body."""
    credential = CoordinatorFiles(cluster.data(cluster.coordinators[0])).credential()
    context = peer_client_context(credential.path, credential.root_pem)
    connection = http.client.HTTPConnection("127.0.0.1", node.peer_port)
    plain = socket.create_connection(("127.0.0.1", node.peer_port), DEADLINE_S)
    connection.sock = context.wrap_socket(plain, server_hostname=f"{node.id}.node.{CLUSTER_NAME}.internal")
    with closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()


def order(cluster: Cluster, node: Member, kind: str, order_id: str) -> Any:
    status, body = told(cluster, node, f"/custody/{kind}", {"order_id": order_id})
    answer = json.loads(body)
    assert status == (200 if "order_id" in answer else 404)
    return answer


def carried_out(cluster: Cluster, node: Member, kind: str, order_id: str) -> dict[str, int]:
    """What the order counted."""
    standings: list[Any] = []

    def ended() -> bool:
        standings.append(order(cluster, node, kind, order_id))
        return bool(standings[-1]["state"] != "running")

    wait_until(ended, what=f"the order to {kind}", timeout_s=SOON_S)
    assert standings[-1]["state"] == "completed", standings[-1]
    return dict(standings[-1]["counts"])


def spoil_flip(path: Path) -> None:
    change_byte(path, 100_000)


def spoil_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def spoil_truncate(path: Path) -> None:
    cut(path, 1000)


@pytest.mark.long
@pytest.mark.parametrize("spoil", [spoil_flip, spoil_truncate, Path.unlink, spoil_link])
def test_what_a_download_meets_is_reported_and_the_download_is_right(
    cluster: Cluster, spoil: Callable[[Path], None]
) -> None:
    content = os.urandom(300_000)
    file_uuid, node = cluster.store_everywhere(content), cluster.nodes[1]
    path = replica(cluster, node, content)
    reason = "missing" if spoil is Path.unlink else "damaged"
    before = lost_count(cluster, node, reason)
    spoil(path)
    assert cluster.get(f"/files/{file_uuid}", node=node).body == content
    until_lost(cluster, node, path)
    aside = cluster.data(node) / "quarantine" / path.name
    assert os.path.lexists(aside) == (spoil is not Path.unlink)
    assert cluster.get(f"/files/{file_uuid}", node=node).body == content
    assert lost_count(cluster, node, reason) == before + 1


def test_damage_that_a_download_meets_and_that_the_scrub_job_finds_is_repaired_and_told(
    cluster: Cluster,
) -> None:
    read, unread = os.urandom(9_000_000), os.urandom(300_000)
    file_uuid = cluster.store_everywhere(read)
    cluster.store_everywhere(unread)
    spoiled = {
        node: replica(cluster, node, kept)
        for node, kept in zip(cluster.nodes[:2], (read, unread), strict=True)
    }
    before = {node: lost_count(cluster, node) for node in spoiled}
    for path in spoiled.values():
        change_byte(path, 200_000)
    assert cluster.get(f"/files/{file_uuid}", node=cluster.nodes[0]).body == read
    assert run_job(cluster, "scrub")["status"] == "completed"
    for node, path in spoiled.items():
        until_repaired(cluster, path, node)
        assert lost_count(cluster, node) > before[node]
        assert "replica.lost" in audited(cluster, node, path)


def until_repaired(cluster: Cluster, path: Path, node: Member) -> None:
    """The log names every node again, and this replica is what its name says."""
    names = [node.id for node in cluster.nodes]
    wait_until(lambda: holders(cluster, path) == names, what="a replica made anew", timeout_s=SOON_S)
    content = content_on(cluster.data(node), path.name)
    assert content is not None
    assert hashlib.sha256(content).hexdigest() == path.name


def lost_count(cluster: Cluster, node: Member, reason: str = "damaged") -> float:
    return value(families(cluster, node), "filestore_replicas_lost_total", reason=reason)


def audited(cluster: Cluster, node: Member, path: Path) -> set[str]:
    """What a node says that it did with a blob by itself."""
    log = cluster.data(node) / "housekeeping.log"
    lines = map(json.loads, log.read_text().splitlines() if log.exists() else [])
    return {line["action"] for line in lines if line["object"] == path.name}


def test_ordered_scrub_finds_a_flipped_bit_and_nothing_else(cluster: Cluster) -> None:
    content, node = os.urandom(300_000), cluster.nodes[2]
    cluster.store_everywhere(content)
    path = replica(cluster, node, content)
    change_byte(path, 5)
    before = lost_count(cluster, node)
    counts = carried_out(cluster, node, "scrub", "scrub-1")
    assert counts["damaged"] == 1
    until_lost(cluster, node, path)
    assert lost_count(cluster, node) == before + 1
    assert carried_out(cluster, node, "scrub", "scrub-2")["damaged"] == 0
    assert "code" in order(cluster, node, "else", "scrub-1")


def test_replica_that_went_while_its_node_was_dead_is_missed_at_its_start(cluster: Cluster) -> None:
    content, node = os.urandom(300_000), cluster.nodes[1]
    cluster.store_everywhere(content)
    path = replica(cluster, node, content)
    cluster.kill(node)
    path.unlink()
    cluster.restart(node)
    until_lost(cluster, node, path)
    assert lost_count(cluster, node, "missing") == 1
    cluster.wait_healthy()


@pytest.mark.parametrize("way", ["download", "scrub"])
def test_damaged_packed_replica_is_reported_and_repaired(cluster: Cluster, way: str) -> None:
    content, node = os.urandom(3_000), cluster.nodes[1]
    file_uuid = cluster.store_everywhere(content)
    path = replica(cluster, node, content)
    before = lost_count(cluster, node)
    change_byte_on(cluster.data(node), path.name, 1_000)
    if way == "download":
        for _ in range(2):  # by either process
            assert cluster.get(f"/files/{file_uuid}", node=node).body == content
    else:
        assert carried_out(cluster, node, "scrub", "scrub-packed")["damaged"] == 1
    until_lost(cluster, node, path)
    assert lost_count(cluster, node) == before + 1
    until_repaired(cluster, path, node)
    assert cluster.get(f"/files/{file_uuid}", node=node).body == content


def test_packed_replica_that_went_is_missed(cluster: Cluster) -> None:
    content, node = os.urandom(3_000), cluster.nodes[2]
    file_uuid = cluster.store_everywhere(content)
    path = replica(cluster, node, content)
    before = lost_count(cluster, node, "missing")
    lose_on(cluster.data(node), path.name)
    assert carried_out(cluster, node, "compare", "compare-packed")["missing"] == 1
    until_lost(cluster, node, path)
    assert lost_count(cluster, node, "missing") == before + 1
    until_repaired(cluster, path, node)
    assert cluster.get(f"/files/{file_uuid}", node=node).body == content


@pytest.mark.parametrize("is_sound", [True, False])
def test_pull_puts_a_sound_blob_back_from_quarantine(cluster: Cluster, is_sound: bool) -> None:
    content, node = os.urandom(300_000), cluster.nodes[1]
    file_uuid = cluster.store_everywhere(content)
    path = replica(cluster, node, content)
    aside = cluster.data(node) / "quarantine" / path.name
    for ending in (".sums", ""):
        path.with_name(path.name + ending).rename(aside.with_name(path.name + ending))
    if not is_sound:
        change_byte(aside, 100_000)
    body = {"size_bytes": len(content), "sources": [node.id]}  # which is the one that is asked: none
    status, _ = told(cluster, node, f"/blobs/{path.name}/pull", body)
    assert (status, path.exists(), aside.exists()) == ((200, True, False) if is_sound else (503, False, True))
    body["sources"] = [cluster.nodes[0].id]
    assert told(cluster, node, f"/blobs/{path.name}/pull", body)[0] == 200
    assert cluster.get(f"/files/{file_uuid}", node=node).body == content


def test_disk_holds_what_the_log_names_and_an_order_finds_nothing_to_do(cluster: Cluster) -> None:
    lacking = "SELECT sha256 FROM blob_replicas GROUP BY sha256 HAVING COUNT(*) < 3"
    # What the tests before have spoiled comes to a disk first, then the log hears of it.
    wait_until(lambda: not cluster.logged(lacking), what="the last repair", timeout_s=SOON_S)
    for node in cluster.nodes:
        counts = carried_out(cluster, node, "compare", f"agree-{node.id}")
        assert (counts["missing"], counts["unknown"], counts["added"]) == (0, 0, 0), node.id
        assert carried_out(cluster, node, "collect", f"agree-{node.id}")["left"] == 0
        sql = "SELECT sha256, size_bytes FROM blobs JOIN blob_replicas USING (sha256) WHERE node_id = ?"
        assert dict(cluster.logged(sql, node.id)) == sizes_on(cluster.data(node))
