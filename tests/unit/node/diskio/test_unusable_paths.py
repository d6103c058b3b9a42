"""One thing on a disk that cannot be used, in each directory that a node lists or reads: the rest goes on."""

import dataclasses
import errno
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from ca.errors import Unavailable
from metadata.protocol.calls import HeartbeatCall
from node.custody.scrub import Cycle
from node.diskio.durable import Disk
from node.diskio.fs import DiskRefused
from node.diskio.unusable_paths import ITEMS_MAX, UnusablePaths
from node.membership.disk_monitor import POISON_SHOWN, DiskWatch
from node.storage.blob_files import INCOMING, SIDECAR
from node.storage.blobs import BlobStore
from node.storage.partial_store import PartialStore
from node.storage.pins import finished_blobs
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobMissing, FinishedBlob, SegmentHasher
from node.uploads.sweep import sweep
from node.uploads.write_locks import UploadLocks
from tests.cluster.faulty_disk import injected
from tests.cluster.immutable import immutable
from tests.unit import replica_acts as acts
from tests.unit.custody_node import DAY_S, Keeper, Log
from tests.unit.peer_nodes import CONTENT, SHA256, Node
from tests.unit.state import State

UUIDS = tuple(f"0198c3a0-0000-7000-8000-00000000000{digit}" for digit in range(3))


@pytest.fixture
def layout() -> str:
    """What is told here is told of directories and files."""
    return "files"


def broken(name: str) -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO), name)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[BlobStore]:
    store = BlobStore(tmp_path)
    yield store
    store.close()


def test_item_is_logged_once_and_leaves_when_it_can_be_used(caplog: pytest.LogCaptureFixture) -> None:
    items = UnusablePaths()
    with caplog.at_level(logging.INFO, "node.diskio.unusable_paths"):
        for _ in range(3):
            with items.skipping("quarantine", "x"):
                raise broken("x")
        assert items.shown(9) == [f"quarantine/x: {os.strerror(errno.EIO)}"]
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        with items.skipping("quarantine", "x"):
            pass
    assert (len(items), items.shown(9)) == (0, [])
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_name_of_any_bytes_fits_into_a_heartbeat(tmp_path: Path) -> None:
    """One that does not would silence the node."""
    blobs = BlobStore(tmp_path)
    name = os.fsdecode(b"incoming-\xff\n\x1b[31m")
    (tmp_path / "uploads" / name / "finished").mkdir(parents=True)
    finished_blobs(blobs)
    assert blobs.poison.names("uploads") == {f"{name}/finished"}
    heartbeat = HeartbeatCall(0, 0, 0, poison=blobs.poison.shown(9))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(heartbeat), type=HeartbeatCall) == heartbeat
    assert heartbeat.poison[0].startswith("uploads/incoming-???[31m/finished: ")
    blobs.close()


def test_what_no_disk_says_is_raised() -> None:
    items = UnusablePaths()
    for error in (Unavailable("no quorum"), OSError(errno.EMFILE, "files"), TimeoutError(), BlobMissing("x")):
        with pytest.raises(type(error)), items.skipping("blobs", "x"):
            raise error
    assert len(items) == 0
    with items.skipping("blobs", "x"):
        raise DiskRefused("an errno that nobody knows")
    assert len(items) == 1


def test_items_are_bounded_and_those_that_are_gone_leave() -> None:
    items = UnusablePaths()
    for number in range(ITEMS_MAX + 5):
        items.note("uploads", f"{number}/finished", broken(""))
    assert len(items) == len(items.names("uploads")) == ITEMS_MAX
    items.note("uploads", "", broken(""))
    items.keep("uploads", ["3", "4"])
    assert items.names("uploads") == {"3/finished", "4/finished"}
    items.note("blobs", "ab/cd", broken(""))
    items.keep("blobs", ["ab"])
    assert items.names("blobs") == {"ab/cd"}
    items.keep("blobs", ["ce"], below="ab/")
    assert items.names("blobs") == frozenset()


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_directory_of_blobs_that_cannot_be_listed_is_passed_over(
    keeper: Keeper, tmp_path: Path, depth: int
) -> None:
    """A compare and a scrub go to their ends; what lies elsewhere is looked at as always."""
    lost, hidden, *others = sorted(keeper.store() for _ in range(4))
    directory = [keeper.directory / "blobs", *reversed(keeper.path(hidden).parents[:2])][depth]
    for end in ("", SIDECAR):
        keeper.path(lost + end).unlink()
    with injected(os.getpid(), "getdents64:error=EIO", tmp_path / "strace.log", directory):
        counts = await keeper.compare()
        cycle = await keeper.custody.scrubber.do_due(Cycle(began_at_ms=keeper.now_ms(), before_ms=5))
    assert (counts["looked"], counts["missing"]) == (4, 1)
    assert keeper.held() == [hidden, *others]
    assert len(keeper.blobs.poison) == len(keeper.blobs.poison.names("blobs")) == 1
    assert (cycle.is_over, cycle.since_ms) == (True, 5)  # not everything was read
    keeper.blobs.look_again()
    assert len(keeper.blobs.poison) == 0
    cycle = await keeper.custody.scrubber.do_due(cycle.next(keeper.now_ms()))
    assert len(keeper.blobs.poison) == 0
    assert cycle.since_ms == cycle.began_at_ms


