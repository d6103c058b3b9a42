"""Buffers that the kernel or TLS writes the rest of a body into, without a copy on the way.

While a ring has a connection, nothing else reads from the connection. Bytes after the body are its `rest`,
which is empty for a body of known length.

Buffers are reused and bounded: BUFFERS_MAX for one body, and SHARED_BYTES_MAX for all bodies of the process,
beyond which each body still gets BUFFERS_MIN. When LARGE_BYTES_MAX is in use, new buffers are small. Buffers
that an aborted body has handed out are not counted any more; they are freed when their writer has finished.
While all buffers are full, the socket is not read.

A consumer takes up to LENT_MAX buffers at once. Each hand-over costs as much as hashing 300 KiB, so fewer are
better, and while one batch is written and the next waits, a third can arrive. For one event loop.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from web.chunked import Framing, MalformedBody, Span

BUFFER_BYTES: Final = 2 << 20
SMALL_BUFFER_BYTES: Final = 512 << 10
LENT_MAX: Final = 3  # at once; the writer may have up to twice this number
BUFFERS_MAX: Final = 3 * LENT_MAX
BUFFERS_MIN: Final = LENT_MAX + 1  # while a lot is written, one fills, however scarce they are
LARGE_BYTES_MAX: Final = 64 << 20
SHARED_BYTES_MAX: Final = 96 << 20
IDLE_BYTES_MAX: Final = 16 << 20  # that are kept while there are no uploads
FILL_S: Final = 0.01  # what came is handed on after this, however little it is
SPANS_MAX: Final = 64  # of content in a buffer, which counts as full then; pieces of more are put together


class BufferPool:
    """The buffers of one process."""

    def __init__(self) -> None:
        self._idle: dict[int, list[bytearray]] = {BUFFER_BYTES: [], SMALL_BUFFER_BYTES: []}
        self.used_bytes = 0

    def take(self, used: int) -> bytearray | None:
        """A new buffer for a body that has `used` of them; None when the body must give one back first."""
        if used >= BUFFERS_MAX or (used >= BUFFERS_MIN and self.used_bytes >= SHARED_BYTES_MAX):
            return None
        size_bytes = BUFFER_BYTES if self.used_bytes < LARGE_BYTES_MAX else SMALL_BUFFER_BYTES
        self.used_bytes += size_bytes
        idle = self._idle[size_bytes]
        return idle.pop() if idle else bytearray(size_bytes)

    def give(self, buffer: bytearray) -> None:
        """Take back a buffer that is not used any more."""
        self.used_bytes -= len(buffer)
        idle_bytes = sum(size_bytes * len(idle) for size_bytes, idle in self._idle.items())
        if idle_bytes + len(buffer) <= IDLE_BYTES_MAX:
            self._idle[len(buffer)].append(buffer)

    def forget(self, buffers: Iterable[bytearray]) -> None:
        """Stop counting these buffers. They are still in use and will not be returned."""
        self.used_bytes -= sum(map(len, buffers))


POOL: Final = BufferPool()


class BodyRing(asyncio.BufferedProtocol):
    """The body that comes next on a connection.

    Events of the transport that do not concern its bytes are passed on to `connection`.
    """

    def __init__(self, connection: asyncio.Protocol, framing: Framing, pool: BufferPool = POOL) -> None:
        self.rest = b""
        self._connection = connection
        self._framing = framing
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._filling: bytearray | None = pool.take(0)
        self._filled_bytes = 0
        self._spans: list[Span] = []  # of content in what was filled
        self._full: list[tuple[bytearray, list[Span]]] = []
        self._lent: list[bytearray] = []
        self._lent_before: list[bytearray] = []
        self._is_lost = False
        self._is_paused = False
        self._malformed: MalformedBody | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Receive the bytes of this transport from now on. Its reading was paused, and is resumed."""
        self._transport = transport
        transport.set_protocol(self)
        transport.resume_reading()

    async def next_pieces(self, timeout_s: float) -> list[bytes | memoryview]:
        """Bytes that have come, in order, after waiting for some up to `timeout_s`: [] for nothing yet.

        They are the caller's until it calls for the second time after them; calls that got nothing do not
        count. Raises MalformedBody; EOFError when the connection was lost before the body was whole. It must
        not be called after the last piece.
        """
        self._take_back_lent()
        if not self._full and not self._is_over:
            await self._wait(timeout_s)
        if not self._full and self._spans:
            self._close_buffer()
        if not self._full and self._malformed is not None:
            raise self._malformed
        if not self._full and self._is_lost and not self._framing.is_ended:
            raise EOFError
        handed, self._full = self._full[:LENT_MAX], self._full[LENT_MAX:]
        for buffer, spans in handed:
            if spans:
                self._lent.append(buffer)
            else:
                self._pool.give(buffer)
        return [piece for buffer, spans in handed for piece in _pieces(buffer, spans)]

    @property
    def is_drained(self) -> bool:
        """Whether all of the body has arrived and was handed out."""
        return self._framing.is_ended and not self._full

    def close(self) -> None:
        """Read nothing any more. The bytes of pieces that the caller still has do not change."""
        if self._transport is not None and not self._is_lost:
            self._transport.pause_reading()
        for buffer, _ in self._full:
            self._pool.give(buffer)
        if self._filling is not None:
            self._pool.give(self._filling)
        self._pool.forget([*self._lent, *self._lent_before])
        self._full, self._lent, self._lent_before = [], [], []
        self._filling, self._filled_bytes, self._spans = None, 0, []

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """The memory that the next bytes are written into."""
        assert self._filling is not None, "reading is paused while no buffer is free"
        stop = min(len(self._filling), self._filled_bytes + self._framing.room_bytes)
        return memoryview(self._filling)[self._filled_bytes : stop]

    def buffer_updated(self, nbytes: int) -> None:
        """The transport has written `nbytes` into the buffer."""
        assert self._filling is not None
        start, self._filled_bytes = self._filled_bytes, self._filled_bytes + nbytes
        came = memoryview(self._filling)[start : self._filled_bytes]
        is_first = not self._spans
        try:
            spans, used_bytes = self._framing.scan(came)
        except MalformedBody as error:
            self._malformed = error
            self._stop_reading()
            self._wake()
            return
        self._add(spans, start)
        is_full = self._filled_bytes == len(self._filling) or len(self._spans) >= SPANS_MAX
        if self._framing.is_ended:
            self.rest = bytes(came[used_bytes:])
        if self._framing.is_ended or is_full:
            self._close_buffer()
            self._wake()
        elif self._waiter is not None and is_first and self._spans:
            self._wake_after(FILL_S)

    def eof_received(self) -> None:
        """The client sends no more; the transport closes itself."""
        self._is_lost = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the reader, and let the connection end the request."""
        self._is_lost = True
        self._wake()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on to the connection: it concerns what is sent."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on to the connection: it concerns what is sent."""
        self._connection.resume_writing()

    def _add(self, spans: list[Span], base: int) -> None:
        """Add spans of content; one that follows the last without a gap is joined with it."""
        for start, stop in spans:
            if self._spans and self._spans[-1][1] == base + start:
                self._spans[-1] = self._spans[-1][0], base + stop
            else:
                self._spans.append((base + start, base + stop))

    def _close_buffer(self) -> None:
        """Put the buffer that fills with the full ones, and take the next one, or pause reading."""
        assert self._filling is not None
        self._full.append((self._filling, self._spans))
        self._filling, self._filled_bytes, self._spans = None, 0, []
        if not self._framing.is_ended:
            self._filling = self._pool.take(self._used_count)
        if self._filling is None:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.pause_reading()
            self._is_paused = True

    @property
    def _is_over(self) -> bool:
        return self._is_lost or self._malformed is not None

    @property
    def _used_count(self) -> int:
        return len(self._full) + len(self._lent) + len(self._lent_before)

    def _take_back_lent(self) -> None:
        if self._lent:  # nothing was handed over at the last call, so the caller has none
            for buffer in self._lent_before:
                self._pool.give(buffer)
            self._lent, self._lent_before = [], self._lent
        if not self._is_paused or self._framing.is_ended or self._is_over:
            return
        self._filling = self._pool.take(self._used_count)
        if self._filling is not None and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    async def _wait(self, timeout_s: float) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        self._wake_after(FILL_S if self._spans else timeout_s)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)


def _pieces(buffer: bytearray, spans: list[Span]) -> list[bytes | memoryview]:
    view = memoryview(buffer)
    pieces = [view[start:stop] for start, stop in spans]
    return [b"".join(pieces)] if len(pieces) > SPANS_MAX else [*pieces]
