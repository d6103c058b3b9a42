"""Bodies that are sent: to slow clients whole, to dead ones not for ever, and never short in silence."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.http_writer import StreamWriter

from ca.errors import Unavailable
from node.sending import body_writer
from node.sending.body_writer import BodyWriter
from tests.unit.hot_node import asking, exchange, hot_node, record
from tests.unit.peer_nodes import CONTENT, Node
from tests.unit.standstill import again_after_standstill
from web.app import new_application, serve
from web.internals.aiohttp_server import BodyResponse

SIZE_BYTES = 64 << 20  # more than the kernel's buffers on both sides take


async def answer_of(body: AsyncIterator[bytes], done: asyncio.Event) -> web.Application:
    """A server that answers every GET with this body."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = BodyResponse()
        response.content_length = SIZE_BYTES
        try:
            with BodyWriter.for_response(request, response) as out:
                await out.send(body)
                await out.end()
        finally:
            done.set()
        return response

    return new_application([web.get("/", handler, allow_head=False)], component="test")


async def zeros(size_bytes: int) -> AsyncIterator[bytes]:
    piece = bytes(1 << 18)
    for _ in range(size_bytes // len(piece)):
        yield piece


async def failing(size_bytes: int) -> AsyncIterator[bytes]:
    async for piece in zeros(size_bytes):
        yield piece
    raise Unavailable("no replica is left")


async def test_client_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_writer, "STALL_TIMEOUT_S", 0.1)
    done = asyncio.Event()
    listener = await serve(
        await answer_of(zeros(SIZE_BYTES), done), host="127.0.0.1", port=0, ssl_context=None
    )
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        await done.wait()
    writer.close()
    await listener.close()


@again_after_standstill(0.2)
async def test_slow_client_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_writer, "STALL_TIMEOUT_S", 0.4)
    listener = await serve(
        await answer_of(zeros(SIZE_BYTES), asyncio.Event()), host="127.0.0.1", port=0, ssl_context=None
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 16)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        received_bytes, started_s = 0, asyncio.get_running_loop().time()
        while received_bytes < SIZE_BYTES:
            piece = await reader.read(1 << 19)
            assert piece, "cut off"
            received_bytes += len(piece)
            await asyncio.sleep(0.01)  # the slowness under test
        assert asyncio.get_running_loop().time() - started_s > 0.8
    finally:
        writer.close()
        await listener.close()


async def test_body_that_fails_in_the_middle_breaks_the_connection() -> None:
    listener = await serve(
        await answer_of(failing(1 << 20), asyncio.Event()), host="127.0.0.1", port=0, ssl_context=None
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert f"Content-Length: {SIZE_BYTES}".encode() in head
    assert len(await reader.read()) == 1 << 20
    writer.close()
    await listener.close()


async def test_body_that_fails_at_once_is_an_error_answer() -> None:
    listener = await serve(
        await answer_of(failing(0), asyncio.Event()), host="127.0.0.1", port=0, ssl_context=None
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
    writer.close()
    await listener.close()


@pytest.mark.parametrize("name", ["send_headers", "write_eof"])
async def test_file_whose_head_aiohttp_sends_again_breaks_the_connection_and_is_told(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """As a release of aiohttp would have it that keeps the head in another place."""
    nodes[0].store()
    async with hot_node(nodes[0], record(["n1"])) as running:
        whole = await exchange(running.ordinary, [asking("Connection: close")])
        assert whole.endswith(b"\r\n\r\n" + CONTENT)
        ordinary = getattr(StreamWriter, name)
        again = b"HTTP/1.1 200 OK\r\n\r\n"

        def changed(writer: StreamWriter, *arguments: bytes) -> object:
            writer._write(again)
            return ordinary(writer, *arguments)

        monkeypatch.setattr(StreamWriter, name, changed)
        spoilt = await exchange(running.ordinary, [asking("Connection: close")])
        assert spoilt.count(again) == 1
        assert spoilt.count(CONTENT) == (1 if name == "write_eof" else 0), "what is out is out"
    assert "aiohttp sent the head of an answer again" in "".join(str(vars(told)) for told in caplog.records)
