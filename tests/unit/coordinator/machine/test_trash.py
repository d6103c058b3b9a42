"""The trash in the state machine: who finds a deleted file, what comes back, and when it goes for good."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine import blobs
from coordinator.machine.execution.kept_rows import ENDED_TABLES, KEPT_TABLES
from metadata.model.records import DEFAULT_BUCKET_ID
from metadata.protocol import commands, queries
from tests.unit.coordinator.machine.execution.test_digests import schema
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    State,
    create,
    create_backup,
    create_bucket,
    create_vm,
    grant,
    public_token,
    put_user,
)
from tests.unit.trash_acts import (
    DAY_MS,
    WEEK_MS,
    bucket,
    chain,
    delete,
    purge,
    references,
    restore,
    rows,
    safety,
    store,
    trashed,
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2")
    yield made
    made.store.close()


def everything(state: State) -> list[str]:
    """All rows but those that count the log."""
    left_out = ('INSERT INTO "applied"', 'INSERT INTO "sessions"', 'INSERT INTO "buckets"')
    return [line for line in state.dump() if not line.startswith(left_out)]


def test_every_table_that_refers_to_a_file_is_kept_or_ends_with_it() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema())
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        referring = {
            table
            for table in tables
            for row in db.execute(f"PRAGMA foreign_key_list({table})")
            if row[2] == "files"
        }
    assert referring <= KEPT_TABLES | ENDED_TABLES
    assert {"files", "project_files", "file_permissions"} <= KEPT_TABLES


def test_deleted_file_is_found_by_nobody_and_its_content_stays(state: State) -> None:
    store(state, create(ADMIN, "f1"))
    delete(state, "f1")
    for query in (
        queries.GetProjectFile(caller=ADMIN, file_uuid="f1"),
        queries.GetContent(caller=ADMIN, file_uuid="f1"),
        queries.GetUpload(caller=ADMIN, file_uuid="f1"),
    ):
        assert state.ask(query) == "not_found"
    assert delete(state, "f1") == "not_found"
    assert state.ask(queries.ListProjectFiles(caller=ADMIN))["files"] == []
    assert (bucket(state)["file_count"], bucket(state)["used_bytes"]) == (0, 0)
    assert (bucket(state)["trash_files"], bucket(state)["trash_bytes"]) == (1, 5)
    assert references(state, "sha of f1") == 1
    assert state.store.trash() == (1, 5)


@pytest.mark.parametrize("make", [create, create_vm, create_backup])
def test_restored_file_is_the_same(state: State, make: Any) -> None:
    state.user("bob")
    store(state, create(ADMIN, "other"))
    store(state, make(ADMIN, "f1", path="lab/r1", filename="größe \x7f", retention_hours=1000))
    state.done(grant(ADMIN, "file:f1", "user:bob"))
    state.done(grant(ADMIN, "file:f1", "group:lab", "write"))
    state.done(commands.ProtectFile(caller=ADMIN, file_uuid="f1", ttl_seconds=3600))
    before = everything(state)
    assert delete(state, "f1", override_protection=True) is None
    assert everything(state) != before
    state.at_ms += HOUR_MS
    assert restore(state, "f1")["file_uuid"] == "f1"
    assert everything(state) == before
    assert bucket(state)["used_bytes"] == 10


def test_public_links_do_not_come_back(state: State) -> None:
    store(state, create(ADMIN, "f1"))
    state.done(public_token(ADMIN, "f1", "t1"))
    delete(state, "f1")
    assert state.ask(queries.GetPublicContent(bucket_id="", token_sha256="sha-t1")) == "not_found"
    state.done(commands.RestoreFile(caller=ADMIN, file_uuid="f1"))
    assert state.ask(queries.GetPublicContent(bucket_id="", token_sha256="sha-t1")) == "not_found"


@pytest.mark.parametrize("what", ["revoked", "deleted", "deleted and made again", "left alone"])
def test_permission_comes_back_only_if_its_user_was_not_revoked_since(state: State, what: str) -> None:
    bob = state.user("bob")
    store(state, create(ADMIN, "f1"))
    state.done(grant(ADMIN, "file:f1", "user:bob"))
    delete(state, "f1")
    state.at_ms += 5000
    if what == "revoked":
        state.done(commands.RevokeUser(caller=ADMIN, user_id="bob"))
    elif what != "left alone":
        state.done(commands.DeleteUser(caller=ADMIN, user_id="bob"))
    if what.endswith("again") or what == "revoked":
        bob = state.user("bob")
    restore(state, "f1")
    permissions = state.ask(queries.ListPermissions(caller=ADMIN, target="file", target_id="f1"))[
        "permissions"
    ]
    assert len(permissions) == (what == "left alone")
    read = state.ask(queries.GetContent(caller=bob, file_uuid="f1"))
    assert (read if isinstance(read, str) else "read") == {
        "left alone": "read",
        "deleted": "unauthorized",
    }.get(what, "forbidden")


def test_nobody_else_sees_or_restores_it(state: State) -> None:
    alice, bob, carol = state.user("alice"), state.user("bob"), state.user("carol")
    state.done(create_bucket(carol, "b1"))
    state.done(grant(carol, "bucket:b1", "user:alice", "write"))
    state.done(grant(carol, "bucket:b1", "user:bob", "write"))
    store(state, create(alice, "f1", bucket_id="b1"))
    store(state, create(bob, "f2", bucket_id="b1"))
    delete(state, "f1", alice)
    delete(state, "f2", bob)
    assert trashed(state) == ["f1", "f2"]
    assert trashed(state, alice) == trashed(state, alice, "b1") == ["f1"]
    assert trashed(state, bob) == ["f2"]
    assert (trashed(state, carol), trashed(state, carol, "b1")) == ([], ["f1", "f2"])
    assert trashed(state, alice, DEFAULT_BUCKET_ID) == []
    assert restore(state, "f1", bob) == "forbidden"
    assert purge(state, "f1", bob) == "forbidden"
    assert restore(state, "f1", carol)["bucket_id"] == "b1"
    assert state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1"))["owner_id"] == "alice"


def test_restoring_needs_write_on_the_bucket_and_room_in_it(state: State) -> None:
    alice, carol = state.user("alice"), state.user("carol")
    state.done(create_bucket(carol, "b1", quota_bytes=8))
    given = state.done(grant(carol, "bucket:b1", "user:alice", "write"))
    store(state, create(alice, "f1", bucket_id="b1"))
    delete(state, "f1", alice)
    store(state, create(alice, "f2", bucket_id="b1"))  # the trash is not in its way
    refused = restore(state, "f1", alice)
    assert (refused, "quota of the bucket is 8 bytes" in refused.details) == ("payload_too_large", True)
    delete(state, "f2", alice)
    state.done(
        commands.WithdrawPermission(
            caller=carol, target="bucket", target_id="b1", permission_id=given["permission_id"]
        )
    )
    assert restore(state, "f2", alice) == "forbidden"
    assert restore(state, "f2", alice, DEFAULT_BUCKET_ID)["bucket_id"] == DEFAULT_BUCKET_ID


def test_id_of_a_file_in_the_trash_is_not_used_again(state: State) -> None:
    store(state, create(ADMIN, "f1"))
    delete(state, "f1")
    assert state.apply(create(ADMIN, "f1")) == "conflict"


def test_file_goes_for_good_when_its_time_is_over_and_not_before(state: State) -> None:
    store(state, create(ADMIN, "f1"))
    delete(state, "f1")
    state.at_ms += WEEK_MS - 1
    state.apply(commands.Expire())
    assert trashed(state) == ["f1"]
    state.at_ms += 1
    assert state.store.is_expire_due(at_ms=state.at_ms)
    assert state.apply(commands.Expire())["trashed"] == 1
    assert trashed(state) == []
    assert references(state, "sha of f1") == 0
    assert restore(state, "f1") == "not_found"
    assert "trash_files" not in bucket(state)


@pytest.mark.parametrize(("days", "stays"), [(0, False), (3, True), (90, True)])
def test_bucket_has_days_of_its_own(state: State, days: int, stays: bool) -> None:
    state.done(create_bucket(ADMIN, "b1"))
    state.done(safety("b1", trash_days=days))
    store(state, create(ADMIN, "f1", bucket_id="b1"))
    delete(state, "f1")
    assert trashed(state) == ["f1"] * stays
    state.at_ms += days * DAY_MS
    state.apply(commands.Expire())
    assert trashed(state) == []
    assert state.apply(safety("b1", trash_days=91)) == "invalid_request"


def test_what_never_goes_to_the_trash(state: State) -> None:
    store(state, create(ADMIN, "now"))
    store(state, create(ADMIN, "old release"))
    store(state, create(ADMIN, "tombstoned", retention_hours=1))
    state.done(create(ADMIN, "upload"))
    state.at_ms += HOUR_MS
    state.apply(commands.Expire())
    delete(state, "now", for_good=True)
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid="old release", kind=""))
    delete(state, "tombstoned")
    delete(state, "upload")
    assert trashed(state) == []
    assert rows(state, "SELECT COUNT(*) FROM files") == [(0,)]


def test_retention_ends_in_the_trash_too(state: State) -> None:
    store(state, create(ADMIN, "f1", retention_hours=2))
    delete(state, "f1")
    state.at_ms += 2 * HOUR_MS
    state.apply(commands.Expire())
    assert trashed(state) == []


def test_chain_comes_back_with_its_parents(state: State) -> None:
    chain(state, 4)
    for name in ("f3", "f2", "f1"):
        assert delete(state, name) is None
    restored = restore(state, "f3")
    assert restored["parents"] == ["f2", "f1"]
    assert trashed(state) == []
    assert state.ask(queries.GetBackup(caller=ADMIN, file_uuid="f3"))["parent_backup_uuid"] == "f2"


def test_parent_of_another_user_comes_back_only_for_who_may_restore_it(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    state.done(create_bucket(alice, "b1"))
    state.done(grant(alice, "bucket:b1", "user:bob", "write"))
    store(state, create_backup(alice, "f0", bucket_id="b1"))
    parent = {"backup_type": "incremental", "parent_backup_uuid": "f0"}
    store(state, create_backup(bob, "f1", bucket_id="b1", **parent))
    delete(state, "f1", bob)
    delete(state, "f0", alice)
    assert restore(state, "f1", bob) == "forbidden"
    assert (trashed(state, alice), trashed(state, bob)) == (["f0"], ["f1"])
    assert restore(state, "f1", alice)["parents"] == ["f0"]  # an admin of the bucket


def test_parent_in_the_trash_goes_after_what_builds_on_it(state: State) -> None:
    chain(state, 2)
    assert delete(state, "f0") == "conflict"
    delete(state, "f1")
    state.at_ms += DAY_MS
    delete(state, "f0")
    assert purge(state, "f0") == "conflict"
    assert purge(state, "f1") is None
    assert purge(state, "f0") is None


def test_parent_waits_for_a_child_that_stays_longer(state: State) -> None:
    state.done(create_bucket(ADMIN, "long"))
    state.done(safety("long", trash_days=30))
    store(state, create_backup(ADMIN, "f0"))
    parent = {"backup_type": "incremental", "parent_backup_uuid": "f0"}
    store(state, create_backup(ADMIN, "f1", bucket_id="long", **parent))
    delete(state, "f1")
    delete(state, "f0", trash_ms=0)
    assert trashed(state) == ["f1", "f0"]
    state.at_ms += 30 * DAY_MS
    state.apply(commands.Expire())
    assert trashed(state) == []


def test_parent_of_a_backup_in_the_trash_is_not_deleted_for_good(state: State) -> None:
    chain(state, 2, retention_hours=2)
    state.done(commands.UpdateBackup(caller=ADMIN, file_uuid="f1", retention_hours=None))
    delete(state, "f1")
    refused = delete(state, "f0", for_good=True)
    assert (refused, "in the trash" in refused.details) == ("conflict", True)
    state.at_ms += 3 * HOUR_MS
    state.apply(commands.Expire())
    assert state.ask(queries.GetBackup(caller=ADMIN, file_uuid="f0"))["status"] == "available"
    assert restore(state, "f1")["parents"] == []


def test_backup_whose_parent_is_gone_for_good_says_so(state: State) -> None:
    """Only when the disks are almost full, and only if it is itself younger than its parent in the trash."""
    chain(state, 2)
    delete(state, "f1")
    delete(state, "f0")
    state.done(commands.SqueezeTrash(wanted_bytes=1))
    assert trashed(state) == ["f0"]  # never the parent first
    assert restore(state, "f0")["parents"] == []


def test_oldest_go_first_when_disks_are_almost_full(state: State) -> None:
    for name in ("f1", "f2", "f3"):
        store(state, create(ADMIN, name))
        delete(state, name)
    done = state.done(commands.SqueezeTrash(wanted_bytes=6))
    assert done == {"files": 2, "bytes": 10, "more": False}
    assert trashed(state) == ["f3"]
    with closing(sqlite3.connect(state.path)) as db:
        assert blobs.purged_bytes(db) == 10
    for node_id in ("n1", "n2"):  # what only they have leaves no disk soon
        state.done(commands.MarkNode(node_id=node_id, state="down"))
    with closing(sqlite3.connect(state.path)) as db:
        assert blobs.purged_bytes(db) == 0


def test_trash_of_a_bucket_has_no_more_bytes_than_its_quota(state: State) -> None:
    state.done(create_bucket(ADMIN, "b1", quota_bytes=10))
    for name in ("f1", "f2", "f3"):
        store(state, create(ADMIN, name, bucket_id="b1"))
        delete(state, name)
    assert trashed(state) == ["f2", "f3"]
    state.done(commands.UpdateBucket(caller=ADMIN, bucket_id="b1", name=None, quota_bytes=6))
    store(state, create(ADMIN, "f4", bucket_id="b1"), size_bytes=6)
    delete(state, "f4")
    assert trashed(state) == ["f4"]  # the newest stays in any case


def test_content_deleted_for_good_leaves_the_disks_after_a_minute(state: State) -> None:
    store(state, create(ADMIN, "f1"), "same")
    store(state, create(ADMIN, "f2"), "same")
    store(state, create(ADMIN, "f3"))
    delete(state, "f1", for_good=True)  # another file has its content
    delete(state, "f3", for_good=True)
    collect = commands.CollectPurged(rows_max=10, grace_ms=60_000)
    assert state.apply(collect)["blobs"] == 0
    state.at_ms += 60_000
    with closing(sqlite3.connect(state.path)) as db:
        assert blobs.is_purged(db, state.at_ms, 60_000)
    assert state.apply(collect)["blobs"] == 1
    marked = rows(state, "SELECT DISTINCT sha256 FROM blob_replicas WHERE doomed_at IS NOT NULL")
    assert marked == [("sha of f3",)]
    delete(state, "f2")
    assert purge(state, "f2") is None
    state.at_ms += 60_000
    assert state.apply(collect)["blobs"] == 1


def test_purged_content_that_came_again_is_kept(state: State) -> None:
    store(state, create(ADMIN, "f1"), "same")
    delete(state, "f1", for_good=True)
    store(state, create(ADMIN, "f2"), "same")
    state.at_ms += HOUR_MS
    assert state.apply(commands.CollectPurged(rows_max=10, grace_ms=0))["blobs"] == 0
    assert rows(state, "SELECT * FROM purged_blobs") == []
    assert references(state, "same") == 1


def test_trash_outlives_its_bucket(state: State) -> None:
    alice = state.user("alice")
    state.done(create_bucket(alice, "b1"))
    store(state, create(alice, "f1", bucket_id="b1"))
    delete(state, "f1", alice)
    state.done(commands.DeleteBucket(caller=alice, bucket_id="b1"))
    assert trashed(state, alice) == ["f1"]
    refused = restore(state, "f1", alice)
    assert (refused, "Name one" in refused.details) == ("conflict", True)
    restored = restore(state, "f1", alice, DEFAULT_BUCKET_ID)
    assert restored["bucket_id"] == DEFAULT_BUCKET_ID
    assert rows(state, "PRAGMA foreign_key_check") == []


def test_trash_of_a_deleted_user_belongs_to_who_restores_it(state: State) -> None:
    alice = state.user("alice")
    store(state, create(alice, "f1"))
    delete(state, "f1", alice)
    state.done(commands.DeleteUser(caller=ADMIN, user_id="alice"))
    alice = state.user("alice")  # somebody else, as far as anybody knows
    assert trashed(state, alice) == []
    assert restore(state, "f1", alice) == "forbidden"
    assert restore(state, "f1")["file_uuid"] == "f1"
    assert state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1"))["owner_id"] == "admin"


def test_disabled_user_keeps_its_trash(state: State) -> None:
    alice = state.user("alice")
    store(state, create(alice, "f1"))
    delete(state, "f1", alice)
    state.done(put_user("alice", disabled=True))
    state.done(put_user("alice", disabled=False))
    assert trashed(state, alice) == ["f1"]


def test_pages_follow_the_order_of_deletion(state: State) -> None:
    for number in range(5):
        store(state, create(ADMIN, f"f{number}"))
    for number in (3, 0, 4, 1):
        delete(state, f"f{number}")
    found, cursor = [], 0
    while True:
        page = state.ask(queries.ListTrash(caller=ADMIN, limit=2, cursor=cursor))
        found += [each["file_uuid"] for each in page["files"]]
        if not (cursor := page["next_cursor"]):
            break
    assert found == ["f3", "f0", "f4", "f1"]
