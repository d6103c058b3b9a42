"""What takes long in custody holds up nothing else: here the budget gives no bytes until it is told to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metadata.rpc.view import View
from node.custody import compare, loss_repair
from node.custody.context import Pass
from node.storage.damage import remove_from_service
from node.storage.quarantine import Quarantine
from node.storage.segments import SEGMENT_BYTES, BlobDamaged
from tests.unit import replica_acts as acts
from tests.unit.custody_node import Keeper

SOON_S = 20.0


class Gate:
    """In the place of the budget: whoever wants to read waits until it is open."""

    def __init__(self, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = asyncio.Event()
        self.waiting = 0
        monkeypatch.setattr(keeper.context.budget, "take", self.take)

    async def take(self, _size_bytes: int) -> None:
        self.waiting += 1
        await self.opened.wait()
        self.waiting -= 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def kept(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """While custody runs."""

    async def at_once(_view: View) -> None:
        """The view is fresh."""

    monkeypatch.setattr(View, "wait_until_fresh", at_once)
    running = asyncio.create_task(keeper.custody.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait({running})


async def spoil(keeper: Keeper, name: str) -> None:
    """A reader meets damage."""
    keeper.rot(name)
    damage = BlobDamaged(name, "as a reader found", file=keeper.identity(name))
    await remove_from_service(keeper.disk, keeper.blobs, keeper.metrics, damage)


async def test_losses_orders_and_drops_do_not_wait_for_a_comparison_that_reads(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that brings a full disk along reads for hours."""
    gate = Gate(keeper, monkeypatch)
    monkeypatch.setattr(loss_repair, "CHECK_S", 0.1)
    lost, gone = keeper.store(), keeper.store()
    brought = keeper.store(nodes=("n2", "n3"))
    comparison = keeper.custody.orders["compare"]
    comparison.give("look", yes_really=False)
    async with kept(keeper, monkeypatch):
        await until(lambda: gate.waiting > 0)
        assert comparison.give("look", yes_really=False).counts["compared"] == 1  # it may count again
        await spoil(keeper, lost)
        await until(lambda: lost not in keeper.held())
        keeper.doom(gone)
        keeper.age(gone)
        orders = keeper.custody.orders["collect"]
        await until(lambda: orders.give("drop", yes_really=False).state == "completed")
        assert keeper.held() == []
        gate.opened.set()
        await until(lambda: keeper.held() == [brought])


async def test_one_copy_that_takes_long_to_read_keeps_no_other_loss_from_being_reported(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(keeper, monkeypatch)
    monkeypatch.setattr(loss_repair, "CHECK_S", 0.1)
    large, missing = keeper.store(), keeper.store()
    async with kept(keeper, monkeypatch):
        await spoil(keeper, large)
        await until(lambda: gate.waiting > 0)
        keeper.lose(missing)
        keeper.custody.orders["compare"].give("look", yes_really=False)
        await until(lambda: keeper.held() == [])  # by this comparison, or the one that runs at the start
    assert keeper.quarantined() == [large]


async def test_copy_that_proves_to_be_sound_after_its_report_counts_again(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(keeper, monkeypatch)
    monkeypatch.setattr(loss_repair, "CHECK_S", 0.1)
    name = keeper.store()
    async with kept(keeper, monkeypatch):
        assert Quarantine(keeper.blobs).take(name)
        orders = keeper.custody.orders["compare"]
        orders.give("look", yes_really=False)
        await until(lambda: keeper.audited("replica.lost") == [name])
        gate.opened.set()
        await until(lambda: keeper.held() == keeper.on_disk() == [name])
    assert keeper.quarantined() == []


async def test_comparison_that_nobody_has_ordered_gives_way_to_an_order(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(keeper, monkeypatch)
    names = sorted(keeper.put(keeper.dice.randbytes(SEGMENT_BYTES + 5)) for _ in range(2))
    taken: list[int] = []

    async def take(size_bytes: int) -> None:
        taken.append(size_bytes)
        await gate.take(size_bytes)

    monkeypatch.setattr(keeper.context.budget, "take", take)
    for name in names:
        acts.put(keeper.state, f"file-{name}", name, "n2", "n3", as_of=keeper.state.log_index)
    async with kept(keeper, monkeypatch):
        await until(lambda: gate.waiting > 0)
        orders = keeper.custody.orders["compare"]
        orders.give("look", yes_really=False)
        gate.opened.set()
        await until(lambda: orders.give("look", yes_really=False).state == "completed")
    assert keeper.held() == names
    read_bytes = 2 * (SEGMENT_BYTES + 5)
    assert orders.give("look", yes_really=False).counts["read_bytes"] == read_bytes
    assert sum(taken) == SEGMENT_BYTES + read_bytes  # of its own pass it has read the one segment


async def test_counts_of_a_comparison_move_with_each_page(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader gives up a pass whose counts stand still, and a disk of ten million blobs takes hours."""
    monkeypatch.setattr(compare, "PAGE_BLOBS", 2)
    for _ in range(6):
        keeper.store()
    run, told = Pass(), list[int]()
    read = keeper.log.read

    async def reading(query: Any, reply_type: Any, **options: Any) -> Any:
        told.append(run.counts.get("listed", 0))
        return await read(query, reply_type, **options)

    monkeypatch.setattr(keeper.log, "read", reading)
    await keeper.custody.compare(run)
    assert {0, 2, 4, 6, 8, 10} <= set(told)  # of the log first, then of the disk
    assert (run.counts["looked"], run.counts["listed"]) == (6, 12)
