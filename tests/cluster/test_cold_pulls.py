"""A drained node's cold replicas go to another: only what is new is sent, whoever is killed meanwhile."""

import hashlib
import os
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.test_healing import runs_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]

MIB = 1 << 20
UNDER_WAY = "SELECT COUNT(*) FROM blob_replicas WHERE sha256 = ? AND node_id = ? AND doomed_at IS NULL"


@cache
def old_image() -> bytes:
    return random.Random(5).randbytes(96 * MIB)


@cache
def new_image() -> bytes:
    """1 % of it."""
    return old_image()[: 40 * MIB] + os.urandom(MIB) + old_image()[41 * MIB :]


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", node_count=4, replicas=3, write_quorum=2) as started:
        bucket = started.request("PATCH", f"/buckets/{_default(started)}", body={"storage": "cold"})
        assert bucket.status == 200, bucket.body
        yield started


def _default(cluster: Cluster) -> str:
    return str(cluster.get("/buckets").json["buckets"][0]["bucket_id"])


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_cold(cluster: Cluster, node: Member, content: bytes) -> bool:
    name = name_of(content)
    cold = cluster.data(node) / "cold" / name[:2] / name
    return cold.exists() and not cluster.replica(node, name).exists()


def holding(cluster: Cluster, content: bytes) -> list[Member]:
    return [node for node in cluster.nodes if is_cold(cluster, node, content)]


def freeze(cluster: Cluster, *contents: bytes) -> None:
    """Until three nodes keep each of these cold."""

    def is_done() -> bool:
        leader = cluster.leader()
        runs = runs_of(cluster, "freeze", leader)
        if not runs or runs[0]["status"] != "running":
            cluster.post("/jobs/freeze", {}, node=cluster.nodes[0])
        return all(len(holding(cluster, content)) >= 3 for content in contents)

    wait_until(is_done, what="three cold replicas", timeout_s=200)


def received_bytes(cluster: Cluster, node: Member) -> float:
    lines = cluster.get("/metrics", node=node).body.decode().splitlines()
    (found,) = [
        line for line in lines if line.startswith('filestore_replica_bytes_total{direction="received"}')
    ]
    return float(found.split()[-1])


def drain(cluster: Cluster, node: Member) -> None:
    asked = next(each for each in cluster.nodes if each is not node)
    assert cluster.post(f"/cluster/nodes/{node.id}/drain", node=asked).status == 200


def is_under_way(cluster: Cluster, node: Member) -> bool:
    """Whether a fetch has stored some chunks, and has not ended."""
    data = cluster.data(node)
    packs = list((data / "chunks").glob("*.pack"))
    return bool(os.listdir(data / "drafts")) and sum(each.stat().st_size for each in packs) > 8 * MIB


def until_cold_on(cluster: Cluster, node: Member, content: bytes) -> None:
    wait_until(lambda: is_cold(cluster, node, content), what="a cold replica", timeout_s=200)


def test_node_gets_only_the_chunks_that_it_lacks(four: Cluster) -> None:
    files = {four.store(content): content for content in (old_image(), new_image())}
    freeze(four, old_image(), new_image())
    target = next(node for node in four.nodes if not is_cold(four, node, new_image()))
    lacking_bytes = 0 if is_cold(four, target, old_image()) else len(old_image())
    source = next(
        node for node in holding(four, new_image()) if lacking_bytes == 0 or is_cold(four, node, old_image())
    )
    before = received_bytes(four, target)
    drain(four, source)
    until_cold_on(four, target, new_image())
    until_cold_on(four, target, old_image())
    assert received_bytes(four, target) - before < lacking_bytes + 4 * MIB
    for file_uuid, content in files.items():
        assert four.get(f"/files/{file_uuid}", node=target).body == content


def test_target_and_source_are_killed_in_the_middle(four: Cluster) -> None:
    file_uuid = four.store(old_image())
    freeze(four, old_image())
    target = next(node for node in four.nodes if not is_cold(four, node, old_image()))
    drained, source, _ = holding(four, old_image())
    drain(four, drained)
    wait_until(lambda: is_under_way(four, target), what="a fetch under way", timeout_s=100)
    four.kill(target)
    four.restart(target)
    wait_until(lambda: is_under_way(four, target), what="a fetch that goes on", timeout_s=100)
    four.kill(source)
    until_cold_on(four, target, old_image())
    four.restart(source)
    assert four.get(f"/files/{file_uuid}", node=target).body == old_image()
    assert (four.data(target) / "node.json").read_text().count('"thaw_before_downgrade": true') == 1
