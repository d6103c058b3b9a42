"""Permissions in the state machine: granted, granted again, listed, withdrawn; bounds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.machine import permissions
from metadata.model.records import DEFAULT_BUCKET_ID
from metadata.protocol import commands
from tests.unit.state import ADMIN, HOUR_MS, State, create, create_bucket, grant, list_permissions, withdraw

TARGETS = pytest.mark.parametrize("on", ["file:f1", "bucket:b1"])


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    alice = made.user("alice")
    made.done(create_bucket(alice, "b1"))
    made.done(create(alice, "f1"))
    yield made
    made.store.close()


def entries(state: State, on: str) -> list[tuple[str, str, str]]:
    page = state.ask(list_permissions(ADMIN, on))
    return [(p["principal_type"], p["principal_id"], p["permission"]) for p in page["permissions"]]


@TARGETS
def test_grant_replies_with_the_entry_that_is_listed(state: State, on: str) -> None:
    alice = state.user("alice")
    made = state.done(grant(alice, on, "group:a:b", "write", expires_at_ms=state.at_ms + HOUR_MS))
    assert made == {
        "permission_id": f"{on} group:a:b write",
        "permission": "write",
        "principal_type": "group",
        "principal_id": "a:b",
        "granted_by": "alice",
        "created_at_ms": state.at_ms,
        "expires_at_ms": state.at_ms + HOUR_MS,
    }
    assert state.ask(list_permissions(ADMIN, on)) == {"permissions": [made], "next_cursor": 0}


@TARGETS
def test_same_grant_again_keeps_the_entry_with_the_new_expiry_and_grantor(state: State, on: str) -> None:
    first = state.done(grant(state.user("alice"), on, "user:bob", "read", expires_at_ms=state.at_ms + 1))
    state.at_ms += HOUR_MS
    again = state.done(grant(ADMIN, on, "user:bob", "read", permission_id="other"))
    assert again == {**first, "granted_by": "admin", "expires_at_ms": None}
    assert state.ask(list_permissions(ADMIN, on))["permissions"] == [again]
    for until in (state.at_ms + 9, state.at_ms + 1):  # the newest grant holds, also when it ends sooner
        third = state.done(grant(ADMIN, on, "user:bob", "read", permission_id="3", expires_at_ms=until))
        assert third == {**again, "expires_at_ms": until}
        assert state.ask(list_permissions(ADMIN, on))["permissions"] == [third]


@TARGETS
def test_life_is_counted_from_the_time_of_the_leader_also_when_it_is_granted_again(
    state: State, on: str
) -> None:
    for ttl_seconds in (60, 1):
        made = state.done(grant(ADMIN, on, "user:bob", "read", ttl_seconds=ttl_seconds))
        assert made["expires_at_ms"] == state.at_ms + 1000 * ttl_seconds
        assert state.ask(list_permissions(ADMIN, on))["permissions"] == [made]
        state.at_ms += HOUR_MS


@TARGETS
def test_other_levels_and_principals_are_other_entries(state: State, on: str) -> None:
    for principal, level in (
        ("user:x", "read"),
        ("user:x", "write"),
        ("group:x", "read"),
        ("role:x", "read"),
    ):
        state.done(grant(ADMIN, on, principal, level))
    assert entries(state, on) == [
        ("user", "x", "read"),
        ("user", "x", "write"),
        ("group", "x", "read"),
        ("role", "x", "read"),
    ]


@TARGETS
@pytest.mark.parametrize("early_ms", [0, 1])
def test_expiry_that_has_passed_is_named(state: State, on: str, early_ms: int) -> None:
    refusal = state.apply(grant(ADMIN, on, "user:bob", "read", expires_at_ms=state.at_ms - early_ms))
    assert refusal == "invalid_request"
    assert refusal.details.startswith("expires_at")
    assert entries(state, on) == []


@TARGETS
@pytest.mark.parametrize("level", ["read", "write"])
def test_nobody_grants_lists_or_withdraws_who_lacks_admin(state: State, on: str, level: str) -> None:
    bob = state.user("bob")
    given = state.done(grant(ADMIN, on, "user:bob", level))
    assert state.apply(grant(bob, on, "user:bob", "admin")) == "forbidden"
    assert state.apply(withdraw(bob, on, given["permission_id"])) == "forbidden"
    query = list_permissions(bob, on)
    assert state.ask(query) == "forbidden"
    state.done(grant(ADMIN, on, "user:bob", "admin"))
    assert state.done(grant(bob, on, "user:carl", "admin"))["granted_by"] == "bob"
    assert len(state.ask(query)["permissions"]) == 3


@TARGETS
def test_withdrawn_permission_is_gone(state: State, on: str) -> None:
    given = state.done(grant(ADMIN, on, "user:bob"))
    assert state.apply(withdraw(ADMIN, on, given["permission_id"])) is None
    assert entries(state, on) == []
    assert state.apply(withdraw(ADMIN, on, given["permission_id"])) == "not_found"


def test_permission_is_withdrawn_only_where_it_is(state: State) -> None:
    state.done(create(ADMIN, "f2"))
    given = state.done(grant(ADMIN, "file:f1", "user:bob"))
    for on in ("file:f2", "bucket:b1", f"bucket:{DEFAULT_BUCKET_ID}"):
        assert state.apply(withdraw(ADMIN, on, given["permission_id"])) == "not_found"
    assert len(entries(state, "file:f1")) == 1


@pytest.mark.parametrize("on", ["file:none", "bucket:none", "bucket:f1", "file:b1"])
def test_unknown_target_is_not_found(state: State, on: str) -> None:
    assert state.apply(grant(ADMIN, on, "user:bob")) == "not_found"
    assert state.apply(withdraw(ADMIN, on, "p1")) == "not_found"
    assert state.ask(list_permissions(ADMIN, on)) == "not_found"


@TARGETS
def test_taken_permission_id_is_a_conflict(state: State, on: str) -> None:
    state.done(grant(ADMIN, on, "user:bob", permission_id="p1"))
    assert state.apply(grant(ADMIN, on, "user:carl", permission_id="p1")) == "conflict"


@TARGETS
def test_permissions_of_one_target_are_bounded(
    state: State, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "PERMISSIONS_MAX", 3)
    for number in range(3):
        state.done(grant(ADMIN, on, f"user:{number}"))
    refusal = state.apply(grant(ADMIN, on, "user:more"))
    assert (refusal, "3 permissions" in refusal.details) == ("conflict", True)
    state.done(grant(ADMIN, on, "user:0"))  # again is no other
    state.done(withdraw(ADMIN, on, f"{on} user:1 read"))
    state.done(grant(ADMIN, on, "user:more"))


@TARGETS
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_permissions_are_listed_in_pages_in_the_order_of_their_creation(
    state: State, on: str, limit: int
) -> None:
    for number in range(7):
        state.done(grant(ADMIN, on, f"user:{9 - number}"))
    state.done(grant(ADMIN, on, "user:7", expires_at_ms=state.at_ms + 1))
    state.at_ms += HOUR_MS  # expired ones are listed until they are swept
    seen: list[str] = []
    cursor = 0
    while True:
        page = state.ask(list_permissions(ADMIN, on, limit=limit, cursor=cursor))
        assert len(page["permissions"]) <= limit
        seen += [entry["principal_id"] for entry in page["permissions"]]
        if not (cursor := page["next_cursor"]):
            break
    assert seen == [str(9 - number) for number in range(7)]


@pytest.mark.parametrize("on", ["file:f1", "bucket:b1"])
def test_permissions_go_with_their_target(state: State, on: str) -> None:
    alice = state.user("alice")
    state.done(grant(ADMIN, on, "user:bob", "admin"))
    if on == "file:f1":
        state.done(commands.DeleteFile(caller=alice, file_uuid="f1", kind=""))
        state.done(create(alice, "f1"))
    else:
        state.done(commands.DeleteBucket(caller=alice, bucket_id="b1"))
        state.done(create_bucket(alice, "b1"))
    assert entries(state, on) == []
