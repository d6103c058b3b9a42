"""Calls to peers that go wrong: hanging ones, nonsense, and paths that are none."""

import asyncio
import socket
import time

import pytest

from node.peer.client import PeerFailed, pieces
from node.storage.segments import FinishedBlob
from node.uploads import replicate
from tests.unit.peer_nodes import CONTENT, SHA256, Answering, Node, get, impostor, introduce
from tests.unit.standstill import again_after_standstill

BLOB = FinishedBlob(SHA256, len(CONTENT))
SECRET = b"Bearer-abc"


def answering(answer: bytes) -> Answering:
    """Everything with these bytes, or with nothing at all."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if not answer:
            await over.wait()

    return serve


async def test_copies_that_hang_are_given_up_once_enough_were_taken(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicate, "GRACE_S", 0.2)
    monkeypatch.setattr(replicate, "ASK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(replicate, "SYNC_S", 0.2)  # the kernel may have room for all that is sent
    nodes[0].store()
    async with impostor(nodes[2], answering(b"")) as port:
        introduce(nodes, ports={"n3": port})
        started_s = time.monotonic()
        assert await nodes[0].services.replication._copy_to(["n2", "n3"], BLOB, needed=1) == ["n2"]
        assert time.monotonic() - started_s < 5


async def take_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A peer that has no copy, and takes one at 9 MB/s."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        if head.startswith(b"HEAD "):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            continue
        for _ in range(20):
            await reader.readexactly(len(CONTENT) // 20)
            await asyncio.sleep(0.05)  # the slowness under test
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()
        return


@again_after_standstill(0.1)
async def test_slow_copy_that_makes_progress_is_waited_for(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicate, "GRACE_S", 0.3)
    nodes[0].store()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # or the kernel takes it all
    async with await asyncio.start_server(take_slowly, sock=listening, ssl=nodes[2].contexts.peer.listening):
        introduce(nodes, ports={"n3": listening.getsockname()[1]})
        started_s = time.monotonic()
        copies = await nodes[0].services.replication._copy_to(["n2", "n3"], BLOB, needed=1)
        assert copies == ["n2", "n3"]
        assert time.monotonic() - started_s > 3 * replicate.GRACE_S


@pytest.mark.parametrize("size_bytes", [140_000, 200_000, 250_000])
@again_after_standstill(0.2)
async def test_connection_whose_time_ran_out_while_it_was_idle_fails_nobody(
    nodes: list[Node], size_bytes: int
) -> None:
    nodes[1].store()

    async def read() -> int:
        asked = nodes[0].services.peers.request(
            "n2",
            "GET",
            f"/blobs/{SHA256}",
            headers={"Range": f"bytes=0-{size_bytes - 1}"},
            answer_timeout_s=0.5,
            read_buffer_bytes=1 << 16,  # reading is paused at twice this
        )
        async with asked as answer:
            await asyncio.sleep(0.2)  # all that fits is there, and the rest has to wait
            return sum([len(piece) async for piece in pieces("n2", answer)])

    for _ in range(3):
        assert await read() == size_bytes
        await asyncio.sleep(0.7)  # longer than a peer may take to answer


@pytest.mark.parametrize("path", ["", "x", "@evil/", "https://evil/", ":1/"])
async def test_path_that_is_none_is_a_failed_peer(nodes: list[Node], path: str) -> None:
    with pytest.raises(PeerFailed):
        async with nodes[0].services.peers.request("n2", "GET", path):
            pass


async def test_header_that_cannot_be_sent_is_a_failed_peer(nodes: list[Node]) -> None:
    with pytest.raises(PeerFailed):
        async with nodes[0].services.peers.request("n2", "GET", "/", headers={"X": "a\r\nb: c"}):
            pass


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n" + SECRET + b"\0\r\n\r\n",
        SECRET + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\n",
    ],
)
async def test_reason_of_a_failed_peer_holds_nothing_of_its_answer(nodes: list[Node], answer: bytes) -> None:
    async with impostor(nodes[1], answering(answer)) as port:
        introduce(nodes, ports={"n2": port})
        with pytest.raises(PeerFailed) as caught:
            await get(nodes[0], "n2")
    assert SECRET.decode() not in str(caught.value)
