"""A pull waits for nobody who is slow, and tells whoever has ordered it whether it moves."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest

from node.peer import salvage
from node.peer.pulls import Pulls, PullState
from node.storage.segments import SEGMENT_BYTES, FinishedBlob
from tests.unit.peer_nodes import Node, impostor, introduce

SMALL = os.urandom(100_000)
DEADLINE_S = 30.0


@cache
def large_content() -> list[bytes]:
    return [os.urandom(5 * SEGMENT_BYTES + number) for number in range(3)]


def blob_of(content: bytes) -> FinishedBlob:
    return FinishedBlob(hashlib.sha256(content).hexdigest(), len(content))


class Tap:
    """A pace that lets so many pieces through, and then no more until `opened`."""

    def __init__(self) -> None:
        self.opened, self.reached = asyncio.Event(), asyncio.Event()
        self.pieces = asyncio.Semaphore(0)
        self.waiting = 0

    async def keep_pace(self, size_bytes: int) -> None:
        del size_bytes
        if self.opened.is_set():
            return
        self.waiting += 1
        self.reached.set()
        ends = {asyncio.create_task(self.opened.wait()), asyncio.create_task(self.pieces.acquire())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


@asynccontextmanager
async def pulling(node: Node, tap: Tap) -> AsyncIterator[Pulls]:
    services = node.services
    pulls = Pulls(services.fetches, services.blobs, services.disk, tap.keep_pace)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield pulls
    finally:
        await pulls.close()


async def test_small_blob_does_not_wait_for_large_ones(nodes: list[Node]) -> None:
    """Two at a time: whatever came after two large ones was given up by whoever had ordered it."""
    for content in (*large_content(), SMALL):
        nodes[0].store(content)
    tap = Tap()
    async with pulling(nodes[1], tap) as pulls:
        for content in large_content():
            assert not (await pulls.pull(blob_of(content), ["n1"], answer_s=0.0)).is_here
        await tap.reached.wait()
        await nodes[1].services.fetches.fetch_blob(blob_of(SMALL).sha256, len(SMALL), ["n1"])
        assert nodes[1].services.blobs.has(blob_of(SMALL).sha256)
        tap.opened.set()


async def test_pull_that_waits_for_others_moves_while_they_do(nodes: list[Node]) -> None:
    for content in large_content():
        nodes[0].store(content)
    tap = Tap()
    async with pulling(nodes[1], tap) as pulls:

        async def state(content: bytes) -> PullState:
            return await pulls.pull(blob_of(content), ["n1"], answer_s=0.0)

        first = [await state(content) for content in large_content()]
        while tap.waiting < 2:
            await asyncio.sleep(0.01)
        stands = [await state(content) for content in large_content()]
        assert [await state(content) for content in large_content()] == stands
        tap.pieces.release()
        while (await state(large_content()[2])).moved == stands[2].moved:
            await asyncio.sleep(0.01)
        moved = [
            now.moved != then.moved
            for now, then in zip([await state(c) for c in large_content()], stands, strict=True)
        ]
        assert moved in ([True, False, True], [False, True, True])  # one piece of one of the two under way
        tap.opened.set()
        states = [await pulls.pull(blob_of(content), ["n1"]) for content in large_content()]
    assert [each.is_here for each in (*first, *states)] == [False] * 3 + [True] * 3


async def test_source_that_never_answers_holds_up_no_fetch_and_is_named(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvage, "SUMS_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(salvage, "SUMS_S_MAX", 3600.0)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        del reader, writer
        await over.wait()

    nodes[1].store(SMALL)
    async with asyncio.timeout(DEADLINE_S), impostor(nodes[2], hang) as port:
        introduce(nodes, ports={"n3": port})
        state = await nodes[0].services.pulls.pull(blob_of(SMALL), ["n3", "n2"])
    assert (state.is_here, state.failed_sources) == (True, ["n3"])


async def asked(node: Node, target: str, content: bytes, sources: list[str]) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"size_bytes": len(content), "sources": sources}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    path = f"/blobs/{blob_of(content).sha256}/pull"
    async with node.services.peers.request(target, "POST", path, headers=headers, body=chunks()) as answer:
        return answer.status, await answer.json()


@pytest.mark.long
async def test_answer_names_the_sources_that_failed(nodes: list[Node]) -> None:
    nodes[1].store(SMALL)
    status, answer = await asked(nodes[2], "n1", SMALL, ["n3", "n9"])
    assert (status, answer["code"], answer["failed_sources"]) == (503, "unavailable", ["n3", "n9"])
    status, answer = await asked(nodes[2], "n1", SMALL, ["n3", "n2"])
    assert (status, answer["is_here"], answer["failed_sources"]) == (200, True, ["n3"])
