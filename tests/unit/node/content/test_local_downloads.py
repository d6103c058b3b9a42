"""Downloads of a replica of this node: unchanged, in order, never unverified, not beyond the client."""

import asyncio
import itertools
import os
import random
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from aiohttp import web

from ca.certificates import Authority
from ca.tls import client_context
from metadata.model.records import ContentRecord
from node.content.download import serve_content
from node.diskio import pagecache
from node.sending import body_writer
from node.storage import segments
from node.storage.segments import SEGMENT_BYTES
from tests.unit.file_records import available_file
from tests.unit.peer_nodes import CLUSTER, CONTENT, SHA256, Node, introduce, running_node
from web.app import Listener, new_application, serve
from web.headers.ranges import ByteRange, multipart_parts

Runner = Callable[[Coroutine[None, None, None]], None]
RECORD = available_file(
    filename="lab.gns3p", content_type="application/zip", size_bytes=len(CONTENT), blob_sha256=SHA256
)


@asynccontextmanager
async def plain_listener(
    node: Node, replicas: list[str], context: ssl.SSLContext | None = None
) -> AsyncIterator[Listener]:
    """GET of anything answers with the content, without TLS if no context is given."""

    async def handler(request: web.Request) -> web.StreamResponse:
        content = ContentRecord(file=RECORD, replicas=replicas)
        return await serve_content(request, node.services, content, policy={})

    app = new_application([web.get("/", handler)], component="test")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=context)
    try:
        yield listener
    finally:
        await listener.close()


def asking(*headers: str) -> bytes:
    return "\r\n".join(["GET / HTTP/1.1", "Host: x", *headers, "", ""]).encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return head, await reader.readexactly(int(length.split(b":")[1]))


def run_on_uvloop(main: Coroutine[None, None, None]) -> None:
    uvloop.run(main)


@pytest.mark.parametrize("run", [asyncio.run, run_on_uvloop], ids=["asyncio", "uvloop"])
def test_ranges_of_every_size_come_unchanged_over_one_connection(
    tmp_path: Path, peer_authority: Authority, run: Runner
) -> None:
    small = body_writer.SMALL_BYTES
    spans = [
        (0, len(CONTENT)),
        (0, 1),
        (len(CONTENT) - 1, len(CONTENT)),
        (5, 5 + small),
        (5, 6 + small),
        (SEGMENT_BYTES - 1, SEGMENT_BYTES + 1),
        (1, SEGMENT_BYTES + 1 + small),
        (100, len(CONTENT) - 100),
    ]

    async def main() -> None:
        async with running_node("n1", tmp_path / "n1", peer_authority) as node:
            introduce([node])
            node.store()
            async with plain_listener(node, ["n1"]) as listener:
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                for _ in range(2):  # the second time everything is trusted and kept open
                    for start, stop in spans:
                        writer.write(asking(f"Range: bytes={start}-{stop - 1}"))
                        head, body = await read_answer(reader)
                        assert head.startswith(b"HTTP/1.1 206 ")
                        assert body == CONTENT[start:stop], (start, stop)
                writer.close()

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, run_on_uvloop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("damaged_at", [None, 5_000_000], ids=["sound", "damaged"])
def test_parts_of_every_size_come_unchanged_and_in_order(
    tmp_path: Path, peer_authority: Authority, run: Runner, tls: bool, damaged_at: int | None
) -> None:
    """Some go past the transport, some through it, and one from another node if that has to be."""
    small, size_bytes = body_writer.SMALL_BYTES, len(CONTENT)
    sizes = {100: 3_000_000, 7: 1, SEGMENT_BYTES - 1: 3_000_000, 8_000_000: small + 1, 8_500_000: small}
    spans = [(start, start + length) for start, length in sizes.items()]
    asked = "bytes=" + ",".join(f"{start}-{stop - 1}" for start, stop in spans)

    async def main() -> None:
        async with (
            running_node("n1", tmp_path / "n1", peer_authority) as node,
            running_node("n2", tmp_path / "n2", peer_authority) as other,
        ):
            introduce([node, other])
            node.store()
            other.store()
            if damaged_at is not None:
                node.damage(damaged_at)
            context = node.contexts.api.listening if tls else None
            async with plain_listener(node, ["n1", "n2"], context) as listener:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1",
                    listener.port,
                    ssl=client_context(peer_authority.root_pem) if tls else None,
                    server_hostname=f"n1.node.{CLUSTER}.internal" if tls else None,
                )
                for _ in range(2):  # the second time everything is trusted and kept open
                    writer.write(asking(f"Range: {asked}"))
                    head, body = await read_answer(reader)
                    (boundary,) = re.findall(rb"boundary=([0-9a-f]+)", head)
                    ranges = [ByteRange(start, stop) for start, stop in spans]
                    whole = multipart_parts(ranges, size_bytes, RECORD.content_type, boundary.decode())
                    parts = b"".join(p.header + CONTENT[p.span.start : p.span.stop] for p in whole.parts)
                    assert body == parts + whole.closing
                writer.close()

    run(main())


async def test_requests_sent_at_once_are_answered_in_order(nodes: list[Node]) -> None:
    nodes[0].store()
    spans = [(0, 3_000_000), (10, 20), (4_000_000, 9_000_000), (7, 70_000)]
    async with plain_listener(nodes[0], ["n1"]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"".join(asking(f"Range: bytes={start}-{stop - 1}") for start, stop in spans))
        for start, stop in spans:
            assert (await read_answer(reader))[1] == CONTENT[start:stop]
        writer.close()


