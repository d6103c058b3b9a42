"""Blobs that came to a node and that no file has claimed: they go, and nothing that somebody counts on."""

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metadata.protocol.calls import HeartbeatReply
from metadata.protocol.commands import ReportOrphans
from node.custody.orphans import ORPHANS_MAX
from node.staging.upload_store import UploadStore
from runtime.clock import now_ms
from tests.unit import replica_acts as acts
from tests.unit.custody_node import DAY_S, FILES, Keeper
from tests.unit.node.custody.test_custody import PIN_OVER_S, UUID, WEEK_S


def notes(keeper: Keeper) -> list[str]:
    return sorted(note.sha256 for note in keeper.blobs.unclaimed.some(1000))


async def test_blob_that_nobody_claims_is_deleted_when_its_time_is_over(keeper: Keeper) -> None:
    name = keeper.put(keeper.content())
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert (keeper.on_disk(), notes(keeper)) == ([name], [name])
    keeper.restart()  # the note outlives the process
    keeper.later_s = PIN_OVER_S
    assert await keeper.custody.orphans.delete_orphans() == 1
    assert (keeper.on_disk(), keeper.quarantined(), notes(keeper)) == ([], [], [])
    assert list((keeper.directory / "blobs").rglob(f"{name}*")) == []
    assert keeper.audited("blob.orphan") == [name]


async def test_what_was_removed_and_is_back_with_a_new_index_of_the_packs_goes_again(tmp_path: Path) -> None:
    with closing(Keeper(tmp_path, packed=True)) as keeper:
        kept, gone = keeper.store(), keeper.put(keeper.content())  # the log has forgotten it
        keeper.blobs.delete(gone)
        keeper.blobs.unclaimed.forget_all(gone)
        keeper.end()
        for file in (keeper.directory / "packs").glob("index.sqlite*"):
            file.unlink()
        keeper.start()
        assert keeper.on_disk() == sorted([kept, gone])
        assert await keeper.custody.orphans.delete_orphans() == 0
        keeper.later_s = PIN_OVER_S
        assert await keeper.custody.orphans.delete_orphans() == 1
        assert (keeper.on_disk(), keeper.quarantined(), notes(keeper)) == ([kept], [], [])


async def test_blob_that_the_log_names_the_node_for_needs_no_note(keeper: Keeper) -> None:
    name = keeper.store()
    assert notes(keeper) == [name]
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert (keeper.on_disk(), notes(keeper)) == ([name], [])


async def test_blob_of_a_file_that_names_other_nodes_is_left_to_the_comparison(keeper: Keeper) -> None:
    name = keeper.store(nodes=("n2", "n3"))
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert notes(keeper) == [name]  # somebody may be about to name this node
    keeper.later_s = PIN_OVER_S
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert (keeper.on_disk(), notes(keeper)) == ([name], [])


async def test_content_of_an_upload_stays_until_the_upload_has_left(keeper: Keeper) -> None:
    content = keeper.content()
    uploads = UploadStore(keeper.blobs)
    with uploads.open(UUID, len(content)) as upload:
        upload.append(content)
        name = upload.finish().sha256
    keeper.later_s = PIN_OVER_S
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert (keeper.on_disk(), notes(keeper)) == ([name], [name])
    uploads.discard(UUID)
    uploads.close()
    assert await keeper.custody.orphans.delete_orphans() == 1
    assert (keeper.on_disk(), notes(keeper)) == ([], [])


@pytest.mark.parametrize("how", ["affirmed", "came again"])
async def test_blob_that_somebody_is_told_of_meanwhile_stays(keeper: Keeper, how: str) -> None:
    content = keeper.content()
    name = keeper.put(content)
    keeper.later_s = PIN_OVER_S
    keeper.log.when_told = lambda: keeper.blobs.affirm(name) if how == "affirmed" else keeper.put(content)
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert keeper.on_disk() == [name]
    keeper.log.when_told = lambda: None
    acts.put(keeper.state, "file", name, *acts_nodes(), as_of=keeper.state.log_index)
    await keeper.custody.orphans.delete_orphans()
    assert (keeper.on_disk(), notes(keeper)) == ([name], [])


def acts_nodes() -> tuple[str, str]:
    return "n1", "n2"


async def test_blob_that_a_completion_claims_just_before_stays(keeper: Keeper) -> None:
    name = keeper.put(keeper.content())
    keeper.later_s = PIN_OVER_S
    known = await keeper.context.states_in_log([name])
    assert known == {}
    acts.put(keeper.state, "file", name, "n1", "n2", as_of=keeper.state.log_index)
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert keeper.on_disk() == [name]


