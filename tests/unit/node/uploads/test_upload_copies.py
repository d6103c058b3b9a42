"""Unfinished uploads that a node is told to have: over real TLS, from other nodes, on real files."""

import hashlib
import os
from typing import Any

import msgspec
import pytest

from ca.errors import Conflict, NotFound, Unavailable
from node.peer.client import pieces
from node.uploads.upload_copies import CopyOrder
from tests.unit.node.uploads.test_links import UUID, held, store
from tests.unit.peer_nodes import Node

CONTENT = os.urandom(6_000_000)
REST = os.urandom(100_000)


def order(*sources: str, content: bytes = CONTENT, **changes: Any) -> CopyOrder:
    fields = {
        "epoch": 1,
        "offset_bytes": len(content),
        "prefix_sha256": hashlib.sha256(content).hexdigest(),
        "with_md5": False,
        **changes,
    }
    return CopyOrder(sources=list(sources), **fields)


async def give(node: Node, wanted: CopyOrder) -> str:
    return await node.services.copies.give(UUID, wanted)


async def get(node: Node, source: str, start: int, stop: int) -> tuple[int, bytes]:
    path = f"/uploads/{UUID}?start={start}&stop={stop}"
    async with node.services.peers.request(source, "GET", path) as answer:
        return answer.status, b"".join([piece async for piece in pieces(source, answer)])


async def test_copy_comes_from_the_first_source_that_has_it_and_is_durable(nodes: list[Node]) -> None:
    target, other, source = nodes
    store(source, CONTENT + REST, epoch=1)
    store(other, CONTENT[:1000])
    assert await give(target, order()) == "absent"
    assert await give(target, order("n1", "n2", "n3")) == "here"
    assert target.services.uploads.durable_offset(UUID) == len(CONTENT)
    assert target.services.uploads.epoch(UUID) == 1
    assert held(target)[: len(CONTENT)] == CONTENT
    assert await give(target, order()) == "here"
    assert await give(target, order(content=CONTENT[:77])) == "here"


async def test_copy_goes_on_with_what_is_here_of_it(nodes: list[Node]) -> None:
    target, _, source = nodes
    store(source, CONTENT)
    store(target, CONTENT[:5_000_000])
    assert await give(target, order("n3")) == "here"
    received = target.services.metrics.replica_bytes.labels("received")._value.get()
    assert received == len(CONTENT) - 5_000_000


async def test_copy_that_waited_for_its_turn_drops_nothing_that_a_link_brought_meanwhile(
    nodes: list[Node],
) -> None:
    """The writer of the upload counts on it, in the same epoch."""
    target, _, source = nodes
    store(source, CONTENT, epoch=1)
    copies = target.services.copies
    async with copies._turns, copies._turns:
        assert await copies.give(UUID, order("n3"), answer_s=0.2) == "running"
        store(target, CONTENT + REST, epoch=1)
    assert await give(target, order("n3")) == "here"
    assert held(target) == CONTENT + REST


@pytest.mark.parametrize("size", [1000, len(CONTENT), len(CONTENT) + 1000])
async def test_other_bytes_that_are_here_give_way(nodes: list[Node], size: int) -> None:
    target, _, source = nodes
    store(source, CONTENT)
    store(target, bytes(size))
    assert await give(target, order()) == "absent"
    assert len(held(target)) == size  # who only looks changes nothing
    assert await give(target, order("n3")) == "here"
    assert held(target)[: len(CONTENT)] == CONTENT


async def test_source_with_other_bytes_is_passed_over(nodes: list[Node]) -> None:
    target, wrong, right = nodes
    store(wrong, bytes(len(CONTENT)))
    with pytest.raises(Unavailable):
        await give(target, order("n2"))
    assert await give(target, order()) == "absent"
    store(right, CONTENT)
    assert await give(target, order("n2", "n3")) == "here"


async def test_copy_of_an_epoch_that_is_over_is_refused(nodes: list[Node]) -> None:
    target, _, source = nodes
    store(source, CONTENT)
    store(target, CONTENT[:1000], epoch=2)
    with pytest.raises(Conflict):
        await give(target, order("n3"))
    assert held(target) == CONTENT[:1000]


