"""Whether a connection stands between two requests, told beside aiohttp's parser, whatever is sent how."""

import asyncio
import itertools
import random
from collections.abc import Iterator

import pytest
from aiohttp import web

from tests.unit.body_shell import HOST, chunked
from web.fastpath import Boundary
from web.internals.aiohttp_server import ServerConnection

REQUESTS = 40
BODY_BYTES_MAX = 3000


class Connection(ServerConnection):
    """Notes how many bytes had come, whenever what comes next is the start of a request."""

    def __init__(self, server: web.Server) -> None:
        super().__init__(
            server,
            target_bytes_max=8190,
            header_bytes_max=8190,
            headers_max=64,
            keep_alive_s=60.0,
            linger_s=1.0,
        )
        self.boundary = Boundary()
        self.came_bytes = 0
        self.reached = {0}
        self.at_body = set[int]()

    def data_received(self, data: bytes) -> None:
        requests, body_bytes = self.parse(data)
        self.boundary.fed(data, requests=requests, body_bytes=body_bytes)
        self.came_bytes += len(data)
        if self.boundary.is_reached:
            self.reached.add(self.came_bytes)
        if self.boundary.is_at_body:
            self.at_body.add(self.came_bytes)


def request(dice: random.Random) -> tuple[bytes, bytes]:
    """Its head and its body."""
    content = dice.randbytes(dice.randrange(BODY_BYTES_MAX)) * dice.randrange(2)
    if dice.random() < 0.2:  # looks like the end of a head, and the next one
        content = b"\r\n\r\nGET /x HTTP/1.1\r\n" + HOST + b"\r\n"
    line, kind = b"PUT /x HTTP/1.1\r\n" + HOST, dice.random()
    if kind < 0.4:
        return line + b"Content-Length: %d\r\n\r\n" % len(content), content
    if kind < 0.5:
        return line + b"Transfer-Encoding: chunked\r\n\r\n", chunked(content, 100)
    return b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n", b""


def batches(requests: list[tuple[bytes, bytes]], dice: random.Random) -> Iterator[list[tuple[bytes, bytes]]]:
    """What is sent before any of it is answered."""
    left = list(requests)
    while left:
        count = dice.randrange(1, 4)
        yield left[:count]
        left = left[count:]


def pieces(batch: list[tuple[bytes, bytes]], dice: random.Random) -> Iterator[bytes]:
    """All of it, cut anywhere, and often where a head or a body ends."""
    parts = [part for each in batch for part in each]
    whole, ends = b"".join(parts), itertools.accumulate(map(len, parts))
    cuts = {end for end in ends if dice.random() < 0.3} | {dice.randrange(len(whole)) for _ in parts}
    for start, stop in itertools.pairwise(sorted({0, len(whole)} | cuts)):
        yield whole[start:stop]


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    await request.read()
    return web.Response(text="yes")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_pipelined", [False, True])
async def test_boundary_is_told_at_the_end_of_a_request_and_nowhere_else(
    seed: int, is_pipelined: bool
) -> None:
    dice, made = random.Random(seed), list[Connection]()
    requests = [request(dice) for _ in range(REQUESTS)]
    ends = list(itertools.accumulate(len(head) + len(body) for head, body in requests))
    bodies_start = {end - len(body) for end, (_, body) in zip(ends, requests, strict=True) if body}
    server = web.Server(answer)

    def connection() -> Connection:
        made.append(Connection(server))
        return made[-1]

    listening = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())

    try:
        async with asyncio.timeout(30):
            for batch in batches(requests, dice) if is_pipelined else ([each] for each in requests):
                for piece in pieces(batch, dice):
                    writer.write(piece)
                    for _ in range(3):  # so that the server has it by itself, as a rule
                        await asyncio.sleep(0)
                for _ in batch:
                    await reader.readuntil(b"\r\n\r\nyes")
    finally:
        writer.close()
        listening.close()
        await server.shutdown(1.0)
    [served] = made
    assert served.came_bytes == ends[-1]
    assert served.reached <= {0, *ends}
    assert served.at_body <= bodies_start
    if not is_pipelined:
        until_chunks = itertools.takewhile(
            lambda pair: b"chunked" not in pair[1][0], zip(ends, requests, strict=True)
        )
        assert served.reached >= {end for end, _ in until_chunks}
