"""Scrubbing: damage is found by itself, within the budget, from where the last process was."""

import asyncio
import os
import time

import msgspec
import pytest

from node.custody import scrub
from node.custody.scrub import SCRUB_S, Cycle
from node.peer.rate_budget import LOOK_S, RATE_MAX, Budget
from node.storage.segments import SEGMENT_BYTES
from runtime.json_files import decode_sealed, encode_sealed
from tests.unit.custody_node import SIZE_BYTES, Keeper

TOLD_S = 10.0


def begun(keeper: Keeper, *, after: str = "") -> Cycle:
    return Cycle(began_at_ms=int(keeper.context.clock_s() * 1000), after=after)


def scrubbed_bytes(keeper: Keeper) -> float:
    value = keeper.registry.get_sample_value("filestore_scrubbed_bytes_total")
    assert value is not None
    return value


def stopped_itself(keeper: Keeper) -> float | None:
    return keeper.registry.get_sample_value("filestore_custody_stopped", {"kind": "scrub"})


async def test_flipped_bit_is_found_and_reported(keeper: Keeper) -> None:
    sound, rotten = keeper.store(), keeper.store()
    keeper.rot(rotten)
    cycle = await keeper.custody.scrubber.do_due(begun(keeper))
    assert cycle.is_over
    assert keeper.held() == keeper.on_disk() == [sound]
    assert keeper.quarantined() == keeper.audited("replica.lost") == [rotten]


async def test_bit_that_flips_after_it_was_read_and_trusted_is_found(keeper: Keeper) -> None:
    content = os.urandom(2 * SEGMENT_BYTES + 10)
    name = keeper.put(content)
    with keeper.blobs.open(name) as blob:
        blob.verify_range(0, len(content))
        path, facts = keeper.path(name), os.fstat(blob.fd)
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.seek(SEGMENT_BYTES)
            file.write(bytes([content[SEGMENT_BYTES] ^ 1]))
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    await keeper.custody.scrubber.do_due(begun(keeper))
    assert keeper.quarantined() == [name]
    assert scrubbed_bytes(keeper) == 2 * SEGMENT_BYTES  # no more was read


async def test_sound_content_under_a_wrong_name_is_found(keeper: Keeper) -> None:
    """Two blobs changed places, and their checksums with them: no segment tells."""
    names = [keeper.put(os.urandom(SEGMENT_BYTES + 10)) for _ in range(2)]
    sound = keeper.put(os.urandom(SEGMENT_BYTES + 10))
    keeper.exchange(*names)
    await keeper.custody.scrubber.do_due(begun(keeper))
    assert keeper.quarantined() == sorted(names)
    assert keeper.on_disk() == [sound]


async def test_cycle_goes_on_where_the_last_process_was(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "SAVE_S", 0.0)
    names = sorted(keeper.store() for _ in range(4))
    await keeper.custody.scrubber._save(begun(keeper, after=names[1]))
    keeper.restart()
    cycle = await keeper.custody.scrubber.do_due(keeper.custody.scrubber._load())
    assert scrubbed_bytes(keeper) == 2 * SIZE_BYTES
    assert cycle.is_over
    saved = decode_sealed((keeper.directory / "scrub.json").read_bytes(), Cycle, of="n1")
    assert saved == cycle


async def test_progress_that_a_disk_changed_or_another_node_made_is_unknown(keeper: Keeper) -> None:
    keeper.store()
    scrubber, state = keeper.custody.scrubber, keeper.directory / "scrub.json"
    cycle = await scrubber.do_due(begun(keeper))
    assert scrubber._load() == cycle
    written = state.read_bytes()
    at = written.index(b'"began_at_ms": ') + len(b'"began_at_ms": ')
    state.write_bytes(written[:at] + b"9" + written[at + 1 :])  # read until then, it would say
    assert scrubber._load().since_ms == 0
    state.write_bytes(encode_sealed(cycle, of="n2"))
    assert scrubber._load().since_ms == 0
    state.write_bytes(msgspec.json.encode(cycle))  # until 0.3.0: as 0.1.0 does
    assert scrubber._load() == cycle


async def test_next_cycle_begins_when_the_period_is_over(keeper: Keeper) -> None:
    keeper.store()
    scrubber = keeper.custody.scrubber
    cycle = await scrubber.do_due(begun(keeper))
    cycle = await scrubber.do_due(cycle)
    assert scrubbed_bytes(keeper) == SIZE_BYTES
    keeper.later_s = SCRUB_S + 1
    await scrubber.do_due(cycle)
    assert scrubbed_bytes(keeper) == 2 * SIZE_BYTES


async def test_time_since_which_all_was_read_moves_only_when_a_cycle_is_over(keeper: Keeper) -> None:
    keeper.store()
    scrubber = keeper.custody.scrubber
    first = scrubber._load()
    assert first.since_ms == first.began_at_ms
    first = await scrubber.do_due(first)
    assert scrubber.since_ms == first.began_at_ms > 0
    keeper.later_s = SCRUB_S + 1
    second = first.next(first.began_at_ms + 1000)
    assert second.since_ms == first.began_at_ms
    assert second.next(first.began_at_ms + 2000).since_ms == first.began_at_ms  # it did not end
    second = await scrubber.do_due(second)
    assert scrubber.since_ms == second.began_at_ms == first.began_at_ms + 1000
    told = keeper.registry.get_sample_value("filestore_scrubbed_since_timestamp_seconds")
    assert told == scrubber.since_ms / 1000


