"""TLS of listeners against OpenSSL's own sockets: what arrives, what waits, how it ends, what is shared."""

import asyncio
import hashlib
import random
import socket
import ssl
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from typing import Any

import pytest
import uvloop

from tests.unit.tls_pairs import (
    BIG,
    SHUTDOWN_S,
    Filler,
    Run,
    Taker,
    client_of,
    connected,
    connection,
    exchange,
    reset,
    run_on,
    server_context,
    take,
    update_keys,
)
from web.internals import tls
from web.internals.tls import TlsListening


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Of a server with a certificate that nobody verifies."""
    return server_context(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on that loop, which must not wait for ever."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    return lambda test: run_on(factory, test)


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
            sending = asyncio.create_task(asyncio.to_thread(client.sendall, BIG))
            protocol: Any = taker.transport
            while protocol._ssl_protocol._transport.is_reading():
                await asyncio.sleep(0.001)
            assert protocol.get_read_buffer_size() < tls.TAKEN_BYTES + tls.RECEIVED_BYTES_MAX
            taker.transport.resume_reading()
            assert await taker.until(10 + len(BIG)) == b"waits here" + BIG
            await sending

    run(test())


def test_writer_is_paused_at_its_limit_and_memory_may_change_after_a_write(
    run: Run, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            transport, written = taker.transport, bytearray()
            while not transport.get_write_buffer_size():
                transport.write(BIG[:30_000])
                written += BIG[:30_000]
            below: Any = transport  # encrypted already, and counted all the same
            assert transport.get_write_buffer_size() == below._ssl_protocol._transport.get_write_buffer_size()
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
            taker.transport.pause_reading()
            taker.transport.writelines([BIG[:10], BIG[10:]])
            taker.transport.close()
            taker.transport.write(b"too late")
            assert taker.transport.is_closing()
            taker.transport.close()
            assert taker.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
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
            assert isinstance(await taker.lost, TimeoutError)

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


def test_reset_is_the_cause_that_is_told(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            reset(client)
            assert isinstance(await taker.lost, ConnectionResetError)
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
        async with connection(context, taker=Failing()) as (taker, client):
            await asyncio.to_thread(client.sendall, b"x")
            assert isinstance(await taker.lost, ValueError)
        assert [type(what["exception"]) for what in told] == [ValueError]

    run(test())


@pytest.mark.parametrize(
    ("first", "handshake_s", "error"),
    [
        (b"", 0.05, ConnectionAbortedError),
        (b"\x16\x03\x01", 0.05, ConnectionAbortedError),
        (b"GET / HTTP/1.1\r\n\r\n", 10, ssl.SSLError),
    ],
    ids=["silent", "half", "no TLS"],
)
def test_handshake_that_comes_to_nothing_ends_the_connection(
    run: Run, context: ssl.SSLContext, first: bytes, handshake_s: float, error: type[OSError]
) -> None:
    async def test() -> None:
        plain, arrived = connected()
        with plain:
            plain.sendall(first)
            with pytest.raises(error):
                await TlsListening(context, handshake_s=handshake_s, shutdown_s=1).accept(arrived, Taker())
            plain.settimeout(10)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(plain.recv, 1) == b""

    run(test())


def test_cancelled_handshake_leaves_nothing_open(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        plain, arrived = connected()
        with plain:
            listening = TlsListening(context, handshake_s=10, shutdown_s=1)
            accepting = asyncio.create_task(listening.accept(arrived, Taker()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            accepting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await accepting
            plain.settimeout(10)
            assert await asyncio.to_thread(plain.recv, 1) == b""

    run(test())


def test_connections_of_a_listener_share_buffers_and_nothing_else(run: Run, context: ssl.SSLContext) -> None:
    contents = [bytes([number]) * (3 << 20) for number in range(5)]

    async def test() -> None:
        listening = TlsListening(context, handshake_s=10, shutdown_s=SHUTDOWN_S)
        breaking = asyncio.create_task(break_many(listening))
        async with AsyncExitStack() as stack:
            pairs = [
                await stack.enter_async_context(connection(context, listening=listening)) for _ in contents
            ]
            exchanging = [
                asyncio.create_task(asyncio.to_thread(exchange, client, content))
                for (_, client), content in zip(pairs, contents, strict=True)
            ]
            for start in range(0, len(contents[0]), 50_000):
                for (taker, _), content in zip(pairs, contents, strict=True):
                    taker.transport.write(content[start : start + 50_000])
                    await taker.writable.wait()
            for (taker, _), content, exchanged in zip(pairs, contents, exchanging, strict=True):
                assert await taker.until(len(content)) == content
                assert await exchanged == hashlib.sha256(content).digest()
            await breaking

    async def break_many(listening: TlsListening) -> None:
        for _ in range(10):
            async with connection(context, listening=listening) as (taker, client):
                taker.transport.write(BIG)
                socket.socket.sendall(client, b"\x17\x03\x03\x00\x20" + bytes(32))
                assert isinstance(await taker.lost, ssl.SSLError)
            plain, arrived = await asyncio.to_thread(connected)
            with plain:
                plain.sendall(b"no handshake at all")
                with pytest.raises(ssl.SSLError):
                    await listening.accept(arrived, Taker())

    run(test())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_protocol_that_fails_at_once_leaves_nothing_to_the_next_connection(
    run: Run, context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    class Failing(Taker):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            asyncio.get_running_loop().call_soon(lambda: left.append(listening.outgoing.pending))
            raise ConnectionResetError

    left: list[int] = []
    listening = TlsListening(context, handshake_s=10, shutdown_s=SHUTDOWN_S)

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        plain, arrived = await asyncio.to_thread(connected)
        handshake = asyncio.create_task(asyncio.to_thread(client_of, plain, version))
        with pytest.raises(ConnectionResetError):
            await listening.accept(arrived, Failing())
        with suppress(OSError):
            (await handshake).close()
        assert left == [0]
        async with connection(context, version, listening=listening) as (taker, client):
            taker.transport.write(b"mine")
            assert await asyncio.to_thread(take, client, 4) == b"mine"

    run(test())


def test_garbage_that_waited_leaves_nothing_to_the_next_connection(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        listening = TlsListening(context, handshake_s=10, shutdown_s=SHUTDOWN_S)
        async with connection(context, listening=listening) as (taker, client):
            taker.transport.pause_reading()
            socket.socket.sendall(client, b"\x17\x03\x03\x00\x20" + bytes(32))
            plain: Any = taker.transport
            while not plain.get_read_buffer_size():
                await asyncio.sleep(0.001)
            taker.transport.resume_reading()
            left: list[int] = []
            asyncio.get_running_loop().call_soon(lambda: left.append(listening.outgoing.pending))
            assert isinstance(await taker.lost, ssl.SSLError)
            assert left == [0]

    run(test())


def test_connection_that_is_given_up_at_once_counts_as_not_begun(run: Run, context: ssl.SSLContext) -> None:
    class GivingUp(Taker):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.abort()  # type: ignore[attr-defined]

    async def test() -> None:
        plain, arrived = await asyncio.to_thread(connected)
        handshake = asyncio.create_task(asyncio.to_thread(client_of, plain))
        taker = GivingUp()
        with pytest.raises(ConnectionResetError):
            await TlsListening(context, handshake_s=10, shutdown_s=1).accept(arrived, taker)
        await taker.lost
        with suppress(OSError):
            (await handshake).close()

    run(test())


def test_what_comes_after_reading_was_resumed_is_not_in_the_context_of_who_resumed(
    run: Run, context: ssl.SSLContext
) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="of nobody")
    seen: list[str] = []

    class Seeing(Taker):
        def data_received(self, data: bytes) -> None:
            seen.append(variable.get())
            super().data_received(data)

    async def test() -> None:
        async with connection(context, taker=Seeing()) as (seeing, client):
            seeing.transport.pause_reading()
            await asyncio.to_thread(client.sendall, b"waits")
            variable.set("of a request")
            seeing.transport.resume_reading()
            assert await seeing.until(5) == b"waits"
            await asyncio.to_thread(client.sendall, b" here")
            assert await seeing.until(10) == b"waits here"
        assert set(seen) == {"of nobody"}

    run(test())


def test_client_that_asks_for_keys_and_takes_none_is_cut_off(run: Run, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context, buffer_bytes=20_000) as (taker, client):
            asking = asyncio.create_task(asyncio.to_thread(update_keys, client, 1_000_000))
            assert isinstance(await taker.lost, ConnectionAbortedError)
            assert await asking > tls.UNTAKEN_BYTES_MAX // 100

    run(test())
