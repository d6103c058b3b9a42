"""A process that sends bodies as cheaply as the kernel lets it, so that it is not what is measured.

    python -m bench.sender

Orders come as JSON lines on stdin, each is answered by one on stdout; it ends with its stdin. A body is a
few bytes of its own, so that no two are equal, and then the same random block again and again: by sendfile
from memory, over TLS in large writes.
"""

import os
import resource
import socket
import ssl
import sys
import threading
import time
from contextlib import closing

import msgspec
from msgspec import Struct

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


class Outcome(Struct, frozen=True, kw_only=True):
    """Of all connections together: time from the first request to the last answer, and what it cost here."""

    elapsed_s: float
    cpu_s: float
    error: str = ""


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


def obey(order: Order, block: int) -> Outcome:
    """Every connection in a thread of its own; all are open before the first request is sent."""
    senders = [Sender(order, path, block) for path in order.paths]
    threads = [threading.Thread(target=sender.run) for sender in senders]
    cpu_s, started_at = _cpu_s(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s, spent_s = time.perf_counter() - started_at, _cpu_s() - cpu_s
    for sender in senders:
        with closing(sender.socket):
            pass
    error = next((sender.error for sender in senders if sender.error), "")
    return Outcome(elapsed_s=elapsed_s, cpu_s=spent_s, error=error)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Obey orders until there are no more."""
    block = os.memfd_create("block")
    for _ in range(BLOCK_BYTES >> 20):
        os.write(block, os.urandom(1 << 20))
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        outcome = obey(msgspec.json.decode(line, type=Order), block)
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
