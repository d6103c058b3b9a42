"""Certificates that the log does not know, and those that end while something is said to them."""

import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import Unauthorized
from ca.identity import Identity, Role
from ca.tls import Peer
from metadata.model.records import ClusterView
from metadata.protocol.calls import AnyCall, ReadCall
from node.peer.client import STALL_TIMEOUT_S, PeerFailed, pieces
from node.peerapi.admission import check_peer
from runtime.clock import now_ms
from tests.unit.node_records import node_record
from tests.unit.peer_nodes import CLUSTER, Node, introduce, running_node
from tests.unit.peer_ports import connected, serving
from tests.unit.state import cluster_view

LARGE_BYTES = 64 << 20  # more than the buffers between two ends hold


class Log:
    """A coordinator that answers every read with the view as it is now."""

    def __init__(self) -> None:
        self.view = self.issuing()
        self.asked = 0

    def issuing(self, **serials: list[str]) -> ClusterView:
        view = cluster_view(CLUSTER, nodes=[node_record("n1"), node_record("n2")])
        return msgspec.structs.replace(view, node_serials=serials)

    async def handle(self, peer: Peer, call: AnyCall) -> bytes:
        assert isinstance(call, ReadCall)
        self.asked += 1
        return msgspec.msgpack.encode(self.view)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def nodes(tmp_path: Path, peer_authority: Authority, log: Log) -> AsyncIterator[list[Node]]:
    """Two that have joined; the log knows the certificates of both."""
    async with AsyncExitStack() as running:
        record = await running.enter_async_context(serving("c1", log.handle, tmp_path, peer_authority))
        client = await running.enter_async_context(
            connected("n1", [record], tmp_path, peer_authority, role=Role.NODE)
        )
        found = [
            await running.enter_async_context(
                running_node(node_id, tmp_path / node_id, peer_authority, log=client)
            )
            for node_id in ("n1", "n2")
        ]
        know(found)
        yield found


def know(nodes: list[Node], *, revoked: tuple[str, ...] = (), **issued: list[str]) -> None:
    """Let every node know all certificates, or those of `issued`."""
    serials = {node.services.node_id: [node.serial] for node in nodes} | issued
    introduce(nodes, revoked=revoked, issued=serials)


async def get(node: Node, source: str, path: str) -> tuple[int, bytes]:
    async with node.services.peers.request(source, "GET", path) as answer:
        return answer.status, b"".join([piece async for piece in pieces(source, answer)])


def stored(node: Node, size_bytes: int) -> str:
    content = os.urandom(size_bytes)
    node.store(content)
    return f"/blobs/{hashlib.sha256(content).hexdigest()}"


async def test_rightly_signed_certificate_that_was_never_issued_is_refused(
    nodes: list[Node], log: Log
) -> None:
    path = stored(nodes[1], 1000)
    assert (await get(nodes[0], "n2", path))[0] == 200
    know(nodes, n1=["another"])
    log.view = log.issuing(n1=["another"], n2=[nodes[0].serial])  # one of another node does not count
    assert (await get(nodes[0], "n2", path))[0] == 401


async def test_certificate_that_is_newer_than_the_view_is_asked_for(nodes: list[Node], log: Log) -> None:
    path = stored(nodes[1], 1000)
    know(nodes, n1=["the one before"])
    log.view = log.issuing(n1=["the one before", nodes[0].serial])
    before = log.asked
    assert (await get(nodes[0], "n2", path))[0] == 200
    assert log.asked == before + 1


async def test_forged_certificate_is_refused_wherever_it_is_looked_at(nodes: list[Node], log: Log) -> None:
    log.view = log.issuing(n1=[nodes[0].serial])
    api = nodes[1].services.api
    ends_at_ms = int(datetime.now(UTC).timestamp() * 1000) + 60_000
    forged = Peer(Identity(CLUSTER, Role.NODE, "n1"), "f" * 40, 0, ends_at_ms)
    with pytest.raises(Unauthorized):
        await check_peer(forged, api.metadata, api.view, now_ms())


async def test_what_is_being_sent_is_broken_off_when_the_certificate_is_revoked(nodes: list[Node]) -> None:
    path, received = stored(nodes[1], LARGE_BYTES), bytearray()

    async def receive() -> None:
        async with nodes[0].services.peers.request("n2", "GET", path) as answer:
            assert answer.status == 200
            async for piece in pieces("n2", answer):
                if not received:
                    know(nodes, revoked=(nodes[0].serial,))
                received.extend(piece)

    started_s = time.monotonic()
    with pytest.raises(PeerFailed):
        await receive()
    assert 0 < len(received) < LARGE_BYTES
    assert time.monotonic() - started_s < STALL_TIMEOUT_S
