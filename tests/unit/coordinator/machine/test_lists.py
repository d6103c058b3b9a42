"""Lists of files in the state machine: whole, in order, and no dearer for what lies around a page."""

import json
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import machine
from coordinator.machine.execution import pages
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from metadata.protocol.commands import Reply
from tests.unit.state import ADMIN, State, complete, create, create_backup, create_vm
from tests.unit.stored_kinds import KINDS, KindOfFile

ALICE, BOB = Caller("alice", 1), Caller("bob", 1)
NARROW = ("n0", "n1")  # values of project_id and of md5
# the chain of a backup, one row, what is bound, some hundred snapshots at most
SMALL_TABLES = {"a", "ancestors", "cluster", "json_each", "kept_snapshots"}


@dataclass(frozen=True)
class Known:
    """What the model holds of a file."""

    file_uuid: str
    owner_id: str
    filename: str
    narrow: str
    status: str = "pending"

    def shown(self, kind: KindOfFile) -> str:
        """What the list is narrowed by: a project has its id at once, an image its md5 when it is whole."""
        return self.narrow if kind.name == "project_file" or self.status == "available" else ""


class Model:
    """A list's files in a plain dict, beside the state machine that holds the same."""

    def __init__(self, state: State, kind: KindOfFile) -> None:
        self._state = state
        self._kind = kind
        self.files: dict[int, Known] = {}

    def apply(self, step: tuple[str, int, int, int]) -> None:
        """One change of a file, if there is any; each choice is taken modulo what there is."""
        what, which, name, narrow = step
        if what == "create":
            owner = (ALICE, BOB)[which % 2]
            self._create(owner, ("lab", "Lab", "la%b", "b")[name % 4], NARROW[narrow % 2])
        elif self.files:
            sequence = sorted(self.files)[which % len(self.files)]
            self._change(what, sequence)

    def _create(self, owner: Caller, filename: str, narrow: str) -> None:
        known = Known(f"f{self._state.log_index}", owner.subject, filename, narrow)
        project = {"project_id": narrow} if self._kind.name == "project_file" else {}
        made = self._state.apply(self._kind.create(owner, known.file_uuid, filename=filename, **project))
        assert made["status"] == "pending"
        self.files[self._state.log_index] = known

    def _change(self, what: str, sequence: int) -> None:
        known = self.files[sequence]
        file_uuid = known.file_uuid
        if what == "delete":
            assert self._state.apply(commands.DeleteFile(caller=ADMIN, file_uuid=file_uuid, kind="")) is None
            del self.files[sequence]
        elif what == "update":
            self._state.apply(self._kind.update(caller=ADMIN, file_uuid=file_uuid, **self._kind.changes))
        elif known.status != "available":
            status = "available" if what == "complete" else "uploading"
            progress = commands.RecordProgress(
                caller=ADMIN, file_uuid=file_uuid, node_id="n1", offset_bytes=1
            )
            whole = complete(ADMIN, file_uuid, "aa", ["n1", "n2"])
            whole = msgspec.structs.replace(whole, md5=known.narrow)
            self._state.apply(whole if status == "available" else progress)
            self.files[sequence] = replace(known, status=status)

    def matching(self, query: Any) -> dict[int, str]:
        """The sequence and id of every file that the list must show now."""
        wanted = getattr(query, "project_id", "") or getattr(query, "md5", "")
        return {
            sequence: known.file_uuid
            for sequence, known in sorted(self.files.items())
            if query.caller == ADMIN or known.owner_id == query.caller.subject
            if wanted in ("", known.shown(self._kind))
            if query.status in ("", known.status)
            if known.filename.startswith(query.filename_prefix)
        }


steps = st.tuples(
    st.sampled_from(["create", "create", "delete", "update", "progress", "complete"]),
    st.integers(0, 30),
    st.integers(0, 3),
    st.integers(0, 1),
)


