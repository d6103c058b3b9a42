"""A copy of a node's directory that is started beside the node, or instead of it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.dev_cluster import Member
from deploy.processes import Child, free_ports, is_ready, start_child, stop_children, wait_until
from tests.cluster.harness import Cluster

pytestmark = pytest.mark.long  # run by `make long`

CONTENT = b"held by every node"


def copied(cluster: Cluster, node: Member, target: Path) -> Path:
    """The directory without what it holds, to listen elsewhere: two cannot share a port of this machine."""
    shutil.copytree(cluster.data(node), target, ignore=shutil.ignore_patterns("blobs", "run"))
    config = msgspec.json.decode((target / "node.json").read_bytes(), type=dict[str, Any])
    config["api_port"], config["peer_port"] = free_ports(2)
    (target / "node.json").write_bytes(msgspec.json.encode(config))
    return target


def port_of(data: Path) -> int:
    return int(msgspec.json.decode((data / "node.json").read_bytes(), type=dict[str, Any])["api_port"])


@contextmanager
def running(data: Path) -> Iterator[Child]:
    child = start_child("copy", ["node", "run", "--data", str(data)], data.with_suffix(".log"))
    try:
        yield child
    finally:
        stop_children([child])


def seen(cluster: Cluster, node: Member, asked: Member) -> dict[str, Any]:
    nodes = cluster.get("/cluster/status", node=asked).json["nodes"]
    return next(each for each in nodes if each["id"] == node.id)


def rival(cluster: Cluster, node: Member, asked: Member) -> str:
    return str(seen(cluster, node, asked)["rival"])


def metric(cluster: Cluster, member: Member, name: str) -> float:
    lines = cluster.request("GET", f"{member.url}/metrics").body.decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))


def test_copy_of_a_node_is_refused_while_the_node_runs_and_takes_its_place_when_it_does_not(
    mended: Cluster, tmp_path: Path
) -> None:
    cluster, (asked, node) = mended, mended.nodes[:2]
    cluster.store_everywhere(CONTENT)
    before = cluster.get(f"/cluster/nodes/{node.id}").json
    copy = copied(cluster, node, tmp_path / "copy")
    with running(copy):
        wait_until(lambda: bool(rival(cluster, node, asked)), what="a word of the copy", timeout_s=30)
        assert not is_ready(port_of(copy), cluster.context)
        answer = cluster.get("/cluster/status", node=asked).json
        assert answer["health"] == "degraded"
        assert any("second process" in problem for problem in answer["problems"])
        assert metric(cluster, cluster.leader(), "filestore_nodes_contested") == 1
        assert seen(cluster, node, asked)["state"] == "healthy"
        assert cluster.get(f"/cluster/nodes/{node.id}").json == before
        assert not any(answer["replicas"]["short"].values())  # nothing was reported lost
        assert is_ready(node.api_port, cluster.context)
    cluster.kill(node)
    cluster.restart(node)  # which the copy has not overtaken: the same directory says that it had ended
    cluster.wait_healthy()
    cluster.terminate(node)
    with running(copy):  # nobody else speaks for the node any more
        wait_until(lambda: is_ready(port_of(copy), cluster.context), what="the copy", timeout_s=30)
        cluster.restart(node)
        wait_until(lambda: "old copy" in rival(cluster, node, asked), what="a refusal", timeout_s=30)
        assert not is_ready(node.api_port, cluster.context)
    answer = cluster.filestore("node", "forget-instance", node.id)
    assert answer.returncode == 0, answer.stderr
    wait_until(lambda: is_ready(node.api_port, cluster.context), what="the node", timeout_s=30)
    cluster.wait_healthy()
