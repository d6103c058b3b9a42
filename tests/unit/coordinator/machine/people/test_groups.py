"""Groups in the state machine: their list, their members, and where a membership comes from."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine.execution.access import Users
from coordinator.machine.execution.change import Change
from coordinator.machine.execution.replies import Sessions
from coordinator.machine.people import groups
from coordinator.member.proposing import check_known
from metadata.model.rules import FIRST, RULES, NotInForce
from metadata.protocol import commands, people_queries, queries
from tests.unit.state import ADMIN, Refusal, State, create, create_bucket, grant, list_permissions, put_user


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def add(group: str, *user_ids: str) -> commands.AddMembers:
    return commands.AddMembers(caller=ADMIN, group=group, user_ids=list(user_ids))


def remove(group: str, user_id: str) -> commands.RemoveMember:
    return commands.RemoveMember(caller=ADMIN, group=group, user_id=user_id)


def listed(state: State) -> dict[str, int]:
    page = state.ask(people_queries.ListGroups(caller=ADMIN))
    return {each["group"]: each["members"] for each in page["groups"]}


def members(state: State, group: str) -> dict[str, list[str]]:
    page = state.ask(people_queries.ListMembers(caller=ADMIN, group=group))
    return {each["user_id"]: each["sources"] for each in page["members"]}


def groups_of(state: State, user_id: str) -> Any:
    return state.ask(queries.FindUser(caller=ADMIN, user_id=user_id))["groups"]


def give(state: State, user_id: str, source: str, *names: str) -> None:
    """What a sign-in at a provider does, in a transaction of its own."""
    with closing(sqlite3.connect(state.path, isolation_level=None)) as db:
        change = Change(db, state.log_index, state.at_ms, Users(db), Sessions(db))
        groups.replace_given(change, user_id, source, list(names))


def test_group_exists_without_members_and_with_them(state: State) -> None:
    state.user("alice", groups=["old"])
    made = state.done(commands.PutGroup(caller=ADMIN, group="netlab", description="Winter 2026"))
    assert made == {"group": "netlab", "description": "Winter 2026", "members": 0}
    assert listed(state) == {"netlab": 0, "old": 1}
    check = queries.CheckPrincipal(caller=ADMIN, principal_type="group", principal_id="netlab")
    assert state.ask(check) is None
    again = state.done(commands.PutGroup(caller=ADMIN, group="netlab"))
    assert again["description"] == "Winter 2026"


def test_members_are_added_all_or_none_and_a_repeated_call_changes_nothing(state: State) -> None:
    state.user("alice", groups=["old"])
    state.user("bob")
    refused = state.apply(add("netlab", "alice", "eve"))
    assert (refused, refused.details) == ("not_found", "There is no user named eve.")
    assert listed(state) == {"old": 1}
    assert state.done(add("netlab", "bob", "alice", "bob")) == ["bob", "alice"]
    assert members(state, "netlab") == {"alice": ["local"], "bob": ["local"]}
    assert groups_of(state, "alice") == ["netlab", "old"]
    before = state.ask(queries.FindUser(caller=ADMIN, user_id="bob"))
    state.at_ms += 1
    assert state.done(add("netlab", "bob")) == []
    assert state.ask(queries.FindUser(caller=ADMIN, user_id="bob")) == before


def test_member_that_is_removed_loses_its_access_with_that_command(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    state.done(create_bucket(bob, "b1"))
    state.done(create(bob, "f1", bucket_id="b1"))
    state.done(grant(ADMIN, "bucket:b1", "group:netlab", "read"))
    get = queries.GetProjectFile(caller=alice, file_uuid="f1")
    assert state.ask(get) == "forbidden"
    state.done(add("netlab", "alice"))
    assert state.ask(get)["file_uuid"] == "f1"
    state.done(remove("netlab", "alice"))
    assert state.ask(get) == "forbidden"
    assert state.apply(remove("netlab", "alice")) == "not_found"
    values = state.apply_batch(add("netlab", "alice"), remove("netlab", "alice"), create(alice, "f2"))
    assert not isinstance(values[2], Refusal)
    assert state.ask(get) == "forbidden"


def test_deleted_group_leaves_no_member_and_no_permission(state: State) -> None:
    state.user("alice", groups=["netlab", "other"])
    state.done(create_bucket(ADMIN, "b1"))
    state.done(create(ADMIN, "f1", bucket_id="b1"))
    state.done(grant(ADMIN, "bucket:b1", "group:netlab", "read"))
    state.done(grant(ADMIN, "file:f1", "group:netlab", "write"))
    state.done(grant(ADMIN, "file:f1", "group:other", "read"))
    give(state, "alice", "keycloak", "netlab")
    held = state.ask(people_queries.ListGroupPermissions(caller=ADMIN, group="netlab"))["permissions"]
    assert [(each["target"], each["permission"]) for each in held] == [("bucket", "read"), ("file", "write")]
    state.done(commands.DeleteGroup(caller=ADMIN, group="netlab"))
    assert listed(state) == {"other": 1}
    assert groups_of(state, "alice") == ["other"]
    assert state.ask(list_permissions(ADMIN, "bucket:b1"))["permissions"] == []
    assert [
        each["principal_id"] for each in state.ask(list_permissions(ADMIN, "file:f1"))["permissions"]
    ] == ["other"]
    state.done(add("netlab", "alice"))
    assert state.ask(people_queries.ListGroupPermissions(caller=ADMIN, group="netlab"))["permissions"] == []
    assert state.apply(commands.DeleteGroup(caller=ADMIN, group="none")) == "not_found"


def test_provider_replaces_its_own_groups_and_no_others(state: State) -> None:
    alice = state.user("alice", groups=["local-one"])
    state.done(create(ADMIN, "f1"))
    state.done(grant(ADMIN, "file:f1", "group:staff", "read"))
    give(state, "alice", "keycloak", "staff", "netlab")
    give(state, "alice", "entra", "staff")
    assert groups_of(state, "alice") == ["local-one", "netlab", "staff"]
    assert members(state, "staff") == {"alice": ["entra", "keycloak"]}
    assert state.ask(queries.GetProjectFile(caller=alice, file_uuid="f1"))["file_uuid"] == "f1"
    give(state, "alice", "keycloak")
    assert groups_of(state, "alice") == ["local-one", "staff"]
    give(state, "alice", "entra")
    assert groups_of(state, "alice") == ["local-one"]
    assert state.ask(queries.GetProjectFile(caller=alice, file_uuid="f1")) == "forbidden"


def test_group_of_a_provider_is_removed_there_and_stays_the_providers(state: State) -> None:
    state.user("alice")
    give(state, "alice", "keycloak", "staff")
    refused = state.apply(remove("staff", "alice"))
    assert (refused, "remove the user there" in refused.details) == ("conflict", True)
    state.done(put_user("alice", groups=["staff", "netlab"]))  # a record that is written back whole
    assert members(state, "staff") == {"alice": ["keycloak"]}
    state.done(add("staff", "alice"))
    assert members(state, "staff") == {"alice": ["local", "keycloak"]}
    state.done(put_user("alice", groups=["staff"]))
    assert members(state, "staff") == {"alice": ["local", "keycloak"]}
    state.done(remove("staff", "alice"))
    assert groups_of(state, "alice") == ["staff"]


def test_deleted_user_is_in_no_group_of_a_provider_when_its_name_comes_back(state: State) -> None:
    state.user("alice")
    give(state, "alice", "keycloak", "staff")
    state.done(commands.DeleteUser(caller=ADMIN, user_id="alice"))
    state.user("alice")
    assert groups_of(state, "alice") == []
    assert listed(state) == {}


def test_user_has_room_for_so_many_names_as_a_token(state: State) -> None:
    state.user("alice", groups=[f"g{number}" for number in range(60)])
    give(state, "alice", "keycloak", "s1", "s2", "s3", "g1")
    state.done(add("s1", "alice"))
    state.done(add("last", "alice"))
    refused = state.apply(add("more", "alice"))
    assert (refused, refused.details) == ("invalid_request", "groups: a user is in at most 64 groups.")
    state.user("bob")
    long = [f"{number:064}" for number in range(29)]
    state.done(put_user("bob", groups=long))
    assert state.apply(add("y" * 64, "bob")) == "invalid_request"


@pytest.mark.parametrize(
    "command",
    [
        add("g", "alice"),
        remove("g", "alice"),
        commands.PutGroup(caller=ADMIN, group="g"),
        commands.DeleteGroup(caller=ADMIN, group="g"),
    ],
)
def test_only_admins_manage_groups(state: State, command: Any) -> None:
    alice = state.user("alice", groups=["g"])
    assert state.apply(type(command)(**{**_fields(command), "caller": alice})) == "forbidden"
    for query in (
        people_queries.ListGroups(caller=alice),
        people_queries.ListMembers(caller=alice, group="g"),
        people_queries.FindGroup(caller=alice, group="g"),
        people_queries.ListGroupPermissions(caller=alice, group="g"),
    ):
        assert state.ask(query) == "forbidden"


def _fields(command: Any) -> dict[str, Any]:
    return {name: getattr(command, name) for name in command.__struct_fields__}


def test_lists_come_in_pages(state: State) -> None:
    for name in ("c", "a", "b"):
        state.user(f"user-{name}", groups=["all", name])
    first = state.ask(people_queries.ListGroups(caller=ADMIN, limit=3))
    assert [each["group"] for each in first["groups"]] == ["a", "all", "b"]
    rest = state.ask(people_queries.ListGroups(caller=ADMIN, limit=3, cursor=first["next_cursor"]))
    assert ([each["group"] for each in rest["groups"]], rest["next_cursor"]) == (["c"], 0)
    first = state.ask(people_queries.ListMembers(caller=ADMIN, group="all", limit=2))
    assert [each["user_id"] for each in first["members"]] == ["user-c", "user-a"]
    rest = state.ask(people_queries.ListMembers(caller=ADMIN, group="all", cursor=first["next_cursor"]))
    assert ([each["user_id"] for each in rest["members"]], rest["next_cursor"]) == (["user-b"], 0)
    assert state.ask(people_queries.ListMembers(caller=ADMIN, group="none")) == "not_found"


def test_page_of_members_of_many_users_looks_at_a_bounded_number(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "LIST_SCAN_MAX", 2)
    for name in ("a", "b", "c", "d"):
        state.user(name, groups=["g"] if name == "d" else [])
    query, found = people_queries.ListMembers(caller=ADMIN, group="g"), []
    for _ in range(5):
        page = state.ask(query)
        found += [each["user_id"] for each in page["members"]]
        if not page["next_cursor"]:
            break
        query = people_queries.ListMembers(caller=ADMIN, group="g", cursor=page["next_cursor"])
    assert found == ["d"]


NEWER: tuple[commands.AnyCommand, ...] = (
    add("g", "alice"),
    remove("g", "alice"),
    commands.PutGroup(caller=ADMIN, group="g"),
    commands.DeleteGroup(caller=ADMIN, group="g"),
    commands.RecordSession(
        user_id="alice", generation=1, session_id="s", label="", created_by="admin", ttl_seconds=60
    ),
    commands.EndSession(caller=ADMIN, user_id="alice", session_id="s"),
    commands.EndSessions(caller=ADMIN, user_id="alice"),
    commands.CreateInvitation(
        caller=ADMIN, user_id="alice", roles=None, groups=None, secret_sha256="s", ttl_seconds=60
    ),
    commands.RevokeInvitation(caller=ADMIN, user_id="alice"),
    commands.RedeemInvitation(secret_sha256="s"),
)


@pytest.mark.parametrize("command", NEWER, ids=lambda command: type(command).__name__)
def test_members_of_the_release_before_never_see_what_they_do_not_know(command: Any) -> None:
    with pytest.raises(NotInForce):
        check_known(command, FIRST)
    check_known(command, RULES)


def test_users_are_the_same_rows_by_the_rules_of_the_release_before(tmp_path: Path) -> None:
    """A member that runs it would differ otherwise."""
    state = State(tmp_path / "old.sqlite", rules=FIRST)
    state.user("alice", groups=["b", "a"])
    state.done(put_user("alice", groups=["c"], disabled=True))
    state.done(commands.RevokeUser(caller=ADMIN, user_id="alice"))
    state.done(commands.DeleteUser(caller=ADMIN, user_id="alice"))
    state.done(commands.Expire())
    for table in ("groups", "group_members", "user_sessions", "invitations"):
        assert not any(line.startswith(f'INSERT INTO "{table}"') for line in state.dump())
    state.store.close()
