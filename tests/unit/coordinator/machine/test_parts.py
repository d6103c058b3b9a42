"""Partial uploads in the state machine, and files that are put together from them."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.machine.uploads import UPLOAD_LIFE_MS
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.model.rules import UPLOADS_ARE_CONCATENATED
from metadata.protocol import commands, queries
from runtime.bounds import PARTS_MAX
from tests.unit.coordinator.machine.test_uploads import sha256_of
from tests.unit.seeds import seeds
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State, complete, create, create_bucket, grant

NODES = ["n1", "n2", "n3"]
QUOTA = 20


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """With the bucket b, which has a quota and is the admin's."""
    made = State(tmp_path / "state.sqlite")
    made.nodes(*NODES)
    made.done(create_bucket(ADMIN, "b", quota_bytes=QUOTA))
    yield made
    made.store.close()


def begin(
    file_uuid: str, size_bytes: int | None, *, caller: Caller = ADMIN, bucket_id: str = DEFAULT_BUCKET_ID
) -> commands.CreatePartial:
    return commands.CreatePartial(
        caller=caller, file_uuid=file_uuid, bucket_id=bucket_id, size_bytes=size_bytes, placement=NODES
    )


def progress(file_uuid: str, offset_bytes: int, *, caller: Caller = ADMIN) -> commands.RecordProgress:
    return commands.RecordProgress(
        caller=caller,
        file_uuid=file_uuid,
        node_id="n1",
        offset_bytes=offset_bytes,
        prefix_sha256=sha256_of(bytes(offset_bytes)),
    )


def bring(state: State, file_uuid: str, size_bytes: int, **where: Any) -> None:
    """A partial upload that is complete."""
    state.done(begin(file_uuid, size_bytes, **where))
    state.done(progress(file_uuid, size_bytes, caller=where.get("caller", ADMIN)))


def final(*parts: str, size_bytes: int, file_uuid: str = "f", **changes: Any) -> commands.CreateProjectFile:
    made = create(changes.pop("caller", ADMIN), file_uuid, size_bytes=size_bytes, **changes)
    return msgspec.structs.replace(made, parts=list(parts))


def upload(state: State, file_uuid: str, caller: Caller = ADMIN) -> Any:
    return state.ask(queries.GetUpload(caller=caller, file_uuid=file_uuid))


def row(state: State, sql: str) -> Any:
    with closing(sqlite3.connect(state.path)) as db:
        return db.execute(sql).fetchone()


def bucket(state: State, bucket_id: str = "b") -> tuple[int, int, int]:
    """Used and reserved bytes, and the number of files."""
    columns = "used_bytes, reserved_bytes, file_count"
    found = row(state, f"SELECT {columns} FROM buckets WHERE bucket_id = '{bucket_id}'")
    return found[0], found[1], found[2]


def test_file_is_put_together_from_complete_parts_which_go_when_it_is_available(state: State) -> None:
    bring(state, "p1", 3)
    bring(state, "p2", 0)
    bring(state, "p3", 4)
    made = state.done(final("p3", "p1", "p2", size_bytes=7))
    assert (made["parts"], made["size_bytes"], made["status"]) == (["p3", "p1", "p2"], 7, "pending")
    assert upload(state, "f") == made | {"as_of": upload(state, "f")["as_of"]}
    parts = state.ask(queries.GetParts(caller=ADMIN, file_uuids=["p3", "p1", "p2"]))
    assert [part["offset_bytes"] for part in parts] == [4, 3, 0]
    assert parts[0]["prefix_sha256"] == sha256_of(bytes(4))
    state.done(complete(ADMIN, "f", sha256_of(b"all"), NODES, size_bytes=7))
    ended = upload(state, "f")
    assert (ended["status"], ended["placement"], ended["parts"]) == ("available", [], ["p3", "p1", "p2"])
    assert upload(state, "p1") == state.ask(queries.GetParts(caller=ADMIN, file_uuids=["p1"])) == "not_found"
    assert state.ask(queries.LiveUploads(file_uuids=["f", "p1", "p2", "p3"])) == []


def test_partial_upload_becomes_no_file_by_itself(state: State) -> None:
    bring(state, "p1", 3)
    assert state.apply(complete(ADMIN, "p1", sha256_of(bytes(3)), NODES, size_bytes=3)) == "conflict"
    assert upload(state, "p1")["kind"] == "partial"


