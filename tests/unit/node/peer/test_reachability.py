"""Which nodes a node can reach, asked of real peer ports."""

import pytest

from deploy.processes import free_ports
from node.peer.reachability import FAILURES_MIN, Reach
from tests.unit.peer_nodes import Node, introduce


def reach_of(node: Node) -> Reach:
    return Reach(node.services.node_id, node.services.peers, node.services.api.view)


async def test_node_that_does_not_answer_several_times_is_told_until_it_does(nodes: list[Node]) -> None:
    reach = reach_of(nodes[0])
    await reach.ask_oldest()
    assert reach.unreachable() == []
    introduce(nodes, ports={"n2": free_ports(1)[0]})  # nobody listens there
    for number in range(1, FAILURES_MIN + 1):
        await reach.ask_oldest()
        assert reach.unreachable() == (["n2"] if number >= FAILURES_MIN else [])
    introduce(nodes)
    await reach.ask_oldest()
    assert reach.unreachable() == []


async def test_node_that_has_gone_is_forgotten(nodes: list[Node]) -> None:
    reach = reach_of(nodes[0])
    introduce(nodes, ports={"n2": free_ports(1)[0]})
    for _ in range(FAILURES_MIN):
        await reach.ask_oldest()
    introduce(nodes, known=[nodes[0], nodes[2]])
    await reach.ask_oldest()
    assert reach.unreachable() == []


async def test_those_that_were_not_asked_for_longest_are_asked_first(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.peer.reachability.LOOKS_MAX", 1)
    introduce(nodes, ports={name: free_ports(1)[0] for name in ("n2", "n3")})
    reach = reach_of(nodes[0])
    for looks in range(1, 2 * FAILURES_MIN + 1):
        await reach.ask_oldest()
        assert len(reach.unreachable()) == max(0, looks - 2 * FAILURES_MIN + 2), looks
