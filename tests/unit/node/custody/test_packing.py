"""The room of deleted small blobs is given back, and nothing else goes."""

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.custody.packing import SMALL_PACKS_MAX, BlockedPacks, due_packs
from node.packs import store
from node.packs.record import HEAD_BYTES, HEADER_BYTES
from node.packs.rows import PackFacts
from node.packs.store import PackStore
from tests.cluster.small_disks import small_disk
from tests.unit.custody_node import DAY_S, Keeper

SMALL_BYTES = 30_000
DISK_BYTES = 64 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def on_small_disk(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "data").mkdir(mode=0o700)
    with small_disk(tmp_path / "data", DISK_BYTES, 10_000):
        yield


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr(store, "SEALED_BYTES_MIN", 100_000)
    monkeypatch.setattr(Keeper, "content", lambda self: self.dice.randbytes(SMALL_BYTES))
    kept = Keeper(tmp_path)
    kept.blobs.packed.takes_new = lambda: True
    yield kept
    kept.close()


def pack_bytes(keeper: Keeper) -> int:
    return sum(path.stat().st_size for path in (keeper.directory / "packs").glob("*.pack"))


def fill(keeper: Keeper, left_bytes: int) -> Path:
    """Leave this many bytes free on the disk; returns the file that takes the rest."""
    ballast = keeper.directory / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, keeper.blobs.free_bytes() - left_bytes)
    assert keeper.blobs.free_bytes() == left_bytes
    return ballast


def facts(number: int, used: int, live: int, *, is_sealed: bool = True) -> PackFacts:
    return PackFacts(number, is_sealed, HEADER_BYTES + used, live, 0)


async def test_pack_of_which_much_is_deleted_is_rewritten(keeper: Keeper) -> None:
    contents = {keeper.put(content): content for content in (keeper.content() for _ in range(20))}
    names = sorted(contents)
    assert await keeper.custody.packing.rewrite_due() == 0
    for name in names[:7]:
        keeper.blobs.delete(name)
    assert await keeper.custody.packing.rewrite_due() == 0  # a third
    for name in names[7:12]:
        keeper.blobs.delete(name)
    given_back = await keeper.custody.packing.rewrite_due()
    assert given_back > 12 * SMALL_BYTES
    assert pack_bytes(keeper) < 9 * SMALL_BYTES
    assert keeper.on_disk() == names[12:]
    for name in names[12:]:
        with keeper.blobs.open(name) as blob:
            assert blob.read_cached(0, SMALL_BYTES) == contents[name]
    value = keeper.registry.get_sample_value
    assert value("filestore_packed_blobs") == 8
    assert value("filestore_packed_bytes", {"state": "dead"}) == 0
    assert value("filestore_pack_bytes_given_back_total") == given_back
    assert await keeper.custody.packing.rewrite_due() == 0


