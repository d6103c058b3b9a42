"""Digests of the state: the same for the same log, another for one byte that differs, in any table."""

import itertools
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.machine.execution.digests import COLUMNS_LEFT_OUT, tables_of
from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage.state_store import Store
from metadata.model.later_fields import LATER, later_of
from metadata.model.records import BACKUP, DEFAULT_BUCKET_ID, PROJECT_FILE, VM, Manifest
from metadata.model.rules import RULES
from metadata.protocol import commands
from tests.unit.state import (
    ADMIN,
    State,
    complete,
    coordinator,
    create,
    create_backup,
    create_bucket,
    create_vm,
    grant,
    join,
    join_token,
    membership,
    public_token,
)

SLICES_MAX = 200


TABLES = tables_of(RULES)


def schema() -> str:
    """The statements that make all tables."""
    fixed = files("coordinator.storage").joinpath("schema.sql").read_text("utf-8")
    return fixed + "".join(each.schema for each in LATER)


def later(kind: str) -> dict[str, Any]:
    """The fields of a kind that came later."""
    return {each.name: each.example for each in later_of(kind)}


def rich_state(path: Path) -> State:
    """A state with rows in every table."""
    state = State(path)
    state.nodes("n1", "n2", "n3")
    state.done(commands.RecordRestore(history="cafe"))
    session = state.apply(commands.OpenSession(nonce="x"))
    state.apply(create(ADMIN, "f1", path="lab/r1"), session=session, sequence=1, acknowledged_below=1)
    state.apply(create(ADMIN, "f2", filename="größe \x01"))
    state.done(create(ADMIN, "f5", **later(PROJECT_FILE)))
    state.done(complete(ADMIN, "f5", "dd", ["n1", "n2"]))
    for node_id in ("n1", "n2"):
        state.done(commands.ReportLost(node_id=node_id, sha256s=["dd"], reason="damaged"))
        state.done(commands.ReportDamaged(node_id=node_id, sha256="dd", spans=[(0, 1)]))
    whole = complete(ADMIN, "f2", "aa", ["n1", "n2"])
    state.done(msgspec.structs.replace(whole, manifest=Manifest(archive="gns3")))
    state.done(create_vm(ADMIN, "f3", **later(VM)))
    state.done(create_backup(ADMIN, "f4", **later(BACKUP)))
    part = commands.CreatePartial(
        caller=ADMIN, file_uuid="p1", bucket_id=DEFAULT_BUCKET_ID, size_bytes=0, placement=["n1"]
    )
    state.done(part)
    state.done(msgspec.structs.replace(create(ADMIN, "f6", size_bytes=0), parts=["p1"]))
    state.done(create_bucket(ADMIN, "b1"))
    cold = commands.UpdateBucket(caller=ADMIN, bucket_id="b1", name=None, quota_bytes=None, storage="cold")
    state.done(cold)
    state.done(grant(ADMIN, "bucket:b1", "group:lab"))
    state.done(grant(ADMIN, "file:f2", "user:bob", expires_at_ms=state.at_ms + 1))
    state.done(public_token(ADMIN, "f2", "t1"))
    state.done(commands.TriggerJob(caller=ADMIN, run_id="r1", job_name="expire", node_id="c1"))
    state.done(commands.MarkNode(node_id="n3", state="down"))
    state.done(commands.ReportLost(node_id="n2", sha256s=["aa"], reason="missing"))
    state.apply_entry(membership(state.log_index + 1, coordinator("c1"), coordinator("c2", role="learner")))
    state.apply(commands.HashState())
    return state


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = rich_state(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def cycle(state: State, *, rows_max: int = 2000) -> list[dict[str, Any]]:
    """Slices until the position is at the beginning again."""
    slices = []
    for _ in range(SLICES_MAX):
        slices.append(state.apply(commands.HashState(rows_max=rows_max)))
        with closing(sqlite3.connect(state.path)) as db:
            if db.execute("SELECT table_name, after FROM digest_position").fetchone() == (TABLES[0], b""):
                return slices
    raise AssertionError("the cycle does not end")


def digests(slices: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(found["table"], found["digest"]) for found in slices]


def test_every_table_of_the_schema_is_hashed() -> None:
    tables = re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", schema())
    assert sorted([*TABLES, "rules"]) == sorted(tables)  # those are in every digest


def test_one_cycle_hashes_every_row_of_every_table_once(state: State) -> None:
    cycle(state)
    slices = cycle(state, rows_max=2)
    with closing(sqlite3.connect(state.path)) as db:
        held = {table: db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in TABLES}
    hashed = dict.fromkeys(TABLES, 0)
    for found in slices:
        hashed[found["table"]] += found["rows"]
    assert hashed == held
    assert all(held.values()), "a table without rows is not tested"
    assert [table for table, _ in itertools.groupby(found["table"] for found in slices)] == list(TABLES)


@pytest.mark.parametrize("rows_max", [1, 2, 2000])
def test_members_that_applied_the_same_log_agree_whatever_their_batches(
    tmp_path: Path, state: State, rows_max: int
) -> None:
    mine = digests(cycle(state, rows_max=rows_max))
    other = Store(tmp_path / "other.sqlite")
    replies = other.apply(state.entries)
    other.close()
    again = [
        reply for entry, reply in zip(state.entries, replies, strict=True) if b"hash_state" in entry.data
    ]
    assert len(again) == len(mine) + 1  # one is in the state that both begin with
    assert all(digest.encode() in reply for (_, digest), reply in zip(mine, again[1:], strict=True))


def columns_of(table: str) -> list[tuple[str, str]]:
    """Name and type of each column that is hashed, but for the key of tables of one row."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema())
        described = db.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()
    left_out = ("one", *COLUMNS_LEFT_OUT.get(table, ()))
    return [(name, kind) for name, kind in described if name not in left_out]


def damage(path: Path, table: str, column: str, kind: str) -> None:
    """Change one value; text becomes what is no text any more."""
    other = f"COALESCE({column}, 0) + 1000" if kind == "INTEGER" else f"COALESCE({column}, '') || X'FF'"
    with closing(sqlite3.connect(path)) as db, db:
        least = db.execute(f"SELECT CAST(MIN({column}) AS {kind}) FROM {table}").fetchone()[0]
        db.execute(f"UPDATE {table} SET {column} = CAST({other} AS {kind}) WHERE {column} IS ?", (least,))
        assert db.total_changes >= 1


def one_cycle(path: Path, log_index: int) -> list[bytes]:
    store = Store(path)
    envelope = commands.encode_envelope(commands.Envelope(0, 0, 0, 0, commands.HashState()))
    replies = store.apply(
        [Entry(log_index + 1 + slices, 1, EntryKind.COMMAND, envelope) for slices in range(len(TABLES))]
    )
    store.close()
    return replies


@pytest.mark.parametrize("table", TABLES)
def test_one_changed_value_of_any_column_is_found_within_a_cycle(
    tmp_path: Path, state: State, table: str
) -> None:
    state.store.close()
    whole = tmp_path / "whole.sqlite"
    shutil.copy(state.path, whole)
    expected = one_cycle(whole, state.log_index)
    for column, kind in columns_of(table):
        damaged = tmp_path / f"{column}.damaged"
        shutil.copy(state.path, damaged)
        damage(damaged, table, column, kind)
        assert one_cycle(damaged, state.log_index) != expected, column


def test_slice_that_a_command_of_the_same_batch_changed_is_hashed_as_changed(state: State) -> None:
    cycle(state)
    before = digests(cycle(state))
    state.apply(join_token("t9"))
    state.apply(join("t9", "n9"))
    after = digests(cycle(state))
    changed = {table for (table, one), (_, other) in zip(before, after, strict=True) if one != other}
    assert changed == {"applied", "join_tokens", "joins", "nodes", "certificates"}


def test_report_is_echoed_and_changes_nothing(state: State) -> None:
    before = [line for line in state.dump() if '"applied"' not in line]
    report = commands.ReportHash(coordinator_id="c1", log_index=state.log_index, digest="ab")
    echoed = {"coordinator_id": "c1", "log_index": report.log_index, "digest": "ab"}
    untold = {"origin": "", "agreed_at": 0, "touched": False, "odd": [], "rebuilt_at_ms": 0}
    assert state.apply(report) == echoed | untold
    assert [line for line in state.dump() if '"applied"' not in line] == before


def test_report_about_what_is_yet_to_come_is_refused(state: State) -> None:
    report = commands.ReportHash(coordinator_id="c1", log_index=state.log_index + 1, digest="ab")
    assert state.apply(report) == "invalid_request"
