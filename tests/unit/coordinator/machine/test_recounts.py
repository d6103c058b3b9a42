"""Which blobs are short of replicas, as nodes go down, return, drain and are removed by force."""

import sqlite3
from contextlib import closing
from typing import Any

from metadata.protocol import commands, queries
from tests.unit.replica_acts import (
    add,
    blob_count,
    collect,
    delete,
    dropped,
    holders,
    lost,
    mark,
    put,
    recount,
    short,
)
from tests.unit.state import ADMIN, State, certificate, join, join_token

NODES = ("n1", "n2", "n3", "n4")


def test_node_that_is_down_makes_its_blobs_short_step_by_step_and_back_again(state: State) -> None:
    for number in range(5):
        put(state, f"f{number}", f"sha-{number}")
    put(state, "other", "other", "n1", "n2", "n4")
    before = state.ask(queries.GetView())["version"]
    assert mark(state, "n3", "down")["state"] == "down"
    view = state.ask(queries.GetView())
    assert view["version"] > before
    assert [node["state"] for node in view["nodes"]] == ["healthy", "healthy", "down", "healthy"]
    assert state.ask(queries.GetReplicaCounts())["recounting"] == ["n3"]
    assert recount(state, rows_max=2) == 3
    assert short(state) == [(f"sha-{number}", 1) for number in range(5)]
    assert state.ask(queries.GetReplicaCounts())["short"] == {1: 5}
    assert mark(state, "n3", "healthy") == "conflict"
    assert mark(state, "n3", "returning", "healthy")["state"] == "healthy"
    recount(state, rows_max=2)
    assert short(state) == []


