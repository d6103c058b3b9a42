"""A server that does with a PUT what no server could leave out, as a yardstick.

    python -m bench.bare DIRECTORY PLAIN_PORT TLS_PORT CERTIFICATE KEY

The kernel, or TLS, writes into a few large buffers; one thread hashes them with sha256 and writes them; the
file is synced and the request answered. Nobody is authorised, nothing is committed, no offset is kept,
nothing is ready to be sent to others, and the file is gone at the end. It serves until standard input ends.
"""

import asyncio
import hashlib
import os
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop

from deploy.processes import LOOPBACK
from node.server import keep_large_buffers

BUFFER_BYTES = 512 << 10
BUFFERS = 8


class Put(asyncio.BufferedProtocol):
    """One connection, with one request on it."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._thread = ThreadPoolExecutor(1)
        self._idle = [memoryview(bytearray(BUFFER_BYTES)) for _ in range(BUFFERS)]
        self._filling: memoryview | None = self._idle.pop()
        self._filled_bytes = 0
        self._left_bytes: int | None = None  # of the body; None before the end of the head
        self._in_thread = 0  # buffers
        self._sha256 = hashlib.sha256()
        self._file = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bytes follow."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's is none

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The thread ends what it has begun."""
        self._thread.shutdown()
        if self._file >= 0:
            os.close(self._file)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go."""
        assert self._filling is not None
        left_bytes = BUFFER_BYTES if self._left_bytes is None else self._left_bytes
        return self._filling[self._filled_bytes : self._filled_bytes + left_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """So many have come."""
        self._filled_bytes += nbytes
        if self._left_bytes is None:
            self._begin()
        else:
            self._left_bytes -= nbytes
        if self._filled_bytes == BUFFER_BYTES or not self._left_bytes:
            self._hand_over()

    def _begin(self) -> None:
        """The head has come with the first bytes: the sender writes it at once."""
        assert self._filling is not None
        head, _, rest = bytes(self._filling[: self._filled_bytes]).partition(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self._left_bytes = int(length.partition(b":")[2]) - len(rest)
        self._filling[: len(rest)] = rest
        self._filled_bytes = len(rest)
        self._file = os.open(self._directory, os.O_TMPFILE | os.O_RDWR, 0o600)

    def _hand_over(self) -> None:
        assert self._filling is not None
        taken = self._thread.submit(self._take, self._filling, self._filled_bytes)
        taken.add_done_callback(
            lambda taken: self._loop.call_soon_threadsafe(self._give_back, taken.result())
        )
        self._in_thread += 1
        self._filling, self._filled_bytes = self._idle.pop() if self._idle else None, 0
        if self._filling is None or not self._left_bytes:
            self._transport.pause_reading()

    def _take(self, buffer: memoryview, count: int) -> memoryview:
        """In the thread."""
        written = os.write(self._file, buffer[:count])
        assert written == count, "the disk is full"
        self._sha256.update(buffer[:count])
        return buffer

    def _give_back(self, buffer: memoryview) -> None:
        self._in_thread -= 1
        if self._filling is None and self._left_bytes:
            self._filling = buffer
            self._transport.resume_reading()
        else:
            self._idle.append(buffer)
        if not self._left_bytes and not self._in_thread:
            synced = self._thread.submit(os.fsync, self._file)
            synced.add_done_callback(
                lambda synced: self._loop.call_soon_threadsafe(self._answer, synced.result())
            )

    def _answer(self, _synced: None) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        self._transport.close()


async def serve(directory: Path, plain_port: int, tls_port: int, certificate: str, key: str) -> None:
    """Both ports, until standard input ends."""
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    plain = await loop.create_server(lambda: Put(directory), LOOPBACK, plain_port)
    tls = await loop.create_server(lambda: Put(directory), LOOPBACK, tls_port, ssl=context)
    print("{}", flush=True)  # as a loader says that it is ready
    await loop.run_in_executor(None, sys.stdin.read)
    plain.close()
    tls.close()


if __name__ == "__main__":
    _, _directory, _plain_port, _tls_port, _certificate, _key = sys.argv
    keep_large_buffers()
    uvloop.run(serve(Path(_directory), int(_plain_port), int(_tls_port), _certificate, _key))
