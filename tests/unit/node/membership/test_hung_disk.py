"""A disk that begins and does not end: the node says so, its clients are let go, and others are asked."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from node.diskio import probe
from node.membership import disk_monitor
from node.membership.disk_monitor import DiskWatch
from node.uploads.succession import is_reachable
from tests.unit.peer_nodes import CONTENT, Node, download

UUID = "0199c5a2-0000-7000-8000-000000000001"
DEADLINE_S = 60.0


@contextmanager
def hanging(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No sync of this node ends before the block does."""
    goes_on = threading.Event()

    def hang(_descriptor: int) -> None:
        goes_on.wait()

    blobs = node.services.blobs
    with monkeypatch.context() as changed:
        changed.setattr(blobs, "disk", dataclasses.replace(blobs.disk, fsync=hang, fdatasync=hang))
        try:
            yield
        finally:
            goes_on.set()


@asynccontextmanager
async def watched(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DiskWatch]:
    monkeypatch.setattr(disk_monitor, "HANG_S", 0.2)
    monkeypatch.setattr(disk_monitor, "LOOK_S", 0.05)
    monkeypatch.setattr(disk_monitor, "PROBE_S", 0.0)
    services = node.services
    watching = DiskWatch(services.disk, services.blobs, services.locks)
    running = asyncio.create_task(watching.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield watching
    finally:
        running.cancel()
        await asyncio.wait({running})


async def until(watching: DiskWatch, *, hangs: bool) -> None:
    while watching.hangs() != hangs:
        await asyncio.sleep(0.01)


async def test_disk_that_hangs_takes_no_bytes_until_it_goes_on(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = nodes[0], nodes[1]
    async with watched(node, monkeypatch) as watching:
        while not watching.is_writable():
            await asyncio.sleep(0.01)
        assert await is_reachable(other.services, "n1")
        with hanging(node, monkeypatch):
            await until(watching, hangs=True)
            assert not watching.heartbeat().takes_bytes
            assert not await is_reachable(other.services, "n1")  # it can go on with no upload
        await until(watching, hangs=False)
        while not watching.heartbeat().takes_bytes:
            await asyncio.sleep(0.01)
        assert await is_reachable(other.services, "n1")


async def test_disk_hangs_as_well_while_others_try_it(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch finds that a peer has it tried already: that one waits, and the watch is refused at once."""
    monkeypatch.setattr(probe, "WAIT_S", 0.01)
    node, other = nodes[0], nodes[1]
    async with watched(node, monkeypatch) as watching:
        while not watching.is_writable():
            await asyncio.sleep(0.01)
        with hanging(node, monkeypatch):
            asked = node.services.disk.begin(node.services.blobs.probe)
            await until(watching, hangs=True)
            assert not await is_reachable(other.services, "n1")
        await asyncio.wrap_future(asked)
        await until(watching, hangs=False)


async def test_who_waits_for_a_disk_that_hangs_is_let_go(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, let_go = nodes[0], asyncio.Event()
    async with watched(node, monkeypatch), node.services.locks.lock(UUID, lambda: True, let_go.set):
        with hanging(node, monkeypatch):
            await let_go.wait()


async def test_content_comes_from_elsewhere_while_the_disk_hangs(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in nodes[:2]:
        node.store()
    async with watched(nodes[0], monkeypatch) as watching:
        with hanging(nodes[0], monkeypatch):
            await until(watching, hangs=True)
            assert await download(nodes[0], ["n1", "n2"]) == CONTENT
        assert nodes[0].services.metrics.download_bytes.labels("local")._value.get() == 0
        assert nodes[0].services.metrics.download_bytes.labels("peer")._value.get() == len(CONTENT)
