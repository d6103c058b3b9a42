"""Hot downloads: the same answers as ever, in order, and nothing that another path would have refused."""

import asyncio
import hashlib
import os
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from node.sending import body_writer
from tests.unit.hot_node import FILE, UUID, HotNode, asking, exchange, hot_node, record, steady, token
from tests.unit.peer_nodes import CONTENT, Node
from web.rate_limits import RequestTimeouts

HOT = [
    asking("Range: bytes=0-0"),
    asking("Range: bytes=4194303-4194304"),
    asking("Range: bytes=8999999-99999999"),
    asking(f"Range: bytes=1-{body_writer.SMALL_BYTES}"),
    asking(f"Range: bytes=1-{body_writer.SMALL_BYTES + 1}"),
    asking("Range: bytes=100-3000000"),
    asking("X-Request-Id: mine", "Accept: */*", "Range: bytes=7-9"),
]
COLD = [
    asking(),  # all of it is more than is sent this way
    asking("Range: bytes=9000000-9000001"),
    asking("Range: bytes=5-4"),
    asking("Range: bytes=0-1,5-6"),
    asking("Range: bytes=-5"),
    asking("If-None-Match: *"),
    asking("Range: bytes=0-9", credential="a.b.c"),
    asking("Range: bytes=0-9", credential=token("mallory")),
    asking("Range: bytes=0-9", path=FILE + "?redirect=1"),
    asking("Range: bytes=0-9", path=FILE.replace("a", "b")),
    asking("Range: bytes=0-9", "Content-Length: 0"),
]
END = asking("Connection: close", "Range: bytes=0-4")


@pytest.fixture
async def running(nodes: list[Node]) -> AsyncIterator[HotNode]:
    for node in nodes[:2]:
        node.store()
    async with hot_node(nodes[0], record(["n1", "n2"])) as started:
        await started.warm()
        yield started


@pytest.mark.parametrize("request_bytes", HOT)
async def test_hot_answer_is_the_ordinary_one(running: HotNode, request_bytes: bytes) -> None:
    sent = [request_bytes, request_bytes, END]
    assert steady(await exchange(running.hot, sent)) == steady(await exchange(running.ordinary, sent))
    assert running.taken == [request_bytes, request_bytes]


@pytest.mark.parametrize("request_bytes", COLD)
async def test_what_is_not_hot_is_answered_the_ordinary_way(running: HotNode, request_bytes: bytes) -> None:
    sent = [request_bytes, HOT[0], END]
    assert steady(await exchange(running.hot, sent)) == steady(await exchange(running.ordinary, sent))
    assert running.taken == [HOT[0]]


@pytest.mark.parametrize("destination", ["script", "style", "worker", "sharedworker", "SERVICEWORKER"])
async def test_content_is_not_served_to_be_run_by_a_page(running: HotNode, destination: str) -> None:
    """A page of this origin may hold a token. The way past the parser leads around nothing."""
    asked = asking("Range: bytes=0-9", f"Sec-Fetch-Dest: {destination}")
    kept = asking("Connection: close", "Range: bytes=0-9", "Sec-Fetch-Dest: image")
    answers = await exchange(running.hot, [asked, kept])
    assert answers.startswith(b"HTTP/1.1 403 ")
    assert b"HTTP/1.1 206 " in answers
    assert running.taken == []


async def test_small_whole_file_is_hot(nodes: list[Node]) -> None:
    content = os.urandom(4096)
    sha256 = hashlib.sha256(content).hexdigest()
    nodes[0].store(content)
    async with hot_node(nodes[0], record(["n1"], size_bytes=4096, sha256=sha256)) as running:
        await running.warm()
        sent = [asking(), END]
        answer = await exchange(running.hot, sent)
        assert steady(answer) == steady(await exchange(running.ordinary, sent))
        assert content in answer
        assert running.taken == [asking()]


