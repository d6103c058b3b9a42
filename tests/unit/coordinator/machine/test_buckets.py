"""Buckets in the state machine: records, names, quotas, deletion, and lists of buckets and of their files."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine import bucket_lists
from coordinator.machine.execution import pages
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.coordinator.machine.execution.test_access_model import machine_in_memory
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    State,
    complete,
    create,
    create_backup,
    create_bucket,
    create_vm,
    grant,
    put_user,
    withdraw,
)


def update(caller: Caller, bucket_id: str, **changes: Any) -> commands.UpdateBucket:
    values: dict[str, Any] = {"name": None, "quota_bytes": None, **changes}
    return commands.UpdateBucket(caller=caller, bucket_id=bucket_id, **values)


def delete(caller: Caller, bucket_id: str) -> commands.DeleteBucket:
    return commands.DeleteBucket(caller=caller, bucket_id=bucket_id)


def get(state: State, caller: Caller, bucket_id: str) -> Any:
    return state.ask(queries.GetBucket(caller=caller, bucket_id=bucket_id))


def listed(state: State, caller: Caller, *, limit: int = 1000) -> list[str]:
    """Ids of the buckets that the caller sees, a page after the other."""
    seen: list[str] = []
    cursor = 0
    while True:
        page = state.ask(queries.ListBuckets(caller=caller, limit=limit, cursor=cursor))
        assert len(page["buckets"]) <= limit
        seen += [bucket["bucket_id"] for bucket in page["buckets"]]
        if not (cursor := page["next_cursor"]):
            return seen


def held(state: State, caller: Caller, bucket_id: str, **narrowed: Any) -> Any:
    """Ids of the files of one page, or the refusal."""
    page = state.ask(queries.ListBucketFiles(caller=caller, bucket_id=bucket_id, **narrowed))
    return page if isinstance(page, str) else [file["file_uuid"] for file in page["files"]]


def test_any_user_makes_buckets_of_its_own(state: State) -> None:
    alice = state.user("alice")
    made = state.done(create_bucket(alice, "b1", quota_bytes=9))
    assert made == {
        "bucket_id": "b1",
        "name": "b1",
        "owner_id": "alice",
        "quota_bytes": 9,
        "used_bytes": 0,
        "file_count": 0,
        "created_at_ms": state.at_ms,
        "updated_at_ms": state.at_ms,
    }
    assert get(state, alice, "b1") == made
    assert get(state, state.user("bob"), "b1") == "forbidden"
    assert get(state, alice, "b2") == "not_found"


def test_taken_name_or_id_is_a_conflict(state: State) -> None:
    state.done(create_bucket(ADMIN, "b1", name="lab"))
    state.done(create_bucket(ADMIN, "b2", name="Lab"))
    assert state.apply(create_bucket(ADMIN, "b1", name="other")) == "conflict"
    assert state.apply(create_bucket(ADMIN, "b3", name="lab")) == "conflict"
    assert state.apply(create_bucket(ADMIN, "b3", name="default")) == "conflict"
    assert state.apply(update(ADMIN, "b2", name="lab")) == "conflict"
    assert state.done(update(ADMIN, "b1", name="lab"))["name"] == "lab"


def test_update_needs_admin_and_none_leaves_a_field(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    made = state.done(create_bucket(alice, "b1", quota_bytes=9))
    state.done(grant(alice, "bucket:b1", "user:bob", "write"))
    assert state.apply(update(bob, "b1", name="x")) == "forbidden"
    state.at_ms += 1
    assert state.done(update(alice, "b1")) == made
    state.done(grant(alice, "bucket:b1", "user:bob", "admin"))
    renamed = state.done(update(bob, "b1", name="x"))
    assert renamed == {**made, "name": "x", "updated_at_ms": state.at_ms}
    assert state.done(update(alice, "b1", quota_bytes=0))["quota_bytes"] == 0


def test_default_bucket_keeps_its_name_and_stays(state: State) -> None:
    assert state.apply(update(ADMIN, DEFAULT_BUCKET_ID, name="x")) == "conflict"
    assert state.apply(delete(ADMIN, DEFAULT_BUCKET_ID)) == "conflict"
    assert state.done(update(ADMIN, DEFAULT_BUCKET_ID, name="default", quota_bytes=7))["quota_bytes"] == 7
    assert state.apply(delete(state.user("alice"), DEFAULT_BUCKET_ID)) == "forbidden"


def test_everybody_gets_the_default_bucket_and_makes_files_there(state: State) -> None:
    alice = state.user("alice")
    assert get(state, alice, DEFAULT_BUCKET_ID)["name"] == "default"
    assert state.done(create(alice, "f1"))["status"] == "pending"


def test_bucket_that_holds_files_is_not_deleted(state: State) -> None:
    alice = state.user("alice")
    state.done(create_bucket(alice, "b1"))
    state.done(create(alice, "f1", bucket_id="b1"))
    refusal = state.apply(delete(alice, "b1"))
    assert (refusal, "1 file" in refusal.details) == ("conflict", True)
    assert state.apply(delete(state.user("bob"), "b1")) == "forbidden"
    state.done(commands.DeleteFile(caller=alice, file_uuid="f1", kind=""))
    assert state.apply(delete(alice, "b1")) is None
    assert state.apply(delete(alice, "b1")) == get(state, alice, "b1") == "not_found"


def test_quota_holds_when_a_file_begins_and_when_it_ends(state: State) -> None:
    alice = state.user("alice")
    state.done(create_bucket(alice, "b1", quota_bytes=10))
    assert state.apply(create(alice, "f1", bucket_id="b1", size_bytes=11)) == "payload_too_large"
    for file_uuid in ("f1", "f2"):
        state.done(create(alice, file_uuid, bucket_id="b1"))
    state.done(complete(alice, "f1", "aa", ["n1", "n2"], size_bytes=6))
    assert state.apply(complete(alice, "f2", "bb", ["n1", "n2"], size_bytes=5)) == "payload_too_large"
    state.done(update(alice, "b1", quota_bytes=11))
    state.done(complete(alice, "f2", "bb", ["n1", "n2"], size_bytes=5))
    bucket = get(state, alice, "b1")
    assert (bucket["used_bytes"], bucket["file_count"]) == (11, 2)
    state.done(update(alice, "b1", quota_bytes=1))
    assert state.apply(create(alice, "f3", bucket_id="b1")) == "payload_too_large"
    state.done(commands.DeleteFile(caller=alice, file_uuid="f1", kind=""))
    bucket = get(state, alice, "b1")
    assert (bucket["used_bytes"], bucket["file_count"]) == (5, 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 1000])
def test_list_shows_the_default_own_and_granted_buckets(state: State, limit: int) -> None:
    alice = state.user("alice", groups=["lab"], roles=["staff"])
    bob = state.user("bob")
    for bucket_id, owner in (("z", bob), ("own", alice), ("g", bob), ("a", bob), ("r", bob), ("late", bob)):
        state.done(create_bucket(owner, bucket_id))
    for bucket_id, principal in (
        ("r", "role:staff"),
        ("g", "group:lab"),
        ("z", "user:alice"),
        ("a", "user:x"),
    ):
        state.done(grant(bob, f"bucket:{bucket_id}", principal))
    state.done(grant(bob, "bucket:g", "user:alice", "admin"))  # twice granted is listed once
    state.done(grant(bob, "bucket:late", "user:alice", expires_at_ms=state.at_ms + HOUR_MS))
    assert listed(state, alice, limit=limit) == [DEFAULT_BUCKET_ID, "z", "own", "g", "r", "late"]
    state.at_ms += HOUR_MS
    assert listed(state, alice, limit=limit) == [DEFAULT_BUCKET_ID, "z", "own", "g", "r"]
    assert listed(state, state.user("carl"), limit=limit) == [DEFAULT_BUCKET_ID]
    assert listed(state, ADMIN, limit=limit) == [DEFAULT_BUCKET_ID, "z", "own", "g", "a", "r", "late"]


def test_files_of_a_bucket_are_for_those_who_may_read_it(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    state.done(create_bucket(alice, "b1"))
    state.done(create(ADMIN, "f1", bucket_id="b1"))
    state.done(create_vm(alice, "f2", bucket_id="b1"))
    state.done(create_backup(alice, "f3"))
    state.done(grant(alice, "file:f2", "user:bob", "admin"))
    assert held(state, bob, "b1") == "forbidden"
    state.done(grant(alice, "bucket:b1", "user:bob", "read"))
    for caller in (alice, bob, ADMIN):
        assert held(state, caller, "b1") == ["f1", "f2"]
    assert held(state, alice, "b2") == "not_found"


def test_default_bucket_shows_what_is_owned_or_granted_on_the_file(state: State) -> None:
    alice = state.user("alice", groups=["lab"])
    for file_uuid, owner in (("f1", ADMIN), ("f2", alice), ("f3", ADMIN), ("f4", ADMIN), ("f5", alice)):
        state.done(create(owner, file_uuid))
    state.done(grant(ADMIN, "file:f4", "group:lab"))
    state.done(grant(ADMIN, "file:f3", "user:alice", "admin", expires_at_ms=state.at_ms + 1))
    state.done(grant(ADMIN, "file:f2", "user:alice", "read"))  # owned and granted is listed once
    assert held(state, alice, DEFAULT_BUCKET_ID) == ["f2", "f3", "f4", "f5"]
    state.at_ms += 1
    assert held(state, alice, DEFAULT_BUCKET_ID) == ["f2", "f4", "f5"]
    assert held(state, state.user("bob"), DEFAULT_BUCKET_ID) == []
    assert held(state, ADMIN, DEFAULT_BUCKET_ID) == ["f1", "f2", "f3", "f4", "f5"]
    state.done(grant(ADMIN, f"bucket:{DEFAULT_BUCKET_ID}", "group:lab", "read"))
    assert held(state, alice, DEFAULT_BUCKET_ID) == ["f1", "f2", "f3", "f4", "f5"]


def test_default_bucket_does_not_show_what_was_granted_in_another(state: State) -> None:
    alice = state.user("alice")
    state.done(create_bucket(ADMIN, "b1"))
    for file_uuid, bucket_id in (("f1", "b1"), ("f2", DEFAULT_BUCKET_ID), ("f3", "b1")):
        state.done(create(ADMIN, file_uuid, bucket_id=bucket_id))
        state.done(grant(ADMIN, f"file:{file_uuid}", "user:alice"))
    assert held(state, alice, DEFAULT_BUCKET_ID) == ["f2"]


def test_nobody_owns_the_default_bucket_whatever_its_record_says(state: State) -> None:
    second = state.user("second", roles=["admin"])
    state.done(create(second, "f1"))
    state.done(put_user("admin", caller=second, roles=[]))
    assert get(state, ADMIN, DEFAULT_BUCKET_ID)["owner_id"] == "admin"
    assert held(state, ADMIN, DEFAULT_BUCKET_ID) == []
    assert state.apply(grant(ADMIN, f"bucket:{DEFAULT_BUCKET_ID}", "user:admin")) == "forbidden"
    assert state.apply(update(ADMIN, DEFAULT_BUCKET_ID, quota_bytes=1)) == "forbidden"


@pytest.mark.parametrize("caller", [ADMIN, Caller("alice", 1)])
def test_page_that_ends_with_the_last_file_has_no_next_one(state: State, caller: Caller) -> None:
    alice = state.user("alice")
    for number in range(4):
        state.done(create(alice, f"f{number}"))
    query = queries.ListBucketFiles(caller=caller, bucket_id=DEFAULT_BUCKET_ID, limit=2)
    first = state.ask(query)
    assert first["next_cursor"] > 0
    last = state.ask(msgspec.structs.replace(query, cursor=first["next_cursor"]))
    assert (len(last["files"]), last["next_cursor"]) == (2, 0)


@pytest.mark.parametrize("caller", [ADMIN, Caller("alice", 1)])
def test_files_of_a_bucket_are_narrowed_by_status_and_prefix(state: State, caller: Caller) -> None:
    alice = state.user("alice")
    for file_uuid, filename in (("f1", "lab%1"), ("f2", "lab_1"), ("f3", "Lab%1"), ("f4", "x")):
        state.done(create(alice, file_uuid, filename=filename))
    for file_uuid in ("f1", "f4"):
        state.done(complete(alice, file_uuid, "aa", ["n1", "n2"]))
    assert held(state, caller, DEFAULT_BUCKET_ID, status="available") == ["f1", "f4"]
    assert held(state, caller, DEFAULT_BUCKET_ID, filename_prefix="lab") == ["f1", "f2"]
    assert held(state, caller, DEFAULT_BUCKET_ID, filename_prefix="lab%") == ["f1"]
    assert held(state, caller, DEFAULT_BUCKET_ID, filename_prefix="lab", status="pending") == ["f2"]


def test_summary_of_a_file_is_its_record(state: State) -> None:
    state.done(create_vm(ADMIN, "f1"))
    record = state.ask(queries.GetVm(caller=ADMIN, file_uuid="f1"))
    page = state.ask(queries.ListBucketFiles(caller=ADMIN, bucket_id=DEFAULT_BUCKET_ID))
    assert page["next_cursor"] == 0
    (listed,) = page["files"]
    assert listed.pop("kind") == "vm"
    assert listed == {name: record[name] for name in listed}


FILE_COUNT = 14
numbers = st.integers(0, FILE_COUNT - 1)
between = st.lists(
    st.one_of(
        st.tuples(st.just("delete"), numbers),
        st.tuples(st.just("create"), st.booleans()),
        st.tuples(st.just("allow"), numbers),
        st.tuples(st.just("take_away"), numbers),
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(
    owned=st.lists(st.booleans(), min_size=FILE_COUNT, max_size=FILE_COUNT),
    granted=st.lists(
        st.sampled_from(["", "user:alice", "group:lab", "both"]), min_size=FILE_COUNT, max_size=FILE_COUNT
    ),
    named=st.lists(st.sampled_from(["lab", "other"]), min_size=FILE_COUNT, max_size=FILE_COUNT),
    changes=st.lists(between, max_size=FILE_COUNT),
    limit=st.integers(1, FILE_COUNT + 1),
    prefix=st.sampled_from(["", "lab"]),
    scan_max=st.sampled_from([1, 2, 5, 5000]),
    window=st.sampled_from([1, 3, 256]),
)
def test_pages_of_the_default_bucket_hold_each_file_once_whatever_comes_and_goes(
    owned: list[bool],
    granted: list[str],
    named: list[str],
    changes: list[list[tuple[str, Any]]],
    limit: int,
    prefix: str,
    scan_max: int,
    window: int,
) -> None:
    with machine_in_memory() as state, pytest.MonkeyPatch.context() as patched:
        for module in (bucket_lists, pages):
            patched.setattr(module, "LIST_SCAN_MAX", scan_max)
        patched.setattr(bucket_lists, "_WINDOW_ROWS_MIN", window)
        alice = state.user("alice", groups=["lab"])
        world = Files(state, alice, prefix)
        for number in range(FILE_COUNT):
            world.create(owned[number], named[number])
            for principal in ("user:alice", "group:lab") if granted[number] == "both" else [granted[number]]:
                world.allow(number, principal)
        throughout, ever = world.visible(), world.visible()
        seen: list[str] = []
        cursor, pages_read = 0, 0
        while True:
            query = queries.ListBucketFiles(
                caller=alice,
                bucket_id=DEFAULT_BUCKET_ID,
                filename_prefix=prefix,
                limit=limit,
                cursor=cursor,
            )
            page = state.ask(query)
            assert len(page["files"]) <= limit
            seen += [file["file_uuid"] for file in page["files"]]
            if not (cursor := page["next_cursor"]):
                break
            for name, value in changes[pages_read] if pages_read < len(changes) else []:
                getattr(world, name)(value)
                throughout &= world.visible()
                ever |= world.visible()
            pages_read += 1
        assert seen == sorted(seen), "the order of creation"
        assert len(seen) == len(set(seen))
        assert throughout <= set(seen) <= ever


class Files:
    """The files of the default bucket, and which of them Alice sees."""

    def __init__(self, state: State, alice: Caller, prefix: str) -> None:
        self._state = state
        self._alice = alice
        self._prefix = prefix
        self._owned: dict[str, bool] = {}
        self._named: dict[str, str] = {}
        self._granted: set[tuple[str, str]] = set()

    def visible(self) -> set[str]:
        shared = {file_uuid for file_uuid, _ in self._granted}
        return {
            file_uuid
            for file_uuid, is_owned in self._owned.items()
            if (is_owned or file_uuid in shared) and self._named[file_uuid].startswith(self._prefix)
        }

    def create(self, is_owned: bool, filename: str = "lab") -> None:
        file_uuid = f"f{self._state.log_index:04}"
        self._state.done(create(self._alice if is_owned else ADMIN, file_uuid, filename=filename))
        self._owned[file_uuid], self._named[file_uuid] = is_owned, filename

    def delete(self, number: int) -> None:
        file_uuid = self._existing(number)
        if file_uuid:
            self._state.done(commands.DeleteFile(caller=ADMIN, file_uuid=file_uuid, kind=""))
            del self._owned[file_uuid], self._named[file_uuid]
            self._granted = {key for key in self._granted if key[0] != file_uuid}

    def allow(self, number: int, principal: str = "user:alice") -> None:
        file_uuid = self._existing(number)
        if file_uuid and principal:
            self._state.done(grant(ADMIN, f"file:{file_uuid}", principal))
            self._granted.add((file_uuid, principal))

    def take_away(self, number: int) -> None:
        file_uuid = self._existing(number)
        if (file_uuid, "user:alice") in self._granted:
            on = f"file:{file_uuid}"
            self._state.done(withdraw(ADMIN, on, f"{on} user:alice read"))
            self._granted.remove((file_uuid, "user:alice"))

    def _existing(self, number: int) -> str:
        known = sorted(self._owned)
        return known[number] if number < len(known) else ""


def test_storage_of_a_bucket_is_kept_and_forgotten_with_it(state: State) -> None:
    state.done(create_bucket(ADMIN, "b1"))
    assert "storage" not in get(state, ADMIN, "b1")
    made = state.done(update(ADMIN, "b1", storage="cold"))
    assert (made["storage"], get(state, ADMIN, "b1")["storage"]) == ("cold", "cold")
    assert state.done(update(ADMIN, "b1", quota_bytes=7))["storage"] == "cold"
    before = get(state, ADMIN, "b1")["updated_at_ms"]
    state.at_ms += 1
    assert state.done(update(ADMIN, "b1", storage="cold"))["updated_at_ms"] == before
    assert state.done(update(ADMIN, "b1", storage="hot"))["storage"] == "hot"
    assert "storage" not in state.done(update(ADMIN, "b1", storage="auto"))
    state.done(update(ADMIN, "b1", storage="cold"))
    state.done(delete(ADMIN, "b1"))
    state.done(create_bucket(ADMIN, "b1"))
    assert "storage" not in get(state, ADMIN, "b1")


def test_pages_of_storage_go_through_all_replicas_of_a_node(state: State) -> None:
    state.nodes("n1", "n2", "n3")
    names = [f"{number:064x}" for number in range(5)]
    for number, name in enumerate(names):
        state.done(create(ADMIN, f"f{number}"))
        replicas = ["n1", "n2"] if number != 2 else ["n2", "n3"]
        state.done(complete(ADMIN, f"f{number}", name, replicas, size_bytes=1000 * number))
    found, after, more = list[str](), "", True
    while more:
        page = state.ask(queries.ListReplicaStorage(node_id="n1", size_bytes_min=500, after=after, limit=2))
        found += [replica["sha256"] for replica in page["replicas"]]
        after, more = page["last"], page["more"]
    assert found == [names[1], names[3], names[4]]
