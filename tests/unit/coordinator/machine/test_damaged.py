"""Damaged copies in the log: which bytes are gone, who may leave, and what becomes of the copies."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import Forbidden
from ca.identity import Identity, Role
from coordinator.admission import require_own
from coordinator.machine.damaged import common_spans, join_spans, size_of
from metadata.protocol import commands, queries
from tests.unit.replica_acts import add, collect, delete, holders, lost, mark, put, recount, short
from tests.unit.state import ADMIN, Refusal, State

SIZE_BYTES = 5  # of the content that `put` makes
Span = tuple[int, int]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3", "n4")
    put(made, "f1", "aa")
    yield made
    made.store.close()


def damage(state: State, node_id: str, *spans: Span) -> None:
    """The replica is lost, and the node keeps it as a damaged copy."""
    state.done(commands.ReportLost(node_id=node_id, sha256s=["aa"], reason="damaged"))
    tell(state, node_id, *spans)


def tell(state: State, node_id: str, *spans: Span) -> None:
    state.done(commands.ReportDamaged(node_id=node_id, sha256="aa", spans=list(spans)))


def blobs(state: State, *, gone: bool) -> list[tuple[str, list[list[int]], list[str]]]:
    page = state.ask(queries.ListDamagedBlobs(gone=gone))
    return [(blob["sha256"], blob["gone"], blob["copies"]) for blob in page["blobs"]]


def counted(state: State) -> tuple[int, int, int, int]:
    counts = state.ask(queries.GetReplicaCounts())
    return counts["lost"], counts["damaged"], counts["gone"], counts["gone_bytes"]


def found(state: State) -> tuple[list[str], list[list[int]]]:
    blob = state.ask(queries.FindBlob(sha256="aa"))
    return blob["damaged"], blob["gone"]


def test_damaged_replica_counts_for_nothing_and_is_remembered(state: State) -> None:
    damage(state, "n1", (0, 2))
    assert (holders(state, "aa"), short(state)) == (["n2", "n3"], [("aa", 1)])
    assert found(state) == (["n1"], [])
    [blob] = state.ask(queries.ListShortBlobs())["blobs"]
    assert blob["damaged"] == ["n1"]


def test_node_that_reports_damage_is_known_to_keep_the_copy_at_once(state: State) -> None:
    for node_id in ("n1", "n2", "n3"):
        state.done(commands.ReportLost(node_id=node_id, sha256s=["aa"], reason="damaged"))
    assert (found(state), counted(state)) == ((["n1", "n2", "n3"], []), (0, 1, 0, 0))


def test_disjoint_damage_of_all_copies_loses_no_byte(state: State) -> None:
    damage(state, "n1", (0, 2))
    damage(state, "n2", (2, 3))
    damage(state, "n3", (3, 5))
    assert counted(state) == (0, 1, 0, 0)
    assert blobs(state, gone=False) == [("aa", [], ["n1", "n2", "n3"])]


def test_bytes_that_are_wrong_in_every_copy_are_gone(state: State) -> None:
    for node_id, spans in (("n1", [(0, 2)]), ("n2", [(1, 4)]), ("n3", [(0, 3)])):
        damage(state, node_id, *spans)
    assert blobs(state, gone=True) == [("aa", [[1, 2]], ["n1", "n2", "n3"])]
    assert (counted(state), found(state)[1]) == ((0, 0, 1, 1), [[1, 2]])


def test_more_that_is_found_wrong_in_a_known_copy_counts(state: State) -> None:
    for node_id in ("n1", "n2", "n3"):
        damage(state, node_id)
    assert counted(state) == (0, 1, 0, 0)
    for node_id in ("n1", "n2", "n3"):
        tell(state, node_id, (4, 5))
    assert counted(state) == (0, 0, 1, 1)


def test_without_any_copy_the_blob_is_lost(state: State) -> None:
    for node_id in ("n1", "n2", "n3"):
        lost(state, node_id, "aa")
    assert counted(state) == (1, 0, 0, 0)


def test_whole_replica_takes_the_place_of_the_damaged_copy(state: State) -> None:
    for node_id in ("n1", "n2", "n3"):
        damage(state, node_id, (0, 1))
    add(state, "aa", "n2")
    assert (found(state), counted(state)) == ((["n1", "n3"], []), (0, 0, 0, 0))


def test_report_about_a_copy_comes_too_late_for_a_whole_replica(state: State) -> None:
    damage(state, "n1", (0, 1))
    add(state, "aa", "n1")
    tell(state, "n1", (0, 2))
    assert (holders(state, "aa"), found(state)[0]) == (["n1", "n2", "n3"], [])


def test_more_about_a_known_copy_does_not_refuse_what_was_seen_before(state: State) -> None:
    damage(state, "n1", (0, 1))
    as_of = state.log_index
    tell(state, "n1", (0, 2))
    assert not isinstance(add(state, "aa", "n1", as_of=as_of), Refusal)


def test_replica_that_was_seen_before_it_was_found_damaged_is_refused(state: State) -> None:
    as_of = state.log_index
    damage(state, "n1", (0, 1))
    assert add(state, "aa", "n1", as_of=as_of) == "unavailable"


def test_copy_that_is_lost_as_well_is_no_source_any_more(state: State) -> None:
    for node_id in ("n1", "n2", "n3"):
        damage(state, node_id, (0, 1))
    lost(state, "n1", "aa")
    assert found(state) == (["n2", "n3"], [[0, 1]])
    lost(state, "n2", "aa")
    lost(state, "n3", "aa")
    assert counted(state) == (1, 0, 0, 0)


def test_node_with_the_only_sound_bytes_is_not_drained_without_force(state: State) -> None:
    damage(state, "n1", (0, 2))
    damage(state, "n2", (2, 5))
    damage(state, "n3", (0, 5))
    drain = commands.DrainNode(caller=ADMIN, node_id="n2", draining=True)
    refused = state.apply(drain)
    assert refused == "conflict"
    assert "lab.gns3project" in refused.details
    assert state.apply(commands.DrainNode(caller=ADMIN, node_id="n3", draining=True))["draining"] is True
    forced = commands.DrainNode(caller=ADMIN, node_id="n2", draining=True, force=True)
    assert state.apply(forced)["draining"] is True


@pytest.mark.parametrize("force", [False, True])
def test_node_with_the_only_sound_bytes_is_removed_only_when_they_are_given_up(
    state: State, *, force: bool
) -> None:
    for node_id, span in (("n1", (0, 2)), ("n2", (2, 5)), ("n3", (2, 5))):
        damage(state, node_id, span)
    if force:
        mark(state, "n1", "down")
    else:
        state.done(commands.DrainNode(caller=ADMIN, node_id="n1", draining=True, force=True))
    remove = commands.RemoveNode(caller=ADMIN, node_id="n1", force=force)
    assert state.apply(remove) == "conflict"
    state.done(commands.RemoveNode(caller=ADMIN, node_id="n1", force=force, give_up=True))
    recount(state)
    assert found(state) == (["n2", "n3"], [[2, 5]])


def test_node_whose_copies_nobody_needs_is_removed_as_ever(state: State) -> None:
    damage(state, "n1", (0, 2))
    state.done(commands.DrainNode(caller=ADMIN, node_id="n1", draining=True))
    state.done(commands.RemoveNode(caller=ADMIN, node_id="n1"))
    recount(state, rows_max=1)
    assert found(state) == ([], [])


def test_copies_go_with_the_blob(state: State) -> None:
    for node_id in ("n1", "n2", "n3"):
        damage(state, node_id, (0, 1))
    delete(state, "f1")
    assert counted(state) == (0, 0, 0, 0)
    tell(state, "n1", (0, 1))
    collect(state)
    with closing(sqlite3.connect(state.path)) as db:
        assert db.execute("SELECT * FROM damaged_copies UNION SELECT * FROM damaged_blobs").fetchall() == []


def test_known_replica_says_what_the_node_keeps(state: State) -> None:
    damage(state, "n1", (0, 1))
    known = {
        node_id: state.ask(queries.KnownReplicas(node_id=node_id, sha256s=["aa"]))[0]
        for node_id in ("n1", "n2")
    }
    assert [(known[name]["state"], known[name]["damaged"]) for name in known] == [
        ("wanted", True),
        ("held", False),
    ]


def test_only_a_node_itself_reports_its_damaged_copy() -> None:
    command = commands.ReportDamaged(node_id="n1", sha256="aa", spans=[])
    require_own(Identity("lab", Role.NODE, "n1"), command)
    with pytest.raises(Forbidden):
        require_own(Identity("lab", Role.NODE, "n2"), command)


_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6)


@given(st.lists(_SPANS, min_size=1, max_size=4))
def test_gone_is_what_is_wrong_in_all_copies(copies: list[list[Span]]) -> None:
    bytes_of = [{at for start, stop in spans for at in range(start, stop)} for spans in copies]
    gone = common_spans(copies)
    expected = set.intersection(*bytes_of)
    assert {at for start, stop in gone for at in range(start, stop)} == expected
    assert size_of(gone) == len(expected)
    assert join_spans(gone) == gone


@given(copies=st.lists(_SPANS, min_size=1, max_size=3))
def test_last_source_is_who_has_sound_bytes_that_nobody_else_has(
    tmp_path_factory: pytest.TempPathFactory, copies: list[list[Span]]
) -> None:
    within = [[(min(a, SIZE_BYTES), min(b, SIZE_BYTES)) for a, b in spans] for spans in copies]
    state = State(tmp_path_factory.mktemp("last") / "state.sqlite")
    try:
        nodes = [f"n{number}" for number in range(1, len(within) + 1)]
        state.nodes("n1", "n2", "n3")
        put(state, "f1", "aa", "n1", "n2", "n3")
        for node_id in ("n1", "n2", "n3"):
            if node_id in nodes:
                damage(state, node_id, *within[nodes.index(node_id)])
            else:
                lost(state, node_id, "aa")
        sound = [set(range(SIZE_BYTES)) - {at for a, b in spans for at in range(a, b)} for spans in within]
        for node_id in nodes:
            own = nodes.index(node_id)
            others = set().union(*(has for at, has in enumerate(sound) if at != own))
            found = state.ask(queries.ListLastSources(node_id=node_id))
            assert bool(found) == bool(sound[own] - others), node_id
    finally:
        state.store.close()
