"""When a connection ends and says so: what no request can follow, and who takes nothing."""

import asyncio
from email.utils import parsedate_to_datetime

import pytest

from tests.unit.body_shell import CONTENT, GET, HOST, LARGE_BYTES, Run, Shell, answer_of, put, told
from tests.unit.standstill import again_after_standstill
from web.rate_limits import RequestTimeouts

LENGTH_MAX = 2**64 - 1
LARGE = b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n"
HOSTS = ("a_b.example:80", "[::1]:80", "[fe80::1%25e0]", "127.0.0.1", "a:", "")
STALLED = RequestTimeouts(answer_stall_s=0.3, linger_s=0.3)
SLOW_PATIENCE = RequestTimeouts(answer_stall_s=1.0, linger_s=0.3)


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side ends the connection."""
    async with asyncio.timeout(20):
        return await reader.read()


def last_answer(run: Run, sent: bytes) -> bytes:
    """What a client gets for these bytes until the other side ends the connection."""
    answers = []

    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(sent)
        answers.append(await all_of(reader))

    run(scenario)
    return answers[0]


def test_length_that_no_body_has_is_refused_and_nothing_behind_it_is_a_request(run: Run) -> None:
    answer = last_answer(run, put("/take", LENGTH_MAX) + GET)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in answer
    assert b"Content-Length: the value is too large." in answer


@pytest.mark.parametrize("path", ["/count", "/nowhere"])
def test_answer_before_a_body_that_waits_to_be_wanted_ends_the_connection(run: Run, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n".encode()
    assert b"\r\nConnection: close\r\n" in last_answer(run, head + HOST + b"\r\n")


def test_draining_listener_closes_idle_connections_while_a_request_runs(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        asked, asking = await shell.connect()
        asking.write(GET)
        await answer_of(asked)
        fresh, _ = await shell.connect()
        reader, writer = await shell.connect()
        writer.write(put("/take", len(CONTENT)) + CONTENT[:-1])
        await shell.begun.wait()
        closing = asyncio.create_task(shell.listener.close(30.0))
        assert await all_of(asked) == b""
        assert await all_of(fresh) == b""
        writer.write(CONTENT[-1:])
        assert await answer_of(reader) == (200, told(CONTENT))
        await closing

    run(scenario)


def test_client_that_takes_nothing_of_an_answer_is_cut_off(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(GET)
        await answer_of(reader)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = shell.listener._connections.connections
        writer.write(LARGE)
        async with asyncio.timeout(20):
            while connection.transport is not None:
                await asyncio.sleep(0.01)
        assert shell.listener._connections.in_progress == 0

    run(scenario, STALLED)


def test_client_that_takes_an_answer_slowly_gets_all_of_it(run: Run) -> None:
    @again_after_standstill(SLOW_PATIENCE.answer_stall_s / 2)
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(LARGE)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        left_bytes = LARGE_BYTES
        while left_bytes:
            left_bytes -= len(await reader.readexactly(min(left_bytes, LARGE_BYTES // 8)))
            await asyncio.sleep(SLOW_PATIENCE.answer_stall_s / 6)

    run(scenario, SLOW_PATIENCE)


@pytest.mark.parametrize("host", ["a b", "a/b", "user@a", "<a>", "a:b", "[::1", "[]", "a:80:80", "\\"])
def test_host_that_is_none_is_refused(run: Run, host: str) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        for each, status in ((host, 400), *((good, 200) for good in HOSTS)):
            writer.write(f"GET /count HTTP/1.1\r\nHost: {each}\r\n\r\n".encode())
            assert (await answer_of(reader))[0] == status, each

    run(scenario)


def test_what_is_no_http_gets_an_answer_of_our_version_with_a_date(run: Run) -> None:
    answer = last_answer(run, b"GET / HTTP/1.1\r\nno field\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    (date,) = [line for line in answer.decode().split("\r\n") if line.startswith("Date: ")]
    assert parsedate_to_datetime(date.removeprefix("Date: "))
