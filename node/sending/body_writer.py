"""Sending a body at the pace of who takes it, but not to someone who takes nothing at all.

The pace is seen from the transport's buffer, and past it from the socket's: as long as bytes leave, however
slowly, the answer goes on. The head goes out with the first bytes of the body.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from coordinator.http.app import ClientGone
from coordinator.http.internals.aiohttp_server import require_nothing_sent, take_head
from coordinator.http.internals.tls import SLICE_BYTES
from node.diskio.executor import DiskWorkers
from node.diskio.pagecache import read_now
from node.peer.request_body import Piece
from node.sending.sendfile import BURST_BYTES, FileSender, SendfileRefused
from node.sending.splice import Flow
from node.sending.stall_watch import StallWatch
from node.storage.blob_reader import PIECE_BYTES, read_piece
from node.storage.segments import OpenBlob

STALL_TIMEOUT_S = 60.0  # a client that takes nothing for so long holds a descriptor and buffers for nothing
# Of one connection. Measured: 256 KiB and more let the kernel work in one go. A client that takes its time
# costs twice this at most.
WRITE_BUFFER_BYTES = 512 << 10
SMALL_BYTES = 64 << 10  # up to here one write of head and body beats sendfile
# What is read to be encrypted at once goes through here, in a core's cache all the time. For one event loop.
_SLICE = memoryview(bytearray(SLICE_BYTES))
_TURN_BYTES = BURST_BYTES // SLICE_BYTES * SLICE_BYTES  # of one encrypted answer; then others have their turn


async def send_body(
    request: web.Request, response: web.StreamResponse, body: AsyncIterator[Piece | Flow]
) -> None:
    """Send head and body. The first piece is fetched before the head goes out: until then errors can be told.

    What `body` raises after that, and a stall, break the connection: an answer never ends early in silence.
    """
    assert response.content_length is not None, "only a body of known length goes past aiohttp"
    first = await anext(body, b"")
    assert not isinstance(first, Flow), "one that fails can be told nobody"
    await response.prepare(request)
    transport = _transport(request)
    with StallWatch(transport, STALL_TIMEOUT_S) as watch:
        if first:
            watch.written_bytes += len(first)
            await response.write(first)
        slice_bytes, is_plain = WRITE_BUFFER_BYTES, transport.get_extra_info("sslcontext") is None
        if not is_plain:  # what TLS keeps has to be copied
            slice_bytes = SLICE_BYTES
            transport.set_write_buffer_limits(high=slice_bytes)
        async for piece in body:
            if isinstance(piece, Flow):
                await _pour(piece, request, transport, watch, is_plain=is_plain)
                continue
            watch.written_bytes += len(piece)
            for start in range(0, len(piece), slice_bytes):
                await _write_past(request, transport, memoryview(piece)[start : start + slice_bytes])
        await response.write_eof()


async def send_piece(request: web.Request, response: web.StreamResponse, piece: bytes) -> None:
    """Send head and a small body in one write."""
    await response.prepare(request)
    transport = _transport(request)
    if transport.get_write_buffer_size() == 0:
        await response.write_eof(piece)  # waits for nothing: the limit of the buffer is far
        return
    with StallWatch(transport, STALL_TIMEOUT_S) as watch:
        watch.written_bytes = len(piece)
        await response.write_eof(piece)


class FileRange:
    """A body out of a file: by sendfile where that is possible and worth it, else in large writes.

    `at` is the position in the file up to which it was sent, whatever was raised.
    """

    def __init__(
        self, request: web.Request, response: web.StreamResponse, disk: DiskWorkers, start: int, stop: int
    ) -> None:
        self.at = start
        self._request = request
        self._response = response
        self._disk = disk
        self._stop = stop
        self._transport = _transport(request)
        self._watch = StallWatch(self._transport, STALL_TIMEOUT_S)
        self._sender: FileSender | None = None
        self._head_is_out = False
        self._is_plain = self._transport.get_extra_info("sslcontext") is None

    async def begin(self) -> None:
        """Make the head ready, and send it if the body goes past the transport. Close it then in any case."""
        writer = await self._response.prepare(self._request)
        assert writer is not None
        if not self._is_plain:
            self._transport.set_write_buffer_limits(high=SLICE_BYTES)  # what is kept has to be copied
        elif self._stop - self.at > SMALL_BYTES:
            await self._flush(writer)
            self._sender = FileSender(self._transport, self._disk, self._watch)
            head = take_head(writer)
            self._head_is_out = True
            if unsent := self._sender.send_head(head):
                self._transport.write(unsent)
                await self._flush(writer)

    async def send(self, blob: OpenBlob, until: int) -> None:
        """Send up to `until`. Raises ConnectionError; BlobDamaged when the disk has the bytes no more."""
        if self._sender is not None:
            sender = self._sender
            start = self.at
            try:
                await sender.send(blob, start, until)
                return
            except SendfileRefused:
                sender.close()
                self._sender = None
            finally:
                self.at = sender.at
                self._request.writer.output_size += sender.at - start  # what the log and the metrics tell
        await self._send_copies(blob, until)

    async def _send_copies(self, blob: OpenBlob, until: int) -> None:
        while self.at < until:
            if self._request.protocol.writing_paused:
                await self._request.writer.drain()
            if not self._is_plain and self._head_is_out and self._send_cached(blob, until):
                await asyncio.sleep(0)  # others on the loop have their turn
                continue
            piece = await read_piece(self._disk, blob, self.at, min(PIECE_BYTES, until - self.at))
            self.at += len(piece)
            self._watch.written_bytes += len(piece)
            if not self._head_is_out:
                await self._response.write(piece)
                self._head_is_out = True
                continue
            await _write_past(self._request, self._transport, piece)

    def _send_cached(self, blob: OpenBlob, until: int) -> int:
        """How many bytes went out: what the page cache has, as long as they are taken, for one turn.

        A plain transport would keep the memory instead of what is in it. Raises ClientGone.
        """
        transport, protocol, slice_ = self._transport, self._request.protocol, _SLICE
        if transport.is_closing():
            raise ClientGone("the client went away while its answer went out")
        at, stop = self.at, min(until, self.at + _TURN_BYTES)
        while at < stop and not protocol.writing_paused:
            if stop - at < SLICE_BYTES:
                slice_ = _SLICE[: stop - at]
            count = read_now(blob.fd, at, slice_)
            if not count:
                break
            transport.write(slice_[:count] if count < len(slice_) else slice_)
            at += count
        sent_bytes = at - self.at
        self.at = at
        self._watch.written_bytes += sent_bytes
        self._request.writer.output_size += sent_bytes
        return sent_bytes

    async def end(self) -> None:
        """The whole body was sent."""
        writer, is_head_out = self._request.writer, self._head_is_out
        sent_bytes = writer.output_size
        await self._response.write_eof()
        if is_head_out:
            require_nothing_sent(writer, sent_bytes)

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()
        if self._sender is not None:
            self._sender.close()

    async def _flush(self, writer: AbstractStreamWriter) -> None:
        """Wait until the transport holds nothing back."""
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)
            await writer.drain()
            self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)


async def _pour(
    flow: Flow, request: web.Request, transport: asyncio.Transport, watch: StallWatch, *, is_plain: bool
) -> None:
    """Send the client what a peer sends, as it comes. Raises ConnectionError."""
    protocol, writer = request.protocol, request.writer

    def take(data: memoryview) -> bool:
        if transport.is_closing():
            raise ClientGone("the client went away while its answer went out")
        transport.write(bytes(data) if is_plain else data)  # a plain one would keep the memory
        watch.written_bytes += len(data)
        writer.output_size += len(data)
        return not protocol.writing_paused

    await flow.pour(take, writer.drain)


async def _write_past(request: web.Request, transport: asyncio.Transport, piece: Piece | memoryview) -> None:
    """Write behind a head that is out. What aiohttp does for each write is worth a tenth of the encryption.

    Raises ConnectionError.
    """
    if transport.is_closing():
        raise ClientGone("the client went away while its answer went out")
    transport.write(piece)
    request.writer.output_size += len(piece)
    if request.protocol.writing_paused:
        await request.writer.drain()


def _transport(request: web.Request) -> asyncio.Transport:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ClientGone("the client went away before its answer")
    try:
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
    except RuntimeError as error:  # uvloop: closed below, by an error, without being closed by anybody here
        raise ClientGone("the client went away before its answer") from error
    return transport
