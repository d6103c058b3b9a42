"""Connections beyond a listener's bound are closed as they come; those before them are served."""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest
from aiohttp import web

from node.diskio.fs import storage_error
from runtime.lifetime import descriptor_limit
from tests.unit.peer_nodes import Node
from web import listener as http_listener
from web.app import METRICS, Listener, new_application, serve
from web.listener import Places

SIOCOUTQNSD = 0x894B  # bytes that were not sent yet (linux/sockios.h), which Python has no name for
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def listener_for(connections_max: int, monkeypatch: pytest.MonkeyPatch, node: Node | None) -> Listener:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(text="served")

    monkeypatch.setattr(http_listener, "CONNECTIONS_MAX", connections_max)
    app = new_application([web.get("/", handler)], component="test")
    context = None if node is None else node.contexts.peer.listening
    return await serve(app, host="127.0.0.1", port=0, ssl_context=context)


@pytest.mark.parametrize("tls", [True, False])
async def test_silent_connections_count_and_the_next_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch, nodes: list[Node], tls: bool
) -> None:
    listener = await listener_for(3, monkeypatch, nodes[0] if tls else None)
    silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
    reader, refused = await asyncio.open_connection("127.0.0.1", listener.port)
    async with asyncio.timeout(2):  # well before the deadline of a handshake, or of headers
        assert await reader.read() == b""
    refused.close()
    for _, writer in silent:
        writer.close()
        await writer.wait_closed()
    assert await served(listener, nodes[0] if tls else None)
    await listener.close()


async def served(listener: Listener, node: Node | None) -> bool:
    """Whether a request is answered, by the time that places are given back."""
    context = None if node is None else node.contexts.client()
    name = "n1.node.lab.internal" if node is not None else None
    for _ in range(100):
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=context, server_hostname=name
            )
            writer.write(GET)
            head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError):
            continue
        writer.close()
        return head.startswith(b"HTTP/1.1 200 ")
    return False


