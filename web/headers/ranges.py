"""Byte ranges: which bytes a `Range` asks for, which a `Content-Range` brings (RFC 9110, section 14).

Pure: strings and integers in, facts out. Positions are in bytes; ranges are half-open: `stop` is outside.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ca.errors import InvalidRequest, RangeNotSatisfiable

RANGES_MAX = 16  # parts in one answer, counted after overlapping ones were joined
HEADER_CHARACTERS_MAX = 8192  # the HTTP parser's own limit for one header
SIZE_BYTES_MAX = 2**53 - 1  # the largest file, so that JSON numbers stay exact
DIGITS_MAX = 18  # beyond every legal size; longer numbers are read as "past the end" and never computed

_SPEC = re.compile(r"([0-9]*)-([0-9]*)", re.ASCII)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,16})-([0-9]{1,16})/([0-9]{1,16}|\*)", re.ASCII | re.IGNORECASE)
_BOUNDARY = re.compile(r"[0-9A-Za-z]{1,70}", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `stop`, `stop` excluded; never empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        """A range has at least one byte: `Content-Range` cannot name an empty one."""
        assert 0 <= self.start < self.stop

    @property
    def size_bytes(self) -> int:
        """How many bytes the range has."""
        return self.stop - self.start

    def content_range(self, size_bytes: int) -> str:
        """The value of `Content-Range` in a 206 for content of `size_bytes` (section 14.4)."""
        return f"bytes {self.start}-{self.stop - 1}/{size_bytes}"


@dataclass(frozen=True, slots=True)
class ContentRange:
    """The bytes that a PUT brings; `total` is the size of the whole, None for `*`."""

    start: int
    stop: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a multipart answer: these header bytes, then the bytes of `span`."""

    header: bytes
    span: ByteRange


@dataclass(frozen=True, slots=True)
class Multipart:
    """A multipart/byteranges body: every part in order, then `closing`."""

    parts: tuple[Part, ...]
    closing: bytes


def parse_range(header: str | None, size_bytes: int) -> list[ByteRange] | None:
    """Return the ranges to send, in the requested order, or None for the whole content with a 200.

    None if there is no header, the unit is not bytes, or the syntax is wrong (including a last position
    before the first): such a header is ignored (RFC 9110, section 14.2). It is also ignored for empty
    content, because a client that reads in blocks requests the first one without knowing the size.
    Overlapping and adjacent ranges are joined. Raises RangeNotSatisfiable if no requested byte exists
    (`bytes=-0` too), or if more than RANGES_MAX disjoint ranges remain (section 15.5.17 names both).
    """
    specs = None if header is None else _specs(header)
    if specs is None or size_bytes == 0:
        return None
    spans = [span for first, last in specs if (span := _resolve(first, last, size_bytes)) is not None]
    if not spans:
        details = f"Range: outside the content, which has {size_bytes} bytes."
        raise RangeNotSatisfiable(details, size_bytes=size_bytes)
    joined = _coalesce(spans)
    if len(joined) > RANGES_MAX:
        details = f"Range: {len(joined)} separate ranges were requested; at most {RANGES_MAX} are allowed."
        raise RangeNotSatisfiable(details, size_bytes=size_bytes)
    return joined


def parse_content_range(header: str) -> ContentRange:
    """The place of a PUT's bytes: `bytes A-B/TOTAL` or `bytes A-B/*` (RFC 9110, sections 14.4 and 14.5).

    Raises InvalidRequest, naming Content-Range, for any other form and for positions that contradict.
    """
    match = _CONTENT_RANGE.fullmatch(header.strip(" \t"))
    if match is None:
        raise InvalidRequest("Content-Range: must be `bytes A-B/TOTAL` or `bytes A-B/*`.")
    start, stop = int(match[1]), int(match[2]) + 1
    total = None if match[3] == "*" else int(match[3])
    if start >= stop:
        raise InvalidRequest("Content-Range: the last position is before the first.")
    if max(stop, total or 0) > SIZE_BYTES_MAX:
        raise InvalidRequest(f"Content-Range: the content may have at most {SIZE_BYTES_MAX} bytes.")
    if total is not None and stop > total:
        raise InvalidRequest("Content-Range: the last position is beyond the total.")
    return ContentRange(start, stop, total)


def multipart_parts(
    ranges: Sequence[ByteRange], size_bytes: int, content_type: str, boundary: str
) -> Multipart:
    """The frame of a multipart/byteranges answer (RFC 9110, section 14.6); the content itself is not touched.

    `boundary` is the caller's random text, 1 to 70 letters and digits. A content type that cannot stand in a
    header is sent as application/octet-stream.
    """
    assert ranges
    assert _BOUNDARY.fullmatch(boundary)
    shown_type = content_type if _HEADER_VALUE.fullmatch(content_type) else "application/octet-stream"
    parts = []
    for number, span in enumerate(ranges):
        opening = "" if number == 0 else "\r\n"
        fields = f"Content-Type: {shown_type}\r\nContent-Range: {span.content_range(size_bytes)}\r\n\r\n"
        parts.append(Part(f"{opening}--{boundary}\r\n{fields}".encode("ascii"), span))
    closing = f"\r\n--{boundary}--\r\n".encode("ascii")
    return Multipart(tuple(parts), closing)


def _specs(header: str) -> list[tuple[str, str]] | None:
    """The pairs of digit strings, of bounded length, that a bytes header lists; None if it is ill-formed."""
    unit, equals, listed = header.partition("=")
    if len(header) > HEADER_CHARACTERS_MAX or not equals or unit.strip(" \t").lower() != "bytes":
        return None
    specs = []
    for element in listed.split(","):
        text = element.strip(" \t")
        if not text:
            continue  # empty list elements are to be accepted (section 5.6.1.2)
        match = _SPEC.fullmatch(text)
        if match is None or text == "-":
            return None
        first, last = _bounded(match[1]), _bounded(match[2])
        if first and last and int(first) > int(last):
            return None
        specs.append((first, last))
    return specs or None


def _bounded(digits: str) -> str:
    """The digits, or a number past the end of any content instead of one that costs time to compute."""
    significant = digits.lstrip("0")
    if len(significant) > DIGITS_MAX:
        return "9" * DIGITS_MAX
    return significant or digits[:1]


def _resolve(first: str, last: str, size_bytes: int) -> ByteRange | None:
    """The part of one requested range that exists; None if there is none (section 14.1.2)."""
    if first:
        start = int(first)
        stop = min(int(last) + 1, size_bytes) if last else size_bytes
    else:
        start = max(size_bytes - int(last), 0)
        stop = size_bytes
    return ByteRange(start, stop) if start < stop else None


def _coalesce(spans: Iterable[ByteRange]) -> list[ByteRange]:
    """Join overlapping ranges, each at the position of its first mention (section 15.3.7.2)."""
    merged: list[tuple[int, ByteRange]] = []  # (first mention, bytes), ascending by position
    for order, span in sorted(enumerate(spans), key=lambda item: (item[1].start, item[0])):
        if merged and span.start <= merged[-1][1].stop:
            earlier, joined = merged[-1]
            merged[-1] = (min(order, earlier), ByteRange(joined.start, max(joined.stop, span.stop)))
        else:
            merged.append((order, span))
    return [span for _, span in sorted(merged, key=lambda item: item[0])]
