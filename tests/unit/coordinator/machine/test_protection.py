"""Protected files in the state machine: nobody deletes them before their time, whatever else happens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metadata.model.records import Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, HOUR_MS, State, create, create_backup, create_bucket, create_vm
from tests.unit.trash_acts import DAY_MS, chain, delete, rows, safety, store, trashed

DAY_S = 86_400


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2")
    yield made
    made.store.close()


def protect(state: State, file_uuid: str, caller: Caller = ADMIN, **changes: Any) -> Any:
    return state.apply(commands.ProtectFile(caller=caller, file_uuid=file_uuid, **changes))


def until(state: State, file_uuid: str) -> int:
    record = state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid=file_uuid))
    return int(record.get("protected_until_ms", 0))


def end(state: State) -> None:
    state.apply(commands.Expire())


def test_protected_file_is_deleted_by_nobody_until_expire_ends_the_protection(state: State) -> None:
    alice = state.user("alice")
    store(state, create(alice, "f1", protect_seconds=DAY_S))
    began_ms = state.at_ms
    assert until(state, "f1") == began_ms + DAY_MS
    for caller in (alice, ADMIN):
        refused = delete(state, "f1", caller)
        assert (refused, refused.details[:31]) == ("protected", "The file is protected until 197")
        assert delete(state, "f1", caller, for_good=True) == "protected"
    state.at_ms += DAY_MS - 1
    end(state)
    assert delete(state, "f1", alice) == "protected"
    state.at_ms += 2  # a clock that is ahead, which no Expire has seen
    assert delete(state, "f1", alice) == "protected"
    assert state.store.is_expire_due(at_ms=state.at_ms)
    end(state)
    assert until(state, "f1") == 0
    assert delete(state, "f1", alice) is None


def test_protection_is_extended_and_never_shortened(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    store(state, create(alice, "f1"))
    assert protect(state, "f1", bob, ttl_seconds=10) == "forbidden"
    assert protect(state, "f1", alice, ttl_seconds=100) == state.at_ms + 100_000
    assert protect(state, "f1", alice, ttl_seconds=99) == "invalid_request"
    assert protect(state, "f1", ADMIN, until_ms=state.at_ms + 1) == "invalid_request"
    assert protect(state, "f1", alice, until_ms=state.at_ms) == "invalid_request"
    assert until(state, "f1") == state.at_ms + 100_000
    assert protect(state, "f1", alice, until_ms=state.at_ms + 200_000) == until(state, "f1")
    assert protect(state, "f1", alice, ttl_seconds=3661 * DAY_S) == "invalid_request"
    assert protect(state, "f1", alice) == "invalid_request"
    assert protect(state, "none", alice, ttl_seconds=1) == "not_found"


def test_only_an_admin_of_the_cluster_overrides(state: State) -> None:
    alice = state.user("alice")
    store(state, create(alice, "f1", protect_seconds=DAY_S))
    assert delete(state, "f1", alice, override_protection=True) == "forbidden"
    assert delete(state, "f1", override_protection=True) is None
    assert trashed(state, alice) == ["f1"]


def test_retention_waits_for_the_protection(state: State) -> None:
    store(state, create(ADMIN, "f1", retention_hours=1, protect_seconds=DAY_S))
    state.at_ms += 2 * HOUR_MS
    end(state)
    record = state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1"))
    assert (record["status"], record["due_at_ms"]) == ("available", until(state, "f1"))
    state.at_ms = until(state, "f1")
    end(state)
    assert state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1"))["status"] == "tombstoned"
    assert protect(state, "f1", ttl_seconds=1) == "conflict"


@pytest.mark.parametrize("make", [create, create_vm, create_backup])
def test_bucket_protects_each_new_file_from_its_content_on(
    state: State, make: Callable[..., commands.CreateFile]
) -> None:
    state.done(create_bucket(ADMIN, "b1"))
    store(state, make(ADMIN, "old", bucket_id="b1"))
    state.done(safety("b1", protect_days=14))
    state.done(make(ADMIN, "upload", bucket_id="b1"))
    store(state, make(ADMIN, "f1", bucket_id="b1"))
    store(state, make(ADMIN, "longer", bucket_id="b1", protect_seconds=30 * DAY_S))
    store(state, make(ADMIN, "exempt", bucket_id="b1", protect_seconds=0))
    ends = dict(rows(state, "SELECT file_uuid, until_ms FROM protected_files JOIN files USING (sequence)"))
    assert ends == {
        "f1": state.at_ms + 14 * DAY_MS,
        "longer": state.at_ms + 30 * DAY_MS,
        "exempt": 0,
    }
    assert [delete(state, name) for name in ("old", "upload", "exempt")] == [None] * 3
    assert [delete(state, name) for name in ("f1", "longer")] == ["protected"] * 2
    assert state.apply(safety("b1", protect_days=3661)) == "invalid_request"


def test_upload_of_a_protected_file_can_be_given_up(state: State) -> None:
    state.done(create(ADMIN, "f1", protect_seconds=DAY_S))
    assert delete(state, "f1") is None


def test_what_a_protected_backup_builds_on_stays(state: State) -> None:
    chain(state, 2, retention_hours=1)
    protect(state, "f1", ttl_seconds=DAY_S)
    assert delete(state, "f0") == "conflict"
    change = commands.UpdateBackup(caller=ADMIN, file_uuid="f1", backup_type="full")
    assert state.apply(change) == "protected"
    state.at_ms += 2 * HOUR_MS
    end(state)
    for name in ("f0", "f1"):
        assert state.ask(queries.GetBackup(caller=ADMIN, file_uuid=name))["status"] == "available"


def test_user_and_bucket_of_protected_files_stay(state: State) -> None:
    alice = state.user("alice")
    state.done(create_bucket(alice, "b1"))
    store(state, create(alice, "f1", bucket_id="b1", protect_seconds=DAY_S))
    assert state.apply(commands.DeleteUser(caller=ADMIN, user_id="alice")) == "conflict"
    assert state.apply(commands.DeleteBucket(caller=ADMIN, bucket_id="b1")) == "conflict"


def test_file_is_restored_with_its_protection(state: State) -> None:
    store(state, create(ADMIN, "f1", protect_seconds=DAY_S))
    ends_ms = until(state, "f1")
    delete(state, "f1", override_protection=True)
    state.done(commands.RestoreFile(caller=ADMIN, file_uuid="f1"))
    assert until(state, "f1") == ends_ms
