"""The canary: what is relied upon of private names of aiohttp's server and asyncio's TLS, over real sockets.

Whoever raises a version runs this first, and `test_internals_client.py` beside it. What fails names what to
look at; the docstring of `web.internals` says what it is for.
"""

import asyncio
import functools
import inspect
import re
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.http_writer import StreamWriter

from tests.sources import tree_of
from tests.test_tidy import foreign_uses, sources_of
from tests.unit.tls_pairs import connection as tls_connection
from tests.unit.tls_pairs import server_context
from web import internals
from web.internals import tls
from web.internals.aiohttp_server import (
    BodyResponse,
    ServerConnection,
    answer_in_http_11,
    close_behind,
    match_of,
    require_nothing_sent,
    take_head,
)
from web.internals.library_changed import LibraryChanged
from web.internals.tls import TlsListening

GET = b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n"
GET_LAST = b"GET /file HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PUT = b"PUT /file HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(ServerConnection):
    """Keeps what it is told."""

    def __init__(self, server: web.Server, keep_alive_s: float, made: "asyncio.Queue[Connection]") -> None:
        super().__init__(
            server,
            target_bytes_max=8190,
            header_bytes_max=8190,
            headers_max=64,
            keep_alive_s=keep_alive_s,
            linger_s=1.0,
        )
        made.put_nowait(self)
        self.parsed: list[tuple[int, int | None]] = []
        self.began = 0
        self.between_turns: list[bool] = []  # at the end of each request
        self.idle_left = 0  # how often it is to idle longer
        self.idled_count = 0

    def data_received(self, data: bytes) -> None:
        self.parsed.append(self.parse(data))

    def request_began(self) -> None:
        self.began += 1

    def request_ended(self) -> None:
        self.between_turns.append(self.is_between_turns)

    def close_idle(self) -> None:
        self.idled_count += 1
        if self.idle_left:
            self.idle_left -= 1
            self.restart_idle_timer()


class Client:
    """One client, and what the server has of it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        self.reader, self.writer, self.connection = reader, writer, connection

    async def send(self, data: bytes) -> None:
        """Send it, and wait until the server has looked at it."""
        seen = len(self.connection.parsed)
        self.writer.write(data)
        await until(lambda: len(self.connection.parsed) > seen)

    async def answer(self) -> bytes:
        """The head and the body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return head + await self.reader.readexactly(int(length[1]) if length else 0)

    async def end(self) -> None:
        """Wait until the server closes, and sends nothing before."""
        async with asyncio.timeout(10):
            assert await self.reader.read() == b""


async def until(condition: Callable[[], bool]) -> None:
    """Wait until this is so."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def plain(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="yes")


@asynccontextmanager
async def connected(
    handler: Handler = plain, *, server: web.Server | None = None, keep_alive_s: float = 60.0
) -> AsyncIterator[Client]:
    """A client of a server that answers with this; its task waits for a request."""
    serving = server or web.Server(handler)
    made: asyncio.Queue[Connection] = asyncio.Queue()
    listening = await asyncio.get_running_loop().create_server(
        lambda: Connection(serving, keep_alive_s, made), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    client = Client(reader, writer, await made.get())
    try:
        await until(lambda: client.connection.is_waiting)
        yield client
    finally:
        writer.close()
        listening.close()
        await serving.shutdown(1.0)


class Held:
    """A handler that answers when it is let; it has each request that came."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[web.BaseRequest] = asyncio.Queue()
        self.let = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.put_nowait(request)
        await self.let.wait()
        return web.Response(text="yes")


