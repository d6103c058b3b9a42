"""The HTTP shell over real sockets: what every request meets before, around and after its handler."""

import asyncio
import contextlib
import gzip
import io
import json
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import msgspec
import pytest
from aiohttp import web

from ca.errors import CATALOGUE, FilestoreError, OffsetMismatch, RangeNotSatisfiable
from runtime.metrics import Metrics
from web.app import Listener, body_chunks, json_response, new_application, read_json, serve
from web.rate_limits import RequestTimeouts

HOST = b"Host: test\r\n"
PUT = b"PUT /content HTTP/1.1\r\n" + HOST
POST = b"POST /things HTTP/1.1\r\n" + HOST
BODY_KEYS = {"code", "error", "details"}
PATIENCE = RequestTimeouts(headers_s=0.4, keep_alive_s=0.8, body_stall_s=0.4, json_body_s=0.6, linger_s=0.3)
ERRORS = {error.code: error for error in CATALOGUE}


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    name: str = ""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, str]:
        assert self.headers["content-type"] == "application/json"
        parsed = json.loads(self.body)
        assert set(parsed) == BODY_KEYS
        assert all(isinstance(value, str) for value in parsed.values())
        return dict(parsed)


class Shell:
    """A listener with small handlers, and ways to talk to it byte by byte."""

    def __init__(self) -> None:
        self.metrics = Metrics("test")
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.listener: Listener
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        routes = [
            web.post("/things", self.make),
            web.get("/things/{id}", self.get),
            web.put("/content", self.content),
            web.put("/refuses", self.refuses),
            web.get("/errors/{code}", self.error),
            web.get("/fault", self.fault),
            web.get("/half", self.half),
            web.get("/waits", self.waits),
            web.get("/public/{token}", self.get),
        ]
        app = new_application(routes, component="test", metrics=self.metrics)
        self.listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None, patience=PATIENCE)

    async def make(self, request: web.Request) -> web.Response:
        thing = await read_json(request, Thing)
        return json_response({"count": thing.count}, status=201)

    async def get(self, request: web.Request) -> web.Response:
        return json_response({"path": request.path})

    async def content(self, request: web.Request) -> web.Response:
        size = 0
        try:
            async for piece in body_chunks(request):
                self.entered.set()
                size += len(piece)
        except BaseException as error:
            self.ended.put_nowait(type(error).__name__)
            raise
        return json_response({"size": size})

    async def refuses(self, request: web.Request) -> web.Response:
        raise ERRORS["unauthorized"]("no")

    async def error(self, request: web.Request) -> web.Response:
        kind = ERRORS[request.match_info["code"]]
        if kind is OffsetMismatch:
            raise OffsetMismatch("at 7", offset=7)
        if kind is RangeNotSatisfiable:
            raise RangeNotSatisfiable("beyond", size_bytes=5)
        raise kind("some details")

    async def fault(self, request: web.Request) -> web.Response:
        raise RuntimeError("a secret of ours")

    async def half(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        raise FilestoreError("the rest is damaged")

    async def waits(self, request: web.Request) -> web.Response:
        self.entered.set()
        await self.leave.wait()
        return json_response("done")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that ends with the test."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        self.writers.append(writer)
        return reader, writer

    async def stop(self) -> None:
        self.leave.set()
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await self.listener.close(1.0)

    async def send(self, request_bytes: bytes, *, closes: bool = False) -> Answer:
        """The answer to these bytes on a connection of their own."""
        reader, writer = await self.connect()
        writer.write(request_bytes)
        return await read_answer(reader, closes=closes)


async def read_answer(reader: asyncio.StreamReader, *, closes: bool = False) -> Answer:
    """The next answer; with `closes`, the connection must end after it."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).decode("latin-1")
    status_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", "0"))), 5)
    if closes:
        assert await asyncio.wait_for(reader.read(), 5) == b""
    return Answer(int(status_line.split()[1]), headers, body)


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell()
    await made.start()
    yield made
    await made.stop()


async def test_unknown_path_is_not_found_as_json(shell: Shell) -> None:
    answer = await shell.send(b"GET /api/v1/vms HTTP/1.1\r\n" + HOST + b"\r\n")
    assert answer.status == 404
    assert answer.error() == {
        "code": "not_found",
        "error": "Not Found",
        "details": "No such endpoint: /api/v1/vms",
    }


async def test_wrong_method_names_the_allowed_ones(shell: Shell) -> None:
    answer = await shell.send(b"DELETE /things/1 HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (answer.status, answer.error()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_options_answers_with_allow(shell: Shell) -> None:
    answer = await shell.send(b"OPTIONS /things HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (answer.status, answer.headers["allow"], answer.body) == (204, "OPTIONS, POST", b"")


async def test_head_is_get_without_a_body(shell: Shell) -> None:
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{shell.listener.port}") as session,
        session.head("/things/1") as head,
        session.get("/things/1") as got,
    ):
        assert head.status == got.status == 200
        assert head.headers["Content-Length"] == got.headers["Content-Length"]
        assert await head.read() == b""


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: str(kind.code))
async def test_every_error_has_its_status_and_code(shell: Shell, kind: type[FilestoreError]) -> None:
    answer = await shell.send(f"GET /errors/{kind.code} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
    assert answer.status == kind.status
    assert answer.error()["code"] == kind.code
    assert answer.error()["error"] == kind.title
    assert ("www-authenticate" in answer.headers) == (kind.status == 401)
    assert ("retry-after" in answer.headers) == (kind.status in (429, 503))


@pytest.mark.parametrize("sent", ["a", "A-1_b.c", "x" * 128])
async def test_sane_request_id_is_kept(shell: Shell, sent: str) -> None:
    answer = await shell.send(b"GET /nope HTTP/1.1\r\n" + HOST + f"X-Request-Id: {sent}\r\n\r\n".encode())
    assert answer.headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a/b", "é"])
async def test_other_request_ids_are_replaced(shell: Shell, sent: str) -> None:
    answer = await shell.send(b"GET /nope HTTP/1.1\r\n" + HOST + f"X-Request-Id: {sent}\r\n\r\n".encode())
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}", answer.headers["x-request-id"])


@pytest.mark.parametrize("path", ["things/1", "nope", "fault", "errors/forbidden"])
async def test_server_header_names_no_version(shell: Shell, path: str) -> None:
    answer = await shell.send(f"GET /{path} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
    assert answer.headers["server"] == "Filestore"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /things/1 HTTP/1.1\r\n\r\n",
        b"GET /things/1 HTTP/9.9\r\n" + HOST + b"\r\n",
        b"GET /things/1 HTTP/1.1\r\n" + HOST + b"Bad Header: x\r\n\r\n",
        b"GET /things/1 HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
        b"GET /things/1 HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 9000 + b"\r\n\r\n",
        b"GET /things/1 HTTP/1.1\r\n" + HOST + b"X: x\r\n" * 70 + b"\r\n",
        PUT + b"Content-Length: -1\r\n\r\n",
        PUT + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        PUT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ],
    ids=[
        "garbage", "tls", "no host", "version", "header name", "nul", "long header", "many headers",
        "negative length", "two lengths", "length and chunked", "identity after chunked",
    ],
)  # fmt: skip
async def test_malformed_http_is_invalid_request_and_closes(shell: Shell, request_bytes: bytes) -> None:
    answer = await shell.send(request_bytes, closes=True)
    assert (answer.status, answer.error()["code"]) == (400, "invalid_request")
    assert answer.headers["server"] == "Filestore"
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/2.0"])
async def test_other_version_is_refused_in_one_that_can_be_read(shell: Shell, version: bytes) -> None:
    reader, writer = await shell.connect()
    writer.write(b"GET /things/1 " + version + b"\r\n" + HOST + b"\r\n")
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("protocol", [b"h2c", b"TLS/1.0", b"foo", b"websocket"])
async def test_request_behind_an_offer_of_another_protocol_is_answered_or_the_connection_ends(
    shell: Shell, protocol: bytes
) -> None:
    reader, writer = await shell.connect()
    offer = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
    writer.write(
        b"GET /things/1 HTTP/1.1\r\n" + HOST + offer + b"GET /things/2 HTTP/1.1\r\n" + HOST + b"\r\n"
    )
    answer = await read_answer(reader, closes=True)
    assert (answer.status, answer.headers["connection"]) == (200, "close")


@pytest.mark.parametrize("in_one_write", [True, False])
async def test_trailer_is_no_header_of_the_request_behind_it(shell: Shell, in_one_write: bool) -> None:
    """aiohttp's parser would take it for one: the connection ends instead, a credential is nobody else's."""
    reader, writer = await shell.connect()
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Request-Id: of-the-trailer\r\n\r\n"
    behind = b"GET /things/2 HTTP/1.1\r\n" + HOST + b"\r\n"
    writer.write(PUT + chunked + (behind if in_one_write else b""))
    answer = await read_answer(reader, closes=True)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert answer.headers["x-request-id"] != "of-the-trailer"


async def test_request_behind_one_with_a_body_that_offers_to_upgrade_does_not_hang(shell: Shell) -> None:
    reader, writer = await shell.connect()
    offer = b"Connection: Upgrade\r\nUpgrade: foo\r\nContent-Length: 2\r\n\r\n{}"
    writer.write(PUT + offer + b"GET /things/2 HTTP/1.1\r\n" + HOST + b"\r\n")
    answer = await read_answer(reader, closes=True)
    assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_what_comes_behind_a_connect_is_no_request(shell: Shell) -> None:
    """The parser reads on behind its head, where a proxy may have let a body through."""
    reader, writer = await shell.connect()
    behind = b"GET /things/2 HTTP/1.1\r\n" + HOST + b"\r\n"
    head = b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(behind)
    writer.write(head + behind)
    answer = await read_answer(reader, closes=True)
    assert (answer.status, answer.headers["connection"]) == (404, "close")


async def test_malformed_request_is_not_repeated_in_answer_or_log(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await shell.send(
        b"GET / HTTP/1.1\r\n" + HOST + b"Authorization: Bearer topsecret\x00\r\nB B: topsecret\r\n\r\n"
    )
    assert answer.status == 400
    assert b"topsecret" not in answer.body
    assert "topsecret" not in caplog.text
    assert not any("topsecret" in str(vars(record)) for record in caplog.records)


async def test_slow_headers_are_a_timeout(shell: Shell) -> None:
    answer = await shell.send(b"GET /things/1 HTTP/1.1\r\nHo", closes=True)
    assert (answer.status, answer.error()["code"]) == (408, "request_timeout")
    assert "x-request-id" in answer.headers


async def test_slow_headers_of_a_second_request_are_a_timeout(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(b"GET /things/1 HTTP/1.1\r\n" + HOST + b"\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0]))
    writer.write(b"GET /things/2")
    assert (await read_answer(reader)).status == 408


async def test_silent_connection_is_closed_without_a_word(shell: Shell) -> None:
    reader, _ = await shell.connect()
    assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_idle_connection_is_closed_after_keep_alive(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(b"GET /things/1 HTTP/1.1\r\n" + HOST + b"\r\n")
    assert "connection" not in (await read_answer(reader)).headers
    started_s = asyncio.get_running_loop().time()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert asyncio.get_running_loop().time() - started_s > PATIENCE.keep_alive_s / 2


async def test_stalled_body_is_a_timeout(shell: Shell) -> None:
    answer = await shell.send(PUT + b"Content-Length: 10\r\n\r\nabc")
    assert (answer.status, answer.error()["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"


async def test_dripping_json_body_is_a_timeout(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(POST + b"Content-Length: 100000\r\n\r\n")

    async def drip() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert (await read_answer(reader)).status == 408
    dripping.cancel()


async def test_broken_chunks_end_the_body_at_once(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(PUT + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await asyncio.wait_for(shell.entered.wait(), 5)
    writer.write(b"no chunk\r\n")
    answer = await read_answer(reader, closes=True)
    assert (answer.status, answer.error()["code"]) == (400, "invalid_request")
    assert await shell.ended.get() == "InvalidRequest"


async def test_lost_client_ends_the_body_quietly(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = await shell.connect()
    writer.write(PUT + b"Content-Length: 10\r\n\r\nabc")
    await asyncio.wait_for(shell.entered.wait(), 5)
    writer.close()
    assert await asyncio.wait_for(shell.ended.get(), 5) == "ClientGone"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_big_body_arrives_whole_chunked_or_not(shell: Shell) -> None:
    content = b"0123456789abcdef" * 300_000

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 70_001):
            yield content[start : start + 70_001]

    async with aiohttp.ClientSession(f"http://127.0.0.1:{shell.listener.port}") as session:
        for body in (io.BytesIO(content), pieces()):
            async with session.put("/content", data=body) as answer:
                assert await answer.json() == {"size": len(content)}


async def test_encoded_body_is_unsupported(shell: Shell) -> None:
    bomb = gzip.compress(b"0" * (1 << 20))
    head = PUT + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    answer = await shell.send(head + bomb)
    assert (answer.status, answer.error()["code"]) == (415, "unsupported_media_type")


async def test_body_of_another_type_is_unsupported(shell: Shell) -> None:
    answer = await shell.send(POST + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}")
    assert (answer.status, answer.error()["code"]) == (415, "unsupported_media_type")


async def test_json_over_the_limit_is_too_large(shell: Shell) -> None:
    declared = await shell.send(POST + b"Content-Length: 1048577\r\n\r\n")
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    chunked = await shell.send(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17 + b"0\r\n\r\n")
    assert (declared.status, declared.error()["code"]) == (413, "payload_too_large")
    assert (chunked.status, chunked.error()["code"]) == (413, "payload_too_large")


async def test_continue_is_said_when_the_body_is_wanted(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(POST + b"Expect: 100-continue\r\nContent-Length: 11\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"count":1}')
    assert (await read_answer(reader)).status == 201


async def test_continue_is_not_said_to_a_refused_client(shell: Shell) -> None:
    answer = await shell.send(
        b"PUT /refuses HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n"
    )
    assert answer.status == 401


@pytest.mark.parametrize("path", ["/things", "/nope"])
async def test_unknown_expectation_breaks_nothing(shell: Shell, path: str) -> None:
    answer = await shell.send(
        f"POST {path} HTTP/1.1\r\nExpect: much\r\nContent-Length: 11\r\n".encode() + HOST + b'\r\n{"count":1}'
    )
    assert answer.status in (201, 400)
    assert answer.headers["content-type"] == "application/json"


async def test_fault_tells_only_the_request_id(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    answer = await shell.send(b"GET /fault HTTP/1.1\r\n" + HOST + b"X-Request-Id: seen\r\n\r\n")
    assert (answer.status, answer.error()["code"]) == (500, "internal")
    assert "seen" in answer.error()["details"]
    assert b"secret" not in answer.body
    assert any(getattr(record, "request_id", "") == "seen" and record.exc_info for record in caplog.records)


async def test_answer_that_fails_half_way_breaks_the_connection(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(b"GET /half HTTP/1.1\r\n" + HOST + b"\r\n")
    head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    assert b"Content-Length: 100" in head
    assert body == b"half"


async def test_pipelined_requests_are_answered_in_order(shell: Shell) -> None:
    async with asyncio.timeout(5):
        reader, writer = await shell.connect()
        writer.write(b"".join(b"GET /things/%d HTTP/1.1\r\n%s\r\n" % (n, HOST) for n in range(100)))
        for n in range(100):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"}") == b'{"path":"/things/%d"}' % n


async def test_closing_lets_a_running_request_end(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(b"GET /waits HTTP/1.1\r\n" + HOST + b"\r\n")
    await asyncio.wait_for(shell.entered.wait(), 5)
    closing = asyncio.create_task(shell.listener.close(5.0))
    with contextlib.suppress(OSError):  # refused: it listens no more
        while True:
            await shell.connect()
    shell.leave.set()
    answer = await read_answer(reader, closes=True)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    await asyncio.wait_for(closing, 5)


async def test_closing_cuts_off_what_takes_too_long(shell: Shell) -> None:
    reader, writer = await shell.connect()
    writer.write(b"GET /waits HTTP/1.1\r\n" + HOST + b"\r\n")
    await asyncio.wait_for(shell.entered.wait(), 5)
    await asyncio.wait_for(shell.listener.close(0.1), 5)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    with pytest.raises(OSError, match=r"refused|failed"):
        await shell.connect()


async def test_log_and_metrics_hold_route_but_no_secret(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "s3cret" * 8
    target, header = f"/public/{secret}?token={secret}", f"Authorization: Bearer {secret}"
    await shell.send(f"GET {target} HTTP/1.1\r\n{header}\r\n".encode() + HOST + b"\r\n")
    await shell.send(f"GET /nope/{secret} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
    lines = [vars(record) for record in caplog.records if record.name == "filestore.http.requests"]
    assert [line["path"] for line in lines] == ["/public/{token}", "/nope/..."]
    assert not any(secret in str(vars(record)) for record in caplog.records)
    text, content_type = shell.metrics.exposition("")
    assert secret.encode() not in text
    assert b'route="/public/{token}",status="200"' in text
    assert content_type.startswith("text/plain")
    assert shell.metrics.exposition("application/openmetrics-text; version=1.0.0")[0].endswith(b"# EOF\n")
