"""Deltas, whole and hostile: each either is the content that it describes, or is rejected."""

import random
import struct

import pytest

from ca.errors import InvalidRequest, PayloadTooLarge
from node.cold.delta import CONTENT_BYTES_MAX, SPAN_BYTES_MAX, SPANS_MAX, DeltaDecoder

BASE = random.Random(1).randbytes(100_000)


def literal(content: bytes) -> bytes:
    return struct.pack("<BI", 0, len(content)) + content


def span(start: int, length: int) -> bytes:
    return struct.pack("<BQI", 1, start, length)


def decoded(*pieces: bytes, base: bytes = BASE) -> bytes:
    decoder, content = DeltaDecoder(len(base)), bytearray()
    for piece in pieces:
        for item in decoder.feed(piece):
            content += item if isinstance(item, memoryview) else base[item[0] : item[1]]
    decoder.finish()
    return bytes(content)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 13, 1000])
def test_delta_is_the_same_content_however_its_bytes_arrive(size: int) -> None:
    raw = literal(b"new") + span(5, 90_000) + span(0, 1) + literal(b"x" * 3000) + span(99_999, 1)
    content = b"new" + BASE[5:90_005] + BASE[:1] + b"x" * 3000 + BASE[-1:]
    assert decoded(*(raw[at : at + size] for at in range(0, len(raw), size))) == content


def test_no_bytes_are_no_content() -> None:
    assert decoded() == b""


@pytest.mark.parametrize(
    "raw",
    [
        b"\2",
        b"\xff" * 20,
        literal(b""),
        span(0, 0),
        span(0, 100_001),
        span(100_000, 1),
        span(2**64 - 1, 1),
        literal(b"abc")[:-1],
        span(0, 9)[:-1],
        b"\0",
        literal(b"abc") + b"\1",
    ],
)
def test_malformed_delta_is_rejected(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decoded(raw)


def test_span_beyond_its_limit_is_rejected() -> None:
    assert list(DeltaDecoder(2**40).feed(span(0, SPAN_BYTES_MAX))) == [(0, SPAN_BYTES_MAX)]
    with pytest.raises(InvalidRequest):
        list(DeltaDecoder(2**40).feed(span(0, SPAN_BYTES_MAX + 1)))


def test_one_request_has_bounded_content_and_spans() -> None:
    with pytest.raises(PayloadTooLarge):
        list(DeltaDecoder(2**40).feed(span(0, SPAN_BYTES_MAX) * (CONTENT_BYTES_MAX // SPAN_BYTES_MAX + 1)))
    with pytest.raises(PayloadTooLarge):
        list(DeltaDecoder(9).feed(struct.pack("<BI", 0, CONTENT_BYTES_MAX + 1)))
    assert len(list(DeltaDecoder(9).feed(span(0, 1) * SPANS_MAX))) == SPANS_MAX
    with pytest.raises(PayloadTooLarge):
        list(DeltaDecoder(9).feed(span(0, 1) * (SPANS_MAX + 1)))


def test_random_bytes_never_give_more_than_the_base_has() -> None:
    rand = random.Random(2)
    for _ in range(2000):
        decoder = DeltaDecoder(1000)
        try:
            for item in decoder.feed(rand.choice([b"\0", b"\1"]) + rand.randbytes(rand.randrange(200))):
                assert isinstance(item, memoryview) or 0 <= item[0] < item[1] <= 1000
        except (InvalidRequest, PayloadTooLarge):
            continue
