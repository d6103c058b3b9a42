"""What the reconcilers decide, from facts that are handed in."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from coordinator.reconcile.drain import draining_nodes, plan_release
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.jobs import shape
from coordinator.reconcile.passes import skipped_nodes
from coordinator.reconcile.rebalance import Levels, find_imbalances, plan_move
from coordinator.reconcile.repair import lacks_room, plan_repair
from coordinator.reconcile.states import TICK_S_MAX, NodeObserver
from metadata.model.placement import Candidate
from metadata.model.records import BlobRecord, NodeRecord
from metadata.model.replica_records import ShortBlob
from metadata.model.safety_limits import is_too_many
from metadata.protocol.calls import HeartbeatCall
from metadata.rpc.node_health import NodeHealth
from tests.unit.node_records import node_record

GIB = 1 << 30
IDS = ["n1", "n2", "n3", "n4", "n5"]


def node(node_id: str, state: str = "healthy", *, zone: str = "", draining: bool = False) -> NodeRecord:
    return node_record(node_id, state=state, zone=zone, draining=draining)


def facts(*nodes: NodeRecord, silent: tuple[str, ...] = (), free: dict[str, int] | None = None) -> Facts:
    """A cluster that wants three replicas; each node has 100 GiB, half of them free unless told otherwise."""
    takers = [n for n in nodes if n.state == "healthy" and not n.draining and n.node_id not in silent]
    room = free or {}
    return Facts(
        nodes=nodes,
        candidates=tuple(
            Candidate(n.node_id, n.zone, n.weight, room.get(n.node_id, 50) * GIB, 100 * GIB) for n in takers
        ),
        reachable=frozenset(n.node_id for n in nodes if n.state != "down" and n.node_id not in silent),
        replicas=3,
        write_quorum=2,
    )


def short(*holders: str, doomed: tuple[str, ...] = (), size_bytes: int = GIB) -> ShortBlob:
    return ShortBlob(sha256="aa", size_bytes=size_bytes, missing=1, holders=[*holders], doomed=[*doomed])


def blob(*holders: str, size_bytes: int = GIB) -> BlobRecord:
    return BlobRecord(sha256="aa", size_bytes=size_bytes, reference_count=1, replicas=[*holders])


def test_blob_with_a_holder_that_is_down_is_copied_to_a_node_without_it() -> None:
    cluster = facts(node("n1"), node("n2"), node("n3", "down"), node("n4"))
    (copy,) = plan_repair(short("n1", "n2", "n3"), cluster)
    assert (copy.target, copy.sources) == ("n4", ("n1", "n2"))


def test_blob_that_is_left_for_want_of_room_is_told_from_others() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    roomless, roomy = facts(*nodes, free={"n3": 0}), facts(*nodes)
    assert plan_repair(short("n1", "n2"), roomless) == []
    assert lacks_room(short("n1", "n2"), roomless, [])
    assert not lacks_room(short("n1", "n2"), roomy, plan_repair(short("n1", "n2"), roomy))
    assert not lacks_room(short(), roomless, [])  # nobody holds it


def test_last_replicas_on_a_draining_and_a_returning_node_are_sources() -> None:
    cluster = facts(node("n1", draining=True), node("n2", "returning"), node("n3"), node("n4"), node("n5"))
    copies = plan_repair(short("n1", "n2"), cluster)
    assert sorted(copy.target for copy in copies) == ["n3", "n4", "n5"]
    assert {copy.sources for copy in copies} == {("n1", "n2")}
    assert {copy.sources[0] for copy in plan_repair(short("n1", "n2", "n3"), cluster)} == {"n3"}


def test_node_that_has_yet_to_drop_a_blob_is_no_target() -> None:
    cluster = facts(node("n1"), node("n2"), node("n3"))
    assert plan_repair(short("n1", "n2", doomed=("n3",)), cluster) == []


def test_no_copy_is_planned_without_a_source_that_answers() -> None:
    cluster = facts(node("n1", "down"), node("n2"), node("n3"), node("n4"))
    assert plan_repair(short("n1"), cluster) == []
    assert plan_repair(short(), cluster) == []


def test_full_and_silent_nodes_get_no_copies() -> None:
    cluster = facts(node("n1"), node("n2", "down"), node("n3"), node("n4"), silent=("n4",), free={"n3": 6})
    assert plan_repair(short("n1", "n2", size_bytes=4 * GIB), cluster) == []
    assert [copy.target for copy in plan_repair(short("n1", "n2"), cluster)] == ["n3"]


def test_repair_takes_of_the_reserve_where_nobody_else_has_room_and_a_drain_does_not() -> None:
    nodes = [node("n1"), node("n2"), node("n3"), node("n4"), node("n5", draining=True)]
    tight = facts(*nodes, free={"n3": 6, "n4": 4})
    large = short("n1", "n2", size_bytes=2 * GIB)
    assert [copy.target for copy in plan_repair(large, tight)] == ["n3"]
    assert plan_repair(large, tight, into_reserve=False) == []
    roomy = facts(*nodes, free={"n3": 6})
    for content in range(20):
        of_content = msgspec.structs.replace(large, sha256=f"{content}")
        assert [copy.target for copy in plan_repair(of_content, roomy)] == ["n4"]


def test_fewer_replicas_are_wanted_where_there_are_fewer_nodes() -> None:
    cluster = facts(node("n1"), node("n2"), node("n3", "down"))
    assert (cluster.wanted, cluster.missing_min) == (2, 2)
    assert plan_repair(short("n1", "n2", "n3"), cluster) == []


def test_node_that_is_silent_for_a_moment_still_counts() -> None:
    cluster = facts(*(node(name) for name in IDS), silent=("n1",))
    assert plan_repair(short("n1", "n2", "n3"), cluster) == []


def test_copy_goes_to_a_zone_without_a_replica() -> None:
    nodes = [node(name, zone="a" if name in ("n1", "n2", "n3", "n4") else "b") for name in IDS]
    for content in range(20):
        of_content = ShortBlob(sha256=f"{content}", size_bytes=1, missing=1, holders=["n1", "n2"], doomed=[])
        assert [copy.target for copy in plan_repair(of_content, facts(*nodes))] == ["n5"]


@given(
    states=st.lists(st.sampled_from(["healthy", "down", "returning", "draining"]), min_size=5, max_size=5),
    holders=st.sets(st.sampled_from(IDS)),
    doomed=st.sets(st.sampled_from(IDS)),
)
def test_plan_reaches_what_is_wanted_and_never_more(
    states: list[str], holders: set[str], doomed: set[str]
) -> None:
    nodes = [
        node(name, "healthy" if state == "draining" else state, draining=state == "draining")
        for name, state in zip(IDS, states, strict=True)
    ]
    cluster = facts(*nodes)
    kept = sorted(holders - doomed)
    copies = plan_repair(short(*kept, doomed=tuple(sorted(doomed))), cluster)
    targets = [copy.target for copy in copies]
    assert len(set(targets)) == len(targets)
    assert not set(targets) & (holders | doomed)
    good = len(cluster.counting_holders(kept))
    assert good + len(targets) <= max(cluster.wanted, good)
    takers = {c.node_id for c in cluster.candidates} - holders - doomed
    if cluster.sources(kept):
        assert good + len(targets) >= min(cluster.wanted, good + len(takers))


def test_replica_on_a_draining_node_is_copied_before_it_may_go() -> None:
    cluster = facts(node("n1", draining=True), node("n2"), node("n3"), node("n4"))
    assert draining_nodes(cluster) == ["n1"]
    (copy,) = plan_release(blob("n1", "n2", "n3"), cluster)
    assert (copy.target, copy.sources) == ("n4", ("n2", "n3", "n1"))
    assert plan_release(blob("n1", "n2", "n3", "n4"), cluster) == []


def test_node_that_is_down_is_not_emptied() -> None:
    nodes = (node("n1", draining=True), node("n2", "down", draining=True), node("n3"))
    assert draining_nodes(facts(*nodes)) == ["n1"]


def test_node_that_could_not_be_told_to_look_is_not_taken_for_one_that_has_looked() -> None:
    cluster = facts(node("n1"), node("n2", "down"), node("n3"), silent=("n3",))
    assert skipped_nodes(cluster, sorted(cluster.reachable)) == ["n2", "n3"]
    assert skipped_nodes(cluster, ["n1", "n2", "n3"]) == []


def test_even_nodes_are_left_alone_and_fuller_ones_give_to_emptier_ones() -> None:
    nodes = [node(name) for name in IDS]
    assert find_imbalances(facts(*nodes)) == []
    assert find_imbalances(facts(*nodes, free={"n1": 45})) == []
    found = find_imbalances(facts(*nodes, free={"n1": 10, "n5": 95}))
    assert [(each.fuller, [taker.node_id for taker in each.takers]) for each in found] == [
        ("n1", ["n2", "n3", "n4", "n5"]),
        *((name, ["n5"]) for name in ("n2", "n3", "n4")),
    ]


def test_nothing_is_uneven_where_every_node_has_every_blob() -> None:
    assert find_imbalances(facts(node("n1"), node("n2"), node("n3"), free={"n1": 1})) == []
    assert find_imbalances(facts(node("n1"), node("n2"), node("n3"), node("n4"), free={"n1": 1})) != []


def test_move_keeps_the_zones_of_a_blob() -> None:
    zones = {"n1": "a", "n2": "b", "n3": "c", "n4": "b", "n5": "a"}
    cluster = facts(*(node(name, zone=zone) for name, zone in zones.items()), free={"n1": 10})
    (imbalance,) = find_imbalances(cluster)
    move = plan_move(blob("n1", "n2", "n3"), imbalance, cluster, Levels(cluster))
    assert move is not None
    assert move.target == "n5"
    assert plan_move(blob("n1", "n2", "n3", "n4", "n5"), imbalance, cluster, Levels(cluster)) is None


def test_moves_end_before_the_node_that_takes_is_as_full_as_the_one_that_gives() -> None:
    cluster = facts(*(node(name) for name in IDS), free={"n1": 10, "n2": 30, "n3": 95, "n4": 10, "n5": 10})
    levels = Levels(cluster)
    moved = 0
    while levels.may_move("n1", "n3", GIB):
        levels.move("n1", "n3", GIB)
        moved += 1
    assert moved == 40  # of the 85 GiB between them
    assert not levels.may_move("n3", "n1", 1)
    assert not levels.may_move("n1", "n2", 1)


@given(data=st.data())
def test_whatever_moves_the_moves_end(data: st.DataObject) -> None:
    cluster = facts(
        *(node(name) for name in IDS), free={name: data.draw(st.integers(0, 100)) for name in IDS}
    )
    levels, moves = Levels(cluster), 0
    while able := [(a, b) for a in IDS for b in IDS if a != b and levels.may_move(a, b, 5 * GIB)]:
        levels.move(*data.draw(st.sampled_from(able)), 5 * GIB)
        moves += 1
        assert moves < 600  # each lowers the sum of the squares by 90, of at most 50,000


def test_a_tenth_of_many_blobs_is_too_many_and_a_few_never_are() -> None:
    assert not is_too_many(100, 100)
    assert is_too_many(101, 1000)
    assert not is_too_many(101, 1010)


def beat(health: NodeHealth, at_s: float, *node_ids: str) -> None:
    for node_id in node_ids:
        health.receive(node_id, HeartbeatCall(1, 2, 0), at_s=at_s)


def test_silent_node_is_marked_down_and_a_node_that_is_heard_again_returning() -> None:
    health, attention = NodeHealth(), NodeObserver()
    nodes = [node("n1"), node("n2"), node("n3", "down")]
    found = []
    for second in range(32):
        beat(health, second, "n1", *(["n3"] if second >= 20 else []))
        attention.observe(nodes, health, at_s=second + 0.5)
        found.append(attention.marks(nodes, down_after_s=30.0))
    assert found[19] == []
    assert found[20] == [("n3", "returning")]
    assert found[29] == [("n3", "returning")]
    assert found[30] == [("n2", "down"), ("n3", "returning")]


def test_node_whose_disk_fails_for_long_is_down_and_returns_when_it_works_again() -> None:
    """That it goes on being heard says nothing of its replicas. A full disk is none that fails."""
    health, attention = NodeHealth(), NodeObserver()
    nodes, found, failing = [node("n1"), node("n2"), node("n3", "down")], [], list[list[str]]()
    failing_at = {"n1": range(20, 70), "n2": range(0), "n3": range(20, 60)}
    for second in range(70):
        for node_id, seconds in failing_at.items():
            heartbeat = HeartbeatCall(0, 0, 0, takes_bytes=False, disk_fails=second in seconds)
            health.receive(node_id, heartbeat, at_s=float(second))
        attention.observe(nodes, health, at_s=second + 0.5)
        found.append(attention.marks(nodes, down_after_s=30.0))
        failing.append(sorted(attention.failing_nodes))
    assert found[19] == [("n3", "returning")]
    assert found[49] == []
    assert found[50] == [("n1", "down")]
    assert found[60] == [("n1", "down"), ("n3", "returning")]
    assert (failing[19], failing[59], failing[69]) == ([], ["n1", "n3"], ["n1"])


def test_pause_of_the_coordinator_counts_for_little_silence() -> None:
    health, attention = NodeHealth(), NodeObserver()
    nodes = [node("n1")]
    beat(health, 0.0, "n1")
    attention.observe(nodes, health, at_s=0.5)
    attention.observe(nodes, health, at_s=3600.0)
    assert attention.marks(nodes, down_after_s=TICK_S_MAX + 0.1) == []
    assert attention.marks(nodes, down_after_s=TICK_S_MAX) == [("n1", "down")]


def test_node_that_is_new_or_never_announced_itself_is_not_down() -> None:
    health, attention = NodeHealth(), NodeObserver()
    silent = node_record("n1", peer_port=0)
    for second in range(100):
        attention.observe([silent], health, at_s=float(second))
    assert attention.marks([silent], down_after_s=1.0) == []
    attention.observe([silent, node("n2")], health, at_s=100.0)
    assert attention.marks([silent, node("n2")], down_after_s=1.0) == []


def test_node_that_joins_under_the_name_of_one_that_was_removed_is_none_that_is_down() -> None:
    health, new = NodeHealth(), node("n1")
    beat(health, 0.0, "n1")
    assert health.shown_state(new, at_s=3600.0) == "down"
    health.forget("n1")
    assert health.shown_state(new, at_s=3600.0) == "unheard"
    assert health.shown_state(node_record("n1", peer_port=0), at_s=3600.0) == "joined"


def test_node_that_a_new_leader_has_not_heard_is_told_as_the_log_knows_it() -> None:
    health = NodeHealth()
    shown = [health.shown_state(node("n1", state=state), at_s=1.0) for state in ("healthy", "down")]
    assert shown == ["unheard", "down"]


def test_run_that_could_do_nothing_is_tried_again_when_room_or_nodes_have_changed_notably() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    tried = shape(facts(*nodes, free={"n3": 1}))
    assert shape(facts(*nodes, free={"n3": 1, "n1": 51})) == tried
    assert shape(facts(*nodes, free={"n3": 2})) != tried
    assert shape(facts(*nodes, free={"n3": 0})) != tried
    assert shape(facts(*nodes, node("n4"), free={"n3": 1})) != tried
    assert shape(facts(*nodes[:2], node("n3", draining=True), free={"n3": 1})) != tried
