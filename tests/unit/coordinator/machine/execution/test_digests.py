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
from metadata.model.providers import PersonIdentity, Provider
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


def people(state: State) -> None:
    """A group, an invitation and a session."""
    state.done(commands.PutGroup(caller=ADMIN, group="lab", description="Lab"))
    invitation = commands.CreateInvitation(
        caller=ADMIN, user_id="eve", roles=None, groups=["lab"], secret_sha256="ab", ttl_seconds=60
    )
    state.done(invitation)
    generation = state.done(commands.RedeemInvitation(secret_sha256="ab"))["generation"]
    session = commands.RecordSession(
        user_id="eve", generation=generation, session_id="s1", label="l", created_by="eve", ttl_seconds=60
    )
    state.done(session)


def given_group(state: State) -> None:
    """A group by a provider, as a sign-in gives it."""
    with closing(sqlite3.connect(state.path, isolation_level=None)) as db:
        db.execute("INSERT INTO group_members (user_id, source, group_name) VALUES ('eve', 'uni', 'lab')")


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
    people(state)
    state.done(grant(ADMIN, "file:f2", "user:bob", expires_at_ms=state.at_ms + 1))
    state.done(public_token(ADMIN, "f2", "t1"))
    state.done(commands.TriggerJob(caller=ADMIN, run_id="r1", job_name="expire", node_id="c1"))
    state.done(commands.MarkNode(node_id="n3", state="down"))
    state.done(commands.ReportLost(node_id="n2", sha256s=["aa"], reason="missing"))
    deleted(state)
    state.apply_entry(membership(state.log_index + 1, coordinator("c1"), coordinator("c2", role="learner")))
    provider = Provider(name="uni", label="Uni", issuer="https://uni.example", client_id="c")
    state.done(commands.PutProvider(caller=ADMIN, provider=provider, secret=b"sealed", command_secret=b""))
    person = PersonIdentity(
        provider="uni",
        issuer="https://uni.example",
        subject="7f3a",
        name="uni:alice",
        groups=["netlab"],
        is_admin=False,
        is_allowed=True,
    )
    state.done(commands.AdmitIdentity(identity=person, user_id=""))
    state.apply(commands.HashState())
    return state


def deleted(state: State) -> None:
    """A file in the trash, content that was deleted for good, a protected file, and a bucket with rules."""
    state.done(commands.StartSnapshot(coordinator_id="c1", hold_ms=1000))
    for file_uuid in ("g1", "g2", "g3"):
        state.done(create(ADMIN, file_uuid))
        state.done(complete(ADMIN, file_uuid, f"{file_uuid} content", ["n1", "n2"]))
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid="g1", kind="", trash_ms=1000))
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid="g2", kind="", trash_ms=1000, for_good=True))
    state.done(commands.ProtectFile(caller=ADMIN, file_uuid="g3", ttl_seconds=1))
    state.done(commands.UpdateBucket(caller=ADMIN, bucket_id="b1", name=None, quota_bytes=None, trash_days=3))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = rich_state(tmp_path / "state.sqlite")
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A database with rows in every table, which nobody has open, and the index of its last entry."""
    made = rich_state(tmp_path_factory.mktemp("rich") / "state.sqlite")
    given_group(made)
    made.store.close()
    return made.path, made.log_index


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
    given_group(state)
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


def next_digest(path: Path, log_index: int) -> bytes:
    """The reply of the next slice."""
    store = Store(path)
    envelope = commands.encode_envelope(commands.Envelope(0, 0, 0, 0, commands.HashState()))
    (reply,) = store.apply([Entry(log_index + 1, 1, EntryKind.COMMAND, envelope)])
    store.close()
    return reply


@pytest.mark.parametrize("table", TABLES)
def test_one_changed_value_of_any_column_is_found_by_the_slice_of_its_table(
    tmp_path: Path, rich: tuple[Path, int], table: str
) -> None:
    path, log_index = rich
    before, whole = tmp_path / "before.sqlite", tmp_path / "whole.sqlite"
    shutil.copy(path, before)
    with closing(sqlite3.connect(before)) as db, db:
        db.execute("UPDATE digest_position SET table_name = ?, after = x''", (table,))
    shutil.copy(before, whole)
    expected = next_digest(whole, log_index)
    assert table.encode() in expected
    for column, kind in columns_of(table):
        damaged = tmp_path / f"{column}.damaged"
        shutil.copy(before, damaged)
        damage(damaged, table, column, kind)
        assert next_digest(damaged, log_index) != expected, column


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
