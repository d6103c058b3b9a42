"""What `Range` and `Content-Range` mean here, and what they can not make the server do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest, RangeNotSatisfiable
from web.headers.ranges import (
    RANGES_MAX,
    ByteRange,
    ContentRange,
    multipart_parts,
    parse_content_range,
    parse_range,
)


@pytest.mark.parametrize(
    ("header", "spans"),
    [
        ("bytes=0-0", [(0, 1)]),
        ("bytes=0-99", [(0, 100)]),
        ("bytes=90-", [(90, 100)]),
        ("bytes=-1", [(99, 100)]),
        ("bytes=-1000", [(0, 100)]),
        ("bytes=5-1000", [(5, 100)]),
        ("BYTES=1-2", [(1, 3)]),
        ("bytes= 1-2 ,\t4-5 ", [(1, 3), (4, 6)]),
        ("bytes=1-2,,4-5,", [(1, 3), (4, 6)]),
        ("bytes=50-59,10-19", [(50, 60), (10, 20)]),
        ("bytes=0-9,5-14", [(0, 15)]),
        ("bytes=0-4,5-9", [(0, 10)]),
        ("bytes=50-59,10-19,15-29", [(50, 60), (10, 30)]),
        ("bytes=200-300,5-6", [(5, 7)]),
        ("bytes=-0,3-3", [(3, 4)]),
        ("bytes=00000000000000000000000000000003-4", [(3, 5)]),
    ],
)
def test_satisfiable_range_is_cut_to_the_content(header: str, spans: list[tuple[int, int]]) -> None:
    assert parse_range(header, 100) == [ByteRange(*span) for span in spans]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes=-",
        "bytes=a-b",
        "bytes=1-2-3",
        "bytes=1",
        "bytes=5-2",
        "bytes=1-2,5-2",
        "bytes=1 -2",
        "bytes=+1-2",
        "bytes=0x1-2",
        "bytes=١-٢",
        "lines=1-2",
        "seconds=0-",
        "bytes:0-1",
        "bytes=0-1;q=1",
        "bytes=" + "0-1," * 3000,
    ],
)
def test_range_that_is_no_byte_range_is_ignored(header: str | None) -> None:
    assert parse_range(header, 100) is None


@pytest.mark.parametrize(
    "header", ["bytes=-0", "bytes=100-", "bytes=100-200", "bytes=-0,-00", "bytes=" + "9" * 6000 + "-"]
)
def test_range_of_nothing_is_not_satisfiable(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable) as refusal:
        parse_range(header, 100)
    assert refusal.value.headers["Content-Range"] == "bytes */100"


def test_huge_last_position_and_suffix_reach_the_end() -> None:
    assert parse_range("bytes=1-" + "9" * 7000, 100) == [ByteRange(1, 100)]
    assert parse_range("bytes=-" + "9" * 7000, 100) == [ByteRange(0, 100)]


@pytest.mark.parametrize("header", ["bytes=-5", "bytes=0-", "bytes=0-1023", "bytes=-0", "bytes=7-"])
def test_range_of_empty_content_is_ignored(header: str) -> None:
    assert parse_range(header, 0) is None


def test_more_separate_ranges_than_allowed_are_refused() -> None:
    def listed(count: int) -> str:
        return "bytes=" + ",".join(f"{10 * n}-{10 * n}" for n in range(count))

    assert len(parse_range(listed(RANGES_MAX), 10_000) or []) == RANGES_MAX
    with pytest.raises(RangeNotSatisfiable):
        parse_range(listed(RANGES_MAX + 1), 10_000)
    with pytest.raises(RangeNotSatisfiable):
        parse_range(listed(500), 10_000)


def test_five_hundred_overlapping_ranges_are_one() -> None:
    assert parse_range("bytes=" + ",".join(["0-9"] * 500), 100) == [ByteRange(0, 10)]


POSITIONS = st.integers(0, 250) | st.none()
SPECS = st.tuples(POSITIONS, POSITIONS).filter(lambda spec: spec != (None, None))


@given(size_bytes=st.integers(0, 200), specs=st.lists(SPECS, min_size=1, max_size=RANGES_MAX))
def test_ranges_name_exactly_the_bytes_that_the_header_does(
    size_bytes: int, specs: list[tuple[int | None, int | None]]
) -> None:
    header = "bytes=" + ",".join("-".join("" if n is None else str(n) for n in spec) for spec in specs)
    reversed_somewhere = any(a is not None and b is not None and a > b for a, b in specs)
    expected: set[int] = set()
    for first, last in specs:
        if first is None:
            assert last is not None
            expected |= set(range(max(size_bytes - last, 0), size_bytes))
        else:
            expected |= set(range(first, size_bytes if last is None else min(last + 1, size_bytes)))
    try:
        spans = parse_range(header, size_bytes)
    except RangeNotSatisfiable:
        assert not expected
        return
    if spans is None:
        assert reversed_somewhere or size_bytes == 0
        return
    covered = [position for span in spans for position in range(span.start, span.stop)]
    assert len(covered) == len(set(covered))
    assert set(covered) == expected


@given(st.text(max_size=60), st.integers(0, 2**53))
def test_no_text_makes_the_parser_fail(text: str, size_bytes: int) -> None:
    for header in (text, "bytes=" + text):
        try:
            spans = parse_range(header, size_bytes)
        except RangeNotSatisfiable:
            continue
        assert spans is None or all(0 <= span.start < span.stop <= size_bytes for span in spans)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes 0-0/1", ContentRange(0, 1, 1)),
        ("bytes 5-9/10", ContentRange(5, 10, 10)),
        ("bytes 5-9/*", ContentRange(5, 10, None)),
        (" Bytes 0-9007199254740990/9007199254740991 ", ContentRange(0, 2**53 - 1, 2**53 - 1)),
    ],
)
def test_content_range_says_where_the_bytes_go(header: str, expected: ContentRange) -> None:
    assert parse_content_range(header) == expected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "bytes",
        "bytes */10",
        "bytes 0-9",
        "bytes 9-0/10",
        "bytes 0-10/10",
        "bytes -5/10",
        "bytes 0-/10",
        "items 0-1/2",
        "bytes=0-1/2",
        "bytes 0-1/2,3-4/5",
        "bytes 0-9007199254740991/*",
        "bytes 0-1/9007199254740992",
        "bytes 0-99999999999999999999/*",
        "bytes ٠-١/٢",
        "bytes 0-1/2\r\nX: y",
    ],
)
def test_content_range_that_makes_no_sense_is_refused_by_name(header: str) -> None:
    with pytest.raises(InvalidRequest, match="Content-Range"):
        parse_content_range(header)


def test_multipart_frame_holds_each_part_and_ends() -> None:
    content = bytes(range(100))
    frame = multipart_parts([ByteRange(0, 1), ByteRange(90, 100)], 100, "text/plain", "B0undary")

    body = b"".join(part.header + content[part.span.start : part.span.stop] for part in frame.parts)
    body += frame.closing

    assert body == (
        b"--B0undary\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-0/100\r\n\r\n\x00"
        b"\r\n--B0undary\r\nContent-Type: text/plain\r\nContent-Range: bytes 90-99/100\r\n\r\n"
        + content[90:]
        + b"\r\n--B0undary--\r\n"
    )


def test_multipart_content_type_cannot_add_headers() -> None:
    frame = multipart_parts([ByteRange(0, 1)], 1, "text/plain\r\nX-Evil: 1", "b")
    assert b"Evil" not in frame.parts[0].header
    assert b"application/octet-stream" in frame.parts[0].header
