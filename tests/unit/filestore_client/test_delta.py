"""What the client sends of a new version, decoded as a node does, and lists of chunks that are none."""

import asyncio
import random
import struct
from functools import cache

import pytest

from filestore_client.transfer import cutting, delta
from filestore_client.transfer.delta import Base, decode_list, encode_piece
from filestore_client.transfer.sources import BytesSource, StreamSource
from node.cold import cutting as node_cutting
from node.cold import delta as node_delta
from node.cold import manifest
from tests.unit.node.cold.test_delta import decoded

MIB = 1 << 20


@cache
def old_image() -> bytes:
    return random.Random(3).randbytes(20 * MIB)


@cache
def new_image() -> bytes:
    return (
        old_image()[: 5 * MIB]
        + b"inserted"
        + old_image()[5 * MIB : 9 * MIB]
        + bytes(70_000)
        + old_image()[9 * MIB + 70_000 :]
        + b"end"
    )


def list_of(content: bytes) -> bytes:
    chunks, at = [], 0
    for chunk_id, piece in node_cutting.ChunkCutter().cut(content, is_last=True):
        chunks.append(manifest.ContentChunk(chunk_id, at, at := at + len(piece)))
    return manifest.encode_chunks(chunks)


def base_of(content: bytes) -> Base:
    found = decode_list("id", list_of(content), len(content))
    assert found is not None
    return found


def test_client_and_node_cut_alike() -> None:
    names = ("CHUNK_BYTES_MIN", "CHUNK_BYTES_MAX", "ID_BYTES")
    assert all(getattr(cutting, name) == getattr(manifest, name) for name in names)
    assert cutting.CHUNK_BYTES_AVERAGE == node_cutting.CHUNK_BYTES_AVERAGE
    assert (delta.DELTA_TYPE, delta.SPAN_BYTES_MAX) == (node_delta.DELTA_TYPE, node_delta.SPAN_BYTES_MAX)
    for size in (0, 1, 12 * MIB, 12 * MIB + 1, 100 * MIB + 7):
        assert cutting.sample_spans(size) == node_cutting.sample_spans(size)
    own = cutting.ChunkCutter()
    parts = [old_image()[at : at + 700_001] for at in range(0, len(old_image()), 700_001)]
    found = [
        chunk_id for n, part in enumerate(parts) for chunk_id, _ in own.cut(part, is_last=n == len(parts) - 1)
    ]
    assert found == [chunk_id for chunk_id, _ in node_cutting.ChunkCutter().cut(old_image(), is_last=True)]


async def sent(source: BytesSource | StreamSource, base: Base) -> tuple[bytes, int]:
    """The content that a server has after all pieces, and the bytes on their way to it."""
    content, wire_bytes = b"", 0
    while source.size_bytes is None or len(content) < source.size_bytes:
        length = await source.prepare(len(content))
        told: list[int] = []
        raw = [part async for part in encode_piece(base, source, len(content), length, told.append)]
        content += decoded(*raw, base=old_image())
        assert told[-1] == len(content)
        wire_bytes += sum(map(len, raw))
    return content, wire_bytes


def test_new_version_is_sent_as_spans_and_what_changed() -> None:
    content, wire_bytes = asyncio.run(sent(BytesSource(new_image()), base_of(old_image())))
    assert content == new_image()
    assert wire_bytes < 3 * MIB  # four places changed, each costs a chunk or two


def test_stream_goes_on_where_the_last_chunk_ended() -> None:
    parts = iter([new_image()[at : at + 500_000] for at in range(0, len(new_image()), 500_000)])

    async def more() -> bytes:
        return next(parts, b"")

    source = StreamSource(more)
    content, wire_bytes = asyncio.run(sent(source, base_of(old_image())))
    assert content == new_image()
    assert wire_bytes < 3 * MIB
    assert asyncio.run(source.sha256()) == asyncio.run(BytesSource(new_image()).sha256())


def test_content_without_anything_in_common_is_sent_whole() -> None:
    other = random.Random(4).randbytes(3 * MIB)
    content, wire_bytes = asyncio.run(sent(BytesSource(other), base_of(old_image())))
    assert content == other
    assert len(other) < wire_bytes < len(other) + 1000


def sample_of(content: bytes) -> bytes:
    """A list of the chunks of the parts that a node answers for a sample."""
    parts = [content[start:stop] for start, stop in node_cutting.sample_spans(len(content))]
    chunks = (chunk_id for part in parts for chunk_id, _ in struct.iter_unpack("<32sQ", list_of(part)))
    return b"".join(struct.pack("<32sQ", chunk_id, 0) for chunk_id in chunks)


@pytest.mark.parametrize(
    ("content", "is_similar"),
    [
        (new_image(), True),
        (bytes(9 * MIB) + old_image()[9 * MIB :], True),  # the end is the same
        (
            bytes(9 * MIB) + old_image()[7 * MIB : 13 * MIB] + bytes(5 * MIB),
            True,
        ),  # the middle, moved
        (old_image()[: 6 * MIB] + bytes(40 * MIB), True),
        (random.Random(5).randbytes(30 * MIB), False),
        (b"small", False),
        (b"", False),
    ],
)
def test_sample_tells_whether_content_is_similar(content: bytes, is_similar: bool) -> None:
    assert asyncio.run(delta.is_similar(BytesSource(content), sample_of(old_image()))) is is_similar
    assert not asyncio.run(delta.is_similar(BytesSource(content), b""))
    assert not asyncio.run(delta.is_similar(BytesSource(content), b"x" * 41))


def test_resumed_in_the_middle_of_a_chunk_it_finds_the_next_one() -> None:
    async def rest() -> tuple[bytes, int]:
        source = BytesSource(new_image())
        at = 6 * MIB + 12_345
        length = await source.prepare(at)
        raw = [part async for part in encode_piece(base_of(old_image()), source, at, length, lambda _: None)]
        return decoded(*raw, base=old_image()), sum(map(len, raw))

    content, wire_bytes = asyncio.run(rest())
    assert content == new_image()[6 * MIB + 12_345 :]
    assert wire_bytes < 3 * MIB


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        list_of(old_image())[:-40],
        list_of(old_image())[:-1],
        list_of(old_image()) + struct.pack("<32sQ", b"i" * 32, len(old_image())),
        struct.pack("<32sQ", b"i" * 32, len(old_image()) + 1),
        b"".join(struct.pack("<32sQ", b"i" * 32, at) for at in range(1, 1000)),
        sample_of(old_image()),
    ],
)
def test_list_that_does_not_cover_the_base_is_no_base(raw: bytes) -> None:
    assert decode_list("id", raw, len(old_image())) is None
