"""The heads that are answered past the HTTP parser: only those that can mean one thing."""

import pytest

from node.content.fastpath_head import HEAD_BYTES_MAX, Fields, parse_head
from web.fastpath import Boundary

UUID = b"01930000-0000-7000-8000-00000000000a"
LINE = b"GET /api/v1/files/" + UUID + b" HTTP/1.1\r\n"
HOST = b"Host: x\r\n"
HEAD = LINE + HOST + b"\r\n"
BEARER = b"Authorization: Bearer a.b.c\r\n"
FILLER = b"User-Agent: " + b"x" * (HEAD_BYTES_MAX - len(LINE + HOST + BEARER) - 16) + b"\r\n"


def expected(first: int = -1, last: int = -1, request_id: str = "") -> tuple[str, Fields]:
    return UUID.decode(), Fields("a.b.c", request_id, first, last)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (HOST + BEARER, expected()),
        (BEARER + HOST, expected()),
        (b"hOST: [::1]:80\r\nAUTHORIZATION: bearer a.b.c\r\n", expected()),
        (HOST + BEARER + b"User-Agent: curl/8\r\nAccept: */*\r\n", expected()),
        (HOST + BEARER + b"Accept-Encoding: gzip\r\nAccept-Language: de\r\n", expected()),
        (HOST + BEARER + b"Connection: Keep-Alive\r\n", expected()),
        (HOST + BEARER + b"X-Request-Id: a.B-9_\r\n", expected(request_id="a.B-9_")),
        (HOST + BEARER + b"Range: bytes=0-0\r\n", expected(0, 0)),
        (HOST + BEARER + b"Range: bytes=5-0000000000000009\r\n", expected(5, 9)),
        (HOST + BEARER + FILLER, expected()),
    ],
)
def test_plain_get_of_a_file_is_taken(fields: bytes, found: tuple[str, Fields]) -> None:
    assert parse_head(LINE + fields + b"\r\n") == found


HOSTILE = {
    "nothing": b"",
    "half a line": LINE[:20],
    "no fields": LINE + b"\r\n",
    "no end": LINE + HOST + BEARER,
    "half an end": LINE + HOST + BEARER + b"\r",
    "a byte behind": LINE + HOST + BEARER + b"\r\n\x00",
    "an empty line behind": LINE + HOST + BEARER + b"\r\n\r\n",
    "an empty line before": b"\r\n" + LINE + HOST + BEARER + b"\r\n",
    "a request behind": (LINE + HOST + BEARER + b"\r\n") * 2,
    "bare line feeds": (LINE + HOST + BEARER + b"\r\n").replace(b"\r\n", b"\n"),
    "one bare line feed": LINE + b"Host: x\n" + BEARER + b"\r\n",
    "bare carriage return": LINE + b"Host: x\r" + BEARER + b"\r\n",
    "folded": LINE + b"Host: x\r\n y\r\n" + BEARER + b"\r\n",
    "tab": LINE + HOST + BEARER + b"Accept:\tx\r\n\r\n",
    "no space": LINE + b"Host:x\r\n" + BEARER + b"\r\n",
    "space before the colon": LINE + b"Host : x\r\n" + BEARER + b"\r\n",
    "NUL": LINE + HOST + BEARER + b"Accept: \x00\r\n\r\n",
    "beyond ASCII": LINE + HOST + BEARER + b"User-Agent: \xe9\r\n\r\n",
    "no host": LINE + BEARER + b"\r\n",
    "two hosts": LINE + HOST + HOST + BEARER + b"\r\n",
    "odd host": LINE + b"Host: x y\r\n" + BEARER + b"\r\n",
    "half an address": LINE + b"Host: :::1]\r\n" + BEARER + b"\r\n",
    "two ports": LINE + b"Host: x:1:2\r\n" + BEARER + b"\r\n",
    "no credential": LINE + HOST + b"\r\n",
    "two credentials": LINE + HOST + BEARER + BEARER.lower() + b"\r\n",
    "two schemes": LINE + HOST + b"Authorization: Bearer Bearer a\r\n\r\n",
    "other scheme": LINE + HOST + b"Authorization: Basic YTpi\r\n\r\n",
    "two accepts": LINE + HOST + BEARER + b"Accept: a\r\nACCEPT: b\r\n\r\n",
    "close": LINE + HOST + BEARER + b"Connection: close\r\n\r\n",
    "upgrade": LINE + HOST + BEARER + b"Connection: upgrade\r\n\r\n",
    "length": LINE + HOST + BEARER + b"Content-Length: 0\r\n\r\n",
    "chunked": LINE + HOST + BEARER + b"Transfer-Encoding: chunked\r\n\r\n",
    "expect": LINE + HOST + BEARER + b"Expect: 100-continue\r\n\r\n",
    "condition": LINE + HOST + BEARER + b'If-None-Match: "x"\r\n\r\n',
    "run by a page": LINE + HOST + BEARER + b"Sec-Fetch-Dest: script\r\n\r\n",
    "prefer": LINE + HOST + BEARER + b"Prefer: redirect\r\n\r\n",
    "insane id": LINE + HOST + BEARER + b"X-Request-Id: a b\r\n\r\n",
    "empty range": LINE + HOST + BEARER + b"Range: \r\n\r\n",
    "open range": LINE + HOST + BEARER + b"Range: bytes=5-\r\n\r\n",
    "suffix range": LINE + HOST + BEARER + b"Range: bytes=-5\r\n\r\n",
    "reversed range": LINE + HOST + BEARER + b"Range: bytes=5-4\r\n\r\n",
    "two ranges": LINE + HOST + BEARER + b"Range: bytes=0-1,3-4\r\n\r\n",
    "long range": LINE + HOST + BEARER + b"Range: bytes=0-12345678901234567\r\n\r\n",
    "other unit": LINE + HOST + BEARER + b"Range: lines=0-1\r\n\r\n",
    "range in other digits": LINE + HOST + BEARER + "Range: bytes=٠-٩\r\n\r\n".encode(),
    "query": LINE.replace(b" HTTP", b"?redirect=1 HTTP") + HOST + BEARER + b"\r\n",
    "fragment": LINE.replace(b" HTTP", b"# HTTP") + HOST + BEARER + b"\r\n",
    "longer path": LINE.replace(b" HTTP", b"/status HTTP") + HOST + BEARER + b"\r\n",
    "capitals": LINE.replace(b"a HTTP", b"A HTTP") + HOST + BEARER + b"\r\n",
    "escaped": LINE.replace(b"files", b"f%69les") + HOST + BEARER + b"\r\n",
    "absolute": LINE.replace(b"GET ", b"GET http://x") + HOST + BEARER + b"\r\n",
    "1.0": LINE.replace(b"1.1", b"1.0") + HOST + BEARER + b"\r\n",
    "2.0": LINE.replace(b"1.1", b"2.0") + HOST + BEARER + b"\r\n",
    "two spaces": LINE.replace(b"GET ", b"GET  ") + HOST + BEARER + b"\r\n",
    "HEAD": LINE.replace(b"GET", b"HEAD") + HOST + BEARER + b"\r\n",
    "get": LINE.replace(b"GET", b"get") + HOST + BEARER + b"\r\n",
    "too long": LINE + HOST + BEARER + FILLER.replace(b"\r\n", b"xxxxxxxxxxxxxxxxx\r\n") + b"\r\n",
}


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_whatever_could_mean_something_else_is_left_to_the_parser(head: bytes) -> None:
    assert parse_head(head) is None


