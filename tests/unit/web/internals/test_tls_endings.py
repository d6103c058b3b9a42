"""TLS of listeners where connections fail, end or break into each other; on the loop that processes use."""

import asyncio
import gc
import os
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

from tests.unit.standstill import again_after_standstill
from tests.unit.tls_pairs import (
    BIG,
    SHUTDOWN_S,
    Filler,
    Taker,
    client_of,
    connected,
    connection,
    run_on,
    server_context,
    take,
    update_keys,
)
from web.internals.tls import SLICE_BYTES, TlsListening
from web.listener import Acceptor, Places, listening_socket

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
ANSWER = os.urandom(1 << 20)

Loops = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Of a server with a certificate that nobody verifies."""
    return server_context(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is kept by cycles stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("version", VERSIONS)
def test_protocol_that_pauses_at_once_gets_its_handshake_done(
    context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    class Pausing(Taker):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.pause_reading()

    async def test() -> None:
        async with connection(context, version, taker=Pausing()) as (pausing, client):
            pausing.transport.write(b"hello")
            assert await asyncio.to_thread(take, client, 5) == b"hello"

    run_on(uvloop.new_event_loop, test())


@pytest.mark.parametrize("version", VERSIONS)
def test_one_connection_may_write_to_another_while_it_begins(
    context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    async def test() -> None:
        listening = TlsListening(context, handshake_s=10, shutdown_s=SHUTDOWN_S)
        async with connection(context, version, listening=listening) as (first, first_client):

            class Telling(Taker):
                def connection_made(self, transport: asyncio.BaseTransport) -> None:
                    super().connection_made(transport)
                    first.transport.write(b"another one is here")

            beginning = connection(context, version, listening=listening, taker=Telling())
            async with beginning as (second, second_client):
                second.transport.write(b"welcome")
                assert await asyncio.to_thread(take, first_client, 19) == b"another one is here"
                assert await asyncio.to_thread(take, second_client, 7) == b"welcome"

    run_on(uvloop.new_event_loop, test())


def test_one_connection_may_write_to_another_behind_key_updates(context: ssl.SSLContext) -> None:
    async def test() -> None:
        listening = TlsListening(context, handshake_s=10, shutdown_s=SHUTDOWN_S)
        async with AsyncExitStack() as stack:
            second, second_client = await stack.enter_async_context(connection(context, listening=listening))

            class Passing(Taker):
                def data_received(self, data: bytes) -> None:
                    second.transport.write(data)

            first, first_client = await stack.enter_async_context(
                connection(context, listening=listening, taker=Passing())
            )
            first.transport.pause_reading()
            assert await asyncio.to_thread(update_keys, first_client, 3) == 3
            await asyncio.to_thread(first_client.sendall, b"pass it on")
            known: Any = first.transport
            while known.get_read_buffer_size() < 10:
                await asyncio.sleep(0.001)
            first.transport.resume_reading()
            assert await asyncio.to_thread(take, second_client, 10) == b"pass it on"
            first.transport.write(b"done")
            assert await asyncio.to_thread(take, first_client, 4) == b"done"

    run_on(uvloop.new_event_loop, test())


@pytest.mark.parametrize("is_paused", [False, True])
def test_what_comes_after_close_takes_nothing_from_the_answer(
    context: ssl.SSLContext, is_paused: bool
) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            if is_paused:
                taker.transport.pause_reading()
                await asyncio.to_thread(client.sendall, bytes(1000))
            taker.transport.write(ANSWER)
            taker.transport.close()
            await asyncio.to_thread(client.sendall, bytes(1000))
            assert await asyncio.to_thread(take, client, len(ANSWER)) == ANSWER
            assert await asyncio.to_thread(client.recv, 1) == b""
            client.close()
            assert await taker.lost is None

    run_on(uvloop.new_event_loop, test())


def test_slow_client_gets_the_end_of_its_answer_after_the_close(context: ssl.SSLContext) -> None:
    def take_slowly(client: ssl.SSLSocket) -> bytes:
        taken = bytearray()
        while len(taken) < len(ANSWER):
            taken += take(client, min(20_000, len(ANSWER) - len(taken)))
            time.sleep(0.05)  # it is slow: twice the time for the end, and takes something all the while
        return bytes(taken)

    @again_after_standstill(0.5)
    async def test() -> None:
        async with connection(context, shutdown_s=1.2, buffer_bytes=20_000) as (taker, client):
            taker.transport.write(ANSWER)
            taker.transport.close()
            assert await asyncio.to_thread(take_slowly, client) == ANSWER
            assert await asyncio.to_thread(client.recv, 1) == b""
            client.close()
            assert await taker.lost is None

    run_on(uvloop.new_event_loop, test())


@pytest.mark.parametrize("ending", ["goodbye", "end of the stream"])
def test_client_that_ends_and_takes_nothing_gives_its_place_back(
    context: ssl.SSLContext, ending: str
) -> None:
    class Counting(Taker):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            on_end[0]()

    on_end: list[Any] = []

    async def test() -> None:
        taker = Counting()

        def new_connection(end: Any) -> asyncio.Protocol:
            on_end.append(end)
            return taker

        places = Places()
        acceptor = Acceptor(
            await listening_socket("127.0.0.1", 0),
            new_connection,
            ssl_context=context,
            handshake_s=10,
            shutdown_s=0.2,
            places=places,
            on_refused=lambda _cause: None,
        )
        acceptor.start()
        plain = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", acceptor.port))
        client = await asyncio.to_thread(client_of, plain)
        await asyncio.to_thread(client.sendall, b"all of it, please")
        await taker.until(17)
        while taker.writable.is_set():
            taker.transport.write(BIG)
        if ending == "goodbye":
            client.settimeout(0)
            with pytest.raises(ssl.SSLError):
                client.unwrap()
        else:
            socket.socket.shutdown(client, socket.SHUT_WR)
        assert isinstance(await taker.lost, TimeoutError)
        assert places.connection_count == 0
        await acceptor.close()
        client.close()

    run_on(uvloop.new_event_loop, test())


def test_close_goes_on_reading_where_much_was_not_read(context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            taker.transport.pause_reading()
            sending = asyncio.create_task(asyncio.to_thread(client.sendall, BIG))
            known: Any = taker.transport
            while known._ssl_protocol._transport.is_reading():
                await asyncio.sleep(0.001)
            taker.transport.close()
            await sending
            assert await asyncio.to_thread(client.recv, 1) == b""
            client.close()
            assert await taker.lost is None

    run_on(uvloop.new_event_loop, test())


def test_limits_of_a_lost_connection_concern_nobody(context: ssl.SSLContext) -> None:
    async def test() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.append(what))
        async with connection(context) as (taker, _):
            while taker.writable.is_set():
                taker.transport.write(BIG)
            taker.transport.abort()
            await taker.lost
            taker.transport.set_write_buffer_limits(high=1)
        assert told == []

    run_on(uvloop.new_event_loop, test())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_end_that_was_not_read_does_not_hold_up_the_close(context: ssl.SSLContext, end: str) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            taker.transport.pause_reading()
            socket.socket.shutdown(client, socket.SHUT_WR)
            known: Any = taker.transport
            while not known._ssl_protocol._eof_received:
                await asyncio.sleep(0.001)
            getattr(taker.transport, end)()
            assert await taker.lost is None

    run_on(uvloop.new_event_loop, test())


def test_protocol_that_gives_up_while_the_end_is_read_is_told_once(context: ssl.SSLContext) -> None:
    class GivingUp(Taker):
        def data_received(self, data: bytes) -> None:
            self.taken += data
            self.transport.abort()

    async def test() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.append(what))
        async with connection(context, taker=GivingUp()) as (taker, client):
            taker.transport.pause_reading()
            await asyncio.to_thread(client.sendall, b"last words")
            socket.socket.shutdown(client, socket.SHUT_WR)
            known: Any = taker.transport
            while not known._ssl_protocol._eof_received:
                await asyncio.sleep(0.001)
            taker.transport.resume_reading()
            await taker.lost
            assert taker.taken == b"last words"
        assert told == []

    run_on(uvloop.new_event_loop, test())


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("is_whole", [False, True])
def test_connection_that_ended_leaves_nothing_for_the_collector(
    context: ssl.SSLContext, no_collector: None, is_whole: bool, factory: Loops
) -> None:
    kept: list[weakref.ref[Taker]] = []

    async def fail() -> None:
        plain, arrived = await asyncio.to_thread(connected)
        taker = Taker()
        kept.append(weakref.ref(taker))
        with plain:
            plain.sendall(b"no handshake at all")
            try:
                await TlsListening(context, handshake_s=10, shutdown_s=1).accept(arrived, taker)
            except ssl.SSLError:
                return
        raise AssertionError

    async def upload() -> None:
        async with connection(context) as (taker, client):
            taker.transport.pause_reading()
            taker.transport.set_protocol(Filler(taker, [100]))
            taker.transport.resume_reading()
            await asyncio.to_thread(client.sendall, b"x" * 50)
            await taker.until(50)
            taker.transport.set_protocol(taker)
            client.close()
            await taker.lost

    async def test() -> None:
        for _ in range(5):
            await (upload() if is_whole else fail())
        for _ in range(5):
            await asyncio.sleep(0.01)  # the loop lets go of what it closed
        assert [taker for taker in kept if taker() is not None] == []
        assert [thing for thing in gc.get_objects() if type(thing).__name__ == "_Tls"] == []

    run_on(factory, test())


def test_small_pieces_that_wait_leave_together(context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with connection(context) as (taker, client):
            known: Any = taker.transport
            below, sizes = known._ssl_protocol._transport, []

            class Recording:
                def write(self, data: bytes) -> None:
                    sizes.append(len(data))
                    below.write(data)

                def __getattr__(self, name: str) -> Any:
                    return getattr(below, name)

            known._ssl_protocol._transport = Recording()
            taker.transport.writelines([b"head", b"", b"body" * 10_000])
            assert len(sizes) == 1
            assert await asyncio.to_thread(take, client, 40_004) == b"head" + b"body" * 10_000
            while not known._ssl_protocol._write_backlog:
                taker.transport.write(ANSWER)
            for _ in range(2000):
                taker.transport.write(b"x" * 64)
            waiting_bytes = known.get_write_buffer_size()
            sizes.clear()
            await asyncio.to_thread(take, client, waiting_bytes - SLICE_BYTES)
            assert len(sizes) <= waiting_bytes // SLICE_BYTES + 20

    run_on(uvloop.new_event_loop, test())