async def test_it_is_told_what_the_task_of_a_connection_does() -> None:
    held = Held()
    async with connected(held) as client:
        connection = client.connection
        assert connection.is_ready()
        assert not connection.is_between_turns
        await client.send(GET)
        await held.requests.get()
        assert not connection.is_waiting
        assert not connection.is_ready()
        assert not connection.is_between_turns, "a request runs"
        await client.send(GET)
        assert connection.request_count == 2
        assert connection.last_body is not None, "a request waits"
        held.let.set()
        assert (await client.answer()).endswith(b"yes")
        assert (await client.answer()).endswith(b"yes")
        await until(connection.is_ready)
        assert connection.last_body is None
        assert connection.began == 2
        assert connection.between_turns == [False, True], "the second waited while the first ended"
        connection.close()
        assert not connection.is_ready()


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ([GET[:-2], GET[-2:]], [(0, None), (1, 0)]),
        ([GET + GET], [(2, 0)]),
        ([PUT, b"12", b"345"], [(1, 5), (0, None), (0, None)]),
        ([PUT + b"12345"], [(1, 5)]),
        ([GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"], [(1, None)]),
        ([GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"], [(1, None)]),
        ([b"\0\0\r\n\r\n"], [(1, None)]),
    ],
)
async def test_it_is_told_what_comes_out_of_the_parser(
    pieces: list[bytes], told: list[tuple[int, int | None]]
) -> None:
    async with connected(Held()) as client:
        for piece in pieces:
            await client.send(piece)
        assert client.connection.parsed == told


async def test_bytes_that_are_no_http_are_told() -> None:
    held = Held()
    async with connected(held) as client:
        await client.send(GET)
        await held.requests.get()
        assert not client.connection.is_malformed
        await client.send(b"\0\0\r\n\r\n")
        assert client.connection.is_malformed


async def test_unfinished_bodies_are_those_that_run_and_those_that_wait() -> None:
    held = Held()
    async with connected(held) as client:
        await client.send(PUT + b"12")
        running = await held.requests.get()
        assert client.connection.unfinished_bodies() == [running.content]
        await client.send(b"345" + PUT)
        waiting = client.connection.last_body
        assert client.connection.unfinished_bodies() == [waiting]


async def test_a_new_parser_takes_the_next_byte_for_the_first_of_a_request() -> None:
    held = Held()
    async with connected(held) as client:
        await client.send(PUT)
        request = await held.requests.get()
        client.connection.renew_parser()
        request.content.feed_eof()
        await client.send(GET)
        assert client.connection.parsed[-1] == (1, False)
        held.let.set()
        await client.answer()
        await client.answer()
        assert client.connection.began == 2


async def test_reading_pauses_past_the_parser_and_goes_on() -> None:
    async with connected() as client:
        transport = client.connection.transport
        assert transport is not None
        client.connection.pause_transport_reading()
        assert not transport.is_reading()
        assert not client.connection.is_reading_paused, "that is the parser's"
        client.writer.write(GET)
        client.connection.resume_transport_reading()
        assert transport.is_reading()
        assert (await client.answer()).endswith(b"yes")


async def test_it_is_told_when_a_body_holds_reading_up() -> None:
    held = Held()
    async with connected(held) as client:
        await client.send(PUT)
        await held.requests.get()
        client.connection.pause_reading()
        assert client.connection.is_reading_paused
        client.connection.resume_reading()
        assert not client.connection.is_reading_paused


async def test_it_is_told_when_requests_that_wait_hold_reading_up() -> None:
    held = Held()
    async with connected(held) as client:
        client.writer.write(GET * 2000)  # more than wait anywhere
        await until(lambda: client.connection.is_reading_paused)
        held.let.set()
        for _ in range(2000):
            await client.answer()
        assert not client.connection.is_reading_paused


async def test_who_is_idle_is_closed_when_it_may_idle_no_longer() -> None:
    async with connected(keep_alive_s=0.02) as client:
        client.connection.idle_left = 2
        await client.end()
        assert client.connection.idled_count == 3


async def test_idling_stops_and_begins_again() -> None:
    async with connected(keep_alive_s=0.02) as client:
        client.connection.stop_idling()
        await client.send(GET)  # what aiohttp does behind an answer is begun anew
        await client.answer()
        await until(lambda: client.connection.is_waiting)
        client.connection.stop_idling()
        client.connection.start_idle_timer()
        await client.end()
        assert client.connection.idled_count == 1


async def test_task_is_cancelled_before_a_request_begins_and_not_after() -> None:
    held = Held()
    async with connected(held) as client:
        await client.send(GET)
        await held.requests.get()
        client.connection.cancel_before_it_begins()
        held.let.set()
        assert (await client.answer()).endswith(b"yes")
        await until(lambda: client.connection.is_waiting)
        client.connection.cancel_before_it_begins()
        await until(lambda: not client.connection.is_waiting)


async def test_requests_are_counted_by_the_server() -> None:
    server = web.Server(plain)
    async with connected(server=server) as client:
        await client.send(GET)
        await client.answer()
        client.connection.count_request()
        assert server.requests_count == 2


async def test_draining_waits_until_the_client_takes_more() -> None:
    async with connected() as client:
        connection, transport = client.connection, client.connection.transport
        assert transport is not None
        await connection.drain()
        sent_bytes = 0
        while not connection.writing_paused:
            transport.write(bytes(1 << 20))
            sent_bytes += 1 << 20
        waiting = asyncio.create_task(connection.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        await client.reader.readexactly(sent_bytes)
        await waiting


async def test_answer_is_the_last_one_and_in_http_11() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        close_behind(request)
        answer_in_http_11(request)
        return web.Response(text="yes")

    async with connected(handler) as client:
        client.writer.write(b"GET /file HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        answer = await client.reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close\r\n" in answer.lower()


async def test_route_is_known_once_the_router_was_asked() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        match = match_of(request)
        assert match is not None
        assert match.route.resource is not None
        return web.Response(text=match.route.resource.canonical)

    app = web.Application()
    app.router.add_get("/{name}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    async with connected(server=runner.server) as client:
        await client.send(GET)
        assert (await client.answer()).endswith(b"/{name}")
    await runner.cleanup()

    async def unrouted(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=str(match_of(request)))

    async with connected(unrouted) as client:
        await client.send(GET)
        assert (await client.answer()).endswith(b"None")


async def taken(request: web.BaseRequest) -> web.StreamResponse:
    """Sends the head past aiohttp, as a file is sent."""
    response = BodyResponse()
    response.content_length = 5
    writer = await response.prepare(request)
    assert writer is not None
    assert request.transport is not None
    assert writer.output_size == 0, "the head waits for the body"
    head = take_head(writer)
    request.transport.write(head + b"12345")
    sent_bytes = writer.output_size
    assert sent_bytes == len(head)
    await response.write_eof()
    require_nothing_sent(writer, sent_bytes)
    return response


async def test_head_that_was_taken_is_sent_once() -> None:
    async with connected(taken) as client:
        client.writer.write(GET + GET_LAST)
        answers = await client.reader.read()
        assert answers.count(b"HTTP/1.1 200 OK\r\n") == 2
        assert answers.count(b"12345") == 2
        assert answers.partition(b"\r\n\r\n")[2].startswith(b"12345HTTP/1.1 200 OK\r\n")
        assert answers.endswith(b"\r\n\r\n12345")


async def test_head_that_waits_goes_with_the_body() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = BodyResponse()
        response.content_length = 5
        writer = await response.prepare(request)
        assert writer is not None
        assert writer.output_size == 0
        await response.write(b"123")
        assert writer.output_size > 100
        await response.write(b"45")
        return response

    async with connected(handler) as client:
        await client.send(GET)
        assert (await client.answer()).endswith(b"\r\n\r\n12345")


def send_again(writer: StreamWriter) -> None:
    writer._write(b"HTTP/1.1 200 OK\r\n\r\n")


async def write_eof_again(writer: StreamWriter, _chunk: bytes = b"") -> None:
    send_again(writer)


async def keep_twice(writer: StreamWriter, status_line: str, _headers: object) -> None:
    writer._headers_buf = None
    writer._kept = status_line.encode()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "changed"),
    [("send_headers", send_again), ("write_eof", write_eof_again), ("write_headers", keep_twice)],
)
async def test_head_that_would_be_sent_twice_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    changed: Callable[..., object],
) -> None:
    monkeypatch.setattr(StreamWriter, name, changed)
    met: asyncio.Future[LibraryChanged] = asyncio.get_running_loop().create_future()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await taken(request)
        except LibraryChanged as error:
            met.set_result(error)
            raise ConnectionError from error

    async with connected(handler) as client:
        client.writer.write(GET)
        assert "the head of an answer" in str(await met)
    assert "a library does not behave as expected" in caplog.text


def overridden() -> list[str]:
    """What our subclass puts in place of asyncio's."""
    theirs = vars(sslproto.SSLProtocol)
    return [name for name, made in vars(tls._Tls).items() if inspect.isfunction(made) and name in theirs]


def test_tls_overrides_methods_that_are_still_called_in_the_same_way() -> None:
    source = inspect.getsource(sslproto)
    names = overridden()
    assert len(names) >= 20
    for name in names:
        ours, theirs = (inspect.signature(getattr(made, name)) for made in (tls._Tls, sslproto.SSLProtocol))
        if name != "__init__":
            assert [*ours.parameters] == [*theirs.parameters], name
        if name.startswith("_") and name != "__init__":
            assert f".{name}" in source.replace(f"def {name}", ""), f"{name} is called no more"


async def test_tls_keeps_what_its_base_does_in_places_and_buffers_of_ours(tmp_path: Path) -> None:
    """Else a dictionary would be made, and buffers, for each connection."""
    context = server_context(tmp_path)
    listening = TlsListening(context, handshake_s=10.0, shutdown_s=10.0)
    async with tls_connection(context, listening=listening) as (taker, client):
        await asyncio.to_thread(client.sendall, b"question")
        assert await taker.until(8) == b"question"
        taker.transport.write(b"answer")
        assert await asyncio.to_thread(client.recv, 6) == b"answer"
        protocol = taker.transport._ssl_protocol  # type: ignore[attr-defined]
        assert isinstance(protocol, tls._Tls)
        assert vars(protocol) == {}
        assert protocol._outgoing is listening.outgoing
        assert protocol._ssl_buffer == b""
        assert protocol._state is sslproto.SSLProtocolState.WRAPPED


@functools.cache
def listed() -> set[str]:
    return set(re.findall(r"`(_\w+)`", internals.__doc__ or ""))


def test_private_names_that_are_used_are_those_that_are_listed() -> None:
    used = {
        name.rpartition(".")[2]
        for path in sources_of("web/internals")
        for name, _ in foreign_uses(tree_of(path), f"web.internals.{path.stem}")
    }
    assert {name for name in used if name.startswith("_")} - {"_replace"} == listed()