def test_nobody_finds_a_partial_upload_but_its_owner_as_an_upload(state: State) -> None:
    alice = state.user("alice")
    state.done(grant(ADMIN, "bucket:b", "user:alice", "write"))
    bring(state, "p1", 3, caller=alice, bucket_id="b")
    for other in (ADMIN, state.user("bob")):
        assert upload(state, "p1", other) == "not_found"
        assert state.apply(progress("p1", 3, caller=other)) == "not_found"
        assert state.apply(commands.TerminateUpload(caller=other, file_uuid="p1")) == "not_found"
        assert state.ask(queries.GetParts(caller=other, file_uuids=["p1"])) == "not_found"
    asked: list[queries.AnyQuery] = [
        queries.GetContent(caller=alice, file_uuid="p1"),
        queries.GetProjectFile(caller=alice, file_uuid="p1"),
        queries.ListPermissions(caller=alice, target="file", target_id="p1"),
    ]
    assert [state.ask(query) for query in asked] == ["not_found"] * 3
    named = commands.DeleteFile(caller=alice, file_uuid="p1", kind="project_file")
    assert state.apply(named) == "not_found"
    assert state.apply(grant(alice, "file:p1", "user:bob")) == "not_found"
    for caller, bucket_id in ((ADMIN, "b"), (alice, "b"), (alice, DEFAULT_BUCKET_ID)):
        listed = queries.ListBucketFiles(caller=caller, bucket_id=bucket_id, cursor=0, limit=9)
        assert state.ask(listed)["files"] == []
    assert state.ask(queries.ListProjectFiles(caller=ADMIN, cursor=0, limit=9, project_id=""))["files"] == []
    assert bucket(state)[2] == 0
    assert upload(state, "p1", alice)["offset_bytes"] == 3


def listed(state: State, caller: Caller, bucket_id: str = "b") -> Any:
    return state.ask(queries.ListBucketUploads(caller=caller, bucket_id=bucket_id, cursor=0, limit=9))


def test_unfinished_uploads_are_listed_for_admins_of_the_bucket_and_for_their_owners(state: State) -> None:
    alice, bob, ulla = (state.user(name) for name in ("alice", "bob", "ulla"))
    state.done(grant(ADMIN, "bucket:b", "user:alice", "write"))
    state.done(grant(ADMIN, "bucket:b", "user:bob", "admin"))
    state.done(grant(ADMIN, "bucket:b", "user:ulla", "read"))
    state.done(begin("p1", 3, caller=alice, bucket_id="b"))
    state.done(progress("p1", 2, caller=alice))
    bring(state, "p2", 4, caller=bob, bucket_id="b")
    state.done(final("p2", size_bytes=4, caller=bob, bucket_id="b"))
    shown = [(each["file_uuid"], each["kind"], each["owner_id"]) for each in listed(state, ADMIN)["uploads"]]
    assert shown == [("p1", "partial", "alice"), ("p2", "partial", "bob"), ("f", "project_file", "bob")]
    (part, of_final, whole) = listed(state, bob)["uploads"]
    assert (part["size_bytes"], part["offset_bytes"], part["reserved_bytes"], part["part_of"]) == (
        3,
        2,
        3,
        "",
    )
    assert (of_final["reserved_bytes"], of_final["part_of"], whole["reserved_bytes"]) == (0, "f", 4)
    assert [each["file_uuid"] for each in listed(state, alice)["uploads"]] == ["p1"]
    assert listed(state, ulla)["uploads"] == []
    assert listed(state, state.user("nobody")) == "forbidden"
    assert listed(state, ulla, "none") == "not_found"
    assert listed(state, ulla, DEFAULT_BUCKET_ID)["uploads"] == []
    state.done(complete(bob, "f", sha256_of(b"all"), NODES, size_bytes=4))
    assert [each["file_uuid"] for each in listed(state, ADMIN)["uploads"]] == ["p1"]


@pytest.mark.parametrize("who", ["its owner", "admin of the bucket", "admin"])
def test_partial_upload_is_deleted_like_a_file_by_its_owner_and_admins_of_its_bucket(
    state: State, who: str
) -> None:
    alice, bob, ulla = (state.user(name) for name in ("alice", "bob", "ulla"))
    for name, level in (("alice", "write"), ("bob", "admin"), ("ulla", "write")):
        state.done(grant(ADMIN, "bucket:b", f"user:{name}", level))
    bring(state, "p1", 3, caller=alice, bucket_id="b")
    assert bucket(state) == (0, 3, 0)
    for other in (ulla, state.user("nobody")):
        assert state.apply(commands.DeleteFile(caller=other, file_uuid="p1", kind="")) == "forbidden"
    caller = {"its owner": alice, "admin of the bucket": bob, "admin": ADMIN}[who]
    state.done(commands.DeleteFile(caller=caller, file_uuid="p1", kind=""))
    assert bucket(state) == (0, 0, 0)
    assert upload(state, "p1", alice) == "not_found"


