"""Downloads over several connections from servers that misbehave as no node of ours does."""

import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web

from ca.certificates import new_root
from filestore_client.base.errors import FilestoreError, Internal, PreconditionFailed, Unavailable
from filestore_client.base.records import Content
from filestore_client.base.spans import Coverage
from filestore_client.base.transport import Transport
from filestore_client.transfer.ranges import (
    RANGE_BYTES_MAX,
    RANGE_BYTES_MIN,
    SEGMENT_BYTES,
    download_ranges,
    split,
)

CONTENT = os.urandom(2 * RANGE_BYTES_MIN)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
DESCRIBED = Content(size_bytes=len(CONTENT), sha256=SHA256, filename="x")


class Memory:
    """A sink that holds everything."""

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.content = bytearray(len(CONTENT))

    async def write_at(self, offset: int, part: bytes) -> None:
        self.content[offset : offset + len(part)] = part
        self.coverage.add(offset, offset + len(part))


Answer = Callable[[int, int], web.Response]


def right(start: int, stop: int) -> web.Response:
    headers = {"ETag": f'"{SHA256}"', "Content-Range": f"bytes {start}-{stop - 1}/{len(CONTENT)}"}
    return web.Response(status=206, headers=headers, body=CONTENT[start:stop])


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """A server that answers a range as the test says; its URL."""

    async def handle(request: web.Request) -> web.Response:
        assert request.headers["If-Match"] == f'"{SHA256}"'
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"])
        assert found
        return answer(int(found[1]), int(found[2]) + 1)

    application = web.Application()
    application.router.add_get("/api/v1/files/f", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
def root_pem() -> str:
    return new_root("test", now=datetime.now(UTC))[0]


async def download(root_pem: str, *urls: str, deadline_s: float = 30.0) -> Memory:
    sink = Memory()
    async with Transport(urls, root_pem=root_pem, token="t", deadline_s=deadline_s) as client:
        await download_ranges(client, "f", DESCRIBED, sink, connections=2)
    return sink


async def test_content_that_changes_meanwhile_is_refused(root_pem: str) -> None:
    def answer(start: int, stop: int) -> web.Response:
        response = right(start, stop)
        if start:
            response.headers["ETag"] = '"other"'
        return response

    async with serving(answer) as url:
        with pytest.raises(PreconditionFailed):
            await download(root_pem, url)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda *_: web.Response(headers={"ETag": f'"{SHA256}"'}, body=CONTENT),
        lambda start, stop: right(0, stop - start) if start else right(1, stop),
        lambda start, stop: right(start, stop - 1),
    ],
)
async def test_answer_with_other_bytes_than_asked_for_is_refused(root_pem: str, spoil: Answer) -> None:
    async with serving(spoil) as url:
        with pytest.raises(Internal):
            await download(root_pem, url)


async def test_server_that_refuses_is_left_for_another(root_pem: str) -> None:
    refused: list[int] = []

    def refuse(start: int, stop: int) -> web.Response:
        refused.append(start)
        return web.json_response({"code": "unavailable", "error": "", "details": "later"}, status=503)

    async with serving(refuse) as bad, serving(right) as good:
        sink = await download(root_pem, bad, good)
    assert sink.content == CONTENT
    assert refused


async def test_nothing_going_forward_ends_at_the_deadline(root_pem: str) -> None:
    def refuse(start: int, stop: int) -> web.Response:
        return web.json_response({"code": "unavailable", "error": "", "details": "later"}, status=503)

    async with serving(refuse) as url:
        with pytest.raises(Unavailable):
            await download(root_pem, url, "http://127.0.0.1:1", deadline_s=0.5)


async def test_refusal_of_the_caller_ends_every_connection(root_pem: str) -> None:
    def refuse(start: int, stop: int) -> web.Response:
        if start == 0:
            return right(start, stop)
        return web.json_response({"code": "forbidden", "error": "", "details": "no"}, status=403)

    async with serving(refuse) as url:
        with pytest.raises(FilestoreError, match="no"):
            await download(root_pem, url)


@pytest.mark.parametrize("size_bytes", [0, 1, RANGE_BYTES_MIN, 3 * RANGE_BYTES_MIN + 1, 1 << 30, 1 << 40])
def test_ranges_cover_the_file_once_and_end_with_segments(size_bytes: int) -> None:
    ranges = split([(0, size_bytes)] if size_bytes else [], 4)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges)][: len(ranges)]
    assert (ranges[-1][1] if ranges else 0) == size_bytes
    assert all(stop - start <= RANGE_BYTES_MAX for start, stop in ranges)
    assert all(stop % SEGMENT_BYTES == 0 for _, stop in ranges[:-1])
    assert len(ranges) == -(-size_bytes // RANGE_BYTES_MIN) or size_bytes >= 1 << 30


def test_only_gaps_are_asked_for() -> None:
    gaps = [(5, 6), (RANGE_BYTES_MIN - 1, RANGE_BYTES_MIN + 1)]
    assert split(gaps, 4) == gaps
