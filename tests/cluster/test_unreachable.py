"""A node that lives and tells the coordinators so, and that no other node can connect to."""

import asyncio
import os

from coordinator.commands import AnnounceNode
from coordinator.records import NodeRecord
from deploy.development import Member
from deploy.processes import free_ports, wait_until
from tests.cluster.harness import Cluster
from tests.cluster.test_members import as_node
from tests.cluster.upload_steps import Steps

MIB = 1 << 20
SIZE = 6 * MIB


def state_of(cluster: Cluster, node: Member, asked: Member) -> str:
    nodes = cluster.get("/cluster/status", node=asked).json["nodes"]
    return next(str(each["state"]) for each in nodes if each["id"] == node.id)


async def announce(cluster: Cluster, node: Member, peer_port: int) -> None:
    """Let the others look for it at that port, as if a firewall stood before its own."""
    async with as_node(cluster, node) as client:
        command = AnnounceNode(node_id=node.id, peer_port=peer_port, zone="", weight=100)
        await client.propose(command, NodeRecord)


def test_unreachable_node_gets_nothing_new_and_its_uploads_go_on_elsewhere(
    own_cluster: Cluster,
) -> None:
    steps = Steps(own_cluster, os.urandom(SIZE))
    assert steps.patch(0, 2 * MIB).status == 204
    asked = steps.others[0]
    asyncio.run(announce(own_cluster, steps.holder, free_ports(1)[0]))
    wait_until(
        lambda: state_of(own_cluster, steps.holder, asked) == "unreachable",
        what="the others' word",
        timeout_s=30,
    )
    assert steps.patch_until_taken(2 * MIB, SIZE, asked).status == 204
    assert steps.stored(asked) == steps.content
    holders = {Steps(own_cluster, b"new").holder.id for _ in range(12)}
    assert holders == {node.id for node in steps.others}
    own_cluster.terminate(steps.holder)
    own_cluster.restart(steps.holder)  # it announces its own port
    own_cluster.wait_healthy()
    wait_until(
        lambda: Steps(own_cluster, b"new").holder == steps.holder, what="files there again", timeout_s=30
    )
