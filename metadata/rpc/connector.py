"""Outgoing connections, with a workaround for a fault of uvloop. Shared by calls, peers and first contact.

A socket that is handed to uvloop 0.23 belongs to libuv, which closes its descriptor. Python's socket is not
told when the connection was reset as early as the first bytes of the handshake went out. Whenever that is
collected it would close the same number once more: by then that of another connection, or of a file that is
being written. (Of one family with uvloop's issues 645, 653 and 738.)
"""

import socket
import ssl

from web.internals.aiohttp_client import FreshConnector
from web.name_lookup import NAMES


class Connector(FreshConnector):
    """The connections of one session."""

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
            resolver=NAMES,
            use_dns_cache=False,  # it has one
            socket_factory=lambda address: _Socket(*address[:3]),
        )


class _Socket(socket.socket):
    """One that closes nothing when it is collected. Until the loop has it, aiohttp closes it if need be."""

    def __del__(self) -> None:
        self.detach()
