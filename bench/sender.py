"""A process that sends bodies as cheaply as the kernel lets it, so that it is not what is measured.

    python -m bench.sender

Orders and answers are those of `bench.orders`. A body is a few bytes of its own, so that no two are equal,
and then the same random block again and again: by sendfile from the page cache, over TLS in large writes. The
block lies in a file that was written at once, whose pages are large where the file system has such: from a
memfd, page by page, sending a GiB costs the machine 0.1 s more.
"""

import os
import socket
import ssl
import tempfile

from msgspec import Struct

from bench.orders import Moved, obey_orders, run_at_once

BLOCK_BYTES = 64 << 20
TLS_WRITE_BYTES = 1 << 20
OWN_BYTES = 64
HEAD_BYTES_MAX = 65536
TIMEOUT_S = 120.0


class Order(Struct, frozen=True, kw_only=True):
    """One PUT on a connection of its own for each path. `credential` is a header line or ""."""

    port: int
    paths: list[str]
    body_bytes: int
    credential: str = ""
    tls: bool = False


class Sender:
    """One connection of an order; the TLS handshake is done when it is made."""

    def __init__(self, order: Order, path: str, block: int) -> None:
        self.order, self.path, self.error = order, path, ""
        self._block = block
        self.socket = socket.create_connection(("127.0.0.1", order.port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if order.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket)

    def run(self) -> None:
        """Send the request and take its answer."""
        lines = [f"PUT {self.path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {self.order.body_bytes}"]
        head = "\r\n".join([*lines, *filter(None, [self.order.credential]), "", ""]).encode("ascii")
        try:
            self.socket.sendall(head + os.urandom(OWN_BYTES))
            left_bytes = self.order.body_bytes - OWN_BYTES
            while left_bytes:
                left_bytes -= self._send(min(left_bytes, BLOCK_BYTES))
            self._take_answer()
        except (OSError, RuntimeError) as error:
            self.error = repr(error)

    def _send(self, count: int) -> int:
        if not self.order.tls:
            with open(self._block, "rb", closefd=False) as block:
                self.socket.sendfile(block, 0, count)
            return count
        for start in range(0, count, TLS_WRITE_BYTES):
            piece = os.pread(self._block, min(TLS_WRITE_BYTES, count - start), start)
            self.socket.sendall(piece)
        return count

    def _take_answer(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = self.socket.recv(HEAD_BYTES_MAX)
            if not piece:
                raise RuntimeError("closed without an answer")
            head += piece
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(head.decode("latin-1"))


def main() -> None:
    """Obey orders until there are no more."""
    with tempfile.TemporaryFile(buffering=0) as block:
        written = block.write(os.urandom(BLOCK_BYTES))
        assert written == BLOCK_BYTES, "the disk is full"
        os.fsync(block)  # nothing of it is written while others are measured

        def obey(order: Order) -> Moved:
            senders = [Sender(order, path, block.fileno()) for path in order.paths]
            moved = run_at_once(senders)
            for sender in senders:
                sender.socket.close()
            return moved

        obey_orders(Order, obey)


if __name__ == "__main__":
    main()
