"""What ends in the state machine when its time is over, and only then."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine.expiry import JOIN_TOKEN_RETENTION_MS, PUBLIC_TOKEN_RETENTION_MS, PUT_OFF_MS
from metadata.model.records import DEFAULT_BUCKET_ID
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State, complete, create, join, join_token

DAY_MS = 24 * HOUR_MS
NOTHING = {
    "uploads": 0,
    "retained": 0,
    "tombstones": 0,
    "permissions": 0,
    "public_tokens": 0,
    "join_tokens": 0,
    "burials": 0,
    "trashed": 0,
    "protections": 0,
    "more": False,
}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    with_nodes(made)
    yield made
    made.store.close()


def with_nodes(state: State) -> None:
    """Two nodes, and nothing left of their joining that would end."""
    state.nodes("n1", "n2")
    state.at_ms += HOUR_MS + JOIN_TOKEN_RETENTION_MS
    state.apply(commands.Expire())


def expire(state: State, **changes: Any) -> dict[str, Any]:
    """What one Expire ended; only what is not nothing."""
    ended = state.apply(commands.Expire(**changes))
    return {name: value for name, value in ended.items() if value != NOTHING[name]}


def backup(file_uuid: str, parent: str = "", **changes: Any) -> commands.CreateBackup:
    fields = {
        "caller": ADMIN,
        "file_uuid": file_uuid,
        "bucket_id": DEFAULT_BUCKET_ID,
        "filename": "b",
        "content_type": "x",
        "size_bytes": None,
        "expected_sha256": "",
        "retention_hours": None,
        "placement": ["n1", "n2"],
        "backup_type": "incremental" if parent else "full",
        "is_compressed": False,
        "is_encrypted": False,
        "parent_backup_uuid": parent,
        "source_node_id": "",
        **changes,
    }
    return commands.CreateBackup(**fields)


def grant(target_id: str, permission_id: str, expires_at_ms: int | None) -> commands.GrantPermission:
    return commands.GrantPermission(
        caller=ADMIN,
        target="bucket" if target_id == DEFAULT_BUCKET_ID else "file",
        target_id=target_id,
        permission_id=permission_id,
        permission="read",
        principal_type="user",
        principal_id=permission_id,
        expires_at_ms=expires_at_ms,
    )


def public_token(file_uuid: str, token_id: str, expires_at_ms: int | None) -> commands.CreatePublicToken:
    return commands.CreatePublicToken(
        caller=ADMIN,
        file_uuid=file_uuid,
        bucket_id="",
        token_id=token_id,
        token_sha256=token_id,
        expires_at_ms=expires_at_ms,
    )


def finish(state: State, *file_uuids: str) -> None:
    for file_uuid in file_uuids:
        done = state.apply(complete(ADMIN, file_uuid, f"sha {file_uuid}", ["n1", "n2"]))
        assert not isinstance(done, Refusal), done.details


def rows(state: State, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(state.path)) as db:
        return db.execute(statement).fetchall()


def statuses(state: State) -> dict[str, str]:
    return dict(rows(state, "SELECT file_uuid, status FROM files"))


def content(state: State, file_uuid: str) -> Any:
    return state.ask(queries.GetContent(caller=ADMIN, file_uuid=file_uuid))


def test_nothing_is_due_in_a_new_cluster(state: State) -> None:
    assert not state.store.is_expire_due(at_ms=state.at_ms)
    assert expire(state) == {}


def test_upload_goes_when_it_has_expired_and_not_before(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    state.at_ms += DAY_MS - 1
    assert not state.store.is_expire_due(at_ms=state.at_ms)
    assert expire(state) == {}
    state.at_ms += 1
    assert state.store.is_expire_due(at_ms=state.at_ms)
    assert expire(state) == {"uploads": 1}
    assert state.ask(queries.GetUpload(caller=ADMIN, file_uuid="f1")) == "not_found"
    assert rows(state, "SELECT file_count, used_bytes FROM buckets") == [(0, 0)]


def test_retention_begins_with_the_content_and_ends_in_a_tombstone_that_goes(state: State) -> None:
    state.apply(create(ADMIN, "f1", retention_hours=2))
    state.at_ms += HOUR_MS
    finish(state, "f1")
    state.at_ms += 2 * HOUR_MS - 1
    assert expire(state) == {}
    state.at_ms += 1
    assert expire(state) == {"retained": 1}
    assert content(state, "f1") == "gone"
    record = state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1"))
    assert (record["status"], record["updated_at_ms"]) == ("tombstoned", state.at_ms)
    state.at_ms += DAY_MS - 1
    assert expire(state) == {}
    state.at_ms += 1
    assert expire(state) == {"tombstones": 1}
    assert state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1")) == "not_found"
    assert state.ask(queries.FindBlob(sha256="sha f1")) is None
    assert rows(state, "SELECT file_count, used_bytes FROM buckets") == [(0, 0)]


def test_change_of_a_tombstoned_file_does_not_prolong_it(state: State) -> None:
    state.apply(create(ADMIN, "f1", retention_hours=0))
    finish(state, "f1")
    assert expire(state) == {"retained": 1}
    state.at_ms += DAY_MS - 1
    state.apply(commands.UpdateProjectFile(caller=ADMIN, file_uuid="f1", project_name="new"))
    state.at_ms += 1
    assert expire(state) == {"tombstones": 1}


def test_short_retention_is_due_before_a_longer_one_that_began_earlier(state: State) -> None:
    for file_uuid, hours in (("long", 9), ("kept", None), ("short", 1)):
        state.apply(create(ADMIN, file_uuid, retention_hours=hours))
        finish(state, file_uuid)
    state.at_ms += HOUR_MS
    assert expire(state, rows_max=1) == {"retained": 1, "more": True}
    assert statuses(state) == {"long": "available", "kept": "available", "short": "tombstoned"}


def test_retention_beyond_every_bound_is_kept_for_a_century(state: State) -> None:
    state.apply(create(ADMIN, "f1", retention_hours=2**53 - 1))
    finish(state, "f1")
    state.at_ms += 876_000 * HOUR_MS - 1
    assert expire(state) == {}


def test_expired_permissions_go_and_lasting_ones_stay(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    finish(state, "f1")
    for number, target in enumerate([DEFAULT_BUCKET_ID, "f1"]):
        state.apply(grant(target, f"ends {number}", state.at_ms + 5))
        state.apply(grant(target, f"lasts {number}", None))
    state.at_ms += 4
    assert expire(state) == {}
    state.at_ms += 1
    assert expire(state) == {"permissions": 2}
    assert rows(state, "SELECT permission_id FROM file_permissions") == [("lasts 1",)]
    assert rows(state, "SELECT permission_id FROM bucket_permissions") == [("lasts 0",)]


def test_public_token_answers_gone_for_thirty_days_after_its_end(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    finish(state, "f1")
    state.apply(public_token("f1", "t1", None))
    link = queries.GetPublicContent(bucket_id=DEFAULT_BUCKET_ID, token_sha256="t1")
    state.at_ms += DAY_MS + PUBLIC_TOKEN_RETENTION_MS - 1
    assert expire(state) == {}
    assert state.ask(link) == "gone"
    state.at_ms += 1
    assert expire(state) == {"public_tokens": 1}
    assert state.ask(link) == "not_found"


def test_join_token_goes_a_day_after_its_end_with_its_joins(state: State) -> None:
    state.apply(join_token("short"))
    state.apply(join("short", "n9"))
    state.at_ms += HOUR_MS + JOIN_TOKEN_RETENTION_MS - 1
    assert expire(state) == {}
    assert rows(state, "SELECT node_id FROM joins") == [("n9",)]
    state.at_ms += 1
    assert expire(state) == {"join_tokens": 1}
    assert rows(state, "SELECT * FROM join_tokens") == []
    assert rows(state, "SELECT * FROM joins") == []
    assert [node["node_id"] for node in state.ask(queries.GetView())["nodes"]] == ["n1", "n2", "n9"]


def test_backup_that_another_builds_on_stays_until_that_is_tombstoned_too(state: State) -> None:
    state.apply(backup("full", retention_hours=1))
    finish(state, "full")
    state.apply(backup("child", "full", retention_hours=10))
    finish(state, "child")
    state.at_ms += HOUR_MS
    assert expire(state) == {}
    assert not state.store.is_expire_due(at_ms=state.at_ms)
    assert content(state, "full")["file"]["status"] == "available"
    state.at_ms += 9 * HOUR_MS
    assert expire(state) == {"retained": 1}
    state.at_ms += PUT_OFF_MS
    assert expire(state) == {"retained": 1}
    state.at_ms += DAY_MS
    assert expire(state) == {"tombstones": 2}


def test_tombstoned_backup_goes_after_those_that_build_on_it(state: State) -> None:
    state.apply(backup("full", retention_hours=0))
    state.apply(backup("child", "full", retention_hours=0))
    finish(state, "child")
    assert expire(state, tombstone_ms=3 * DAY_MS) == {"retained": 1}
    finish(state, "full")
    assert expire(state) == {"retained": 1}
    state.at_ms += DAY_MS
    assert expire(state) == {}
    assert statuses(state) == {"full": "tombstoned", "child": "tombstoned"}
    state.at_ms += 2 * DAY_MS
    assert expire(state) == {"tombstones": 1}
    state.at_ms += PUT_OFF_MS
    assert expire(state) == {"tombstones": 1}


def test_chain_of_backups_ends_in_one_go_from_its_end(state: State) -> None:
    names = [f"b{number}" for number in range(5)]
    for number, name in enumerate(names):
        state.apply(backup(name, names[number - 1] if number else "", retention_hours=1))
    finish(state, *names)
    state.at_ms += HOUR_MS
    assert expire(state) == {"retained": 5}
    state.at_ms += DAY_MS
    assert expire(state) == {"tombstones": 5}


def test_parents_that_stay_do_not_stand_in_the_way_of_others(state: State) -> None:
    for number in range(5):
        state.apply(backup(f"full {number}", retention_hours=0))
        finish(state, f"full {number}")
        state.apply(backup(f"child {number}", f"full {number}"))
        finish(state, f"child {number}")
    state.at_ms += 1
    state.apply(create(ADMIN, "other", retention_hours=0))
    finish(state, "other")
    ended = [expire(state, rows_max=2) for _ in range(4)]
    assert ended == [{"more": True}, {"more": True}, {"retained": 1, "more": True}, {}]
    assert statuses(state)["other"] == "tombstoned"


def test_expired_upload_that_a_backup_builds_on_is_put_off(state: State) -> None:
    state.apply(backup("full"))
    state.apply(backup("child", "full"))
    finish(state, "child")
    state.at_ms += DAY_MS
    assert expire(state) == {}
    assert statuses(state) == {"full": "pending", "child": "available"}
    state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="child", kind="backup"))
    state.at_ms += PUT_OFF_MS
    assert expire(state) == {"uploads": 1}


def test_command_looks_at_no_more_rows_than_it_may_and_says_that_there_are_more(state: State) -> None:
    for number in range(5):
        state.apply(create(ADMIN, f"f{number}"))
    state.at_ms += DAY_MS
    assert expire(state, rows_max=2) == {"uploads": 2, "more": True}
    assert expire(state, rows_max=2) == {"uploads": 2, "more": True}
    assert expire(state, rows_max=2) == {"uploads": 1}


def test_what_goes_with_a_file_counts_as_rows(state: State) -> None:
    for file_uuid in ("f1", "f2"):
        state.apply(create(ADMIN, file_uuid, retention_hours=0))
        finish(state, file_uuid)
        for number in range(3):
            state.apply(grant(file_uuid, f"{file_uuid} {number}", None))
    expire(state)
    state.at_ms += DAY_MS
    assert expire(state, rows_max=3) == {"tombstones": 1, "more": True}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 FROM files f WHERE f.due_at_ms <= 1 ORDER BY f.due_at_ms, f.sequence DESC LIMIT 1",
        "SELECT 1 FROM uploads WHERE expires_at_ms <= 1 ORDER BY expires_at_ms, file_uuid LIMIT 1",
        "SELECT 1 FROM file_permissions WHERE expires_at_ms <= 1 ORDER BY expires_at_ms, sequence LIMIT 1",
        "SELECT 1 FROM bucket_permissions WHERE expires_at_ms <= 1 ORDER BY expires_at_ms, sequence LIMIT 1",
        "SELECT 1 FROM public_tokens WHERE expires_at_ms <= 1 ORDER BY expires_at_ms, sequence LIMIT 1",
        "SELECT 1 FROM join_tokens WHERE expires_at_ms <= 1 ORDER BY expires_at_ms, sequence LIMIT 1",
        "SELECT 1 FROM burials WHERE at_ms <= 1 ORDER BY at_ms, log_index, sha256, node_id LIMIT 1",
    ],
)
def test_what_is_due_is_found_by_an_index_in_its_order(state: State, statement: str) -> None:
    plan = [step[3] for step in rows(state, f"EXPLAIN QUERY PLAN {statement}")]
    assert len(plan) == 1, plan
    assert plan[0].startswith("SEARCH"), plan
