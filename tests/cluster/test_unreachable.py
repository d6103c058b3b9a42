"""A node that lives and tells the coordinators so, and that no other node can connect to."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.cut_shim import network_cuts
from tests.cluster.harness import Cluster
from tests.cluster.upload_steps import Steps

MIB = 1 << 20
SIZE = 6 * MIB


def state_of(cluster: Cluster, node: Member, asked: Member) -> str:
    nodes = cluster.get("/cluster/status", node=asked).json["nodes"]
    return next(str(each["state"]) for each in nodes if each["id"] == node.id)


@pytest.mark.long
def test_unreachable_node_gets_nothing_new_and_its_uploads_go_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall before its peer port: what other nodes send there is lost."""
    cuts = network_cuts(tmp_path, monkeypatch)
    with Cluster(tmp_path / "cluster") as cluster, ExitStack() as firewall:
        steps = Steps(cluster, os.urandom(SIZE))
        assert steps.patch(0, 2 * MIB).status == 204
        asked = steps.others[0]
        for other in steps.others:
            firewall.enter_context(cuts.between(cluster.pid(other), steps.holder.peer_port))
        wait_until(
            lambda: state_of(cluster, steps.holder, asked) == "unreachable",
            what="the others' word",
            timeout_s=30,
        )
        assert steps.patch_until_taken(2 * MIB, SIZE, asked).status == 204
        assert steps.stored(asked) == steps.content
        holders = {Steps(cluster, b"new").holder.id for _ in range(12)}
        assert holders == {node.id for node in steps.others}
        firewall.close()
        cluster.wait_healthy()
        wait_until(
            lambda: Steps(cluster, b"new").holder == steps.holder, what="files there again", timeout_s=30
        )
