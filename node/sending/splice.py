"""Large bodies of peers are handed on as they are decrypted, without the copies of an HTTP parser.

After the first bytes of a response, its connection gets another protocol, into whose buffer TLS decrypts. The
bytes go out at once, encrypted again or copied to the kernel, while they are in a core's cache. No bytes wait
in between, so a slow reader costs no memory here: the peer waits. The connection is closed afterwards, so
this is for bodies so large that a handshake does not matter.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import aiohttp
from prometheus_client import Counter

from node.peer.client import PeerFailed, pieces
from node.peer.request_body import Piece
from web.internals.tls import SLICE_BYTES

BULK_BYTES_MIN = 4 << 20  # a handshake costs about as much as 2 MiB
COUNT_INTERVAL_S = 1.0  # between two updates of the counters
# Decrypted bytes pass through here, which stays in a core's cache. For one event loop.
_POURED = memoryview(bytearray(SLICE_BYTES))

Take = Callable[[memoryview], bool]
Room = Callable[[], Awaitable[None]]


async def bulk_pieces(
    node_id: str,
    response: aiohttp.ClientResponse,
    size_bytes: int,
    received: Counter,
    *,
    stall_timeout_s: float,
) -> "AsyncGenerator[Piece | Flow, None]":
    """Iterate over the body of a peer's response. Close it when leaving early.

    The first items are bytes. If `size_bytes`, the length of the body, is large, its rest is a flow, which
    has to be poured before the next item is requested. All bytes are counted in `received`. Raises
    PeerFailed, also if no byte arrives for `stall_timeout_s` while one is awaited.
    """
    flow: Flow | None = None
    async with aclosing(_bytes(node_id, response, received)) as body:
        async for piece in body:
            size_bytes -= len(piece)
            yield piece
            if (flow := _take_over(response, size_bytes, received, stall_timeout_s)) is not None:
                break
    if flow is None:
        return
    try:
        if flow.early:
            yield flow.early
        yield flow
        if flow.failure is not None:
            raise PeerFailed(node_id, flow.failure)
        assert flow.is_over, "it was not poured"
    finally:
        response.close()


async def _bytes(
    node_id: str, response: aiohttp.ClientResponse, received: Counter
) -> AsyncGenerator[Piece, None]:
    async with aclosing(pieces(node_id, response)) as body:
        async for piece in body:
            received.inc(len(piece))
            yield piece


def _take_over(
    response: aiohttp.ClientResponse, size_bytes: int, received: Counter, stall_timeout_s: float
) -> "Flow | None":
    """Take the connection from aiohttp for the rest of the body; None if that is small, or encoded.

    No byte can arrive in between, as this does not wait.
    """
    connection, content = response.connection, response.content
    if size_bytes < BULK_BYTES_MIN or connection is None or connection.transport is None:
        return None
    if content.is_eof() or content.exception() is not None or "Transfer-Encoding" in response.headers:
        return None
    transport, early = connection.transport, content.read_nowait()
    received.inc(len(early))
    transport.pause_reading()
    flow = Flow(transport, early, size_bytes - len(early), received, stall_timeout_s)
    transport.set_protocol(flow)
    return flow


class Flow(asyncio.BufferedProtocol):
    """The bytes that arrive on one connection until a body ends, for one caller."""

    def __init__(
        self,
        transport: asyncio.Transport,
        early: bytes,
        lacking_bytes: int,
        received: Counter,
        stall_timeout_s: float,
    ) -> None:
        self.early = early  # to be consumed first
        self.poured_bytes = 0
        self.counters = [received]  # of the consumed bytes
        self.failure: str | None = None  # of the peer
        self._transport = transport
        self._lacking_bytes = lacking_bytes
        self._counted_bytes = 0
        self._stall_timeout_s = stall_timeout_s
        self._take: Take | None = None
        self._refusal: Exception | None = None
        self._moved_at_s = 0.0
        self._is_full = False
        self._changed = asyncio.Event()
        self._now_s = asyncio.get_running_loop().time

    @property
    def is_over(self) -> bool:
        """Return whether all of it was consumed."""
        return not self._lacking_bytes

    async def pour(self, take: Take, room: Room) -> None:
        """Hand over all bytes until the body or the connection ends; the latter is a `failure`.

        `take` gets bytes in memory that is reused when it returns, and returns whether it can accept more at
        once. If not, `room` is awaited first. Raises what they raise.
        """
        self._take = take
        try:
            while self._lacking_bytes and self.failure is None:
                self._changed.clear()
                self._moved_at_s = self._now_s()
                self._transport.resume_reading()
                await self._watch()
                if self._refusal is not None:
                    raise self._refusal
                if self._is_full:
                    self._is_full = False
                    await room()
        finally:
            self._take = None
            self._count()

    async def _watch(self) -> None:
        """Wait until an event other than bytes has to be handled."""
        while not self._changed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(COUNT_INTERVAL_S, self._stall_timeout_s)):
                    await self._changed.wait()
            self._count()
            if not self._changed.is_set() and self._now_s() - self._moved_at_s >= self._stall_timeout_s:
                self._fail("fell silent")

    def _count(self) -> None:
        for counter in self.counters:
            counter.inc(self.poured_bytes - self._counted_bytes)
        self._counted_bytes = self.poured_bytes

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where the next bytes go; what follows the body is dropped."""
        return _POURED[: self._lacking_bytes or 1]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over `nbytes` new bytes."""
        if not self._lacking_bytes:
            return
        if self._take is None:  # not while reading pauses: later bytes are not wanted next
            self._fail("sent unexpected data")
            return
        self._lacking_bytes -= nbytes
        self.poured_bytes += nbytes
        self._moved_at_s = self._now_s()
        try:
            is_wanted = self._take(_POURED[:nbytes])
        except Exception as error:  # noqa: BLE001  # the loop calls this: `pour` raises it
            self._refusal, is_wanted = error, False
        if not is_wanted or not self._lacking_bytes:
            self._is_full = not is_wanted
            self._transport.pause_reading()
            self._changed.set()

    def eof_received(self) -> None:
        """Note that the peer sends nothing more."""
        self._fail("ended early")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self._fail(f"{type(exc).__name__}: {exc}" if isinstance(exc, OSError) else "connection lost")

    def _fail(self, reason: str) -> None:
        if self._lacking_bytes:  # anything after the body is ignored
            self.failure = self.failure or reason
            self._changed.set()