@pytest.mark.parametrize("area", ["uploads", "quarantine", "lost"])
async def test_directory_that_cannot_be_listed_ends_no_pass(
    keeper: Keeper, tmp_path: Path, area: str
) -> None:
    doomed, lost, kept = (keeper.store() for _ in range(3))
    rotten = keeper.store()
    keeper.rot(rotten)
    (keeper.directory / "lost").mkdir(exist_ok=True)
    keeper.doom(doomed)
    keeper.age(doomed)
    for end in ("", SIDECAR):
        keeper.path(lost + end).unlink()
    with injected(os.getpid(), "getdents64:error=EIO", tmp_path / "strace.log", keeper.directory / area):
        await keeper.custody.scrubber.do_due(Cycle(began_at_ms=keeper.now_ms()))
        await keeper.compare()
        counts = await keeper.collect()
    assert counts["dropped"] == 1
    assert keeper.held() == [kept]
    assert keeper.on_disk() == [kept]
    assert 0 < len(keeper.blobs.poison) == len(keeper.blobs.poison.names(area))


async def test_replica_that_cannot_be_opened_for_a_strange_reason_is_none_that_is_lost(
    keeper: Keeper, tmp_path: Path
) -> None:
    """A disk that has vanished says so of all of them, and may come back. It is looked for each minute."""
    hidden, gone = keeper.store(), keeper.store()
    for end in ("", SIDECAR):
        keeper.path(gone + end).unlink()
    directory = keeper.path(hidden).parent
    with injected(os.getpid(), "openat:error=ENODEV", tmp_path / "strace.log", directory):
        assert (await keeper.compare())["missing"] == 1
        assert keeper.held() == [hidden]
        keeper.blobs.look_again()
        assert keeper.blobs.poison.names("replicas") == {hidden}
    keeper.blobs.look_again()
    assert keeper.blobs.poison.names("replicas") == frozenset()


async def test_finished_that_cannot_be_read_ends_no_pass(keeper: Keeper) -> None:
    doomed = keeper.store()
    keeper.doom(doomed)
    keeper.age(doomed)
    (keeper.directory / "uploads" / UUIDS[0] / "finished").mkdir(parents=True)
    await keeper.compare()
    assert (await keeper.collect())["dropped"] == 1
    (item,) = keeper.blobs.poison.shown(9)
    assert item.startswith(f"uploads/{UUIDS[0]}/finished: ")
    (keeper.directory / "uploads" / UUIDS[0] / "finished").rmdir()
    (keeper.directory / "uploads" / UUIDS[0]).rmdir()
    assert finished_blobs(keeper.blobs) == frozenset()
    assert len(keeper.blobs.poison) == 0


async def test_loss_note_that_cannot_be_read_counts_as_one(keeper: Keeper) -> None:
    names = sorted(keeper.store() for _ in range(2))
    for name in names:
        keeper.path(name).unlink()
        (keeper.directory / "lost" / name).mkdir(parents=True)
    await keeper.custody.settle_losses()
    assert keeper.held() == []
    assert os.listdir(keeper.directory / "lost") == []


async def test_loss_note_that_cannot_be_taken_away_is_reported_once(keeper: Keeper) -> None:
    name, other = sorted(keeper.store() for _ in range(2))
    keeper.path(name).unlink()
    note = keeper.directory / "lost" / name
    note.parent.mkdir()
    note.write_bytes(b"missing")
    with immutable(note):
        await keeper.custody.settle_losses()
        assert keeper.held() == [other]
        assert keeper.blobs.poison.names("lost") == {name}
        keeper.path(other).unlink()
        (keeper.directory / "lost" / other).write_bytes(b"missing")
        keeper.log.asked.clear()
        await keeper.custody.settle_losses()
        assert keeper.log.asked.count("ReportLost") == 1  # of the other one
        assert keeper.held() == []
    keeper.restart()
    await keeper.custody.settle_losses()
    assert os.listdir(keeper.directory / "lost") == []


