"""Levels: how permissions, owners and roles add up; a model of them; and what the statements cost."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.storage.state_store import Store
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    State,
    create,
    create_bucket,
    grant,
    list_permissions,
    public_token,
    put_user,
    withdraw,
)

NONE, READ, WRITE, ADMINISTER = range(4)
DEFAULT = f"bucket:{DEFAULT_BUCKET_ID}"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = furnished(State(tmp_path / "state.sqlite"))
    yield made
    made.store.close()


def furnished(state: State) -> State:
    """Olga owns the files `lost` in the default bucket and `kept` in the bucket `b1`, which is Bea's."""
    olga, bea = state.user("olga"), state.user("bea")
    state.done(create_bucket(bea, "b1"))
    state.done(grant(bea, "bucket:b1", "user:olga", "write"))
    state.done(create(olga, "lost"))
    state.done(create(olga, "kept", bucket_id="b1"))
    state.done(withdraw(bea, "bucket:b1", "bucket:b1 user:olga write"))
    return state


def level_on(state: State, caller: Caller, file_uuid: str) -> int:
    """What the caller may do with a file; each level implies the ones below it."""
    asked: tuple[queries.AnyQuery, ...] = (
        queries.GetProjectFile(caller=caller, file_uuid=file_uuid),
        queries.GetUpload(caller=caller, file_uuid=file_uuid),
        list_permissions(caller, f"file:{file_uuid}"),
    )
    allowed = [state.ask(query) != "forbidden" for query in asked]
    assert allowed == sorted(allowed, reverse=True)
    return sum(allowed)


def nothing(state: State) -> Caller:
    return state.user("ulla")


def existing(user_id: str) -> Callable[[State], Caller]:
    return lambda _: Caller(user_id, 1)


def granted(principal: str, permission: str, **changes: Any) -> Callable[[State], Caller]:
    """Ulla, of the group `lab` and with the role `staff`, after a grant on both files."""

    def arrange(state: State) -> Caller:
        state.user("ulla", groups=["lab"], roles=["staff"])
        for file_uuid in ("lost", "kept"):
            state.done(grant(ADMIN, f"file:{file_uuid}", principal, permission, **changes))
        return Caller("ulla", 1)

    return arrange


def granted_on_buckets(principal: str, permission: str) -> Callable[[State], Caller]:
    def arrange(state: State) -> Caller:
        state.user("ulla", groups=["lab"], roles=["staff"])
        for target in ("bucket:b1", DEFAULT):
            state.done(grant(ADMIN, target, principal, permission))
        return Caller("ulla", 1)

    return arrange


def expired(arrange: Callable[[State], Caller]) -> Callable[[State], Caller]:
    def wait(state: State) -> Caller:
        caller = arrange(state)
        state.at_ms += HOUR_MS
        return caller

    return wait


def owner_of_the_default_bucket_without_the_role(state: State) -> Caller:
    second = state.user("second", roles=["admin"])
    state.done(put_user("admin", caller=second, roles=[]))
    return ADMIN


def member_of_a_group_no_more(state: State) -> Caller:
    caller = granted("group:lab", "admin")(state)
    state.done(put_user("ulla", groups=["library"]))
    return caller


def read_on_the_file_and_write_on_its_bucket(state: State) -> Caller:
    granted("user:ulla", "read")(state)
    return granted_on_buckets("role:staff", "write")(state)