async def test_served_connections_do_not_count_after_their_end(
    monkeypatch: pytest.MonkeyPatch, nodes: list[Node]
) -> None:
    listener = await listener_for(2, monkeypatch, nodes[0])
    for _ in range(10):
        assert await served(listener, nodes[0])
    await listener.close()


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"])
async def test_request_without_tls_is_told_so(
    monkeypatch: pytest.MonkeyPatch, nodes: list[Node], method: bytes
) -> None:
    listener = await listener_for(2, monkeypatch, nodes[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(GET.replace(b"GET", method))
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        told = json.loads(await reader.read())
    assert head.startswith(b"HTTP/1.1 400 Invalid Request\r\n")
    assert b"\r\nX-Request-Id: " in head
    assert (told["code"], "https://" in told["details"]) == ("invalid_request", True)
    writer.close()
    assert await served(listener, nodes[0])
    await listener.close()


async def test_close_breaks_off_handshakes(monkeypatch: pytest.MonkeyPatch, nodes: list[Node]) -> None:
    listener = await listener_for(2, monkeypatch, nodes[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"\x16\x03\x01")
    async with asyncio.timeout(5):
        await listener.close()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("greedy", [1, 2, 10])
def test_few_addresses_never_hold_all_places(greedy: int) -> None:
    places = Places()
    held: list[list[object]] = [[] for _ in range(greedy)]
    for _ in range(places.most):
        for address in range(greedy):
            if (token := places.take(f"10.0.0.{address}")) is not None:
                held[address].append(token)
    left = places.most - places.connection_count
    assert left >= places.most // (1 + http_listener.GREED * greedy) > 0
    assert all(abs(len(each) - http_listener.GREED * left) <= http_listener.GREED + 1 for each in held)
    assert places.take("10.0.1.1") is not None
    for token in held[0]:
        places.give_back(token)
        places.give_back(token)
    assert places.connection_count == sum(map(len, held[1:])) + 1
    assert places.take("10.0.0.0") is not None
    while places.take("") is not None:
        pass
    assert places.connection_count == places.most  # our own processes may have all of them


async def test_refused_connection_is_counted_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_listener, "CONNECTIONS_MAX", 5)
    app = new_application([], component="test")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None)
    held = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(4)]
    for _ in range(3):
        reader, refused = await asyncio.open_connection("127.0.0.1", listener.port)
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        refused.close()
    held.append(await asyncio.open_connection("127.0.0.1", listener.port, local_addr=("127.0.0.2", 0)))
    held[-1][1].write(GET)
    assert (await held[-1][0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 404 ")
    reader, refused = await asyncio.open_connection("127.0.0.1", listener.port, local_addr=("127.0.0.3", 0))
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    refused.close()
    text, _ = app[METRICS].exposition("")
    assert b'filestore_http_connections_refused_total{cause="greedy_address"} 3.0\n' in text
    assert b'filestore_http_connections_refused_total{cause="all_taken"} 1.0\n' in text
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.__dict__["client"] for record in told] == ["127.0.0.1"]
    for _, writer in held:
        writer.close()
    await listener.close()


def test_bounds_leave_descriptors_for_files() -> None:
    assert Places().most == min(10_000, descriptor_limit() // 2)
    assert Places(peers=True).most == min(10_000, descriptor_limit() // 8)


async def test_listeners_of_one_process_share_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "CONNECTIONS_MAX", 2)
    places = Places()
    app = new_application([], component="test")
    first, second = [
        await serve(app, host="127.0.0.1", port=0, ssl_context=None, places=places) for _ in range(2)
    ]
    held = [await asyncio.open_connection("127.0.0.1", port) for port in (first.port, second.port)]
    reader, refused = await asyncio.open_connection("127.0.0.1", first.port)
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    for _, writer in [*held, (reader, refused)]:
        writer.close()
    await first.close()
    await second.close()


RAISE = """
import resource
from web.listener import Places
from runtime.lifetime import descriptor_limit, raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))
print(descriptor_limit(), raise_descriptor_limit(), descriptor_limit(), Places().most)
"""


def test_process_raises_its_descriptor_limit_to_what_it_may_have() -> None:
    done = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, check=True)
    assert done.stdout.split() == [b"64", b"300", b"300", b"150"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_descriptors_that_are_used_up_are_no_fault_of_the_disk(number: int) -> None:
    told = storage_error(OSError(number, os.strerror(number)))
    assert (told.status, told.details) == (503, "This process has too many open files.")
    assert storage_error(OSError(errno.EIO, os.strerror(errno.EIO))).status == 500


@pytest.mark.parametrize(
    ("peer", "mark_bytes"),
    [(True, http_listener.PEER_UNSENT_BYTES), (False, http_listener.PLAIN_UNSENT_BYTES)],
)
async def test_kernel_keeps_little_of_an_answer_that_nobody_reads(peer: bool, mark_bytes: int) -> None:
    found: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(1 << 30)})
        await response.prepare(request)
        transport = request.transport
        assert transport is not None
        while not transport.get_write_buffer_size():
            transport.write(bytes(16 << 10))
            await asyncio.sleep(0)
        sent_to = transport.get_extra_info("socket")
        unsent = fcntl.ioctl(sent_to.fileno(), SIOCOUTQNSD, bytes(4))
        mark = sent_to.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        found.set_result((mark, int.from_bytes(unsent, sys.byteorder)))
        transport.abort()
        return response

    app = new_application([web.get("/", handler)], component="test")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None, peer=peer)
    with socket.create_connection(("127.0.0.1", listener.port)) as reader:
        reader.sendall(GET)
        async with asyncio.timeout(10):
            found_mark_bytes, unsent_bytes = await found
    await listener.close()
    assert found_mark_bytes == mark_bytes
    assert unsent_bytes <= mark_bytes + (64 << 10)
