"""Content that is uploaded again while the cluster deletes it: no upload is refused for that."""

import hashlib
import os
import time

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import Cluster

AGE_S = 3600.0  # more than a node keeps what came just now
ROUNDS = 6
ENDED_S = 60.0


def age(cluster: Cluster, sha256: str) -> None:
    at_s = time.time() - AGE_S
    for node in cluster.nodes:
        for name in (sha256, f"{sha256}.sums"):
            os.utime(cluster.replica(node, name), (at_s, at_s))


def begin_gc(cluster: Cluster) -> None:
    """What no file needs is to go at once."""
    wait_until(
        lambda: cluster.post("/jobs/gc", {"grace_s": 0, "yes_really": True}).status == 202,
        what="a run of gc",
        timeout_s=ENDED_S,
    )


@pytest.mark.parametrize("size_bytes", [300_000, pytest.param(9_000_000, marks=pytest.mark.long)])
def test_content_that_is_deleted_just_now_is_taken_again(cluster: Cluster, size_bytes: int) -> None:
    for _ in range(ROUNDS):
        content = os.urandom(size_bytes)
        sha256 = hashlib.sha256(content).hexdigest()
        file_uuid = cluster.store_everywhere(content)
        age(cluster, sha256)
        assert cluster.request("DELETE", f"/files/{file_uuid}?now=1").status == 200
        created = cluster.create(size_bytes=size_bytes)
        begin_gc(cluster)
        answer = cluster.request("PUT", created["upload_url"], content=content)
        assert answer.status == 200, answer.body
        for node in cluster.nodes:
            assert cluster.get(f"/files/{created['file_uuid']}", node=node).body == content
