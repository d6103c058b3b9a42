"""Lists of the chunks of a base, from this node and from others: over real TLS, without coordinators."""

import hashlib
import random
from contextlib import aclosing

import pytest

from ca.errors import Unavailable
from metadata.model.records import ContentRecord
from node.content import delta
from node.custody.freezing import freeze
from tests.unit.cold_store import no_pace, put_file
from tests.unit.filestore_client.test_delta import list_of
from tests.unit.hot_node import record
from tests.unit.node.peer.test_blob_fetching import counted
from tests.unit.peer_nodes import Node, introduce

CONTENT = random.Random(21).randbytes(20 << 20)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def content_on(*replicas: str) -> ContentRecord:
    return record(list(replicas), size_bytes=len(CONTENT), sha256=SHA256)


async def listed(node: Node, *replicas: str) -> bytes:
    async with aclosing(delta._listed(node.services, content_on(*replicas), is_sample=False)) as parts:
        return b"".join([part async for part in parts])


@pytest.mark.parametrize("holder", [0, 1])
@pytest.mark.parametrize("is_cold", [False, True])
async def test_list_is_the_same_of_hot_and_cold_replicas_here_and_on_other_nodes(
    nodes: list[Node], holder: int, is_cold: bool
) -> None:
    services = nodes[holder].services
    put_file(services.blobs, CONTENT)
    if is_cold:
        await freeze(services.disk, services.blobs, SHA256, pace=no_pace)
    assert await listed(nodes[0], services.node_id) == list_of(CONTENT)
    assert counted(nodes[0], "received") < 1 << 20  # of the blob itself nothing


async def test_next_node_lists_what_the_first_one_lacks(nodes: list[Node]) -> None:
    put_file(nodes[2].services.blobs, CONTENT)
    introduce(nodes, ports={"n2": 1})
    assert await listed(nodes[0], "n1", "n2", "n3") == list_of(CONTENT)


async def test_list_that_no_node_has_is_unavailable(nodes: list[Node]) -> None:
    with pytest.raises(Unavailable):
        await listed(nodes[0], "n1", "n2")
