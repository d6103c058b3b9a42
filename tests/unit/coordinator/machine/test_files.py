"""Files in the state machine: creation, permission, completion, deduplication, deletion, pages."""

import msgspec
import pytest

from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, HOUR_MS, State, complete, create


def status(state: State, file_uuid: str) -> str:
    return str(state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid=file_uuid))["status"])


def bucket(state: State) -> tuple[int, int]:
    """(files, bytes) of the default bucket."""
    line = next(line for line in state.dump() if line.startswith('INSERT INTO "buckets"'))
    _, _, _, _, used_bytes, file_count, *_ = line.split("VALUES(")[1].split(",")
    assert DEFAULT_BUCKET_ID in line
    return int(file_count), int(used_bytes)


def test_file_goes_from_pending_over_uploading_to_available(state: State) -> None:
    alice = state.user("alice")
    upload = state.apply(create(alice, "f1"))
    assert upload["placement"] == ["n1", "n2", "n3"]
    assert status(state, "f1") == "pending"
    progress = commands.RecordProgress(caller=alice, file_uuid="f1", node_id="n1", offset_bytes=3)
    assert state.apply(progress)["status"] == "uploading"
    content = state.apply(complete(alice, "f1", "aa", ["n2", "n1"]))
    assert content["file"]["status"] == "available"
    assert content["replicas"] == ["n1", "n2"]
    assert bucket(state) == (1, 5)


