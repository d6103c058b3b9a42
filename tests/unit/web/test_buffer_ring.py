"""The ring that bodies come into: what is handed out when, and what becomes of its memory."""

import asyncio
import random

import pytest

from web import buffer_ring
from web.buffer_ring import (
    BUFFER_BYTES,
    BUFFERS_MAX,
    BUFFERS_MIN,
    LARGE_BYTES_MAX,
    LENT_MAX,
    SHARED_BYTES_MAX,
    SMALL_BUFFER_BYTES,
    SPANS_MAX,
    BodyRing,
    BufferPool,
)
from web.chunked import Chunks, KnownLength

CONTENT = random.Random(6).randbytes((BUFFERS_MAX + 2) * BUFFER_BYTES)


def arrive(ring: BodyRing, content: bytes) -> None:
    while content:
        room = ring.get_buffer(-1)
        count = min(len(room), len(content))
        room[:count] = content[:count]
        ring.buffer_updated(count)
        content = content[count:]


async def test_memory_of_what_was_taken_is_used_again_at_the_second_asking_after_it() -> None:
    pool = BufferPool()
    ring = BodyRing(asyncio.Protocol(), KnownLength(len(CONTENT)), pool)
    lot_bytes = LENT_MAX * BUFFER_BYTES
    arrive(ring, CONTENT[: 2 * lot_bytes + 1])

    first = await ring.next_pieces(1.0)
    second = await ring.next_pieces(1.0)
    arrive(ring, CONTENT[2 * lot_bytes + 1 :][:BUFFER_BYTES])

    assert b"".join(first) == CONTENT[:lot_bytes]
    assert b"".join(second) == CONTENT[lot_bytes : 2 * lot_bytes]
    assert pool.used_bytes == 2 * lot_bytes + 2 * BUFFER_BYTES
    third = await ring.next_pieces(1.0)  # the buffers of the first come back
    assert pool.used_bytes == lot_bytes + 2 * BUFFER_BYTES
    arrive(ring, CONTENT[2 * lot_bytes + 1 + BUFFER_BYTES :][:BUFFER_BYTES])
    assert b"".join(second) == CONTENT[lot_bytes : 2 * lot_bytes]
    assert b"".join(third) == CONTENT[2 * lot_bytes :][:BUFFER_BYTES]
    ring.close()
    assert pool.used_bytes == 0


