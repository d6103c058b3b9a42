"""Permissions against a plain model of them: after every step, every user has the level that it should."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.raft.messages import Entry
from coordinator.storage.state_store import Store
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.coordinator.machine.execution.test_access import ADMINISTER, NONE, level_on
from tests.unit.state import ADMIN, Refusal, State, create, create_bucket, grant, put_user, withdraw

USERS = ("u1", "u2", "u3")
BUCKETS = ("b1", "b2")
FILES = ("f1", "f2", "f3")
LEVELS = ("read", "write", "admin")
MINUTE_MS = 60_000  # all steps together take less than an upload lives

Step = tuple[Any, ...]


@dataclass
class Person:
    """A user. `generation` is what a token must carry; `is_known` is false once it is deleted."""

    generation: int = 1
    is_known: bool = True
    is_disabled: bool = False
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


@dataclass
class Model:
    """What should be so. Grants: (target, principal, level) and when they end."""

    people: dict[str, Person] = field(default_factory=lambda: {user_id: Person() for user_id in USERS})
    buckets: dict[str, str] = field(default_factory=dict)  # its owner
    files: dict[str, tuple[str, str]] = field(default_factory=dict)  # its owner and bucket
    grants: dict[tuple[str, str, int], int | None] = field(default_factory=dict)
    at_ms: int = 0

    def principals(self, user_id: str) -> set[str]:
        person = self.people[user_id]
        groups = {f"group:{group}" for group in person.groups}
        return {f"user:{user_id}"} | groups | {f"role:{role}" for role in person.roles}

    def granted(self, user_id: str, target: str) -> int:
        held = [
            level
            for (on, principal, level), expires_at_ms in self.grants.items()
            if on == target
            and principal in self.principals(user_id)
            and (expires_at_ms is None or expires_at_ms > self.at_ms)
        ]
        return max(held, default=NONE)

    def on_bucket(self, user_id: str, bucket_id: str) -> int:
        is_owner = self.buckets.get(bucket_id) == user_id
        if is_owner or "admin" in self.people[user_id].roles:
            return ADMINISTER
        return self.granted(user_id, f"bucket:{bucket_id}")

    def on_file(self, user_id: str, file_uuid: str) -> int:
        owner_id, bucket_id = self.files[file_uuid]
        if owner_id == user_id:
            return ADMINISTER
        return max(self.on_bucket(user_id, bucket_id), self.granted(user_id, f"file:{file_uuid}"))

    def is_live(self, user_id: str) -> bool:
        return self.people[user_id].is_known and not self.people[user_id].is_disabled

    def owns_anything(self, user_id: str) -> bool:
        owners = [owner_id for owner_id, _ in self.files.values()]
        return user_id in owners or user_id in self.buckets.values()

    def exists(self, target: str) -> bool:
        kind, _, target_id = target.partition(":")
        there = [*self.buckets, DEFAULT_BUCKET_ID] if kind == "bucket" else list(self.files)
        return target_id in there

    def forget_target(self, target: str) -> None:
        self.grants = {key: ends for key, ends in self.grants.items() if key[0] != target}

    def end_what_it_was_given(self, user_id: str) -> None:
        self.grants = {key: ends for key, ends in self.grants.items() if key[1] != f"user:{user_id}"}
        self.people[user_id].generation += 1


class Pair:
    """The machine and the model, which take every step together and must answer alike."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.model = Model(at_ms=state.at_ms)
        for user_id in USERS:
            state.user(user_id)

    def caller(self, user_id: str) -> Caller:
        return Caller(user_id, self.model.people[user_id].generation)

    def take(self, step: Step) -> None:
        name, *values = step
        expected = getattr(self, name)(*values)
        command, outcome = expected
        if command is not None:
            value = self.state.apply(command)
            assert (str(value) if isinstance(value, Refusal) else "") == outcome, step
        self.compare()

    def compare(self) -> None:
        for user_id in USERS:
            caller = self.caller(user_id)
            for outdated in (Caller(user_id, caller.generation - 1), Caller(user_id, caller.generation + 1)):
                assert self.state.ask(queries.GetUser(caller=outdated)) == "unauthorized"
            if not self.model.is_live(user_id):
                assert self.state.ask(queries.GetUser(caller=caller)) == "unauthorized"
                continue
            for file_uuid in self.model.files:
                found = level_on(self.state, caller, file_uuid)
                assert found == self.model.on_file(user_id, file_uuid), (user_id, file_uuid)

    def wait(self, minutes: int) -> tuple[None, str]:
        self.state.at_ms += minutes * MINUTE_MS
        self.model.at_ms = self.state.at_ms
        return None, ""

    def sweep(self) -> tuple[Any, str]:
        self.model.grants = {
            key: ends for key, ends in self.model.grants.items() if ends is None or ends > self.model.at_ms
        }
        return commands.Expire(), ""

    def allow(self, on: str, principal: str, level: int, minutes: int | None) -> tuple[Any, str]:
        ends = None if minutes is None else self.model.at_ms + minutes * MINUTE_MS
        command = grant(ADMIN, on, principal, LEVELS[level - 1], expires_at_ms=ends)
        if not self.model.exists(on):
            return command, "not_found"
        if minutes is not None and minutes <= 0:
            return command, "invalid_request"
        self.model.grants[on, principal, level] = ends
        return command, ""

    def take_away(self, on: str, principal: str, level: int) -> tuple[Any, str]:
        command = withdraw(ADMIN, on, f"{on} {principal} {LEVELS[level - 1]}")
        if (on, principal, level) not in self.model.grants:
            return command, "not_found"
        del self.model.grants[on, principal, level]
        return command, ""

    def change_user(self, user_id: str, groups: Any, roles: Any, disabled: bool | None) -> tuple[Any, str]:
        person = self.model.people[user_id]
        person.is_known = True
        person.groups = person.groups if groups is None else groups
        person.roles = person.roles if roles is None else roles
        person.is_disabled = person.is_disabled if disabled is None else disabled
        lists = {"groups": groups and [*groups], "roles": roles and [*roles]}
        lists = {name: [] if names == () else names for name, names in lists.items()}
        return put_user(user_id, disabled=disabled, **lists), ""

    def revoke_user(self, user_id: str) -> tuple[Any, str]:
        command = commands.RevokeUser(caller=ADMIN, user_id=user_id)
        if not self.model.people[user_id].is_known:
            return command, "not_found"
        self.model.end_what_it_was_given(user_id)
        return command, ""

    def delete_user(self, user_id: str) -> tuple[Any, str]:
        command = commands.DeleteUser(caller=ADMIN, user_id=user_id)
        person = self.model.people[user_id]
        if not person.is_known:
            return command, "not_found"
        if self.model.owns_anything(user_id):
            return command, "conflict"
        self.model.end_what_it_was_given(user_id)
        self.model.people[user_id] = Person(generation=person.generation, is_known=False)
        return command, ""

    def make_bucket(self, user_id: str, bucket_id: str) -> tuple[Any, str]:
        command = create_bucket(self.caller(user_id), bucket_id)
        if not self.model.is_live(user_id):
            return command, "unauthorized"
        if bucket_id in self.model.buckets:
            return command, "conflict"
        self.model.buckets[bucket_id] = user_id
        return command, ""

    def make_file(self, user_id: str, file_uuid: str, bucket_id: str) -> tuple[Any, str]:
        command = create(self.caller(user_id), file_uuid, bucket_id=bucket_id)
        if not self.model.is_live(user_id):
            return command, "unauthorized"
        if not self.model.exists(f"bucket:{bucket_id}"):
            return command, "invalid_request"
        if (
            bucket_id != DEFAULT_BUCKET_ID
            and self.model.on_bucket(user_id, bucket_id) < LEVELS.index("write") + 1
        ):
            return command, "forbidden"
        if file_uuid in self.model.files:
            return command, "invalid_request"
        self.model.files[file_uuid] = (user_id, bucket_id)
        return command, ""

    def drop_file(self, user_id: str, file_uuid: str) -> tuple[Any, str]:
        command = commands.DeleteFile(caller=self.caller(user_id), file_uuid=file_uuid, kind="")
        if not self.model.is_live(user_id):
            return command, "unauthorized"
        if file_uuid not in self.model.files:
            return command, "not_found"
        if self.model.on_file(user_id, file_uuid) < ADMINISTER:
            return command, "forbidden"
        del self.model.files[file_uuid]
        self.model.forget_target(f"file:{file_uuid}")
        return command, ""

    def drop_bucket(self, user_id: str, bucket_id: str) -> tuple[Any, str]:
        command = commands.DeleteBucket(caller=self.caller(user_id), bucket_id=bucket_id)
        if not self.model.is_live(user_id):
            return command, "unauthorized"
        if bucket_id not in self.model.buckets:
            return command, "not_found"
        if self.model.on_bucket(user_id, bucket_id) < ADMINISTER:
            return command, "forbidden"
        if any(held == bucket_id for _, held in self.model.files.values()):
            return command, "conflict"
        del self.model.buckets[bucket_id]
        self.model.forget_target(f"bucket:{bucket_id}")
        return command, ""


