"""Large bodies of peers over real TLS: whole, bounded in memory, with deadlines."""

import asyncio
import hashlib
import os
from contextlib import aclosing

import pytest

from node import bulk
from node.bulk import AHEAD_BYTES, BULK_BYTES_MIN, bulk_pieces
from node.content import sources
from node.content.sources import read_anywhere
from node.peer_body import Piece
from node.peers import PeerFailed
from tests.unit.peer_nodes import Answering, Node, impostor, introduce

CONTENT = os.urandom(24_000_001)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


async def received(node: Node, *, start: int = 0, stop: int = len(CONTENT), stall_s: float = 5.0) -> bytes:
    headers = {"Range": f"bytes={start}-{stop - 1}"}
    async with node.services.peers.request("n2", "GET", f"/blobs/{SHA256}", headers=headers) as answer:
        body = bulk_pieces("n2", answer, stop - start, stall_timeout_s=stall_s)
        async with aclosing(body):
            return b"".join([piece async for piece in body])


async def download(node: Node, replicas: list[str], start: int, stop: int) -> list[Piece]:
    async with aclosing(read_anywhere(node.services, SHA256, replicas, start, stop)) as reading:
        return [piece async for piece in reading]


def sending(part: bytes, length: int, *, more: bytes = b"") -> Answering:
    """Promises `length` bytes, sends `part`, then `more` or nothing until the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % length)
        writer.write(part)
        await writer.drain()
        if not more:
            await over.wait()
        writer.write(more)

    return serve


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, len(CONTENT)), (7, len(CONTENT) - 9), (0, BULK_BYTES_MIN), (0, BULK_BYTES_MIN - 1), (5, 6)],
)
async def test_body_comes_whole(nodes: list[Node], start: int, stop: int) -> None:
    nodes[1].store(CONTENT)
    assert await received(nodes[0], start=start, stop=stop) == CONTENT[start:stop]


async def test_slow_reader_gets_all_and_the_peer_waits_for_it(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is longer than the deadline: only waiting for the peer counts."""
    most = 0

    class Watched(bulk._BulkBody):
        def buffer_updated(self, nbytes: int) -> None:
            nonlocal most
            super().buffer_updated(nbytes)
            most = max(most, self._held_bytes)

    monkeypatch.setattr(bulk, "_BulkBody", Watched)
    nodes[1].store(CONTENT)
    headers, content = {"Range": f"bytes=0-{len(CONTENT) - 1}"}, bytearray()
    request = nodes[0].services.peers.request(
        "n2", "GET", f"/blobs/{SHA256}", headers=headers, answer_timeout_s=0.5
    )
    async with (
        request as answer,
        aclosing(bulk_pieces("n2", answer, len(CONTENT), stall_timeout_s=0.5)) as body,
    ):
        async for piece in body:
            if not content:
                await asyncio.sleep(1.5)  # the slowness under test
            content += piece
    assert content == CONTENT
    assert AHEAD_BYTES <= most <= AHEAD_BYTES + bulk.BUFFER_BYTES


async def test_connection_that_breaks_is_a_failed_peer(nodes: list[Node]) -> None:
    async with impostor(nodes[1], sending(CONTENT[:9_000_000], len(CONTENT), more=b"x")) as port:
        introduce(nodes, ports={"n2": port})
        with pytest.raises(PeerFailed):
            await received(nodes[0])


async def test_peer_that_falls_silent_is_a_failed_peer(nodes: list[Node]) -> None:
    async with impostor(nodes[1], sending(CONTENT[:9_000_000], len(CONTENT))) as port:
        introduce(nodes, ports={"n2": port})
        with pytest.raises(PeerFailed):
            await received(nodes[0], stall_s=0.3)


async def test_bytes_beyond_the_body_are_dropped(nodes: list[Node]) -> None:
    async with impostor(nodes[1], sending(CONTENT, len(CONTENT), more=b"x" * 1000)) as port:
        introduce(nodes, ports={"n2": port})
        assert await received(nodes[0]) == CONTENT


async def test_download_goes_on_elsewhere_from_the_byte_where_a_peer_stopped(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ANSWER_TIMEOUT_S", 0.5)
    nodes[2].store(CONTENT)
    async with impostor(nodes[1], sending(CONTENT[:9_000_000], len(CONTENT))) as port:
        introduce(nodes, ports={"n2": port})
        for _ in range(3):  # the order of peers is random
            assert b"".join(await download(nodes[0], ["n2", "n3"], 0, len(CONTENT))) == CONTENT


async def test_client_that_leaves_early_leaves_no_connection_behind(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    reading = read_anywhere(nodes[0].services, SHA256, ["n2"], 0, len(CONTENT))
    async with aclosing(reading):
        assert len(await anext(reading)) > 0
    session = nodes[0].services.peers._session
    assert session is not None
    assert session.connector is not None
    assert not session.connector._acquired
