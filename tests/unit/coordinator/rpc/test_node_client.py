"""Orders of a coordinator over the peer ports of nodes: real TLS between listeners in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from ca.certificates import Authority
from coordinator.reconcile.keeper import STOPPED_REST_S, Comparisons
from coordinator.rpc import node_client
from coordinator.rpc.node_client import ANSWER_BYTES_MAX, NodeOrders, OrderFailed, PassState, PullReport
from metadata.model.records import NodeRecord, PlacedUpload
from node.custody.orders import Orders
from node.storage.loss_notes import list_lost
from node.storage.out_of_service import Loss
from tests.unit.node.uploads.test_links import UUID, held, store
from tests.unit.node_records import node_record
from tests.unit.peer_nodes import CLUSTER, CONTENT, SHA256, Node, get, impostor
from tests.unit.peer_ports import contexts_of
from web.app import json_response, new_application, serve

TIMEOUT_S = 20.0


@pytest.fixture
async def orders(tmp_path: Path, peer_authority: Authority) -> AsyncIterator[NodeOrders]:
    """Of c1, which the nodes know."""
    async with NodeOrders(CLUSTER, contexts_of("c1", tmp_path, peer_authority).client) as made:
        yield made


def record(node: Node, *, node_id: str = "") -> NodeRecord:
    return node_record(node_id or node.services.node_id, address="127.0.0.1", peer_port=node.listener.port)


async def test_node_that_is_told_to_pull_has_the_blob_then(nodes: list[Node], orders: NodeOrders) -> None:
    nodes[1].store(CONTENT)
    for _ in range(2):
        state = await orders.pull(record(nodes[0]), SHA256, len(CONTENT), ["n2"], timeout_s=TIMEOUT_S)
        assert (state.is_here, state.failed_sources) == (True, [])
    assert nodes[0].blob_path().read_bytes() == CONTENT


async def test_order_that_cannot_be_obeyed_fails_with_the_answer(
    nodes: list[Node], orders: NodeOrders
) -> None:
    with pytest.raises(OrderFailed, match="answered 503 unavailable") as failure:
        await orders.pull(record(nodes[0]), SHA256, len(CONTENT), ["n2"], timeout_s=TIMEOUT_S)
    assert (failure.value.has_answered, failure.value.failed_sources) == (True, ["n2"])


async def test_node_that_is_not_whom_the_record_names_is_told_nothing(
    nodes: list[Node], orders: NodeOrders
) -> None:
    nodes[1].store(CONTENT)
    with pytest.raises(OrderFailed, match="Certificate"):
        await orders.pull(record(nodes[0], node_id="n3"), SHA256, len(CONTENT), ["n2"], timeout_s=TIMEOUT_S)
    assert not nodes[0].services.blobs.has(SHA256)


async def test_node_that_does_not_listen_fails_the_order(nodes: list[Node], orders: NodeOrders) -> None:
    await nodes[0].listener.close()
    with pytest.raises(OrderFailed):
        await orders.custody(record(nodes[0]), "collect", "o1")


async def test_coordinator_that_is_no_member_gives_no_orders(
    nodes: list[Node], tmp_path: Path, peer_authority: Authority
) -> None:
    nodes[1].store(CONTENT)
    async with NodeOrders(CLUSTER, contexts_of("c9", tmp_path, peer_authority).client) as orders:
        with pytest.raises(OrderFailed, match="answered 401"):
            await orders.pull(record(nodes[0]), SHA256, len(CONTENT), ["n2"], timeout_s=TIMEOUT_S)


async def test_passes_are_ordered_by_coordinators_only(nodes: list[Node]) -> None:
    async with nodes[0].services.peers.request("n2", "POST", "/custody/collect") as answer:
        assert answer.status == 403
    assert (await get(nodes[0], "n2"))[0] == 404


async def test_node_says_whether_it_holds_a_blob_and_notes_one_that_it_misses(
    nodes: list[Node], orders: NodeOrders
) -> None:
    nodes[1].store(CONTENT)
    assert await orders.holds(record(nodes[1]), SHA256, len(CONTENT))
    assert not await orders.holds(record(nodes[1]), SHA256, len(CONTENT) + 1)
    assert not await orders.holds(record(nodes[0]), SHA256, len(CONTENT))
    noted = [list_lost(node.services.blobs, 10) for node in nodes[:2]]
    assert noted == [[Loss(SHA256, "missing")], []]
    await nodes[1].listener.close()
    with pytest.raises(OrderFailed) as failure:
        await orders.holds(record(nodes[1]), SHA256, len(CONTENT))
    assert not failure.value.has_answered


async def test_node_that_hangs_takes_no_connection_from_another(
    nodes: list[Node], orders: NodeOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "ANSWER_TIMEOUT_S", 3600.0)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        del reader, writer
        await over.wait()

    nodes[0].store(CONTENT)
    async with impostor(nodes[1], hang) as port:
        hung = msgspec.structs.replace(record(nodes[1]), peer_port=port)
        asking = [asyncio.create_task(orders.holds(hung, SHA256, len(CONTENT))) for _ in range(100)]
        await asyncio.sleep(0)  # they are ahead
        async with asyncio.timeout(TIMEOUT_S):
            assert await orders.holds(record(nodes[0]), SHA256, len(CONTENT))
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)


@asynccontextmanager
async def answering(node: Node, body: bytes | Orders) -> AsyncIterator[NodeRecord]:
    """A listener with the node's certificate that answers every order so, or as these orders stand."""

    async def answer(request: web.Request) -> web.Response:
        told = await request.read()
        if isinstance(body, bytes):
            return web.Response(body=body, content_type="application/json")
        return json_response(body.give(msgspec.json.decode(told)["order_id"], yes_really=False))

    app = new_application([web.post("/custody/{kind}", answer)], component="node")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=node.contexts.peer.listening, peer=True)
    try:
        yield msgspec.structs.replace(record(node), peer_port=listener.port)
    finally:
        await listener.close()


