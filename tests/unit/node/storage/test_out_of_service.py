"""Damage on a disk that lets nothing be moved and takes no note: out of service and reported all the same."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from metadata.protocol.commands import ReportDamaged, ReportLost
from metadata.protocol.queries import ListDamagedBlobs, ListDamagedCopies
from node.custody.damaged_copies import REPORT_AGAIN_S
from node.peer.salvage import local_segment, local_sums
from node.storage.damage import remove_from_service, retry_quarantine, verify_blob
from node.storage.loss_notes import NOTES_MAX, list_lost, note_lost, retry_notes
from node.storage.out_of_service import LOSSES_MAX, Loss
from node.storage.segments import SEGMENT_BYTES, BlobDamaged, BlobMissing, segment_digest
from tests.cluster.faulty_disk import injected
from tests.cluster.immutable import immutable
from tests.packed_blobs import packed_present
from tests.unit.custody_node import FILES, SIZE_BYTES, Keeper


async def found_damaged(keeper: Keeper, name: str) -> None:
    with pytest.raises(BlobDamaged):
        await verify_blob(keeper.disk, keeper.blobs, keeper.metrics, name)


@FILES  # packs: tests/unit/node/storage/test_packed_blobs.py
async def test_damaged_blob_that_cannot_be_moved_is_not_served_and_reported(keeper: Keeper) -> None:
    name, sound = keeper.store(), keeper.store()
    keeper.blobs.open_and_cache(name).close()
    keeper.rot(name)
    with immutable(keeper.path(name)):
        await found_damaged(keeper, name)
        assert keeper.path(name).exists()
        assert keeper.blobs.opened.take(name) is None
        with pytest.raises(BlobMissing):
            keeper.blobs.open(name)
        await keeper.custody.settle_losses()
        assert keeper.held() == [sound]
        assert keeper.audited("replica.lost") == [name]
        assert keeper.blobs.poison.names("damaged") == {name}
        await keeper.compare()
        await keeper.custody.scrubber.do_due(keeper.cycle())
        await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
        assert (keeper.held(), keeper.quarantined()) == ([sound], [])
        assert keeper.audited("replica.lost") == [name]
    await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
    assert (keeper.quarantined(), keeper.on_disk()) == ([name], [sound])
    assert (len(keeper.blobs.out_of_service), len(keeper.blobs.poison)) == (0, 0)


@FILES
async def test_blob_that_could_not_be_opened_for_a_while_is_told_no_longer_than_that(
    keeper: Keeper, tmp_path: Path
) -> None:
    """Nothing of it was known but its name."""
    name = keeper.store()
    with injected(
        os.getpid(), "openat,renameat:error=EIO", tmp_path / "strace.log", keeper.path(name).parent
    ):
        await found_damaged(keeper, name)
        await keeper.custody.settle_losses()
        assert keeper.held() == []
        await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
        assert keeper.blobs.poison.names("damaged") == {name}
    await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
    assert len(keeper.blobs.poison) == 0
    assert (await keeper.compare())["added"] == 1
    assert keeper.held() == [name]


@FILES  # packs: tests/unit/node/storage/test_packed_blobs.py
async def test_blob_that_comes_anew_is_served_though_the_one_before_was_removed(keeper: Keeper) -> None:
    content = keeper.content()
    name = keeper.store(content)
    keeper.rot(name)
    with immutable(keeper.path(name)):
        await found_damaged(keeper, name)
    assert keeper.put(content) == name
    assert await verify_blob(keeper.disk, keeper.blobs, keeper.metrics, name) == len(content)
    await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
    assert (keeper.on_disk(), keeper.quarantined()) == ([name], [])


@FILES  # packs: tests/unit/node/storage/test_packed_blobs.py
async def test_another_process_that_replaces_a_removed_file_has_it_served(keeper: Keeper) -> None:
    content = keeper.content()
    name = keeper.store(content)
    keeper.rot(name)
    with immutable(keeper.path(name)):
        await found_damaged(keeper, name)
    other = Keeper.__new__(Keeper)
    other.blobs = type(keeper.blobs)(keeper.directory)
    assert Keeper.put(other, content) == name
    other.blobs.close()
    keeper.blobs.open(name).close()
    assert len(keeper.blobs.out_of_service) == 0
    await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
    assert keeper.on_disk() == [name]


@pytest.mark.parametrize("fault", ["openat:error=ENOSPC", "write:error=ENOSPC", "openat:error=EROFS"])
async def test_loss_is_reported_though_the_disk_takes_no_note(
    keeper: Keeper, tmp_path: Path, fault: str
) -> None:
    """An empty note once said `damaged` of what was missing, and none at all was a loss nobody heard of."""
    rotten, gone, unknown = keeper.store(), keeper.store(), keeper.put(keeper.content())
    keeper.rot(rotten)
    keeper.lose(gone)
    keeper.lose(unknown)
    lost = keeper.directory / "lost"
    lost.mkdir()
    paths = [lost, *(lost / name for name in (rotten, gone, unknown))]
    with injected(os.getpid(), fault, tmp_path / "strace.log", *paths):
        await found_damaged(keeper, rotten)
        for name in (gone, unknown):
            note_lost(keeper.blobs, Loss(name, "missing"))
    assert os.listdir(lost) == []
    assert keeper.quarantined() == [rotten]
    assert [loss.reason for loss in list_lost(keeper.blobs, 9)] == ["damaged", "missing", "missing"]
    await keeper.custody.settle_losses()
    assert keeper.held() == []
    assert keeper.audited("replica.lost") == [gone, rotten]  # nobody has asked the log about the other
    assert list_lost(keeper.blobs, 9) == []


@FILES  # packs: tests/unit/node/storage/test_packed_blobs.py
async def test_loss_that_nobody_could_report_yet_is_reported_later(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.rot(name)
    with immutable(keeper.path(name)):
        await found_damaged(keeper, name)
        (keeper.directory / "lost" / name).unlink()
        (keeper.directory / "lost").rmdir()
        (keeper.directory / "lost").touch()  # takes no notes either
        note_lost(keeper.blobs, Loss(name, "damaged"))
        keeper.log.lost_reports = 2
        await keeper.custody.settle_losses()
    assert keeper.log.asked.count("ReportLost") == 3
    assert keeper.held() == []
    (keeper.directory / "lost").unlink()


def test_note_that_nobody_can_take_away_hides_no_later_loss(keeper: Keeper) -> None:
    """Another worker does not know that it was reported long ago."""
    name = keeper.store()
    note_lost(keeper.blobs, Loss(name, "damaged"))
    note_lost(keeper.blobs, Loss(name, "damaged"))
    assert keeper.blobs.out_of_service.losses(9) == []
    with immutable(keeper.directory / "lost" / name):
        note_lost(keeper.blobs, Loss(name, "damaged"))
        assert keeper.blobs.out_of_service.losses(9) == [Loss(name, "damaged")]
        retry_notes(keeper.blobs)
        assert keeper.blobs.out_of_service.losses(9) == [Loss(name, "damaged")]


def test_losses_in_memory_are_bounded(keeper: Keeper) -> None:
    (keeper.directory / "lost").touch()
    for number in range(LOSSES_MAX + 2):
        note_lost(keeper.blobs, Loss(f"{number:064x}", "missing"))
    assert len(keeper.blobs.out_of_service.losses(NOTES_MAX + 2)) == LOSSES_MAX
    assert keeper.blobs.poison.names("lost") == {""}


async def test_removal_of_what_lies_there_no_more_removes_nothing(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.rot(name)
    with pytest.raises(BlobDamaged) as caught, keeper.blobs.open(name) as blob:
        blob.verify_range(0, SIZE_BYTES)
    keeper.lose(name)
    await remove_from_service(keeper.disk, keeper.blobs, keeper.metrics, caught.value)
    assert len(keeper.blobs.out_of_service) == 0


async def test_removed_copy_is_a_source_of_what_is_sound_in_it(keeper: Keeper) -> None:
    """As one in quarantine is: it may be the last that has a segment."""
    content = os.urandom(SEGMENT_BYTES + 100)
    name = keeper.put(content)
    sums = [segment_digest(content[:SEGMENT_BYTES]), segment_digest(content[SEGMENT_BYTES:])]
    keeper.path(name).chmod(0o600)
    with keeper.path(name).open("r+b") as file:
        file.write(b"rotten")
    with immutable(keeper.path(name)):
        await found_damaged(keeper, name)
        assert local_sums(keeper.blobs, name) is not None
        assert local_segment(keeper.blobs, name, 0, sums[0]) is None
        assert local_segment(keeper.blobs, name, 1, sums[1]) == content[SEGMENT_BYTES:]


@pytest.mark.parametrize(("layout", "is_moved"), [("files", True), ("files", False), ("packs", True)])
async def test_damaged_copy_stays_a_source_while_the_disk_shows_no_quarantine(
    keeper: Keeper, tmp_path: Path, is_moved: bool
) -> None:
    """Nor is it forgotten after a restart, as long as it lies in its place."""
    name = keeper.store()
    keeper.rot(name)
    query = ListDamagedCopies(node_id="n1", limit=9)
    with ExitStack() as held:
        if not is_moved:
            held.enter_context(immutable(keeper.path(name)))
        await found_damaged(keeper, name)
        await keeper.custody.settle_losses()
        await keeper.custody._copies.report_new()
        assert keeper.state.ask(query) == [name]
        keeper.later_s += 2 * REPORT_AGAIN_S
        quarantine = keeper.directory / "quarantine"
        with injected(os.getpid(), "getdents64:error=EIO", tmp_path / "strace.log", quarantine):
            await keeper.custody._copies.report_new()
        assert keeper.state.ask(query) == [name]
        keeper.restart()
        keeper.later_s += 2 * REPORT_AGAIN_S
        await keeper.custody._copies.report_new()
        assert keeper.state.ask(query) == [name]


@pytest.mark.parametrize("jump_s", [0, 86_400, -86_400])
async def test_what_is_gone_is_reported_right_after_the_loss_though_the_clock_jumps(
    keeper: Keeper, jump_s: int
) -> None:
    """At the first look the log counts the replica as held; then its loss is reported."""
    name = keeper.store(os.urandom(SEGMENT_BYTES + 100))
    for node_id in ("n2", "n3"):
        keeper.state.done(ReportLost(node_id=node_id, sha256s=[name], reason="damaged"))
        keeper.state.done(ReportDamaged(node_id=node_id, sha256=name, spans=[(0, 2)]))
    keeper.rot(name)
    await found_damaged(keeper, name)
    keeper.later_s += jump_s
    await keeper.custody._copies.report_new()
    await keeper.custody.settle_losses()
    await keeper.custody._copies.report_new()
    [gone] = keeper.state.ask(ListDamagedBlobs(gone=True))["blobs"]
    assert (gone["sha256"], gone["gone"]) == (name, [[0, 2]])


async def test_copy_that_could_not_be_read_for_a_moment_is_served_again(
    keeper: Keeper, tmp_path: Path
) -> None:
    """It may not be moved either, and is read once more before it is reported lost."""
    name = keeper.store()
    faults = "pread64,preadv,preadv2,renameat:error=EIO"
    paths = [keeper.path(name), keeper.path(name).parent]
    if keeper.packed:
        paths = [packed_present(keeper.directory, name).pack]
    with injected(os.getpid(), faults, tmp_path / "strace.log", *paths):
        await found_damaged(keeper, name)
        assert len(keeper.blobs.out_of_service) == 1
    await keeper.custody.settle_losses()
    assert keeper.held() == [name]
    assert (len(keeper.blobs.out_of_service), len(keeper.blobs.poison)) == (0, 0)
    keeper.blobs.open(name).close()
