"""The order of the list of nodes, and the numbers that its pages go by."""

from api.nodes import numbered
from tests.unit.node_records import node_record


def test_nodes_that_joined_within_one_millisecond_have_numbers_of_their_own() -> None:
    joined_at_ms = {"d": 7, "c": 5, "b": 5, "a": 6, "e": 20}
    nodes = [node_record(node_id, joined_at_ms=at_ms) for node_id, at_ms in joined_at_ms.items()]
    assert [(number, each.node_id) for number, each in numbered(nodes)] == [
        (5, "b"),
        (6, "c"),
        (7, "a"),
        (8, "d"),
        (20, "e"),
    ]
    assert list(numbered([])) == []