def test_part_of_a_final_upload_is_not_deleted(state: State) -> None:
    bring(state, "p1", 3)
    state.done(final("p1", size_bytes=3))
    assert state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="p1", kind="")) == "conflict"


@pytest.mark.parametrize("how", ["deleted", "disabled"])
def test_partial_uploads_end_with_their_user(state: State, how: str) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    for name in ("alice", "bob"):
        state.done(grant(ADMIN, "bucket:b", f"user:{name}", "write"))
    state.done(begin("p1", 3, caller=alice, bucket_id="b"))
    bring(state, "p2", 3, caller=bob, bucket_id="b")
    ending: commands.AnyCommand = commands.DeleteUser(caller=ADMIN, user_id="alice")
    if how == "disabled":
        ending = commands.PutUser(caller=ADMIN, user_id="alice", roles=None, groups=None, disabled=True)
    state.done(ending)
    assert state.done(commands.Expire())["uploads"] == 1
    assert bucket(state) == (0, 3, 0)
    assert [each["file_uuid"] for each in listed(state, ADMIN)["uploads"]] == ["p2"]


def test_parts_of_a_file_stay_with_it_when_their_user_is_disabled(state: State) -> None:
    alice = state.user("alice")
    bring(state, "p1", 3, caller=alice)
    state.done(final("p1", size_bytes=3, caller=alice))
    state.done(commands.PutUser(caller=ADMIN, user_id="alice", roles=None, groups=None, disabled=True))
    assert state.done(commands.Expire())["uploads"] == 0
    state.done(commands.PutUser(caller=ADMIN, user_id="alice", roles=None, groups=None, disabled=False))
    state.done(complete(alice, "f", sha256_of(b"all"), NODES, size_bytes=3))


def test_bucket_with_partial_uploads_is_not_deleted(state: State) -> None:
    bring(state, "p1", 3, bucket_id="b")
    deleting = commands.DeleteBucket(caller=ADMIN, bucket_id="b")
    assert state.apply(deleting) == "conflict"
    state.done(commands.TerminateUpload(caller=ADMIN, file_uuid="p1"))
    state.done(deleting)


def test_partial_upload_needs_write_on_its_bucket(state: State) -> None:
    assert state.apply(begin("p1", 3, caller=state.user("alice"), bucket_id="b")) == "forbidden"
    assert state.apply(begin("p1", 3, bucket_id="none")) == "invalid_request"


def test_parts_that_cannot_be_had_are_refused_and_nothing_changes(state: State) -> None:
    alice = state.user("alice")
    bring(state, "own", 3)
    bring(state, "foreign", 3, caller=alice)
    state.done(begin("short", 3))
    state.done(progress("short", 2))
    state.done(begin("open", None))
    state.done(create(ADMIN, "whole", size_bytes=0))
    before = state.dump()
    for parts, refusal, named in [
        (("own", "none"), "not_found", "none"),
        (("own", "foreign"), "not_found", "foreign"),
        (("own", "whole"), "not_found", "whole"),
        (("own", "short"), "conflict", "2 of 3"),
        (("own", "open"), "conflict", "0 of an unknown"),
        (("own", "own"), "invalid_request", "more than once"),
        (("own",), "conflict", "3 bytes"),
    ]:
        refused = state.apply(final(*parts, size_bytes=6))
        assert refused == refusal, parts
        assert named in refused.details
        assert _without_applied(state.dump()) == _without_applied(before)


def _without_applied(lines: list[str]) -> list[str]:
    return [line for line in lines if "INTO applied" not in line and 'INTO "applied"' not in line]


def test_part_is_of_one_file_only(state: State) -> None:
    for file_uuid in ("p1", "p2"):
        bring(state, file_uuid, 3)
    state.done(final("p1", "p2", size_bytes=6))
    refused = state.apply(final("p2", file_uuid="g", size_bytes=3))
    assert refused == "conflict"
    assert "part of f already" in refused.details
    terminated = state.apply(commands.TerminateUpload(caller=ADMIN, file_uuid="p1"))
    assert terminated == "conflict"
    assert "part of f by now" in terminated.details


