"""The body of one response goes to its client at the client's pace, each part of it in the cheapest way.

The pace is visible in the transport's buffer, and behind it in the socket's. As long as bytes leave, however
slowly, the response continues. A client that accepts no bytes at all is cut off
(`node/sending/stall_watch.py`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Self

from aiohttp import web

from node.diskio.executor import DiskWorkers
from node.peer.request_body import Piece
from node.sending.sendfile import BURST_BYTES, FileSender, SendfileRefused
from node.sending.splice import Flow
from node.sending.stall_watch import StallWatch
from node.storage.blob_reader import PIECE_BYTES, read_piece, sound_stops
from node.storage.segments import OpenBlob
from web.app import ClientGone
from web.internals.aiohttp_server import BodyResponse, ServerConnection, require_nothing_sent, take_head
from web.internals.tls import SLICE_BYTES

STALL_TIMEOUT_S = 60.0  # a client that accepts nothing in this time only holds a descriptor and buffers
# Of one connection. Measured: with 256 KiB and more, the kernel sends in one go. A slow client costs at most
# twice this.
WRITE_BUFFER_BYTES = 512 << 10
SMALL_BYTES = 64 << 10  # up to here one write of head and body beats sendfile
JOINED_BYTES_MAX = 16 << 10  # of a body: up to here a copy costs less than a second piece of a write
# Bytes that are read and encrypted at once pass through here, which stays in a core's cache. For one event
# loop.
_SLICE = memoryview(bytearray(SLICE_BYTES))
# Of one encrypted response; then others have their turn.
_TURN_BYTES = BURST_BYTES // SLICE_BYTES * SLICE_BYTES


class BodyWriter:
    """Sends one response to its client: the head goes out with the first bytes of the body.

    A failure before these can still be answered with an error. A later failure has to break the connection,
    as a response must not end early in silence. Leave it (`with`) in any case. Its methods raise
    ConnectionError if the client is gone, or accepts nothing for STALL_TIMEOUT_S.
    """

    def __init__(
        self,
        connection: ServerConnection,
        head: bytes = b"",
        answered: tuple[web.Request, BodyResponse] | None = None,
    ) -> None:
        """Write a response past aiohttp; `head` was not sent yet. Raises ClientGone.

        `answered` is for `for_response`.
        """
        if connection.transport is None:
            raise ClientGone("the client disconnected before its answer")
        self.transport = connection.transport
        self._connection = connection
        self._head = head
        self._answered = answered
        self._first: Piece = b""  # bytes of the body that go out with the head
        self._head_size_bytes = 0  # as aiohttp counts it
        self._has_begun = False
        self._is_plain = self.transport.get_extra_info("sslcontext") is None
        self._watch = StallWatch(self.transport, STALL_TIMEOUT_S)
        self._sender: FileSender | None = None

    @classmethod
    def for_response(cls, request: web.Request, response: BodyResponse) -> Self:
        """Write a response of aiohttp, which makes the head and then learns the size. Raises ClientGone."""
        assert isinstance(request.protocol, ServerConnection)
        return cls(request.protocol, answered=(request, response))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell_size()
        self._watch.stop()
        if self._sender is not None:
            self._sender.close()

    @property
    def sent_bytes(self) -> int:
        """Return how many bytes of the body were handed over for sending, also after an error."""
        return self._watch.written_bytes

    async def write(self, piece: Piece) -> None:
        """Send these bytes. A few first bytes wait here for more, or for the end."""
        if not self._has_begun:
            if self._answered is not None and not self._first and len(piece) <= SMALL_BYTES:
                self._first = piece  # this may be all, and the rest may fail
                self._watch.written_bytes += len(piece)
                return
            await self._begin()
        if self._head:
            self._require_open()
            head, self._head = self._head, b""
            if len(piece) <= JOINED_BYTES_MAX:
                self.transport.write(head + piece)
            else:
                self.transport.writelines((head, piece))
            self._watch.written_bytes += len(piece)
            if self._connection.writing_paused:
                await self._wait_for_room()
            return
        slice_bytes = WRITE_BUFFER_BYTES if self._is_plain else SLICE_BYTES  # TLS has to copy what it keeps
        for start in range(0, len(piece), slice_bytes):
            if not self._put(memoryview(piece)[start : start + slice_bytes]):
                await self._wait_for_room()

    async def send(self, body: AsyncIterator[Piece | Flow]) -> None:
        """Send all of these; a flow, which is not the first item, as it arrives. Raises what they raise."""
        async for piece in body:
            if not isinstance(piece, Flow):
                await self.write(piece)
                continue
            assert self.sent_bytes, "a flow that fails before the head is out could not be answered"
            if not self._has_begun:
                await self.write(b"")
            await piece.pour(self._take, self._wait_for_room)

    async def send_file(self, disk: DiskWorkers, blob: OpenBlob, start: int, stop: int) -> None:
        """Send bytes `start` to `stop` (excluded) of a blob, each of them from a verified segment.

        Raises BlobDamaged; bytes up to the damage may have gone out by then, which `sent_bytes` shows.
        """
        origin = start - self.sent_bytes
        by_sendfile = self._is_plain and blob.fd >= 0 and stop - start > SMALL_BYTES
        sender: FileSender | None = None
        async with aclosing(sound_stops(disk, blob, start, stop)) as sound:
            async for until in sound:
                if by_sendfile:
                    try:
                        sender = sender or await self._file_sender(disk)
                        await sender.send(blob, origin + self.sent_bytes, until)
                    except SendfileRefused:
                        by_sendfile = False
                while (at := origin + self.sent_bytes) < until:
                    await self._send_copy(disk, blob, at, until)

    async def end(self) -> None:
        """End the response after its last byte.

        Raises LibraryChanged if aiohttp would send part of it again.
        """
        if self._answered is None:
            if self._head:
                await self.write(b"")
            return
        request, response = self._answered
        if not self._has_begun:  # for a small response, the calls past aiohttp cost more than they save
            self._limit_buffer(WRITE_BUFFER_BYTES)
            await response.prepare(request)
            if self.transport.get_write_buffer_size():
                self._watch.start()
            await response.write_eof(bytes(self._first))
            return
        self._tell_size()
        output_bytes = request.writer.output_size
        await response.write_eof()
        require_nothing_sent(request.writer, output_bytes)

    async def _begin(self) -> None:
        """Prepare the head, and set the size of the transport's buffer for this response."""
        is_small = False
        self._limit_buffer(WRITE_BUFFER_BYTES)
        if self._answered is not None:
            request, response = self._answered
            writer = await response.prepare(request)
            assert writer is not None
            assert writer.length is not None, "only a body of known length goes past aiohttp"
            head = take_head(writer)
            self._head, self._first = head + self._first, b""
            self._head_size_bytes = writer.output_size
            is_small = writer.length <= SMALL_BYTES
        self._has_begun = True
        if not (self._is_plain or is_small):
            self._limit_buffer(SLICE_BYTES)  # TLS has to copy what it keeps

    async def _file_sender(self, disk: DiskWorkers) -> FileSender:
        """Send all bytes before the file: a head goes out with the first bytes of the file."""
        if not self._has_begun:
            await self._begin()
        await self._flush()
        if self._sender is None:
            self._sender = FileSender(self.transport, disk, self._watch)
        head, self._head = self._head, b""
        if head and (unsent := self._sender.send_head(head)):
            self.transport.write(unsent)
            await self._flush()
        return self._sender

    async def _send_copy(self, disk: DiskWorkers, blob: OpenBlob, at: int, until: int) -> None:
        """Send some of these bytes through the memory of this process."""
        if self._connection.writing_paused:
            await self._wait_for_room()
        if not self._is_plain and self._has_begun and self._send_cached(blob, at, until):
            await asyncio.sleep(0)  # let others on the loop have their turn
        else:
            await self.write(await read_piece(disk, blob, at, min(PIECE_BYTES, until - at)))

    def _send_cached(self, blob: OpenBlob, at: int, until: int) -> bool:
        """Send what the page cache has while the transport accepts it, for one turn.

        Return whether any was sent. For TLS: a plain transport would keep the memory instead of its content.
        """
        slice_, start, stop, is_taken = _SLICE, at, min(until, at + _TURN_BYTES), True
        while at < stop and is_taken:
            if stop - at < SLICE_BYTES:
                slice_ = _SLICE[: stop - at]
            count = blob.read_now(at, slice_)
            if not count:
                break
            is_taken = self._put(slice_[:count] if count < len(slice_) else slice_)
            at += count
        return at > start

    def _take(self, data: memoryview) -> bool:
        """Send bytes of a flow, whose memory is reused; return whether more can be accepted at once."""
        return self._put(bytes(data) if self._is_plain else data)

    def _put(self, data: Piece | memoryview) -> bool:
        """Write behind the head; return whether the transport accepts more at once.

        The work of aiohttp for each write costs as much as a tenth of the encryption.
        """
        self._require_open()
        self.transport.write(data)
        self._watch.written_bytes += len(data)
        return not self._connection.writing_paused

    async def _wait_for_room(self) -> None:
        """Wait until the transport's buffer is below its limits."""
        if self._connection.writing_paused:
            self._watch.start()
            await self._connection.drain()

    async def _flush(self) -> None:
        """Wait until the transport's buffer is empty."""
        self._require_open()
        if self.transport.get_write_buffer_size():
            self._limit_buffer(0)
            await self._wait_for_room()
            self._limit_buffer(WRITE_BUFFER_BYTES)

    def _limit_buffer(self, high_bytes: int) -> None:
        self._require_open()
        try:
            self.transport.set_write_buffer_limits(high=high_bytes)
        except RuntimeError as error:  # uvloop: an error below has closed the connection, not this process
            raise ClientGone("the client disconnected before its answer") from error

    def _require_open(self) -> None:
        if self.transport.is_closing():
            raise ClientGone("the client disconnected during its answer")

    def _tell_size(self) -> None:
        """Report the size to aiohttp: the log and the metrics read it there."""
        if self._answered is not None and self._has_begun:
            self._answered[0].writer.output_size = self._head_size_bytes + self.sent_bytes
