"""Backups in the state machine: lineage without loops, and parents that stay."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine import backups
from metadata.model.records import Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, HOUR_MS, State, complete, create, create_backup, grant

FIELD = "parent_backup_uuid: "


def build(caller: Caller, file_uuid: str, parent_uuid: str) -> commands.CreateBackup:
    """An incremental backup upon another one."""
    return create_backup(caller, file_uuid, backup_type="incremental", parent_backup_uuid=parent_uuid)


def update(file_uuid: str, caller: Caller = ADMIN, **changes: Any) -> commands.UpdateBackup:
    return commands.UpdateBackup(caller=caller, file_uuid=file_uuid, **changes)


def delete(state: State, file_uuid: str) -> Any:
    return state.apply(commands.DeleteFile(caller=ADMIN, file_uuid=file_uuid, kind="backup"))


def lineage(state: State, file_uuid: str) -> tuple[str, str]:
    record = state.ask(queries.GetBackup(caller=ADMIN, file_uuid=file_uuid))
    return record["backup_type"], record["parent_backup_uuid"]


def chain(state: State, count: int) -> None:
    """f0 is full, each next one builds on the one before."""
    for number in range(count):
        file_uuid = f"f{number}"
        state.done(build(ADMIN, file_uuid, f"f{number - 1}") if number else create_backup(ADMIN, file_uuid))


@pytest.mark.parametrize(
    ("backup_type", "parent_uuid"),
    [
        ("incremental", ""),
        ("incremental", "nowhere"),
        ("incremental", "f1"),  # itself
        ("incremental", "project"),
        ("full", "f0"),
    ],
)
def test_creation_with_an_impossible_parent_is_refused(
    state: State, backup_type: str, parent_uuid: str
) -> None:
    state.apply(create_backup(ADMIN, "f0"))
    state.apply(create(ADMIN, "project"))
    command = create_backup(ADMIN, "f1", backup_type=backup_type, parent_backup_uuid=parent_uuid)
    refusal = state.apply(command)
    assert refusal == "invalid_request"
    assert refusal.details.startswith(FIELD)
    assert state.ask(queries.GetBackup(caller=ADMIN, file_uuid="f1")) == "not_found"


def test_incremental_backup_builds_on_one_that_is_not_finished(state: State) -> None:
    chain(state, 2)
    assert lineage(state, "f1") == ("incremental", "f0")


def test_parent_must_be_readable(state: State) -> None:
    bob = state.user("bob")
    state.apply(create_backup(ADMIN, "f0"))
    state.apply(create_backup(bob, "f1"))
    change = update("f1", bob, backup_type="incremental", parent_backup_uuid="f0")
    assert state.apply(build(bob, "f2", "f0")) == "forbidden"
    assert state.apply(change) == "forbidden"
    state.done(grant(ADMIN, "file:f0", "user:bob", "read"))
    assert state.apply(build(bob, "f2", "f0"))["status"] == "pending"
    assert state.apply(change)["parent_backup_uuid"] == "f0"


def test_parent_must_not_be_past_its_retention(state: State) -> None:
    state.apply(create_backup(ADMIN, "f0", retention_hours=1))
    state.apply(create_backup(ADMIN, "f1"))
    state.apply(complete(ADMIN, "f0", "aa", ["n1", "n2"]))
    state.at_ms += HOUR_MS
    assert state.apply(commands.Expire())["retained"] == 1
    change = update("f1", backup_type="incremental", parent_backup_uuid="f0")
    for refusal in (state.apply(build(ADMIN, "f2", "f0")), state.apply(change)):
        assert (refusal, refusal.details[: len(FIELD)]) == ("invalid_request", FIELD)


def test_update_to_full_drops_the_parent_which_can_then_go(state: State) -> None:
    chain(state, 2)
    assert delete(state, "f0") == "conflict"
    changed = state.apply(update("f1", backup_type="full", is_encrypted=True))
    assert (changed["backup_type"], changed["parent_backup_uuid"]) == ("full", "")
    assert lineage(state, "f1") == ("full", "")
    assert delete(state, "f0") is None


def test_update_to_incremental_takes_a_parent(state: State) -> None:
    chain(state, 1)
    state.apply(create_backup(ADMIN, "g"))
    refusal = state.apply(update("g", backup_type="incremental"))
    assert (refusal, refusal.details[: len(FIELD)]) == ("invalid_request", FIELD)
    state.apply(update("g", backup_type="incremental", parent_backup_uuid="f0"))
    assert lineage(state, "g") == ("incremental", "f0")


@pytest.mark.parametrize(
    ("file_uuid", "changes"),
    [
        ("f0", {"parent_backup_uuid": "g"}),  # full stays full
        ("f0", {"backup_type": "full", "parent_backup_uuid": "g"}),
        ("f1", {"backup_type": "full", "parent_backup_uuid": "f0"}),
        ("f1", {"parent_backup_uuid": ""}),
        ("f1", {"parent_backup_uuid": "nowhere"}),
        ("f1", {"parent_backup_uuid": "f1"}),
        ("f1", {"parent_backup_uuid": "f2"}),
        ("f1", {"parent_backup_uuid": "f3"}),
        ("f0", {"backup_type": "incremental", "parent_backup_uuid": "f3"}),
    ],
)
def test_update_to_an_impossible_lineage_is_refused(
    state: State, file_uuid: str, changes: dict[str, Any]
) -> None:
    chain(state, 4)
    state.apply(create_backup(ADMIN, "g"))
    before = lineage(state, file_uuid)
    refusal = state.apply(update(file_uuid, **changes, source_node_id="n1"))
    assert refusal == "invalid_request"
    assert refusal.details.startswith(FIELD)
    assert lineage(state, file_uuid) == before


def test_same_parent_again_and_no_parent_of_a_full_one_are_no_errors(state: State) -> None:
    chain(state, 2)
    again = update("f1", backup_type="incremental", parent_backup_uuid="f0")
    assert state.apply(again)["parent_backup_uuid"] == "f0"
    assert state.apply(update("f0", parent_backup_uuid=""))["backup_type"] == "full"


def test_backup_moves_to_another_parent(state: State) -> None:
    chain(state, 3)
    state.apply(update("f2", parent_backup_uuid="f0"))
    assert lineage(state, "f2") == ("incremental", "f0")
    assert delete(state, "f1") is None
    assert delete(state, "f0") == "conflict"


def test_parent_is_neither_deleted_nor_terminated_before_its_last_child(state: State) -> None:
    state.apply(create_backup(ADMIN, "f0"))
    for child in ("f1", "f2"):
        state.apply(build(ADMIN, child, "f0"))
    terminate = commands.TerminateUpload(caller=ADMIN, file_uuid="f0")
    assert state.apply(terminate) == "conflict"
    assert delete(state, "f1") is None
    assert (delete(state, "f0"), state.apply(terminate)) == ("conflict", "conflict")
    state.apply(commands.TerminateUpload(caller=ADMIN, file_uuid="f2"))
    assert state.apply(terminate) is None


def test_finished_parent_is_not_deleted_by_any_kind_of_deletion(state: State) -> None:
    chain(state, 2)
    state.apply(complete(ADMIN, "f0", "aa", ["n1", "n2"]))
    assert state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="f0", kind="")) == "conflict"
    assert state.ask(queries.FindBlob(sha256="aa"))["reference_count"] == 1


def test_chain_has_a_greatest_length(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "ANCESTORS_MAX", 3)
    chain(state, 4)
    refusal = state.apply(build(ADMIN, "f4", "f3"))
    assert refusal == "invalid_request"
    assert refusal.details.startswith(FIELD)
    assert state.apply(build(ADMIN, "f4", "f2"))["status"] == "pending"


def test_chain_of_the_greatest_length_is_walked(state: State) -> None:
    chain(state, backups.ANCESTORS_MAX + 1)
    last = f"f{backups.ANCESTORS_MAX}"
    assert state.apply(build(ADMIN, "beyond", last)) == "invalid_request"
    loop = update("f0", backup_type="incremental", parent_backup_uuid=last)
    assert "builds on this one" in state.apply(loop).details


parents = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30)


@settings(max_examples=60, deadline=None)
@given(moves=parents)
def test_no_order_of_moves_makes_a_loop(tmp_path_factory: pytest.TempPathFactory, moves: Any) -> None:
    state = State(tmp_path_factory.mktemp("loops") / "state.sqlite")
    parent_of: dict[int, int] = {}
    try:
        for number in range(6):
            state.apply(create_backup(ADMIN, f"f{number}"))
        for child, parent in moves:
            line = [parent]
            while line[-1] in parent_of:
                line.append(parent_of[line[-1]])
            moved = state.apply(
                update(f"f{child}", backup_type="incremental", parent_backup_uuid=f"f{parent}")
            )
            if child in line:
                assert moved == "invalid_request"
            else:
                assert moved["parent_backup_uuid"] == f"f{parent}"
                parent_of[child] = parent
    finally:
        state.store.close()
