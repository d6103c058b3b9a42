"""Clients that send all they have to say, close their side, and read on (`nc -N`, many a script)."""

import asyncio
from collections.abc import Callable, Iterable

import pytest
from aiohttp import web

from node.content.upload_session import _connection_of
from tests.unit.body_shell import CONTENT, GET, PATIENCE, Shell, answer_of, chunked, put, told
from tests.unit.hot_node import asking, exchange, hot_node, record, steady
from tests.unit.peer_nodes import Node
from web.app import json_response, new_application, serve

CHUNKED = b"PUT /take HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
SMALL, LARGE = CONTENT[:5000], CONTENT[: 3 << 20]
TAKEN = [
    put("/take", 5000) + SMALL,
    put("/take", len(LARGE)) + LARGE,
    CHUNKED + chunked(LARGE, 100_000),
]
PARTS = [b"GET /cou", put("/take", 5000) + SMALL[:-1], CHUNKED + chunked(SMALL, 100)[:-2]]
Said = Iterable[bytes]


@pytest.fixture
def answers(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> Callable[[Said], list[tuple[int, bytes]]]:
    """What comes back, until the other side closes, for requests with an end of the stream behind them."""

    async def ask(said: Said) -> list[tuple[int, bytes]]:
        async with Shell(None, PATIENCE) as shell:
            reader, writer = await shell.connect()
            for part in said:
                writer.write(part)
            writer.write_eof()
            async with asyncio.timeout(20):
                content = await reader.read()
            kept = asyncio.StreamReader()
            kept.feed_data(content)
            kept.feed_eof()
            received = []
            while not kept.at_eof():
                received.append(await answer_of(kept))
            return received

    def run(said: Said) -> list[tuple[int, bytes]]:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(ask(said))

    return run


@pytest.mark.parametrize("body", TAKEN, ids=["small", "large", "chunked"])
def test_request_whose_body_came_whole_is_answered(
    answers: Callable[[Said], list[tuple[int, bytes]]], body: bytes
) -> None:
    content = SMALL if body is TAKEN[0] else LARGE
    assert answers([body]) == [(200, told(content))]


def test_all_requests_before_the_end_are_answered(
    answers: Callable[[Said], list[tuple[int, bytes]]],
) -> None:
    served = [(200, b'{"served":%d}' % count) for count in (0, 1, 2)]
    expected = [served[0], (200, told(LARGE)), served[1], (200, told(SMALL)), *[served[2]] * 30]
    assert answers([GET, TAKEN[1], GET, TAKEN[0], *[GET] * 30]) == expected


@pytest.mark.parametrize("part", PARTS, ids=["head", "body", "chunks"])
def test_part_of_a_request_gets_no_answer(
    answers: Callable[[Said], list[tuple[int, bytes]]], part: bytes
) -> None:
    assert answers([part]) == []


def test_refused_body_gets_its_answer(answers: Callable[[Said], list[tuple[int, bytes]]]) -> None:
    [(status, _)] = answers([put("/refuse", len(CONTENT)) + CONTENT])
    assert status == 413


async def test_request_that_ends_later_is_answered_then() -> None:
    async with Shell(None, PATIENCE) as shell:
        shell.go_on.clear()
        reader, writer = await shell.connect()
        writer.write(put("/take", len(SMALL)) + SMALL)
        writer.write_eof()
        async with asyncio.timeout(10):
            await shell.begun.wait()
            other, asking_elsewhere = await shell.connect()
            asking_elsewhere.write(GET)
            assert await answer_of(other) == (200, b'{"served":0}')  # the end was seen in the meantime
        shell.go_on.set()
        assert await answer_of(reader) == (200, told(SMALL))
        assert await reader.read() == b""


async def test_upload_of_a_client_that_has_ended_is_for_who_asks_next() -> None:
    taken: asyncio.Queue[Callable[[], bool]] = asyncio.Queue()
    go_on = asyncio.Event()

    async def take(request: web.Request) -> web.Response:
        connected, _ = _connection_of(request)
        taken.put_nowait(connected)
        await go_on.wait()
        return json_response({})

    app = new_application([web.get("/count", take)], component="test")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None)
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GET)
        connected = await taken.get()
        assert connected()
        writer.write_eof()
        while connected():
            await asyncio.sleep(0.01)
        go_on.set()
        assert await answer_of(reader) == (200, b"{}")
        writer.close()
        await listener.close(1.0)


@pytest.mark.parametrize(
    ("line", "times"),
    [("Accept: */*", 1), ("Range: bytes=0-9", 1), ("Range: bytes=0-9", 5), ("Range: bytes=5-1000000", 2)],
)
async def test_download_is_answered_directly_and_otherwise(nodes: list[Node], line: str, times: int) -> None:
    nodes[0].store()
    async with hot_node(nodes[0], record(["n1"])) as running:
        await running.warm()
        last = steady(await exchange(running.ordinary, [asking(line, "Connection: close")]))
        kept = last.replace(b"Connection: close\r\n", b"")
        for listener in (running.ordinary, running.hot):
            said = [asking(line) * times]
            assert steady(await exchange(listener, said, half_closes=True)) == kept * times
