"""Deltas: uploads that send only what another file of the cluster, their base, does not have.

The cluster lists the chunks of a file that the caller may read: their SHA-256, and where each ends. Content
is cut in the same way, and a chunk that the base has is sent as its place there. If a server does not know
deltas, or no longer has the base, `uploading` sends the bytes themselves.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from filestore_client.base.errors import FilestoreError
from filestore_client.base.paths import content_path
from filestore_client.base.transport import Transport
from filestore_client.transfer.cutting import CAN_CUT, CHUNK_BYTES_MIN, ID_BYTES, ChunkCutter, sample_spans
from filestore_client.transfer.sources import Source, read_ahead

DELTA_TYPE: Final = "application/vnd.filestore.delta"
BASE_FIELD: Final = "Delta-Base"
DELTA_BYTES_MIN: Final = 4 << 20  # of base and content: less is not worth another request
BASE_BYTES_MAX: Final = 100 << 30  # whose chunks take about 80 MB of memory
SPAN_BYTES_MAX: Final = 64 << 20
_BYTES: Final = struct.Struct("<BI")
_SPAN: Final = struct.Struct("<BQI")
_ENTRY: Final = struct.Struct(f"<{ID_BYTES}sQ")


@dataclass(frozen=True, slots=True)
class Base:
    """A file that the cluster has, with the place where each of its chunks begins."""

    file_uuid: str
    starts: Mapping[bytes, int]


async def find_base(transport: Transport, file_uuid: str, size_bytes: int, source: Source) -> Base | None:
    """Return the chunks of a file of this size; None if it cannot be a base of the source now.

    A server reads all of a hot file for its chunks, and a delta without a span costs more than the bytes. So
    samples of both are compared first, unless the source is a stream. Raises OSError.
    """
    if not CAN_CUT or not DELTA_BYTES_MIN <= size_bytes <= BASE_BYTES_MAX:
        return None
    path = f"{content_path(file_uuid)}/chunks"
    try:
        if source.size_bytes is not None:
            raw, _ = await transport.answer("GET", f"{path}?sample=1")
            if found := decode_list(file_uuid, raw, size_bytes):  # a cold file has its list
                return found
            if not await is_similar(source, raw):
                return None
        raw, _ = await transport.answer("GET", path)
    except FilestoreError:  # also of a server of release 0.1.0
        return None
    return decode_list(file_uuid, raw, size_bytes)


async def is_similar(source: Source, raw: bytes) -> bool:
    """Return whether a sample of the source has a chunk of this list."""
    chunk_ids = {raw[at : at + ID_BYTES] for at in range(0, len(raw), _ENTRY.size)}
    size_bytes = source.size_bytes or 0
    for start, stop in sample_spans(size_bytes) or [(0, size_bytes)]:
        part = await source.read(start, stop - start)
        ids = await asyncio.to_thread(_ids_of, part)
        if not chunk_ids.isdisjoint(ids):
            return True
    return False


def _ids_of(part: bytes) -> list[bytes]:
    return [chunk_id for chunk_id, _ in ChunkCutter().cut(part, is_last=True)]


def decode_list(file_uuid: str, raw: bytes, size_bytes: int) -> Base | None:
    """Return the base with this list of chunks; None if the list is not one of `size_bytes`. Pure.

    A sample is none: its chunks end at 0.
    """
    starts, at = dict[bytes, int](), 0
    if len(raw) % _ENTRY.size or len(raw) > (size_bytes // CHUNK_BYTES_MIN + 1) * _ENTRY.size:
        return None
    for chunk_id, stop in _ENTRY.iter_unpack(raw):
        if not at < stop <= size_bytes:
            return None
        starts.setdefault(chunk_id, at)
        at = stop
    return Base(file_uuid, starts) if at == size_bytes else None


async def encode_piece(
    base: Base, source: Source, offset: int, length: int, progress: Callable[[int], None]
) -> AsyncIterator[bytes]:
    """Yield a delta with the content from `offset` on, up to `length` bytes.

    It ends where a chunk ends, so that the next piece is cut as the base was. At the end of the content, and
    in a piece without such an end, all bytes are sent.
    """
    encoder, at, stop = DeltaEncoder(base), offset, offset + length
    is_end = stop == source.size_bytes
    async with aclosing(read_ahead(source, offset, length)) as parts:
        async for part in parts:
            at += len(part)
            records = await asyncio.to_thread(encoder.encode, part, is_last=is_end and at == stop)
            if records:
                yield records
            progress(offset + encoder.content_bytes)
    if rest := encoder.finish():
        yield rest
    progress(offset + encoder.content_bytes)


class DeltaEncoder:
    """Encodes one piece of content. For one thread at a time."""

    def __init__(self, base: Base) -> None:
        self._base, self._cutter = base, ChunkCutter()
        self._span = (0, 0)  # of the base, not written yet
        self.content_bytes = 0  # that are encoded

    def encode(self, content: bytes, *, is_last: bool) -> bytes:
        """Return the records of the chunks that these bytes complete."""
        records = bytearray()
        for chunk_id, piece in self._cutter.cut(content, is_last=is_last):
            self.content_bytes += len(piece)
            start = self._base.starts.get(chunk_id)
            if start is None:
                records += self._flush() + _BYTES.pack(0, len(piece)) + piece
                continue
            first, stop = self._span
            if start != stop or stop + len(piece) - first > SPAN_BYTES_MAX:
                records += self._flush()
                first = start
            self._span = first, start + len(piece)
        return bytes(records)

    def finish(self) -> bytes:
        """Return the last records."""
        rest = b"" if self.content_bytes else self._cutter.rest
        self.content_bytes += len(rest)
        return self._flush() + (_BYTES.pack(0, len(rest)) + rest if rest else b"")

    def _flush(self) -> bytes:
        (start, stop), self._span = self._span, (0, 0)
        return _SPAN.pack(1, start, stop - start) if stop else b""
