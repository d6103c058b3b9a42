"""A record that is kept is what the log would answer now, whatever commands come: their keys are right.

What nodes keep is dropped by the keys of each command and by nothing else; after it, all that is left must be
as if it were asked for again, but for the places of replicas.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.storage.state_store import Store
from metadata.model.records import Caller, FileRecord
from metadata.protocol import commands, queries
from metadata.protocol.invalidation import invalidated_keys, keys_of
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    Refusal,
    State,
    complete,
    create,
    create_bucket,
    grant,
    put_user,
    withdraw,
)

USERS = ("ann", "bob")
FILES = ("f0", "f1", "f2", "f3")
NODES = ["n1", "n2"]
PRINCIPALS = ("user:ann", "user:bob", "group:g", "role:r")

users = st.sampled_from(USERS)
files = st.sampled_from(FILES)
targets = st.sampled_from([f"file:{name}" for name in FILES] + ["bucket:b"])
names = st.sampled_from([None, [], ["g"]])
roles = st.sampled_from([None, [], ["r"], ["admin"]])
ends_at_ms = st.sampled_from([None, 1_000_000 + 2 * HOUR_MS, 1_000_000 + 20 * HOUR_MS])


def made(name: str, owner: Caller, retention_hours: int | None) -> list[commands.AnyCommand]:
    """A file that is available: two of the four lie in a bucket of their own."""
    bucket = {"bucket_id": "b"} if name in FILES[2:] else {}
    begun = create(owner, name, retention_hours=retention_hours, **bucket)
    return [begun, complete(owner, name, f"sha-{name}", NODES)]


def granted(on: str, principal: str, expires_at_ms: int | None) -> list[commands.AnyCommand]:
    return [grant(ADMIN, on, principal, expires_at_ms=expires_at_ms)]


def beginning() -> list[commands.AnyCommand]:
    """Enough for most commands to take something away from somebody."""
    begun: list[commands.AnyCommand] = [create_bucket(ADMIN, "b")]
    begun += [put_user("ann", groups=["g"]), put_user("bob", roles=["r"])]
    begun += made("f0", Caller("ann", 1), None) + made("f1", ADMIN, None) + made("f2", ADMIN, None)
    begun += granted("file:f1", "user:bob", None) + granted("file:f2", "role:r", None)
    return begun + granted("bucket:b", "group:g", None)


steps: st.SearchStrategy[list[commands.AnyCommand]] = st.one_of(
    st.builds(
        made,
        files,
        st.sampled_from([ADMIN, Caller("ann", 1), Caller("bob", 1)]),
        st.sampled_from([None, None, 1, 24]),
    ),
    st.builds(granted, targets, st.sampled_from(PRINCIPALS), ends_at_ms),
    st.builds(granted, targets, st.sampled_from(PRINCIPALS), st.none()),
    st.builds(
        lambda on, principal: [withdraw(ADMIN, on, f"{on} {principal} read")],
        targets,
        st.sampled_from(PRINCIPALS),
    ),
    st.builds(lambda name: [commands.DeleteFile(caller=ADMIN, file_uuid=name, kind="")], files),
    st.builds(
        lambda name, groups, held, disabled: [put_user(name, groups=groups, roles=held, disabled=disabled)],
        users,
        names,
        roles,
        st.sampled_from([None, None, False, True]),
    ),
    st.builds(
        lambda name, groups, held: [
            commands.AdmitUser(caller=ADMIN, user_id=name, roles=held, groups=groups)
        ],
        users,
        names,
        roles,
    ),
    st.builds(lambda name: [commands.RevokeUser(caller=ADMIN, user_id=name)], users),
    st.builds(lambda name: [commands.DeleteUser(caller=ADMIN, user_id=name)], users),
    st.builds(
        lambda name: [commands.AddMembers(caller=ADMIN, group="g", user_ids=[name])],
        users,
    ),
    st.builds(lambda name: [commands.RemoveMember(caller=ADMIN, group="g", user_id=name)], users),
    st.builds(lambda: [commands.DeleteGroup(caller=ADMIN, group="g")]),
    st.builds(lambda: [commands.DeleteBucket(caller=ADMIN, bucket_id="b"), create_bucket(ADMIN, "b")]),
    st.builds(lambda: [commands.Expire(rows_max=100, tombstone_ms=HOUR_MS)]),
    st.builds(lambda name: [commands.UpdateProjectFile(caller=ADMIN, file_uuid=name)], files),
    st.builds(
        lambda name, changes: [commands.UpdateProjectFile(caller=ADMIN, file_uuid=name, **changes)],
        files,
        st.sampled_from([{"filename": "other"}, {"content_type": "text/plain"}, {"retention_hours": 9}]),
    ),
    st.builds(lambda: [commands.UpdateBucket(caller=ADMIN, bucket_id="b", name="c", quota_bytes=10)]),
)


class Kept:
    """What a node could keep: every lasting answer to anybody, until a command's keys drop it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.records: dict[tuple[Caller, str], Any] = {}

    def apply(self, command: commands.AnyCommand) -> None:
        keys = invalidated_keys(command)
        for (caller, name), record in list(self.records.items()):
            if keys & set(keys_of(caller, msgspec.convert(record["file"], FileRecord))):
                del self.records[caller, name]
        self.state.apply(command)

    def check(self) -> None:
        for (caller, name), record in self.records.items():
            assert self.ask(caller, name) == record

    def fill(self) -> None:
        for generation in (1, 2, 3):
            for caller in (ADMIN, *(Caller(user, generation) for user in USERS)):
                for name in FILES:
                    record = self.ask(caller, name)
                    if not isinstance(record, Refusal) and record.get("is_lasting"):
                        self.records[caller, name] = record

    def ask(self, caller: Caller, name: str) -> Any:
        record = self.state.ask(queries.GetContent(caller=caller, file_uuid=name))
        return record if isinstance(record, Refusal) else record | {"replicas": []}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(steps, st.sampled_from([0, 0, HOUR_MS, 3 * HOUR_MS])), max_size=12))
def test_what_is_kept_is_what_would_be_answered(
    history: list[tuple[list[commands.AnyCommand], int]],
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        state = State(Path(":memory:"), store=Store.over(db, db))
        state.nodes(*NODES)
        kept = Kept(state)
        for command in beginning():
            state.done(command)
        kept.fill()
        for step, later_ms in history:
            for command in step:
                kept.apply(command)
                kept.check()
            state.at_ms += later_ms
            kept.check()
            kept.fill()
