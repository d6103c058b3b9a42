"""What a node does about its replicas by itself: nothing that is wanted goes, and nothing else stays."""

import asyncio
import os
from pathlib import Path

import pytest

from node.custody import compare
from node.custody.context import Stopped
from node.diskio.durable import Disk
from node.staging.upload_store import UploadStore
from node.storage.damage import miss, remove_from_service
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobDamaged
from tests.unit import replica_acts as acts
from tests.unit.custody_node import DAY_S, FILES, LAYOUTS, NODES, SIZE_BYTES, Keeper, until_stopped

WEEK_S = 7 * DAY_S
UUID = "0192d3a4-0000-7000-8000-000000000001"
PIN_OVER_S = 700


async def test_doomed_replica_is_dropped_and_reported(keeper: Keeper) -> None:
    kept, gone = keeper.store(), keeper.store()
    keeper.doom(gone)
    keeper.age(gone)
    counts = await keeper.collect()
    assert counts == {"dropped": 1, "bytes": SIZE_BYTES, "spared": 0, "left": 0}
    assert keeper.on_disk() == keeper.held() == [kept]
    assert list((keeper.directory / "blobs").rglob(f"{gone}*")) == []
    assert keeper.audited("replica.drop") == [gone]


async def test_doomed_replica_goes_from_quarantine_too(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.doom(name)
    assert keeper.context.quarantine.take(name)
    assert (await keeper.collect())["dropped"] == 1
    assert keeper.quarantined() == []


@pytest.mark.parametrize("how", ["came", "affirmed", "finished"])
async def test_pinned_replica_is_spared(keeper: Keeper, how: str) -> None:
    content = keeper.content()
    name = keeper.store(content)
    keeper.doom(name)
    if how == "finished":
        uploads = UploadStore(keeper.blobs)
        with uploads.open(UUID, len(content)) as upload:
            upload.append(content)
            upload.finish()
        uploads.close()
    if how != "came":
        keeper.age(name)
    if how == "affirmed":
        assert keeper.blobs.affirm(name)
    assert (await keeper.collect())["spared"] == 1
    assert keeper.on_disk() == keeper.held() == [name]
    assert acts.doomed(keeper.state, "n1") == []


async def test_pin_is_over_when_its_time_is(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.doom(name)
    keeper.later_s = PIN_OVER_S
    assert (await keeper.collect())["dropped"] == 1
    assert keeper.on_disk() == []


async def test_pinned_replica_that_is_not_whole_is_dropped(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.doom(name)
    keeper.cut(name, 2)
    assert (await keeper.collect())["dropped"] == 1
    assert keeper.on_disk() == []


async def test_replica_that_is_wanted_again_is_spared(keeper: Keeper) -> None:
    name = keeper.store(nodes=("n1", "n2", "n3"))
    assert acts.release(keeper.state, name, "n1") is None
    keeper.age(name)
    acts.lost(keeper.state, "n2", name)
    assert (await keeper.collect())["spared"] == 1
    assert keeper.held() == keeper.on_disk() == [name]


async def test_bytes_in_quarantine_stay_while_the_replica_is_wanted_again(keeper: Keeper) -> None:
    name = keeper.store(nodes=("n1", "n2", "n3"))
    keeper.age(name)
    Quarantine(keeper.blobs).take(name)
    acts.release(keeper.state, name, "n1")
    acts.mark(keeper.state, "n2", "down")
    assert (await keeper.collect())["dropped"] == 1
    assert keeper.quarantined() == [name]
    assert (await keeper.compare())["restored"] == 1
    assert keeper.held() == [name]


@FILES
async def test_directory_in_place_of_a_doomed_replica_goes(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.doom(name)
    keeper.path(name).unlink()
    keeper.path(name).mkdir()
    assert (await keeper.collect())["dropped"] == 1
    assert not keeper.path(name).exists()
    assert keeper.quarantined() == []


async def test_process_that_is_killed_between_unlink_and_report_is_followed_by_one_that_reports(
    keeper: Keeper,
) -> None:
    name = keeper.store()
    keeper.doom(name)
    keeper.age(name)
    await keeper.collect()  # fences it; nothing is doomed by the leader any more
    again = keeper.store(keeper.content())
    keeper.doom(again)
    keeper.age(again)
    keeper.log.lost_reports = 1_000_000
    collecting = asyncio.create_task(keeper.collect())
    while keeper.log.lost_reports == 1_000_000:
        await asyncio.sleep(0)
    collecting.cancel()
    await asyncio.wait({collecting})
    assert keeper.on_disk() == []
    assert acts.doomed(keeper.state, "n1") == [again]
    keeper.log.lost_reports = 0
    keeper.restart()
    assert (await keeper.collect())["dropped"] == 1
    assert acts.doomed(keeper.state, "n1") == []


async def test_no_list_is_read_before_an_answer_to_the_report(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(3)]
    keeper.doom(*names)
    keeper.age(*names)
    keeper.log.lost_reports = 2
    await keeper.collect()
    letters = {"ReportDropped": "R", "ListReplicasToDelete": "L"}
    asked = "".join(letters.get(name, "") for name in keeper.log.asked)
    assert asked == "LRRRLLRL"


async def test_report_whose_answer_is_lost_is_followed_by_a_new_list(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.doom(name)
    keeper.age(name)
    await keeper.custody._reporter.to_delete(after="", limit=1)
    keeper.log.lost_answers = 1
    await keeper.collect()
    assert acts.doomed(keeper.state, "n1") == []
    assert keeper.on_disk() == []


async def test_collect_that_would_take_much_stops_unless_it_is_really_meant(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(102)]
    keeper.doom(*names[1:])
    keeper.age(*names)
    with pytest.raises(Stopped, match="yes_really"):
        await keeper.collect()
    assert len(keeper.on_disk()) == 102
    assert (await keeper.collect(yes_really=True))["dropped"] == 101
    assert keeper.on_disk() == keeper.held() == [names[0]]


OF_FILES = ("linked", "unreadable", "no sidecar")


@pytest.mark.parametrize(
    ("layout", "damage"),
    [
        *((layout, damage) for layout in LAYOUTS for damage in ("deleted", "truncated")),
        *(("files", damage) for damage in OF_FILES),
    ],
)
async def test_replica_that_cannot_be_opened_is_found_by_comparing(keeper: Keeper, damage: str) -> None:
    kept, name = keeper.store(), keeper.store()
    path = keeper.path(name)
    if damage == "deleted":
        keeper.lose(name)
    elif damage == "truncated":
        keeper.cut(name, 3)
    elif damage == "linked":
        path.unlink()
        path.symlink_to("/etc/hostname")
    elif damage == "unreadable":
        path.chmod(0)
    else:
        path.with_name(name + ".sums").unlink()
    counts = await keeper.compare()
    if damage in ("unreadable", "no sidecar"):  # its bytes are sound: it is put back
        assert keeper.held() == keeper.on_disk() == sorted([kept, name])
        assert keeper.audited("replica.lost") == []
        return
    assert (counts["looked"], counts["missing"], counts["restored"]) == (2, 1, 0)
    assert keeper.held() == keeper.on_disk() == [kept]
    assert keeper.audited("replica.lost") == [name]
    assert acts.short(keeper.state) == [(name, 1)]
    assert keeper.quarantined() == ([] if damage == "deleted" else [name])


async def test_missing_replica_that_lies_sound_in_quarantine_is_put_back(keeper: Keeper) -> None:
    name = keeper.store()
    assert keeper.context.quarantine.take(name)
    assert (await keeper.compare())["restored"] == 1
    assert keeper.held() == keeper.on_disk() == [name]
    assert keeper.quarantined() == []
    assert list((keeper.directory / "quarantine").iterdir()) == []
    if not keeper.packed:
        assert keeper.path(name).stat().st_mode & 0o777 == 0o400


async def test_damaged_copy_in_quarantine_is_read_once_and_again_when_it_has_changed(keeper: Keeper) -> None:
    name, budget = keeper.store(), keeper.context.budget
    told: list[int] = []
    sound = keeper.content_on_disk(name)
    keeper.rot(name)
    assert Quarantine(keeper.blobs).take(name)
    aside, paid = keeper.directory / "quarantine" / name, budget._free_at_s
    assert not await keeper.custody.restore(name, moved=told.append)
    assert paid < (paid := budget._free_at_s)
    assert not await keeper.custody.restore(name, moved=told.append)
    assert paid == budget._free_at_s
    aside.chmod(0o600)
    aside.write_bytes(sound)
    assert await keeper.custody.restore(name, moved=told.append)
    assert keeper.on_disk() == [name]


async def test_damage_that_a_reader_meets_is_reported(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.rot(name)
    with pytest.raises(BlobDamaged) as caught, keeper.blobs.open(name) as blob:
        blob.verify_range(0, SIZE_BYTES)
    await remove_from_service(keeper.disk, keeper.blobs, keeper.metrics, caught.value)
    keeper.restart()  # the note survives
    await keeper.look()
    assert keeper.held() == []
    assert keeper.quarantined() == [name]
    assert keeper.audited("replica.lost") == [name]
    assert list((keeper.directory / "lost").iterdir()) == []


async def test_replica_that_a_reader_misses_is_reported(keeper: Keeper) -> None:
    name, unknown = keeper.store(), "0" * 64
    keeper.lose(name)
    for missed in (name, unknown):
        await miss(keeper.disk, keeper.blobs, missed)
    await keeper.look()
    assert keeper.held() == []
    assert keeper.audited("replica.lost") == [name]
    assert acts.short(keeper.state) == [(name, 1)]


async def test_note_about_a_replica_that_came_again_is_taken_away(keeper: Keeper) -> None:
    content = keeper.content()
    name = keeper.store(content)
    await miss(keeper.disk, keeper.blobs, name)
    await keeper.look()
    assert keeper.held() == [name]
    assert list((keeper.directory / "lost").iterdir()) == []


async def test_report_of_a_loss_that_is_not_answered_is_sent_again(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.lose(name)
    keeper.log.lost_reports = 3
    await miss(keeper.disk, keeper.blobs, name)
    await keeper.look()
    assert keeper.held() == []


async def test_compare_that_misses_much_stops_and_changes_nothing(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(101)]
    for name in names:
        keeper.cut(name, 1)
    with pytest.raises(Stopped, match="101 of 101"):
        await keeper.compare()
    assert len(keeper.held()) == 101
    assert keeper.quarantined() == []
    assert (await keeper.compare(yes_really=True))["missing"] == 101
    assert keeper.held() == []
    assert keeper.quarantined() == sorted(names)


async def test_unknown_blob_goes_to_quarantine_after_a_day_and_for_good_after_a_week(keeper: Keeper) -> None:
    old, young = keeper.put(keeper.content()), keeper.put(keeper.content())
    keeper.age(old, by_s=DAY_S + 60)
    keeper.age(young, by_s=DAY_S - 600)
    counts = await keeper.compare()
    assert (counts["unknown"], counts["quarantined"], counts["purged"]) == (2, 1, 0)
    assert (keeper.on_disk(), keeper.quarantined()) == ([young], [old])
    assert keeper.blobs.delete(young)
    assert (await keeper.compare())["purged"] == 0
    keeper.later_s = WEEK_S + 60
    assert (await keeper.compare())["purged"] == 1
    assert keeper.quarantined() == []


async def test_unknown_blob_that_was_affirmed_lately_stays(keeper: Keeper) -> None:
    name = keeper.put(keeper.content())
    keeper.age(name)
    assert keeper.blobs.affirm(name)
    await keeper.compare()
    assert keeper.on_disk() == [name]


async def test_unknown_blob_of_an_upload_that_lives_stays(keeper: Keeper) -> None:
    content = keeper.content()
    uploads = UploadStore(keeper.blobs)
    with uploads.open(UUID, len(content)) as upload:
        upload.append(content)
        name = upload.finish().sha256
    keeper.age(name)
    await keeper.compare()
    assert keeper.on_disk() == [name]
    assert uploads.discard(UUID)
    uploads.close()
    await keeper.compare()
    assert keeper.on_disk() == []


async def test_whole_blob_that_the_log_wants_becomes_a_replica(keeper: Keeper) -> None:
    name = keeper.store(nodes=("n2", "n3"))
    keeper.age(name)
    assert (await keeper.compare())["added"] == 1
    assert keeper.held() == [name]


@FILES
@pytest.mark.parametrize("told", ["added", "spared"])
async def test_name_of_a_replica_is_durable_before_the_log_counts_on_it(keeper: Keeper, told: str) -> None:
    """A process that was killed may have put it there, and synced nothing."""
    name = keeper.store(nodes=("n2", "n3") if told == "added" else NODES)
    if told == "spared":
        keeper.doom(name)
    keeper.restart()
    synced: list[Path] = []

    def sync(descriptor: int) -> None:
        os.fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    keeper.blobs.disk = Disk(fsync=sync)
    counts = await (keeper.compare() if told == "added" else keeper.collect())
    assert counts[told] == 1
    leaf = keeper.path(name).parent
    assert {leaf, leaf.parent, leaf.parent.parent} <= set(synced)


@pytest.mark.parametrize("how", ["rotten", "exchanged"])
async def test_damaged_blob_that_the_log_wants_becomes_none(keeper: Keeper, how: str) -> None:
    names = [keeper.store(nodes=("n2", "n3")) for _ in range(2)]
    if how == "exchanged":
        keeper.exchange(*names)
    else:
        for name in names:
            keeper.rot(name)
    assert (await keeper.compare())["added"] == 0
    assert keeper.held() == keeper.on_disk() == []


async def test_wanted_blob_in_quarantine_is_put_back_and_added(keeper: Keeper) -> None:
    name = keeper.store(nodes=("n2", "n3"))
    assert keeper.context.quarantine.take(name)
    keeper.later_s = WEEK_S + 60
    assert (await keeper.compare())["added"] == 1
    assert keeper.held() == keeper.on_disk() == [name]


@pytest.mark.parametrize("others", [True, False])
async def test_damaged_bytes_are_kept_while_nobody_has_better_ones(keeper: Keeper, others: bool) -> None:
    name = keeper.store()
    keeper.cut(name, 1)
    if not others:
        acts.lost(keeper.state, "n2", name)
        acts.lost(keeper.state, "n3", name)
    await keeper.compare()
    assert keeper.quarantined() == [name]
    keeper.later_s = WEEK_S + 60
    assert (await keeper.compare())["purged"] == int(others)
    assert keeper.quarantined() == ([] if others else [name])


async def test_damaged_copy_beside_a_whole_replica_goes_after_a_week(keeper: Keeper) -> None:
    content = keeper.content()
    name = keeper.store(content)
    assert keeper.context.quarantine.take(name)
    keeper.put(content)
    await keeper.compare()
    assert keeper.quarantined() == [name]
    keeper.later_s = WEEK_S + 60
    await keeper.compare()
    assert keeper.quarantined() == []
    assert keeper.on_disk() == keeper.held() == [name]


async def test_compare_that_finds_many_unknown_blobs_stops(keeper: Keeper) -> None:
    names = [keeper.put(keeper.content()) for _ in range(101)]
    keeper.age(*names)
    with pytest.raises(Stopped, match="unknown to the log"):
        await keeper.compare()
    assert keeper.quarantined() == []
    assert (await keeper.compare(yes_really=True))["quarantined"] == 101


async def test_comparison_ends_when_all_was_looked_at_however_much_it_keeps_in_memory(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "FOUND_MAX", 3)
    missing, strays = [keeper.store() for _ in range(10)], [keeper.put(keeper.content()) for _ in range(8)]
    kept = keeper.store()
    for name in missing:
        keeper.lose(name)
    keeper.age(*strays)
    counts = await keeper.compare()
    assert (counts["looked"], counts["missing"], counts["unknown"], counts["quarantined"]) == (11, 10, 8, 8)
    assert keeper.held() == keeper.on_disk() == [kept]
    assert keeper.quarantined() == sorted(strays)


async def test_comparison_that_finds_more_missing_than_it_keeps_in_memory_stops_all_the_same(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "FOUND_MAX", 3)
    for _ in range(101):
        keeper.lose(keeper.store())
    with pytest.raises(Stopped, match="101 of 101"):
        await keeper.compare()
    assert len(keeper.held()) == 101


async def test_compare_that_nobody_answers_for_a_week_goes_on(keeper: Keeper) -> None:
    old, new = ([keeper.put(keeper.content()) for _ in range(101)] for _ in range(2))
    keeper.age(*new)
    keeper.age(*old, by_s=WEEK_S + 2 * DAY_S)
    with pytest.raises(Stopped, match="101 of 202"):
        await keeper.compare()
    assert keeper.quarantined() == sorted(old)


async def test_order_is_carried_out_once_and_tells_what_it_counted(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.doom(name)
    keeper.age(name)
    orders = keeper.custody.orders["collect"]
    assert orders.give("first", yes_really=False).state == "running"
    counts = await until_stopped(keeper, "first", "collect")
    assert counts["dropped"] == 1
    asked = len(keeper.log.asked)
    assert orders.give("first", yes_really=False).counts == counts
    await keeper.look()
    assert len(keeper.log.asked) == asked


async def test_order_that_is_too_much_stops_with_a_sentence(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(101)]
    keeper.doom(*names)
    keeper.age(*names)
    orders = keeper.custody.orders["collect"]
    orders.give("first", yes_really=False)
    await keeper.look()
    standing = orders.give("first", yes_really=False)
    assert standing.state == "stopped"
    assert "101 of 101 blobs" in standing.reason
    assert keeper.registry.get_sample_value("filestore_custody_stopped", {"kind": "collect"}) == 1
    orders.give("second", yes_really=True)
    await keeper.look()
    assert orders.give("second", yes_really=True).state == "completed"
    assert keeper.on_disk() == []
    assert keeper.registry.get_sample_value("filestore_custody_stopped", {"kind": "collect"}) == 0


async def test_disk_and_log_agree_after_everything(keeper: Keeper) -> None:
    names = [keeper.store() for _ in range(40)]
    strays = [keeper.put(keeper.content()) for _ in range(5)]
    keeper.doom(*names[:4])
    keeper.lose(names[5])
    keeper.cut(names[6], 2)
    keeper.context.quarantine.take(names[7])
    keeper.age(*names[:5], *strays)
    await keeper.collect()
    await keeper.compare()
    assert keeper.on_disk() == keeper.held() == sorted([names[4], *names[7:]])
    used_bytes = sum(len(keeper.content_on_disk(name)) for name in keeper.on_disk())
    assert used_bytes == SIZE_BYTES * len(keeper.held())