async def test_blob_that_is_claimed_before_the_log_hears_that_it_goes_stays(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, propose = keeper.put(keeper.content()), keeper.log.propose
    keeper.later_s = PIN_OVER_S

    async def claimed_first(command: Any, reply_type: Any, **options: Any) -> Any:
        if isinstance(command, ReportOrphans):
            acts.put(keeper.state, "file", name, *acts_nodes(), as_of=keeper.state.log_index)
        return await propose(command, reply_type, **options)

    monkeypatch.setattr(keeper.log, "propose", claimed_first)
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert (keeper.on_disk(), keeper.held()) == ([name], [name])


async def test_only_so_many_go_at_once(keeper: Keeper) -> None:
    names = [keeper.put(keeper.content()) for _ in range(ORPHANS_MAX + 1)]
    keeper.later_s = PIN_OVER_S
    assert await keeper.custody.orphans.delete_orphans() == ORPHANS_MAX
    assert len(keeper.on_disk()) == 1
    assert await keeper.custody.orphans.delete_orphans() == 1
    assert len(names) == ORPHANS_MAX + 1


async def test_note_of_a_blob_that_came_once_more_stays(keeper: Keeper) -> None:
    content = keeper.content()
    name = keeper.put(content)
    (note,) = keeper.blobs.unclaimed.some(1000)
    keeper.put(content)
    keeper.blobs.unclaimed.forget(note)
    assert notes(keeper) == [name]


@FILES
async def test_what_is_no_note_is_left_alone(keeper: Keeper) -> None:
    stranger = keeper.directory / "unclaimed" / "readme"
    stranger.write_text("")
    (keeper.directory / "unclaimed" / ("a" * 64)).mkdir()
    name = keeper.put(keeper.content())
    keeper.later_s = PIN_OVER_S
    assert await keeper.custody.orphans.delete_orphans() == 1
    assert (keeper.on_disk(), stranger.exists(), name in notes(keeper)) == ([], True, False)


def test_half_written_things_go_when_nobody_has_written_to_them_for_long(keeper: Keeper) -> None:
    name, descriptor = keeper.blobs.create_incoming()
    os.close(descriptor)
    directory = keeper.directory / "uploads" / "incoming-of-an-upload"
    directory.mkdir()
    (directory / "data").write_bytes(b"x")
    find_stale = keeper.blobs.leftovers.find_stale
    find_stale("incoming-", 3600, at_s=50.0)
    assert sorted(path.name for path in directory.parent.iterdir()) == sorted([name, directory.name])
    find_stale("incoming-", 3600, at_s=3700.0)
    assert list(directory.parent.iterdir()) == []


def test_half_written_file_that_grows_stays_whatever_the_clock_of_the_machine_shows(keeper: Keeper) -> None:
    name, descriptor = keeper.blobs.create_incoming()
    path = keeper.directory / "uploads" / name
    for changed_at_s, at_s in ((0.0, 50.0), (8e9, 3700.0), (100.0, 7350.0)):  # by a clock that is set
        os.utime(path, (changed_at_s, changed_at_s))
        keeper.blobs.leftovers.find_stale("incoming-", 3600, at_s=at_s)
        assert path.exists()
    os.close(descriptor)
    keeper.blobs.leftovers.find_stale("incoming-", 3600, at_s=7350.0 + 3600)
    assert not path.exists()


@pytest.fixture
def told(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> Keeper:
    """One that the leader told its time: of the other clocks it knows nothing."""
    answer = HeartbeatReply(view_version=1, leader="c1", at_ms=now_ms(), kept_ms=now_ms())
    monkeypatch.setattr(keeper.context.view, "_leader_answer", (answer, time.monotonic()))
    return keeper


async def test_clock_that_jumps_ahead_removes_nothing_from_quarantine_for_good(told: Keeper) -> None:
    old = told.put(told.content())
    told.age(old, by_s=DAY_S + 60)
    await told.compare()
    told.later_s = 2 * WEEK_S
    assert (await told.compare())["purged"] == 0
    assert told.quarantined() == [old]


@pytest.mark.parametrize("jump_s", [3 * DAY_S, -3 * DAY_S])
async def test_clock_that_jumps_makes_no_content_old(told: Keeper, jump_s: int) -> None:
    name = told.put(told.content())
    told.later_s = jump_s
    assert await told.custody.orphans.delete_orphans() == 0
    assert (await told.compare())["quarantined"] == 0
    assert (told.on_disk(), notes(told)) == ([name], [name])


async def test_content_that_an_upload_becomes_meanwhile_stays(keeper: Keeper) -> None:
    content = keeper.content()
    name = keeper.put(content)
    keeper.later_s = PIN_OVER_S
    uploads = UploadStore(keeper.blobs)

    def finish() -> None:
        with uploads.open(UUID, len(content)) as upload:
            upload.append(content)
            upload.finish()

    keeper.log.when_told = finish
    assert await keeper.custody.orphans.delete_orphans() == 0
    assert (keeper.on_disk(), notes(keeper)) == ([name], [name])
    uploads.close()
