"""What kept snapshots hold, and when that ends."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine import snapshots
from metadata.model.snapshot_records import HeldContent
from metadata.protocol import commands, queries
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    Refusal,
    State,
    complete,
    coordinator,
    create,
    membership,
)

DAY_MS = 24 * HOUR_MS
NODES = ["n1", "n2", "n3"]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    with closing(made.store):
        made.nodes(*NODES)
        yield made


def store(state: State, file_uuid: str, sha256: str) -> None:
    state.done(create(ADMIN, file_uuid))
    state.done(complete(ADMIN, file_uuid, sha256, NODES))


def delete(state: State, file_uuid: str, *, trash_ms: int = 0, for_good: bool = False) -> None:
    command = commands.DeleteFile(
        caller=ADMIN, file_uuid=file_uuid, kind="", trash_ms=trash_ms, for_good=for_good
    )
    state.done(command)


def snapshot(state: State, *, days: int = 7, snapshot_id: str = "") -> str:
    sequence = begin(state, days=days)
    return keep(state, sequence, snapshot_id=snapshot_id)


def begin(state: State, *, days: int = 7) -> int:
    sequence = state.done(commands.StartSnapshot(coordinator_id="c1", hold_ms=days * DAY_MS))
    assert isinstance(sequence, int)
    return sequence


def keep(state: State, sequence: int, *, snapshot_id: str = "") -> str:
    name = snapshot_id or f"s{sequence}"
    command = commands.KeepSnapshot(sequence=sequence, snapshot_id=name, log_index=state.log_index, files=1)
    state.done(command)
    return name


def end_holds(state: State, *, evict: bool = False) -> Any:
    ended = state.done(commands.EndHolds(evict=evict))
    assert not ended["more"]
    assert not state.store.read_with(lambda db: snapshots.is_due(db, state.at_ms))
    return ended


def held(state: State) -> HeldContent:
    return state.store.read_with(lambda db: snapshots.held(db, state.at_ms))


def collected(state: State, *, grace_ms: int = 0) -> int:
    return int(state.done(commands.Collect(rows_max=100, grace_ms=grace_ms))["blobs"])


def test_content_of_a_kept_snapshot_stays_for_its_time_and_goes_then(state: State) -> None:
    store(state, "f1", "aa")
    snapshot(state)
    delete(state, "f1")
    assert held(state) == HeldContent(snapshots=1, blobs=1, bytes=5)
    assert collected(state) == 0
    state.at_ms += 7 * DAY_MS - 1
    assert not state.store.read_with(lambda db: snapshots.is_due(db, state.at_ms))
    end_holds(state)
    assert collected(state) == 0
    state.at_ms += 1
    assert state.store.read_with(lambda db: snapshots.is_due(db, state.at_ms))
    assert end_holds(state)["blobs"] == 1
    assert held(state) == HeldContent()
    assert collected(state) == 1


def test_content_that_was_created_after_the_snapshot_is_not_held(state: State) -> None:
    snapshot(state)
    store(state, "f1", "aa")
    delete(state, "f1")
    assert held(state).blobs == 0
    assert collected(state) == 1


def test_content_that_is_deleted_while_a_snapshot_is_made_is_held(state: State) -> None:
    sequence = begin(state)
    store(state, "f1", "aa")
    delete(state, "f1")
    keep(state, sequence)
    assert held(state).blobs == 1
    assert collected(state) == 0


def test_failed_snapshot_holds_only_what_was_there_when_it_began(state: State) -> None:
    store(state, "old", "aa")
    sequence = begin(state)
    state.done(commands.KeepSnapshot(sequence=sequence, snapshot_id="", log_index=0))
    store(state, "new", "bb")
    for file_uuid in ("old", "new"):
        delete(state, file_uuid)
    assert held(state).bytes == 5
    assert state.ask(queries.ListSnapshots(caller=ADMIN))["snapshots"] == []
    assert collected(state) == 1


def test_next_snapshot_closes_the_one_whose_maker_is_gone(state: State) -> None:
    begin(state)
    snapshot(state)
    store(state, "new", "bb")
    delete(state, "new")
    assert collected(state) == 1


def assert_second_decides(state: State) -> None:
    """Of two snapshots, the second taken now and a day after the first: the content stays as long as that."""
    state.at_ms += 6 * DAY_MS  # the first ends
    end_holds(state)
    assert collected(state) == 0
    state.at_ms += DAY_MS
    end_holds(state)
    assert collected(state) == 1


def test_newest_snapshot_that_refers_to_content_decides(state: State) -> None:
    store(state, "f1", "aa")
    snapshot(state)
    state.at_ms += DAY_MS
    snapshot(state)
    delete(state, "f1")
    assert_second_decides(state)


def test_content_that_is_held_is_held_for_a_newer_snapshot_of_another_file_too(state: State) -> None:
    store(state, "f1", "aa")
    snapshot(state)
    delete(state, "f1")
    store(state, "f2", "aa")
    state.at_ms += DAY_MS
    snapshot(state)
    delete(state, "f2")
    assert_second_decides(state)


def test_content_that_other_files_have_as_well_is_held_for_the_one_in_the_snapshot(state: State) -> None:
    store(state, "in", "aa")
    snapshot(state)
    store(state, "later", "aa")
    delete(state, "in")
    delete(state, "later")
    assert collected(state) == 0
    store(state, "again", "aa")  # content that is held is referred to again
    state.at_ms += 7 * DAY_MS
    end_holds(state)
    assert collected(state) == 0
    assert state.ask(queries.FindBlob(sha256="aa"))["reference_count"] == 1
    delete(state, "again")
    assert collected(state) == 1


def test_shorter_time_holds_for_earlier_snapshots_too_and_0_days_for_none(state: State) -> None:
    store(state, "f1", "aa")
    snapshot(state, days=30)
    snapshot(state, days=1)
    delete(state, "f1")
    state.at_ms += DAY_MS
    end_holds(state)
    assert collected(state) == 1
    store(state, "f2", "bb")
    snapshot(state, days=0)
    delete(state, "f2")
    assert collected(state) == 1


def test_file_is_held_from_its_deletion_on_also_behind_the_trash(state: State) -> None:
    store(state, "f1", "aa")
    snapshot(state)
    delete(state, "f1", trash_ms=DAY_MS)
    state.at_ms += DAY_MS
    state.done(commands.Expire())
    assert state.ask(queries.ListTrash(caller=ADMIN))["files"] == []
    assert collected(state) == 0
    state.at_ms += 6 * DAY_MS
    end_holds(state)
    assert collected(state) == 1


def test_file_in_the_trash_of_a_snapshot_is_held(state: State) -> None:
    store(state, "f1", "aa")
    delete(state, "f1", trash_ms=DAY_MS)
    snapshot(state)
    state.at_ms += DAY_MS
    state.done(commands.Expire())
    assert collected(state) == 0


@pytest.mark.parametrize("is_trashed", [False, True])
def test_content_that_is_deleted_for_good_is_not_held(state: State, *, is_trashed: bool) -> None:
    store(state, "f1", "aa")
    snapshot(state)
    if is_trashed:
        delete(state, "f1", trash_ms=DAY_MS)
        state.done(commands.PurgeFile(caller=ADMIN, file_uuid="f1"))
    else:
        delete(state, "f1", for_good=True)
    assert held(state) == HeldContent(snapshots=1)
    assert state.done(commands.CollectPurged(rows_max=10, grace_ms=0))["blobs"] == 1


@pytest.mark.parametrize("is_trashed", [False, True])
def test_content_of_a_snapshot_stays_if_another_file_with_it_is_deleted_for_good(
    state: State, *, is_trashed: bool
) -> None:
    """The last file with the content is deleted in the usual way."""
    store(state, "in", "aa")
    snapshot(state)
    delete(state, "in")
    for name in ("other", "last"):
        store(state, name, "aa")
    if is_trashed:
        delete(state, "other", trash_ms=DAY_MS)
        state.done(commands.PurgeFile(caller=ADMIN, file_uuid="other"))
    else:
        delete(state, "other", for_good=True)
    delete(state, "last")
    assert state.done(commands.CollectPurged(rows_max=10, grace_ms=0))["blobs"] == 0
    assert collected(state) == 0
    assert held(state).blobs == 1


def test_oldest_snapshot_is_evicted_first_and_its_content_leaves_soon(state: State) -> None:
    for number, sha256 in enumerate(("aa", "bb")):
        store(state, f"f{number}", sha256)
        snapshot(state, snapshot_id=f"s{number}")
        delete(state, f"f{number}")
    assert end_holds(state, evict=True)["evicted"] == "s0"
    assert held(state) == HeldContent(snapshots=1, blobs=1, bytes=5, evicted=1)
    assert state.done(commands.CollectPurged(rows_max=10, grace_ms=0))["blobs"] == 1
    assert end_holds(state, evict=True)["evicted"] == "s1"
    assert end_holds(state, evict=True)["evicted"] == ""
    assert not state.store.read_with(snapshots.may_evict)
    listed = state.ask(queries.ListSnapshots(caller=ADMIN))["snapshots"]
    assert [(each["snapshot_id"], each["hold"]) for each in listed] == [("s0", "evicted"), ("s1", "evicted")]


def test_held_content_is_repaired_like_that_of_files(state: State) -> None:
    store(state, "f1", "aa")
    snapshot(state)
    delete(state, "f1")
    state.done(commands.ReportLost(node_id="n3", sha256s=["aa"], reason="missing"))
    (short,) = state.ask(queries.ListShortBlobs(missing_min=1, limit=10))["blobs"]
    assert (short["sha256"], short["missing"]) == ("aa", 1)
    state.done(commands.AddReplica(sha256="aa", node_id="n3", as_of=state.log_index))
    assert state.ask(queries.ListShortBlobs(missing_min=1, limit=10))["blobs"] == []


def test_snapshots_are_listed_by_page_for_admins_alone(state: State) -> None:
    names = [snapshot(state) for _ in range(3)]
    page = state.ask(queries.ListSnapshots(caller=ADMIN, limit=2))
    rest = state.ask(queries.ListSnapshots(caller=ADMIN, limit=2, cursor=page["next_cursor"]))
    found = [each["snapshot_id"] for each in page["snapshots"] + rest["snapshots"]]
    assert (found, rest["next_cursor"]) == (names, 0)
    assert state.ask(queries.GetSnapshot(caller=ADMIN, snapshot_id=names[1]))["coordinator_id"] == "c1"
    assert state.ask(queries.GetSnapshot(caller=ADMIN, snapshot_id="")) == "not_found"
    assert state.ask(queries.ListSnapshots(caller=state.user("eva"))) == "forbidden"


def test_snapshot_of_a_removed_coordinator_is_listed_as_such_and_holds_content(state: State) -> None:
    store(state, "f1", "aa")
    name = snapshot(state)
    assert state.ask(queries.GetSnapshot(caller=ADMIN, snapshot_id=name))["is_readable"] is True
    state.apply_entry(membership(state.log_index + 1, coordinator("c2")))
    delete(state, "f1")
    (listed,) = state.ask(queries.ListSnapshots(caller=ADMIN))["snapshots"]
    assert (listed["coordinator_id"], listed["is_readable"], listed["hold"]) == ("c1", False, "held")
    assert held(state).blobs == 1


def test_snapshots_that_hold_nothing_any_more_are_forgotten(state: State) -> None:
    for _ in range(snapshots.LISTED_MAX + 3):
        snapshot(state, days=0)
    listed = state.ask(queries.ListSnapshots(caller=ADMIN))["snapshots"]
    assert len(listed) == snapshots.LISTED_MAX
    assert state.apply(commands.KeepSnapshot(sequence=1, snapshot_id="x", log_index=1)) == "not_found"


def test_snapshots_beyond_the_bound_lose_their_content(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "HOLDING_MAX", 3)
    store(state, "f1", "aa")
    snapshot(state)
    delete(state, "f1")
    for _ in range(3):
        snapshot(state)
    end_holds(state)
    assert held(state) == HeldContent(snapshots=3, evicted=1)


def test_restored_state_holds_what_the_snapshot_itself_refers_to(state: State) -> None:
    store(state, "before", "aa")
    begin(state)
    store(state, "meanwhile", "bb")  # the copy is the state of this moment
    state.done(commands.RecordRestore(history="cafe"))
    store(state, "after", "cc")
    for name in ("before", "meanwhile", "after"):
        delete(state, name)
    assert collected(state) == 1
    assert held(state).blobs == 2


def revived(state: State, file_uuid: str = "new", **changes: Any) -> Any:
    content = commands.StoredContent(sha256="aa", replicas=[])
    values: dict[str, Any] = {"caller": ADMIN, "owner_id": "admin", "owner_sequence": 0}
    made = create(ADMIN, file_uuid, size_bytes=5, content=content)
    return state.apply(commands.ReviveFile(create=made, **(values | changes)))


def test_deleted_file_comes_back_with_its_content_for_its_owner(state: State) -> None:
    eva = state.user("eva")
    state.done(create(eva, "f1"))
    state.done(complete(eva, "f1", "aa", NODES))
    (born,) = state.store.read_with(
        lambda db: db.execute("SELECT sequence FROM users WHERE user_id = 'eva'").fetchone()
    )
    snapshot(state)
    delete(state, "f1")
    assert revived(state, owner_id="eva", owner_sequence=born)["owner_id"] == "eva"
    record = state.ask(queries.GetContent(caller=eva, file_uuid="new"))
    assert (record["file"]["status"], record["replicas"]) == ("available", NODES)
    assert revived(state, "other", owner_id="eva", owner_sequence=born + 1)["owner_id"] == "admin"
    assert state.ask(queries.GetContent(caller=eva, file_uuid="other")) == "forbidden"
    assert revived(state, caller=eva) == "forbidden"


def test_file_whose_content_is_gone_does_not_come_back(state: State) -> None:
    store(state, "f1", "aa")
    delete(state, "f1")
    assert not isinstance(revived(state), Refusal)  # within the grace
    delete(state, "new")
    assert collected(state) == 1
    refusal = revived(state)
    assert refusal == "conflict"
    assert "left the disks" in refusal.details
