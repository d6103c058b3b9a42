"""Cuts content into chunks by FastCDC. Apart from the store of chunks: peers and clients must cut alike.

The end of a chunk depends only on the bytes before it. So equal parts of two contents have equal chunks,
also at other offsets (Xia and others, "The Design of Fast Content-Defined Chunking for Data Deduplication
Based Storage Systems", IEEE TPDS 2020). No I/O here.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from pyfastcdc import FastCDC

from node.cold.manifest import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN
from node.diskio.durable import Octets

CHUNK_BYTES_AVERAGE: Final = 256 << 10  # of what is cut behind CHUNK_BYTES_MIN
SAMPLE_BYTES: Final = 4 << 20  # about 14 chunks, the first and the last of them incomplete


def sample_spans(size_bytes: int) -> list[tuple[int, int]]:
    """Return the parts of a content that stand for it, [] for a small one. Pure.

    They are its beginning, its middle and its end.
    """
    if size_bytes <= 3 * SAMPLE_BYTES:
        return []
    middle = (size_bytes - SAMPLE_BYTES) // 2
    return [(start, start + SAMPLE_BYTES) for start in (0, middle, size_bytes - SAMPLE_BYTES)]


class ChunkCutter:
    """Cuts one content. For one thread at a time."""

    def __init__(self) -> None:
        self._cutter = FastCDC(
            avg_size=CHUNK_BYTES_AVERAGE, min_size=CHUNK_BYTES_MIN, max_size=CHUNK_BYTES_MAX
        )
        self._rest = b""

    def cut(self, content: Octets, *, is_last: bool) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the next chunks with their SHA-256, as far as their ends are known after these bytes.

        Without `is_last` the bytes behind the last known end wait for the next call. Read all chunks before
        `content` changes.
        """
        data = memoryview(self._rest + bytes(content)) if self._rest else memoryview(content)
        taken = 0
        for chunk in self._cutter.cut_buf(data):
            stop = chunk.offset + chunk.length
            if stop == len(data) and chunk.length < CHUNK_BYTES_MAX and not is_last:
                break
            taken = stop
            piece = data[chunk.offset : stop]
            yield hashlib.sha256(piece).digest(), piece
        self._rest = bytes(data[taken:])
