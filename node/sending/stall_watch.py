"""Cuts off a client that accepts no byte of its response. Shared by sendfile and the body writer.

A client that is only slow is not cut off.

Tested by tests/unit/node/sending/test_body_writer.py.
"""

import asyncio

from web.app import ClientGone


class StallWatch:
    """Aborts the transport if no byte left for the client between two checks, `timeout_s` apart.

    A timer rather than a deadline around each write: aiohttp's wait for a full buffer, once cancelled, is
    broken for every later write on the connection.
    """

    def __init__(self, transport: asyncio.WriteTransport, timeout_s: float) -> None:
        self.written_bytes = 0  # of the body: to the transport, or past it to the socket
        self.waiter: asyncio.Future[None] | None = None  # waits for room in the socket itself
        self._transport = transport
        self._timeout_s = timeout_s
        self._left_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the checks, unless they run: a caller is about to wait for the client."""
        if self._timer is None:
            self._left_bytes = self.written_bytes - self._buffered_bytes()
            self._look_later()

    def stop(self) -> None:
        """Stop the checks: the response has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        buffered_bytes = self._buffered_bytes()
        left_bytes = self.written_bytes - buffered_bytes
        if (buffered_bytes or self.waiter is not None) and left_bytes <= self._left_bytes:
            self._transport.abort()
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_exception(ClientGone("the client accepts no data"))
            return
        self._left_bytes = left_bytes
        self._look_later()

    def _buffered_bytes(self) -> int:
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()