def test_boundary_is_kept_by_whole_heads_without_bodies() -> None:
    boundary = Boundary()
    assert boundary.is_reached
    boundary.fed(HEAD, requests=1, body_bytes=0)
    assert boundary.is_reached
    boundary.fed(LINE, requests=0, body_bytes=None)
    assert not boundary.is_reached
    boundary.fed(HOST + b"\r", requests=0, body_bytes=None)
    boundary.fed(b"\n", requests=1, body_bytes=0)
    assert boundary.is_reached


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"12345"],
        [HEAD, b"12345"],
        [HEAD + b"12", b"345"],
        [HEAD[:9], HEAD[9:] + b"1", b"234", b"5"],
    ],
)
def test_boundary_is_reached_at_the_end_of_a_body_whose_length_is_told(pieces: list[bytes]) -> None:
    boundary, whole = Boundary(), b""
    for piece in pieces:
        assert boundary.is_reached == (not whole)
        is_new = HEAD not in whole and HEAD in whole + piece
        whole += piece
        boundary.fed(piece, requests=int(is_new), body_bytes=5 if is_new else None)
        assert boundary.is_at_body == whole.endswith(HEAD)
    assert boundary.is_reached
    boundary.fed(HEAD, requests=1, body_bytes=0)
    assert boundary.is_reached


@pytest.mark.parametrize(
    ("pieces", "requests", "body_bytes"),
    [
        ([HEAD + LINE], 1, 0),  # the next one has begun
        ([HEAD * 2], 2, 0),
        ([b"\r\n" + HEAD], 1, 0),
        ([b"\r\n\r\n" + HEAD], 1, 0),
        ([b"\r\n\r\n" + HEAD], 1, 1000),
        ([HEAD], 1, None),
        ([HEAD + b"123456"], 1, 5),
        ([HEAD, b"123456"], 1, 5),
        ([HEAD.replace(b"\r", b"")], 1, 0),
        ([HEAD.replace(b"\r", b"") + b"\r\n\r\n"], 1, 4),
        ([b"x" * (1 << 17)], 0, None),
    ],
)
def test_boundary_once_lost_is_not_found_again(
    pieces: list[bytes], requests: int, body_bytes: int | None
) -> None:
    boundary = Boundary()
    for piece in pieces:
        boundary.fed(piece, requests=requests, body_bytes=body_bytes)
        requests, body_bytes = 0, None
    for _ in range(2):
        boundary.fed(HEAD, requests=1, body_bytes=0)
        assert not boundary.is_reached
