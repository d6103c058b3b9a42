"""The same content, uploaded again and again, comes down to the replicas that are wanted by itself."""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.queries import FindBlob
from coordinator.records import BlobRecord
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.test_members import as_node

REPLICAS = 2
UPLOADS = 8
TRIMMED_S = 90.0
AGE_S = 3600.0  # more than a node keeps what came just now


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", node_count=5, replicas=REPLICAS, write_quorum=2) as started:
        yield started


def on_disks(cluster: Cluster, sha256: str) -> list[str]:
    return [node.id for node in cluster.nodes if cluster.replica(node, sha256).exists()]


async def test_replicas_of_content_that_was_uploaded_many_times_come_down_to_those_wanted(
    five: Cluster,
) -> None:
    content = os.urandom(5_000_000)
    sha256 = hashlib.sha256(content).hexdigest()
    files = [five.store(content) for _ in range(UPLOADS)]
    assert len(on_disks(five, sha256)) > REPLICAS
    at_s = time.time() - AGE_S
    for node in five.nodes:
        for path in (five.data(node) / "blobs").rglob(f"{sha256}*"):
            os.utime(path, (at_s, at_s))
    wait_until(
        lambda: len(on_disks(five, sha256)) == REPLICAS, what="few enough replicas", timeout_s=TRIMMED_S
    )
    async with as_node(five, five.nodes[0]) as client:
        blob = await client.read(FindBlob(sha256=sha256), BlobRecord)
    assert (blob.reference_count, blob.replicas) == (UPLOADS, on_disks(five, sha256))
    for file_uuid, node in zip(files, [*five.nodes, *five.nodes], strict=False):
        assert five.get(f"/files/{file_uuid}", node=node).body == content
