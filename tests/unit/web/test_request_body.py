"""Bodies over real sockets into buffers that are used again: whole, bounded, and with an end to them."""

import asyncio
import contextlib
import itertools
import random
import threading

import pytest

from tests.unit.body_shell import (
    CONTENT,
    EXPECTING,
    GET,
    HOST,
    Run,
    Shell,
    answer_of,
    chunked,
    put,
    told,
)
from tests.unit.standstill import again_after_standstill
from web import buffer_ring
from web.buffer_ring import BUFFER_BYTES, BUFFERS_MAX, POOL
from web.rate_limits import RequestTimeouts
from web.request_body import RING_BYTES_MIN
from web.responses import ClientGone

PARTS = 16  # more than the ring and the kernel's buffers hold together
IMPATIENCE = RequestTimeouts(body_stall_s=0.3, linger_s=0.3)


@pytest.mark.parametrize(
    "length",
    [RING_BYTES_MIN - 1, RING_BYTES_MIN, BUFFER_BYTES, BUFFER_BYTES + 1, len(CONTENT)],
)
def test_body_arrives_whole_and_the_connection_goes_on(run: Run, length: int) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        for served in (1, 2):
            writer.write(put("/take", length) + CONTENT[:length])
            assert await answer_of(reader) == (200, told(CONTENT[:length]))
            writer.write(GET)
            assert await answer_of(reader) == (200, b'{"served":%d}' % served)

    run(scenario)


