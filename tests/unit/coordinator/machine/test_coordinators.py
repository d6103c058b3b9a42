"""The Raft group in the state: roles, tombstones, and the view that everybody follows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.raft.messages import Members
from metadata.model.records import CoordinatorRecord
from metadata.protocol import commands, queries
from tests.unit.state import State, coordinator, membership


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def change(state: State, *coordinators: CoordinatorRecord) -> None:
    state.apply_entry(membership(state.log_index + 1, *coordinators))


def test_members_of_the_bootstrap_are_voters(state: State) -> None:
    assert state.store.members() == Members(("c1",))


def test_learner_becomes_voter_and_the_view_shows_both(state: State) -> None:
    before = state.ask(queries.GetView())["version"]
    change(state, coordinator("c1"), coordinator("c2", role="learner", peer_port=7))
    assert state.store.members() == Members(("c1",), ("c2",))
    view = state.ask(queries.GetView())
    assert view["version"] > before
    assert state.store.view_version() == view["version"]
    assert [(c["coordinator_id"], c["role"], c["peer_port"]) for c in view["coordinators"]] == [
        ("c1", "voter", 1),
        ("c2", "learner", 7),
    ]
    change(state, coordinator("c1"), coordinator("c2"))
    assert state.store.members() == Members(("c1", "c2"))


def test_removed_coordinator_leaves_a_tombstone(state: State) -> None:
    change(state, coordinator("c1"), coordinator("c2"))
    change(state, coordinator("c2"))
    assert state.store.members() == Members(("c2",))
    view = state.ask(queries.GetView())
    assert [c["coordinator_id"] for c in view["coordinators"]] == ["c2"]
    assert view["removed_coordinators"] == ["c1"]


def test_membership_entry_is_applied_whatever_its_session(state: State) -> None:
    entry = membership(state.log_index + 1, coordinator("c1"), coordinator("c2"), session=999)
    assert state.apply_entry(entry) is None
    assert state.store.members() == Members(("c1", "c2"))


def test_membership_entry_that_records_others_than_it_names_stops_the_process(state: State) -> None:
    entry = membership(state.log_index + 1, coordinator("c1"), members=Members(("c1", "c3")))
    with pytest.raises(AssertionError, match="records others"):
        state.apply_entry(entry)
    assert state.store.applied_index() == entry.index - 1


def test_nodes_may_not_propose_what_concerns_the_group_alone() -> None:
    alone = (commands.RecordCoordinators, commands.HashState, commands.ReportHash)
    assert not set(alone) & set(commands.NODE_COMMANDS)