class Reading(asyncio.Transport):
    """Only whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def arrive_while_read(ring: BodyRing, content: bytes, transport: Reading) -> None:
    """More than the ring takes: it has to stop the reading."""
    sent = 0
    while transport.reads:
        piece = content[sent : sent + len(ring.get_buffer(-1))]
        assert piece, "all of it was taken"
        arrive(ring, piece)
        sent += len(piece)


async def test_body_with_its_least_share_is_read_on_while_a_lot_of_it_is_written() -> None:
    pool, transport = BufferPool(), Reading()
    pool.used_bytes = SHARED_BYTES_MAX  # by others
    ring = BodyRing(asyncio.Protocol(), KnownLength(len(CONTENT)), pool)
    ring.begin(transport)
    arrive_while_read(ring, CONTENT, transport)
    first = await ring.next_pieces(1.0)
    assert [len(piece) for piece in first] == [SMALL_BUFFER_BYTES] * LENT_MAX
    assert len(await ring.next_pieces(1.0)) == BUFFERS_MIN - LENT_MAX
    assert await ring.next_pieces(0.001) == []
    assert transport.reads  # one lot came back
    ring.close()
    assert pool.used_bytes == SHARED_BYTES_MAX


async def test_buffers_are_small_when_those_of_others_come_to_much() -> None:
    pool, transport = BufferPool(), Reading()
    pool.used_bytes = LARGE_BYTES_MAX - 1  # by others
    ring = BodyRing(asyncio.Protocol(), KnownLength(len(CONTENT)), pool)
    ring.begin(transport)
    arrive_while_read(ring, CONTENT, transport)
    pieces = [piece for _ in range(2) for piece in await ring.next_pieces(1.0)]
    assert [len(piece) for piece in pieces] == [BUFFER_BYTES] + [SMALL_BUFFER_BYTES] * (2 * LENT_MAX - 1)
    assert b"".join(pieces) == CONTENT[: sum(map(len, pieces))]
    ring.close()
    assert pool.used_bytes == LARGE_BYTES_MAX - 1


async def test_body_that_holds_much_when_buffers_become_scarce_is_read_on_once_it_is_written() -> None:
    pool, transport, lot_bytes = BufferPool(), Reading(), LENT_MAX * BUFFER_BYTES
    ring = BodyRing(asyncio.Protocol(), KnownLength(len(CONTENT)), pool)
    ring.begin(transport)
    arrive(ring, CONTENT[: 2 * lot_bytes])
    lots = [await ring.next_pieces(1.0)]
    pool.used_bytes += SHARED_BYTES_MAX  # by others
    arrive_while_read(ring, CONTENT[2 * lot_bytes :], transport)
    lots += [await ring.next_pieces(1.0) for _ in range(2)]
    assert not transport.reads
    assert await ring.next_pieces(0.001) == []
    assert transport.reads  # both lots came back
    assert [len(lot) for lot in lots] == [LENT_MAX, LENT_MAX, 1]
    ring.close()
    assert pool.used_bytes == SHARED_BYTES_MAX


async def test_asking_that_got_nothing_does_not_count() -> None:
    pool = BufferPool()
    ring = BodyRing(asyncio.Protocol(), KnownLength(len(CONTENT)), pool)
    arrive(ring, CONTENT[: 2 * BUFFER_BYTES])
    first = await ring.next_pieces(1.0)
    for _ in range(3):
        assert await ring.next_pieces(0.001) == []
    arrive(ring, CONTENT[2 * BUFFER_BYTES :][: 3 * BUFFER_BYTES])
    assert b"".join(first) == CONTENT[: 2 * BUFFER_BYTES]
    ring.close()
    assert pool.used_bytes == 0


async def test_buffer_of_very_many_chunks_counts_as_full() -> None:
    pool, transport = BufferPool(), Reading()
    ring = BodyRing(asyncio.Protocol(), Chunks(), pool)
    ring.begin(transport)
    arrive_while_read(ring, b"1\r\na\r\n" * 100_000, transport)
    assert pool.used_bytes == BUFFERS_MAX * BUFFER_BYTES
    pieces = await ring.next_pieces(1.0)
    assert len(pieces) <= LENT_MAX * SPANS_MAX
    assert set(b"".join(pieces)) == set(b"a")
    ring.close()


def test_pool_gives_every_body_its_least_and_all_together_no_more_than_their_share() -> None:
    pool = BufferPool()
    taken: list[bytearray] = []
    while pool.used_bytes < SHARED_BYTES_MAX:
        body = [pool.take(held) for held in range(BUFFERS_MAX + 1)]
        assert body[-1] is None
        taken += [buffer for buffer in body if buffer is not None]
    last = [buffer for held in range(BUFFERS_MAX) if (buffer := pool.take(held)) is not None]
    assert [len(buffer) for buffer in last] == [SMALL_BUFFER_BYTES] * BUFFERS_MIN
    assert pool.used_bytes - SHARED_BYTES_MAX <= 2 * BUFFERS_MIN * SMALL_BUFFER_BYTES
    assert sum(len(buffer) for buffer in taken if len(buffer) == BUFFER_BYTES) == LARGE_BYTES_MAX
    for buffer in (*taken, *last):
        pool.give(buffer)
    assert pool.used_bytes == 0


def test_pool_keeps_some_buffers_of_both_sizes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_ring, "IDLE_BYTES_MAX", BUFFER_BYTES + SMALL_BUFFER_BYTES)
    pool = BufferPool()
    large = [pool.take(0), pool.take(1)]
    pool.used_bytes += LARGE_BYTES_MAX  # by others
    small = pool.take(2)
    for buffer in (*large, small):
        assert buffer is not None
        pool.give(buffer)
    assert pool.take(0) is small
    pool.used_bytes = 0
    assert pool.take(0) is large[0]
    assert pool.take(1) is not large[1]
