"""What holds for every kind of file: records, updates, permission, what is found as what."""

import msgspec
import pytest

from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State, complete, create, grant
from tests.unit.stored_kinds import KINDS, KindOfFile

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
FIELDS = [(kind, field) for kind in KINDS for field in kind.changes]


@every_kind
def test_record_shows_what_its_creation_said(state: State, kind: KindOfFile) -> None:
    alice = state.user("alice")
    upload = state.apply(kind.create(alice, "f1", **kind.changes, size_bytes=7, filename="größe"))
    assert (upload["kind"], upload["status"], upload["size_bytes"]) == (kind.name, "pending", 7)
    assert state.ask(queries.GetUpload(caller=alice, file_uuid="f1"))["kind"] == kind.name
    record = state.ask(kind.get(caller=alice, file_uuid="f1"))
    assert {name: record[name] for name in kind.changes} == kind.changes
    assert (record["filename"], record["size_bytes"], record["owner_id"]) == ("größe", 7, "alice")
    assert (record["blob_sha256"], record["status"]) == ("", "pending")
    assert state.ask(kind.list_page(caller=alice)) == {"files": [record], "next_cursor": 0}


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda value: getattr(value, "name", value))
def test_update_changes_the_field_that_it_names_and_no_other(
    state: State, kind: KindOfFile, field: str
) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    state.apply(kind.create(ADMIN, "f2"))
    before, other = (state.ask(kind.get(caller=ADMIN, file_uuid=file_uuid)) for file_uuid in ("f1", "f2"))
    assert before[field] != kind.changes[field]
    state.at_ms += 1
    replied = state.apply(kind.update(caller=ADMIN, file_uuid="f1", **{field: kind.changes[field]}))
    assert replied == {**before, field: kind.changes[field], "updated_at_ms": before["updated_at_ms"] + 1}
    assert state.ask(kind.get(caller=ADMIN, file_uuid="f1")) == replied
    assert state.ask(kind.get(caller=ADMIN, file_uuid="f2")) == other


@every_kind
def test_update_back_to_false_and_empty_holds(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    before = state.ask(kind.get(caller=ADMIN, file_uuid="f1"))
    state.apply(kind.update(caller=ADMIN, file_uuid="f1", **kind.changes))
    back = {name: before[name] for name in kind.changes}
    after = state.apply(kind.update(caller=ADMIN, file_uuid="f1", **back))
    assert after == before | {"updated_at_ms": before["updated_at_ms"] + 2}  # one for each change at least


@every_kind
def test_update_that_names_nothing_changes_nothing(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    before = state.ask(kind.get(caller=ADMIN, file_uuid="f1"))
    state.at_ms += 1
    assert state.apply(kind.update(caller=ADMIN, file_uuid="f1")) == before
    assert state.ask(kind.get(caller=ADMIN, file_uuid="f1")) == before


@every_kind
def test_file_is_not_found_as_another_kind(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    for other in KINDS:
        if other is not kind:
            assert state.ask(other.get(caller=ADMIN, file_uuid="f1")) == "not_found"
            assert state.apply(other.update(caller=ADMIN, file_uuid="f1", **other.changes)) == "not_found"
            delete = commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=other.name)
            assert state.apply(delete) == "not_found"
            assert state.ask(other.list_page(caller=ADMIN))["files"] == []


@every_kind
def test_reading_takes_read_and_changing_takes_write(state: State, kind: KindOfFile) -> None:
    bob = state.user("bob")
    state.apply(kind.create(state.user("alice"), "f1"))
    get = kind.get(caller=bob, file_uuid="f1")
    update = kind.update(caller=bob, file_uuid="f1", **kind.changes)
    assert (state.ask(get), state.apply(update)) == ("forbidden", "forbidden")
    state.done(grant(ADMIN, "file:f1", "user:bob", "read"))
    assert state.ask(get)["owner_id"] == "alice"
    assert state.apply(update) == "forbidden"
    state.done(grant(ADMIN, "file:f1", "user:bob", "write"))
    assert state.apply(update)["owner_id"] == "alice"


@every_kind
def test_list_leaves_out_what_was_only_granted(state: State, kind: KindOfFile) -> None:
    bob = state.user("bob")
    state.apply(kind.create(state.user("alice"), "f1"))
    state.done(grant(ADMIN, "file:f1", "user:bob", "admin"))
    assert state.ask(kind.list_page(caller=bob)) == {"files": [], "next_cursor": 0}


@every_kind
def test_deletion_takes_the_row_of_the_kind_and_what_hangs_on_it(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    state.apply(complete(ADMIN, "f1", "aa", ["n1", "n2"]))
    state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=kind.name))
    assert state.ask(kind.get(caller=ADMIN, file_uuid="f1")) == "not_found"
    assert state.ask(kind.list_page(caller=ADMIN))["files"] == []
    assert not [line for line in state.dump() if "'f1'" in line]


@every_kind
def test_refused_creation_leaves_no_row(state: State, kind: KindOfFile) -> None:
    state.apply(kind.create(ADMIN, "f1"))
    before = [line for line in state.dump() if '"applied"' not in line]
    assert state.apply(kind.create(ADMIN, "f1")) == "invalid_request"
    assert state.apply(kind.create(ADMIN, "f2", bucket_id="nowhere")) == "invalid_request"
    assert [line for line in state.dump() if '"applied"' not in line] == before


def test_sizes_that_no_column_could_add_up_are_refused(state: State) -> None:
    size_bytes = 2**53 - 1
    for number, expected in enumerate([None, "payload_too_large"]):
        state.done(create(ADMIN, f"big-{number}", size_bytes=size_bytes))
        command = complete(ADMIN, f"big-{number}", f"sha-{number}", ["n1", "n2"])
        answer = state.apply(msgspec.structs.replace(command, size_bytes=size_bytes))
        assert answer == expected if expected else answer["file"]["status"] == "available"
    assert state.store.totals()[2] == size_bytes
