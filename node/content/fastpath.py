"""The download that is asked for most, answered past the HTTP machinery: a file that is hot on this node.

Hot: its record is kept and true, its blob is open and found sound, for a small answer its bytes are in the
page cache. The answer is the one that `node/content/download.py` gives, header for header; whatever is not
hot, or not plain, or would be refused, is left to that.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Final

import msgspec
import uuid_utils
from msgspec import Struct

from ca.errors import FilestoreError
from coordinator.http.app import ClientGone
from coordinator.http.fastpath import DirectAnswer, Drain
from coordinator.model.records import Caller, ContentRecord
from node.content.context import ContentContext
from node.content.download import describe
from node.content.fastpath_head import BEGINNING, Fields, lines_of, parse_head
from node.content.handlers import PRIVATE_POLICY
from node.content.sources import NoReplica, note_failure, read_pieces
from node.http.conditions import http_date
from node.sending.body_writer import SMALL_BYTES, STALL_TIMEOUT_S
from node.sending.sendfile import FileSender, SendfileRefused, send_now
from node.sending.stall_watch import StallWatch
from node.storage.blob_reader import PIECE_BYTES, open_blob
from node.storage.segments import BlobDamaged, BlobMissing

Kept = Callable[[Caller, str], ContentRecord | None]  # a record as good as one that is asked for now

ROUTE: Final = "/api/v1/files/{file_uuid}"
SENT_BYTES_MAX: Final = 8 << 20  # of more the ordinary way costs little, and checks segments while it sends
_PATH: Final = BEGINNING.decode().removeprefix("GET ")
CONTENTS_DESCRIBED_MAX: Final = 4096
JOINED_BYTES_MAX: Final = 16 << 10  # of a body: up to here a copy costs less than a second piece of a write
_PART: Final = b"HTTP/1.1 206 Partial Content\r\n%bContent-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n"
_WHOLE: Final = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n"
_CLOSING_LINES: Final = b"Date: %b\r\nServer: Filestore\r\nX-Request-Id: "
_END_OF_HEAD: Final = b"\r\n\r\n"


class _Described(Struct, frozen=True):
    """What all answers with a content have in common. `whole` is the head of 200, up to its date."""

    content: ContentRecord
    lines: bytes
    whole: bytes
    path: str


class HotPath:
    """`kept` tells what this process knows of a file without asking anybody."""

    def __init__(self, services: ContentContext, kept: Kept) -> None:
        self._services = services
        self._kept = kept
        self._sent_bytes = services.metrics.download_bytes.labels("local")
        self._described: dict[str, _Described] = {}
        self._dated = (0, b"")  # the closing lines of a second

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
                return self._answer(content, fields, start, stop, body=body)
            if is_plain and stop - start <= SENT_BYTES_MAX and not self._services.disk.hangs():
                return self._send_at_once(content, fields, start, stop, transport)
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

    def _send_at_once(
        self, content: ContentRecord, fields: Fields, start: int, stop: int, transport: asyncio.Transport
    ) -> DirectAnswer | None:
        """An answer of which as much is sent as goes at once: a range of 1 MiB needs no task then.

        None when something has to be verified first. Raises OSError.
        """
        blob = self._services.blobs.opened.take(content.file.blob_sha256)
        if blob is None:
            return None
        with blob:
            if stop > blob.size_bytes or not blob.is_trusted(start, stop):
                return None
            answer = self._answer(content, fields, start, stop)
            (head,) = answer.pieces
            sent_bytes = send_now(transport, head, blob, start, stop)
        at = start + max(0, sent_bytes - len(head))
        self._sent_bytes.inc(at - start)
        if at == stop:
            return msgspec.structs.replace(answer, pieces=())
        send = functools.partial(self._send_file, head[sent_bytes:], content, at, stop)
        return msgspec.structs.replace(answer, send=send)

    def _answer(
        self, content: ContentRecord, fields: Fields, start: int, stop: int, *, body: bytes = b""
    ) -> DirectAnswer:
        """The answer that `serve_content` and the shell around it would give; `body` may come otherwise."""
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
        """Those that every answer ends with, up to the id of its request."""
        now_s = int(time.time())
        if self._dated[0] != now_s:
            self._dated = (now_s, _CLOSING_LINES % http_date(now_s * 1000).encode("ascii"))
        return self._dated[1]

    async def _send_file(
        self,
        head: bytes,
        content: ContentRecord,
        start: int,
        stop: int,
        transport: asyncio.Transport,
        drain: Drain,
    ) -> None:
        """Send what is left of the head, and bytes `start` to `stop`.

        It goes on from another replica when this one fails.

        Raises ConnectionError, Unavailable when no replica is left.
        """
        services, at = self._services, start
        with StallWatch(transport, STALL_TIMEOUT_S) as watch:
            with closing(FileSender(transport, services.disk, watch)) as sender:
                unsent = sender.send_head(head) if head else b""
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
            async with aclosing(read_pieces(self._services, sha256, content.replicas, at, stop)) as reading:
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


def _describe(content: ContentRecord) -> _Described:
    """The lines that belong to the content, and to every private answer."""
    file = content.file
    facts = describe(file.blob_sha256, file.filename, content.available_at_ms)
    lines = lines_of({**facts, **PRIVATE_POLICY, "Content-Type": file.content_type})
    return _Described(content, lines, _WHOLE % (lines, file.size_bytes), _PATH + file.file_uuid)
