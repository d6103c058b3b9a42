"""A listener that takes bodies, and clients that talk to it byte by byte, over real sockets."""

import asyncio
import hashlib
import random
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Protocol

from aiohttp import web
from msgspec import Struct

from ca.errors import PayloadTooLarge
from node.diskio.executor import DiskWorkers, write_overlapped
from tests.unit.peer_nodes import CLUSTER
from web.app import (
    Listener,
    body_batches,
    json_response,
    keeps_in_memory,
    new_application,
    read_json,
    serve,
)
from web.buffer_ring import POOL
from web.memory_quota import BUFFERED, BUFFERED_BYTES_MAX
from web.rate_limits import RequestTimeouts
from web.request_body import Batch

CONTENT = random.Random(5).randbytes(6 << 20)
HOST = b"Host: test\r\n"
LARGE_BYTES = 16 << 20
PATIENCE = RequestTimeouts(body_stall_s=15.0, linger_s=0.3)
GET = b"GET /count HTTP/1.1\r\n" + HOST + b"\r\n"


def put(path: str, length: int, more: str = "") -> bytes:
    return f"PUT {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n{more}\r\n".encode()


EXPECTING = b"PUT /take HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"


def chunked(content: bytes, chunk_bytes: int) -> bytes:
    chunks = [content[start : start + chunk_bytes] for start in range(0, len(content), chunk_bytes)]
    return b"".join([*(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks), b"0\r\n\r\n"])


Scenario = Callable[["Shell"], Coroutine[Any, Any, None]]


class Run(Protocol):
    """Runs a scenario on each kind of loop, plain and over TLS."""

    def __call__(self, scenario: Scenario, patience: RequestTimeouts = PATIENCE) -> None: ...


class Nothing(Struct, forbid_unknown_fields=True):
    """A body of JSON."""


class Shell:
    """A listener whose handlers take bodies, and a client to talk to it byte by byte."""

    def __init__(
        self, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None, patience: RequestTimeouts
    ) -> None:
        self.patience = patience
        self.listening = contexts[0] if contexts else None
        self.asking = contexts[1] if contexts else None
        self.served = 0
        self.copied_bytes = 0  # that came through the parser
        self.from_peer = True
        self.ended: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.writing: Callable[[], None] = lambda: None  # called in the thread, before each batch
        self.disk = DiskWorkers()
        self.listener: Listener
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Shell":
        routes = [web.put("/take", self.take), web.get("/count", self.count)]
        routes += [web.put("/refuse", self.refuse), web.put("/leave", self.leave)]
        routes += [web.put("/settle", self.settle), web.get("/large", self.large)]
        routes += [web.put("/large", self.change_largely), web.put("/json", self.json)]
        routes += [web.put("/link", self.link), web.put("/keep", self.keep)]
        app = new_application(routes, component="test")
        self.listener = await serve(
            app, host="127.0.0.1", port=0, ssl_context=self.listening, patience=self.patience
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.go_on.set()
        await self.listener.close(5.0)
        self.disk.close()
        assert POOL.used_bytes == 0
        assert BUFFERED.left_bytes == BUFFERED_BYTES_MAX

    async def keep(self, request: web.Request) -> web.Response:
        """Whether `bytes` may be in memory for it, as they are until `go_on`."""
        if kept := keeps_in_memory(request, int(request.query["bytes"])):
            self.served += 1
            await self.go_on.wait()
        return json_response({"kept": kept})

    async def take(self, request: web.Request) -> web.Response:
        """The whole body through a thread, as uploads take it."""
        digest, received = hashlib.sha256(), 0

        async def batches() -> AsyncGenerator[Batch, None]:
            nonlocal received
            async with aclosing(body_batches(request, from_peer=self.from_peer)) as body:
                async for batch in body:
                    self.begun.set()
                    await self.go_on.wait()
                    received += sum(map(len, batch))
                    self.copied_bytes += sum(len(piece) for piece in batch if isinstance(piece, bytes))
                    yield batch

        def write(batch: Batch) -> None:
            self.writing()
            for piece in batch:
                digest.update(piece)

        try:
            await write_overlapped(self.disk, batches(), write)
        except BaseException as error:
            self.ended.put_nowait((type(error).__name__, received))
            raise
        self.served += 1
        return json_response({"sha256": digest.hexdigest()})

    async def link(self, request: web.Request) -> web.StreamResponse:
        """Answers before the body comes, and goes on until that ends, as a link of a chain does."""
        self.begun.set()
        await self.go_on.wait()
        response = web.StreamResponse()
        response.content_length = 4
        await response.prepare(request)
        async with aclosing(body_batches(request, from_peer=self.from_peer)) as body:
            async for batch in body:
                self.copied_bytes += sum(len(piece) for piece in batch if isinstance(piece, bytes))
        await response.write(b"done")
        return response

    async def settle(self, request: web.Request) -> web.Response:
        """Asks somebody else when it is cut off."""
        try:
            async with aclosing(body_batches(request)) as body:
                async for _ in body:
                    self.begun.set()
        finally:
            await asyncio.sleep(0.3)
            self.ended.put_nowait(("settled", 0))
        return json_response({})

    async def refuse(self, request: web.Request) -> web.Response:
        await self.leave(request)
        raise PayloadTooLarge("too much")

    async def leave(self, request: web.Request) -> web.Response:
        """Has enough after the first MiB."""
        received = 0
        async with aclosing(body_batches(request)) as body:
            async for batch in body:
                received += sum(map(len, batch))
                if received > 1 << 20:
                    break
        return json_response({"received": received})

    async def count(self, request: web.Request) -> web.Response:
        return json_response({"served": self.served})

    async def large(self, request: web.Request) -> web.Response:
        return json_response({"large": "x" * LARGE_BYTES})

    async def change_largely(self, request: web.Request) -> web.Response:
        """What has been done by the time of its large answer."""
        self.served += 1
        return await self.large(request)

    async def json(self, request: web.Request) -> web.Response:
        await read_json(request, Nothing)
        return json_response({})

    async def connect(self, address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = f"n1.node.{CLUSTER}.internal" if self.asking else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.listener.port,
            ssl=self.asking,
            server_hostname=name,
            local_addr=(address, 0),
        )
        self.writers.append(writer)
        return reader, writer


async def head_of(reader: asyncio.StreamReader) -> dict[str, str]:
    """The fields of an answer's head, in small letters."""
    async with asyncio.timeout(20):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    return dict(line.split(": ", 1) for line in lines[1:] if line)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), await reader.readexactly(int(headers.get("content-length", "0")))


def told(content: bytes) -> bytes:
    return b'{"sha256":"%s"}' % hashlib.sha256(content).hexdigest().encode()
