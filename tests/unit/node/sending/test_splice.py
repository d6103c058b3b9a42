"""Large bodies of peers over real TLS: whole, bounded in memory, with deadlines."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from node.content import sources
from node.content.sources import read_anywhere, read_pieces
from node.peer.client import PeerFailed
from node.peer.request_body import Piece
from node.sending.splice import BULK_BYTES_MIN, Flow, bulk_pieces
from tests.unit.peer_nodes import Answering, Node, impostor, introduce, taken
from web.app import ClientGone

CONTENT = os.urandom(24_000_001)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@asynccontextmanager
async def answered(
    node: Node, *, start: int = 0, stop: int = len(CONTENT), stall_s: float = 5.0
) -> AsyncIterator[AsyncGenerator[Piece | Flow, None]]:
    """The body of what n2 answers."""
    headers = {"Range": f"bytes={start}-{stop - 1}"}
    counter = node.services.metrics.replica_bytes.labels("received")
    async with node.services.peers.request("n2", "GET", f"/blobs/{SHA256}", headers=headers) as answer:
        body = bulk_pieces("n2", answer, stop - start, counter, stall_timeout_s=stall_s)
        async with aclosing(body):
            yield body


async def received(node: Node, *, start: int = 0, stop: int = len(CONTENT), stall_s: float = 5.0) -> bytes:
    async with answered(node, start=start, stop=stop, stall_s=stall_s) as body:
        return await taken(body)


async def flow_of(body: AsyncGenerator[Piece | Flow, None]) -> tuple[bytes, Flow]:
    """What comes before it, and the flow."""
    before = b""
    async for piece in body:
        if isinstance(piece, Flow):
            return before, piece
        before += piece
    raise AssertionError("no flow came")


async def download(node: Node, replicas: list[str], start: int, stop: int) -> bytes:
    async with aclosing(read_anywhere(node.services, SHA256, replicas, start, stop)) as reading:
        return await taken(reading)


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


async def test_slow_reader_gets_all_and_nothing_while_it_has_no_room(nodes: list[Node]) -> None:
    """The pause is longer than the deadline: only waiting for the peer counts."""
    nodes[1].store(CONTENT)
    has_room, pauses = True, 0
    async with answered(nodes[0], stall_s=0.5) as body:
        before, flow = await flow_of(body)
        content = bytearray(before)

        def take(data: memoryview) -> bool:
            nonlocal has_room
            assert has_room
            content.extend(data)
            has_room = len(content) < 1_000_000 * (pauses + 1)
            return has_room

        async def room() -> None:
            nonlocal has_room, pauses
            pauses += 1
            if pauses == 1:
                await asyncio.sleep(1.5)  # the slowness under test
            has_room = True

        await flow.pour(take, room)
        assert await anext(body, None) is None
    assert content == CONTENT
    assert pauses > 10


async def test_taker_that_fails_is_told_so_and_gets_no_more(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    counts: list[int] = []

    def take(data: memoryview) -> bool:
        counts.append(len(data))
        raise ClientGone("went away")

    async with answered(nodes[0]) as body:
        _, flow = await flow_of(body)
        with pytest.raises(ClientGone):
            await flow.pour(take, _nobody_waits)
    assert len(counts) == 1
    assert not flow.is_over


async def test_bytes_that_nobody_takes_end_the_flow(nodes: list[Node]) -> None:
    """Those behind them would be taken for them."""
    nodes[1].store(CONTENT)
    async with answered(nodes[0]) as body:
        _, flow = await flow_of(body)
        flow.buffer_updated(len(flow.get_buffer(-1)))
        await flow.pour(lambda _: True, _nobody_waits)
        assert flow.poured_bytes == 0
        with pytest.raises(PeerFailed):
            await anext(body)


async def test_bytes_are_counted_once_they_are_taken(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    labels = {"direction": "received"}
    await received(nodes[0])
    assert nodes[0].registry.get_sample_value("filestore_replica_bytes_total", labels) == len(CONTENT)


async def test_who_does_not_pour_gets_pieces(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    async with aclosing(read_pieces(nodes[0].services, SHA256, ["n2"], 3, len(CONTENT))) as reading:
        assert b"".join([piece async for piece in reading]) == CONTENT[3:]


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
            assert await download(nodes[0], ["n2", "n3"], 0, len(CONTENT)) == CONTENT


async def test_client_that_leaves_early_leaves_no_connection_behind(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    reading = read_anywhere(nodes[0].services, SHA256, ["n2"], 0, len(CONTENT))
    async with aclosing(reading):
        await flow_of(reading)
    session = nodes[0].services.peers._session
    assert session is not None
    assert session.connector is not None
    assert not session.connector._acquired


async def _nobody_waits() -> None:
    raise AssertionError("a taker that failed does not wait for room")