async def test_rewriting_that_is_broken_off_loses_nothing_and_is_ended_later(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(keeper.put(keeper.content()) for _ in range(40))
    for name in names[:20]:
        keeper.blobs.delete(name)
    taken = asyncio.Event()

    async def take(_size_bytes: int) -> None:
        taken.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr("node.packs.store._STEP_BYTES", 5 * SMALL_BYTES)
    with monkeypatch.context() as slow:
        slow.setattr(keeper.context.budget, "take", take)
        rewriting = asyncio.create_task(keeper.custody.packing.rewrite_due())
        await taken.wait()
        rewriting.cancel()
        await asyncio.wait({rewriting})
    assert keeper.on_disk() == names[20:]
    keeper.restart()
    assert keeper.on_disk() == names[20:]
    assert await keeper.custody.packing.rewrite_due() > 0
    assert keeper.on_disk() == names[20:]
    assert pack_bytes(keeper) < 21 * SMALL_BYTES


@pytest.mark.usefixtures("on_small_disk")
@pytest.mark.parametrize("left_bytes", [0, 256 << 10])
async def test_pack_without_live_blobs_goes_however_full_the_disk_is(keeper: Keeper, left_bytes: int) -> None:
    names = [keeper.put(keeper.content()) for _ in range(20)]
    ballast = fill(keeper, left_bytes)
    assert keeper.blobs.room_bytes() < 0
    for name in names:
        keeper.blobs.delete(name)
    assert await keeper.custody.packing.rewrite_due() > 20 * SMALL_BYTES
    assert keeper.on_disk() == []
    assert pack_bytes(keeper) < SMALL_BYTES
    assert keeper.custody.packing.blocked == BlockedPacks()
    ballast.unlink()


@pytest.mark.usefixtures("on_small_disk")
async def test_pack_that_has_to_wait_for_room_says_how_much_and_is_rewritten_then(keeper: Keeper) -> None:
    names = sorted(keeper.put(keeper.content()) for _ in range(20))
    for name in names[:12]:
        keeper.blobs.delete(name)
    ballast = fill(keeper, 256 << 10)
    assert await keeper.custody.packing.rewrite_due() == 0
    dead_bytes, wanted_bytes = keeper.custody.packing.blocked
    assert 12 * SMALL_BYTES < dead_bytes < 13 * SMALL_BYTES
    assert wanted_bytes > 8 * SMALL_BYTES - keeper.blobs.room_bytes()
    os.truncate(ballast, (ballast.stat().st_size - wanted_bytes) // PAGE_BYTES * PAGE_BYTES)
    assert await keeper.custody.packing.rewrite_due() > 12 * SMALL_BYTES
    assert keeper.custody.packing.blocked == BlockedPacks()
    assert keeper.on_disk() == names[12:]
    ballast.unlink()


async def test_pack_of_another_worker_is_rewritten_once_that_worker_has_sealed_it(keeper: Keeper) -> None:
    worker = PackStore(keeper.directory / "packs")
    contents = {hashlib.sha256(each).digest(): each for each in (keeper.content() for _ in range(20))}
    worker.put(list(contents.items()))
    names = sorted(contents)
    worker.seal_if_mostly_dead()
    for name in names[:12]:
        keeper.blobs.delete(name.hex())
    assert await keeper.custody.packing.rewrite_due() == 0
    worker.seal_if_mostly_dead()
    assert await keeper.custody.packing.rewrite_due() > 12 * SMALL_BYTES
    assert keeper.on_disk() == [name.hex() for name in names[12:]]
    worker.close()


async def test_damaged_record_keeps_its_pack_until_it_is_in_quarantine(keeper: Keeper) -> None:
    name, *others = (keeper.store() for _ in range(10))
    for other in others[:8]:
        keeper.blobs.delete(other)
    (pack,) = (keeper.directory / "packs").glob("*.pack")
    found = keeper.blobs.packed.find(name)
    assert found is not None
    content = bytearray(pack.read_bytes())
    content[found.place.offset + 200] ^= 1
    pack.write_bytes(content)
    assert await keeper.custody.packing.rewrite_due() == 0
    assert pack.exists()
    keeper.later_s = 31 * DAY_S
    await keeper.custody.scrubber.do_due(keeper.cycle())
    assert keeper.quarantined() == [name]
    await keeper.custody.packing.rewrite_due()
    assert not pack.exists()
    assert keeper.on_disk() == others[8:]


async def test_metrics_tell_what_lies_in_packs(keeper: Keeper) -> None:
    def shown() -> tuple[float | None, ...]:
        value = keeper.registry.get_sample_value
        packed = (value("filestore_packed_bytes", {"state": state}) for state in ("live", "dead"))
        return value("filestore_packs"), value("filestore_packed_blobs"), *packed

    record_bytes = HEAD_BYTES + SMALL_BYTES
    names = [keeper.put(keeper.content()) for _ in range(10)]
    assert await keeper.custody.packing.rewrite_due() == 0
    assert shown() == (1, 10, 10 * record_bytes, 0)
    for name in names[:3]:
        keeper.blobs.delete(name)
    await keeper.custody.packing.rewrite_due()
    assert shown() == (1, 7, 7 * record_bytes, 3 * record_bytes)
    assert pack_bytes(keeper) == HEADER_BYTES + 10 * record_bytes
    keeper.packed = True
    keeper.restart()
    assert shown() == (0, 0, 0, 0)  # as of its last look
    keeper.put(keeper.content())
    await keeper.custody.packing.rewrite_due()
    assert shown() == (2, 8, 8 * record_bytes, 3 * record_bytes)
    for name in names[3:]:
        keeper.blobs.delete(name)
    assert await keeper.custody.packing.rewrite_due() > 0
    assert shown() == (1, 1, record_bytes, 0)
    assert pack_bytes(keeper) == HEADER_BYTES + record_bytes


def test_due_are_packs_that_are_mostly_dead_and_small_ones_when_there_are_many() -> None:
    whole, half, gone = facts(1, 200 << 20, 200 << 20), facts(2, 200 << 20, 100 << 20), facts(3, 1000, 0)
    assert due_packs([whole, half, gone]) == [gone, half]
    assert due_packs([facts(4, 1000, 0, is_sealed=False)]) == []
    small = [facts(number, 1 << 20, 1 << 20) for number in range(SMALL_PACKS_MAX)]
    assert due_packs([whole, *small[1:]]) == []
    assert due_packs([whole, *small]) == small


async def test_bytes_of_a_blob_that_was_purged_do_not_stay_in_its_pack(keeper: Keeper) -> None:
    contents = {keeper.put(content): content for content in (keeper.content() for _ in range(20))}
    kept, *others = sorted(contents)
    keeper.blobs.delete(others[0])
    assert await keeper.custody.packing.rewrite_due() == 0  # a twentieth
    keeper.blobs.note_purged(others[1])
    keeper.blobs.delete(others[1])
    keeper.restart()
    await keeper.custody.packing.rewrite_due()
    on_disk = b"".join(path.read_bytes() for path in (keeper.directory / "packs").glob("*.pack"))
    assert contents[others[1]] not in on_disk
    assert contents[kept] in on_disk
    assert keeper.on_disk() == [kept, *others[2:]]
    assert keeper.blobs.packed.store.index.purged_packs() == frozenset()
    assert await keeper.custody.packing.rewrite_due() == 0


async def test_pack_that_is_written_to_is_sealed_for_what_was_purged(keeper: Keeper) -> None:
    content, other = keeper.content(), keeper.content()
    name, kept = keeper.put(content), keeper.put(other)  # far less than a pack is sealed for
    keeper.blobs.note_purged(name)
    keeper.blobs.delete(name)
    await keeper.custody.packing.rewrite_due()
    on_disk = b"".join(path.read_bytes() for path in (keeper.directory / "packs").glob("*.pack"))
    assert (content in on_disk, other in on_disk, keeper.on_disk()) == (False, True, [kept])
