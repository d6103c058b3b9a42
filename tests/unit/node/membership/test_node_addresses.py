"""The address that clients are told for a node, also before every member knows that node."""

import pytest

from ca.errors import Unavailable
from metadata.rpc.view import node_url
from tests.unit.peer_nodes import Node, introduce

OWN = "https://[::1]:9"


async def test_address_of_a_known_node_is_its_own(nodes: list[Node]) -> None:
    assert node_url(nodes[0].services.api.view, "n2", own_url=OWN) == "https://127.0.0.1:1"


async def test_node_tells_its_own_address_for_one_it_does_not_know_yet(nodes: list[Node]) -> None:
    assert node_url(nodes[0].services.api.view, "n7", own_url=OWN) == OWN


async def test_coordinator_tells_that_of_any_node_for_one_it_does_not_know_yet(nodes: list[Node]) -> None:
    view = nodes[0].services.api.view
    assert node_url(view, "n7") == "https://127.0.0.1:1"
    introduce(nodes[:1], known=[])
    with pytest.raises(Unavailable):
        node_url(view, "n7")
