"""Small content by PUT, through the handlers of a node: what is kept in memory for it is bounded."""

import asyncio
import base64
import hashlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from ca.certificates import Authority
from node.diskio.durable import Octets
from node.listeners import client_application
from node.packs import group_commit
from node.uploads import write_locks
from runtime.metrics import Metrics
from tests.unit.hot_node import token
from tests.unit.logged_nodes import NAMES, LoggedNodes, logged_nodes
from web.app import serve

SIZE_BYTES = 5000
MD5 = base64.b64encode(bytes(16)).decode()
Answer = tuple[int, str, int]  # status, code of an error, bytes that the log knows of


def content_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE_BYTES // 4)


def uuid_of(number: int) -> str:
    return f"0199c5a2-0000-7000-8000-{number:012}"


@dataclass
class Client:
    """Sends to n1, which holds the uploads."""

    group: LoggedNodes
    session: aiohttp.ClientSession

    async def put(self, number: int, until: asyncio.Event | None = None) -> Answer:
        """All of one; its second half once that is set."""
        content, path = content_of(number), f"/api/v1/files/{uuid_of(number)}/content"

        async def body() -> AsyncGenerator[bytes, None]:
            yield content[: SIZE_BYTES // 2]
            if until is not None:
                await until.wait()
            yield content[SIZE_BYTES // 2 :]

        headers = {"Content-Length": str(SIZE_BYTES)}
        async with self.session.put(path, data=body(), headers=headers) as answer:
            told = await answer.json()
        return answer.status, told.get("code", ""), self.group.upload(uuid_of(number)).offset_bytes

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            self.group.begin(uuid_of(number))

    def holders(self, number: int) -> list[str]:
        return self.group.holders(hashlib.sha256(content_of(number)).hexdigest())


@pytest.fixture
async def client(tmp_path: Path, peer_authority: Authority) -> AsyncIterator[Client]:
    async with asyncio.timeout(30), logged_nodes(tmp_path, peer_authority) as group, serving(group) as port:
        headers = {"Authorization": f"Bearer {token('admin')}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
            yield Client(group, session)


@asynccontextmanager
async def serving(group: LoggedNodes) -> AsyncIterator[int]:
    """The whole API of n1, without TLS; its port."""
    app = client_application(group.nodes[0].services, Metrics("node"))
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None)
    try:
        yield listener.port
    finally:
        await listener.close()


OF_A_FILE = (200, "", SIZE_BYTES)


async def test_contents_beyond_what_may_wait_for_the_disk_are_kept_and_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, may_store = client.group.nodes[0].services.blobs.packed, threading.Event()
    store = packed.put

    def slow(blobs: Sequence[tuple[str, Octets]]) -> None:
        assert may_store.wait(60)
        store(blobs)

    monkeypatch.setattr(packed, "put", slow)
    monkeypatch.setattr(group_commit, "WAITING_BYTES_MAX", 2 * SIZE_BYTES)
    client.begin(*range(6))
    requests = [asyncio.create_task(client.put(number)) for number in range(6)]
    answers = asyncio.as_completed(requests)
    try:
        refused = [await next(answers) for _ in range(3)]  # one is being stored, and two wait
        assert refused == [(503, "unavailable", SIZE_BYTES)] * 3
    finally:
        may_store.set()
    assert [await answer for answer in answers] == [OF_A_FILE] * 3
    assert [await client.put(number) for number in range(6)] == [OF_A_FILE] * 6
    assert [client.holders(number) for number in range(6)] == [list(NAMES)] * 6


async def test_contents_that_come_slowly_are_as_many_as_a_principal_has_places(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_locks, "WRITERS_MAX", 3)
    services, goes_on = client.group.nodes[0].services, asyncio.Event()
    client.begin(*range(4))
    slow = [asyncio.create_task(client.put(number, goes_on)) for number in range(3)]
    while len(services.locks) < len(slow):
        await asyncio.sleep(0.01)
    assert await client.put(3) == (429, "rate_limited", 0)
    assert list((client.group.nodes[0].directory / "uploads").iterdir()) == []  # all is in memory
    goes_on.set()
    assert await asyncio.gather(*slow) == [OF_A_FILE] * 3
    assert await client.put(3) == OF_A_FILE
    assert [client.holders(number) for number in range(4)] == [list(NAMES)] * 4


@pytest.mark.parametrize(("headers", "kept_bytes"), [({}, SIZE_BYTES // 2), ({"Content-MD5": MD5}, 0)])
async def test_first_bytes_of_a_body_that_breaks_off_are_kept_unless_it_has_a_checksum(
    client: Client, headers: dict[str, str], kept_bytes: int
) -> None:
    client.begin(1)
    sent, locks = asyncio.Event(), client.group.nodes[0].services.locks

    async def body() -> AsyncGenerator[bytes, None]:
        yield content_of(1)[: SIZE_BYTES // 2]
        sent.set()
        await asyncio.Event().wait()

    path, length = f"/api/v1/files/{uuid_of(1)}/content", {"Content-Length": str(SIZE_BYTES)}
    sending = asyncio.create_task(client.session.put(path, data=body(), headers=length | headers))
    await sent.wait()
    while not len(locks):
        await asyncio.sleep(0.01)
    sending.cancel()
    while len(locks):
        await asyncio.sleep(0.01)
    assert client.group.upload(uuid_of(1)).offset_bytes == kept_bytes
