"""The format of a delta: content as bytes, and as spans of other content, its base. No I/O here.

    bytes    0, how many (4 bytes), and these bytes
    span     1, where it begins in the base (8 bytes), and how many bytes (4 bytes)

Integers are little-endian. Records follow each other without a gap, and none is empty.
"""

import struct
from collections.abc import Iterator
from typing import Final

from ca.errors import InvalidRequest, PayloadTooLarge
from node.base.spans import Span
from node.diskio.durable import Octets

DELTA_TYPE: Final = "application/vnd.filestore.delta"
CONTENT_BYTES_MAX: Final = 1 << 30  # of one request, so that its answer comes within minutes
SPANS_MAX: Final = 1 << 15  # of one request: each costs a read
SPAN_BYTES_MAX: Final = 64 << 20
_BYTES: Final = struct.Struct("<BI")
_SPAN: Final = struct.Struct("<BQI")
_HEADS: Final = (_BYTES, _SPAN)  # by their first byte


class DeltaDecoder:
    """Decodes one delta, whose bytes come in pieces of any size."""

    def __init__(self, base_bytes: int) -> None:
        """`base_bytes`: the size of the base, which no span exceeds."""
        self._base_bytes = base_bytes
        self._head = bytearray()  # of the record that has begun
        self._left = 0  # bytes of the present record that have not come
        self._content_bytes = self._spans = 0

    def feed(self, piece: Octets) -> Iterator[memoryview | Span]:
        """Yield what these bytes complete, in order: content, and spans of the base.

        The content is part of `piece`. Raises InvalidRequest; PayloadTooLarge beyond the limits of a request.
        """
        view = memoryview(piece)
        while view:
            if self._left:
                content, view = view[: self._left], view[self._left :]
                self._left -= len(content)
                yield content
                continue
            lacking = self._head_bytes(view[0]) - len(self._head)
            self._head += view[:lacking]
            view = view[lacking:]
            if len(self._head) == self._head_bytes(self._head[0]) and (span := self._begin()) is not None:
                yield span

    def finish(self) -> None:
        """Raise InvalidRequest if the last record is not complete."""
        if self._head or self._left:
            raise InvalidRequest("The delta ends in the middle of a record.")

    def _head_bytes(self, first: int) -> int:
        kind = self._head[0] if self._head else first
        if kind >= len(_HEADS):
            raise InvalidRequest(f"The delta has a record of the unknown kind {kind}.")
        return _HEADS[kind].size

    def _begin(self) -> Span | None:
        """Begin the record whose head is complete; return the span if it is one."""
        is_span, *numbers = _HEADS[self._head[0]].unpack(self._head)
        self._head.clear()
        length = numbers[-1]
        self._content_bytes += length
        if not length:
            raise InvalidRequest("The delta has an empty record.")
        if self._content_bytes > CONTENT_BYTES_MAX:
            raise PayloadTooLarge(f"A delta has at most {CONTENT_BYTES_MAX} bytes of content in one request.")
        if not is_span:
            self._left = length
            return None
        self._spans += 1
        if self._spans > SPANS_MAX:
            raise PayloadTooLarge(f"A delta has at most {SPANS_MAX} spans of its base in one request.")
        start, stop = numbers[0], numbers[0] + length
        if length > SPAN_BYTES_MAX or stop > self._base_bytes:
            raise InvalidRequest(f"The delta has a span of {length} bytes that its base does not have.")
        return start, stop