def test_same_creation_again_finds_the_same_upload_as_long_as_it_lives(state: State) -> None:
    bring(state, "p1", 3)
    command = final("p1", size_bytes=3)
    made = state.done(command)
    state.done(progress("f", 2))
    assert state.done(command)["offset_bytes"] == 2
    assert state.apply(final("p9", size_bytes=3)) == "invalid_request"  # another file with this id
    state.done(complete(ADMIN, "f", sha256_of(b"all"), NODES, size_bytes=3))
    assert state.done(command) | {"as_of": 0} == upload(state, "f") | {"as_of": 0}
    assert bucket(state, DEFAULT_BUCKET_ID) == (3, 0, 1)
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid="f", kind=""))
    assert state.apply(command) == "not_found"
    assert made["file_uuid"] == "f"


def test_quota_counts_parts_once(state: State) -> None:
    bring(state, "p1", 8, bucket_id="b")
    bring(state, "p2", 7, bucket_id="b")
    assert bucket(state) == (0, 15, 0)
    assert state.apply(begin("p3", 6, bucket_id="b")) == "payload_too_large"
    state.done(final("p1", "p2", size_bytes=15, bucket_id="b"))  # twice would be more than the quota
    assert bucket(state) == (0, 15, 1)
    state.done(complete(ADMIN, "f", sha256_of(b"all"), NODES, size_bytes=15))
    assert bucket(state) == (15, 0, 1)


def test_parts_of_another_bucket_give_its_quota_back(state: State) -> None:
    bring(state, "p1", 8)
    bring(state, "p2", 15, bucket_id="b")
    assert state.apply(final("p1", "p2", size_bytes=23, bucket_id="b")) == "payload_too_large"
    state.done(final("p1", "p2", size_bytes=23))
    assert (bucket(state)[1], bucket(state, DEFAULT_BUCKET_ID)[1]) == (0, 23)


@pytest.mark.parametrize("way", ["terminated", "deleted", "expired"])
def test_parts_go_with_the_upload_that_they_are_parts_of(state: State, way: str) -> None:
    for file_uuid in ("p1", "p2"):
        bring(state, file_uuid, 3, bucket_id="b")
    state.at_ms += UPLOAD_LIFE_MS - HOUR_MS
    state.done(final("p1", "p2", size_bytes=6, bucket_id="b"))
    if way == "terminated":
        state.done(commands.TerminateUpload(caller=ADMIN, file_uuid="f"))
    elif way == "deleted":
        state.done(commands.DeleteFile(caller=ADMIN, file_uuid="f", kind=""))
    else:
        state.at_ms += UPLOAD_LIFE_MS
        assert state.done(commands.Expire())["more"] is False
    assert row(state, "SELECT (SELECT COUNT(*) FROM uploads), (SELECT COUNT(*) FROM files)") == (0, 0)
    assert bucket(state) == (0, 0, 0)


def test_part_does_not_expire_before_the_upload_that_it_is_a_part_of(state: State) -> None:
    for file_uuid in ("p1", "p2"):
        bring(state, file_uuid, 3)
    bring(state, "lone", 3)
    state.done(final("p1", "p2", size_bytes=6))
    state.at_ms += UPLOAD_LIFE_MS - HOUR_MS
    state.done(progress("f", 4))
    state.at_ms += 2 * HOUR_MS
    expired = state.done(commands.Expire())
    assert (expired["uploads"], expired["more"]) == (1, False)
    assert upload(state, "lone") == "not_found"
    assert len(state.ask(queries.GetParts(caller=ADMIN, file_uuids=["p1", "p2"]))) == 2
    state.at_ms += UPLOAD_LIFE_MS
    assert state.done(commands.Expire())["uploads"] >= 1
    assert row(state, "SELECT COUNT(*) FROM files") == (0,)


def test_expired_part_is_taken_by_no_file(state: State) -> None:
    bring(state, "p1", 3)
    state.at_ms += UPLOAD_LIFE_MS
    assert state.apply(final("p1", size_bytes=3)) == "gone"


def test_part_that_has_lost_its_bytes_is_brought_again_for_its_file(state: State) -> None:
    bring(state, "p1", 3)
    state.done(final("p1", size_bytes=3))
    rewound = commands.RewindUpload(
        caller=ADMIN, file_uuid="p1", node_id="n1", epoch=0, offset_bytes=0, prefix_sha256=""
    )
    state.done(rewound)
    assert state.ask(queries.GetParts(caller=ADMIN, file_uuids=["p1"]))[0]["offset_bytes"] == 0
    state.done(msgspec.structs.replace(progress("p1", 3), epoch=1))
    assert bucket(state, DEFAULT_BUCKET_ID)[1] == 3  # which the file has reserved


