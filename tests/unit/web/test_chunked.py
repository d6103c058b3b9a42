"""Chunks wherever their bytes are cut, and beside the parser that every other body goes through."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given
from hypothesis import strategies as st

from web.chunked import LINE_BYTES_MAX, LOOK_BYTES, TRAILER_BYTES_MAX, Chunks, KnownLength, MalformedBody

HEAD = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def scanned(body: bytes, cuts: list[int] | None = None) -> tuple[bytes, bytes, bool]:
    """The content, what lies behind the body, and whether it has ended, when it comes in so large pieces."""
    chunks, content, at = Chunks(), b"", 0
    for size in [*(cuts or []), len(body)]:
        piece = memoryview(body)[at : at + size]
        spans, used = chunks.scan(piece)
        content += b"".join(piece[start:stop] for start, stop in spans)
        at += used
        if chunks.is_ended:
            break
        assert used == len(piece)
    return content, body[at:], chunks.is_ended


def encoded(parts: list[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    chunks = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part]
    return b"".join([*chunks, b"0%b\r\n%b\r\n" % (extension, trailers)])


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.sampled_from([b"", b";a", b";name=value", b';q="x y";a']),
    st.sampled_from([b"", b"Digest: x\r\n", b"A: 1\r\nB: 2\r\n"]),
    st.binary(max_size=10),
    st.lists(st.integers(1, 30), max_size=60),
)
def test_content_is_found_wherever_its_bytes_are_cut(
    parts: list[bytes], extension: bytes, trailers: bytes, behind: bytes, cuts: list[int]
) -> None:
    body = encoded(parts, extension, trailers) + behind
    assert scanned(body, cuts) == (b"".join(parts), behind, True)


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\na\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b" 1\r\na\r\n",
        b"1 \r\na\r\n",
        b"1_0\r\n" + b"a" * 16,
        b"1\na\r\n",
        b"1\r\na\n",
        b"1\r\nab\r\n",
        b"2\r\na\r\n0\r\n\r\n",
        b"1;a\rb\r\na\r\n",
        b"1;\x00\r\na\r\n",
        b"1,2\r\na\r\n",
        b"ffffffffffffffff\r\n",
        b"1" + b";" * LINE_BYTES_MAX + b"\r\n",
        b"0" * (LINE_BYTES_MAX + 1),
        b"0\r\n" + b"A: 1\r\n" * TRAILER_BYTES_MAX,
        b"0\r\nA: 1\n\r\n",
        b"0;\r\n\r\n",
        b"0;x:\r\n\r\n",
        b"0;x=\r\n\r\n",
        b'0;x="a\r\n\r\n',
        b"0\r\n0\r\n\r\n",
        b"0\r\nA : 1\r\n\r\n",
        b"0\r\n: 1\r\n\r\n",
        b"0\r\nA: 1\r\n b\r\n\r\n",
        b"0\r\nA: \x00\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_what_is_no_chunk_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(MalformedBody):
        scanned(body, [size] * len(body))


def test_body_that_has_not_ended_says_so() -> None:
    for stop in range(len(body := encoded([b"abc", b"d" * 20]))):
        assert not scanned(body[:stop])[2]


def test_no_more_is_taken_at_once_between_small_chunks_than_is_quickly_looked_at() -> None:
    chunks = Chunks()
    assert chunks.room_bytes == LOOK_BYTES
    chunks.scan(memoryview(b"100000\r\n"))
    assert chunks.room_bytes == (1 << 20) + LOOK_BYTES
    known = KnownLength(7)
    assert known.scan(memoryview(b"abcd")) == ([(0, 4)], 4)
    assert (known.room_bytes, known.is_ended) == (3, False)
    assert known.scan(memoryview(b"efgh")) == ([(0, 3)], 3)
    assert known.is_ended


PIECES = [
    b"0",
    b"1",
    b":",
    b"=",
    b'"',
    b'"a\\"b"',
    b"a",
    b"F",
    b"10",
    b"\r\n",
    b"\n",
    b"\r",
    b";x",
    b" ",
    b"A: b",
    b"-",
    b"\x00",
    b"aa",
]


RANDOM = st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join)


@example(b"1\r\na\r\n0\r\n\r\n")
@example(b"0\r\nA: b\r\n\r\n")
@given(RANDOM | st.builds(b"0\r\n%b\r\n\r\n".__mod__, RANDOM))
def test_what_is_taken_here_the_ordinary_parser_takes_for_the_same(body: bytes) -> None:
    try:
        content, behind, is_ended = scanned(body)
    except MalformedBody:
        return
    if not is_ended:
        return
    loop = asyncio.new_event_loop()
    try:
        protocol = web.RequestHandler(web.Server(_never, loop=loop), loop=loop)
        parser = HttpRequestParser(protocol, loop, 2**16, payload_exception=web.RequestPayloadError)
        ((_, payload),), _, _ = parser.feed_data(HEAD + body[: len(body) - len(behind)])
        assert payload.is_eof()
        assert b"".join(iter(payload.read_nowait, b"")) == content
    finally:
        loop.close()


async def _never(_request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError
