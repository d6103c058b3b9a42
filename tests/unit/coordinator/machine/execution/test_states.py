"""The states of a record: no two have the same time, and a change of one that is over is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ca.errors import Unavailable
from coordinator.member.proposing import check_known
from metadata.model.rules import FILES_ARE_RENAMED, FIRST
from metadata.protocol import commands, queries
from metadata.protocol.invalidation import NOTHING, file_key, invalidated_keys
from tests.unit.state import ADMIN, HOUR_MS, State, complete, create, create_bucket, grant
from tests.unit.stored_kinds import KINDS, KindOfFile

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3")
    yield made
    made.store.close()


def record(state: State, kind: KindOfFile = KINDS[0], file_uuid: str = "f1") -> Any:
    return state.ask(kind.get(caller=ADMIN, file_uuid=file_uuid))


def bucket(state: State, bucket_id: str = "b1") -> Any:
    return state.ask(queries.GetBucket(caller=ADMIN, bucket_id=bucket_id))


@every_kind
def test_time_of_a_file_rises_with_every_change_of_it(state: State, kind: KindOfFile) -> None:
    """Also where the clock of a leader stands still, or goes back."""
    state.apply(kind.create(ADMIN, "f1"))
    name, value = next(iter(kind.changes.items()))
    steps: list[commands.AnyCommand] = [
        commands.DeclareSize(caller=ADMIN, file_uuid="f1", size_bytes=5),
        commands.RecordProgress(caller=ADMIN, file_uuid="f1", node_id="n1", offset_bytes=3),
        kind.update(caller=ADMIN, file_uuid="f1", **{name: value}),
        complete(ADMIN, "f1", "aa", ["n1", "n2"]),
        kind.update(caller=ADMIN, file_uuid="f1", retention_hours=1),
    ]
    for step in steps:
        before = record(state, kind)["updated_at_ms"]
        state.done(step)
        assert record(state, kind)["updated_at_ms"] == before + 1
        state.at_ms -= 1
    before = record(state, kind)["updated_at_ms"]
    state.at_ms += 2 * HOUR_MS
    state.done(commands.Expire(tombstone_ms=HOUR_MS))
    after = record(state, kind)
    assert (after["status"], after["updated_at_ms"]) == ("tombstoned", state.at_ms)
    assert after["updated_at_ms"] > before


def test_time_of_a_bucket_rises_with_every_change_of_it(state: State) -> None:
    state.done(create_bucket(ADMIN, "b1"))
    steps: list[commands.AnyCommand] = [
        commands.UpdateBucket(caller=ADMIN, bucket_id="b1", name="other", quota_bytes=None),
        create(ADMIN, "f1", bucket_id="b1"),
        complete(ADMIN, "f1", "aa", ["n1", "n2"]),
        commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=""),
    ]
    for step in steps:
        before = bucket(state)["updated_at_ms"]
        state.done(step)
        assert bucket(state)["updated_at_ms"] == before + 1


@every_kind
def test_of_two_changes_of_one_state_the_second_is_refused(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    seen_ms = record(state, kind)["updated_at_ms"]
    name, value = next(iter(kind.changes.items()))
    change = kind.update(caller=ADMIN, file_uuid="f1", unchanged_since_ms=seen_ms, **{name: value})
    first, second = state.apply_batch(change, change)
    assert first[name] == value
    assert second == "precondition_failed"
    nothing = kind.update(caller=ADMIN, file_uuid="f1", unchanged_since_ms=seen_ms)
    assert state.apply(nothing) == "precondition_failed"
    delete = commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=kind.name, unchanged_since_ms=seen_ms)
    assert state.apply(delete) == "precondition_failed"
    now_ms = record(state, kind)["updated_at_ms"]
    state.done(msgspec.structs.replace(delete, unchanged_since_ms=now_ms))
    assert record(state, kind) == "not_found"


def test_bucket_is_changed_and_deleted_only_in_the_state_that_is_named(state: State) -> None:
    state.done(create_bucket(ADMIN, "b1"))
    seen_ms = bucket(state)["updated_at_ms"]
    change = commands.UpdateBucket(
        caller=ADMIN, bucket_id="b1", name=None, quota_bytes=7, unchanged_since_ms=seen_ms
    )
    first, second = state.apply_batch(change, change)
    assert (first["quota_bytes"], second) == (7, "precondition_failed")
    delete = commands.DeleteBucket(caller=ADMIN, bucket_id="b1", unchanged_since_ms=seen_ms)
    assert state.apply(delete) == "precondition_failed"
    state.done(msgspec.structs.replace(delete, unchanged_since_ms=first["updated_at_ms"]))


def test_who_may_not_is_told_that_first(state: State) -> None:
    bob = state.user("bob")
    state.apply(create(ADMIN, "f1"))
    state.done(create_bucket(ADMIN, "b1"))
    update = commands.UpdateProjectFile(caller=bob, file_uuid="f1", unchanged_since_ms=1)
    delete = commands.DeleteBucket(caller=bob, bucket_id="b1", unchanged_since_ms=1)
    assert (state.apply(update), state.apply(delete)) == ("forbidden", "forbidden")


@every_kind
def test_retention_is_changed_and_removed(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1", retention_hours=5))
    assert record(state, kind)["retention_hours"] == 5
    assert "due_at_ms" not in record(state, kind)  # it counts from when the file becomes available
    state.done(kind.update(caller=ADMIN, file_uuid="f1", retention_hours=2))
    state.done(complete(ADMIN, "f1", "aa", ["n1", "n2"]))
    available_at_ms = state.at_ms
    assert record(state, kind)["due_at_ms"] == available_at_ms + 2 * HOUR_MS
    state.at_ms += HOUR_MS
    replied = state.done(kind.update(caller=ADMIN, file_uuid="f1", retention_hours=3))
    assert (replied["retention_hours"], replied["due_at_ms"]) == (3, available_at_ms + 3 * HOUR_MS)
    assert record(state, kind) == replied
    assert state.apply(kind.update(caller=ADMIN, file_uuid="f1", retention_hours=3)) == replied
    assert state.apply(kind.update(caller=ADMIN, file_uuid="f1", retention_hours=1)) == "invalid_request"
    assert record(state, kind) == replied
    replied = state.done(kind.update(caller=ADMIN, file_uuid="f1", retention_hours=None))
    assert {"retention_hours", "due_at_ms"}.isdisjoint(replied)
    assert record(state, kind) == replied
    state.at_ms += 100 * HOUR_MS
    assert state.done(commands.Expire(tombstone_ms=0))["retained"] == 0
    state.done(kind.update(caller=ADMIN, file_uuid="f1", retention_hours=200))
    state.at_ms = available_at_ms + 200 * HOUR_MS
    assert state.done(commands.Expire(tombstone_ms=HOUR_MS))["retained"] == 1
    assert record(state, kind)["due_at_ms"] == state.at_ms + HOUR_MS
    assert state.apply(kind.update(caller=ADMIN, file_uuid="f1", retention_hours=None)) == "gone"


@every_kind
def test_file_gets_another_name_and_type(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    state.apply(create(ADMIN, "f2"))
    before = record(state, kind)
    renamed = state.done(kind.update(caller=ADMIN, file_uuid="f1", filename="other.zip"))
    assert renamed == before | {"filename": "other.zip", "updated_at_ms": before["updated_at_ms"] + 1}
    state.done(complete(ADMIN, "f1", "aa", ["n1", "n2"]))
    changed = state.done(
        kind.update(caller=ADMIN, file_uuid="f1", content_type="text/plain", retention_hours=5)
    )
    assert (changed["filename"], changed["content_type"]) == ("other.zip", "text/plain")
    assert changed["retention_hours"] == 5
    assert record(state, kind) == changed
    content = state.ask(queries.GetContent(caller=ADMIN, file_uuid="f1"))
    assert content["file"].items() <= changed.items()
    listed = state.ask(kind.list_page(caller=ADMIN, filename_prefix="other"))
    assert listed["files"] == [changed]
    in_bucket = queries.ListBucketFiles(caller=ADMIN, bucket_id=changed["bucket_id"], filename_prefix="other")
    assert [file["file_uuid"] for file in state.ask(in_bucket)["files"]] == ["f1"]


@every_kind
def test_name_of_a_file_is_changed_by_those_who_may_write(state: State, kind: KindOfFile) -> None:
    bob, carol = state.user("bob"), state.user("carol")
    state.apply(kind.create(ADMIN, "f1"))
    state.done(grant(ADMIN, "file:f1", "user:bob", "read"))
    state.done(grant(ADMIN, "file:f1", "user:carol", "write"))
    before = record(state, kind)
    assert state.apply(kind.update(caller=bob, file_uuid="f1", filename="bobs")) == "forbidden"
    stale = kind.update(caller=carol, file_uuid="f1", filename="carols", unchanged_since_ms=1)
    assert state.apply(stale) == "precondition_failed"
    assert record(state, kind) == before
    assert state.done(kind.update(caller=carol, file_uuid="f1", filename="carols"))["filename"] == "carols"


def test_name_of_a_file_is_changed_from_the_rules_on_that_say_so(tmp_path: Path) -> None:
    """As coordinators of older versions apply it, who do not know these fields."""
    state = State(tmp_path / "old.sqlite", rules=FILES_ARE_RENAMED - 1)
    state.nodes("n1", "n2", "n3")
    state.apply(create(ADMIN, "f1"))
    before = record(state)
    rename = commands.UpdateProjectFile(caller=ADMIN, file_uuid="f1", filename="x", content_type="a/b")
    with pytest.raises(Unavailable):
        check_known(rename, FILES_ARE_RENAMED - 1)
    old, raised, new = state.apply_batch(rename, commands.RaiseRules(version=FILES_ARE_RENAMED), rename)
    assert (old, raised) == (before, FILES_ARE_RENAMED)
    assert (new["filename"], new["content_type"]) == ("x", "a/b")
    state.store.close()


def test_what_older_members_do_as_well_is_proposed_at_once() -> None:
    for command in (
        commands.UpdateVm(caller=ADMIN, file_uuid="f1", vcpus=2),
        commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=""),
        create(ADMIN, "f1", retention_hours=1),
    ):
        check_known(command, FIRST)


def test_records_that_nodes_keep_are_dropped_before_retention_changes() -> None:
    changed = commands.UpdateVm(caller=ADMIN, file_uuid="f1", retention_hours=None)
    assert invalidated_keys(changed) == {file_key("f1")}
    assert invalidated_keys(commands.UpdateVm(caller=ADMIN, file_uuid="f1", vcpus=2)) == NOTHING
