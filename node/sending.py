"""Sending a body piece by piece at the pace of who takes it, but not to someone who takes nothing at all.

The pace is seen from the transport's buffer: as long as bytes leave it, however slowly, the answer goes on.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from aiohttp import web

from node.peers import Piece

STALL_TIMEOUT_S = 60.0  # a client that takes nothing for so long holds a descriptor and buffers for nothing
WRITE_BUFFER_BYTES = 1 << 20  # of one connection; measured: 256 KiB and more let the kernel work in one go


async def send_body(request: web.Request, response: web.StreamResponse, body: AsyncIterator[Piece]) -> None:
    """Send head and body. The first piece is fetched before the head goes out: until then errors can be told.

    What `body` raises after that, and a stall, break the connection: an answer never ends early in silence.
    """
    piece = await anext(body, None)
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client went away")
    transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
    with _StallWatch(transport, STALL_TIMEOUT_S) as watch:
        while piece is not None:
            watch.written_bytes += len(piece)
            await response.write(piece)
            piece = await anext(body, None)
        await response.write_eof()


class _StallWatch:
    """Aborts the transport when nothing left its buffer between two looks, `timeout_s` apart.

    A timer rather than a deadline around each write: aiohttp's wait for a full buffer, once cancelled, is
    broken for every later write on the connection.
    """

    def __init__(self, transport: asyncio.WriteTransport, timeout_s: float) -> None:
        self.written_bytes = 0
        self._transport = transport
        self._timeout_s = timeout_s
        self._left_bytes = 0

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        buffered_bytes = self._transport.get_write_buffer_size()
        left_bytes = self.written_bytes - buffered_bytes
        if buffered_bytes and left_bytes <= self._left_bytes:
            self._transport.abort()
            return
        self._left_bytes = left_bytes
        self.__enter__()
