"""The same content, uploaded again and again, comes down to the replicas that are wanted."""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.processes import wait_until
from metadata.model.records import BlobRecord
from metadata.protocol.queries import FindBlob
from tests.cluster.harness import Cluster
from tests.cluster.test_members import as_node

REPLICAS = 2
UPLOADS = 8
SWEPT_S = 150.0  # uploads that have ended leave a node within a minute
TRIMMED_S = 60.0
AGE_S = 3600.0  # more than a node keeps what came just now


pytestmark = pytest.mark.long  # run by `make long`


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", node_count=5, replicas=REPLICAS, write_quorum=2) as started:
        yield started


def on_disks(cluster: Cluster, sha256: str) -> list[str]:
    return [node.id for node in cluster.nodes if cluster.replica(node, sha256).exists()]


def uploads(cluster: Cluster) -> list[Path]:
    """What nodes have of uploads, and spare for that."""
    return [path for node in cluster.nodes for path in (cluster.data(node) / "uploads").iterdir()]


async def test_replicas_of_content_that_was_uploaded_many_times_come_down_to_those_wanted(
    five: Cluster,
) -> None:
    content = os.urandom(5_000_000)
    sha256 = hashlib.sha256(content).hexdigest()
    files = [five.store(content) for _ in range(UPLOADS)]
    assert len(on_disks(five, sha256)) > REPLICAS
    wait_until(lambda: not uploads(five), what="the end of every upload", timeout_s=SWEPT_S)
    at_s = time.time() - AGE_S
    for node in five.nodes:
        for path in (five.data(node) / "blobs").rglob(f"{sha256}*"):
            os.utime(path, (at_s, at_s))

    def is_trimmed() -> bool:
        """The schedule waits longer each time, after runs in vain."""
        assert five.post("/jobs/trim").status in (202, 409)
        return len(on_disks(five, sha256)) == REPLICAS

    wait_until(is_trimmed, what="few enough replicas", timeout_s=TRIMMED_S)
    async with as_node(five, five.nodes[0]) as client:
        blob = await client.read(FindBlob(sha256=sha256), BlobRecord)
    assert (blob.reference_count, blob.replicas) == (UPLOADS, on_disks(five, sha256))
    for file_uuid, node in zip(files, [*five.nodes, *five.nodes], strict=False):
        assert five.get(f"/files/{file_uuid}", node=node).body == content
