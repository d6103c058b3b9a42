"""Replicas in the log: what is doomed, dropped, spared, lost and added, and what is told of them."""

import sqlite3
from contextlib import closing

import pytest

from ca.errors import Forbidden
from ca.identity import Identity, Role
from coordinator.admission import require_own
from coordinator.machine.burials import RETENTION_MS
from metadata.protocol import commands, queries
from tests.unit.replica_acts import (
    add,
    blob_count,
    collect,
    delete,
    doomed,
    dropped,
    holders,
    lost,
    mark,
    put,
    release,
    short,
    spared,
)
from tests.unit.state import ADMIN, State, complete, create

NODES = ("n1", "n2", "n3", "n4")


def test_blob_without_references_is_doomed_after_its_grace_and_gone_with_its_last_replica(
    state: State,
) -> None:
    put(state, "f1", "aa")
    delete(state, "f1")
    state.at_ms += 999
    assert collect(state, grace_ms=1000) == {"blobs": 0, "bytes": 0, "replicas": 0, "more": False}
    state.at_ms += 1
    assert collect(state, grace_ms=1000) == {"blobs": 1, "bytes": 5, "replicas": 3, "more": False}
    assert collect(state)["blobs"] == 0
    for node_id, left in (("n1", 1), ("n2", 1), ("n3", 0)):
        assert doomed(state, node_id) == ["aa"]
        assert dropped(state, node_id, "aa") == {"dropped": 1, "bytes": 5, "spared": 0}
        assert blob_count(state) == left


def test_collect_stops_at_its_bound_and_says_that_there_is_more(state: State) -> None:
    for number in range(3):
        put(state, f"f{number}", f"sha-{number}")
        delete(state, f"f{number}")
    assert state.ask(queries.CountCollectable(grace_ms=0, limit=2)) == 2
    assert state.ask(queries.CountCollectable(grace_ms=0, limit=10)) == 3
    assert state.ask(queries.CountCollectable(grace_ms=1, limit=10)) == 0
    assert collect(state, rows_max=4) == {"blobs": 1, "bytes": 5, "replicas": 3, "more": True}
    assert collect(state, rows_max=100) == {"blobs": 2, "bytes": 10, "replicas": 6, "more": False}


