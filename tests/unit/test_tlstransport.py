"""The TLS transport of listeners against OpenSSL's own sockets: what arrives, what waits, and how it ends."""

import asyncio
import hashlib
import os
import random
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from bench.nginx import write_certificate
from coordinator import tlstransport
from coordinator.tlstransport import TlsTransport, accept_tls

BIG = os.urandom(1 << 20) * 24
SHUTDOWN_S = 60.0  # what ends sooner did not wait for it

Run = Callable[[Any], None]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Of a server with a certificate that nobody verifies."""
    directory = tmp_path_factory.mktemp("certificate")
    write_certificate(directory)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
    return made


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on that loop, which must not wait for ever."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def on_loop(test: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return on_loop


class Taker(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.transport: TlsTransport
        self.taken = bytearray()
        self.sees_eof = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.changed = asyncio.Event()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

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
    shutdown_s: float = SHUTDOWN_S,
) -> AsyncIterator[tuple[Taker, ssl.SSLSocket]]:
    """Our side, and a client that blocks (use it in a thread)."""
    plain, arrived = await asyncio.to_thread(connected)
    handshake = asyncio.create_task(asyncio.to_thread(client_of, plain, version))
    taker = Taker()
    await accept_tls(arrived, context, lambda: taker, handshake_s=10, shutdown_s=shutdown_s)
    client = await handshake
    client.settimeout(20)
    try:
        yield taker, client
    finally:
        client.close()
        taker.transport.abort()
        await taker.lost


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends; the second is ours and does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        plain = socket.create_connection(listening.getsockname())
        arrived, _ = listening.accept()
    arrived.setblocking(False)
    return plain, arrived


def take(client: ssl.SSLSocket, count: int) -> bytes:
    """So many bytes, and not more than were there."""
    taken = bytearray()
    while len(taken) < count:
        piece = client.recv(min(1 << 18, count - len(taken)))
        assert piece, f"ended after {len(taken)}"
        taken += piece
    return bytes(taken)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_much_goes_both_ways_at_once(run: Run, context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    async def test() -> None:
        async with connection(context, version) as (taker, client):
            exchanging = asyncio.create_task(asyncio.to_thread(exchange, client, BIG))
            dice, at = random.Random(1), 0
            while at < len(BIG):
                stop = at + dice.choice((1, 100, 16 << 10, 100_000, 1 << 20))
                taker.transport.write(BIG[at:stop])
                at = stop
                await taker.writable.wait()
            assert await taker.until(len(BIG)) == BIG
            assert await exchanging == hashlib.sha256(BIG).digest()

    run(test())


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


@pytest.mark.parametrize("sizes", [[1, 7, 100], [16 << 10], [512 << 10], [16_385, 3, 700_000]])
def test_buffers_of_any_size_are_filled_in_order(run: Run, context: ssl.SSLContext, sizes: list[int]) -> None:
    sent = BIG[: 20_000 if sizes[0] == 1 else len(BIG)]

    async def test() -> None:
        async with connection(context) as (taker, client):
            taker.transport.pause_reading()
            taker.transport.set_protocol(Filler(taker, sizes))
            taker.transport.resume_reading()
            sending = asyncio.create_task(asyncio.to_thread(client.sendall, sent))
            assert await taker.until(len(sent)) == sent
            await sending
            taker.transport.pause_reading()
            taker.transport.set_protocol(taker)
            taker.transport.resume_reading()
            await asyncio.to_thread(client.sendall, b"behind it")
            assert (await taker.until(len(sent) + 9))[len(sent) :] == b"behind it"

    run(test())


def test_paused_protocol_gets_nothing_until_it_resumes(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            taker.transport.pause_reading()
            await asyncio.to_thread(client.sendall, b"waits")
            await asyncio.to_thread(client.sendall, b" here")
            for _ in range(20):
                await asyncio.sleep(0)
            assert taker.taken == b""
            assert not taker.transport.is_reading()
            taker.transport.resume_reading()
            assert await taker.until(10) == b"waits here"

    run(test())


def test_writer_is_paused_at_its_limit_and_memory_may_change_after_a_write(
    run: Run, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            transport, written = taker.transport, bytearray()
            transport.set_write_buffer_limits(high=100_000, low=50_000)
            assert transport.get_write_buffer_limits() == (50_000, 100_000)
            memory = bytearray(30_000)
            for number in range(100_000):
                memory[:] = bytes([number % 256]) * len(memory)
                transport.write(memoryview(memory))
                written += memory
                if not taker.writable.is_set():
                    break
            memory[:] = bytes(len(memory))
            assert 100_000 < transport.get_write_buffer_size() <= 130_000
            taking = asyncio.create_task(asyncio.to_thread(take, client, len(written)))
            await taker.writable.wait()
            assert transport.get_write_buffer_size() <= 50_000
            assert await taking == written

    run(test())


def test_close_sends_all_and_says_goodbye_and_waits_for_the_peer(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            taker.transport.writelines([BIG[:10], BIG[10:]])
            taker.transport.close()
            taker.transport.write(b"too late")
            assert taker.transport.is_closing()
            assert taker.transport.get_extra_info("ssl_object") is None
            assert await asyncio.to_thread(take, client, len(BIG)) == BIG
            assert await asyncio.to_thread(client.recv, 1) == b""  # close_notify: a cut would raise
            assert not taker.lost.done()
            await asyncio.to_thread(client.sendall, b"nobody reads this")
            client.close()
            assert await taker.lost is None
            assert taker.taken == b""

    run(test())


def test_peer_that_does_not_end_its_side_is_not_waited_for_beyond_the_time(
    run: Run, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with connection(context, shutdown_s=0.05) as (taker, _client):
            taker.transport.close()
            assert await taker.lost is None

    run(test())


def test_closed_connection_of_which_nothing_leaves_is_cut(
    run: Run, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlstransport, "FLUSH_STALL_S", 0.05)

    async def test() -> None:
        async with connection(context) as (taker, client):
            taker.transport.write(BIG)
            taker.transport.close()
            assert await taker.lost is None
            with pytest.raises(OSError):
                await asyncio.to_thread(take, client, len(BIG))

    run(test())


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_end_of_the_peer_is_told_after_its_bytes(
    run: Run, context: ssl.SSLContext, says_goodbye: bool
) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            await asyncio.to_thread(client.sendall, b"last words")
            if says_goodbye:
                ending = asyncio.create_task(asyncio.to_thread(client.unwrap))
                assert await taker.lost is None
                (await ending).close()
            else:
                socket.socket.shutdown(client, socket.SHUT_WR)
                assert await taker.lost is None
            assert taker.taken == b"last words"
            assert taker.sees_eof

    run(test())


def test_reset_ends_a_reader_and_is_the_cause_that_a_writer_is_told(
    run: Run, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            reset(client)
            assert await taker.lost is None  # to Python's ssl it is an end like another
            assert taker.sees_eof
        async with connection(context) as (taker, client):
            taker.transport.pause_reading()
            while taker.writable.is_set():
                taker.transport.write(BIG)
            reset(client)
            assert isinstance(await taker.lost, OSError)
            assert taker.transport.get_write_buffer_size() == 0
            taker.transport.write(b"to nobody")
            taker.transport.close()

    run(test())


def reset(client: ssl.SSLSocket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_aborted_connection_is_cut_with_what_waits(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            while taker.writable.is_set():
                taker.transport.write(BIG)
            taker.transport.abort()
            assert await taker.lost is None
            with pytest.raises(OSError):  # a cut or a reset
                await asyncio.to_thread(take, client, 1 << 40)

    run(test())


def test_garbage_in_the_middle_is_a_loss(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            socket.socket.sendall(client, b"\x17\x03\x03\x00\x20" + bytes(32))
            assert isinstance(await taker.lost, ssl.SSLError)
            assert taker.taken == b""

    run(test())


def test_protocol_that_fails_loses_its_connection(run: Run, context: ssl.SSLContext) -> None:
    class Failing(Taker):
        def data_received(self, data: bytes) -> None:
            raise ValueError(len(data))

    async def test() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.append(what))
        async with connection(context) as (taker, client):
            failing = Failing()
            failing.lost = taker.lost
            taker.transport.set_protocol(failing)
            await asyncio.to_thread(client.sendall, b"x")
            assert isinstance(await taker.lost, ValueError)
        assert [type(what["exception"]) for what in told] == [ValueError]

    run(test())


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01"])
def test_handshake_has_a_deadline(run: Run, context: ssl.SSLContext, first: bytes) -> None:
    async def test() -> None:
        plain, arrived = connected()
        with plain:
            plain.sendall(first)
            with pytest.raises(TimeoutError):
                await accept_tls(arrived, context, Taker, handshake_s=0.05, shutdown_s=1)
            assert arrived.fileno() < 0
            plain.settimeout(10)
            with suppress(ConnectionResetError):
                assert plain.recv(1) == b""

    run(test())


def test_who_speaks_no_tls_is_told_and_closed(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        plain, arrived = connected()
        with plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(ssl.SSLError):
                await accept_tls(arrived, context, Taker, handshake_s=10, shutdown_s=1)
            assert arrived.fileno() < 0

    run(test())


def test_cancelled_handshake_leaves_nothing_open(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        plain, arrived = connected()
        with plain:
            accepting = asyncio.create_task(accept_tls(arrived, context, Taker, handshake_s=10, shutdown_s=1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            accepting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await accepting
            plain.settimeout(10)
            assert plain.recv(1) == b""

    run(test())