async def test_what_does_not_leave_quarantine_lets_the_others_leave(keeper: Keeper) -> None:
    names = [keeper.put(keeper.content()) for _ in range(3)]
    quarantine = Quarantine(keeper.blobs)
    for name in names:
        quarantine.take(name)
    keeper.later_s = 8 * DAY_S
    with immutable(keeper.directory / "quarantine" / names[1]):
        await keeper.compare()
        assert keeper.quarantined() == [names[1]]
        assert keeper.blobs.poison.names("kept") == {names[1]}
    await keeper.compare()
    assert (keeper.quarantined(), len(keeper.blobs.poison)) == ([], 0)


async def test_replica_that_does_not_go_lets_the_others_go(keeper: Keeper) -> None:
    names = sorted(keeper.store() for _ in range(3))
    keeper.doom(*names)
    keeper.age(*names)
    with immutable(keeper.path(names[1])):
        counts = await keeper.collect()
        assert (counts["dropped"], counts["left"]) == (2, 1)
        assert keeper.on_disk() == [names[1]]
        keeper.blobs.look_again()  # says nothing of it
        assert keeper.blobs.poison.names("drops") == {names[1]}
    assert (await keeper.collect())["dropped"] == 1
    assert len(keeper.blobs.poison) == 0


@pytest.mark.parametrize("way", ["spared", "forgotten"])
async def test_replica_that_shall_not_go_any_more_is_passed_over_no_more(keeper: Keeper, way: str) -> None:
    name = keeper.store()
    keeper.doom(name)
    keeper.age(name)
    with immutable(keeper.path(name)):
        await keeper.collect()
        assert keeper.blobs.poison.names("drops") == {name}
    if way == "spared":
        assert keeper.blobs.affirm(name)
    else:
        acts.lost(keeper.state, "n1", name)
    await keeper.collect()
    assert len(keeper.blobs.poison) == 0


async def test_stray_blob_that_does_not_go_lets_the_others_go(keeper: Keeper) -> None:
    names = sorted(keeper.put(keeper.content()) for _ in range(3))
    keeper.age(*names)
    with immutable(keeper.path(names[1])):
        assert (await keeper.compare())["quarantined"] == 2
        assert keeper.on_disk() == [names[1]]
    assert (await keeper.compare())["quarantined"] == 1


async def test_content_that_the_disk_refuses_for_a_strange_reason_is_passed_over_by_a_scrub(
    keeper: Keeper, tmp_path: Path
) -> None:
    """Before it was tried again and again, and nothing behind it was read."""
    name, rotten = sorted(keeper.store() for _ in range(2))
    keeper.rot(rotten)
    with injected(os.getpid(), "preadv,preadv2:error=EPERM", tmp_path / "strace.log", keeper.path(name)):
        cycle = await keeper.custody.scrubber.do_due(Cycle(began_at_ms=keeper.now_ms(), before_ms=5))
        assert (cycle.is_over, cycle.since_ms) == (True, 5)
        assert (keeper.held(), keeper.quarantined()) == ([name], [rotten])
        assert keeper.blobs.poison.names("reads") == {name}
    await keeper.compare()
    assert len(keeper.blobs.poison) == 0


async def test_state_of_the_scrub_that_cannot_be_read_or_written_ends_nothing(keeper: Keeper) -> None:
    rotten, state = keeper.store(), keeper.directory / "scrub.json"
    keeper.rot(rotten)
    state.mkdir()
    cycle = await keeper.disk.run(keeper.custody.scrubber._load)
    assert (cycle.is_over, cycle.since_ms) == (False, 0)
    cycle = await keeper.custody.scrubber.do_due(cycle)
    assert cycle.is_over
    assert keeper.held() == []
    assert keeper.blobs.poison.names("state") == {"scrub.json"}


