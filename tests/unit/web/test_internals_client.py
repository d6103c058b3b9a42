"""The canary of aiohttp's client: no request is sent twice, or on a connection that has failed before."""

import asyncio
import functools
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_writer import StreamWriter
from aiohttp.payload import AsyncIterablePayload, Payload

from web.internals.aiohttp_client import BodySentOnce, FreshConnector, send_head
from web.internals.library_changed import LibraryChanged

YES = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"


class Server:
    """Answers as many requests of each connection as it is told, and breaks it off in the next one."""

    def __init__(self, answers_each: int) -> None:
        self.answers_each = answers_each
        self.bodies: list[bytes] = []  # of each request that came whole, or at least its head
        self.connections = 0
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for at in range(self.answers_each + 1):
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                self.bodies.append(await reader.readexactly(int(length[1]) if length else 0))
                if at < self.answers_each:
                    writer.write(YES)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


class Watched(FreshConnector):
    """Keeps what it hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.protocols: list[ResponseHandler | None] = []

    async def connect(self, *request: Any, **options: Any) -> aiohttp.connector.Connection:
        connection = await super().connect(*request, **options)
        self.protocols.append(connection.protocol)
        return connection


@asynccontextmanager
async def served(answers_each: int) -> AsyncIterator[tuple[Server, aiohttp.ClientSession]]:
    server = Server(answers_each)
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    try:
        async with aiohttp.ClientSession(connector=Watched()) as session:
            yield server, session
    finally:
        listening.close()


class Body(BodySentOnce):
    """Five bytes, behind a head that was sent alone."""

    def __init__(self) -> None:
        self.pieces = five_bytes()
        super().__init__(self.pieces)

    async def send(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        assert content_length == 5
        await send_head(writer)
        assert writer.output_size > 50, "the head of the request is out"
        async for piece in self.pieces:
            await writer.write(piece)


async def five_bytes() -> AsyncGenerator[bytes, None]:
    yield b"123"
    yield b"45"


async def put(session: aiohttp.ClientSession, url: str, body: Payload | bytes) -> bytes:
    async with session.put(url, data=body, headers={"Content-Length": "5"}) as answer:
        return await answer.read()


async def test_body_that_was_begun_is_not_sent_again() -> None:
    async with served(answers_each=1) as (server, session):
        assert await put(session, server.url, Body()) == b"yes"
        with pytest.raises(aiohttp.ClientError):
            await put(session, server.url, Body())
        assert server.bodies == [b"12345", b"12345"]
        assert server.connections == 1


async def test_body_of_bytes_is_sent_again_by_aiohttp() -> None:
    """What makes the others worth trying: should this fail, nothing of the kind is needed any more."""
    async with served(answers_each=1) as (server, session):
        assert await put(session, server.url, b"12345") == b"yes"
        assert await put(session, server.url, b"67890") == b"yes"
        assert server.bodies == [b"12345", b"67890", b"67890"]
        assert server.connections == 2


@pytest.mark.parametrize("changed", ["consumed is not asked", "consumed has another name"])
async def test_body_that_would_be_sent_again_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, changed: str
) -> None:
    """As a release of aiohttp would have it that no longer looks at what says so."""
    if changed == "consumed is not asked":
        monkeypatch.setattr(Payload, "consumed", property(lambda _: False))
    else:
        monkeypatch.setattr(Payload, "consumed", property(lambda body: getattr(body, "_is_consumed", False)))
    async with served(answers_each=1) as (server, session):
        assert await put(session, server.url, Body()) == b"yes"
        with pytest.raises(aiohttp.ClientError) as met:
            await put(session, server.url, Body())
        assert isinstance(met.value.__cause__, LibraryChanged)
        assert server.bodies == [b"12345", b"12345"], "nothing was sent again, not even a head"
    assert "aiohttp sends a request again" in "".join(str(vars(record)) for record in caplog.records)


async def test_body_is_written_by_what_we_override() -> None:
    assert AsyncIterablePayload.write_with_length is not BodySentOnce.write_with_length
    assert Body().consumed is False
    body = Body()
    body._consumed = True
    assert body.consumed is True


async def test_head_of_a_request_that_is_kept_back_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = StreamWriter.write

    async def only_bytes(writer: StreamWriter, chunk: bytes) -> None:
        if chunk:
            await write(writer, chunk)

    monkeypatch.setattr(StreamWriter, "write", only_bytes)
    async with served(answers_each=1) as (server, session):
        with pytest.raises(aiohttp.ClientError) as met:
            await put(session, server.url, Body())
        assert isinstance(met.value.__cause__, LibraryChanged)
        assert server.bodies == []
    assert "its body would go before it" in "".join(str(vars(record)) for record in caplog.records)


async def test_connection_that_failed_in_the_pool_is_not_used() -> None:
    async with served(answers_each=9) as (server, session):
        assert await put(session, server.url, Body()) == b"yes"
        assert await put(session, server.url, Body()) == b"yes"
        assert server.connections == 1
        assert isinstance(session.connector, Watched)
        pooled = session.connector.protocols[-1]
        assert pooled is not None
        pooled.set_exception(TimeoutError())
        assert await put(session, server.url, Body()) == b"yes"
        assert server.connections == 2


async def test_connections_that_aiohttp_makes_in_another_way_are_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(answers_each=9) as (server, session):
        connector = session.connector
        assert isinstance(connector, FreshConnector)
        loop = asyncio.get_running_loop()
        connector._factory = functools.partial(ResponseHandler, loop=loop)
        with pytest.raises(LibraryChanged):
            await session.get(server.url)
        assert server.bodies == []
    assert "a library does not behave as expected" in caplog.text