@st.composite
def queries_of(draw: st.DrawFn) -> tuple[KindOfFile, Any]:
    """A kind and a query for its list, without cursor."""
    kind = draw(st.sampled_from(KINDS))
    narrow = draw(st.sampled_from(["", *NARROW]))
    narrow_field = {"project_file": "project_id", "vm": "md5"}.get(kind.name)
    query = kind.list_page(
        caller=draw(st.sampled_from([ALICE, BOB, ADMIN])),
        status=draw(st.sampled_from(["", "", "pending", "uploading", "available", "tombstoned"])),
        filename_prefix=draw(st.sampled_from(["", "", "l", "la%", "L"])),
        limit=draw(st.integers(1, 6)),
        **({narrow_field: narrow} if narrow_field else {}),
    )
    return kind, query


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    yield from new_state(tmp_path)


def new_state(directory: Path) -> Iterator[State]:
    """A state with nodes and two users."""
    made = State(directory / "state.sqlite")
    made.nodes("n1", "n2", "n3")
    assert (made.user("alice"), made.user("bob")) == (ALICE, BOB)
    yield made
    made.store.close()


@settings(max_examples=100, deadline=None)
@given(
    asked=queries_of(),
    scan_max=st.integers(1, 12),
    before=st.lists(steps, max_size=25),
    between=st.lists(st.lists(steps, max_size=4), max_size=6),
)
def test_pages_under_changes_show_every_lasting_file_once_and_in_order(
    asked: tuple[KindOfFile, Any], scan_max: int, before: list[Any], between: list[list[Any]]
) -> None:
    kind, query = asked
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(pages, "LIST_SCAN_MAX", scan_max)
        for state in new_state(Path(directory)):
            model = Model(state, kind)
            for step in before:
                model.apply(step)
            lasting = set(model.matching(query).values())
            seen: list[str] = []
            while True:
                matching = model.matching(query)
                page = state.ask(query)
                found = [file["file_uuid"] for file in page["files"]]
                end = page["next_cursor"] or state.log_index
                assert found == [uuid for at, uuid in matching.items() if query.cursor < at <= end]
                assert len(found) <= query.limit
                seen += found
                if not page["next_cursor"]:
                    break
                assert page["next_cursor"] > query.cursor
                query = msgspec.structs.replace(query, cursor=page["next_cursor"])
                for step in between.pop(0) if between else ():
                    model.apply(step)
                lasting &= set(model.matching(query).values())
            assert len(seen) == len(set(seen))
            assert lasting <= set(seen)