def test_content_on_nodes_that_are_down_or_on_one_other_is_counted(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2", "n3")
    put(state, "f2", "bb", "n2", "n3", "n4")
    put(state, "f3", "cc", "n3", "n4")
    lost(state, "n3", "cc")

    def absent_and_last() -> tuple[int, int]:
        recount(state)
        counts = state.ask(queries.GetReplicaCounts())
        assert counts["lost"] == 0
        return counts["absent"], counts["last"]

    assert absent_and_last() == (0, 1)
    for node_id in ("n1", "n2"):  # both are there, and have what they had
        state.done(commands.DrainNode(caller=ADMIN, node_id=node_id, draining=True))
    assert absent_and_last() == (0, 1)
    mark(state, "n2", "down")
    mark(state, "n3", "down")
    assert absent_and_last() == (0, 3)
    mark(state, "n1", "down")
    assert absent_and_last() == (1, 2)
    mark(state, "n2", "returning")  # it answers, and nobody knows yet what it still has
    assert absent_and_last() == (1, 2)
    mark(state, "n2", "healthy")
    assert absent_and_last() == (0, 2)


def test_content_that_waits_for_a_drain_is_short_but_not_on_too_few_nodes(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2", "n3")
    put(state, "f2", "bb", "n2", "n3", "n4")

    def short_and_few() -> tuple[int, int]:
        recount(state)
        counts = state.ask(queries.GetReplicaCounts())
        return sum(counts["short"].values()), counts["few"]

    state.done(commands.DrainNode(caller=ADMIN, node_id="n2", draining=True))
    assert short_and_few() == (2, 0)
    lost(state, "n3", "bb")
    assert short_and_few() == (2, 1)
    mark(state, "n2", "down")  # what it holds counts no more, whatever it was about to do
    assert short_and_few() == (2, 2)
    state.done(commands.DrainNode(caller=ADMIN, node_id="n2", draining=False))
    assert short_and_few() == (2, 2)


def test_what_a_node_holds_alone_is_told_in_pages_whatever_is_worked_in(state: State) -> None:
    for number in range(3):
        put(state, f"f{number}", f"sha-{number}", "n1", "n4")
    put(state, "other", "other", "n1", "n2")
    put(state, "deleted", "deleted", "n1", "n4")
    delete(state, "deleted")
    mark(state, "n1", "down")
    mark(state, "n4", "down")  # nothing of this is worked in

    def sole(node_id: str, *others: str) -> tuple[int, int]:
        pages, count, after, more = 0, 0, "", True
        while more:
            query = queries.CountSoleReplicas(node_id=node_id, others=[*others], after=after, limit=2)
            page = state.ask(query)
            after, more = page["after"], page["more"]
            pages, count = pages + 1, count + page["sole"]
        return pages, count

    assert sole("n1", "n2", "n3") == (3, 3)
    assert sole("n1", "n3", "n1") == (3, 4)  # itself is no other
    assert sole("n1", "n2", "n4") == (3, 0)
    assert sole("n2", "n1") == (1, 0)
    assert sole("n3") == (1, 0)


def test_blob_that_changes_while_its_node_is_recounted_is_right_at_once(state: State) -> None:
    put(state, "f1", "aa")
    put(state, "f2", "bb")
    mark(state, "n3", "down")
    assert add(state, "bb", "n4") == 0
    recount(state, rows_max=1)
    assert short(state) == [("aa", 1)]
    mark(state, "n3", "returning", "healthy")
    mark(state, "n3", "down")
    recount(state)
    assert short(state) == [("aa", 1)]


def test_same_state_again_or_of_a_draining_node_recounts_nothing(state: State) -> None:
    put(state, "f1", "aa")
    version = state.ask(queries.GetView())["version"]
    mark(state, "n3", "healthy")
    assert state.ask(queries.GetView())["version"] == version
    state.done(commands.DrainNode(caller=ADMIN, node_id="n3", draining=True))
    recount(state)
    assert short(state) == [("aa", 1)]
    mark(state, "n3", "down")
    assert state.ask(queries.GetReplicaCounts())["recounting"] == []
    state.done(commands.DrainNode(caller=ADMIN, node_id="n3", draining=False))
    assert state.ask(queries.GetReplicaCounts())["recounting"] == []
    assert mark(state, "n9", "down") == "not_found"


def test_most_endangered_blobs_come_first_in_pages(state: State) -> None:
    put(state, "f1", "a-lost", "n1", "n2")
    put(state, "f2", "b-two", "n3", "n4")
    put(state, "f3", "c-one", "n1", "n2", "n3")
    put(state, "f4", "d-two", "n3", "n4")
    put(state, "f5", "e-whole", "n1", "n2", "n4")
    for node_id in ("n1", "n2"):
        lost(state, node_id, "a-lost")
    lost(state, "n4", "b-two", "d-two")
    lost(state, "n1", "c-one")
    assert short(state) == [("a-lost", 4), ("b-two", 2), ("d-two", 2), ("c-one", 1)]
    assert short(state, missing_min=2, after_missing=3) == [("b-two", 2), ("d-two", 2)]
    found: list[str] = []
    after: dict[str, Any] = {"after_missing": 0, "after_sha256": ""}
    for _ in range(4):
        page = state.ask(queries.ListShortBlobs(limit=1, **after))
        (blob,) = page["blobs"]
        found.append(blob["sha256"])
        after = {"after_missing": blob["missing"], "after_sha256": blob["sha256"]}
    assert (found, page["more"]) == (["a-lost", "b-two", "d-two", "c-one"], False)
    assert blob == {
        "sha256": "c-one",
        "size_bytes": 5,
        "missing": 1,
        "holders": ["n2", "n3"],
        "doomed": [],
        "damaged": [],
    }
    delete(state, "f1")
    assert short(state)[0] == ("b-two", 2)


def test_node_that_is_down_for_good_is_removed_by_force_with_its_replicas(state: State) -> None:
    put(state, "f1", "aa", "n3", "n4")
    put(state, "f2", "bb", "n1", "n2", "n4")
    put(state, "f3", "cc", "n4", "n3")
    delete(state, "f3")
    collect(state)
    dropped(state, "n3", "cc")
    force = commands.RemoveNode(caller=ADMIN, node_id="n4", force=True)
    assert state.apply(force) == "conflict"
    mark(state, "n4", "down")
    seen = state.log_index
    assert state.apply(force) == {"replicas": 3}
    assert holders(state, "aa") == ["n3"]
    state.apply(join_token("again"))
    again = join("again", "n4", certificate=certificate("serial-2"))
    assert state.apply(again) == "conflict"
    assert recount(state, rows_max=1) == 4
    assert blob_count(state) == 2
    assert short(state) == [("aa", 2), ("bb", 1)]
    assert state.done(again)["serial"] == "serial-2"
    assert holders(state, "aa") == ["n3"]
    assert put(state, "f4", "dd", "n1", "n4", as_of=seen) == "unavailable"
    assert put(state, "f5", "dd", "n1", "n4", as_of=state.log_index)["replicas"] == ["n1", "n4"]


def blobs_in(state: State) -> list[object]:
    """All that is known of blobs, but for what older versions cannot have known."""
    columns = "sha256, size_bytes, reference_count, released_at_ms, collected_at, missing"
    with closing(sqlite3.connect(state.path)) as db:
        rows = db.execute(f"SELECT {columns} FROM blobs ORDER BY sha256").fetchall()
    others = ('INSERT INTO "blob_replicas"', 'INSERT INTO "blob_totals"')
    return [*rows, *(line for line in state.dump() if line.startswith(others))]