def test_blob_that_nobody_holds_is_collected_at_once(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2")
    lost(state, "n1", "aa")
    lost(state, "n2", "aa")
    delete(state, "f1")
    assert collect(state)["replicas"] == 0
    assert blob_count(state) == 0


def test_doomed_replica_counts_for_nothing(state: State) -> None:
    put(state, "f1", "aa", *NODES)
    assert release(state, "aa", "n1", others_min=3) is None
    assert holders(state, "aa") == ["n2", "n3", "n4"]
    content = state.ask(queries.GetContent(caller=ADMIN, file_uuid="f1"))
    assert content["replicas"] == ["n2", "n3", "n4"]
    assert release(state, "aa", "n2", others_min=3) == "conflict"
    assert release(state, "aa", "n2", others_min=2) is None
    assert short(state) == [("aa", 1)]
    assert release(state, "aa", "n3", others_min=0) == "conflict"  # the write quorum is 2
    assert release(state, "aa", "n1", others_min=9) is None  # it was doomed before


def test_replica_is_released_only_if_enough_others_are_on_nodes_that_count(state: State) -> None:
    put(state, "f1", "aa")
    mark(state, "n3", "down")
    assert release(state, "aa", "n1") == "conflict"
    mark(state, "n3", "returning")
    assert release(state, "aa", "n1") == "conflict"
    mark(state, "n3", "healthy")
    state.done(commands.DrainNode(caller=ADMIN, node_id="n2", draining=True))
    assert release(state, "aa", "n1") == "conflict"
    assert release(state, "aa", "n2") is None
    assert release(state, "bb", "n1") == "not_found"


def test_unreferenced_replica_is_released_whatever_others_there_are(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2")
    delete(state, "f1")
    assert release(state, "aa", "n1", others_min=3) is None
    assert doomed(state, "n1") == ["aa"]


def test_completion_that_names_a_doomed_replica_is_refused_and_changes_nothing(state: State) -> None:
    put(state, "f1", "aa")
    delete(state, "f1")
    collect(state)
    assert put(state, "f2", "aa", "n3", "n4", as_of=state.log_index) == "unavailable"
    assert state.ask(queries.FindBlob(sha256="aa")) is None
    spared(state, "n3", "aa")
    again = complete(ADMIN, "f2", "aa", ["n3", "n4"])
    assert state.apply(again)["replicas"] == ["n3", "n4"]
    assert doomed(state, "n1") == ["aa"]


def test_completion_that_looked_before_a_replica_was_dropped_is_refused(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2")
    delete(state, "f1")
    collect(state)
    seen = state.log_index
    dropped(state, "n1", "aa")
    dropped(state, "n2", "aa")
    assert put(state, "f2", "aa", "n1", "n2", as_of=seen) == "unavailable"
    assert put(state, "f3", "aa", "n1", "n2", as_of=0) == "unavailable"
    assert put(state, "f4", "aa", "n3", "n4", as_of=seen)["file"]["status"] == "available"
    assert put(state, "f5", "aa", "n1", "n2", as_of=seen + 2)["file"]["status"] == "available"


def test_completion_that_looked_before_a_loss_is_refused_though_the_log_had_no_such_replica(
    state: State,
) -> None:
    seen = state.log_index
    assert lost(state, "n1", "aa") == {"replicas": 0, "blobs": 0}
    assert put(state, "f1", "aa", "n1", "n2", as_of=seen) == "unavailable"
    assert put(state, "f2", "aa", "n1", "n2", as_of=state.log_index)["replicas"] == ["n1", "n2"]


def test_forgotten_burials_refuse_whatever_looked_before_them(state: State) -> None:
    seen = state.log_index
    lost(state, "n4", "zz")
    state.at_ms += RETENTION_MS - 1
    assert not state.store.is_expire_due(at_ms=state.at_ms)
    state.at_ms += 1
    assert state.store.is_expire_due(at_ms=state.at_ms)
    assert state.done(commands.Expire(rows_max=1))["burials"] == 1
    assert not state.store.is_expire_due(at_ms=state.at_ms)
    assert put(state, "f1", "aa", as_of=seen) == "unavailable"
    assert add(state, "aa", "n1", as_of=seen) == "not_found"
    assert put(state, "f2", "aa", as_of=seen + 1)["file"]["status"] == "available"
    assert add(state, "aa", "n4", as_of=seen) == "unavailable"


def test_upload_tells_what_its_completion_may_refer_to(state: State) -> None:
    made = state.done(create(ADMIN, "f1"))
    assert made["as_of"] == state.log_index
    state.done(create(ADMIN, "f2"))
    query = queries.GetUpload(caller=ADMIN, file_uuid="f1")
    assert state.ask(query)["as_of"] == state.log_index
    progress = commands.RecordProgress(caller=ADMIN, file_uuid="f1", node_id="n1", offset_bytes=1)
    assert state.done(progress)["as_of"] == state.log_index


def test_spared_replica_is_the_logs_again_and_waits_for_its_grace(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2")
    delete(state, "f1")
    collect(state)
    state.at_ms += 5
    assert spared(state, "n1", "aa") == {"dropped": 0, "bytes": 0, "spared": 1}
    assert doomed(state, "n1") == []
    assert collect(state, grace_ms=1)["blobs"] == 0
    state.at_ms += 1
    assert collect(state, grace_ms=1) == {"blobs": 1, "bytes": 5, "replicas": 1, "more": False}


def test_report_about_an_older_list_than_the_last_report_counts_for_nothing(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2")
    delete(state, "f1")
    collect(state)
    listed = state.log_index
    assert spared(state, "n1") == {"dropped": 0, "bytes": 0, "spared": 0}  # of a process that begins
    before = state.dump()
    assert spared(state, "n1", "aa", as_of=listed) == "conflict"
    assert dropped(state, "n1", "aa", as_of=listed) == "conflict"
    assert [line for line in before if '"applied"' not in line] == [
        line for line in state.dump() if '"applied"' not in line
    ]
    assert dropped(state, "n2", "aa", as_of=listed)["dropped"] == 1
    assert dropped(state, "n1", "aa")["dropped"] == 1


def test_report_takes_nothing_but_what_was_doomed_when_its_list_was_read(state: State) -> None:
    put(state, "f1", "aa", *NODES)
    listed = state.log_index
    release(state, "aa", "n1")
    assert dropped(state, "n1", "aa", as_of=listed)["dropped"] == 0
    assert doomed(state, "n1") == ["aa"]
    assert dropped(state, "n2", "aa")["dropped"] == 0
    assert holders(state, "aa") == ["n2", "n3", "n4"]
    assert dropped(state, "n1", as_of=state.log_index + 1) == "invalid_request"
    assert dropped(state, "n9") == "not_found"


def test_list_of_doomed_says_when_files_need_a_replica_again(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2", "n3")
    release(state, "aa", "n3")
    assert [each["wanted"] for each in state.ask(queries.ListReplicasToDelete(node_id="n3"))["replicas"]] == [
        False
    ]
    lost(state, "n2", "aa")
    page = state.ask(queries.ListReplicasToDelete(node_id="n3"))
    assert page["replicas"] == [{"sha256": "aa", "size_bytes": 5, "wanted": True, "purged": False}]
    assert page["log_index"] == state.log_index


def test_doomed_replica_is_wanted_while_the_others_are_on_nodes_that_do_not_count(state: State) -> None:
    """They counted when it was released; their disks may be gone for good."""

    def is_wanted() -> bool:
        (replica,) = state.ask(queries.ListReplicasToDelete(node_id="n3"))["replicas"]
        return bool(replica["wanted"])

    put(state, "f1", "aa", "n1", "n2", "n3")
    release(state, "aa", "n3")
    mark(state, "n1", "down")
    assert is_wanted()
    mark(state, "n1", "returning", "healthy")
    assert not is_wanted()


def test_lost_replicas_are_gone_even_the_last_and_the_file_stays(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2")
    assert lost(state, "n1", "aa", "zz") == {"replicas": 1, "blobs": 0}
    assert lost(state, "n2", "aa") == {"replicas": 1, "blobs": 1}
    assert lost(state, "n2", "aa") == {"replicas": 0, "blobs": 0}
    assert lost(state, "n9", "aa") == "not_found"
    content = state.ask(queries.GetContent(caller=ADMIN, file_uuid="f1"))
    assert (content["file"]["status"], content["replicas"]) == ("available", [])
    counts = state.ask(queries.GetReplicaCounts())
    assert (counts["lost"], counts["short"]) == (1, {})
    assert short(state) == [("aa", 4)]
    assert short(state, after_missing=3) == []
    assert add(state, "aa", "n4") == 2
    assert short(state) == [("aa", 2)]


def test_added_replica_counts_and_needs_a_node_a_file_and_a_fresh_look(state: State) -> None:
    put(state, "f1", "aa", "n1", "n2")
    assert short(state) == [("aa", 1)]
    assert add(state, "aa", "n9") == "not_found"
    assert add(state, "bb", "n3") == "not_found"
    seen = state.log_index
    lost(state, "n3", "aa")
    assert add(state, "aa", "n3", as_of=seen) == "unavailable"
    assert add(state, "aa", "n3") == 0
    assert add(state, "aa", "n3") == 0
    assert short(state) == []
    assert add(state, "aa", "n4") == 0
    release(state, "aa", "n4", others_min=3)
    assert add(state, "aa", "n4") == "unavailable"


def test_inventory_is_told_in_pages_with_what_the_log_says_of_each_blob(state: State) -> None:
    for number in range(3):
        put(state, f"f{number}", f"sha-{number}", *NODES)
    release(state, "sha-1", "n1")
    page = state.ask(queries.ListReplicas(node_id="n1", limit=2))
    assert [(each["sha256"], each["doomed"]) for each in page["replicas"]] == [
        ("sha-0", False),
        ("sha-1", True),
    ]
    assert (page["more"], page["log_index"]) == (True, state.log_index)
    last = state.ask(queries.ListReplicas(node_id="n1", limit=2, after="sha-1"))
    assert ([each["sha256"] for each in last["replicas"]], last["more"]) == (["sha-2"], False)
    put(state, "f3", "only-2", "n2", "n3")
    put(state, "f4", "gone", "n2", "n3")
    delete(state, "f4")
    asked = ["sha-0", "sha-1", "only-2", "gone", "never"]
    known = state.ask(queries.KnownReplicas(node_id="n1", sha256s=asked))
    assert {each["sha256"]: each["state"] for each in known} == {
        "sha-0": "held",
        "sha-1": "doomed",
        "only-2": "wanted",
        "gone": "unreferenced",
    }
    assert state.ask(queries.GetNodeReplicas(node_id="n1")) == {"replicas": 2, "doomed": 1}
    assert state.ask(queries.GetNodeReplicas(node_id="n9")) == {"replicas": 0, "doomed": 0}


def test_counts_say_what_waits_for_whom(state: State) -> None:
    put(state, "f1", "aa", *NODES)
    put(state, "f2", "bb")
    put(state, "f3", "cc")
    release(state, "aa", "n4")
    delete(state, "f2")
    collect(state)
    delete(state, "f3")
    counts = state.ask(queries.GetReplicaCounts())
    assert counts["doomed"] == {"n1": 1, "n2": 1, "n3": 1, "n4": 1}
    assert (counts["unreferenced"], counts["lost"], counts["short"]) == (1, 0, {})


def test_what_only_the_leader_decides_is_not_proposed_by_nodes() -> None:
    alone = (commands.Collect, commands.ReleaseReplica, commands.MarkNode, commands.RecountReplicas)
    assert not set(alone) & set(commands.NODE_COMMANDS)
    assert set(commands.OWN_COMMANDS) <= set(commands.NODE_COMMANDS)


@pytest.mark.parametrize(
    "page",
    [
        "blobs WHERE missing = 1 AND missing > 0 AND sha256 > 'a' ORDER BY sha256",
        "blobs WHERE released_at_ms <= 1 AND collected_at IS NULL ORDER BY released_at_ms, sha256",
        "blobs WHERE released_by = 'b' AND released_by <> '' AND collected_at IS NULL AND released_at_ms < 1",
        "blob_replicas WHERE node_id = 'n' AND doomed_at IS NOT NULL AND sha256 > 'a' ORDER BY sha256",
        "blob_replicas WHERE node_id = 'n' AND sha256 > 'a' ORDER BY sha256",
        "burials WHERE at_ms <= 1 ORDER BY at_ms, log_index, sha256, node_id",
    ],
)
def test_pages_are_read_off_an_index_without_a_sort(state: State, page: str) -> None:
    with closing(sqlite3.connect(state.path)) as db:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN SELECT sha256 FROM {page} LIMIT 1")]
    assert len(plan) == 1, plan
    assert plan[0].startswith("SEARCH"), plan


@pytest.mark.parametrize(
    "command",
    [
        commands.AddReplica(sha256="aa", node_id="n1", as_of=1),
        commands.ReportDropped(node_id="n1", as_of=1),
        commands.ReportLost(node_id="n1", sha256s=[], reason="damaged"),
        commands.ReportOrphans(node_id="n1", sha256s=[]),
    ],
    ids=lambda command: type(command).__name__,
)
def test_node_speaks_of_its_own_replicas_only(command: commands.AnyCommand) -> None:
    require_own(Identity("lab", Role.NODE, "n1"), command)
    with pytest.raises(Forbidden):
        require_own(Identity("lab", Role.NODE, "n2"), command)
