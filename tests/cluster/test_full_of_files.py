"""Disks that have room, and none for another file: known as full, and used again when that is over."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.small_disks import fill_files, move_to_small_disks

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
MIB = 1 << 20
DISK_BYTES = 1 << 30
FILES_MAX = 2_000
KNOWN_S = 20.0


def disk_of(cluster: Cluster, node: Member) -> str:
    """What the cluster knows of it."""
    nodes = cluster.get("/cluster/status").json["nodes"]
    return next(str(each["disk"]) for each in nodes if each["id"] == node.id)


def test_node_that_can_make_no_file_is_known_as_full(tmp_path: Path) -> None:
    with ExitStack() as disks, Cluster(tmp_path / "cluster", replicas=2) as cluster:
        node = cluster.nodes[0]
        move_to_small_disks(
            cluster, [node], disks, aside=tmp_path, size_bytes=DISK_BYTES, files_max=FILES_MAX
        )
        before = os.urandom(MIB)
        kept = cluster.store(before, node=node)
        ballast = fill_files(cluster, node)
        wait_until(lambda: disk_of(cluster, node) == "full", what="a full disk", timeout_s=KNOWN_S)
        contents = [os.urandom(MIB) for _ in range(8)]
        for content in contents:
            file_uuid = cluster.store(content)
            assert cluster.get(f"/files/{file_uuid}", node=node).body == content
        assert not any((cluster.data(node) / "uploads").iterdir())
        assert cluster.get(f"/files/{kept}", node=node).body == before
        shutil.rmtree(ballast)
        wait_until(lambda: disk_of(cluster, node) == "ok", what="room", timeout_s=KNOWN_S)
        cluster.wait_healthy()


def test_coordinators_that_can_make_no_file_take_no_change(tmp_path: Path) -> None:
    with ExitStack() as disks, Cluster(tmp_path / "cluster") as cluster:
        move_to_small_disks(
            cluster,
            cluster.coordinators,
            disks,
            aside=tmp_path,
            size_bytes=DISK_BYTES,
            files_max=FILES_MAX,
        )
        content = os.urandom(MIB)
        kept, other = cluster.store(content), cluster.store(os.urandom(MIB))
        ballast = [fill_files(cluster, member) for member in cluster.coordinators]

        def create() -> int:
            return cluster.post("/buckets", {"name": "late"}).status

        wait_until(lambda: create() == 507, what="a change that is refused", timeout_s=KNOWN_S)
        assert cluster.get(f"/files/{kept}").body == content
        assert cluster.request("DELETE", f"/files/{other}").status == 200
        for directory in ballast:
            shutil.rmtree(directory)
        wait_until(lambda: create() in (201, 409), what="a change that is taken", timeout_s=KNOWN_S)
        cluster.wait_healthy()
