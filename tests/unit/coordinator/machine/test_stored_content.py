"""A file that is created with its content: the same state as after an upload, or nothing of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from metadata.model.records import Caller, Manifest
from metadata.protocol import commands, queries
from metadata.protocol.commands import StoredContent
from tests.unit import replica_acts as acts
from tests.unit.state import ADMIN, State, complete, create, create_backup, create_bucket, create_vm

SIZE_BYTES = 5
NODES = ["n1", "n2", "n3"]
A, B = "a" * 64, "b" * 64


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3", "n4")
    yield made
    made.store.close()


def content(**changes: Any) -> StoredContent:
    return msgspec.structs.replace(StoredContent(sha256=A, replicas=NODES), **changes)


def with_content(
    made: Callable[..., commands.AnyCommand] = create, file_uuid: str = "f1", **changes: Any
) -> commands.AnyCommand:
    fields = {"size_bytes": SIZE_BYTES, "placement": [], "content": content(), **changes}
    return made(fields.pop("caller", ADMIN), file_uuid, **fields)


def told(state: State, file_uuid: str, kind: str) -> list[Any]:
    """What anybody is told of a file; the indexes and times of its changes are others."""
    asked: list[Any] = [
        queries.GetContent(caller=ADMIN, file_uuid=file_uuid),
        queries.GetUpload(caller=ADMIN, file_uuid=file_uuid),
        queries.GetBucket(caller=ADMIN, bucket_id="b1"),
        queries.FindBlob(sha256=A),
        {
            "create": queries.GetProjectFile(caller=ADMIN, file_uuid=file_uuid),
            "create_vm": queries.GetVm(caller=ADMIN, file_uuid=file_uuid),
            "create_backup": queries.GetBackup(caller=ADMIN, file_uuid=file_uuid),
        }[kind],
    ]
    answers = [state.ask(query) for query in asked]
    for answer in answers:
        assert isinstance(answer, dict), answer
        answer.pop("as_of", None)
        answer.pop("updated_at_ms", None)
        answer.get("file", {}).pop("updated_at_ms", None)
    return answers


@pytest.mark.parametrize("made", [create, create_vm, create_backup])
def test_file_is_as_one_whose_content_came_by_an_upload(
    state: State, tmp_path: Path, made: Callable[..., commands.AnyCommand]
) -> None:
    other = State(tmp_path / "other.sqlite")
    try:
        other.nodes("n1", "n2", "n3", "n4")
        for each in (state, other):
            each.done(create_bucket(ADMIN, "b1", quota_bytes=100))
        md5 = "d" * 32 if made is create_vm else ""
        manifest = Manifest(archive="other") if made is create else None
        fields: dict[str, Any] = {"bucket_id": "b1", "expected_sha256": A, "retention_hours": 3}
        brought = content(md5=md5, manifest=manifest)
        reply = state.done(with_content(made, content=brought, **fields))
        assert (reply["status"], reply["placement"], reply["blob_sha256"]) == ("available", [], A)
        other.done(made(ADMIN, "f1", size_bytes=SIZE_BYTES, **fields))
        ending = complete(ADMIN, "f1", A, NODES, size_bytes=SIZE_BYTES)
        other.done(msgspec.structs.replace(ending, md5=md5, manifest=manifest, patch_offset=-1))
        assert told(state, "f1", made.__name__) == told(other, "f1", made.__name__)
        assert state.ask(queries.LiveUploads(file_uuids=["f1"])) == []
    finally:
        other.store.close()


def test_what_is_stored_already_is_one_blob(state: State) -> None:
    state.done(with_content())
    state.done(with_content(file_uuid="f2", content=content(replicas=["n4", "n1"])))
    found = state.ask(queries.FindBlob(sha256=A))
    assert sorted(found["replicas"]) == ["n1", "n2", "n3", "n4"]
    acts.delete(state, "f1")
    assert state.ask(queries.GetContent(caller=ADMIN, file_uuid="f2"))["file"]["blob_sha256"] == A


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "size not told": ({"size_bytes": None}, "invalid_request"),
    "another size of the same content": ({"size_bytes": 6, "content": content(sha256=B)}, "invalid_request"),
    "of parts": ({"parts": ["p1"]}, "not_found"),
    "other content than declared": ({"expected_sha256": B}, "checksum_mismatch"),
    "too few nodes": ({"content": content(replicas=["n1"])}, "unavailable"),
    "a node twice": ({"content": content(replicas=["n1", "n1"])}, "unavailable"),
    "an unknown node": ({"content": content(replicas=["n1", "n9"])}, "unavailable"),
    "no such bucket": ({"bucket_id": "none"}, "invalid_request"),
    "beyond the quota": ({"bucket_id": "small"}, "payload_too_large"),
    "an id that is taken": ({"file_uuid": "f0"}, "invalid_request"),
    "a stranger's bucket": ({"bucket_id": "small", "caller": Caller("alice", 1)}, "forbidden"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_creation_changes_nothing(state: State, why: str) -> None:
    changes, code = REFUSED[why]
    state.user("alice")
    state.done(create_bucket(ADMIN, "small", quota_bytes=SIZE_BYTES - 1))
    state.done(with_content(file_uuid="f0", content=content(sha256=B)))
    before = state.dump()
    assert state.apply(with_content(**changes)) == code
    after = state.dump()
    changed = [line for line in after if line not in before]
    assert len(changed) <= 2, changed  # the index of the log, and the time
    assert state.done(with_content(file_uuid="another"))["status"] == "available"


def test_replica_that_was_dropped_since_the_bytes_came_is_no_replica(state: State) -> None:
    seen = state.log_index
    state.done(with_content(content=content(as_of=seen)))
    acts.delete(state, "f1")
    acts.collect(state)
    doomed = acts.doomed(state, "n1")
    assert doomed == [A]
    assert state.apply(with_content(file_uuid="f2", content=content(as_of=seen))) == "unavailable"
    for node_id in NODES:
        acts.dropped(state, node_id, A)
    assert state.apply(with_content(file_uuid="f2", content=content(as_of=seen))) == "unavailable"
    state.done(with_content(file_uuid="f2", content=content(as_of=state.log_index)))


def test_who_may_create_is_asked_before(state: State) -> None:
    alice = state.user("alice")
    state.done(create_bucket(ADMIN, "small", quota_bytes=SIZE_BYTES))
    state.done(with_content(file_uuid="f0"))

    def check(caller: Caller, bucket_id: str, size_bytes: int, file_uuid: str = "f1") -> Any:
        query = queries.CheckNewFile(
            caller=caller, file_uuid=file_uuid, bucket_id=bucket_id, size_bytes=size_bytes
        )
        return state.ask(query)

    assert check(ADMIN, "small", SIZE_BYTES) is None
    assert check(ADMIN, "small", SIZE_BYTES + 1) == "payload_too_large"
    assert check(alice, "small", 1) == "forbidden"
    assert check(ADMIN, "none", 1) == "invalid_request"
    assert check(ADMIN, "small", 1, "f0") == "invalid_request"


def test_creation_without_content_is_encoded_as_before() -> None:
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(create(ADMIN, "f1")))
    assert create(ADMIN, "f1").content is UNSET
    assert "content" not in encoded
