"""The order of the list of nodes, and the numbers that its pages go by."""

from coordinator.records import NodeRecord
from node.api.nodes import numbered


def node(node_id: str, joined_at_ms: int) -> NodeRecord:
    return NodeRecord(
        node_id=node_id,
        address="127.0.0.1",
        api_port=1,
        peer_port=2,
        zone="",
        weight=1,
        joined_at_ms=joined_at_ms,
    )


def test_nodes_that_joined_within_one_millisecond_have_numbers_of_their_own() -> None:
    nodes = [node("d", 7), node("c", 5), node("b", 5), node("a", 6), node("e", 20)]
    assert [(number, each.node_id) for number, each in numbered(nodes)] == [
        (5, "b"),
        (6, "c"),
        (7, "a"),
        (8, "d"),
        (20, "e"),
    ]
    assert list(numbered([])) == []