async def test_order_reads_everything_at_once_and_tells_what_it_found(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(3)]
    scrubber = keeper.custody.scrubber
    cycle = await scrubber.do_due(begun(keeper))
    keeper.rot(names[0])
    for order_id in ("first", "second"):
        assert scrubber.orders.give(order_id, yes_really=False).state == "running"
    await scrubber.do_due(cycle)
    for order_id in ("first", "second"):
        standing = scrubber.orders.give(order_id, yes_really=False)
        assert standing.state == "completed", standing.reason
        # A packed blob is read whole when it is opened, and found damaged then.
        read_bytes = (2 if keeper.packed else 3) * SIZE_BYTES
        assert standing.counts == {"looked": 3, "bytes": read_bytes, "damaged": 1}
    assert keeper.held() == sorted(names[1:])


async def test_order_that_finds_much_damage_stops(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(103)]
    for name in names:
        keeper.rot(name)
    scrubber = keeper.custody.scrubber
    scrubber.orders.give("first", yes_really=False)
    await scrubber.do_due(begun(keeper))
    standing = scrubber.orders.give("first", yes_really=False)
    assert (standing.state, standing.counts["damaged"]) == ("stopped", 101)


async def test_cycle_that_nobody_ordered_stops_at_much_damage_until_somebody_does(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(103)]
    for name in names:
        keeper.rot(name)
    scrubber = keeper.custody.scrubber
    cycle = await scrubber.do_due(await scrubber.do_due(begun(keeper)))
    assert (cycle.is_over, len(keeper.on_disk()), stopped_itself(keeper)) == (True, 2, 1)
    scrubber.orders.give("first", yes_really=True)
    await scrubber.do_due(cycle)
    assert scrubber.orders.give("first", yes_really=True).counts["damaged"] == 2
    assert (keeper.on_disk(), keeper.held(), stopped_itself(keeper)) == ([], [], 0)


async def test_cycle_that_stopped_is_told_of_by_the_next_process_too(keeper: Keeper) -> None:
    """It goes on with nothing by itself for 30 days."""
    for name in [keeper.store() for _ in range(103)]:
        keeper.rot(name)
    await keeper.custody.scrubber.do_due(begun(keeper))
    keeper.restart()
    assert stopped_itself(keeper) == 0
    keeper.context.view._confirmed_at = time.monotonic() + 60
    running = asyncio.create_task(keeper.custody.scrubber.run())
    try:
        async with asyncio.timeout(TOLD_S):
            while not stopped_itself(keeper):
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert keeper.context.metrics.custody_stops.kinds() == ["scrub"]


def test_budget_gives_way_to_clients_down_to_its_floor_and_comes_back() -> None:
    seen = [0.0]
    budget = Budget(lambda: seen[0], rate_max=80.0, rate_min=15.0)
    rates, at_s = [], 100.0
    for clients_bytes in (0, 1e9, 1e9, 1e9, 1e9, 0, 0, 0, 0):
        seen[0] += clients_bytes
        budget.observe(at_s)
        rates.append(budget.rate)
        at_s += LOOK_S
    assert rates == [80, 40, 20, 15, 15, 30, 60, 80, 80]


def test_budget_that_nobody_looked_at_for_long_has_given_way_to_clients_meanwhile() -> None:
    seen = [0.0]
    budget = Budget(lambda: seen[0], rate_max=80.0, rate_min=15.0)
    rates = []
    for at_s, clients_bytes in ((100.0, 0), (100.0 + 10 * LOOK_S, 1e9), (100.0 + 20 * LOOK_S, 0)):
        seen[0] += clients_bytes
        budget.observe(at_s)
        rates.append(budget.rate)
    assert rates == [80, 15, 80]


def test_readers_of_small_files_are_clients_too() -> None:
    seen = [0.0]
    budget = Budget(lambda: seen[0])
    rates = []
    for at_s, files in ((100.0, 0), (100.0 + LOOK_S, 30), (100.0 + 2 * LOOK_S, 3)):
        seen[0] += files * 4096
        budget.observe(at_s)
        rates.append(budget.rate / RATE_MAX)
    assert rates == [1, 0.5, 1]


async def test_budget_lets_nobody_pass_before_the_bytes_are_paid_for() -> None:
    budget = Budget(rate_max=1.0, rate_min=1.0)
    await budget.take(1_000_000)  # of the first nothing was asked before
    second = asyncio.create_task(budget.take(1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done()
    second.cancel()
    await asyncio.wait({second})


async def test_order_does_not_wait_for_a_large_blob_and_its_counts_move_while_one_is_read(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader gives a pass up whose counts stand still for an hour: a blob of 72 GB takes that long."""
    keeper.put(os.urandom(2 * SEGMENT_BYTES))
    scrubber = keeper.custody.scrubber
    told: list[int] = []

    async def take(_: int) -> None:
        standing = scrubber.orders.give("now", yes_really=False)  # from the first segment on
        told.append(standing.counts.get("bytes", 0))

    monkeypatch.setattr(keeper.context.budget, "take", take)
    monkeypatch.setattr(scrubber._unhurried, "take", take)
    cycle = begun(keeper)
    while scrubber.orders.give("now", yes_really=False).state == "running" and len(told) < 20:
        cycle = await scrubber.do_due(cycle)
    assert cycle.is_over
    standing = scrubber.orders.give("now", yes_really=False)
    assert (standing.state, standing.counts["bytes"]) == ("completed", 2 * SEGMENT_BYTES)
    assert told[-1] == SEGMENT_BYTES  # before the second half
