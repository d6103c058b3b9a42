"""Another node holds the upload by the time that a request writes it: who answers, and with what."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from ca.certificates import Authority
from metadata.protocol.commands import TakeOverUpload
from node.content.routes import content_routes
from node.peerapi.admission import prepare_admission
from node.peerapi.upload_copies import upload_copy_routes
from node.peerapi.uploads import following_routes, prepare_following
from node.uploads.services import NodeServices, provide
from tests.unit import peer_nodes
from tests.unit.hot_node import token
from tests.unit.logged_nodes import LoggedNodes, logged_nodes
from tests.unit.node.content.test_short_put import serving
from tests.unit.state import ADMIN
from web.app import new_application

MIB = 1 << 20
CONTENT = os.urandom(9 * MIB)
UUID = "0199c5a2-0000-7000-8000-000000000001"
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


def peer_application(services: NodeServices) -> web.Application:
    """With the requests of clients that other nodes pass on."""
    routes = [*following_routes(), *upload_copy_routes(), *content_routes()]
    app = new_application(routes, component="node")
    provide(app, services)
    prepare_following(app)
    prepare_admission(app, services.api.view)
    return app


class Client:
    """Sends to n1, which holds the upload at first."""

    def __init__(self, group: LoggedNodes, session: aiohttp.ClientSession) -> None:
        self.group, self.session = group, session

    async def patch(self, start: int, stop: int, until: asyncio.Event | None = None) -> int:
        """The status of the answer. The second half of the bytes is sent once `until` is set."""

        async def body() -> AsyncGenerator[bytes, None]:
            half = (start + stop) // 2
            yield CONTENT[start:half]
            if until is not None:
                await until.wait()
            yield CONTENT[half:stop]

        headers = {**TUS, "Upload-Offset": str(start), "Content-Length": str(stop - start)}
        if stop == len(CONTENT):
            headers["Upload-Length"] = str(stop)
        path = f"/api/v1/files/{UUID}/content"
        async with self.session.patch(path, data=body(), headers=headers) as answer:
            return answer.status

    async def offset(self) -> int:
        async with self.session.head(f"/api/v1/files/{UUID}/content", headers=TUS) as answer:
            assert answer.status == 200
            return int(answer.headers["Upload-Offset"])

    def holder(self) -> str:
        return self.group.upload(UUID).placement[0]

    def take_over(self, successor: str) -> None:
        """In the log, as another node that cannot reach n1 does."""
        upload = self.group.upload(UUID)
        command = TakeOverUpload(
            caller=ADMIN,
            file_uuid=UUID,
            holder=upload.placement[0],
            successor=successor,
            epoch=upload.epoch,
            offset_bytes=upload.offset_bytes,
        )
        self.group.state.done(command)


@pytest.fixture
async def client(
    tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Client]:
    monkeypatch.setattr(peer_nodes, "peer_application", peer_application)
    async with asyncio.timeout(60), logged_nodes(tmp_path, peer_authority) as group, serving(group) as port:
        group.begin(UUID)
        headers = {"Authorization": f"Bearer {token('admin')}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
            yield Client(group, session)


async def test_request_goes_on_at_the_node_that_has_what_the_holder_has_lost(client: Client) -> None:
    assert await client.patch(0, 6 * MIB) == 204
    client.group.nodes[0].services.uploads.discard(UUID)
    assert await client.patch(6 * MIB, 7 * MIB) == 204
    assert client.holder() != "n1"
    assert await client.patch(7 * MIB, len(CONTENT)) == 204
    assert len(client.group.holders(hashlib.sha256(CONTENT).hexdigest())) >= 2


async def test_offset_is_told_by_the_node_that_has_what_the_holder_has_lost(client: Client) -> None:
    assert await client.patch(0, 6 * MIB) == 204
    client.group.nodes[0].services.uploads.discard(UUID)
    assert await client.offset() == 6 * MIB
    assert client.holder() != "n1"


async def test_request_whose_body_has_begun_is_not_passed_on(client: Client) -> None:
    """Its first bytes are with a node that holds the upload no more: the next holder would miss them."""
    assert await client.patch(0, 6 * MIB) == 204
    goes_on, services = asyncio.Event(), client.group.nodes[0].services
    writing = asyncio.create_task(client.patch(6 * MIB, 7 * MIB, goes_on))
    while not any(lock.receiving for lock in services.locks._locks.values()):
        await asyncio.sleep(0.01)
    client.take_over("n2")
    goes_on.set()
    assert await writing == 503
    assert await client.offset() == 6 * MIB
    assert await client.patch(6 * MIB, len(CONTENT)) == 204
