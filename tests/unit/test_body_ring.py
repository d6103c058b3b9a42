"""The ring that bodies come into: what is handed out when, and what becomes of its memory."""

import asyncio
import random

import pytest

from coordinator import body_ring
from coordinator.body_ring import (
    BUFFER_BYTES,
    BUFFERS_MAX,
    BUFFERS_MIN,
    LENT_MAX,
    LENT_MIN,
    SPANS_MAX,
    BodyRing,
    BufferPool,
)
from coordinator.chunks import Chunks, KnownLength

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
    assert pool.used == 2 * LENT_MAX + 2
    third = await ring.next_pieces(1.0)  # the buffers of the first come back
    assert pool.used == LENT_MAX + 2
    arrive(ring, CONTENT[2 * lot_bytes + 1 + BUFFER_BYTES :][:BUFFER_BYTES])
    assert b"".join(second) == CONTENT[lot_bytes : 2 * lot_bytes]
    assert b"".join(third) == CONTENT[2 * lot_bytes :][:BUFFER_BYTES]
    ring.close()
    assert pool.used == 0


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
    pool.used = body_ring.SHARED_BUFFERS_MAX  # by others
    ring = BodyRing(asyncio.Protocol(), KnownLength(len(CONTENT)), pool)
    ring.begin(transport)
    arrive_while_read(ring, CONTENT, transport)
    assert len(await ring.next_pieces(1.0)) == LENT_MIN
    assert len(await ring.next_pieces(1.0)) == BUFFERS_MIN - LENT_MIN
    assert await ring.next_pieces(0.001) == []
    assert transport.reads  # one lot came back
    ring.close()


async def test_body_whose_large_lot_is_still_written_when_buffers_become_scarce_is_read_on() -> None:
    pool, transport, lot_bytes = BufferPool(), Reading(), LENT_MAX * BUFFER_BYTES
    ring = BodyRing(asyncio.Protocol(), KnownLength(len(CONTENT)), pool)
    ring.begin(transport)
    arrive(ring, CONTENT[:lot_bytes])
    first = await ring.next_pieces(1.0)
    pool.used += body_ring.SHARED_BUFFERS_MAX  # by others
    arrive_while_read(ring, CONTENT[lot_bytes:], transport)
    second = await ring.next_pieces(1.0)
    assert not transport.reads
    assert await ring.next_pieces(0.001) == []
    assert transport.reads  # the large lot came back
    assert (len(first), len(second)) == (LENT_MAX, 1)
    ring.close()


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
    assert pool.used == 0


async def test_buffer_of_very_many_chunks_counts_as_full() -> None:
    pool, transport = BufferPool(), Reading()
    ring = BodyRing(asyncio.Protocol(), Chunks(), pool)
    ring.begin(transport)
    arrive_while_read(ring, b"1\r\na\r\n" * 100_000, transport)
    assert pool.used == BUFFERS_MAX
    pieces = await ring.next_pieces(1.0)
    assert len(pieces) <= LENT_MAX * SPANS_MAX
    assert set(b"".join(pieces)) == set(b"a")
    ring.close()


def test_pool_gives_every_body_its_least_and_all_together_no_more_than_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_ring, "SHARED_BUFFERS_MAX", BUFFERS_MAX)
    pool = BufferPool()
    first = [pool.take(held) for held in range(BUFFERS_MAX + 1)]
    assert [buffer is not None for buffer in first] == [True] * BUFFERS_MAX + [False]
    second = [pool.take(held) for held in range(BUFFERS_MAX)]
    assert [buffer is not None for buffer in second] == [True] * BUFFERS_MIN + [False] * (
        BUFFERS_MAX - BUFFERS_MIN
    )
    for buffer in (*first, *second):
        if buffer is not None:
            pool.give(buffer)
    assert pool.used == 0
    assert pool.take(0) is second[BUFFERS_MIN - 1]
