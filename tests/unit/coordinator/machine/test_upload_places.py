"""Unfinished uploads and the nodes that they are placed on: moved, guarded at removal, begun anew."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine.uploads import UPLOAD_LIFE_MS
from metadata.protocol import commands, queries
from tests.unit.coordinator.machine.test_nodes import drain, remove
from tests.unit.coordinator.machine.test_uploads import progress, rewind, sha256_of, takeover, upload
from tests.unit.state import ADMIN, State, complete, create

NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """With the upload f1, placed on n1, n2, n3, of which four bytes are acknowledged; there is a node n4."""
    made = State(tmp_path / "state.sqlite")
    made.nodes(*NODES)
    made.done(create(ADMIN, "f1"))
    made.done(progress("n1", b"abcd"))
    yield made
    made.store.close()


def place(*placement: str, epoch: int = 0, offset: int = 4, **fields: Any) -> commands.PlaceUpload:
    return commands.PlaceUpload(
        file_uuid="f1", epoch=epoch, offset_bytes=offset, placement=list(placement), **fields
    )


def restart(*lost: str, **changes: Any) -> commands.RestartUpload:
    fields = {"holder": "n1", "epoch": 0, "offset_bytes": 4, "placement": ["n4"], **changes}
    return commands.RestartUpload(caller=ADMIN, file_uuid="f1", lost=list(lost), **fields)


def placed_on(state: State, node_id: str, **fields: Any) -> Any:
    return state.ask(queries.ListNodeUploads(node_id=node_id, **fields))


def gone(state: State, *node_ids: str) -> None:
    """These nodes are removed by force."""
    for node_id in node_ids:
        state.done(commands.MarkNode(node_id=node_id, state="down"))
        state.apply(commands.RemoveNode(caller=ADMIN, node_id=node_id, force=True))


def test_moved_upload_is_held_by_its_new_nodes_in_a_new_epoch(state: State) -> None:
    expires_at_ms = upload(state)["expires_at_ms"]
    state.at_ms += 1
    assert state.done(place("n4", "n2")) == 1
    moved = upload(state)
    assert (moved["placement"], moved["epoch"]) == (["n4", "n2"], 1)
    assert (moved["offset_bytes"], moved["prefix_sha256"]) == (4, sha256_of(b"abcd"))
    assert moved["expires_at_ms"] == expires_at_ms
    assert state.apply(progress("n1", b"abcdef")) == "conflict"
    assert state.apply(rewind("n1", b"", 0)) == "conflict"
    assert state.apply(takeover("n1", "n2", 0, 4)) == "conflict"
    assert state.done(progress("n4", b"abcdef", epoch=1))["offset_bytes"] == 6


@pytest.mark.parametrize(("epoch", "offset"), [(1, 4), (0, 3), (0, 5)])
def test_upload_that_went_on_meanwhile_is_not_moved(state: State, epoch: int, offset: int) -> None:
    assert state.apply(place("n4", "n2", epoch=epoch, offset=offset)) == "conflict"
    assert upload(state)["placement"] == ["n1", "n2", "n3"]


@pytest.mark.parametrize("placement", [[], ["n4", "n4"], ["n4", "n9"]])
def test_upload_is_moved_to_members_only(state: State, placement: list[str]) -> None:
    assert state.apply(place(*placement)) == "invalid_request"


def test_upload_that_has_ended_is_not_moved(state: State) -> None:
    state.done(create(ADMIN, "f2", placement=["n1"]))
    state.done(complete(ADMIN, "f1", "aa", ["n1", "n2"]))
    assert state.apply(place("n4")) == "not_found"
    state.at_ms += UPLOAD_LIFE_MS
    expired = commands.PlaceUpload(file_uuid="f2", epoch=0, offset_bytes=0, placement=["n4"])
    assert state.apply(expired) == "not_found"


def test_uploads_of_a_node_are_listed_wherever_it_stands_in_their_placement(state: State) -> None:
    state.done(create(ADMIN, "f0", placement=["n4", "n3"]))
    state.done(create(ADMIN, "f3", placement=["n1", "n4"]))
    state.done(complete(ADMIN, "f3", "aa", ["n1", "n4"]))
    page = placed_on(state, "n3")
    assert [(each["file_uuid"], each["offset_bytes"]) for each in page["uploads"]] == [("f0", 0), ("f1", 4)]
    assert page["uploads"][1]["placement"] == ["n1", "n2", "n3"]
    assert not page["more"]
    first = placed_on(state, "n3", limit=1)
    assert ([each["file_uuid"] for each in first["uploads"]], first["more"]) == (["f0"], True)
    assert [each["file_uuid"] for each in placed_on(state, "n3", after="f0")["uploads"]] == ["f1"]
    assert placed_on(state, "n")["uploads"] == []
    state.at_ms += UPLOAD_LIFE_MS
    assert placed_on(state, "n3")["uploads"] == []


@pytest.mark.parametrize("node_id", ["n1", "n2", "n3"])
def test_node_in_the_placement_of_an_upload_stays_and_the_refusal_names_it(
    state: State, node_id: str
) -> None:
    state.done(drain(node_id))
    refused = state.apply(remove(node_id))
    assert refused == "conflict"
    assert refused.details == f"The node {node_id} holds 0 replicas, 1 uploads. Unfinished: f1 (4 bytes)."
    others = [each for each in NODES if each != node_id]
    state.done(place(*others))
    assert state.apply(remove(node_id)) is None


def test_refusal_names_few_of_many_uploads_those_with_most_bytes_first(state: State) -> None:
    for number in range(10, 30):
        state.done(create(ADMIN, f"f{number}"))
    state.done(drain("n2"))
    refused = state.apply(remove("n2"))
    named = "f1 (4 bytes), f10 (0 bytes), f11 (0 bytes), f12 (0 bytes), f13 (0 bytes)"
    assert refused.details == f"The node n2 holds 0 replicas, 21 uploads. Unfinished: {named}."


def test_upload_that_has_ended_or_expired_keeps_no_node(state: State) -> None:
    state.done(drain("n2"))
    state.at_ms += UPLOAD_LIFE_MS
    assert state.apply(remove("n2")) is None


def test_removal_by_force_counts_the_uploads(state: State) -> None:
    state.done(commands.MarkNode(node_id="n2", state="down"))
    assert state.done(commands.RemoveNode(caller=ADMIN, node_id="n2", force=True)) == {
        "replicas": 0,
        "uploads": 1,
    }


def test_upload_begins_anew_when_all_its_nodes_have_left(state: State) -> None:
    assert state.apply(restart()) == "conflict"
    gone(state, "n1", "n2", "n3")
    begun = state.done(restart())
    assert (begun["placement"], begun["offset_bytes"], begun["epoch"]) == (["n4"], 0, 1)
    assert begun["prefix_sha256"] == ""
    assert state.apply(restart()) == "conflict"
    assert state.done(progress("n4", b"xy", epoch=1))["offset_bytes"] == 2


def test_upload_does_not_begin_anew_while_a_member_was_not_asked(state: State) -> None:
    gone(state, "n1", "n3")
    assert state.apply(restart()) == "conflict"
    assert state.apply(restart("n3")) == "conflict"
    assert state.apply(restart("n2", epoch=1)) == "conflict"
    assert state.apply(restart("n2", offset_bytes=3)) == "conflict"
    assert upload(state)["offset_bytes"] == 4
    assert state.done(restart("n2"))["offset_bytes"] == 0


def test_beginning_anew_needs_write(state: State) -> None:
    gone(state, "n1", "n2", "n3")
    begun = commands.RestartUpload(
        caller=state.user("bob"), file_uuid="f1", holder="n1", epoch=0, offset_bytes=4, placement=["n4"]
    )
    assert state.apply(begun) == "forbidden"


def test_leader_lets_an_upload_begin_anew_by_the_same_rule(state: State) -> None:
    gone(state, "n1")
    assert state.apply(place("n4", is_lost=True, lost=["n2"])) == "conflict"
    assert state.done(place("n4", is_lost=True, lost=["n2", "n3"])) == 1
    assert (upload(state)["offset_bytes"], upload(state)["placement"]) == (0, ["n4"])
