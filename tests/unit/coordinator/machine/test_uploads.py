"""Who holds an upload, and how far it stands: progress, rewinding and takeover in the state machine."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metadata.model.records import Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State, complete, create


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def progress(node_id: str, content: bytes, **changes: Any) -> commands.RecordProgress:
    fields = {"offset_bytes": len(content), "prefix_sha256": sha256_of(content), **changes}
    return commands.RecordProgress(caller=ADMIN, file_uuid="f1", node_id=node_id, **fields)


def rewind(node_id: str, content: bytes, epoch: int) -> commands.RewindUpload:
    return commands.RewindUpload(
        caller=ADMIN,
        file_uuid="f1",
        node_id=node_id,
        epoch=epoch,
        offset_bytes=len(content),
        prefix_sha256=sha256_of(content),
    )


def takeover(holder: str, successor: str, epoch: int, offset: int, caller: Caller = ADMIN) -> Any:
    return commands.TakeOverUpload(
        caller=caller,
        file_uuid="f1",
        holder=holder,
        successor=successor,
        epoch=epoch,
        offset_bytes=offset,
    )


def upload(state: State) -> Any:
    return state.ask(queries.GetUpload(caller=ADMIN, file_uuid="f1"))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """With the upload f1, placed on n1, n2, n3; there is a node n4 too."""
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3", "n4")
    made.done(create(ADMIN, "f1"))
    yield made
    made.store.close()


def test_progress_is_taken_from_the_holder_only(state: State) -> None:
    assert state.apply(progress("n2", b"ab")) == "conflict"
    assert state.done(progress("n1", b"ab"))["prefix_sha256"] == sha256_of(b"ab")
    assert state.apply(progress("n1", b"abc", epoch=1)) == "conflict"
    assert (upload(state)["offset_bytes"], upload(state)["epoch"]) == (2, 0)


def test_progress_never_goes_back_nor_changes_what_was_recorded(state: State) -> None:
    state.done(progress("n1", b"abcd"))
    assert state.apply(progress("n1", b"ab")) == "conflict"
    assert state.apply(progress("n1", b"abcx")) == "conflict"
    assert state.done(progress("n1", b"abcd"))["offset_bytes"] == 4


def test_progress_brings_a_node_from_outside_into_the_placement(state: State) -> None:
    for placement in (["n2", "n1"], ["n1", "n4", "n4"], ["n1", "n9"]):
        assert state.apply(progress("n1", b"ab", placement=placement)) == "invalid_request"
    assert upload(state)["offset_bytes"] == 0
    changed = state.done(progress("n1", b"ab", placement=["n1", "n4", "n2"]))
    assert changed["placement"] == upload(state)["placement"] == ["n1", "n4", "n2"]


def test_rewinding_begins_a_new_epoch_in_which_older_reports_are_refused(state: State) -> None:
    state.done(progress("n1", b"abcd"))
    assert state.apply(rewind("n2", b"ab", 0)) == "conflict"
    assert state.apply(rewind("n1", b"abcde", 0)) == "conflict"
    rewound = state.done(rewind("n1", b"ab", 0))
    assert (rewound["offset_bytes"], rewound["epoch"]) == (2, 1)
    assert state.apply(progress("n1", b"abcd")) == "conflict"
    assert state.apply(rewind("n1", b"", 0)) == "conflict"
    assert state.done(progress("n1", b"abx", epoch=1))["offset_bytes"] == 3


def test_takeover_makes_the_successor_the_holder_and_the_old_one_the_last_member(state: State) -> None:
    state.done(progress("n1", b"abcd"))
    taken = state.done(takeover("n1", "n3", 0, 4))
    assert (taken["placement"], taken["epoch"]) == (["n3", "n2", "n1"], 1)
    assert (taken["offset_bytes"], taken["prefix_sha256"]) == (4, sha256_of(b"abcd"))
    for epoch in (0, 1):
        assert state.apply(progress("n1", b"abcdef", epoch=epoch)) == "conflict"
        assert state.apply(rewind("n1", b"", epoch)) == "conflict"
    assert state.done(progress("n3", b"abcdef", epoch=1))["offset_bytes"] == 6


@pytest.mark.parametrize(
    ("holder", "epoch", "offset"), [("n2", 0, 4), ("n1", 1, 4), ("n1", 0, 3), ("n1", 0, 5)]
)
def test_takeover_of_what_is_not_so_any_more_is_a_conflict(
    state: State, holder: str, epoch: int, offset: int
) -> None:
    state.done(progress("n1", b"abcd"))
    assert state.apply(takeover(holder, "n3", epoch, offset)) == "conflict"
    assert upload(state)["placement"] == ["n1", "n2", "n3"]


def test_of_two_takeovers_one_succeeds(state: State) -> None:
    first, second = state.apply_batch(takeover("n1", "n2", 0, 0), takeover("n1", "n3", 0, 0))
    assert (first["placement"][0], second) == ("n2", "conflict")
    assert upload(state)["epoch"] == 1


@pytest.mark.parametrize("successor", ["n1", "n4", "n9"])
def test_successor_is_another_node_of_the_placement(state: State, successor: str) -> None:
    assert state.apply(takeover("n1", successor, 0, 0)) == "invalid_request"


def test_takeover_needs_write(state: State) -> None:
    assert state.apply(takeover("n1", "n2", 0, 0, state.user("bob"))) == "forbidden"


def test_takeover_of_an_upload_that_has_ended_tells_so(state: State) -> None:
    state.done(complete(ADMIN, "f1", "aa", ["n1", "n2"]))
    assert state.done(takeover("n1", "n2", 0, 0))["status"] == "available"
    assert state.apply(rewind("n1", b"", 0)) == "conflict"


def finished(node_id: str, epoch: int) -> commands.CompleteUpload:
    command = complete(ADMIN, "f1", "aa", ["n1", "n2"])
    return msgspec.structs.replace(command, node_id=node_id, epoch=epoch)


def test_holder_that_was_taken_over_from_completes_nothing(state: State) -> None:
    state.done(progress("n1", b"abcd"))
    state.done(takeover("n1", "n2", 0, 4))
    state.done(progress("n2", b"abcdx", epoch=1))  # acknowledged, and maybe not what n1 has
    for node_id, epoch in (("n1", 0), ("n1", 1), ("n2", 0)):
        assert state.apply(finished(node_id, epoch)) == "unavailable"
    assert upload(state)["offset_bytes"] == 5
    state.done(finished("n2", 1))
    assert state.done(finished("n1", 0))["file"]["status"] == "available"  # the same content: it is so
