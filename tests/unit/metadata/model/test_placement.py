"""Placement and the health it rests on: pure functions of candidates and heartbeats."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model.placement import Candidate, choose, holder_first
from metadata.model.records import NodeRecord
from metadata.protocol.calls import HeartbeatCall
from metadata.rpc.node_health import PLACEABLE_S, NodeHealth
from tests.unit.node_records import node_record

GIB = 1 << 30


def candidate(node_id: str, zone: str = "", weight: int = 1) -> Candidate:
    return Candidate(node_id, zone, weight, 100 * GIB, 200 * GIB)


def node(node_id: str, peer_port: int = 7001) -> NodeRecord:
    return node_record(node_id, peer_port=peer_port, weight=1)


@given(st.text(), st.integers(0, 6), st.permutations([f"n{i}" for i in range(5)]))
def test_choice_does_not_depend_on_the_order_of_candidates(key: str, count: int, ids: list[str]) -> None:
    chosen = choose(key, [candidate(i) for i in ids], count)
    assert chosen == choose(key, [candidate(i) for i in sorted(ids)], count)
    assert len(chosen) == len(set(chosen)) == min(count, 5)


def test_zones_are_used_before_any_is_used_twice() -> None:
    candidates = [candidate(f"n{i}", zone="ab"[i % 2]) for i in range(6)]
    for number in range(100):
        first, second, _ = choose(f"file {number}", candidates, 3)
        assert int(first[1]) % 2 != int(second[1]) % 2


def test_first_places_are_shared_by_weight() -> None:
    candidates = [candidate("n1", weight=1), candidate("n2", weight=3)]
    counts = Counter(choose(f"file {number}", candidates, 1)[0] for number in range(4000))
    assert 2800 < counts["n2"] < 3200


def test_proposer_that_wishes_so_comes_first_of_those_that_were_chosen() -> None:
    chosen = ["n3", "n1", "n2"]
    assert holder_first(chosen, ["n2"], "n2") == ["n2", "n3", "n1"]
    assert holder_first(chosen, ["n4"], "n4") == chosen  # which keeps the balance between disks
    assert holder_first(chosen, ["n2"], "n1") == chosen  # nobody wishes for another
    assert holder_first(chosen, ["n2", "n1"], "n2") == chosen
    assert holder_first(chosen, [], "n2") == chosen


def test_losing_a_node_moves_only_its_own_replicas() -> None:
    candidates = [candidate(f"n{i}") for i in range(5)]
    for number in range(200):
        before = choose(f"file {number}", candidates, 2)
        after = choose(f"file {number}", candidates[:-1], 2)
        assert [i for i in before if i != "n4"] == [i for i in after if i in before]


def test_reserve_is_a_twentieth_but_no_more_than_ten_gibibytes() -> None:
    small = Candidate("n1", "", 1, free_bytes=6 * GIB, total_bytes=100 * GIB)
    assert small.has_room(GIB)
    assert not small.has_room(GIB + 1)
    large = Candidate("n1", "", 1, free_bytes=11 * GIB, total_bytes=10_000 * GIB)
    assert large.has_room(GIB)
    assert not large.has_room(GIB + 1)


def test_node_is_placeable_only_while_it_is_heard_and_reachable() -> None:
    health = NodeHealth()
    beat = HeartbeatCall(free_bytes=1, total_bytes=2, uploads=0)
    health.receive("n1", beat, at_s=100.0)
    health.receive("n2", beat, at_s=100.0)
    nodes = [node("n1"), node("n2", peer_port=0), node("n3")]
    assert [c.node_id for c in health.candidates(nodes, at_s=99.9 + PLACEABLE_S)] == ["n1"]
    assert health.candidates(nodes, at_s=100.0 + PLACEABLE_S) == []


@pytest.mark.parametrize(
    ("reports", "is_cut_off"),
    [
        ([True], False),
        ([True, True], True),
        ([True, False], False),
        ([True, True, False], True),
        ([True, True, False, False], False),
        ([True, True, True, False, False], True),
    ],
)
def test_node_that_most_others_cannot_reach_gets_nothing(reports: list[bool], is_cut_off: bool) -> None:
    health = NodeHealth()
    health.receive("n1", HeartbeatCall(1, 2, 0), at_s=0.0)
    for number, report in enumerate(reports, start=2):
        beat = HeartbeatCall(1, 2, 0, unreachable=["n1"] if report else ["n9"])
        health.receive(f"n{number}", beat, at_s=0.0)
    assert bool(health.candidates([node("n1")], at_s=1.0)) is not is_cut_off
    assert health.shown_state(node("n1"), at_s=1.0) == ("unreachable" if is_cut_off else "healthy")
    assert not health.is_cut_off("n1", at_s=PLACEABLE_S)  # what silent nodes said last counts no more


def test_silence_makes_a_node_suspect_and_then_down() -> None:
    health = NodeHealth()
    health.receive("n1", HeartbeatCall(1, 2, 0), at_s=0.0)
    states = [health.state("n1", at_s=at_s) for at_s in (9.9, 10.0, 599.9, 600.0)]
    assert states == ["healthy", "suspect", "suspect", "down"]
    assert health.state("n2", at_s=0.0) == "joined"


def test_node_that_the_log_does_not_call_healthy_gets_nothing_and_is_shown_as_it_is() -> None:
    health = NodeHealth()
    health.receive("n1", HeartbeatCall(1, 2, 0), at_s=0.0)
    shown = {}
    for state in ("healthy", "down", "returning"):
        recorded = msgspec.structs.replace(node("n1"), state=state)
        assert bool(health.candidates([recorded], at_s=1.0)) == (state == "healthy")
        shown[state] = [health.shown_state(recorded, at_s=at_s) for at_s in (1.0, 11.0, 601.0)]
    assert shown == {
        "healthy": ["healthy", "suspect", "down"],
        "down": ["down", "down", "down"],
        "returning": ["returning", "suspect", "down"],
    }
    drained = msgspec.structs.replace(node("n1"), draining=True)
    assert health.shown_state(drained, at_s=1.0) == "draining"


def test_node_whose_disk_takes_no_bytes_gets_nothing_and_one_with_the_reserve_left_no_file() -> None:
    health = NodeHealth()
    beats = {
        "n1": HeartbeatCall(free_bytes=50, total_bytes=100, uploads=0),
        "n2": HeartbeatCall(free_bytes=4, total_bytes=100, uploads=0),
        "n3": HeartbeatCall(free_bytes=50, total_bytes=100, uploads=0, takes_bytes=False),
    }
    for node_id, beat in beats.items():
        health.receive(node_id, beat, at_s=0.0)
    nodes = [node(node_id) for node_id in beats]
    found = health.candidates(nodes, at_s=1.0)
    assert [(c.node_id, c.has_room(0)) for c in found] == [("n1", True), ("n2", False)]
    assert [health.disk(node_id) for node_id in (*beats, "n4")] == ["ok", "low", "failed", "ok"]
    health.receive("n3", beats["n1"], at_s=0.0)
    assert len(health.candidates(nodes, at_s=1.0)) == 3
