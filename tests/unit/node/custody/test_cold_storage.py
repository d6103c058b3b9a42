"""A node gives its replicas the form that the log wants, with the real state machine in place of the log."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metadata.model import safety_limits
from metadata.model.records import DEFAULT_BUCKET_ID
from metadata.model.rules import RULES
from metadata.protocol.commands import UpdateBucket
from metadata.protocol.commands.files import CreateFile
from node.custody import cold_storage
from node.custody.context import Pass
from tests.unit import replica_acts as acts
from tests.unit.cold_store import is_cold, read, version
from tests.unit.custody_node import NODES, Keeper, until_stopped
from tests.unit.state import ADMIN, complete, create, create_backup, create_bucket, create_vm

DAY_S = 86_400


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    with closing(Keeper(tmp_path)) as opened:
        opened.state.apply(create_bucket(ADMIN, "lab"))
        opened.log.rules_in_force = RULES
        yield opened


def store(keeper: Keeper, number: int, command: CreateFile, content: bytes | None = None) -> str:
    """A file of some kind; the name of its blob."""
    content = version(number) if content is None else content
    name = keeper.put(content)
    keeper.state.done(command)
    done = complete(ADMIN, command.file_uuid, name, list(NODES), size_bytes=len(content))
    keeper.state.apply(msgspec.structs.replace(done, as_of=keeper.state.log_index))
    return name


def set_storage(keeper: Keeper, storage: Any, bucket_id: str = "lab") -> None:
    command = UpdateBucket(caller=ADMIN, bucket_id=bucket_id, name=None, quota_bytes=None, storage=storage)
    assert keeper.state.done(command)["storage" if storage != "auto" else "bucket_id"]


async def freeze(keeper: Keeper, later_s: float = 0.0) -> dict[str, int]:
    keeper.later_s = later_s + keeper.state.at_ms / 1000 - time.time()
    run = Pass()
    await keeper.custody.cold.freeze(run)
    return run.counts


async def test_kinds_turn_cold_after_their_time(keeper: Keeper) -> None:
    project = store(keeper, 0, create(ADMIN, "project"))
    backup = store(keeper, 1, create_backup(ADMIN, "backup"))
    image = store(keeper, 2, create_vm(ADMIN, "image"))
    assert (await freeze(keeper, 0.9 * DAY_S))["done"] == 0
    counts = await freeze(keeper, 1.1 * DAY_S)
    assert (counts["done"], counts["looked"], counts["failed"]) == (2, 3, 0)
    assert counts["stored_bytes"] < counts["bytes"]
    assert [is_cold(keeper.blobs, name) for name in (project, backup, image)] == [True, True, False]
    assert (await freeze(keeper, 13.9 * DAY_S))["done"] == 0
    keeper.blobs.reads._clock_s = lambda: keeper.state.at_ms / 1000 + 13 * DAY_S
    keeper.blobs.reads.note(image)
    assert (await freeze(keeper, 15 * DAY_S))["done"] == 0
    assert (await freeze(keeper, 28 * DAY_S))["done"] == 1
    assert is_cold(keeper.blobs, image)


async def test_bucket_says_what_is_cold_and_what_is_hot(keeper: Keeper) -> None:
    name = store(keeper, 0, create_vm(ADMIN, "image", bucket_id="lab"))
    assert (await freeze(keeper))["done"] == 0
    set_storage(keeper, "cold")
    assert (await freeze(keeper))["done"] == 1
    assert is_cold(keeper.blobs, name)
    set_storage(keeper, "hot")
    assert (await freeze(keeper))["thawed"] == 1
    assert not keeper.blobs.cold.has_name(name)
    assert read(keeper.blobs, name) == version(0)
    set_storage(keeper, "auto")
    assert (await freeze(keeper, 13 * DAY_S))["done"] == 0


async def test_content_of_several_files_is_hot_if_one_wants_that(keeper: Keeper) -> None:
    set_storage(keeper, "cold")
    store(keeper, 0, create(ADMIN, "one", bucket_id="lab"))
    store(keeper, 0, create(ADMIN, "two"))
    assert (await freeze(keeper))["done"] == 0
    set_storage(keeper, "hot", DEFAULT_BUCKET_ID)
    assert (await freeze(keeper, 2 * DAY_S))["done"] == 0
    set_storage(keeper, "auto", DEFAULT_BUCKET_ID)
    assert (await freeze(keeper, 2 * DAY_S))["done"] == 1


async def test_replica_that_is_read_often_becomes_hot_again(keeper: Keeper) -> None:
    name = store(keeper, 0, create(ADMIN, "project"))
    await freeze(keeper, 2 * DAY_S)
    for hour in range(cold_storage.OFTEN_HOURS):
        at_s = keeper.state.at_ms / 1000 + 2 * DAY_S + 3600 * hour
        keeper.blobs.reads._clock_s = lambda at_s=at_s: at_s  # type: ignore[misc]
        keeper.blobs.opened.take(name)
        keeper.blobs.reads.flush(at_once=True)
        counts = await freeze(keeper, 2 * DAY_S + 3600 * hour)
        assert counts["thawed"] == (hour == cold_storage.OFTEN_HOURS - 1)
    assert not is_cold(keeper.blobs, name)
    assert (await freeze(keeper, 3 * DAY_S))["done"] == 0
    assert (await freeze(keeper, 10 * DAY_S))["done"] == 1


async def test_thaw_makes_all_hot_and_says_that_an_older_release_may_start(keeper: Keeper) -> None:
    marks: list[bool] = []
    keeper.custody.cold._marks = marks.append
    names = [store(keeper, number, create(ADMIN, f"file{number}")) for number in range(3)]
    await freeze(keeper, 2 * DAY_S)
    assert marks == [True] * 3
    counts = await until_stopped(keeper, "1", "thaw")
    assert (counts["looked"], counts["done"], counts["failed"]) == (3, 3, 0)
    assert marks[-1] is False
    assert not any(keeper.blobs.cold.has_name(name) for name in names)
    await keeper.custody.cold.do_due()
    assert keeper.blobs.cold.chunks.totals() == (0, 0)
    assert [read(keeper.blobs, name) for name in names] == [version(number) for number in range(3)]


async def test_older_release_may_not_start_while_a_replica_stays_cold(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not see that replica, and report it as lost."""
    marks: list[bool] = []
    keeper.custody.cold._marks = marks.append
    name = store(keeper, 0, create(ADMIN, "project"))
    await freeze(keeper, 2 * DAY_S)
    with monkeypatch.context() as full:
        full.setattr(keeper.blobs, "room_bytes", lambda: 1_000)
        run = Pass()
        await keeper.custody.cold.thaw(run)
    assert (run.counts["done"], run.counts["failed"]) == (0, 1)
    assert (marks, is_cold(keeper.blobs, name)) == ([True], True)
    run = Pass()
    await keeper.custody.cold.thaw(run)
    assert (run.counts["done"], marks) == (1, [True, False])


