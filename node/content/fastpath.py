"""The fast path for common downloads, past the HTTP machinery: a file that is hot on this node.

Hot means: its record is cached and valid, its blob is open and verified, and for a small response its bytes
are in the page cache. The response is the one of `node/content/download.py`, header for header. Every other
request goes to that module: not hot, not plain, or to be rejected.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Final

import msgspec
import uuid_utils
from msgspec import Struct

from ca.errors import FilestoreError
from metadata.model.records import Caller, ContentRecord
from node.content.delivery import send_span
from node.content.download import describe
from node.content.fastpath_head import BEGINNING, Fields, lines_of, parse_head
from node.content.handlers import PRIVATE_POLICY
from node.content.sources import NoReplica
from node.sending.body_writer import JOINED_BYTES_MAX, SMALL_BYTES, BodyWriter
from node.sending.sendfile import send_now
from node.storage.blob_reader import PIECE_BYTES
from node.uploads.services import NodeServices
from web.fastpath import DirectAnswer
from web.headers.conditions import http_date
from web.internals.aiohttp_server import ServerConnection

Kept = Callable[[Caller, str], ContentRecord | None]  # a record as good as a new request for it

ROUTE: Final = "/api/v1/files/{file_uuid}"
# For larger responses the ordinary path costs little, and checks segments while it sends.
SENT_BYTES_MAX: Final = 8 << 20
_PATH: Final = BEGINNING.decode().removeprefix("GET ")
CONTENTS_DESCRIBED_MAX: Final = 4096
_PART: Final = b"HTTP/1.1 206 Partial Content\r\n%bContent-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n"
_WHOLE: Final = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n"
_CLOSING_LINES: Final = b"%bDate: %b\r\nServer: Filestore\r\nX-Request-Id: "
_END_OF_HEAD: Final = b"\r\n\r\n"


class _ResponseParts(Struct, frozen=True):
    """The common parts of all responses with a content. `whole` is the head of a 200, up to its date."""

    content: ContentRecord
    lines: bytes
    whole: bytes
    path: str


class HotPath:
    """The fast path of one process. `kept` returns the cached record of a file without a request.

    Requests from pages of another origin are not answered here: their browser sends the header Origin.
    """

    def __init__(self, services: NodeServices, kept: Kept) -> None:
        self._services = services
        self._common = lines_of(services.api.access.cors.headers("GET", {}))
        self._kept = kept
        self._sent_bytes = services.metrics.download_bytes.labels("local")
        self._described: dict[str, _ResponseParts] = {}
        self._dated = (0, b"")  # the closing header lines, cached for a second

    def answer(self, data: bytes, transport: asyncio.Transport) -> DirectAnswer | None:
        """Return the response to a client's bytes, None if the request has to take the ordinary path."""
        asked = parse_head(data)
        if asked is None:
            return None
        file_uuid, fields = asked
        content = self._find(file_uuid, fields.token)
        if content is None:
            return None
        size_bytes = content.file.size_bytes
        is_part = fields.first >= 0
        start, stop = (fields.first, min(fields.last + 1, size_bytes)) if is_part else (0, size_bytes)
        if start >= stop:
            return None
        is_plain = transport.get_extra_info("sslcontext") is None
        try:
            if stop - start <= (SMALL_BYTES if is_plain else PIECE_BYTES):
                opened, sha256 = self._services.blobs.opened, content.file.blob_sha256
                body = opened.read_cached(sha256, start, stop, size_bytes=size_bytes)
                if not body:
                    return None
                self._sent_bytes.inc(stop - start)
                return self._answer(content, fields, start, stop, body=body)
            if is_plain and stop - start <= SENT_BYTES_MAX and not self._services.disk.hangs():
                return self._send_at_once(content, fields, start, stop, transport)
        except OSError:
            pass  # the next reader of the file gets this error as well
        return None

    def _find(self, file_uuid: str, token: str) -> ContentRecord | None:
        """Return the content if this caller may read it, and it is known and stored here."""
        services = self._services
        try:
            claims = services.api.view.verify(token)
        except FilestoreError:
            return None  # the ordinary path counts and audits it
        content = self._kept(Caller(claims.subject, claims.generation, token, claims.session_id), file_uuid)
        return content if content is not None and services.node_id in content.replicas else None

    def _send_at_once(
        self, content: ContentRecord, fields: Fields, start: int, stop: int, transport: asyncio.Transport
    ) -> DirectAnswer | None:
        """Send as much as the socket accepts at once: a range of 1 MiB needs no task then.

        None if a segment has to be verified first. Raises OSError.
        """
        blob = self._services.blobs.opened.take(content.file.blob_sha256)
        if blob is None:
            return None
        with blob:
            if blob.size_bytes != content.file.size_bytes or not blob.is_trusted(start, stop):
                return None
            answer = self._answer(content, fields, start, stop)
            (head,) = answer.pieces
            sent_bytes = send_now(transport, head, blob, start, stop)
        at = start + max(0, sent_bytes - len(head))
        self._sent_bytes.inc(at - start)
        if at == stop:
            return msgspec.structs.replace(answer, pieces=())
        send = functools.partial(self._send_rest, head[sent_bytes:], content, at, stop)
        return msgspec.structs.replace(answer, send=send)

    def _answer(
        self, content: ContentRecord, fields: Fields, start: int, stop: int, *, body: bytes = b""
    ) -> DirectAnswer:
        """Return the response that `serve_content` and its shell would give; `body` may be sent otherwise."""
        known = self._described.get(content.file.file_uuid)
        if known is None or known.content is not content:
            if len(self._described) >= CONTENTS_DESCRIBED_MAX:
                self._described.clear()
            known = self._described[content.file.file_uuid] = _describe(content)
        is_part = fields.first >= 0
        head = known.whole
        if is_part:
            head = _PART % (known.lines, start, stop - 1, content.file.size_bytes, stop - start)
        request_id = fields.request_id or str(uuid_utils.uuid7())
        ending = (head, self._closing_lines(), request_id.encode("ascii"), _END_OF_HEAD)
        pieces: tuple[bytes, ...]
        if body and len(body) <= JOINED_BYTES_MAX:
            pieces = (b"".join((*ending, body)),)
            size_bytes = len(pieces[0])
        else:
            joined = b"".join(ending)
            pieces = (joined, body) if body else (joined,)
            size_bytes = len(joined) + stop - start
        return DirectAnswer(
            request_id=request_id,
            route=ROUTE,
            path=known.path,
            status=206 if is_part else 200,
            size_bytes=size_bytes,
            pieces=pieces,
        )

    def _closing_lines(self) -> bytes:
        """Return the last header lines of every response, up to its request id."""
        now_s = int(time.time())
        if self._dated[0] != now_s:
            date = http_date(now_s * 1000).encode("ascii")
            self._dated = (now_s, _CLOSING_LINES % (self._common, date))
        return self._dated[1]

    async def _send_rest(
        self, head: bytes, content: ContentRecord, start: int, stop: int, connection: ServerConnection
    ) -> None:
        """Send what is left of the head, and bytes `start` to `stop`.

        Raises ConnectionError, Unavailable when no replica is left: then the record is dropped.
        """
        try:
            with BodyWriter(connection, head) as out:
                await send_span(out, self._services, content, start, stop)
                await out.end()
        except NoReplica:
            self._services.records.forget(content.file.file_uuid)
            raise


def _describe(content: ContentRecord) -> _ResponseParts:
    """The lines that belong to the content, and to every private answer."""
    file = content.file
    facts = describe(file.blob_sha256, file.filename, content.available_at_ms)
    lines = lines_of({**facts, **PRIVATE_POLICY, "Content-Type": file.content_type})
    return _ResponseParts(content, lines, _WHOLE % (lines, file.size_bytes), _PATH + file.file_uuid)
