"""Requests that are passed on while both sides talk, as links do: real sockets, a stand-in link."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import yarl
from aiohttp import web

from node.content.upload_session import _connection_of
from node.packs.store import BLOB_BYTES_MAX
from node.peer.client import open_request
from node.uploads import forwarding
from node.uploads.forwarding import PASSED_WITHIN, HolderAddress, pass_on
from web.app import Listener, body_chunks, new_application, serve
from web.rate_limits import BodyPace, RequestTimeouts

ANSWER_S = 0.25  # for those that have nothing to complete
TOLD = b"told\n"
CONTENT = b"x" * 200_000
STALL_S = 0.3


def holder_at(port: int, session: aiohttp.ClientSession) -> HolderAddress:
    """Asked as other nodes and workers are: a connection whose answer was read whole is kept."""

    @asynccontextmanager
    async def request(method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        origin = f"http://127.0.0.1:{port}"
        answer = await open_request(session, "worker 1", method, origin, path, **options)
        try:
            yield answer
        finally:
            answer.release() if answer.content.at_eof() else answer.close()

    return HolderAddress("Worker 1", PASSED_WITHIN, request)


class Passed:
    """A listener that passes everything on to another, whose answer begins before the body does."""

    def __init__(self) -> None:
        self.received = asyncio.Queue[bytes | str]()
        self.pace: BodyPace | None = None
        self.thinks_s = 0.0
        self.ends = False
        self.waits = False
        self.from_peer = False
        self.asked: list[Mapping[str, str]] = []
        self.passed_on: list[int] = []  # by the connection that it came on
        self._listeners: list[Listener] = []

    async def __aenter__(self) -> "Passed":
        self.session = aiohttp.ClientSession(skip_auto_headers={"Content-Type"})
        self._owner = await self._serve(self._take, RequestTimeouts())
        forwarding = await self._serve(self._pass, RequestTimeouts(body_stall_s=STALL_S))
        self.url = f"http://127.0.0.1:{forwarding.port}/link"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        for listener in reversed(self._listeners):
            await listener.close(1.0)

    async def _serve(self, handler: Any, patience: RequestTimeouts) -> Listener:
        app = new_application([web.route("*", "/link", handler)], component="test")
        listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None, patience=patience)
        self._listeners.append(listener)
        return listener

    async def _take(self, request: web.Request) -> web.StreamResponse:
        if self.waits:
            return await self._wait(request)
        await asyncio.sleep(self.thinks_s)
        self.asked.append(request.headers)
        response = web.StreamResponse()
        if self.ends:
            response.force_close()
        await response.prepare(request)
        if request.method != "HEAD":
            await response.write(TOLD)
        try:
            async for chunk in body_chunks(request):
                self.received.put_nowait(chunk)
            self.received.put_nowait("end")
        except BaseException as error:
            self.received.put_nowait(type(error).__name__)
            raise
        await response.write_eof()
        return response

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        """Answer once whoever has sent this is gone, by what the next request for an upload looks at."""
        is_connected, _ = _connection_of(request)
        self.received.put_nowait(await request.read())
        while is_connected():
            await asyncio.sleep(0.01)
        self.received.put_nowait("gone")
        return web.Response()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        self.passed_on.append(id(request.transport))
        to = holder_at(self._owner.port, self.session)
        return await pass_on(request, to, pace=self.pace, from_peer=self.from_peer)


async def test_body_may_wait_for_the_head_of_the_answer() -> None:
    answered = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b""
        await answered.wait()
        yield CONTENT

    async with Passed() as passed, asyncio.timeout(10):
        async with passed.session.put(passed.url, data=body()) as answer:
            answered.set()
            assert await answer.read() == TOLD
        received = b""
        while not isinstance(piece := await passed.received.get(), str):
            received += piece
        assert (received, piece) == (CONTENT, "end")


@pytest.mark.parametrize("is_patient", [False, True])
async def test_silence_ends_both_sides_or_neither(is_patient: bool) -> None:
    """What ends the body after the answer has begun must not leave an answer that nobody sends a body for."""
    answered = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b""
        await answered.wait()
        await asyncio.sleep(4 * STALL_S)
        yield CONTENT

    async with Passed() as passed, asyncio.timeout(10):
        passed.pace = BodyPace(60.0) if is_patient else None
        async with passed.session.put(passed.url, data=body()) as answer:
            answered.set()
            if is_patient:
                assert await answer.read() == TOLD
                return
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        assert await passed.received.get() in ("ClientGone", "InvalidRequest", "CancelledError")


@pytest.mark.parametrize(
    ("method", "is_waited_for"),
    [("HEAD", True), ("PUT", True), ("PATCH", True), ("POST", True), ("GET", False), ("DELETE", False)],
)
async def test_only_what_may_complete_an_upload_is_waited_for_as_long_as_that_takes(
    monkeypatch: pytest.MonkeyPatch, method: str, is_waited_for: bool
) -> None:
    """Also a request without a body: it completes an upload that lacks nothing else."""
    monkeypatch.setattr(forwarding, "STALL_TIMEOUT_S", ANSWER_S)
    async with Passed() as passed, asyncio.timeout(20):
        passed.thinks_s = 4 * ANSWER_S
        async with passed.session.request(method, passed.url) as answer:
            assert answer.status == (200 if is_waited_for else 503)


async def test_connection_of_a_peer_is_kept_behind_a_body_in_chunks() -> None:
    """Of one that waited for the head of the answer. What was told in that could not be taken back."""
    async with Passed() as passed, asyncio.timeout(10):
        passed.from_peer = True
        for _ in range(3):
            answered = asyncio.Event()

            async def body(answered: asyncio.Event = answered) -> AsyncIterator[bytes]:
                yield b""
                await answered.wait()
                yield CONTENT

            async with passed.session.put(passed.url, data=body()) as answer:
                assert answer.headers.get("Connection") is None
                answered.set()
                assert await answer.read() == TOLD
        assert len(set(passed.passed_on)) == 1


async def test_holder_learns_that_the_client_went_away_behind_its_body() -> None:
    """Else it takes the request for one that lives, and refuses the next one of the same client."""
    async with Passed() as passed, asyncio.timeout(20):
        passed.waits = True
        url = yarl.URL(passed.url)
        _, client = await asyncio.open_connection(url.host, url.port)
        head = f"PATCH {url.path} HTTP/1.1\r\nHost: node\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
        client.writelines([head.encode(), CONTENT])
        assert await passed.received.get() == CONTENT
        broken = struct.pack("ii", 1, 0)  # by a reset: who only ends its side may wait for the answer
        client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, broken)
        client.close()
        assert await passed.received.get() == "gone"


async def test_fields_of_one_connection_are_not_passed_on() -> None:
    sent = {"Connection": "keep-alive, X-Private", "X-Private": "1", "X-Public": "2"}
    async with Passed() as passed, asyncio.timeout(10):
        async with passed.session.put(passed.url, data=CONTENT, headers=sent) as answer:
            assert await answer.read() == TOLD
        (asked,) = passed.asked
    assert "X-Private" not in asked
    assert asked["X-Public"] == "2"


async def test_answer_behind_which_the_connection_ends_says_so() -> None:
    """What makes the holder end its connection, such as a body in chunks, ends that of the client too."""
    async with Passed() as passed, asyncio.timeout(10):
        for passed.ends in (False, True):
            async with passed.session.put(passed.url, data=CONTENT) as answer:
                assert answer.headers.get("Connection") == ("close" if passed.ends else None)
                await answer.read()


class HangsUp:
    """A holder that answers the first request on a connection, and hangs up behind the head of the next.

    `whenever`: behind that of each, and so many bytes of its body; `after_s`: so much later.
    """

    def __init__(self) -> None:
        self.whenever: int | None = None
        self.after_s = 0.0
        self.bodies: list[bytes] = []
        self.heads = 0

    async def __aenter__(self) -> "HangsUp":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._session = aiohttp.ClientSession(skip_auto_headers={"Content-Type"})
        app = new_application([web.route("*", "/link", self._pass)], component="test")
        self._passing = await serve(app, host="127.0.0.1", port=0, ssl_context=None)
        self.url = f"http://127.0.0.1:{self._passing.port}/link"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._passing.close(1.0)
        await self._session.close()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for is_kept in (False, True):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            self.heads += 1
            if is_kept or self.whenever is not None:
                await reader.readexactly(self.whenever or 0)
                await asyncio.sleep(self.after_s)
                writer.transport.abort()
                return
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.bodies.append(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        return await pass_on(request, holder_at(self._server.sockets[0].getsockname()[1], self._session))


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("size_bytes", [1, BLOB_BYTES_MAX - 1000])
async def test_holder_that_closes_a_kept_connection_is_asked_on_a_new_one(
    method: str, size_bytes: int
) -> None:
    content = CONTENT[:size_bytes]
    async with HangsUp() as holder, aiohttp.ClientSession() as client, asyncio.timeout(20):
        for _ in range(3):
            async with client.request(method, holder.url, data=content) as answer:
                assert answer.status == 204
        assert holder.bodies == [content] * 3
        assert holder.heads == 5


async def test_holder_that_hangs_up_again_is_not_asked_for_ever() -> None:
    async with HangsUp() as holder, aiohttp.ClientSession() as client, asyncio.timeout(20):
        holder.whenever = 0
        async with client.patch(holder.url, data=CONTENT[:1000]) as answer:
            assert answer.status == 503
        assert holder.heads == 2
        assert not holder.bodies


@pytest.mark.parametrize(
    ("method", "after_s"),
    [("POST", 0.0), ("PATCH", 1.5 * forwarding.KEPT_CONNECTION_S)],
    ids=["post", "later"],
)
async def test_holder_that_hangs_up_on_purpose_is_not_asked_again(method: str, after_s: float) -> None:
    """As it does to a client that is silent, when another one goes on; or who may not ask twice."""
    async with HangsUp() as holder, aiohttp.ClientSession() as client, asyncio.timeout(20):
        holder.whenever, holder.after_s = 0, after_s
        async with client.request(method, holder.url, data=CONTENT[:1000]) as answer:
            assert answer.status == 503
        assert holder.heads == 1


async def test_body_of_which_something_is_lost_is_not_sent_again() -> None:
    async with HangsUp() as holder, aiohttp.ClientSession() as client, asyncio.timeout(20):
        holder.whenever = 2 * forwarding.KEPT_BYTES_MAX
        coming = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield CONTENT[: forwarding.KEPT_BYTES_MAX]
            yield CONTENT[: forwarding.KEPT_BYTES_MAX]
            await coming.wait()

        async with client.patch(holder.url, data=body()) as answer:
            assert answer.status == 503
        coming.set()
        assert holder.heads == 1