HOUR_FROM_START_MS = 1_000_000 + HOUR_MS
CASES: list[tuple[str, Callable[[State], Caller], int, int]] = [  # on the one file, and on the other
    ("owner", existing("olga"), ADMINISTER, ADMINISTER),
    ("user", granted("user:ulla", "write"), WRITE, WRITE),
    ("group", granted("group:lab", "read"), READ, READ),
    ("role", granted("role:staff", "admin"), ADMINISTER, ADMINISTER),
    ("other user", granted("user:ulli", "admin"), NONE, NONE),
    ("user of a group's name", granted("user:lab", "admin"), NONE, NONE),
    ("group of a user's name", granted("group:ulla", "admin"), NONE, NONE),
    ("user grant on the bucket", granted_on_buckets("user:ulla", "read"), READ, READ),
    ("group grant on the bucket", granted_on_buckets("group:lab", "write"), WRITE, WRITE),
    ("role grant on the bucket", granted_on_buckets("role:staff", "admin"), ADMINISTER, ADMINISTER),
    ("bucket owner", existing("bea"), NONE, ADMINISTER),
    ("owner of the default bucket", owner_of_the_default_bucket_without_the_role, NONE, NONE),
    ("not expired yet", granted("user:ulla", "write", expires_at_ms=HOUR_FROM_START_MS), WRITE, WRITE),
    ("expired", expired(granted("user:ulla", "write", expires_at_ms=HOUR_FROM_START_MS)), NONE, NONE),
    ("lasting", expired(granted("user:ulla", "write")), WRITE, WRITE),
    ("admin role", lambda state: state.user("ada", roles=["admin"]), ADMINISTER, ADMINISTER),
    ("highest of several", read_on_the_file_and_write_on_its_bucket, WRITE, WRITE),
    ("group that was left", member_of_a_group_no_more, NONE, NONE),
    ("none", nothing, NONE, NONE),
]


