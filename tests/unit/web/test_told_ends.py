"""Who is going to lose the connection behind an answer reads so in its head, however early that was sent.

Else a client keeps the connection for its next request, which meets the end of it.
"""

import asyncio

import pytest

from tests.unit.body_shell import CONTENT, GET, HOST, Run, Shell, answer_of, chunked, head_of, put, told

LINK = b"PUT /link HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("length", [0, 1, 3000, 300_000])
def test_connection_that_had_a_body_has_the_next_go_past_the_parser_and_stays(run: Run, length: int) -> None:
    """As of a node that passes the bytes of a client on, and then begins a chain of copies."""

    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        for served in (1, 2):
            writer.write(put("/take", length))
            writer.write(CONTENT[:length])
            assert await answer_of(reader) == (200, told(CONTENT[:length]))
            copied_bytes = shell.copied_bytes
            writer.write(LINK)
            assert "connection" not in await head_of(reader)
            writer.write(chunked(CONTENT, 100_000))
            async with asyncio.timeout(20):
                assert await reader.readexactly(4) == b"done"
            assert shell.copied_bytes == copied_bytes
            writer.write(GET)
            assert await answer_of(reader) == (200, b'{"served":%d}' % served)

    run(scenario)


def test_early_answer_to_chunks_that_go_through_the_parser_tells_that_it_is_the_last(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        writer.write(LINK + chunked(CONTENT, 100_000))
        assert (await head_of(reader))["connection"] == "close"
        async with asyncio.timeout(20):
            assert await reader.read() == b"done"

    run(scenario)


def test_early_answer_of_a_listener_that_drains_tells_that_it_is_the_last(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        reader, writer = await shell.connect()
        idle, other_writer = await shell.connect()
        other_writer.write(GET)
        await answer_of(idle)
        shell.go_on.clear()
        writer.write(put("/link", 3) + b"abc")
        async with asyncio.timeout(20):
            await shell.begun.wait()
            closing = asyncio.create_task(shell.listener.close(10.0))
            assert await idle.read() == b""  # so it drains
        shell.go_on.set()
        assert (await head_of(reader))["connection"] == "close"
        async with asyncio.timeout(20):
            assert await reader.read() == b"done"
        await closing

    run(scenario)
