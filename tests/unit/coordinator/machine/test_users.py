"""Users in the state machine: admitted, changed, revoked, deleted, back again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.machine import users
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    State,
    create,
    create_backup,
    create_bucket,
    create_vm,
    grant,
    join,
    join_token,
    list_permissions,
    public_token,
    put_user,
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def admit(user_id: str, **changes: Any) -> commands.AdmitUser:
    command = commands.AdmitUser(caller=ADMIN, user_id=user_id, roles=None, groups=None)
    return msgspec.structs.replace(command, **changes)


def revoke(user_id: str, caller: Caller = ADMIN) -> commands.RevokeUser:
    return commands.RevokeUser(caller=caller, user_id=user_id)


def delete(user_id: str, caller: Caller = ADMIN) -> commands.DeleteUser:
    return commands.DeleteUser(caller=caller, user_id=user_id)


def find(state: State, user_id: str) -> Any:
    return state.ask(queries.FindUser(caller=ADMIN, user_id=user_id))


def permissions_on(state: State, on: str) -> list[str]:
    entries = state.ask(list_permissions(ADMIN, on))["permissions"]
    return [entry["principal_id"] for entry in entries]


def rows(state: State) -> list[str]:
    """Everything but how far the log was applied."""
    return [line for line in state.dump() if '"applied"' not in line]


def test_put_creates_a_user_and_none_leaves_a_field(state: State) -> None:
    made = state.done(put_user("alice", roles=["b", "a", "b"]))
    assert made == {
        "user_id": "alice",
        "roles": ["a", "b"],
        "groups": [],
        "generation": 1,
        "disabled": False,
        "created_at_ms": state.at_ms,
        "updated_at_ms": state.at_ms,
    }
    state.at_ms += 1
    changed = state.done(put_user("alice", groups=["g"], disabled=True))
    assert changed == {**made, "groups": ["g"], "disabled": True, "updated_at_ms": state.at_ms}
    assert state.done(put_user("alice")) == changed == find(state, "alice")


def test_order_of_roles_and_groups_leaves_no_trace(tmp_path: Path) -> None:
    dumps = []
    for name, step in (("one", 1), ("other", -1)):
        state = State(tmp_path / name)
        state.done(put_user("alice", roles=["a", "b", "c"][::step], groups=["x", "y"][::step]))
        dumps.append(rows(state))
        state.store.close()
    assert dumps[0] == dumps[1]


def test_users_are_the_admins_business(state: State) -> None:
    alice, _ = state.user("alice"), state.user("bob")
    before = rows(state)
    for command in (put_user("bob", caller=alice), revoke("bob", alice), delete("bob", alice)):
        assert state.apply(command) == "forbidden"
    assert state.ask(queries.FindUser(caller=alice, user_id="alice")) == "forbidden"
    assert state.ask(queries.ListUsers(caller=alice)) == "forbidden"
    assert state.ask(queries.GetUser(caller=alice))["user_id"] == "alice"
    assert rows(state) == before


@pytest.mark.parametrize(
    "command",
    [
        put_user("admin", disabled=True),
        put_user("admin", roles=["other"]),
        put_user("admin", roles=[]),
        admit("admin", roles=[]),
        delete("admin"),
    ],
)
def test_admin_does_not_lock_itself_out(state: State, command: commands.AnyCommand) -> None:
    assert state.apply(command) == "conflict"
    assert find(state, "admin")["roles"] == ["admin"]


def test_admin_changes_its_own_record_while_it_stays_admin(state: State) -> None:
    changed = state.done(put_user("admin", roles=["admin", "other"], groups=["g"], disabled=False))
    assert (changed["roles"], changed["groups"]) == (["admin", "other"], ["g"])


def test_disabled_user_gets_no_token(state: State) -> None:
    state.user("alice")
    state.done(put_user("alice", disabled=True))
    assert state.apply(admit("alice")) == "conflict"
    state.done(put_user("alice", disabled=False))
    assert state.done(admit("alice"))["generation"] == 1


def test_revocation_ends_tokens_permissions_and_links_in_one_change(state: State) -> None:
    alice, bob = state.user("alice", groups=["lab"]), state.user("bob")
    state.done(create_bucket(bob, "b1"))
    state.done(create(bob, "f1"))
    for on in ("file:f1", "bucket:b1", f"bucket:{DEFAULT_BUCKET_ID}"):
        state.done(grant(ADMIN, on, "user:alice", "admin"))
        state.done(grant(ADMIN, on, "group:lab", "read"))
        state.done(grant(ADMIN, on, "user:bob", "read"))
    state.done(public_token(alice, "f1", "t1"))
    state.done(public_token(bob, "f1", "t2"))
    assert state.apply(revoke("alice")) is None
    assert state.ask(queries.GetUser(caller=alice)) == "unauthorized"
    for on in ("file:f1", "bucket:b1", f"bucket:{DEFAULT_BUCKET_ID}"):
        assert permissions_on(state, on) == ["lab", "bob"]
    tokens = state.ask(queries.ListPublicTokens(caller=bob, file_uuid="f1"))["public_tokens"]
    assert [token["status"] for token in tokens] == ["revoked", "active"]
    again = state.user("alice")
    assert (again.generation, find(state, "alice")["groups"]) == (2, ["lab"])
    assert state.ask(queries.GetProjectFile(caller=again, file_uuid="f1"))["file_uuid"] == "f1"


def test_revocation_holds_for_commands_of_the_same_batch(state: State) -> None:
    alice = state.user("alice")
    values = state.apply_batch(
        create(alice, "f1"),
        revoke("alice"),
        create(alice, "f2"),
        create(Caller("alice", 2), "f3"),
        put_user("alice", disabled=True),
        create(Caller("alice", 2), "f4"),
    )
    outcomes = [value if isinstance(value, str) else "" for value in values]
    assert outcomes == ["", "", "unauthorized", "", "", "unauthorized"]


def test_admin_may_revoke_itself(state: State) -> None:
    state.done(revoke("admin"))
    assert state.ask(queries.CheckAdmin(caller=ADMIN)) == "unauthorized"
    assert state.ask(queries.CheckAdmin(caller=Caller("admin", 2)))["user_id"] == "admin"


@pytest.mark.parametrize("command", [revoke("nobody"), delete("nobody"), revoke("gone"), delete("gone")])
def test_unknown_and_deleted_users_are_not_found(state: State, command: commands.AnyCommand) -> None:
    state.user("gone")
    state.done(delete("gone"))
    assert state.apply(command) == "not_found"
    assert find(state, "nobody") == find(state, "gone") == "not_found"


@pytest.mark.parametrize("make", [create, create_vm, create_backup])
def test_user_that_owns_files_is_not_deleted(state: State, make: Any) -> None:
    alice = state.user("alice")
    state.done(make(alice, "f1"))
    assert state.apply(delete("alice")) == "conflict"
    state.done(commands.DeleteFile(caller=alice, file_uuid="f1", kind=""))
    assert state.apply(delete("alice")) is None


def test_user_that_owns_buckets_is_not_deleted(state: State) -> None:
    alice = state.user("alice")
    state.done(create_bucket(alice, "b1"))
    assert state.apply(delete("alice")) == "conflict"
    state.done(commands.DeleteBucket(caller=alice, bucket_id="b1"))
    assert state.apply(delete("alice")) is None


def test_first_admin_may_be_deleted_though_the_default_bucket_names_it(state: State) -> None:
    second = state.user("second", roles=["admin"])
    assert state.apply(delete("admin", second)) is None
    assert state.ask(queries.CheckAdmin(caller=ADMIN)) == "unauthorized"


def test_deleted_user_is_unknown_and_comes_back_with_a_risen_generation(state: State) -> None:
    alice = state.user("alice", roles=["staff"], groups=["lab"])
    state.done(create(ADMIN, "f1"))
    state.done(grant(ADMIN, "file:f1", "user:alice", "admin"))
    state.done(public_token(alice, "f1", "t1"))
    state.done(delete("alice"))
    assert state.ask(queries.GetUser(caller=alice)) == "unauthorized"
    assert state.ask(queries.GetUser(caller=Caller("alice", 2))) == "unauthorized"
    assert permissions_on(state, "file:f1") == []
    state.at_ms += HOUR_MS
    back = state.done(admit("alice"))
    assert back == {
        "user_id": "alice",
        "roles": [],
        "groups": [],
        "generation": 2,
        "disabled": False,
        "created_at_ms": state.at_ms,
        "updated_at_ms": state.at_ms,
    }
    assert state.ask(queries.GetUser(caller=alice)) == "unauthorized"
    assert state.ask(queries.GetUser(caller=Caller("alice", 2))) == back
    links = state.ask(queries.ListPublicTokens(caller=ADMIN, file_uuid="f1"))["public_tokens"]
    assert [link["status"] for link in links] == ["revoked"]


def test_disabled_user_that_was_deleted_comes_back_enabled(state: State) -> None:
    state.done(put_user("alice", disabled=True, roles=["staff"]))
    state.done(delete("alice"))
    back = state.done(put_user("alice"))
    assert (back["disabled"], back["roles"], back["generation"]) == (False, [], 2)


def listed(state: State, limit: int) -> list[str]:
    seen: list[str] = []
    cursor = 0
    while True:
        page = state.ask(queries.ListUsers(caller=ADMIN, limit=limit, cursor=cursor))
        assert len(page["users"]) <= limit
        seen += [user["user_id"] for user in page["users"]]
        if not (cursor := page["next_cursor"]):
            return seen


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 1000])
@pytest.mark.parametrize("rows_max", [1, 2, 5000])
def test_users_are_listed_in_pages_in_the_order_of_their_creation(
    state: State, monkeypatch: pytest.MonkeyPatch, limit: int, rows_max: int
) -> None:
    for name in ("e", "d", "c", "b", "a", "0"):
        state.user(name)
    for name in ("e", "c", "0"):
        state.done(delete(name))
    state.user("c")  # as a new one
    monkeypatch.setattr(users, "LIST_SCAN_MAX", rows_max)
    assert listed(state, limit) == ["admin", "d", "b", "a", "c"]


def test_names_that_no_token_has_room_for_are_refused_before_anything_changes(state: State) -> None:
    many = [f"{number:02}" + "x" * 62 for number in range(40)]
    before = rows(state)
    for command in (
        admit("carol", roles=many),
        commands.PutUser(caller=ADMIN, user_id="carol", roles=many[:20], groups=many[20:], disabled=None),
    ):
        refusal = state.apply(command)
        assert refusal == "invalid_request"
        assert refusal.details.startswith("roles: ")
    assert rows(state) == before


@pytest.mark.parametrize("ending", ["revoke", "delete", "disable", "demote"])
def test_join_token_ends_with_what_its_maker_may(state: State, ending: str) -> None:
    maker = state.user("maker", roles=["admin"])
    state.done(join_token("t1", caller=maker))
    put = commands.PutUser(caller=ADMIN, user_id="maker", roles=None, groups=None, disabled=None)
    endings: dict[str, commands.AnyCommand] = {
        "revoke": revoke("maker"),
        "delete": delete("maker"),
        "disable": msgspec.structs.replace(put, disabled=True),
        "demote": msgspec.structs.replace(put, roles=[]),
    }
    state.done(endings[ending])
    assert state.apply(join("t1", "n1")) == "unauthorized"
    assert state.ask(queries.ListNodes(caller=ADMIN)) == []
    assert state.apply(join_token("t1")) == "conflict"  # nor does another admin make it known again


@pytest.mark.parametrize("ending", ["revoke", "delete"])
def test_join_token_that_was_used_admits_nobody_after_the_end_of_its_maker(state: State, ending: str) -> None:
    maker = state.user("maker", roles=["admin"])
    other = state.user("other", roles=["admin"])
    for token_id, caller in (("t1", maker), ("t2", other)):
        state.done(join_token(token_id, caller=caller, uses_max=3))
        state.done(join(token_id, f"{token_id}-1"))
    state.done(revoke("maker") if ending == "revoke" else delete("maker"))
    state.user("maker", roles=["admin"])
    assert state.apply(join("t1", "t1-2")) == "unauthorized"
    state.done(join("t1", "t1-1"))  # again, as the answer may have been lost
    state.done(join("t2", "t2-2"))
    tokens = state.ask(queries.ListJoinTokens(caller=ADMIN))["join_tokens"]
    assert [(token["uses"], token["uses_max"]) for token in tokens] == [(1, 1), (2, 3)]


def check(state: State, kind: Any, name: str) -> Any:
    caller = state.user("curious")  # no admin
    return state.ask(queries.CheckPrincipal(caller=caller, principal_type=kind, principal_id=name))


@pytest.mark.parametrize(("kind", "names"), [("group", "groups"), ("role", "roles")])
def test_group_or_role_exists_while_a_user_has_it(state: State, kind: str, names: str) -> None:
    assert check(state, kind, "lab") == "not_found"
    state.done(put_user("alice", **{names: ["a", "lab"]}))
    assert check(state, kind, "lab") is None
    assert [check(state, other, "lab") for other in {"user", "group", "role"} - {kind}] == ["not_found"] * 2
    state.done(put_user("alice", **{names: ["labs", "la"]}))
    assert check(state, kind, "lab") == "not_found"
    state.done(put_user("alice", **{names: ["lab"]}))
    state.done(delete("alice"))
    assert check(state, kind, "lab") == "not_found"


def test_user_exists_until_it_is_deleted_and_built_in_roles_always(state: State) -> None:
    state.done(put_user("alice"))
    assert check(state, "user", "alice") is None
    state.done(delete("alice"))
    assert check(state, "user", "alice") == "not_found"
    assert [check(state, "role", name) for name in ("admin", "service")] == [None, None]
    nobody = queries.CheckPrincipal(caller=Caller("alice", 1), principal_type="user", principal_id="admin")
    assert state.ask(nobody) == "unauthorized"


def test_generations_go_by_the_clock_and_none_comes_twice(state: State) -> None:
    state.at_ms = 1_800_000_000_000
    seconds = (state.at_ms - 1_577_836_800_000) // 1000
    assert state.user("alice").generation == seconds
    for expected in (seconds + 1, seconds + 2):
        state.done(commands.RevokeUser(caller=ADMIN, user_id="alice"))
        assert state.user("alice").generation == expected
    state.at_ms += 60_000
    assert state.user("bob").generation == seconds + 60
    state.done(commands.RevokeUser(caller=ADMIN, user_id="alice"))
    assert state.user("alice").generation == seconds + 60
