"""Lists of one's links and permissions: what is on them, for whom, and in which pages."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import queries
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    State,
    complete,
    create,
    create_bucket,
    grant,
    public_token,
    put_user,
    withdraw,
)

ALICE, BOB, CAROL = (Caller(name, 1) for name in ("alice", "bob", "carol"))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """The bucket `b1` of Alice with her file `f1`, and `f2` of Bob in the default bucket."""
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3")
    for name in ("alice", "bob", "carol"):
        made.user(name)
    made.done(put_user("carol", groups=["students"]))
    made.done(create_bucket(ALICE, "b1"))
    made.done(create(ALICE, "f1", bucket_id="b1"))
    made.done(create(BOB, "f2"))
    for caller, file_uuid in ((ALICE, "f1"), (BOB, "f2")):
        made.done(complete(caller, file_uuid, "aa", ["n1", "n2"]))
    yield made
    made.store.close()


def permissions(state: State, caller: Caller, **page: Any) -> list[tuple[str, str, str]]:
    """Place, principal and level of each, page after page."""
    found: list[tuple[str, str, str]] = []
    cursor = 0
    while True:
        query = queries.ListOwnPermissions(caller=caller, cursor=cursor, **page)
        answer = state.ask(query)
        assert len(answer["permissions"]) <= query.limit
        for each in answer["permissions"]:
            place = each["file_uuid"] or each["bucket_id"]
            found.append((place, f"{each['principal_type']}:{each['principal_id']}", each["permission"]))
        if not (cursor := answer["next_cursor"]):
            return found


def links(state: State, caller: Caller, **page: Any) -> list[str]:
    return [
        each["token_id"]
        for each in state.ask(queries.ListOwnPublicTokens(caller=caller, **page))["public_tokens"]
    ]


def test_permissions_are_those_one_has_gave_or_owns(state: State) -> None:
    state.done(grant(ALICE, "bucket:b1", "user:bob", "admin"))
    state.done(grant(BOB, "file:f1", "group:students", "read"))
    state.done(grant(BOB, "file:f2", "user:carol", "write"))
    on_b1, on_f1, on_f2 = (
        ("b1", "user:bob", "admin"),
        ("f1", "group:students", "read"),
        ("f2", "user:carol", "write"),
    )
    assert permissions(state, ALICE) == [on_b1, on_f1]
    assert permissions(state, BOB) == [on_b1, on_f1, on_f2]
    assert permissions(state, CAROL) == [on_f1, on_f2]
    assert permissions(state, ADMIN) == [on_b1, on_f1, on_f2]


def test_permission_says_what_it_is_on(state: State) -> None:
    state.done(grant(ALICE, "bucket:b1", "user:bob", "read"))
    state.done(grant(ALICE, "file:f1", "user:bob", "read"))
    bucket, file = state.ask(queries.ListOwnPermissions(caller=BOB))["permissions"]
    told = ("target", "bucket_id", "file_uuid", "kind", "granted_by")
    assert [bucket[name] for name in told] == ["bucket", "b1", "", "", "alice"]
    assert [file[name] for name in told] == ["file", "b1", "f1", "project_file", "alice"]
    assert bucket["name"]
    assert file["name"]


def test_what_has_expired_is_shown_to_who_gave_it_and_not_to_who_had_it(state: State) -> None:
    state.done(grant(ALICE, "file:f1", "user:bob", "read", expires_at_ms=state.at_ms + 1))
    state.at_ms += HOUR_MS
    assert permissions(state, BOB) == []
    assert permissions(state, ALICE) == permissions(state, ADMIN) == [("f1", "user:bob", "read")]


def test_who_has_lost_admin_does_not_see_what_it_gave(state: State) -> None:
    state.done(grant(ALICE, "bucket:b1", "user:bob", "admin"))
    state.done(grant(BOB, "file:f1", "user:carol", "read"))
    state.done(public_token(BOB, "f1", "t1"))
    assert permissions(state, BOB)[1:] == [("f1", "user:carol", "read")]
    assert links(state, BOB) == ["t1"]
    state.done(withdraw(ALICE, "bucket:b1", "bucket:b1 user:bob admin"))
    assert permissions(state, BOB) == []
    assert links(state, BOB) == []
    assert links(state, ALICE) == ["t1"]


def test_default_bucket_is_nobody_s(state: State) -> None:
    with closing(sqlite3.connect(state.path, isolation_level=None)) as db:
        db.execute("UPDATE buckets SET owner_id = 'bob' WHERE bucket_id = ?", (DEFAULT_BUCKET_ID,))
    state.done(grant(ADMIN, f"bucket:{DEFAULT_BUCKET_ID}", "user:carol", "read"))
    assert permissions(state, BOB) == []
    assert len(permissions(state, CAROL)) == len(permissions(state, ADMIN)) == 1


def test_pages_have_buckets_and_files_in_one_order(state: State) -> None:
    for number in range(5):
        state.done(grant(ALICE, "bucket:b1", f"user:u{number}", "read"))
        state.done(grant(ALICE, "file:f1", f"user:u{number}", "read"))
    expected = [(place, f"user:u{number}", "read") for number in range(5) for place in ("b1", "f1")]
    for limit in (1, 2, 3, 9, 10, 1000):
        assert permissions(state, ALICE, limit=limit) == permissions(state, ADMIN, limit=limit) == expected


def test_links_are_those_one_made_and_those_on_one_s_files(state: State) -> None:
    state.done(grant(ALICE, "file:f1", "user:bob", "admin"))
    state.done(public_token(ALICE, "f1", "t1"))
    state.done(public_token(BOB, "f1", "t2"))
    state.done(public_token(BOB, "f2", "t3"))
    assert links(state, ALICE) == ["t1", "t2"]
    assert links(state, BOB) == ["t2", "t3"]
    assert links(state, CAROL) == []
    assert links(state, ADMIN) == ["t1", "t2", "t3"]
    first = state.ask(queries.ListOwnPublicTokens(caller=ADMIN, limit=1))
    assert links(state, ADMIN, cursor=first["next_cursor"]) == ["t2", "t3"]
    link = first["public_tokens"][0]
    assert (link["kind"], link["created_by"], link["status"]) == ("project_file", "alice", "active")
    assert link["filename"]


def test_bucket_list_says_the_kind(state: State) -> None:
    page = state.ask(queries.ListBucketFiles(caller=ALICE, bucket_id="b1"))
    assert [each["kind"] for each in page["files"]] == ["project_file"]