@pytest.mark.parametrize(
    ("status", "body", "state"),
    [
        (200, b"", PullReport(is_here=True)),  # of an older version
        (202, b"", PullReport()),
        (
            202,
            b'{"is_here":false,"moved":7,"failed_sources":[],"later":1}',
            PullReport(moved=7, failed_sources=[]),
        ),
        (202, b'{"moved":-1}', None),
        (200, b"[]", None),
    ],
)
async def test_state_of_a_pull_is_read(
    nodes: list[Node], orders: NodeOrders, status: int, body: bytes, state: PullReport | None
) -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=status, body=body)

    app = new_application([web.post("/blobs/{sha256}/pull", answer)], component="node")
    context = nodes[0].contexts.peer.listening
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=context, peer=True)
    node = msgspec.structs.replace(record(nodes[0]), peer_port=listener.port)
    try:
        if state is None:
            with pytest.raises(OrderFailed, match="no state of a pull"):
                await orders.pull(node, SHA256, 5, ["n2"], timeout_s=TIMEOUT_S)
        else:
            assert await orders.pull(node, SHA256, 5, ["n2"], timeout_s=TIMEOUT_S) == state
    finally:
        await listener.close()


async def test_state_of_a_pass_is_read(nodes: list[Node], orders: NodeOrders) -> None:
    body = b'{"order_id":"o1","state":"stopped","reason":"too many","counts":{"left":7},"later":1}'
    async with answering(nodes[0], body) as node:
        state = await orders.custody(node, "collect", "o1")
    assert state == PassState(order_id="o1", state="stopped", reason="too many", counts={"left": 7})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"order_id":"o1","state":"done"}',
        b'{"order_id":"o1","state":"running","counts":{"left":-1}}',
        b" " * (ANSWER_BYTES_MAX + 1),
    ],
)
async def test_answer_that_is_no_state_fails_the_order(
    nodes: list[Node], orders: NodeOrders, body: bytes
) -> None:
    async with answering(nodes[0], body) as node:
        with pytest.raises(OrderFailed, match="answered"):
            await orders.custody(node, "scrub", "o1")


async def test_returning_node_whose_comparison_stopped_compares_again_later(
    nodes: list[Node], orders: NodeOrders
) -> None:
    now_s = 100.0
    given, comparisons = Orders(lambda: None), Comparisons(orders, clock_s=lambda: now_s)
    async with answering(nodes[0], given) as node:
        assert not await comparisons.is_made(node)
        first = given.next()
        assert first is not None
        first.end("too many are missing")
        assert not await comparisons.is_made(node)
        now_s += STOPPED_REST_S - 1
        assert not await comparisons.is_made(node)
        assert given.next() is None  # a comparison looks at everything: not at once again
        now_s += 1
        assert not await comparisons.is_made(node)
        second = given.next()
        assert second is not None
        second.end()
        assert await comparisons.is_made(node)


async def test_returning_node_counts_while_it_still_reads_what_it_has_brought_along(
    nodes: list[Node], orders: NodeOrders
) -> None:
    given, comparisons = Orders(lambda: None), Comparisons(orders)
    async with answering(nodes[0], given) as node:
        assert not await comparisons.is_made(node)
        order = given.next()
        assert order is not None
        order.run.add(looked=7)
        assert not await comparisons.is_made(node)
        order.run.add(compared=1)
        assert await comparisons.is_made(node)


async def test_node_that_is_told_to_has_what_is_acknowledged_of_an_upload(
    nodes: list[Node], orders: NodeOrders
) -> None:
    store(nodes[1], CONTENT)
    upload = PlacedUpload(
        file_uuid=UUID,
        kind="backup",
        placement=["n2"],
        offset_bytes=len(CONTENT),
        epoch=3,
        prefix_sha256=SHA256,
    )
    said = [
        await orders.copy_upload(record(nodes[0]), upload, sources, timeout_s=TIMEOUT_S)
        for sources in ([], ["n2"], [])
    ]
    assert [each.state for each in said] == ["absent", "here", "here"]
    assert said[0].moved < said[1].moved  # whoever waits sees that something comes
    assert held(nodes[0])[: len(CONTENT)] == CONTENT


async def test_node_of_an_older_version_says_nothing_of_uploads(
    nodes: list[Node], orders: NodeOrders
) -> None:
    upload = PlacedUpload(
        file_uuid=UUID, kind="vm", placement=["n1"], offset_bytes=0, epoch=0, prefix_sha256=""
    )
    async with answering(nodes[0], b"{}") as older:
        with pytest.raises(OrderFailed, match="answered 404"):
            await orders.copy_upload(older, upload, [], timeout_s=TIMEOUT_S)
