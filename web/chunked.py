"""Find the content in a body of known length or in chunks (RFC 9112, section 7.1), however it is split.

Pure, and nothing is copied: a span is a position in the examined bytes. Well-formed extensions and trailers
are skipped. It is stricter than the RFC in cases that only help an attacker: lines end with CR LF and have a
maximum length.
"""

import re
from enum import Enum, auto
from typing import Final

Span = tuple[int, int]  # start and stop

LINE_BYTES_MAX: Final = 1024
TRAILER_BYTES_MAX: Final = 8192
LOOK_BYTES: Final = 4096  # taken at once behind a chunk: there may be very many small ones
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # RFC 9110, section 5.6
_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
_EXTENSION: Final = rb";%b(?:=(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)  # without blanks, as llhttp wants it
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:%b)*" % _EXTENSION)
_TRAILER: Final = re.compile(rb"%b:[\t\x20-\x7e\x80-\xff]*" % _TOKEN)


class MalformedBody(Exception):
    """The bytes are not well-formed chunks."""


class KnownLength:
    """A body of a known length, which has no framing."""

    def __init__(self, left_bytes: int) -> None:
        assert left_bytes > 0
        self._left_bytes = left_bytes

    @property
    def is_ended(self) -> bool:
        """Whether all of the body was seen."""
        return self._left_bytes == 0

    @property
    def room_bytes(self) -> int:
        """Return how many bytes may be received from the connection at once."""
        return self._left_bytes

    def scan(self, data: memoryview) -> tuple[list[Span], int]:
        """Return the spans of content in the next bytes, and how many of the bytes belong to the body."""
        used_bytes = min(len(data), self._left_bytes)
        self._left_bytes -= used_bytes
        return [(0, used_bytes)], used_bytes


class _Line(Enum):
    """The expected kind of the next line of the chunked encoding."""

    SIZE = auto()
    END_OF_CHUNK = auto()
    TRAILER = auto()


class Chunks:
    """A body in chunks."""

    def __init__(self) -> None:
        self.is_ended = False
        self._left_bytes = 0  # of the chunk that has begun
        self._next_line = _Line.SIZE
        self._line = b""  # the bytes of it so far
        self._trailer_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Return how many bytes may be received at once; some of them may be after the body."""
        return self._left_bytes + LOOK_BYTES

    def scan(self, data: memoryview) -> tuple[list[Span], int]:
        """Return the spans of content in the next bytes, and how many bytes belong to the body.

        Raises MalformedBody.
        """
        spans: list[Span] = []
        at = 0
        while at < len(data) and not self.is_ended:
            if not self._left_bytes:
                at = self._scan_line(data, at)
                continue
            stop = min(at + self._left_bytes, len(data))
            spans.append((at, stop))
            self._left_bytes -= stop - at
            at = stop
        return spans, at

    def _scan_line(self, data: memoryview, at: int) -> int:
        """Read a line of the framing; return the position behind it, or the end of the data."""
        piece = bytes(data[at : at + LINE_BYTES_MAX])
        head, end, _ = piece.partition(b"\n")
        self._line += head + end
        if len(self._line) > LINE_BYTES_MAX:
            raise MalformedBody("a line of the chunked encoding is too long")
        if end:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise MalformedBody("a line of the chunked encoding does not end with CR LF")
            self._take(line[:-2])
        return at + len(head) + len(end)

    def _take(self, line: bytes) -> None:
        if self._next_line is _Line.SIZE:
            size = _SIZE_LINE.fullmatch(line)
            if size is None:
                raise MalformedBody("a chunk has no size")
            self._left_bytes = int(size[1], 16)
            self._next_line = _Line.END_OF_CHUNK if self._left_bytes else _Line.TRAILER
        elif self._next_line is _Line.END_OF_CHUNK:
            if line:
                raise MalformedBody("a chunk is longer than its declared size")
            self._next_line = _Line.SIZE
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise MalformedBody("the trailers are too long")
            if not _TRAILER.fullmatch(line):
                raise MalformedBody("a trailer is not a header field")
        else:
            self.is_ended = True


Framing = KnownLength | Chunks