def test_requests_right_behind_a_body_are_answered_and_none_of_them_is_taken_for_it(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write((put("/take", len(CONTENT)) + CONTENT) * 2 + GET)
        for _ in range(2):
            assert await answer_of(reader) == (200, told(CONTENT))
        assert await answer_of(reader) == (200, b'{"served":2}')

    run(scenario)


def test_body_in_small_and_large_parts_is_the_same(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        dice, sent = random.Random(3), 0
        writer.write(put("/take", len(CONTENT)))
        while sent < len(CONTENT):
            part = CONTENT[sent : sent + dice.choice((1, 1000, 70_000, 600_000))]
            writer.write(part)
            await writer.drain()
            sent += len(part)
            if dice.random() < 0.1:
                await asyncio.sleep(0.02)  # so that what came is handed on before its buffer is full
        assert await answer_of(reader) == (200, told(CONTENT))

    run(scenario)


def test_body_of_a_client_that_never_waits_goes_past_the_parser(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        shell.go_on.clear()
        writer.write(put("/take", len(CONTENT)) + CONTENT)
        await shell.begun.wait()
        other, asking = await shell.connect()
        asking.write(GET)
        assert (await answer_of(other))[0] == 200  # by now more has come
        shell.go_on.set()
        assert await answer_of(reader) == (200, told(CONTENT))
        assert shell.copied_bytes < 2 << 20

    run(scenario)


def test_client_that_expects_it_is_told_to_go_on(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(put("/take", len(CONTENT), "Expect: 100-continue\r\n"))
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(CONTENT)
        assert await answer_of(reader) == (200, told(CONTENT))

    run(scenario)


@pytest.mark.parametrize("chunk_bytes", [7, 5000, 256 << 10, len(CONTENT)])
def test_chunks_of_a_client_that_waited_go_past_the_parser(run: Run, chunk_bytes: int) -> None:
    content = CONTENT[: min(len(CONTENT), 30_000 * chunk_bytes)]

    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        for served in (1, 2):
            writer.write(EXPECTING)
            async with asyncio.timeout(10):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(chunked(content, chunk_bytes) + GET)
            assert await answer_of(reader) == (200, told(content))
            assert await answer_of(reader) == (200, b'{"served":%d}' % served)
        assert shell.copied_bytes == 0 or chunk_bytes <= 5000  # very many in a buffer are put together
        writer.write(EXPECTING)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(chunked(content, chunk_bytes) + put("/take", 3) + b"abc" + GET[:20])
        assert await answer_of(reader) == (200, told(content))
        assert await answer_of(reader) == (200, told(b"abc"))
        writer.write(GET[20:])
        assert await answer_of(reader) == (200, b'{"served":4}')

    run(scenario)


def test_chunks_of_anybody_else_go_through_the_parser(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        shell.from_peer = False
        reader, writer = await shell.connect()
        writer.write(EXPECTING)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(chunked(CONTENT, 100_000) + GET)
        assert await answer_of(reader) == (200, told(CONTENT))
        assert await reader.read() == b""  # what the parser holds back of trailers is nobody's header
        assert shell.copied_bytes == len(CONTENT)

    run(scenario)


def test_memory_that_a_thread_still_reads_is_not_used_again_when_a_window_of_the_pace_ends(run: Run) -> None:
    """A write outlasts a window in which enough came, and at whose end nothing did."""
    patience = RequestTimeouts(body_stall_s=0.8, linger_s=1.2)

    @again_after_standstill(0.1)
    async def scenario(shell: Shell) -> None:
        writes, quiet = itertools.count(1), threading.Event()

        def write_slowly() -> None:
            if next(writes) == 3:
                assert quiet.wait(10)

        shell.writing = write_slowly
        reader, writer = await shell.connect()
        try:
            writer.write(put("/take", len(CONTENT)))
            sent = 0
            for size in (200_000, 200_000, 200_000):
                writer.write(CONTENT[sent : sent + size])
                sent += size
                await asyncio.sleep(0.04)
            await asyncio.sleep(1)
            writer.write(CONTENT[sent:])
            await asyncio.sleep(0.1)
            quiet.set()
            assert await answer_of(reader) == (200, told(CONTENT))
        finally:
            quiet.set()
            writer.transport.abort()

    run(scenario, patience)


def test_chunks_that_come_with_their_head_go_through_the_parser(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(EXPECTING + chunked(CONTENT, 100_000) + GET)
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await answer_of(reader) == (200, told(CONTENT))
        assert await reader.read() == b""

    run(scenario)


@pytest.mark.parametrize("wrong", [b"xyz\r\n", b"5\r\nabcdefg\r\n", b"5\nabcde\r\n"])
def test_what_is_no_chunk_is_refused_and_nothing_behind_it_is_a_request(run: Run, wrong: bytes) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(EXPECTING)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"3\r\nabc\r\n" + wrong + GET * 100)
        status, body = await answer_of(reader)
        assert (status, b"does not match its framing" in body) == (400, True)
        assert (await shell.ended.get())[0] == "InvalidRequest"
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    run(scenario)


def test_chunks_of_a_client_that_went_away_are_no_whole_body(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(EXPECTING)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(chunked(CONTENT, 100_000)[: -len(b"\r\n")])
        await writer.drain()
        writer.close()
        async with asyncio.timeout(10):
            assert await shell.ended.get() == (ClientGone.__name__, len(CONTENT))

    run(scenario)


def test_what_came_is_handed_on_before_its_buffer_is_full(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        _, writer = await shell.connect()
        writer.write(put("/take", len(CONTENT)) + b"x" * 100)
        async with asyncio.timeout(10):
            await shell.begun.wait()
        writer.write(b"x" * 100)  # past the parser now
        await asyncio.sleep(buffer_ring.FILL_S * 10)
        writer.transport.abort()
        async with asyncio.timeout(10):
            assert await shell.ended.get() == ("ClientGone", 200)

    run(scenario)


def test_bytes_of_a_lost_client_are_handed_on_before_its_end_is_told(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        _, writer = await shell.connect()
        shell.go_on.clear()
        writer.write(put("/take", len(CONTENT)) + CONTENT[: 3 << 20])
        await shell.begun.wait()
        await writer.drain()
        writer.transport.abort()
        shell.go_on.set()
        async with asyncio.timeout(10):
            how, received = await shell.ended.get()
        assert how == ClientGone.__name__
        assert 0 < received <= 3 << 20

    run(scenario)


def test_client_that_stalls_is_told_so(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(put("/take", len(CONTENT)) + CONTENT[: 1 << 20])
        status, body = await answer_of(reader)
        assert (status, b"request_timeout" in body) == (408, True)
        assert await shell.ended.get() == ("RequestTimeout", 1 << 20)
        async with asyncio.timeout(10):
            assert await reader.read() == b""

    run(scenario, IMPATIENCE)


@pytest.mark.parametrize(("path", "status"), [("/refuse", 413), ("/leave", 200)])
def test_body_that_is_not_read_to_its_end_is_taken_for_no_request(run: Run, path: str, status: int) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        count = len(CONTENT) // len(GET)
        writer.write(put(path, count * len(GET)) + GET * count)
        assert (await answer_of(reader))[0] == status
        writer.write(GET * count)  # the parser saw less of the body than came: none of these may fill it up
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    run(scenario)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"PUT /take HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (
            b"PUT /take HTTP/1.1\r\n"
            + HOST
            + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,  # by the parser, which takes one such line only
        ),
        (b"PUT /take HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ],
    ids=["gzip", "gzip in a line of its own", "HTTP/1.0"],
)
def test_body_in_codings_that_are_not_decoded_is_refused(run: Run, head: bytes, status: int) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(head + b"5\r\nabcde\r\n0\r\n\r\n")
        assert (await answer_of(reader))[0] == status
        assert shell.served == 0

    run(scenario)


def test_body_of_a_request_that_would_change_the_protocol_is_its_body(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        offer = "Connection: upgrade\r\nUpgrade: websocket\r\n"
        small, large = GET * 10, GET * (len(CONTENT) // len(GET))
        reader, writer = await shell.connect()
        writer.write(put("/take", len(large), offer) + large)  # past the parser
        assert await answer_of(reader) == (200, told(large))
        writer.write(GET)
        assert await answer_of(reader) == (200, b'{"served":1}')
        writer.write(put("/take", len(small), offer) + small)  # through it, which loses what follows
        assert await answer_of(reader) == (200, told(small))
        assert await reader.read() == b""

    run(scenario)


def test_slow_writer_stops_the_client_when_its_buffers_are_full(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        shell.go_on.clear()
        writer.write(put("/take", PARTS * len(CONTENT)))

        async def send() -> None:
            for _ in range(PARTS):
                writer.write(CONTENT)
                await writer.drain()

        sending = asyncio.create_task(send())
        await shell.begun.wait()
        await asyncio.wait({sending}, timeout=0.3)
        assert not sending.done()
        assert POOL.used_bytes <= BUFFERS_MAX * BUFFER_BYTES
        shell.go_on.set()
        assert await answer_of(reader) == (200, told(CONTENT * PARTS))
        await sending

    run(scenario)


def test_draining_listener_lets_a_body_end(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(put("/take", len(CONTENT)) + CONTENT[:-1])
        await shell.begun.wait()
        closing = asyncio.create_task(shell.listener.close(10.0))
        await asyncio.sleep(0)
        writer.write(CONTENT[-1:])
        assert await answer_of(reader) == (200, told(CONTENT))
        await closing

    run(scenario)


def test_listener_that_is_closed_at_once_ends_a_body(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(put("/take", len(CONTENT)) + CONTENT[: 2 << 20])
        await shell.begun.wait()
        await shell.listener.close(0.0)
        async with asyncio.timeout(10):
            await reader.read()
            assert (await shell.ended.get())[0] in ("ClientGone", "CancelledError")

    run(scenario)


def test_request_that_is_cut_off_does_its_last_acts_before_the_listener_is_closed(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        _, writer = await shell.connect()
        writer.write(put("/settle", len(CONTENT)) + CONTENT[: 2 << 20])
        await shell.begun.wait()
        await shell.listener.close(0.0)
        assert shell.ended.get_nowait() == ("settled", 0)

    run(scenario)
