"""Outgoing connections, as aiohttp makes and keeps them, without two faults of what lies below.

A socket that is handed to uvloop 0.23 belongs to libuv, which closes its descriptor. Python's socket is not
told when the connection was reset as early as the first bytes of the handshake went out. Whenever that is
collected it would close the same number once more: by then that of another connection, or of a file that is
being written. (Of one family with uvloop's issues 645, 653 and 738.)

aiohttp 3.14 pools a connection at the end of a body. Who then reads what was held back of the body starts the
timer for reading anew, it goes off in the pool, and the next request would fail for it at once.
"""

import functools
import socket
import ssl

import aiohttp
from aiohttp.client_proto import ResponseHandler


class Connector(aiohttp.TCPConnector):
    """Those of one session. `_factory` is private to aiohttp: read its changes before an upgrade."""

    def __init__(
        self, *, limit: int = 100, limit_per_host: int = 0, context: ssl.SSLContext | None = None
    ) -> None:
        """Make a connector; `context` is where a request brings none of its own.

        `limit` bounds all connections at once, 0 for none; `limit_per_host` bounds those to one address and
        port in the same way.
        """
        super().__init__(
            limit=limit,
            limit_per_host=limit_per_host,
            ssl=context if context is not None else True,
            socket_factory=lambda address: _Socket(*address[:3]),
        )
        self._factory = functools.partial(_Connection, loop=self._loop)  # type: ignore[assignment]


class _Socket(socket.socket):
    """One that closes nothing when it is collected. Until the loop has it, aiohttp closes it if need be."""

    def __del__(self) -> None:
        self.detach()


class _Connection(ResponseHandler):
    """One whose time ran out while it was idle is not handed out again."""

    def is_connected(self) -> bool:
        """Asked by the pool."""
        return super().is_connected() and self.exception() is None
