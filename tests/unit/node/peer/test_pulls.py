"""Replicas that are fetched by order: answered in time, and fetched no longer than somebody wants them."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator

import pytest

from ca.errors import Unavailable
from node.peer import pulls
from node.peer.pulls import Pulls
from node.storage.segments import FinishedBlob
from tests.unit.peer_nodes import CONTENT, SHA256, Node

BLOB = FinishedBlob(SHA256, len(CONTENT))


class Gate:
    """A pace that lets nothing through before it is opened."""

    def __init__(self) -> None:
        self.opened, self.reached = asyncio.Event(), asyncio.Event()

    async def keep_pace(self, size_bytes: int) -> None:
        del size_bytes
        self.reached.set()
        await self.opened.wait()


def slow_pulls(node: Node, gate: Gate) -> Pulls:
    services = node.services
    return Pulls(services.fetches, services.blobs, services.disk, gate.keep_pace)


async def test_pull_that_takes_long_is_under_way_and_then_here(nodes: list[Node]) -> None:
    nodes[0].store()
    gate = Gate()
    slow = slow_pulls(nodes[1], gate)
    assert not (await slow.pull(BLOB, ["n1"], answer_s=0.0)).is_here
    await gate.reached.wait()
    assert not (await slow.pull(BLOB, ["n1"], answer_s=0.0)).is_here
    gate.opened.set()
    assert (await slow.pull(BLOB, ["n1"])).is_here
    assert nodes[1].blob_path().read_bytes() == CONTENT
    await slow.close()


async def test_pull_that_nobody_asks_for_any_more_ends(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "LINGER_S", 0.0)
    nodes[0].store()
    gate = Gate()
    slow = slow_pulls(nodes[1], gate)
    assert not (await slow.pull(BLOB, ["n1"], answer_s=0.0)).is_here
    while slow._works:
        await asyncio.sleep(0)
    gate.opened.set()
    assert (await slow.pull(BLOB, ["n1"])).is_here  # begun anew
    await slow.close()


async def test_pull_without_a_source_is_unavailable(nodes: list[Node]) -> None:
    with pytest.raises(Unavailable):
        await nodes[1].services.pulls.pull(BLOB, ["n1", "n3"])


async def test_replica_that_was_pulled_is_affirmed(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        node.store()
    sidecar = nodes[1].blob_path().with_name(SHA256 + ".sums")
    os.utime(sidecar, (0, 0))
    body = json.dumps({"size_bytes": len(CONTENT), "sources": ["n1"]}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    path = f"/blobs/{SHA256}/pull"
    async with nodes[0].services.peers.request("n2", "POST", path, headers=headers, body=chunks()) as answer:
        assert answer.status == 200
    assert abs(time.time() - sidecar.stat().st_mtime) < 3600


@pytest.mark.parametrize("query", ["", "?verify=1"])
async def test_only_a_verified_answer_affirms(nodes: list[Node], query: str) -> None:
    nodes[1].store()
    sidecar = nodes[1].blob_path().with_name(SHA256 + ".sums")
    os.utime(sidecar, (0, 0))
    async with nodes[0].services.peers.request("n2", "HEAD", f"/blobs/{SHA256}{query}") as answer:
        assert answer.status == 200
    assert (sidecar.stat().st_mtime > 0) == bool(query)