async def test_over_tls_small_answers_are_hot_and_the_same(nodes: list[Node]) -> None:
    nodes[0].store()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with hot_node(nodes[0], record(["n1"]), tls=True) as running:
        await running.warm()
        small, large = asking("Range: bytes=3-200000"), asking("Range: bytes=3-300000")
        sent = [small, small, large, END]
        answer = await exchange(running.hot, sent, context=context)
        assert steady(answer) == steady(await exchange(running.ordinary, sent))
        assert set(running.taken) == {small}  # the first may come before aiohttp's loop has begun


async def test_range_that_the_socket_takes_at_once_needs_no_task(
    running: HotNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.content.fastpath.BodyWriter", None)
    request_bytes = asking(f"Range: bytes=5-{body_writer.SMALL_BYTES + 5}")
    sent = [request_bytes, END]
    answer = await exchange(running.hot, sent)
    assert steady(answer) == steady(await exchange(running.ordinary, sent))
    assert running.taken == [request_bytes]


@pytest.mark.parametrize("sent_bytes", [0, 1, 40])
async def test_range_of_which_nothing_or_half_a_head_went_is_sent_by_a_task(
    running: HotNode, monkeypatch: pytest.MonkeyPatch, sent_bytes: int
) -> None:
    def send_little(transport: asyncio.Transport, head: bytes, *_: object) -> int:
        return os.write(transport.get_extra_info("socket").fileno(), head[:sent_bytes]) if sent_bytes else 0

    monkeypatch.setattr("node.content.fastpath.send_now", send_little)
    sent = [HOT[5], HOT[5], END]
    assert steady(await exchange(running.hot, sent)) == steady(await exchange(running.ordinary, sent))
    assert running.taken == [HOT[5], HOT[5]]


SMUGGLED = [
    [HOT[0] + HOT[1], END],
    [HOT[0][:40], HOT[0][40:], HOT[1], END],
    [HOT[0] + HOT[1][:60], HOT[1][60:], END],
    # What looks like a request is the value of a field of another.
    [COLD[0] + f"GET {FILE} HTTP/1.1\r\nHost: x\r\nX: ".encode(), HOT[0], END],
    # What looks like a request is the body of another.
    [f"PUT {FILE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(HOT[0])}\r\n\r\n".encode(), HOT[0], END],
    [f"PUT {FILE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode(), HOT[0], END],
    [f"GET {FILE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(HOT[0])}\r\n\r\n".encode(), HOT[0], END],
    [HOT[0].replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"), b"abcde" + HOT[1], END],
    [b"GET /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n", HOT[0]],
    [b"\r\n", HOT[0], END],
]


@pytest.mark.parametrize("writes", SMUGGLED, ids=range(len(SMUGGLED)))
async def test_no_byte_means_something_else_on_the_way_past_the_parser(
    running: HotNode, writes: list[bytes]
) -> None:
    hot = await exchange(running.hot, writes, quiet_s=0.2)
    assert steady(hot) == steady(await exchange(running.ordinary, writes, quiet_s=0.2))


async def test_requests_behind_a_running_answer_wait_for_its_end(running: HotNode) -> None:
    reader, writer = await slow_connection(running)
    writer.write(HOT[5])
    await reader.readexactly(1000)
    writer.write(HOT[0] + END)
    rest = await reader.read()
    heads = rest.split(b"HTTP/1.1 ")
    assert len(heads) == 3
    assert CONTENT[2_900_000:3_000_001] in heads[0]
    assert heads[1].endswith(CONTENT[:1])
    assert heads[2].endswith(CONTENT[:5])
    writer.close()


async def test_revoked_and_deleted_files_are_refused_at_the_next_request(running: HotNode) -> None:
    reader, writer = await running.connect()
    writer.write(HOT[0])
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 206 ")
    await reader.readexactly(1)
    del running.known[UUID]
    writer.write(HOT[0])
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    assert len(running.taken) == 1
    writer.close()


@pytest.mark.parametrize("asked", [HOT[5], COLD[0]], ids=["hot", "ordinary"])
async def test_answer_that_runs_when_the_right_to_it_goes_ends_whole_and_those_behind_it_are_refused(
    running: HotNode, asked: bytes
) -> None:
    """What it began with was true then; a request that waits behind it is judged when its turn comes."""
    reader, writer = await slow_connection(running)
    writer.write(asked + HOT[0] + END)
    began = await reader.readexactly(1000)
    del running.known[UUID]
    heads = (began + await reader.read()).split(b"HTTP/1.1 ")
    assert [head[:3] for head in heads[1:]] in ([b"206", b"404", b"404"], [b"200", b"404", b"404"])
    _, _, body = heads[1].partition(b"\r\n\r\n")
    assert body in (CONTENT, CONTENT[100:3_000_001])
    writer.close()


@pytest.mark.long
async def test_blob_that_was_put_aside_is_not_sent_from_what_was_kept_open(running: HotNode) -> None:
    running.known[UUID] = record(["n1"])
    running.node.services.blobs.delete(running.known[UUID].file.blob_sha256)
    answer = await exchange(running.hot, [HOT[0], END])
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert running.taken == []


async def test_replica_that_ends_early_is_followed_by_another(running: HotNode) -> None:
    reader, writer = await slow_connection(running)
    writer.write(asking("Range: bytes=0-7999999"))
    await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(1000)
    running.node.blob_path().chmod(0o600)
    os.truncate(running.node.blob_path(), 7_999_000)
    body += await reader.readexactly(7_999_000)
    assert body == CONTENT[:8_000_000]
    writer.write(END)
    assert (await reader.read()).endswith(CONTENT[:5])
    assert len(running.taken) == 1
    writer.close()


async def test_kernel_without_sendfile_gets_copies(running: HotNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "refused")

    monkeypatch.setattr(os, "sendfile", refuse)
    sent = [HOT[5], END]
    assert steady(await exchange(running.hot, sent)) == steady(await exchange(running.ordinary, sent))
    assert running.taken == [HOT[5]]


async def test_answers_are_counted_and_logged_like_others(
    running: HotNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for listener in (running.hot, running.ordinary):
        await exchange(listener, [HOT[6], HOT[5], END])
    lines = [vars(found) for found in caplog.records if found.name == "filestore.http.requests"]
    facts = ("remote", "method", "path", "status", "size_bytes")
    shown = [[line[name] for name in facts] for line in lines]
    assert shown[:3] == shown[3:]
    assert [line["request_id"] for line in lines].count("mine") == 2
    labels = {"method": "GET", "route": "/api/v1/files/{file_uuid}", "status": "206"}
    assert running.metrics.registry.get_sample_value("filestore_http_requests_total", labels) == 3


async def slow_connection(running: HotNode) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Of a client that takes little ahead of what is read from it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", running.hot.port))
    return await asyncio.open_connection(sock=client, limit=16 << 10)


async def test_draining_waits_for_a_running_answer_and_closes_behind_it(running: HotNode) -> None:
    reader, writer = await slow_connection(running)
    writer.write(asking("Range: bytes=0-7999999"))
    await reader.readuntil(b"\r\n\r\n")
    closing = asyncio.create_task(running.hot.close(drain_s=60))
    body = await reader.read(1)
    assert not closing.done()
    while piece := await reader.read(1 << 16):
        body += piece
    assert body == CONTENT[:8_000_000]
    await closing
    writer.close()


async def test_running_answer_is_cut_off_at_the_end_of_draining(running: HotNode) -> None:
    reader, writer = await slow_connection(running)
    writer.write(asking("Range: bytes=0-7999999"))
    await reader.readuntil(b"\r\n\r\n")
    await running.hot.close(drain_s=0)
    assert len(await reader.read()) < 8_000_000
    labels = {"method": "GET", "route": "/api/v1/files/{file_uuid}", "status": "499"}
    assert running.metrics.registry.get_sample_value("filestore_http_requests_total", labels) == 1
    writer.close()


async def test_client_that_goes_away_in_the_middle_ends_its_answer(running: HotNode) -> None:
    reader, writer = await slow_connection(running)
    writer.write(asking("Range: bytes=0-7999999"))
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    labels = {"method": "GET", "route": "/api/v1/files/{file_uuid}", "status": "499"}
    async with asyncio.timeout(30):
        while not running.metrics.registry.get_sample_value("filestore_http_requests_total", labels):
            await asyncio.sleep(0.01)


async def test_client_that_takes_nothing_is_cut_off(
    running: HotNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.sending.body_writer.STALL_TIMEOUT_S", 0.1)
    reader, writer = await slow_connection(running)
    writer.write(asking("Range: bytes=0-7999999"))
    await reader.readuntil(b"\r\n\r\n")
    labels = {"method": "GET", "route": "/api/v1/files/{file_uuid}", "status": "499"}
    async with asyncio.timeout(30):
        while not running.metrics.registry.get_sample_value("filestore_http_requests_total", labels):
            await asyncio.sleep(0.01)
    writer.close()


async def test_client_that_reads_late_holds_little_and_gets_everything(running: HotNode) -> None:
    request_bytes = asking(f"Range: bytes=0-{body_writer.SMALL_BYTES - 1}")
    reader, writer = await slow_connection(running)
    count = 0
    while await is_answered(running, count):
        writer.write(request_bytes)
        count += 1
    (connection,) = running.hot._connections.connections
    assert connection.transport is not None
    assert (
        connection.transport.get_write_buffer_size()
        <= body_writer.WRITE_BUFFER_BYTES + 2 * body_writer.SMALL_BYTES
    )
    for _ in range(count):
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(body_writer.SMALL_BYTES) == CONTENT[: body_writer.SMALL_BYTES]
    assert 0 < len(running.taken) < count
    writer.close()


async def is_answered(running: HotNode, count: int) -> bool:
    """Once so many requests have an answer; False when the last has to wait for its client."""
    labels = {"method": "GET", "route": "/api/v1/files/{file_uuid}", "status": "206"}
    connections = running.hot._connections
    async with asyncio.timeout(30):
        while (
            running.metrics.registry.get_sample_value("filestore_http_requests_total", labels) or 0
        ) < count:
            if any(connection.writing_paused for connection in connections.connections):
                return False
            await asyncio.sleep(0)
    return True


async def test_idle_connection_is_closed_some_time_after_its_last_hot_answer(nodes: list[Node]) -> None:
    nodes[0].store()
    patience = RequestTimeouts(keep_alive_s=0.3, headers_s=0.2)
    async with hot_node(nodes[0], record(["n1"]), patience=patience) as running:
        await running.warm()
        reader, writer = await running.connect()
        for _ in range(3):
            writer.write(HOT[0])
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(1)
        assert await reader.read() == b""
        assert len(running.taken) == 3
        writer.close()


async def test_idle_client_that_never_took_its_last_answer_is_cut_off(nodes: list[Node]) -> None:
    nodes[0].store()
    async with hot_node(nodes[0], record(["n1"]), patience=RequestTimeouts(keep_alive_s=0.2)) as running:
        await running.warm()
        reader, writer = await slow_connection(running)
        writer.write(HOT[0])
        await reader.readuntil(b"\r\n\r\n")
        (connection,) = running.hot._connections.connections
        transport = connection.transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(64):
            transport.write(bytes(16 << 10))
        assert transport.get_write_buffer_size()
        async with asyncio.timeout(30):
            while connection.transport is not None and not transport.is_closing():
                await asyncio.sleep(0.01)
            while running.hot._connections.connections:
                await asyncio.sleep(0.01)
        writer.close()
