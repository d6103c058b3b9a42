"""Repair beside nodes that fail at it: one that takes no replica in, one that accepts and never answers."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.storage.partial_store import PARTIALS_MAX
from tests.cluster.harness import Cluster
from tests.cluster.test_healing import HEALED_S, holders, until_state, until_whole
from tests.cluster.test_members import as_node

pytestmark = pytest.mark.long  # run by `make long`

FILES, MANY_FILES = 80, 300
BYTES = 20_000
REPLICAS = 3


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Cluster]:
    """Five nodes, three replicas; a node that is silent for five seconds is down."""
    with Cluster(
        tmp_path / "cluster", node_count=5, replicas=REPLICAS, coordinator_options=("--down-after", "5")
    ) as started:
        yield started


def stored(cluster: Cluster, count: int = FILES) -> list[bytes]:
    contents = [os.urandom(BYTES) for _ in range(count)]
    for content in contents:
        cluster.store(content)
    return contents


@contextmanager
def takes_no_replica(cluster: Cluster, node: Member) -> Iterator[None]:
    """As many replicas are on their way there as it takes at once, and do not come."""
    partials = cluster.data(node) / "partials"
    with ExitStack() as held:
        for number in range(PARTIALS_MAX):
            (partials / f"{number:064x}").mkdir()
            directory = os.open(partials / f"{number:064x}", os.O_RDONLY)
            held.callback(os.close, directory)
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield


def problems(cluster: Cluster, asked: Member) -> list[str]:
    return list(cluster.get("/cluster/status", node=asked).json["problems"])


@pytest.mark.timeout(240)
async def test_node_that_takes_no_replica_is_passed_over_and_named_and_comes_back_by_itself(
    five: Cluster,
) -> None:
    contents = await asyncio.to_thread(stored, five)
    first, second, bad, *others = five.nodes
    async with as_node(five, others[0]) as client:
        with takes_no_replica(five, bad):
            five.kill(first)
            until_state(five, first, others[0], "down")
            await until_whole(client)  # others take what it refuses
            five.kill(second)
            until_state(five, second, others[0], "down")  # now everything must go there
            wait_until(
                lambda: any(f"The node {bad.id} failed" in problem for problem in problems(five, others[0])),
                what="a problem that names it",
                timeout_s=HEALED_S,
            )
        await until_whole(client)
    assert all(len(holders(five, content, [bad, *others])) == REPLICAS for content in contents)
    assert not any(
        "in a row to create its assigned replicas" in problem for problem in problems(five, others[0])
    )


@pytest.mark.timeout(240)
async def test_node_that_stops_while_it_is_repaired_to_holds_nobody_up(five: Cluster) -> None:
    contents = await asyncio.to_thread(stored, five, MANY_FILES)
    dead, hung, *others = five.nodes
    async with as_node(five, others[0]) as client:
        five.kill(dead)
        until_state(five, dead, others[0], "down")
        os.kill(five.pid(hung), signal.SIGSTOP)  # it is a target for three seconds more
        try:
            until_state(five, hung, others[0], "down")
            await until_whole(client)
            for content in contents:
                assert len(holders(five, content, others)) == REPLICAS
        finally:
            os.kill(five.pid(hung), signal.SIGCONT)
