"""Blobs between nodes over their peer ports: real TLS between listeners in this process, no coordinators."""

import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from ca.errors import Unauthorized, Unavailable
from ca.identity import Identity, Role
from ca.tls import Peer
from metadata.model.records import ClusterView
from node.peer.client import PeerFailed
from node.peerapi.admission import check_peer
from node.storage.blob_reader import read_blob
from node.storage.segments import BlobDamaged, FinishedBlob
from runtime.clock import now_ms
from tests.unit.peer_nodes import CLUSTER, CONTENT, SHA256, Node, download, get, introduce
from tests.unit.state import cluster_view


async def test_copy_is_identical_and_verified(nodes: list[Node]) -> None:
    nodes[0].store()
    blob = FinishedBlob(SHA256, len(CONTENT))
    assert await nodes[0].services.replication._copy_to(["n2", "n3"], blob) == ["n2", "n3"]
    assert nodes[2].blob_path().read_bytes() == CONTENT
    assert nodes[2].blob_path().stat().st_mode & 0o777 == 0o400


async def test_copy_of_what_is_there_already_sends_nothing(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        node.store()
    inode = nodes[1].blob_path().stat().st_ino
    blob = FinishedBlob(SHA256, len(CONTENT))
    assert await nodes[0].services.replication._copy_to(["n2"], blob) == ["n2"]
    assert nodes[1].blob_path().stat().st_ino == inode


async def test_copy_to_a_stopped_peer_fails_alone(nodes: list[Node]) -> None:
    nodes[0].store()
    await nodes[1].listener.close()
    blob = FinishedBlob(SHA256, len(CONTENT))
    assert await nodes[0].services.replication._copy_to(["n2", "n3"], blob) == ["n3"]


async def test_replica_that_does_not_hash_to_its_name_is_refused_and_not_kept(nodes: list[Node]) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield bytes(1000)

    headers = {"Content-Length": "1000"}
    async with nodes[0].services.peers.request(
        "n2", "PUT", f"/blobs/{SHA256}", headers=headers, body=body()
    ) as answer:
        assert answer.status == 460
    assert not nodes[1].services.blobs.has(SHA256)
    assert list((nodes[1].directory / "uploads").iterdir()) == []


async def test_replica_that_breaks_off_is_not_kept(nodes: list[Node]) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield CONTENT[:100_000]
        raise RuntimeError("the sender died")

    headers = {"Content-Length": str(len(CONTENT))}
    with pytest.raises(PeerFailed):
        async with nodes[0].services.peers.request(
            "n2", "PUT", f"/blobs/{SHA256}", headers=headers, body=body()
        ):
            pass
    await nodes[1].listener.close(5)  # returns when the request has ended over there
    assert list((nodes[1].directory / "uploads").iterdir()) == []
    assert not nodes[1].services.blobs.has(SHA256)


async def test_range_is_served(nodes: list[Node]) -> None:
    nodes[1].store()
    assert await get(nodes[0], "n2", {"Range": "bytes=4194300-4194309"}) == (206, CONTENT[4194300:4194310])


async def test_missing_blob_is_not_found(nodes: list[Node]) -> None:
    status, _ = await get(nodes[0], "n2")
    assert status == 404


async def test_damaged_local_replica_is_replaced_in_the_middle(nodes: list[Node]) -> None:
    nodes[0].store()
    nodes[1].store()
    nodes[0].damage(5_000_000)
    assert await download(nodes[0], ["n1", "n2"]) == CONTENT


async def test_damaged_peer_is_followed_by_the_next_from_where_it_stopped(nodes: list[Node]) -> None:
    for node in nodes[1:]:
        node.store()
    nodes[1].damage(8_500_000)
    nodes[2].damage(8_500_000)
    nodes[2].services.blobs.delete(SHA256)
    nodes[2].store()
    for _ in range(4):  # the order of peers is random
        assert await download(nodes[0], ["n2", "n3"], 100, 9_000_000) == CONTENT[100:9_000_000]


async def test_no_replica_left_is_unavailable(nodes: list[Node]) -> None:
    nodes[1].store()
    nodes[1].damage(0)
    with pytest.raises(Unavailable):
        await download(nodes[0], ["n1", "n2", "n3"])


async def test_damage_is_found_before_a_byte_of_its_segment_leaves(nodes: list[Node]) -> None:
    nodes[0].store()
    nodes[0].damage(4_200_000)
    services, received = nodes[0].services, bytearray()

    async def read() -> None:
        async for piece in read_blob(services.disk, services.blobs, SHA256, 0, len(CONTENT)):
            received.extend(piece)

    with pytest.raises(BlobDamaged):
        await read()
    assert received == CONTENT[: 4 << 20]


async def test_revoked_certificate_is_refused_on_an_open_connection(nodes: list[Node]) -> None:
    nodes[1].store()
    assert (await get(nodes[0], "n2", {"Range": "bytes=0-0"}))[0] == 206
    introduce(nodes, revoked=(nodes[0].serial,))
    assert (await get(nodes[0], "n2", {"Range": "bytes=0-0"}))[0] == 401


async def test_removed_node_is_refused_on_an_open_connection(nodes: list[Node]) -> None:
    """Its own record may be gone before its certificate is seen to be revoked."""
    nodes[1].store()
    assert (await get(nodes[0], "n2", {"Range": "bytes=0-0"}))[0] == 206
    introduce(nodes[1:], known=nodes[1:])
    nodes[1].services.api.metadata.read = gone  # type: ignore[method-assign, assignment]
    assert (await get(nodes[0], "n2", {"Range": "bytes=0-0"}))[0] == 401
    api = nodes[1].services.api
    with pytest.raises(Unauthorized) as refused:
        await check_peer(peer(Identity(CLUSTER, Role.NODE, "n1")), api.metadata, api.view, now_ms())
    assert refused.value.reason == "not a member of the cluster"


async def gone(*_: object) -> ClusterView:
    """The newest view, of which the node is no part."""
    return cluster_view(CLUSTER)


def peer(identity: Identity, *, expired: bool = False) -> Peer:
    end = datetime.now(UTC) + timedelta(days=-1 if expired else 1)
    return Peer(identity, "1", 0, int(end.timestamp() * 1000))


def strangers() -> Iterator[Peer]:
    yield peer(Identity("other", Role.NODE, "n1"))
    yield peer(Identity(CLUSTER, Role.NODE, "n1"), expired=True)
    yield peer(Identity(CLUSTER, Role.COORDINATOR, "n1"))


@pytest.mark.parametrize("stranger", list(strangers()), ids=lambda stranger: str(stranger.identity.uri))
async def test_peer_that_is_no_member_now_is_refused(nodes: list[Node], stranger: Peer) -> None:
    api = nodes[0].services.api
    with pytest.raises(Unauthorized):
        await check_peer(stranger, api.metadata, api.view, now_ms())


async def test_coordinator_is_admitted(nodes: list[Node]) -> None:
    api = nodes[0].services.api
    await check_peer(peer(Identity(CLUSTER, Role.COORDINATOR, "c1")), api.metadata, api.view, now_ms())


async def test_nobody_is_admitted_by_a_view_that_is_too_old(nodes: list[Node]) -> None:
    api = nodes[0].services.api
    api.view._confirmed_at = time.monotonic() - 6
    with pytest.raises(Unavailable, match="too old"):
        await check_peer(peer(Identity(CLUSTER, Role.NODE, "n1")), api.metadata, api.view, now_ms())