user_ids = st.sampled_from(USERS)
bucket_ids = st.sampled_from(BUCKETS)
any_bucket_ids = st.sampled_from([DEFAULT_BUCKET_ID, *BUCKETS])
file_uuids = st.sampled_from(FILES)
targets = st.one_of(file_uuids.map("file:{}".format), any_bucket_ids.map("bucket:{}".format))
principals = st.sampled_from(
    [*(f"user:{user_id}" for user_id in USERS), "group:lab", "group:u1", "role:staff"]
)
levels = st.integers(1, 3)
names = st.sampled_from([None, (), ("lab",), ("lab", "u1"), ("staff",), ("admin",)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.just("sweep")),
        st.tuples(st.just("allow"), targets, principals, levels, st.sampled_from([None, None, 0, 1, 15])),
        st.tuples(st.just("allow"), targets, principals, levels, st.sampled_from([None, 10])),
        st.tuples(st.just("take_away"), targets, principals, levels),
        st.tuples(st.just("change_user"), user_ids, names, names, st.sampled_from([None, None, False, True])),
        st.tuples(st.just("revoke_user"), user_ids),
        st.tuples(st.just("delete_user"), user_ids),
        st.tuples(st.just("make_bucket"), user_ids, bucket_ids),
        st.tuples(st.just("make_file"), user_ids, file_uuids, any_bucket_ids),
        st.tuples(st.just("drop_file"), user_ids, file_uuids),
        st.tuples(st.just("drop_bucket"), user_ids, bucket_ids),
    ),
    max_size=30,
)
FURNITURE: tuple[Step, ...] = (
    ("change_user", "u2", ("lab",), None, None),
    ("change_user", "u3", None, ("staff",), None),
    ("make_bucket", "u1", "b1"),
    ("make_file", "u1", "f1", "b1"),
    ("make_file", "u2", "f2", DEFAULT_BUCKET_ID),
)


@contextmanager
def machine_in_memory() -> Iterator[State]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        yield State(Path(), store=Store.over(db, db))


def rows_after(batches: Iterable[Sequence[Entry]]) -> list[str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        store = Store.over(db, db)
        for entries in batches:
            store.apply(entries)
        return list(db.iterdump())


@settings(deadline=None, max_examples=60)
@given(program=steps)
def test_levels_are_those_of_the_model_after_every_step(program: list[Step]) -> None:
    with machine_in_memory() as state:
        pair = Pair(state)
        for step in (*FURNITURE, *program):
            pair.take(step)
        one_by_one = rows_after([entry] for entry in state.entries)
        assert rows_after([state.entries]) == one_by_one
