"""A field that a kind of file got later, in a table of its own: unset where nobody gave it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec import UNSET, UnsetType

from coordinator.machine import kinds
from coordinator.machine.execution.access import Level, Users, require_user
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.replies import Sessions
from metadata.model.records import DEFAULT_BUCKET_ID, FileRecord
from metadata.protocol.commands import CreateFile, UpdateFile
from metadata.protocol.queries import ListFilesQuery
from tests.unit.state import ADMIN, State

TABLES = """
    CREATE TABLE labs (sequence INTEGER PRIMARY KEY, file_uuid, owner_id, title TEXT NOT NULL);
    CREATE TABLE labs_course (sequence INTEGER PRIMARY KEY, course TEXT NOT NULL);
    CREATE TABLE labs_is_open (sequence INTEGER PRIMARY KEY, is_open INTEGER NOT NULL);
"""


class LabRecord(FileRecord, frozen=True, kw_only=True):
    """Of a kind that is only here."""

    title: str
    course: str | UnsetType = UNSET
    is_open: bool | UnsetType = UNSET


class CreateLab(CreateFile, frozen=True, kw_only=True, tag="create_lab"):
    title: str
    course: str | UnsetType = UNSET
    is_open: bool | UnsetType = UNSET


class UpdateLab(UpdateFile, frozen=True, kw_only=True, tag="update_lab"):
    title: str | None = None
    course: str | UnsetType | None = UNSET
    is_open: bool | UnsetType | None = UNSET


class ListLabs(ListFilesQuery, frozen=True, kw_only=True, tag="list_labs"):
    course: str = ""


KIND = kinds.describe("lab", "labs", LabRecord, CreateLab, UpdateLab, ListLabs)


@pytest.fixture
def change(state: State) -> Iterator[Change]:
    """The next one, in a database with a table of the kind."""
    state.store.close()
    with closing(sqlite3.connect(state.path, isolation_level=None)) as db:
        db.executescript(TABLES)
        yield Change(db, state.log_index + 1, state.at_ms, Users(db), Sessions(db))


def created(change: Change, course: str | UnsetType = UNSET) -> LabRecord:
    command = CreateLab(
        caller=ADMIN,
        file_uuid="f1",
        bucket_id=DEFAULT_BUCKET_ID,
        filename="lab",
        content_type="application/zip",
        size_bytes=None,
        expected_sha256="",
        retention_hours=None,
        title="first",
        course=course,
        placement=["n1"],
    )
    kinds.create(change, KIND, require_user(change.users, ADMIN), command)
    return found(change)


def found(change: Change) -> LabRecord:
    return kinds.get(Question(change.db, change.at_ms, change.users), KIND, ADMIN, "f1")


def updated(change: Change, command: UpdateLab) -> LabRecord:
    user = require_user(change.users, ADMIN)
    sequence, record = kinds.require(change, KIND, user, "f1", Level.WRITE)
    return kinds.store(change, KIND, sequence, record, command, kinds.named(KIND, command))


def test_field_that_was_not_given_is_unset_and_stays_so(change: Change) -> None:
    record = created(change)
    assert (record.course, record.is_open) == (UNSET, UNSET)
    assert change.db.execute("SELECT * FROM labs_course, labs_is_open").fetchall() == []
    command = UpdateLab(caller=ADMIN, file_uuid="f1")
    assert kinds.named(KIND, command) == {}
    assert updated(change, command) == record


def test_field_that_was_given_is_shown_and_changes(change: Change) -> None:
    assert created(change, "networks").course == "networks"
    after = updated(change, UpdateLab(caller=ADMIN, file_uuid="f1", is_open=True))
    assert (after.course, after.is_open) == ("networks", True)
    assert found(change) == after
    after = updated(change, UpdateLab(caller=ADMIN, file_uuid="f1", title="second", course="history"))
    assert (after.title, after.course, after.is_open) == ("second", "history", True)
    assert found(change) == after


@pytest.mark.parametrize(("course", "count"), [("networks", 1), ("history", 0), ("", 1)])
def test_list_is_narrowed_by_a_field_without_an_index(change: Change, course: str, count: int) -> None:
    created(change, "networks")
    question = Question(change.db, change.at_ms, change.users)
    files, next_cursor = kinds.list_page(question, KIND, ListLabs(caller=ADMIN, course=course))
    assert (len(files), next_cursor) == (count, 0)
