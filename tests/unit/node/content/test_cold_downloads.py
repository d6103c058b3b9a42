"""Downloads of a cold replica: byte for byte those of a file, and nothing unverified."""

import asyncio
import random
import ssl
from pathlib import Path

import pytest

from ca.certificates import Authority
from ca.tls import client_context
from node.custody import freezing
from node.storage.damage import affirm_sound
from node.storage.segments import FinishedBlob
from tests.unit.cold_store import is_cold, no_pace
from tests.unit.node.content.test_local_downloads import asking, plain_listener, read_answer
from tests.unit.peer_nodes import CONTENT, SHA256, Node, download, get, introduce, running_node

SPANS = [
    (0, 1),
    (0, len(CONTENT)),
    (5, 70_000),
    (4_194_303, 4_194_305),
    (1, 5_000_001),
    (8_999_999, 9_000_000),
]


async def freeze(node: Node) -> None:
    node.store()
    await freezing.freeze(node.services.disk, node.services.blobs, SHA256, pace=no_pace)
    assert is_cold(node.services.blobs, SHA256)


def damage(node: Node, *, every: int = 300_000, start: int = 100_000) -> None:
    """Change one byte in this many of each pack of chunks, from `start` on."""
    for pack in (node.directory / "chunks").glob("*.pack"):
        with pack.open("r+b") as file:
            for at in range(start, pack.stat().st_size, every):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("is_secret", [False, True], ids=["plain", "TLS"])
async def test_whole_content_and_ranges_come_unchanged(
    tmp_path: Path, peer_authority: Authority, is_secret: bool
) -> None:
    async with running_node("n1", tmp_path / "n1", peer_authority) as node:
        introduce([node])
        await freeze(node)
        context = node.contexts.peer.listening if is_secret else None
        async with plain_listener(node, ["n1"], context) as listener:
            secret: ssl.SSLContext | None = None
            if is_secret:
                secret = client_context(peer_authority.root_pem)
                secret.check_hostname = False
                secret.load_cert_chain(node.directory / "credential.pem")
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=secret)
            for start, stop in SPANS:
                writer.write(asking(f"Range: bytes={start}-{stop - 1}"))
                head, body = await read_answer(reader)
                assert b" 206 " in head
                assert body == CONTENT[start:stop]
            writer.write(asking())
            head, body = await read_answer(reader)
            assert f'ETag: "{SHA256}"'.encode() in head
            assert body == CONTENT
            writer.close()


async def test_other_nodes_read_a_cold_replica(tmp_path: Path, peer_authority: Authority) -> None:
    async with (
        running_node("n1", tmp_path / "n1", peer_authority) as one,
        running_node("n2", tmp_path / "n2", peer_authority) as two,
    ):
        introduce([one, two])
        await freeze(two)
        assert await get(one, "n2") == (200, CONTENT)
        assert await get(one, "n2", {"Range": "bytes=4194300-4194310"}) == (206, CONTENT[4194300:4194311])
        state = await one.services.pulls.pull(FinishedBlob(SHA256, len(CONTENT)), ["n2"])
        assert state.is_here
        assert one.services.blobs.cold.has_name(SHA256)
        assert await download(one, ["n2"]) == CONTENT


@pytest.mark.parametrize("start", [100, 5_000_000], ids=["at once", "in the middle"])
async def test_damaged_chunk_is_never_sent_and_another_replica_continues(
    tmp_path: Path, peer_authority: Authority, start: int
) -> None:
    async with (
        running_node("n1", tmp_path / "n1", peer_authority) as one,
        running_node("n2", tmp_path / "n2", peer_authority) as two,
    ):
        introduce([one, two])
        await freeze(one)
        two.store()
        damage(one, start=start)
        async with plain_listener(one, ["n1", "n2"]) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(asking())
            _, body = await read_answer(reader)
            assert body == CONTENT
            writer.close()
        assert one.services.blobs.cold.damaged_chunks(10)
        assert one.services.blobs.cold.has_name(SHA256)
        services = one.services
        assert await affirm_sound(services.disk, services.blobs, services.metrics, SHA256) is None


async def test_download_continues_when_the_replica_becomes_hot(
    tmp_path: Path, peer_authority: Authority
) -> None:
    async with running_node("n1", tmp_path / "n1", peer_authority) as node:
        introduce([node])
        await freeze(node)
        services = node.services
        async with plain_listener(node, ["n1"]) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 16)
            writer.write(asking())
            await reader.readuntil(b"\r\n\r\n")
            found = await reader.readexactly(100_000)
            await freezing.thaw(services.disk, services.blobs, SHA256, pace=no_pace)
            while len(found) < len(CONTENT):
                found += await reader.read(1 << 20)
            assert found == CONTENT
            writer.close()


async def test_readers_beside_each_other_and_changes_of_form(
    tmp_path: Path, peer_authority: Authority
) -> None:
    rand = random.Random(3)
    async with running_node("n1", tmp_path / "n1", peer_authority) as node:
        introduce([node])
        await freeze(node)
        services = node.services
        async with plain_listener(node, ["n1"]) as listener:

            async def read_some() -> int:
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                for _ in range(20):
                    start = rand.randrange(len(CONTENT))
                    stop = min(len(CONTENT), start + rand.choice((1, 70_000, 3_000_000)))
                    writer.write(asking(f"Range: bytes={start}-{stop - 1}"))
                    _, body = await read_answer(reader)
                    assert body == CONTENT[start:stop]
                writer.close()
                return 20

            async def change() -> int:
                for _ in range(6):
                    await freezing.thaw(services.disk, services.blobs, SHA256, pace=no_pace)
                    await freezing.freeze(services.disk, services.blobs, SHA256, pace=no_pace)
                return 0

            assert sum(await asyncio.gather(*(read_some() for _ in range(4)), change())) == 80