async def test_upload_that_is_written_is_left_alone(nodes: list[Node]) -> None:
    target, _, source = nodes
    store(source, CONTENT)
    async with target.services.locks.lock(UUID, lambda: True, lambda: None):
        assert await give(target, order("n3")) == "busy"
        assert await give(target, order(offset_bytes=0)) == "busy"
    assert await give(target, order(offset_bytes=0)) == "here"
    assert await give(target, order("n3")) == "here"


async def test_finished_content_is_a_source_and_gives_way_where_it_is_other_content(
    nodes: list[Node],
) -> None:
    target, _, source = nodes
    for node, content in ((source, CONTENT), (target, REST)):
        with node.services.uploads.open(UUID, len(content)) as upload:
            upload.append(content)
            upload.finish()
    assert await give(source, order()) == "here"
    assert await give(target, order("n3")) == "here"
    assert held(target)[: len(CONTENT)] == CONTENT


async def test_order_is_answered_while_it_is_carried_out_and_shared_by_who_asks_again(
    nodes: list[Node],
) -> None:
    target, _, source = nodes
    store(source, CONTENT)
    wanted = order("n3")
    assert await target.services.copies.give(UUID, wanted, answer_s=0.0) == "running"
    while (said := await give(target, wanted)) == "running":
        pass
    assert said == "here"


async def test_only_bytes_that_are_durable_are_given(nodes: list[Node]) -> None:
    asking, _, source = nodes
    store(source, CONTENT)
    assert await get(asking, "n3", 1000, 2000) == (200, CONTENT[1000:2000])
    assert (await get(asking, "n3", 0, len(CONTENT)))[1] == CONTENT
    assert (await get(asking, "n3", 0, len(CONTENT) + 1))[0] == 404
    assert (await get(asking, "n2", 0, 1))[0] == 404
    for bad in (f"start=2&stop=1&x={UUID}", "start=-1&stop=2", "stop=1"):
        async with asking.services.peers.request("n3", "GET", f"/uploads/{UUID}?{bad}") as answer:
            assert answer.status == 400


async def test_nodes_give_no_orders(nodes: list[Node]) -> None:
    path = f"/custody/uploads/{UUID}"

    async def body() -> Any:
        yield msgspec.json.encode(order())

    async with nodes[0].services.peers.request("n2", "POST", path, body=body()) as answer:
        assert answer.status == 403


async def test_ending_node_ends_its_copies(nodes: list[Node]) -> None:
    target, _, source = nodes
    store(source, CONTENT)
    await target.services.copies.give(UUID, order("n3"), answer_s=0.0)
    await target.services.copies.close()
    assert not target.services.locks.is_locked(UUID)


def test_bytes_beyond_what_the_disk_has_are_not_there(nodes: list[Node]) -> None:
    node = nodes[0]
    store(node, CONTENT)
    uploads = node.services.uploads
    assert not uploads.has_fewer(UUID, len(CONTENT))
    assert uploads.has_fewer(UUID, len(CONTENT) + 1)
    os.truncate(node.directory / "uploads" / UUID / "data", 5)
    assert uploads.has_fewer(UUID, len(CONTENT))
    with pytest.raises(NotFound):
        uploads.prefix_sha256(UUID, 6)


def test_looking_leaves_nothing_open(nodes: list[Node]) -> None:
    node = nodes[0]
    uploads = node.services.uploads
    with uploads.open(UUID, len(CONTENT)) as upload:
        upload.append(CONTENT)
        upload.finish()
    assert not uploads.has_fewer(UUID, len(CONTENT))  # opens what a later look needs
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert not uploads.has_fewer(UUID, len(CONTENT))
        assert uploads.has_fewer(UUID, len(CONTENT) + 1)
        assert uploads.prefix_sha256(UUID, 5) == hashlib.sha256(CONTENT[:5]).hexdigest()
    assert len(os.listdir("/proc/self/fd")) <= before
