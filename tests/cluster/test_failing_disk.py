"""A node whose disk becomes read-only: out of placement, into the alarms, and back when it is mended."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.failing_disk import FailingDisk, failing_disk
from tests.cluster.harness import Cluster
from tests.cluster.test_metrics import families, value

SOON_S = 60.0
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Cluster, Member, FailingDisk]]:
    """The third node has a file system of its own, which ends after the node."""
    directory = tmp_path / "cluster"
    data = directory / "node-3"
    with Cluster(directory) as made:
        node = made.nodes[2]
        data = made.data(node)
        made.terminate(node)
        aside = data.rename(tmp_path / "aside")
        data.mkdir(mode=0o700)
        with failing_disk(tmp_path / "image", data) as disk:
            data.chmod(0o700)
            shutil.copytree(aside, data, dirs_exist_ok=True)
            os.sync()  # what fails takes with it what was not synced
            made.restart(node)
            made.wait_healthy()
            try:
                yield made, node, disk
            finally:
                made.kill(node)


def seen(cluster: Cluster, node: Member) -> Any:
    """What the cluster's status says of a node."""
    status = cluster.get("/cluster/status").json
    return next(each for each in status["nodes"] if each["id"] == node.id)


def until(cluster: Cluster, node: Member, disk: str) -> None:
    wait_until(lambda: seen(cluster, node)["disk"] == disk, what=f"a disk that is {disk}", timeout_s=SOON_S)


def test_read_only_disk_takes_a_node_out_and_mended_brings_it_back(
    mounted: tuple[Cluster, Member, FailingDisk],
) -> None:
    cluster, node, disk = mounted
    content = b"stored before" * 1000
    file_uuid, pid = cluster.store(content), cluster.pid(node)
    disk.fail()
    until(cluster, node, "failed")
    told = cluster.get("/cluster/status").json
    assert not told["healthy"]
    assert f"The disk of the node {node.id} cannot be written." in told["problems"]
    assert cluster.filestore("status").returncode == 10
    assert value(families(cluster, node), "filestore_disk_writable") == 0
    assert value(families(cluster, cluster.leader()), "filestore_node_disks", state="failed") == 1
    assert cluster.get("/readyz", node=node, token=None).status == 503
    for number in range(12):
        created = cluster.create(size_bytes=100)
        assert not created["upload_url"].startswith(node.url)
        answer = cluster.request("PUT", created["upload_url"], content=bytes([number]) * 100)
        assert answer.status == 200, answer.body
    assert cluster.get(f"/files/{file_uuid}", node=node).body == content
    assert cluster.pid(node) == pid
    assert "the disk is not writable" in cluster.logs()[node.id]

    cluster.kill(node)
    cluster.restart(node)

    def waits() -> bool:
        lines = [json.loads(line) for line in cluster.logs()[node.id].splitlines() if line.startswith("{")]
        return any("the node starts when it is" in line["message"] for line in lines)

    wait_until(waits, what="the node to wait for its disk", timeout_s=SOON_S)
    disk.unmount()
    disk.mount()
    until(cluster, node, "ok")
    cluster.wait_healthy()
    assert cluster.get(f"/files/{file_uuid}", node=node).body == content
