"""Which answers to GetContent last until a command changes them: those alone may be kept by nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata.model.records import Caller
from metadata.protocol import queries
from tests.unit.state import ADMIN, HOUR_MS, State, complete, create, create_bucket, grant, withdraw

ALICE, BOB, CAROL = Caller("alice", 1), Caller("bob", 1), Caller("carol", 1)
TARGETS = pytest.mark.parametrize("on", ["file:f1", "bucket:b1"])


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """Carol's bucket `b1` with Alice's files `f1`, and `f2`, which has a retention period."""
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3")
    made.user("alice"), made.user("carol"), made.user("bob", groups=["staff"])
    made.done(create_bucket(CAROL, "b1"))
    made.done(grant(CAROL, "bucket:b1", "user:alice", "write"))
    made.done(create(ALICE, "f1", bucket_id="b1"))
    made.done(create(ALICE, "f2", bucket_id="b1", retention_hours=1000))
    made.done(complete(ALICE, "f1", "aa", ["n1", "n2"]))
    made.done(complete(ALICE, "f2", "aa", ["n1", "n2"]))
    yield made
    made.store.close()


def lasts(state: State, caller: Caller, file_uuid: str = "f1") -> bool:
    answer = state.ask(queries.GetContent(caller=caller, file_uuid=file_uuid))
    assert answer["file"]["file_uuid"] == file_uuid
    return bool(answer.get("is_lasting", False))


@pytest.mark.parametrize("caller", [ALICE, CAROL, ADMIN], ids=lambda caller: caller.subject)
def test_owners_and_administrators_read_lastingly(state: State, caller: Caller) -> None:
    assert lasts(state, caller)


def test_file_with_a_retention_period_is_not_lasting_for_anybody(state: State) -> None:
    assert not lasts(state, ALICE, "f2")
    assert not lasts(state, ADMIN, "f2")


@TARGETS
def test_permission_without_an_end_lasts(state: State, on: str) -> None:
    state.done(grant(ADMIN, on, "group:staff", "read"))

    assert lasts(state, BOB)


@TARGETS
def test_permission_that_ends_does_not_last(state: State, on: str) -> None:
    state.done(grant(ADMIN, on, "user:bob", "admin", expires_at_ms=state.at_ms + HOUR_MS))

    assert not lasts(state, BOB)


@TARGETS
def test_lower_permission_without_an_end_lasts_beside_a_higher_one_that_ends(state: State, on: str) -> None:
    state.done(grant(ADMIN, "file:f1", "user:bob", "admin", expires_at_ms=state.at_ms + HOUR_MS))
    lasting = state.done(grant(ADMIN, on, "group:staff", "read"))
    assert lasts(state, BOB)

    state.done(withdraw(ADMIN, on, lasting["permission_id"]))

    assert not lasts(state, BOB)


def test_completion_replies_as_before(state: State) -> None:
    """Members of both versions keep the same replies, which their digests compare."""
    state.done(create(ALICE, "f3", bucket_id="b1"))

    assert "is_lasting" not in state.done(complete(ALICE, "f3", "aa", ["n1", "n2"]))
