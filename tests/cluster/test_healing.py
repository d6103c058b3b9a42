"""The cluster heals itself: nodes that die, leaders that die meanwhile, nodes that are drained."""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.model.records import BlobRecord
from metadata.model.replica_records import ReplicaCounts
from metadata.protocol.queries import FindBlob, GetReplicaCounts
from metadata.rpc.client import MetadataClient
from tests.blobs_on_disk import age_all_on, content_on
from tests.cluster.harness import Cluster
from tests.cluster.test_members import as_node

pytestmark = pytest.mark.long  # run by `make long`

FILES = 30
REPLICAS = 3
HEALED_S = 60.0
EMPTY_S = 120.0  # uploads that have ended leave a node within a minute


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Cluster]:
    """Five nodes, three replicas; a node that is silent for three seconds is down."""
    with Cluster(
        tmp_path / "cluster", node_count=5, replicas=REPLICAS, coordinator_options=("--down-after", "3")
    ) as started:
        yield started


def stored(cluster: Cluster) -> dict[str, bytes]:
    """Files with different content, by file_uuid."""
    contents = [os.urandom(200_000) for _ in range(FILES)]
    return {cluster.store(content): content for content in contents}


def holders(cluster: Cluster, content: bytes, nodes: list[Member]) -> set[str]:
    """Which of these nodes have the bytes on their disk."""
    sha256 = hashlib.sha256(content).hexdigest()
    found = set()
    for node in nodes:
        if content_on(cluster.data(node), sha256) == content:
            found.add(node.id)
    return found


async def logged(client: MetadataClient, contents: Iterable[bytes]) -> list[set[str]]:
    """The nodes that the log names for each of these."""
    found = []
    for content in contents:
        query = FindBlob(sha256=hashlib.sha256(content).hexdigest())
        found.append(set((await client.read(query, BlobRecord)).replicas))
    return found


async def until_whole(client: MetadataClient) -> None:
    """Until no blob lacks a replica, and every change of a node's state is worked in."""
    async with asyncio.timeout(HEALED_S):
        while True:
            counts = await client.read(GetReplicaCounts(), ReplicaCounts)
            if not counts.short and not counts.lost and not counts.recounting:
                return
            await asyncio.sleep(0.1)


def state_of(cluster: Cluster, member: Member, asked: Member) -> str:
    nodes = cluster.get("/cluster/status", node=asked).json["nodes"]
    return next(str(node["state"]) for node in nodes if node["id"] == member.id)


def runs_of(cluster: Cluster, job_name: str, asked: Member) -> list[Any]:
    answer = cluster.get(f"/jobs/runs?job_name={job_name}", node=asked)
    return list(answer.json["runs"]) if answer.status == 200 else []


def let_an_hour_pass(cluster: Cluster, member: Member) -> None:
    """As if what lies on a node had come an hour ago: what came just now is kept for a while."""
    age_all_on(cluster.data(member), time.time() - 3600)


def until_state(cluster: Cluster, member: Member, asked: Member, state: str) -> None:
    wait_until(
        lambda: state_of(cluster, member, asked) == state, what=f"{member.id} {state}", timeout_s=HEALED_S
    )


async def test_replicas_of_a_dead_node_come_back_though_the_leader_dies_and_then_the_node_returns(
    five: Cluster,
) -> None:
    files = await asyncio.to_thread(stored, five)
    dead, *living = five.nodes
    asked, leader = living[0], five.leader()
    lost = [content for content in files.values() if holders(five, content, [dead])]
    assert lost
    async with as_node(five, asked) as client:
        five.kill(dead)
        wait_until(lambda: bool(runs_of(five, "repair", asked)), what="a repair", timeout_s=HEALED_S)
        five.kill(leader)
        until_state(five, dead, asked, "down")
        await until_whole(client)
        for content, node_ids in zip(files.values(), await logged(client, files.values()), strict=True):
            assert holders(five, content, living) == node_ids - {dead.id}
            assert len(node_ids - {dead.id}) == REPLICAS
        runs = runs_of(five, "repair", asked)
        assert sum(run["result"].get("copied", 0) for run in runs) <= len(lost)
        assert {run["status"] for run in runs} <= {"completed", "running"}
        five.restart(dead, leader)
        until_state(five, dead, asked, "healthy")
        await until_whole(client)
        assert any(len(node_ids) > REPLICAS for node_ids in await logged(client, files.values()))
        assert released_by_trim(five) > 0
        for content, node_ids in zip(files.values(), await logged(client, files.values()), strict=True):
            assert len(node_ids) >= REPLICAS
            assert holders(five, content, five.nodes) >= node_ids
    for file_uuid, content in list(files.items())[:5]:
        assert five.get(f"/files/{file_uuid}", node=asked).body == content


def released_by_trim(cluster: Cluster) -> int:
    """Replicas that were too many, as long as nobody was told of them just now."""
    for node in cluster.nodes:
        let_an_hour_pass(cluster, node)
    run = cluster.filestore("job", "run", "trim", "--wait")
    assert run.returncode == 0, run.stdout + run.stderr
    return int(json.loads(run.stdout.decode().splitlines()[-1].removeprefix("completed "))["released"])


async def test_drain_goes_on_when_the_leader_and_the_node_die_meanwhile(five: Cluster) -> None:
    files = await asyncio.to_thread(stored, five)
    away, *staying = five.nodes
    let_an_hour_pass(five, away)
    leader = five.leader()
    async with as_node(five, staying[0]) as client:
        assert five.filestore("node", "drain", away.id).returncode == 0
        wait_until(lambda: bool(runs_of(five, "drain", staying[0])), what="a drain", timeout_s=HEALED_S)
        five.kill(leader, away)
        five.restart(away)
        named = await logged(client, files.values())
        assert min(len(node_ids) for node_ids in named) >= 2
    five.restart(leader)
    wait_until(
        lambda: five.filestore("node", "remove", away.id).returncode == 0,
        what="the node is empty, and removed",
        timeout_s=EMPTY_S,
    )
    for content in files.values():
        assert len(holders(five, content, staying)) == REPLICAS
        assert not holders(five, content, [away])
    runs = runs_of(five, "drain", staying[0])
    assert {run["status"] for run in runs} <= {"completed", "running"}