async def test_bytes_that_went_past_the_transport_are_counted(nodes: list[Node]) -> None:
    nodes[0].store()
    async with plain_listener(nodes[0], ["n1"]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(asking("Connection: close"))
        assert (await read_answer(reader))[1] == CONTENT
        assert await reader.read() == b""
        writer.close()
    labels = {"source": "local"}
    assert nodes[0].registry.get_sample_value("filestore_download_bytes_total", labels) == len(CONTENT)


@pytest.mark.parametrize("damaged_at", [0, 5_000_000, 8_999_990])
async def test_damage_is_followed_by_another_replica_on_the_same_connection(
    nodes: list[Node], damaged_at: int
) -> None:
    for node in nodes[:2]:
        node.store()
    nodes[0].damage(damaged_at)
    async with plain_listener(nodes[0], ["n1", "n2"]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for _ in range(2):
            writer.write(asking())
            assert (await read_answer(reader))[1] == CONTENT
        writer.close()
    assert not nodes[0].blob_path().exists()


@pytest.mark.parametrize("asked", ["Range: bytes=0-9", "Range: bytes=0-9,20-29"], ids=["one", "parts"])
async def test_damage_after_the_blob_was_kept_open_is_found_before_it_is_sent(
    nodes: list[Node], asked: str
) -> None:
    nodes[0].store()
    async with plain_listener(nodes[0], ["n1"]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for request_bytes in (asking(), asking(asked)):
            writer.write(request_bytes)
            await read_answer(reader)
        nodes[0].damage(0)
        writer.write(asking(asked))
        head, _ = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 503 ")
        writer.close()


async def test_file_that_is_unlinked_while_it_is_kept_open_is_not_served(nodes: list[Node]) -> None:
    nodes[0].store()
    async with plain_listener(nodes[0], ["n1"]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(asking())
        await read_answer(reader)
        nodes[0].blob_path().unlink()
        writer.write(asking())
        head, _ = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 503 ")
        writer.close()


@pytest.mark.parametrize("run", [asyncio.run, run_on_uvloop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("every", [0, 3], ids=["warm", "partly cold"])
def test_over_tls_everybody_gets_the_right_bytes_at_any_pace(
    tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch, run: Runner, every: int
) -> None:
    """What is sent is read into memory that all of them share."""
    real, calls = pagecache.read_now, itertools.count(1)
    monkeypatch.setattr(
        segments, "read_now", lambda *asked: 0 if every and next(calls) % every == 0 else real(*asked)
    )

    async def read(port: int, context: ssl.SSLContext, number: int) -> None:
        dice, plain = random.Random(number), socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if number % 2 else 1 << 20)
        plain.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(
            sock=plain, ssl=context, server_hostname=f"n1.node.{CLUSTER}.internal", limit=1 << 14
        )
        start = number * 100_001
        writer.write(asking(f"Range: bytes={start}-"))
        try:
            await reader.readuntil(b"\r\n\r\n")
            while start < len(CONTENT):
                piece = await reader.read(dice.randrange(1, 200_000))
                assert piece == CONTENT[start : start + len(piece)] != b""
                start += len(piece)
                await asyncio.sleep(0.001 if number % 2 else 0)
        finally:
            writer.transport.abort()

    async def main() -> None:
        async with running_node("n1", tmp_path / "n1", peer_authority) as node:
            introduce([node])
            node.store()
            context = client_context(peer_authority.root_pem)
            async with (
                plain_listener(node, ["n1"], node.contexts.api.listening) as listener,
                asyncio.timeout(20),
                asyncio.TaskGroup() as group,
            ):
                for number in range(8):
                    group.create_task(read(listener.port, context, number))

    run(main())


async def test_cold_pages_come_from_a_thread(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "is_cached", lambda *_: False)
    nodes[0].store()
    async with plain_listener(nodes[0], ["n1"]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 16)
        writer.write(asking())
        assert (await read_answer(reader))[1] == CONTENT
        writer.close()


async def test_kernel_that_refuses_sendfile_gets_copies(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.sendfile, []

    def refusing(out: int, file: int, offset: int, count: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(22, "Invalid argument")
        return real(out, file, offset, count)

    monkeypatch.setattr(os, "sendfile", refusing)
    nodes[0].store()
    async with plain_listener(nodes[0], ["n1"]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(asking())
        assert (await read_answer(reader))[1] == CONTENT
        assert len(calls) == 2
        writer.close()


def narrow_socket(port: int) -> socket.socket:
    """A connected client whose own buffer takes little."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(asking())
    return client


def sockets_to(port: int) -> int:
    """Descriptors of this process that are the server's ends of connections to this port."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not str(Path(f"/proc/self/fd/{name}").readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as held:
                found += held.family == socket.AF_INET and held.getsockname()[1] == port
        except OSError:
            continue
    return found


@pytest.mark.parametrize("run", [asyncio.run, run_on_uvloop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("ending", ["takes nothing", "resets"])
def test_client_that_stops_costs_no_descriptor(
    tmp_path: Path,
    peer_authority: Authority,
    run: Runner,
    ending: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(body_writer, "STALL_TIMEOUT_S", 0.1 if ending == "takes nothing" else 60.0)

    async def main() -> None:
        async with running_node("n1", tmp_path / "n1", peer_authority) as node:
            introduce([node])
            node.store()
            async with plain_listener(node, ["n1"]) as listener:
                client = narrow_socket(listener.port)
                while sockets_to(listener.port) < 3:  # the listener, the transport's and the duplicate
                    await asyncio.sleep(0)
                if ending == "resets":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
                while sockets_to(listener.port) > 1:  # bounded by the test's own deadline
                    await asyncio.sleep(0.01)
                client.close()

    run(main())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