def test_leftover_that_cannot_be_removed_does_not_keep_a_node_from_starting(tmp_path: Path) -> None:
    uploads = tmp_path / "uploads"
    deep = uploads / f"{INCOMING}b" / "c" / "d"
    deep.mkdir(parents=True)
    (uploads / f"{INCOMING}a").touch()
    (uploads / f"{INCOMING}z").touch()
    with ExitStack() as opened:
        with immutable(uploads / f"{INCOMING}a"):
            blobs = BlobStore(tmp_path)
            opened.callback(blobs.close)
            assert os.listdir(uploads) == [f"{INCOMING}a"]
            assert blobs.poison.names("uploads") == {f"{INCOMING}a"}
            blobs.leftovers.retry()
        blobs.leftovers.retry()
        assert os.listdir(uploads) == []
        assert len(blobs.poison) == 0


def test_uploads_that_cannot_be_listed_do_not_keep_a_node_from_starting(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    with injected(os.getpid(), "getdents64:error=EIO", tmp_path / "strace.log", tmp_path / "uploads"):
        blobs = BlobStore(tmp_path)
    assert blobs.poison.names("uploads") == {""}
    blobs.close()


async def test_upload_that_cannot_be_renamed_lets_the_others_be_swept(
    nodes: list[Node], tmp_path: Path
) -> None:
    node = nodes[0]
    state = State(tmp_path / "state")
    metadata = Log(state)
    services = dataclasses.replace(
        node.services, api=dataclasses.replace(node.services.api, metadata=metadata)
    )
    uploads = node.directory / "uploads"
    for file_uuid in UUIDS:
        (uploads / file_uuid).mkdir()
        (uploads / file_uuid / "data").touch()
    with immutable(uploads / UUIDS[1]):
        assert await sweep(services) == 2
        assert sorted(os.listdir(uploads)) == [UUIDS[1]]
        assert services.blobs.poison.names("uploads") == {UUIDS[1]}
    assert await sweep(services) == 1
    assert (os.listdir(uploads), len(services.blobs.poison)) == ([], 0)
    state.store.close()


def test_partial_that_cannot_be_removed_lets_the_others_go_and_takes_no_place(
    blobs: BlobStore, tmp_path: Path
) -> None:
    store = PartialStore(blobs, partials_max=2)
    stuck, old = tmp_path / "partials" / ("a" * 64), tmp_path / "partials" / ("b" * 64)
    for directory in (stuck, old):
        directory.mkdir()
        (directory / "state").touch()
    hashers = [SegmentHasher() for _ in range(3)]
    with immutable(stuck):
        assert store.clean(0) == 1
        assert os.listdir(tmp_path / "partials") == [stuck.name]
        assert blobs.poison.names("partials") == {stuck.name}
        held = []
        for number, hasher in enumerate(hashers[:2]):
            hasher.update(bytes([number]))
            held.append(store.open(FinishedBlob(hasher.sha256(), 1), hasher.sums()))
        for partial in held:
            partial.close()
    assert store.clean(0) == 3
    assert (os.listdir(tmp_path / "partials"), len(blobs.poison)) == ([], 0)


def test_directory_in_a_partial_is_no_obstacle(blobs: BlobStore, tmp_path: Path) -> None:
    store, hasher = PartialStore(blobs), SegmentHasher()
    hasher.update(b"x")
    blob = FinishedBlob(hasher.sha256(), 1)
    (tmp_path / "partials" / blob.sha256 / "state" / "x").mkdir(parents=True)
    store.open(blob, hasher.sums()).close()


async def test_disk_that_refuses_copies_is_told_until_one_goes_through(nodes: list[Node]) -> None:
    nodes[1].store()
    services, blob = nodes[0].services, FinishedBlob(SHA256, len(CONTENT))
    with immutable(nodes[0].directory / "partials"):
        with pytest.raises(DiskRefused):
            await services.pulls.pull(blob, ["n2"])
        (told,) = services.blobs.poison.shown(9)
        assert told.startswith("work/pull: The disk failed: ")
    assert (await services.pulls.pull(blob, ["n2"])).is_here
    assert len(services.blobs.poison) == 0


async def test_directories_that_were_removed_are_made_again(keeper: Keeper) -> None:
    store, watch = PartialStore(keeper.blobs), DiskWatch(keeper.disk, keeper.blobs, UploadLocks())
    for area in ("partials", "quarantine", "uploads", "blobs"):
        (keeper.directory / area).rmdir()
    await watch.check()
    hasher = SegmentHasher()
    hasher.update(b"x")
    store.open(FinishedBlob(hasher.sha256(), 1), hasher.sums()).close()
    name = keeper.put(b"y")
    assert Quarantine(keeper.blobs).take(name)
    assert keeper.quarantined() == [name]
    assert os.listdir(keeper.directory / "partials") == [hasher.sha256()]
    assert os.listdir(keeper.directory / "uploads") == []


async def test_heartbeat_tells_what_is_passed_over(keeper: Keeper) -> None:
    watch = DiskWatch(keeper.disk, keeper.blobs, UploadLocks())
    watch.poison_elsewhere = lambda: 2
    await watch.check()
    assert (watch.heartbeat().poison, watch.heartbeat().poison_count) == ([], 2)
    for number in range(POISON_SHOWN + 1):
        keeper.blobs.poison.note("uploads", str(number), broken(""))
    told = watch.heartbeat()
    assert (len(told.poison), told.poison_count) == (POISON_SHOWN, POISON_SHOWN + 3)


@pytest.mark.parametrize(
    ("number", "is_failing"), [(errno.EROFS, True), (errno.EIO, True), (errno.ENOSPC, False)]
)
async def test_full_disk_fails_not(tmp_path: Path, number: int, is_failing: bool) -> None:
    """What lies on it is as good as before."""
    refusing = [False]

    def fsync(descriptor: int) -> None:
        if refusing[0]:
            raise OSError(number, os.strerror(number))
        os.fsync(descriptor)

    keeper = Keeper(tmp_path)
    blobs = BlobStore(tmp_path / "other", disk=Disk(fsync=fsync))
    try:
        watch = DiskWatch(keeper.disk, blobs, UploadLocks())
        await watch.check()
        assert (watch.heartbeat().takes_bytes, watch.heartbeat().disk_fails) == (True, False)
        watch._writable_at_s, refusing[0] = float("-inf"), True
        await watch.check()
        assert (watch.heartbeat().takes_bytes, watch.heartbeat().disk_fails) == (False, is_failing)
    finally:
        blobs.close()
        keeper.close()


async def test_sidecar_that_a_crash_between_two_renames_left_alone_goes(keeper: Keeper) -> None:
    """On the way in as on the way to quarantine. Until then it says of nothing that it is here."""
    kept, content = keeper.store(), keeper.content()
    lone = keeper.put(content)
    keeper.path(lone).unlink()
    assert keeper.blobs.affirm(lone) is False
    assert keeper.blobs.affirm(kept) is True
    await keeper.compare()
    assert not keeper.path(lone + SIDECAR).exists()
    assert keeper.path(kept + SIDECAR).exists()
    assert keeper.put(content) == lone
    keeper.blobs.open(lone).close()


async def test_note_of_an_orphan_that_does_not_go_is_settled_once(keeper: Keeper) -> None:
    """It once had the log told of the blob each half minute, for ever, and many of them hid all others."""
    names = sorted(keeper.put(keeper.content()) for _ in range(2))
    keeper.age(*names)
    unclaimed = keeper.directory / "unclaimed"
    for name in names:
        os.utime(unclaimed / name, (0, 0))
    with immutable(unclaimed / names[0]):
        assert await keeper.custody.orphans.delete_orphans() == 2
        assert keeper.on_disk() == []
        log_index = keeper.state.log_index
        assert await keeper.custody.orphans.delete_orphans() == 0
        assert keeper.state.log_index == log_index
        assert keeper.blobs.poison.names("unclaimed") == {names[0]}
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert (os.listdir(unclaimed), len(keeper.blobs.poison)) == ([], 0)


async def test_unclaimed_notes_that_cannot_be_listed_are_told(keeper: Keeper, tmp_path: Path) -> None:
    unclaimed = keeper.directory / "unclaimed"
    with injected(os.getpid(), "getdents64:error=EIO", tmp_path / "strace.log", unclaimed):
        assert await keeper.custody.orphans.delete_orphans() == 0
        assert keeper.blobs.poison.names("unclaimed") == {""}
    await keeper.custody.orphans.delete_orphans()
    assert len(keeper.blobs.poison) == 0


def test_stale_leftover_that_does_not_go_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = BlobStore(tmp_path)
    stale = tmp_path / "uploads" / f"{INCOMING}a"
    stale.touch()
    with immutable(stale), caplog.at_level(logging.INFO, "node.diskio.unusable_paths"):
        for _ in range(3):
            blobs.leftovers.retry()
            blobs.leftovers.find_stale(INCOMING, 0.0, at_s=50.0)
        assert len(caplog.records) == 1
    blobs.leftovers.retry()
    assert (os.listdir(tmp_path / "uploads"), len(blobs.poison)) == ([], 0)
    blobs.close()
