"""A process that takes bodies as cheaply as the kernel lets it, so that it is not what is measured.

    python -m bench.receiver

Orders and answers are those of `bench.orders`. A body is thrown away inside the kernel (MSG_TRUNC), or
copied to one buffer. Over TLS only the handshake is done: the records are counted and thrown away unread.
What comes is not looked at: that it is right is for tests.
"""

import mmap
import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing

from msgspec import Struct

from bench.orders import Moved, obey_orders, run_at_once

HEAD_BYTES_MAX = 4096  # read at once: of a long body only little comes through user space
DISCARD_BYTES = 64 << 20  # what one call throws away; the memory behind it is never touched
COPY_BYTES = 1 << 20
WAKE_BYTES = 256 << 10  # what has to be there before it is taken
TIMEOUT_S = 60.0
QUIET_S = 0.1  # without a byte for so long, all of an answer has come


class Order(Struct, frozen=True, kw_only=True):
    """One connection for each list of requests; `body_bytes` is the length of every answer's body.

    `wanted`: the first bytes of every head. Over TLS a connection has one request, which asks to close.
    """

    port: int
    requests: list[list[str]]
    body_bytes: int
    tls: bool = False
    copied: bool = False
    wanted: str = "HTTP/1.1 20"


def request_of(path: str, *headers: str) -> str:
    """The text of a GET; a header that is "" is left out."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    return "\r\n".join(line for line in lines if line) + "\r\n\r\n"


class Receiver:
    """One connection of an order."""

    def __init__(self, order: Order, requests: Sequence[str]) -> None:
        self.order, self.requests = order, [request.encode("ascii") for request in requests]
        self.socket = socket.create_connection(("127.0.0.1", order.port), TIMEOUT_S)
        self.readable = select.poll()
        self.readable.register(self.socket, select.POLLIN)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flags = socket.MSG_DONTWAIT | (0 if order.copied else socket.MSG_TRUNC)
        self.buffer = memoryview(mmap.mmap(-1, COPY_BYTES if order.copied else DISCARD_BYTES))
        self.error = ""
        self._sealed = [self._begin_tls(request) for request in self.requests] if order.tls else []

    def run(self) -> None:
        """Send every request and take its answer."""
        try:
            for request in self._sealed or self.requests:
                self.socket.sendall(request)
                self._take_answer()
        except (OSError, RuntimeError) as error:
            self.error = repr(error)

    def _take_answer(self) -> None:
        if self.order.tls:  # at least so much, and then the last bytes of the last record
            self._take(self.order.body_bytes)
            return
        head = b""
        while b"\r\n\r\n" not in head:
            piece = self.socket.recv(HEAD_BYTES_MAX)
            if not piece:
                raise RuntimeError("closed within a head")
            head += piece
        first, _, rest = head.partition(b"\r\n\r\n")
        if not first.decode("latin-1").startswith(self.order.wanted):
            raise RuntimeError(first.decode("latin-1"))
        self._take(self.order.body_bytes - len(rest))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _take(self, count: int) -> None:
        while count:
            # Woken for less, a client that has nothing to do costs the server more than the sending.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(count, WAKE_BYTES))
            if not self.readable.poll(TIMEOUT_S * 1000):
                raise RuntimeError(f"stalled with {count} bytes to come")
            taken = self.socket.recv_into(self.buffer, min(count, len(self.buffer)), self.flags)
            if taken == 0:
                raise RuntimeError(f"closed with {count} bytes to come")
            count -= taken

    def finish_tls(self) -> None:
        """Take what is left of the last records, then end the connection: nobody here says goodbye in TLS."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        while self.readable.poll(QUIET_S * 1000) and self.socket.recv(1 << 16):
            pass

    def _begin_tls(self, request: bytes) -> bytes:
        """Shake hands; the request as it goes over the wire."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        connection = context.wrap_bio(incoming, outgoing)
        while True:
            try:
                connection.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(outgoing.read())
                incoming.write(self.socket.recv(1 << 16))
        connection.write(request)
        return outgoing.read()


def obey(order: Order) -> Moved:
    """One order."""
    receivers = [Receiver(order, requests) for requests in order.requests]
    moved = run_at_once(receivers)
    for receiver in receivers:
        with closing(receiver.socket):
            if order.tls:
                receiver.finish_tls()
    return moved


if __name__ == "__main__":
    obey_orders(Order, obey)
