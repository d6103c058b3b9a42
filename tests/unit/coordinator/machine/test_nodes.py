"""Nodes that leave: drained first, removed when they are empty, dead from then on."""

from typing import Any

import msgspec

from metadata.model.records import Caller
from metadata.protocol import commands, queries
from metadata.protocol.calls import HeartbeatCall
from metadata.rpc.node_health import NodeHealth
from tests.unit.node_records import node_record
from tests.unit.state import ADMIN, State, certificate, complete, create, join, join_token

NODES = ("n1", "n2", "n3", "n4")


def drain(node_id: str, draining: bool = True, caller: Caller = ADMIN) -> commands.DrainNode:
    return commands.DrainNode(caller=caller, node_id=node_id, draining=draining)


def remove(node_id: str, caller: Caller = ADMIN) -> commands.RemoveNode:
    return commands.RemoveNode(caller=caller, node_id=node_id)


def view(state: State) -> Any:
    return state.ask(queries.GetView())


def test_drained_node_is_shown_so_and_back_again(state: State) -> None:
    before = view(state)["version"]
    assert state.apply(drain("n4"))["draining"] is True
    assert [node["draining"] for node in view(state)["nodes"]] == [False, False, False, True]
    assert view(state)["version"] > before
    assert state.ask(queries.ListNodes(caller=ADMIN))[3]["draining"] is True
    assert state.apply(drain("n4", False))["draining"] is False
    assert not any(node["draining"] for node in view(state)["nodes"])


def test_draining_twice_tells_no_node_anything_new(state: State) -> None:
    state.apply(drain("n4"))
    before = view(state)["version"]
    assert state.apply(drain("n4"))["draining"] is True
    assert view(state)["version"] == before


def test_announcement_and_renewed_join_leave_a_node_draining(state: State) -> None:
    state.apply(drain("n4"))
    state.apply(commands.AnnounceNode(node_id="n4", peer_port=7, zone="", weight=1))
    state.apply(join_token("again"))
    state.apply(join("again", "n4", certificate=certificate("new", "k2"), proved_serial="serial-n4"))
    assert view(state)["nodes"][3]["draining"] is True


def test_only_admins_drain_and_remove_and_only_nodes_that_are_there(state: State) -> None:
    alice = state.user("alice")
    assert state.apply(drain("n4", caller=alice)) == "forbidden"
    assert state.apply(remove("n4", caller=alice)) == "forbidden"
    assert state.apply(drain("n9")) == "not_found"
    assert state.apply(remove("n9")) == "not_found"


def test_node_is_removed_only_while_it_drains(state: State) -> None:
    assert state.apply(remove("n4")) == "conflict"
    state.apply(drain("n4"))
    assert state.apply(remove("n4")) is None
    assert [node["node_id"] for node in view(state)["nodes"]] == ["n1", "n2", "n3"]
    assert state.apply(remove("n4")) == "not_found"


def test_node_that_holds_replicas_stays_and_the_refusal_counts_them(state: State) -> None:
    for number in range(3):
        state.apply(create(ADMIN, f"f{number}", placement=["n1", "n4"]))
        state.apply(complete(ADMIN, f"f{number}", f"sha-{number}", ["n1", "n4"]))
    state.apply(drain("n4"))
    refused = state.apply(remove("n4"))
    assert refused == "conflict"
    assert "3 replicas, 0 uploads" in refused.details


def test_certificates_of_a_removed_node_are_dead_and_its_id_is_free(state: State) -> None:
    state.apply(drain("n4"))
    state.apply(remove("n4"))
    assert not state.store.certificate_is_live("n4", "serial-n4")
    assert view(state)["revoked_serials"] == ["serial-n4"]
    renewal = commands.RenewCertificate(
        node_id="n4", proved_serial="serial-n4", certificate=certificate("next")
    )
    assert state.apply(renewal) == "unauthorized"
    assert state.apply(commands.AnnounceNode(node_id="n4", peer_port=1, zone="", weight=1)) == "not_found"
    state.apply(join_token("again"))
    assert state.apply(join("again", "n4", certificate=certificate("serial-2")))["serial"] == "serial-2"
    assert state.store.certificate_is_live("n4", "serial-2")
    assert view(state)["nodes"][3]["draining"] is False


def test_late_renewal_whose_answer_was_lost_can_be_repeated(state: State) -> None:
    state.at_ms = certificate("serial-n1").not_after_ms + 1
    for proved, made in (("serial-n1", "lost"), ("serial-n1", "got"), ("got", "next")):
        new = msgspec.structs.replace(certificate(made), not_after_ms=2 * state.at_ms)
        renewal = commands.RenewCertificate(node_id="n1", proved_serial=proved, certificate=new)
        assert state.apply(renewal)["serial"] == made
    known = [serial for serial in ("serial-n1", "lost", "got", "next") if is_live(state, "n1", serial)]
    assert known == ["lost", "got", "next"]  # one that has ended, and is used no more, opens nothing


def is_live(state: State, node_id: str, serial: str) -> bool:
    return state.store.certificate_is_live(node_id, serial)


def test_repeated_join_of_a_removed_node_does_not_get_its_dead_certificate(state: State) -> None:
    state.apply(drain("n4"))
    state.apply(remove("n4"))
    assert state.apply(join("t-n4", "n4")) == "unauthorized"


def test_draining_node_is_no_candidate_for_new_replicas() -> None:
    health = NodeHealth()
    nodes = []
    for node_id in ("n1", "n2"):
        health.receive(node_id, HeartbeatCall(free_bytes=1, total_bytes=2, uploads=0), at_s=0.0)
        nodes.append(node_record(node_id, draining=node_id == "n2"))
    assert [candidate.node_id for candidate in health.candidates(nodes, at_s=1.0)] == ["n1"]