@pytest.mark.parametrize(
    ("arrange", "on_lost", "on_kept"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_level_on_a_file(
    state: State, arrange: Callable[[State], Caller], on_lost: int, on_kept: int
) -> None:
    caller = arrange(state)
    assert (level_on(state, caller, "lost"), level_on(state, caller, "kept")) == (on_lost, on_kept)


@pytest.mark.parametrize("arrange", [granted("user:ulla", "admin"), granted_on_buckets("user:ulla", "admin")])
def test_disabled_user_is_unauthorized_whatever_it_was_granted(
    state: State, arrange: Callable[[State], Caller]
) -> None:
    caller = arrange(state)
    state.done(put_user("ulla", disabled=True))
    assert state.ask(queries.GetProjectFile(caller=caller, file_uuid="kept")) == "unauthorized"
    assert state.apply(create(caller, "new")) == "unauthorized"
    state.done(put_user("ulla", disabled=False))
    assert level_on(state, caller, "kept") == ADMINISTER


def test_permission_on_one_file_says_nothing_about_another(state: State) -> None:
    ulla = state.user("ulla")
    state.done(grant(ADMIN, "file:kept", "user:ulla", "admin"))
    assert (level_on(state, ulla, "kept"), level_on(state, ulla, "lost")) == (ADMINISTER, NONE)


@pytest.mark.parametrize(
    ("permission", "outcome"), [("read", "forbidden"), ("write", "created"), ("admin", "created")]
)
def test_creation_in_a_bucket_needs_write(state: State, permission: str, outcome: str) -> None:
    ulla = state.user("ulla")
    assert state.apply(create(ulla, "f1", bucket_id="b1")) == "forbidden"
    state.done(grant(ADMIN, "bucket:b1", "user:ulla", permission))
    made = state.apply(create(ulla, "f1", bucket_id="b1"))
    assert (made if outcome == "forbidden" else made["status"]) in ("forbidden", "pending")
    assert (made == "forbidden") == (outcome == "forbidden")


def test_deletion_needs_admin(state: State) -> None:
    ulla = state.user("ulla")
    delete = commands.DeleteFile(caller=ulla, file_uuid="kept", kind="")
    state.done(grant(ADMIN, "file:kept", "user:ulla", "write"))
    assert state.apply(delete) == "forbidden"
    state.done(grant(ADMIN, "file:kept", "user:ulla", "admin"))
    assert state.apply(delete) is None


class Recorder(sqlite3.Connection):
    """Notes every statement."""

    statements: list[str]

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        self.statements = [*getattr(self, "statements", []), statement]
        return super().execute(statement, *values)


def exercise(state: State) -> None:
    """Every command and query about access, by an admin and by others."""
    ulla = state.user("ulla", groups=["lab"], roles=["staff"])
    for on in ("file:kept", "bucket:b1", DEFAULT):
        state.done(grant(ADMIN, on, "user:ulla", "admin"))
        state.done(grant(ADMIN, on, "user:ulla", "admin"))
    state.done(create(ulla, "mine", bucket_id="b1"))
    state.done(public_token(ulla, "kept", "t1"))
    for caller in (ADMIN, ulla, Caller("olga", 1), state.user("stranger")):
        for on in ("file:kept", "bucket:b1"):
            state.ask(list_permissions(caller, on))
        for bucket_id in ("b1", DEFAULT_BUCKET_ID):
            state.ask(queries.GetBucket(caller=caller, bucket_id=bucket_id))
            state.ask(queries.ListBucketFiles(caller=caller, bucket_id=bucket_id))
            filtered = queries.ListBucketFiles(
                caller=caller, bucket_id=bucket_id, status="pending", filename_prefix="l"
            )
            state.ask(filtered)
        state.ask(queries.ListBuckets(caller=caller))
        state.ask(queries.ListPublicTokens(caller=caller, file_uuid="kept"))
        state.ask(queries.FindUser(caller=caller, user_id="ulla"))
        state.ask(queries.ListUsers(caller=caller))
        level_on(state, caller, "kept")
    state.ask(queries.GetPublicContent(bucket_id="b1", token_sha256="sha-t1"))
    state.apply(commands.RevokePublicToken(caller=ADMIN, file_uuid="kept", token_id="t1"))
    state.apply(withdraw(ADMIN, "file:kept", "file:kept user:ulla admin"))
    state.apply(commands.UpdateBucket(caller=ADMIN, bucket_id="b1", name="other", quota_bytes=9))
    state.done(commands.RevokeUser(caller=ADMIN, user_id="ulla"))
    for file_uuid in ("mine", "kept"):
        state.done(commands.DeleteFile(caller=ADMIN, file_uuid=file_uuid, kind=""))
    state.done(commands.DeleteBucket(caller=ADMIN, bucket_id="b1"))
    state.done(commands.DeleteUser(caller=ADMIN, user_id="ulla"))


SMALL = (
    "CONSTANT ROW",
    "applied",
    "cluster",
    "nodes",
    "coordinators",
    "digest_position",
    "json_each",
    "sessions",
    "(",
)


def test_no_statement_walks_a_table_that_grows() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=Recorder)) as db:
        state = State(Path(), store=Store.over(db, db))
        begin = len(db.statements)
        exercise(furnished(state))
        plans: dict[str, list[str]] = {}
        for statement in dict.fromkeys(db.statements[begin:]):
            if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT")):
                plan = sqlite3.Connection.execute(
                    db, f"EXPLAIN QUERY PLAN {statement}", [None] * statement.count("?")
                )
                plans[statement] = [row[-1] for row in plan.fetchall()]
    assert len(plans) > 50
    walked = {
        statement: plan
        for statement, plan in plans.items()
        for step in plan
        if step.startswith("SCAN") and not step.removeprefix("SCAN ").startswith(SMALL)
    }
    assert not walked
    ranged = {
        statement: plan
        for statement, plan in plans.items()
        for step in plan
        if "PRIMARY KEY (rowid>?" in step
    }
    assert not ranged, "a range of the key is as good as the whole table"


def count_of(state: State, query: queries.AnyQuery, db: Recorder) -> int:
    before = len(db.statements)
    state.ask(query)
    return len(db.statements) - before


def test_check_by_owner_or_admin_costs_no_statement_and_by_grant_one() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=Recorder)) as db:
        state = furnished(State(Path(), store=Store.over(db, db)))
        state.user("ulla")
        state.done(grant(ADMIN, "bucket:b1", "user:ulla", "read"))
        cost = {
            caller.subject: count_of(state, queries.GetProjectFile(caller=caller, file_uuid="kept"), db)
            for caller in (ADMIN, Caller("olga", 1), Caller("ulla", 1), Caller("bea", 1))
        }
    begin_user_file_commit = 4
    assert cost == {
        "admin": begin_user_file_commit,
        "olga": begin_user_file_commit,
        "ulla": begin_user_file_commit + 1,
        "bea": begin_user_file_commit + 1,
    }
