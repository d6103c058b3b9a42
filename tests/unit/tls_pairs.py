"""Pairs for tests of TLS: a protocol of ours that keeps what it is told, and OpenSSL's own socket."""

import _ssl
import asyncio
import ctypes
import hashlib
import os
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from bench.nginx import write_certificate
from web.internals.tls import TlsListening

BIG = os.urandom(1 << 20) * 24
SHUTDOWN_S = 60.0  # what ends sooner did not wait for it


Run = Callable[[Coroutine[None, None, None]], None]


def server_context(directory: Path) -> ssl.SSLContext:
    """Of a server with a certificate that nobody verifies."""
    write_certificate(directory)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
    return made


def run_on(factory: Callable[[], asyncio.AbstractEventLoop], test: Coroutine[None, None, None]) -> None:
    """Run a test, which must not wait for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(bounded())


class Taker(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.taken = bytearray()
        self.sees_eof = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.changed = asyncio.Event()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.taken += data
        self.changed.set()

    def eof_received(self) -> None:
        self.sees_eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)
        self.changed.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    async def until(self, count: int) -> bytes:
        """So many bytes, once they have come."""
        while len(self.taken) < count:
            assert not self.lost.done(), self.lost
            self.changed.clear()
            await self.changed.wait()
        return bytes(self.taken)


class Filler(asyncio.BufferedProtocol):
    """Has its buffers filled, each of another size; the rest of its matters are another's."""

    def __init__(self, taker: Taker, sizes: list[int]) -> None:
        self.taker, self.sizes, self.at = taker, sizes, 0
        self.buffer = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        self.buffer = memoryview(bytearray(self.sizes[self.at % len(self.sizes)]))
        self.at += 1
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.taker.data_received(bytes(self.buffer[:nbytes]))
        if self.at % 3 == 0:  # with bytes left that are decrypted already, as a rule
            self.taker.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.taker.transport.resume_reading)

    def eof_received(self) -> None:
        self.taker.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.taker.connection_lost(exc)


def client_of(plain: socket.socket, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLSocket:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = made.maximum_version = version
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made.wrap_socket(plain, suppress_ragged_eofs=False)


@asynccontextmanager
async def connection(
    context: ssl.SSLContext,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    *,
    listening: TlsListening | None = None,
    taker: Taker | None = None,
    shutdown_s: float = SHUTDOWN_S,
    buffer_bytes: int = 0,
) -> AsyncIterator[tuple[Taker, ssl.SSLSocket]]:
    """Our side, which is `taker` if that is given, and a client that blocks (use it in a thread).

    `buffer_bytes`: of the kernel, if not 0.
    """
    plain, arrived = await asyncio.to_thread(connected, buffer_bytes)
    listening = listening or TlsListening(context, handshake_s=10, shutdown_s=shutdown_s)
    handshake = asyncio.create_task(asyncio.to_thread(client_of, plain, version))
    taker = taker or Taker()
    await listening.accept(arrived, taker)
    client = await handshake
    client.settimeout(20)
    try:
        yield taker, client
    finally:
        client.close()
        taker.transport.abort()
        await taker.lost


def connected(buffer_bytes: int = 0) -> tuple[socket.socket, socket.socket]:
    """Two ends; the second is ours and does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        plain = socket.create_connection(listening.getsockname())
        arrived, _ = listening.accept()
    plain.settimeout(20)
    arrived.setblocking(False)
    if buffer_bytes:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        arrived.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return plain, arrived


def take(client: ssl.SSLSocket, count: int) -> bytes:
    """So many bytes, and not more than were there."""
    taken = bytearray()
    while len(taken) < count:
        piece = client.recv(min(1 << 18, count - len(taken)))
        assert piece, f"ended after {len(taken)}"
        taken += piece
    return bytes(taken)


def exchange(client: ssl.SSLSocket, sent: bytes) -> bytes:
    """Send this and take as much, at once; the SHA-256 of what came. An SSL object is for one thread only."""
    client.settimeout(0)
    view, taken, digest = memoryview(sent), 0, hashlib.sha256()
    while view or taken < len(sent):
        select.select([client], [client] if view else [], [], 20)
        with suppress(ssl.SSLWantReadError):
            piece = client.recv(1 << 18)
            assert piece, f"ended after {taken}"
            digest.update(piece)
            taken += len(piece)
        with suppress(ssl.SSLWantWriteError):
            view = view[client.send(view) :] if view else view
    return digest.digest()


def reset(client: ssl.SSLSocket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def update_keys(client: ssl.SSLSocket, times: int) -> int:
    """Ask the other side for new keys so often, or until that fails; how often it went well. Past `ssl`."""
    library = ctypes.CDLL(_ssl.__file__)
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
    known: Any = client  # the third word of what it wraps is OpenSSL's
    connection_of_openssl = ctypes.c_void_p.from_address(
        id(known._sslobj) + 3 * ctypes.sizeof(ctypes.c_void_p)
    )
    count, update_requested = 0, 1
    while (
        count < times
        and library.SSL_key_update(connection_of_openssl, update_requested) == 1
        and library.SSL_do_handshake(connection_of_openssl) == 1
    ):
        count += 1
    return count