def test_commands_wait_for_the_rules_that_have_them() -> None:
    assert begin("p1", 3).rules_needed == UPLOADS_ARE_CONCATENATED
    assert final("p1", size_bytes=3).rules_needed == UPLOADS_ARE_CONCATENATED
    assert create(ADMIN, "f").rules_needed < UPLOADS_ARE_CONCATENATED


def test_more_parts_than_are_taken_do_not_decode() -> None:
    def encoded(count: int) -> bytes:
        many = final(*(f"p{number}" for number in range(count)), size_bytes=1)
        return commands.encode_envelope(commands.Envelope(0, 0, 0, 1, many))

    commands.decode_envelope(encoded(PARTS_MAX))
    for count in (0, PARTS_MAX + 1):
        with pytest.raises(msgspec.ValidationError):
            commands.decode_envelope(encoded(count))


FAULTS = {  # what no state may have
    "a sum of reserved bytes": """
        SELECT bucket_id FROM buckets b WHERE reserved_bytes <> (
            SELECT COALESCE(SUM(u.reserved_bytes), 0) FROM uploads u JOIN files f ON f.file_uuid = u.file_uuid
            WHERE f.bucket_id = b.bucket_id)""",
    "a number of files": """
        SELECT bucket_id FROM buckets b WHERE file_count <> (
            SELECT COUNT(*) FROM files f WHERE f.bucket_id = b.bucket_id AND f.kind <> 'partial')""",
    "a part of nothing": """
        SELECT p.file_uuid FROM parts p WHERE NOT EXISTS (
            SELECT 1 FROM uploads w JOIN files f ON f.file_uuid = w.file_uuid
            JOIN concatenations c ON c.sequence = f.sequence
            WHERE w.file_uuid = p.part_of AND instr(c.parts, p.file_uuid) > 0)""",
    "an upload without its parts": """
        SELECT c.sequence FROM concatenations c JOIN files f ON f.sequence = c.sequence, json_each(c.parts)
        WHERE f.status <> 'available' AND NOT EXISTS (
            SELECT 1 FROM uploads u JOIN parts p ON p.file_uuid = u.file_uuid
            WHERE u.file_uuid = value AND p.part_of = f.file_uuid AND u.reserved_bytes = 0)""",
    "a partial upload that is a file": """
        SELECT file_uuid FROM files WHERE kind = 'partial' AND status NOT IN ('pending', 'uploading')""",
}


class Course:
    """Random commands about few uploads, and what must hold after each of them."""

    def __init__(self, state: State, seed: int) -> None:
        self.state, self.rand = state, random.Random(seed)
        self.parts = [f"p{number}" for number in range(6)]
        self.finals = [f"f{number}" for number in range(3)]

    def step(self) -> Any:
        rand, part, whole = self.rand, self.rand.choice(self.parts), self.rand.choice(self.finals)
        where = rand.choice(["b", DEFAULT_BUCKET_ID])
        chosen = rand.sample(self.parts, rand.randint(1, 3))
        end = complete(ADMIN, whole, sha256_of(whole.encode()), NODES, size_bytes=5 * len(chosen))
        self.state.at_ms += rand.choice([1, 1, HOUR_MS, 20 * HOUR_MS])
        choices: list[commands.AnyCommand] = [
            begin(part, 5, bucket_id=where),
            begin(part, 5, bucket_id=where),
            progress(part, rand.choice([2, 5, 5])),
            progress(part, 5),
            final(*chosen, size_bytes=5 * len(chosen), file_uuid=whole, bucket_id=where),
            end,
            commands.TerminateUpload(caller=ADMIN, file_uuid=rand.choice([part, whole])),
            commands.DeleteFile(caller=ADMIN, file_uuid=whole, kind=""),
            commands.Expire(rows_max=rand.choice([1, 3, 100])),
        ]
        return self.state.apply(rand.choice(choices))

    def check(self) -> None:
        for name, fault in FAULTS.items():
            assert row(self.state, fault) is None, name


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
def test_whatever_happens_parts_belong_to_one_upload_and_sums_are_right(state: State, seed: int) -> None:
    course, done = Course(state, seed), 0
    for _ in range(250):
        done += not isinstance(course.step(), Refusal)
        course.check()
    assert done > 50
    assert row(state, "SELECT COUNT(*) FROM concatenations")[0] >= 0