def test_progress_of_zero_bytes_leaves_the_file_pending(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    state.apply(commands.RecordProgress(caller=ADMIN, file_uuid="f1", node_id="n1", offset_bytes=0))
    assert status(state, "f1") == "pending"


def test_content_is_not_available_before_completion(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    assert state.ask(queries.GetContent(caller=ADMIN, file_uuid="f1")) == "not_available"


def test_repeated_completion_replies_the_same(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    first = state.apply(complete(ADMIN, "f1", "aa", ["n1", "n2"]))
    assert state.apply(complete(ADMIN, "f1", "aa", ["n1", "n2"])) == first
    assert state.apply(complete(ADMIN, "f1", "bb", ["n1", "n2"])) == "conflict"
    assert bucket(state) == (1, 5)


@pytest.mark.parametrize("replicas", [[], ["n1"], ["n1", "n9"]])
def test_completion_below_the_write_quorum_is_refused(state: State, replicas: list[str]) -> None:
    state.apply(create(ADMIN, "f1"))
    assert state.apply(complete(ADMIN, "f1", "aa", replicas)) == "unavailable"
    assert status(state, "f1") == "pending"


def test_completion_with_another_size_or_digest_than_declared_is_refused(state: State) -> None:
    state.apply(create(ADMIN, "f1", size_bytes=6))
    state.apply(create(ADMIN, "f2", expected_sha256="bb"))
    assert state.apply(complete(ADMIN, "f1", "aa", ["n1", "n2"])) == "invalid_request"
    assert state.apply(complete(ADMIN, "f2", "aa", ["n1", "n2"])) == "checksum_mismatch"


def test_content_known_with_another_size_is_refused(state: State) -> None:
    for file_uuid in ("f1", "f2"):
        state.apply(create(ADMIN, file_uuid))
    state.apply(complete(ADMIN, "f1", "aa", ["n1", "n2"], size_bytes=5))
    assert state.apply(complete(ADMIN, "f2", "aa", ["n1", "n2"], size_bytes=6)) == "invalid_request"
    assert status(state, "f2") == "pending"


def test_permission_lost_during_an_upload_stops_its_completion(state: State) -> None:
    alice = state.user("alice")
    state.apply(create(alice, "f1"))
    assert state.apply(complete(Caller("alice", 0), "f1", "aa", ["n1", "n2"])) == "unauthorized"
    assert state.apply(complete(state.user("bob"), "f1", "aa", ["n1", "n2"])) == "forbidden"
    assert status(state, "f1") == "pending"


def test_expired_upload_is_gone_and_progress_moves_the_expiry(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    state.apply(create(ADMIN, "f2"))
    state.at_ms += 23 * HOUR_MS
    state.apply(commands.RecordProgress(caller=ADMIN, file_uuid="f2", node_id="n1", offset_bytes=1))
    state.at_ms += 2 * HOUR_MS
    assert state.ask(queries.GetUpload(caller=ADMIN, file_uuid="f1")) == "gone"
    assert state.apply(complete(ADMIN, "f1", "aa", ["n1", "n2"])) == "gone"
    assert state.ask(queries.GetUpload(caller=ADMIN, file_uuid="f2"))["offset_bytes"] == 1


def test_size_is_declared_once(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    declare = commands.DeclareSize(caller=ADMIN, file_uuid="f1", size_bytes=5)
    assert state.apply(declare)["size_bytes"] == 5
    assert state.apply(declare)["size_bytes"] == 5
    assert state.apply(commands.DeclareSize(caller=ADMIN, file_uuid="f1", size_bytes=6)) == "conflict"


def test_size_that_the_bucket_has_no_room_for_stays_open(state: State) -> None:
    state.apply(commands.UpdateBucket(caller=ADMIN, bucket_id=DEFAULT_BUCKET_ID, name=None, quota_bytes=10))
    state.apply(create(ADMIN, "f1"))
    declare = commands.DeclareSize(caller=ADMIN, file_uuid="f1", size_bytes=11)
    assert state.apply(declare) == "payload_too_large"
    assert state.apply(msgspec.structs.replace(declare, size_bytes=10))["size_bytes"] == 10


def test_same_content_is_one_blob_until_the_last_file_goes(state: State) -> None:
    for file_uuid in ("f1", "f2"):
        state.apply(create(ADMIN, file_uuid))
        state.apply(complete(ADMIN, file_uuid, "aa", ["n1", "n2"]))
    assert state.ask(queries.FindBlob(sha256="aa"))["reference_count"] == 2
    state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind="project_file"))
    assert state.ask(queries.FindBlob(sha256="aa"))["reference_count"] == 1
    assert state.ask(queries.GetContent(caller=ADMIN, file_uuid="f2"))["replicas"] == ["n1", "n2"]
    state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="f2", kind=""))
    assert state.ask(queries.FindBlob(sha256="aa")) is None
    assert bucket(state) == (0, 0)


def test_deleted_file_is_not_found_for_everything(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    delete = commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind="project_file")
    assert state.apply(delete) is None
    assert state.apply(delete) == "not_found"
    assert state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1")) == "not_found"
    assert state.ask(queries.GetUpload(caller=ADMIN, file_uuid="f1")) == "not_found"
    assert state.apply(complete(ADMIN, "f1", "aa", ["n1", "n2"])) == "not_found"
    assert state.ask(queries.LiveUploads(file_uuids=["f1"])) == []


def test_upload_is_terminated_only_while_it_runs(state: State) -> None:
    for file_uuid in ("f1", "f2"):
        state.apply(create(ADMIN, file_uuid))
    state.apply(complete(ADMIN, "f2", "aa", ["n1", "n2"]))
    assert state.ask(queries.LiveUploads(file_uuids=["f1", "f2"])) == ["f1"]
    assert state.apply(commands.TerminateUpload(caller=ADMIN, file_uuid="f1")) is None
    assert state.apply(commands.TerminateUpload(caller=ADMIN, file_uuid="f2")) == "conflict"


def test_update_changes_what_it_names_and_false_is_a_value(state: State) -> None:
    state.apply(create(ADMIN, "f1", include_images=True, project_name="old"))
    state.at_ms += 1
    record = state.apply(commands.UpdateProjectFile(caller=ADMIN, file_uuid="f1", include_images=False))
    assert (record["include_images"], record["project_name"]) == (False, "old")
    assert record["updated_at_ms"] == record["created_at_ms"] + 1


def test_strangers_may_do_nothing_with_a_file(state: State) -> None:
    state.apply(create(state.user("alice"), "f1"))
    bob = state.user("bob")
    assert state.ask(queries.GetProjectFile(caller=bob, file_uuid="f1")) == "forbidden"
    assert state.ask(queries.GetContent(caller=bob, file_uuid="f1")) == "forbidden"
    assert state.ask(queries.GetUpload(caller=bob, file_uuid="f1")) == "forbidden"
    assert state.apply(commands.UpdateProjectFile(caller=bob, file_uuid="f1", version_tag="x")) == "forbidden"
    assert state.apply(commands.DeleteFile(caller=bob, file_uuid="f1", kind="")) == "forbidden"
    assert state.apply(commands.TerminateUpload(caller=bob, file_uuid="f1")) == "forbidden"


@pytest.mark.parametrize("caller", [Caller("nobody", 1), Caller("admin", 0), Caller("admin", 2)])
def test_unknown_user_and_other_generation_are_unauthorized(state: State, caller: Caller) -> None:
    assert state.apply(create(caller, "f1")) == "unauthorized"
    assert state.ask(queries.ListProjectFiles(caller=caller)) == "unauthorized"


def test_unknown_bucket_is_named(state: State) -> None:
    refusal = state.apply(create(ADMIN, "f1", bucket_id="x"))
    assert refusal == "invalid_request"
    assert refusal.details.startswith("bucket_id")


def test_list_shows_own_files_in_pages_and_admins_all(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    for number in range(5):
        state.apply(create(alice, f"a{number}", project_id=f"p{number % 2}"))
        state.apply(create(bob, f"b{number}"))
    seen, cursor = [], 0
    while True:
        page = state.ask(queries.ListProjectFiles(caller=alice, limit=2, cursor=cursor))
        seen += [file["file_uuid"] for file in page["files"]]
        if not (cursor := page["next_cursor"]):
            break
    assert seen == [f"a{number}" for number in range(5)]
    filtered = state.ask(queries.ListProjectFiles(caller=alice, project_id="p1"))["files"]
    assert [file["file_uuid"] for file in filtered] == ["a1", "a3"]
    assert len(state.ask(queries.ListProjectFiles(caller=ADMIN))["files"]) == 10


def test_list_is_stable_while_files_come_and_go(state: State) -> None:
    for number in range(4):
        state.apply(create(ADMIN, f"f{number}"))
    page = state.ask(queries.ListProjectFiles(caller=ADMIN, limit=2))
    state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="f0", kind=""))
    state.apply(create(ADMIN, "f4"))
    rest = state.ask(queries.ListProjectFiles(caller=ADMIN, cursor=page["next_cursor"]))["files"]
    assert [file["file_uuid"] for file in rest] == ["f2", "f3", "f4"]
