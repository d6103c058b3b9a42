"""A node whose downloads are answered past the HTTP machinery, beside one listener where they never are."""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from api.access import authenticate
from ca.errors import NotFound
from ca.usertoken import Verifier, mint, new_signing_key, public_jwk
from metadata.model.records import Caller, ContentRecord
from node.content.download import serve_content
from node.content.fastpath import HotPath
from node.content.handlers import PRIVATE_POLICY
from node.uploads.services import provide
from runtime.metrics import Metrics
from tests.unit.file_records import available_file
from tests.unit.peer_nodes import CLUSTER, CONTENT, SHA256, Node
from web.app import Listener, body_chunks, new_application, serve
from web.fastpath import DIRECT, DirectAnswer
from web.rate_limits import RequestTimeouts

UUID = "01930000-0000-7000-8000-00000000000a"
FILE = f"/api/v1/files/{UUID}"
KEY = new_signing_key()
_RANDOM = re.compile(
    rb"(?<=boundary=)[0-9a-f]{32}|(?<=\r\n--)[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
_VARYING = re.compile(rb"(?mi)^(Date|X-Request-Id): .*$")


def token(subject: str = "alice") -> str:
    return mint(
        KEY,
        cluster=CLUSTER,
        subject=subject,
        generation=1,
        roles=(),
        groups=(),
        now_ms=time.time_ns() // 1_000_000,
        ttl_seconds=3600,
        token_id="t",
    )


TOKEN = token()


def asking(*lines: str, path: str = FILE, credential: str = TOKEN) -> bytes:
    fields = [f"GET {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {credential}", *lines]
    return "\r\n".join([*fields, "", ""]).encode()


def record(replicas: list[str], *, size_bytes: int = len(CONTENT), sha256: str = SHA256) -> ContentRecord:
    file = available_file(
        file_uuid=UUID,
        owner_id="alice",
        filename="läb.gns3p",
        content_type="application/zip",
        size_bytes=size_bytes,
        blob_sha256=sha256,
    )
    return ContentRecord(file=file, replicas=replicas, available_at_ms=1_700_000_000_000)


@dataclass
class HotNode:
    """`known` is what both listeners find for alice; `taken` counts what went past the HTTP machinery."""

    node: Node
    known: dict[str, ContentRecord]
    hot: Listener
    ordinary: Listener
    metrics: Metrics
    taken: list[bytes] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.hot.port)

    async def warm(self) -> None:
        """Read all of it until it is kept open and trusted: a file that has just changed is not, yet."""
        while not self._is_trusted():
            await exchange(self.ordinary, [asking("Connection: close")])

    def _is_trusted(self) -> bool:
        file = self.known[UUID].file
        kept = self.node.services.blobs.opened.take(file.blob_sha256)
        if kept is None:
            return False
        with kept:
            return kept.is_trusted(0, file.size_bytes)


async def exchange(
    listener: Listener,
    writes: list[bytes],
    *,
    context: ssl.SSLContext | None = None,
    quiet_s: float = 60.0,
    half_closes: bool = False,
) -> bytes:
    """All that comes back until the other side closes; each of `writes` is sent when the last was answered.

    `quiet_s`: how long to wait for that; half a request has no answer. `half_closes`: our side, at the end.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
    received = b""
    try:
        for at, data in enumerate(writes):
            writer.write(data)
            if at + 1 < len(writes):
                received += await _read_some(reader, quiet_s)
        if half_closes:
            writer.write_eof()
        while piece := await reader.read(1 << 20):
            received += piece
    except ConnectionResetError:
        received += b"<reset>"
    finally:
        writer.close()
    return received


async def _read_some(reader: asyncio.StreamReader, quiet_s: float) -> bytes:
    """One answer, if there is one."""
    try:
        async with asyncio.timeout(quiet_s):
            head = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.IncompleteReadError):
        return b""
    length = re.search(rb"(?i)content-length: ([0-9]+)", head)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


def steady(answer: bytes) -> bytes:
    """Without what differs from answer to answer."""
    return _RANDOM.sub(b"<random>", _VARYING.sub(rb"\1: -", answer))


@asynccontextmanager
async def hot_node(
    node: Node, known: ContentRecord, *, patience: RequestTimeouts | None = None, tls: bool = False
) -> AsyncIterator[HotNode]:
    """Both listeners of `node`, to which `introduce` was done."""
    node.services.api.view._verifier = Verifier(CLUSTER, [public_jwk(KEY)])
    records = {UUID: known}
    metrics = Metrics("test")

    def kept(caller: Caller, file_uuid: str) -> ContentRecord | None:
        return records.get(file_uuid) if caller.subject == "alice" else None

    async def download(request: web.Request) -> web.StreamResponse:
        caller = await authenticate(request)
        content = kept(caller, request.match_info["file_uuid"])
        if content is None:
            raise NotFound("No such file.")
        return await serve_content(request, node.services, content, policy=PRIVATE_POLICY)

    def application(counted: Metrics) -> web.Application:
        routes = [web.get("/api/v1/files/{file_uuid}", download), web.put("/api/v1/files/{file_uuid}", drain)]
        app = new_application(routes, component="test", metrics=counted)
        provide(app, node.services)
        return app

    path = HotPath(node.services, kept)
    app = application(metrics)
    context = node.contexts.api.listening if tls else None

    def respond(data: bytes, transport: asyncio.Transport) -> DirectAnswer | None:
        answer = path.answer(data, transport)
        if answer is not None:
            running.taken.append(data)
        return answer

    app[DIRECT] = respond
    hot = await serve(app, host="127.0.0.1", port=0, ssl_context=context, patience=patience)
    plain = application(Metrics("test"))
    ordinary = await serve(plain, host="127.0.0.1", port=0, ssl_context=None, patience=patience)
    running = HotNode(node, records, hot, ordinary, metrics)
    try:
        yield running
    finally:
        await hot.close()
        await ordinary.close()
        node.services.api.audit.close()


async def drain(request: web.Request) -> web.Response:
    return web.json_response({"size": sum([len(piece) async for piece in body_chunks(request)])})
