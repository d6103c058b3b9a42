"""A permission that ends: to the millisecond, whatever it is on, whoever holds it, whatever is asked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    Refusal,
    State,
    complete,
    create,
    create_bucket,
    grant,
    list_permissions,
    public_token,
)

PRINCIPALS = ("user:ulla", "group:lab", "role:staff")
Act = Callable[[State, Caller], Any]


def changed(state: State, ulla: Caller) -> Any:
    return state.apply(commands.UpdateProjectFile(caller=ulla, file_uuid="f1", version_tag="2"))


def files_listed(state: State, ulla: Caller) -> Any:
    page = state.ask(queries.ListBucketFiles(caller=ulla, bucket_id="b1"))
    return page if isinstance(page, Refusal) or page["files"] else Refusal("forbidden", "nothing is listed")


def buckets_listed(state: State, ulla: Caller) -> Any:
    page = state.ask(queries.ListBuckets(caller=ulla))
    ids = [bucket["bucket_id"] for bucket in page["buckets"]]
    return ids if "b1" in ids else Refusal("forbidden", "it is not listed")


def linked(state: State, ulla: Caller) -> Any:
    """What a link that she made is worth."""
    del ulla
    answer = state.ask(queries.GetPublicContent(bucket_id="b1", token_sha256="sha-t1"))
    return Refusal("forbidden", answer.details) if answer == "gone" else answer


ACTS: list[Act] = [
    lambda state, ulla: state.ask(queries.GetProjectFile(caller=ulla, file_uuid="f1")),
    lambda state, ulla: state.ask(queries.GetContent(caller=ulla, file_uuid="f1")),
    lambda state, ulla: state.ask(queries.ListPublicTokens(caller=ulla, file_uuid="f1")),
    lambda state, ulla: state.ask(list_permissions(ulla, "file:f1")),
    linked,
    changed,
    lambda state, ulla: state.apply(grant(ulla, "file:f1", "user:other")),
]
ON_THE_BUCKET: list[Act] = [
    lambda state, ulla: state.ask(queries.GetBucket(caller=ulla, bucket_id="b1")),
    lambda state, ulla: state.ask(list_permissions(ulla, "bucket:b1")),
    files_listed,
    buckets_listed,
    lambda state, ulla: state.apply(grant(ulla, "bucket:b1", "user:other")),
    lambda state, ulla: state.apply(create(ulla, "f2", bucket_id="b1")),
]


def deleted(state: State, ulla: Caller) -> Any:
    return state.apply(commands.DeleteFile(caller=ulla, file_uuid="f1", kind=""))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """A file in a bucket, both of the admin; ulla is in the group and has the role."""
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3")
    made.done(create_bucket(ADMIN, "b1"))
    made.done(create(ADMIN, "f1", bucket_id="b1"))
    made.done(complete(ADMIN, "f1", "a" * 64, ["n1", "n2"]))
    yield made
    made.store.close()


@pytest.mark.parametrize("principal", PRINCIPALS)
@pytest.mark.parametrize(
    ("on", "acts"),
    [("file:f1", [*ACTS, deleted]), ("bucket:b1", [*ACTS, *ON_THE_BUCKET, deleted])],
    ids=["file", "bucket"],
)
@pytest.mark.parametrize("left_ms", [1, 0])
def test_permission_holds_until_its_last_millisecond(
    state: State, on: str, acts: list[Act], principal: str, left_ms: int
) -> None:
    ulla = state.user("ulla", groups=["lab"], roles=["staff"])
    ends_ms = state.at_ms + HOUR_MS
    state.done(grant(ADMIN, on, principal, "admin", expires_at_ms=ends_ms))
    state.done(public_token(ulla, "f1", "t1", bucket_id="b1"))
    state.at_ms = ends_ms - left_ms
    for number, act in enumerate(acts):
        found = act(state, ulla)
        assert (found == "forbidden") == (left_ms == 0), (number, found)


@pytest.mark.parametrize("principal", PRINCIPALS)
def test_file_is_listed_among_others_until_the_last_millisecond(state: State, principal: str) -> None:
    """In the default bucket, where who has no right to it sees what is shared."""
    ulla = state.user("ulla", groups=["lab"], roles=["staff"])
    ends_ms = state.at_ms + HOUR_MS
    state.done(create(ADMIN, "f0"))
    state.done(grant(ADMIN, "file:f0", principal, "read", expires_at_ms=ends_ms))
    for left_ms in (1, 0):
        state.at_ms = ends_ms - left_ms
        page = state.ask(queries.ListBucketFiles(caller=ulla, bucket_id=DEFAULT_BUCKET_ID))
        assert [file["file_uuid"] for file in page["files"]] == ["f0"] * left_ms


@pytest.mark.parametrize("on", ["file:f1", "bucket:b1"])
def test_right_that_lasts_is_told_from_one_that_ends(state: State, on: str) -> None:
    """Nodes keep records only for those who may read them until the log says otherwise."""
    ulla = state.user("ulla")
    query = queries.GetContent(caller=ulla, file_uuid="f1")
    state.done(grant(ADMIN, on, "user:ulla", expires_at_ms=state.at_ms + HOUR_MS))
    assert "is_lasting" not in state.ask(query)
    state.done(grant(ADMIN, on, "user:ulla", "write"))
    assert state.ask(query)["is_lasting"] is True
