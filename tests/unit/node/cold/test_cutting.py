"""Where chunks end: all nodes and all releases must cut alike, or they share nothing."""

import hashlib
import random

from node.cold.cutting import ChunkCutter
from node.cold.manifest import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN

CONTENT = random.Random(1).randbytes(3_000_000)
SIZES = [204367, 274040, 398271, 477575, 167523, 84915, 322763, 291710, 347199, 431637]


def cut(content: bytes, piece_bytes: int) -> list[tuple[bytes, int]]:
    cutter, found = ChunkCutter(), list[tuple[bytes, int]]()
    for at in range(0, len(content), piece_bytes):
        piece = content[at : at + piece_bytes]
        is_last = at + piece_bytes >= len(content)
        found += [(chunk_id, len(chunk)) for chunk_id, chunk in cutter.cut(piece, is_last=is_last)]
    return found


def test_ends_are_where_they_were_in_the_release_before() -> None:
    """If another release of the library changes this, a node shares no chunks with the others."""
    assert [size for _, size in cut(CONTENT, len(CONTENT))] == SIZES


def test_pieces_in_which_content_comes_change_nothing() -> None:
    whole = cut(CONTENT, len(CONTENT))
    for piece_bytes in (100_000, 1_000_000, 1 << 20, 2_999_999):
        assert cut(CONTENT, piece_bytes) == whole
    at = 0
    for chunk_id, size_bytes in whole:
        assert hashlib.sha256(CONTENT[at : at + size_bytes]).digest() == chunk_id
        at += size_bytes
    assert at == len(CONTENT)
    assert all(CHUNK_BYTES_MIN <= size_bytes <= CHUNK_BYTES_MAX for _, size_bytes in whole[:-1])


def test_content_that_is_moved_has_the_same_chunks_but_for_the_first() -> None:
    moved = {chunk_id for chunk_id, _ in cut(b"inserted" + CONTENT, 1 << 20)}
    assert len({chunk_id for chunk_id, _ in cut(CONTENT, 1 << 20)} - moved) <= 2


def test_zeros_are_one_chunk_again_and_again() -> None:
    zeros = cut(bytes(5 * CHUNK_BYTES_MAX), 1 << 20)
    assert len({chunk_id for chunk_id, _ in zeros}) == 1
    assert len(zeros) == 5