async def test_custody_counts_a_cold_replica_as_one(keeper: Keeper) -> None:
    name = store(keeper, 0, create(ADMIN, "project"))
    await freeze(keeper, 2 * DAY_S)
    counts = await keeper.compare()
    assert (counts["missing"], counts["unknown"], counts["quarantined"]) == (0, 0, 0)
    assert keeper.held() == [name]
    scrubbed = await until_scrubbed(keeper)
    assert (scrubbed["looked"], scrubbed["damaged"]) == (1, 0)
    acts.delete(keeper.state, "project")
    acts.collect(keeper.state)
    keeper.later_s = 0.0
    keeper.blobs.cold.manifests.touch(name, 10**18)  # it came long ago
    assert (await keeper.collect(yes_really=True))["dropped"] == 1
    assert keeper.on_disk() == []


async def until_scrubbed(keeper: Keeper) -> dict[str, int]:
    orders = keeper.custody.scrubber.orders
    orders.give("1", yes_really=False)
    await keeper.custody.scrubber.do_due(keeper.cycle())
    report = orders.give("1", yes_really=False)
    assert report.state == "completed", report.reason
    return report.counts


async def test_uploads_that_became_the_blob_keep_its_file(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = store(keeper, 0, create(ADMIN, "project"))
    monkeypatch.setattr(cold_storage, "finished_blobs", lambda _blobs: frozenset({name}))
    assert (await freeze(keeper, 2 * DAY_S))["done"] == 0


async def test_replica_stays_a_file_on_a_full_disk(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    name = store(keeper, 0, create(ADMIN, "project"))
    monkeypatch.setattr(keeper.blobs, "room_bytes", lambda: 1_000_000)
    counts = await freeze(keeper, 2 * DAY_S)
    assert (counts["done"], counts["failed"]) == (0, 1)
    assert keeper.blobs.has_file(name)
    assert keeper.blobs.poison.names(cold_storage.FREEZES) == frozenset()


async def test_chunks_that_an_earlier_process_has_left_stay_for_a_while(keeper: Keeper) -> None:
    keeper.blobs.cold.chunks.put([(b"i" * 32, b"left by a fetch that was killed")])
    await keeper.custody.cold.do_due()
    assert keeper.blobs.cold.chunks.totals()[0] == 1
    keeper.custody.cold._first_at_s = 0.0  # that time is over
    await keeper.custody.cold.do_due()
    assert keeper.blobs.cold.chunks.totals()[0] == 0


async def test_chunk_of_many_replicas_that_is_rotten_does_not_stop_the_scrub(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sector of a disk, and most replicas of the node have it."""
    monkeypatch.setattr(safety_limits, "SAFETY_BLOBS_MAX", 1)
    beginning = version(0, size_bytes=400_000)
    names = [
        store(keeper, 0, create(ADMIN, f"file{number}"), beginning + number.to_bytes(2, "big") * 100_000)
        for number in range(6)
    ]
    await freeze(keeper, 2 * DAY_S)
    with keeper.blobs.cold.open(names[0]) as blob:
        shared = next(iter(blob.manifest.ids()))
    rows = [row for row in keeper.blobs.cold.chunks.rows(bytes(32), b"\xff" * 33) if row.sha256 == shared]
    keeper.blobs.cold.chunks.remove(rows)
    counts = await until_scrubbed(keeper)
    assert (counts["looked"], counts["damaged"], counts["with_damaged_chunks"]) == (6, 0, 6)
    assert keeper.blobs.cold.damaged_chunks(10) == [shared]
    assert keeper.on_disk() == sorted(names)


async def test_bytes_of_a_cold_blob_that_was_purged_leave_the_disk_at_once(keeper: Keeper) -> None:
    kept = store(keeper, 0, create(ADMIN, "kept"))
    secret = version(0, of=1)
    purged = store(keeper, 0, create(ADMIN, "purged"), secret)
    await freeze(keeper, 2 * DAY_S)
    await keeper.custody.cold.do_due()  # a collection: the next one comes ten minutes later by itself

    def is_on_disk() -> bool:
        packs = (keeper.directory / "chunks").glob("*.pack")
        return any(secret[-65_536:] in path.read_bytes() for path in packs)

    assert is_on_disk()
    keeper.blobs.note_purged(purged)
    keeper.blobs.delete(purged)
    await keeper.custody.cold.do_due()
    await keeper.custody.cold._packing.rewrite_due()  # which is looked at every 30 s
    assert (is_on_disk(), keeper.on_disk()) == (False, [kept])
    assert not keeper.blobs.cold.chunks.awaits_purge()
    assert read(keeper.blobs, kept) == version(0)
