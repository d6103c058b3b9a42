"""The download that is asked for most, answered past the HTTP machinery: a file that is hot on this node.

Hot: its record is kept and true, its blob is open and found sound, for a small answer its bytes are in the
page cache. The answer is the one that `node/content/download.py` gives, header for header; whatever is not
hot, or not plain, or would be refused, is left to that.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, closing
from typing import Final

import uuid_utils

from ca.errors import FilestoreError
from coordinator.direct import DirectAnswer, Drain
from coordinator.records import Caller, ContentRecord
from coordinator.web import ClientGone
from node.conditions import http_date
from node.content.download import describe
from node.content.handlers import PRIVATE_POLICY
from node.content.hothead import BEGINNING, Fields, lines_of, parse_head
from node.content.sources import NoReplica, note_failure, read_anywhere
from node.reading import PIECE_BYTES, open_blob
from node.segments import BlobDamaged, BlobMissing
from node.sendfile import FileSender, SendfileRefused
from node.sending import SMALL_BYTES, STALL_TIMEOUT_S
from node.services import NodeServices
from node.stalling import StallWatch

Kept = Callable[[Caller, str], ContentRecord | None]  # a record as good as one that is asked for now
_SendFile = Callable[
    [bytes, ContentRecord, int, int, asyncio.Transport, Drain], Coroutine[object, object, None]
]

ROUTE: Final = "/api/v1/files/{file_uuid}"
SENT_BYTES_MAX: Final = 8 << 20  # of more the ordinary way costs little, and checks segments while it sends
_PATH: Final = BEGINNING.decode().removeprefix("GET ")
CONTENTS_DESCRIBED_MAX: Final = 4096
_PART: Final = b"HTTP/1.1 206 Partial Content\r\n%bContent-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n%b"
_WHOLE: Final = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n%b"
_CLOSING_LINES: Final = b"Date: %b\r\nServer: Filestore\r\nX-Request-Id: %b\r\n\r\n"


class HotPath:
    """`kept` tells what this process knows of a file without asking anybody."""

    def __init__(self, services: NodeServices, kept: Kept) -> None:
        self._services = services
        self._kept = kept
        self._sent_bytes = services.metrics.download_bytes.labels("local")

    def answer(self, data: bytes, transport: asyncio.Transport) -> DirectAnswer | None:
        """The answer to what a client sent, None when that has to go the ordinary way."""
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
                body = self._services.blobs.opened.read_cached(content.file.blob_sha256, start, stop)
                if not body:
                    return None
                self._sent_bytes.inc(stop - start)
                return _answer(content, fields, start, stop, body=body)
            if is_plain and self._is_sendable(content, start, stop):
                return _answer(content, fields, start, stop, send=self._send_file)
        except OSError:
            pass  # whoever reads it in earnest meets this again
        return None

    def _find(self, file_uuid: str, token: str) -> ContentRecord | None:
        """What this caller may read, if it is known and lies here."""
        services = self._services
        try:
            claims = services.api.view.verify(token)
        except FilestoreError:
            return None  # the ordinary way counts it, and puts it on record
        content = self._kept(Caller(claims.subject, claims.generation, token), file_uuid)
        return content if content is not None and services.node_id in content.replicas else None

    def _is_sendable(self, content: ContentRecord, start: int, stop: int) -> bool:
        return stop - start <= SENT_BYTES_MAX and self._services.blobs.opened.is_ready(
            content.file.blob_sha256, start, stop
        )

    async def _send_file(
        self,
        head: bytes,
        content: ContentRecord,
        start: int,
        stop: int,
        transport: asyncio.Transport,
        drain: Drain,
    ) -> None:
        """Send head and bytes `start` to `stop`, from another replica on when this one fails.

        Raises ConnectionError, Unavailable when no replica is left.
        """
        services, at = self._services, start
        with StallWatch(transport, STALL_TIMEOUT_S) as watch:
            with closing(FileSender(transport, services.disk, watch)) as sender:
                unsent = sender.send_head(head)
                if not unsent:
                    at = await self._send_own(sender, content, start, stop)
            if unsent:
                transport.write(unsent)
            if at == stop:
                return
            await self._send_copies(content, at, stop, transport, drain, watch)

    async def _send_copies(
        self,
        content: ContentRecord,
        at: int,
        stop: int,
        transport: asyncio.Transport,
        drain: Drain,
        watch: StallWatch,
    ) -> None:
        """Send what is left from wherever it is; a record that names no replica that has it is dropped."""
        sha256 = content.file.blob_sha256
        try:
            async with aclosing(read_anywhere(self._services, sha256, content.replicas, at, stop)) as reading:
                async for piece in reading:
                    if transport.is_closing():
                        raise ClientGone("the client went away while its answer went out")
                    transport.write(piece)
                    watch.written_bytes += len(piece)
                    await drain()
        except NoReplica:
            self._services.records.forget(content.file.file_uuid)
            raise

    async def _send_own(self, sender: FileSender, content: ContentRecord, start: int, stop: int) -> int:
        """Send what this disk has; where that ended: `stop`, or before it. Raises ConnectionError."""
        services, sha256 = self._services, content.file.blob_sha256
        sender.at = start
        try:
            blob = await open_blob(services.disk, services.blobs, sha256)
            with closing(blob):
                await sender.send(blob, start, stop)
        except SendfileRefused:
            pass
        except (BlobMissing, BlobDamaged, FilestoreError) as failure:
            await note_failure(services, sha256, services.node_id, failure)
        finally:
            self._sent_bytes.inc(sender.at - start)
        return sender.at


def _answer(
    content: ContentRecord,
    fields: Fields,
    start: int,
    stop: int,
    *,
    body: bytes = b"",
    send: _SendFile | None = None,
) -> DirectAnswer:
    """The answer that `serve_content` and the shell around it would give."""
    file = content.file
    is_part = fields.first >= 0
    request_id = fields.request_id or str(uuid_utils.uuid7())
    lines = _content_lines(file.blob_sha256, file.filename, content.available_at_ms, file.content_type)
    closing_lines = _CLOSING_LINES % (_date(int(time.time())), request_id.encode("ascii"))
    if is_part:
        head = _PART % (lines, start, stop - 1, file.size_bytes, stop - start, closing_lines)
    else:
        head = _WHOLE % (lines, stop - start, closing_lines)
    return DirectAnswer(
        request_id=request_id,
        route=ROUTE,
        path=_PATH + file.file_uuid,
        status=206 if is_part else 200,
        size_bytes=len(head) + stop - start,
        pieces=(head, body),
        send=None if send is None else functools.partial(send, head, content, start, stop),
    )


@functools.lru_cache(CONTENTS_DESCRIBED_MAX)
def _content_lines(sha256: str, filename: str, available_at_ms: int, content_type: str) -> bytes:
    """The lines that belong to the content, and to every private answer."""
    headers = {**describe(sha256, filename, available_at_ms), **PRIVATE_POLICY, "Content-Type": content_type}
    return lines_of(headers)


@functools.lru_cache(2)
def _date(at_s: int) -> bytes:
    return http_date(at_s * 1000).encode("ascii")
