"""Bodies of requests to peers, over real TLS: framed as they should be, and no faster than they are taken."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from node.peer import client
from node.peer.client import PeerFailed
from node.peer.request_body import ByteSpan, Piece
from tests.unit.peer_nodes import Answering, Node, impostor, introduce

UNTAKEN_BYTES_MAX = 16 << 20  # in the buffers of two processes and of the kernel
_DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Bytes:
    """A stretch that is read in parts of this size, each second of which has to be waited for."""

    content: bytes
    part_bytes: int
    read_bytes: int = 0
    reads: int = 0

    def __len__(self) -> int:
        return len(self.content)

    def read_now(self, start: int) -> bytes:
        self.reads += 1
        return self._read(start) if self.reads % 2 else b""

    async def read(self, start: int) -> bytes:
        return self._read(start)

    def _read(self, start: int) -> bytes:
        piece = self.content[start : start + self.part_bytes]
        self.read_bytes += len(piece)
        return piece


async def each(*parts: Piece | ByteSpan) -> AsyncIterator[Piece | ByteSpan]:
    for part in parts:
        yield part


def keeping(bodies: list[bytes]) -> Answering:
    """Takes a body in chunks as RFC 9112 has them, byte by byte of its framing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _over: asyncio.Event) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        body = b""
        while size_bytes := int((await reader.readuntil(b"\r\n")).strip(), 16):
            body += await reader.readexactly(size_bytes)
            assert await reader.readexactly(2) == b"\r\n"
        assert await reader.readexactly(2) == b"\r\n"
        bodies.append(body)
        writer.write(_DONE)

    return serve


async def put(
    node: Node, body: AsyncIterator[Piece | ByteSpan], headers: dict[str, str] | None = None
) -> int:
    asking = node.services.peers.request("n3", "PUT", "/anything", headers=headers, body=body)
    async with asking as answer:
        return answer.status


async def test_bytes_and_stretches_are_chunks_of_one_body(nodes: list[Node]) -> None:
    contents = [os.urandom(size) for size in (1, 300_000, 70_000, 1_000_000)]
    bodies: list[bytes] = []
    async with impostor(nodes[2], keeping(bodies)) as port:
        introduce(nodes, ports={"n3": port})
        parts: list[Piece | ByteSpan] = [contents[0], Bytes(contents[1], 65536), b"", bytearray(contents[2])]
        assert await put(nodes[0], each(*parts, Bytes(contents[3], 99_999))) == 200
        assert await put(nodes[0], each(Bytes(contents[1], 7777))) == 200  # nothing to send the head with
        assert await put(nodes[0], each()) == 200
    assert bodies == [b"".join(contents), contents[1], b""]


async def test_known_length_is_sent_as_it_is(nodes: list[Node]) -> None:
    content = os.urandom(500_000)
    sha256 = hashlib.sha256(content).hexdigest()
    headers = {"Content-Length": str(len(content))}
    body = each(content[:100_000], Bytes(content[100_000:300_000], 65536), content[300_000:])
    asking = nodes[0].services.peers.request("n3", "PUT", f"/blobs/{sha256}", headers=headers, body=body)
    async with asking as answer:
        assert answer.status == 200
    with nodes[2].services.blobs.open(sha256) as blob:
        assert os.pread(blob.fd, len(content), 0) == content


async def test_body_beyond_its_length_is_not_sent(nodes: list[Node]) -> None:
    """Its end would be taken for the next request."""
    headers = {"Content-Length": "10"}
    for body in (each(b"12345", b"678901"), each(Bytes(b"12345678901", 11))):
        with pytest.raises(PeerFailed):
            await put(nodes[0], body, headers)


async def test_stretch_waits_for_a_peer_that_takes_nothing(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STALL_TIMEOUT_S", 1.0)

    async def take_nothing(
        _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, over: asyncio.Event
    ) -> None:
        await over.wait()

    async with impostor(nodes[2], take_nothing) as port:
        introduce(nodes, ports={"n3": port})
        span = Bytes(bytes(64 << 20), 65536)
        with pytest.raises(PeerFailed):
            await put(nodes[0], each(span))
        assert 0 < span.read_bytes < UNTAKEN_BYTES_MAX


async def test_request_whose_body_was_begun_is_not_repeated_without_it(nodes: list[Node]) -> None:
    """aiohttp repeats a PUT whose connection ended before the answer: of this one only the rest is left."""
    heads: list[bytes] = []

    async def break_off(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _over: asyncio.Event
    ) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if len(heads) == 1:  # the first request is answered, the second is not: its connection was kept
            writer.write(_DONE)
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.transport.abort()
            return
        while await reader.readuntil(b"\r\n") != b"0\r\n":
            pass
        writer.write(_DONE)

    async def slowly() -> AsyncIterator[Piece | ByteSpan]:
        yield b""
        for number in range(5):
            yield bytes([number]) * 1000
            await asyncio.sleep(0.02)  # as bytes of a client come

    async with impostor(nodes[2], break_off) as port:
        introduce(nodes, ports={"n3": port})
        asking = nodes[0].services.peers.request("n3", "HEAD", "/anything")
        async with asking as answer:
            assert answer.status == 200
        with pytest.raises(PeerFailed):
            await put(nodes[0], slowly())
    assert len(heads) == 2


async def test_body_that_is_given_up_closes_what_it_reads_from(nodes: list[Node]) -> None:
    closed = asyncio.Event()

    async def reading() -> AsyncIterator[Piece | ByteSpan]:
        try:
            while True:
                yield bytes(1000)
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    async def break_off(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _over: asyncio.Event
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    async with impostor(nodes[2], break_off) as port:
        introduce(nodes, ports={"n3": port})
        with pytest.raises(PeerFailed):
            await put(nodes[0], reading())
        async with asyncio.timeout(5):
            await closed.wait()