def test_page_looks_at_no_more_rows_than_its_bound(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LIST_SCAN_MAX", 3)
    for number in range(7):
        state.apply(create(ALICE, f"f{number}", filename="wanted" if number == 5 else "other"))
    query = queries.ListProjectFiles(caller=ALICE, filename_prefix="want")
    found = []
    for _ in range(3):
        page = state.ask(query)
        found.append([file["file_uuid"] for file in page["files"]])
        query = msgspec.structs.replace(query, cursor=page["next_cursor"])
    assert found == [[], ["f5"], []]
    assert page["next_cursor"] == 0


@pytest.mark.parametrize("character", ["a", "\N{GRINNING FACE}"])
def test_page_ends_with_its_bytes_of_text(state: State, character: str) -> None:
    document = json.dumps({"a": character * (60_000 // len(character.encode()))}, ensure_ascii=False)
    for number in range(40):
        state.apply(create_vm(ALICE, f"f{number}", extra_attributes_json=document))
    query, sizes, found = queries.ListVms(caller=ALICE), list[int](), list[str]()
    while not sizes or query.cursor:
        page = state.ask(query)
        sizes.append(sum(len(file["extra_attributes_json"].encode()) for file in page["files"]))
        found += [file["file_uuid"] for file in page["files"]]
        query = msgspec.structs.replace(query, cursor=page["next_cursor"])
    assert found == [f"f{number}" for number in range(40)]
    assert len(sizes) == 2
    assert max(sizes) < pages.PAGE_BYTES_MAX + len(document.encode())


def test_search_by_md5_counts_what_others_own_as_looked_at(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LIST_SCAN_MAX", 3)
    for number, owner in enumerate([BOB, BOB, BOB, ALICE]):
        state.apply(create_vm(owner, f"f{number}"))
        whole = complete(owner, f"f{number}", "aa", ["n1", "n2"])
        state.apply(msgspec.structs.replace(whole, md5="n0"))
    first = state.ask(queries.ListVms(caller=ALICE, md5="n0"))
    assert first["files"] == []
    rest = state.ask(queries.ListVms(caller=ALICE, md5="n0", cursor=first["next_cursor"]))
    assert [file["file_uuid"] for file in rest["files"]] == ["f3"]
    assert rest["next_cursor"] == 0


def test_page_whose_bound_is_the_last_row_has_no_next_one(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LIST_SCAN_MAX", 3)
    for number in range(3):
        state.apply(create(ALICE, f"f{number}"))
    state.apply(create(BOB, "not seen"))
    query = queries.ListProjectFiles(caller=ALICE, status="available")
    assert state.ask(query) == {"files": [], "next_cursor": 0}


def test_prefix_is_taken_literally(state: State) -> None:
    for number, filename in enumerate(["a%b", "a_b", "axb", "A%b", "a*"]):
        state.apply(create(ADMIN, f"f{number}", filename=filename))
    for prefix, expected in (("a%", ["f0"]), ("a_", ["f1"]), ("a*", ["f4"]), ("A", ["f3"]), ("", 5)):
        files = state.ask(queries.ListProjectFiles(caller=ADMIN, filename_prefix=prefix))["files"]
        found = [file["file_uuid"] for file in files]
        assert found == expected if isinstance(expected, list) else len(found) == expected
    for prefix, expected in (("a%", 4), ("a", 1), ("", 5)):
        listed = state.ask(queries.ListProjectFiles(caller=ADMIN, without_prefix=prefix))["files"]
        assert len(listed) == expected


LISTS = [
    kind.list_page(caller=caller, limit=5, **narrow, **filters)
    for kind in KINDS
    for caller in (ALICE, ADMIN)
    for narrow in ({}, {"project_file": {"project_id": "n0"}, "vm": {"md5": "n0"}}.get(kind.name, {}))
    for filters in ({}, {"status": "available", "filename_prefix": "la"})
]
READS = [kind.get(caller=caller, file_uuid="f1") for kind in KINDS for caller in (ALICE, BOB, ADMIN)]
OTHER_READS = [
    query_type(caller=caller, file_uuid="f1")
    for query_type in (queries.GetManifest, queries.GetUpload, queries.GetContent)
    for caller in (ALICE, BOB)
]
CHANGES: list[commands.AnyCommand] = [
    *(kind.create(ALICE, f"f-{kind.name}") for kind in KINDS),
    *(kind.update(caller=ALICE, file_uuid=f"f-{kind.name}", **kind.changes) for kind in KINDS),
    create_backup(ALICE, "f-child", backup_type="incremental", parent_backup_uuid="f-backup"),
    commands.UpdateBackup(caller=ALICE, file_uuid="f-child", parent_backup_uuid="f-other"),
    commands.RecordProgress(caller=ALICE, file_uuid="f-vm", node_id="n1", offset_bytes=1),
    commands.DeclareSize(caller=ALICE, file_uuid="f-vm", size_bytes=5),
    complete(ALICE, "f-vm", "aa", ["n1", "n2"]),
    complete(ALICE, "f-project_file", "aa", ["n1", "n2"]),
    commands.TerminateUpload(caller=ALICE, file_uuid="f-child"),
    commands.DeleteFile(caller=ALICE, file_uuid="f-vm", kind="vm"),
    commands.DeleteFile(caller=ALICE, file_uuid="f-backup", kind=""),
    commands.CreatePartial(
        caller=ALICE, file_uuid="part", bucket_id=DEFAULT_BUCKET_ID, size_bytes=0, placement=["n1"]
    ),
    msgspec.structs.replace(create(ALICE, "f-whole", size_bytes=0), parts=["part"]),
    msgspec.structs.replace(create(ALICE, "f-whole", size_bytes=0), parts=["part"]),
    complete(ALICE, "f-whole", "bb", ["n1", "n2"], size_bytes=0),
]


class Explained(sqlite3.Connection):
    """Keeps the plan of each statement that runs."""

    plans: list[tuple[str, list[str]]]

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        plan = super().execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
        self.plans.append((sql, [step for *_, step in plan]))
        return super().execute(sql, parameters)


@pytest.fixture
def explained(state: State) -> Iterator[Explained]:
    with closing(sqlite3.connect(state.path, factory=Explained, isolation_level=None)) as db:
        db.plans = []
        yield db


def assert_plans_use_indexes(db: Explained) -> None:
    assert db.plans
    for sql, plan in db.plans:
        scanned = {name for step in plan for name in re.findall(r"^SCAN (\w+)", step)}
        assert scanned <= SMALL_TABLES, f"{sql}: {plan}"
        assert not [step for step in plan if "TEMP B-TREE" in step], f"{sql}: {plan}"


@pytest.mark.parametrize("query", [*LISTS, *READS, *OTHER_READS], ids=repr)
def test_no_read_scans_a_table_or_sorts(explained: Explained, query: queries.AnyQuery) -> None:
    machine.answer(explained, 0, query)
    assert_plans_use_indexes(explained)


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (queries.ListProjectFiles(caller=ALICE, status="x"), "project_files_by_owner"),
        (
            queries.ListProjectFiles(caller=ALICE, status="x", project_id="p"),
            "project_files_by_project_owner",
        ),
        (queries.ListProjectFiles(caller=ADMIN, status="x"), "PRIMARY KEY"),
        (queries.ListProjectFiles(caller=ADMIN, status="x", project_id="p"), "project_files_by_project "),
        (queries.ListVms(caller=ALICE, status="x"), "vms_by_owner"),
        (queries.ListVms(caller=ALICE, status="x", md5="m"), "vms_by_md5"),
        (queries.ListVms(caller=ADMIN, status="x", md5="m"), "vms_by_md5"),
        (queries.ListBackups(caller=ALICE, status="x"), "backups_by_owner"),
    ],
    ids=repr,
)
def test_index_that_fits_best_finds_the_candidates(
    explained: Explained, query: queries.AnyQuery, index: str
) -> None:
    machine.answer(explained, 0, query)
    plans = [plan for sql, plan in explained.plans if " k " in sql]
    assert len(plans) == 2
    for plan in plans:
        assert index in plan[0]


def test_no_change_scans_a_table_or_sorts(state: State, explained: Explained) -> None:
    state.apply(create_backup(ALICE, "f-other"))
    batch = machine.Batch(explained)
    for number, command in enumerate(CHANGES):
        envelope = commands.Envelope(0, 0, 0, state.at_ms, command)
        reply = msgspec.msgpack.decode(batch.apply(1000 + number, envelope), type=Reply)
        assert not reply.refusal, f"{command}: {reply.details}"
    assert_plans_use_indexes(explained)


def instructions(path: Path, query: queries.AnyQuery) -> int:
    """How many steps SQLite's virtual machine takes to answer."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(path)) as db:
        db.set_progress_handler(step, 1)
        reply = msgspec.msgpack.decode(machine.answer(db, 0, query), type=Reply)
    assert not reply.refusal
    return count


def test_reads_cost_the_same_among_many_more_files(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LIST_SCAN_MAX", 8)
    model = {kind.name: Model(state, kind) for kind in KINDS}

    def add(count: int) -> None:
        for number in range(count):
            for files in model.values():
                files.apply(("create", number // 2, 0, number))
                files.apply(("complete", -1, 0, 0))

    add(80)
    middle = state.log_index // 2
    before = [instructions(state.path, msgspec.structs.replace(query, cursor=middle)) for query in LISTS]
    add(240)
    after = [instructions(state.path, msgspec.structs.replace(query, cursor=middle)) for query in LISTS]
    assert after == before
