"""What a member knows of rows that the log has touched since they were hashed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine.execution import slice_changes
from coordinator.machine.execution.digests import tables_of
from coordinator.storage.state_store import Store
from metadata.model.rules import RULES
from metadata.protocol import commands
from tests.unit.state import ADMIN, State, create, dump

TABLES = tables_of(RULES)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    for number in range(9):
        made.done(create(ADMIN, f"f{number}"))
    yield made
    made.store.close()


def files_of_a_pass(state: State, *, rows_max: int = 3) -> list[dict[str, Any]]:
    """What is said of the slices of `files`, from the next one on."""
    while (found := state.apply(commands.HashState(rows_max=rows_max)))["table"] != "files":
        pass
    slices = []
    while found["table"] == "files":
        slices.append(found)
        found = state.apply(commands.HashState(rows_max=rows_max))
    return slices


def test_nothing_is_known_in_the_first_pass_and_all_in_the_next(state: State) -> None:
    assert {found["tracked"] for found in files_of_a_pass(state)} == {False}
    again = files_of_a_pass(state)
    assert {(found["tracked"], found["touched"]) for found in again} == {(True, False)}
    assert [found["digest"] for found in again] == [found["digest"] for found in files_of_a_pass(state)]


@pytest.mark.parametrize("number", [0, 4, 8])
def test_slice_of_a_row_that_was_touched_is_told_and_no_other(state: State, number: int) -> None:
    files_of_a_pass(state)
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid=f"f{number}", kind=""))
    said = [found["touched"] for found in files_of_a_pass(state)]
    assert said.count(True) >= 1
    assert said.index(True) == number // 3
    assert not any(found["touched"] for found in files_of_a_pass(state))


def test_row_that_came_is_told(state: State) -> None:
    files_of_a_pass(state)
    state.done(create(ADMIN, "f9"))
    assert [found["touched"] for found in files_of_a_pass(state)][-1]


def test_too_many_touches_make_it_unknown_for_a_pass(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of_a_pass(state)
    monkeypatch.setattr(slice_changes, "TOUCHED_MAX", 2)
    for number in range(3):
        state.done(commands.DeleteFile(caller=ADMIN, file_uuid=f"f{number}", kind=""))
    assert {found["tracked"] for found in files_of_a_pass(state)} == {False}
    assert {found["tracked"] for found in files_of_a_pass(state)} == {True}


def test_what_is_noted_is_no_part_of_the_state(state: State, tmp_path: Path) -> None:
    before = [line for line in state.dump() if "touched" in line]
    state.store.close()
    with closing(sqlite3.connect(state.path)) as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'touched%'").fetchall() == []
    state.store = Store(state.path)
    assert before == [line for line in dump(state.path) if "touched" in line] == []


@pytest.mark.parametrize(
    ("statement", "keys"),
    [
        ("INSERT INTO t VALUES ('a', 9, 0) ON CONFLICT (name, number) DO UPDATE SET value = value + 1", "a9"),
        ("INSERT OR REPLACE INTO t VALUES ('a', 1, 5)", "a1"),
        ("INSERT OR IGNORE INTO t VALUES ('a', 9, 5)", "a9"),
        ("INSERT OR IGNORE INTO t VALUES ('a', 1, 5)", ""),
        ("UPDATE t SET value = value + 1 WHERE number = 1", "a1 b1"),
        ("UPDATE OR IGNORE t SET value = value + 1 WHERE name = 'b'", "b1 b2"),
        ("UPDATE OR REPLACE t SET number = 7 WHERE name = 'b' AND number = 2", "b2 b7"),
        ("UPDATE t SET name = 'c', value = 3 WHERE name = 'a'", "a1 a2 c1 c2"),
        ("DELETE FROM t WHERE number = 2", "a2 b2"),
    ],
)
def test_every_way_to_change_a_row_notes_its_keys_and_may_be_repeated(statement: str, keys: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("CREATE TABLE digest_position (one INTEGER PRIMARY KEY, table_name TEXT, after BLOB)")
        db.execute("CREATE TABLE t (name TEXT, number INTEGER, value INTEGER, PRIMARY KEY (name, number))")
        db.execute("INSERT INTO t VALUES ('a', 1, 0), ('a', 2, 0), ('b', 1, 0), ('b', 2, 0)")
        slice_changes.track(db)
        for _ in range(2):  # what is noted already is no conflict, whatever the statement says of those
            db.execute(statement)
        noted = db.execute("SELECT name || number FROM touched_t ORDER BY 1").fetchall()
        assert " ".join(key for (key,) in noted) == keys
