"""Cuts content into chunks as nodes do. Apart from deltas: it needs an optional library.

`filestore-client[delta]` installs it. A node's `node/cold/cutting.py` has the same numbers, and
`tests/unit/filestore_client/test_delta.py` compares both.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

try:
    from pyfastcdc import FastCDC
except ImportError:
    CAN_CUT = False
else:
    CAN_CUT = True

CHUNK_BYTES_MIN: Final = 64 << 10
CHUNK_BYTES_AVERAGE: Final = 256 << 10
CHUNK_BYTES_MAX: Final = 960 << 10
ID_BYTES: Final = 32
SAMPLE_BYTES: Final = 4 << 20


def sample_spans(size_bytes: int) -> list[tuple[int, int]]:
    """Return the parts of a content that stand for it, [] for a small one. Pure.

    They are its beginning, its middle and its end.
    """
    if size_bytes <= 3 * SAMPLE_BYTES:
        return []
    middle = (size_bytes - SAMPLE_BYTES) // 2
    return [(start, start + SAMPLE_BYTES) for start in (0, middle, size_bytes - SAMPLE_BYTES)]


class ChunkCutter:
    """Cuts one content, from its beginning or from where a chunk ends. For one thread at a time."""

    def __init__(self) -> None:
        self._cutter = FastCDC(
            avg_size=CHUNK_BYTES_AVERAGE, min_size=CHUNK_BYTES_MIN, max_size=CHUNK_BYTES_MAX
        )
        self.rest = b""  # what follows the last known end

    def cut(self, content: bytes, *, is_last: bool) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the next chunks with their SHA-256, as far as their ends are known after these bytes."""
        data, taken = memoryview(self.rest + content), 0
        for chunk in self._cutter.cut_buf(data):
            stop = chunk.offset + chunk.length
            if stop == len(data) and chunk.length < CHUNK_BYTES_MAX and not is_last:
                break
            taken = stop
            piece = data[chunk.offset : stop]
            yield hashlib.sha256(piece).digest(), piece
        self.rest = bytes(data[taken:])
