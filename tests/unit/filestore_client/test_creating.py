"""New files at servers that do not take bytes with a creation, or not all of them."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from ca.certificates import Authority
from filestore_client import AsyncClient
from filestore_client.base.errors import Unavailable
from filestore_client.transfer.creating import new_key

CONTENT = b"0123456789" * 100
HERE = ""  # an address that names no node: the one that was asked goes on


@dataclass
class Server:
    """A node of some version. `create` answers a creation that brings bytes; `taken` are those it has."""

    create: Callable[["Server", bytes], web.Response]
    taken: bytes = b""
    asked: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked.append(request.method)
        if request.method == "POST" and request.content_type == "application/json":
            return begun("pending")
        if request.method == "POST":
            self.keys.add(request.headers["Idempotency-Key"])
            return self.create(self, body)
        if request.method == "PATCH":
            assert int(request.headers["Upload-Offset"]) == len(self.taken)
            self.taken += body
            return web.Response(status=204, headers={"Upload-Offset": str(len(self.taken))})
        return web.json_response(record(self.taken))


def record(content: bytes) -> dict[str, Any]:
    texts = ("bucket_id", "owner_id", "filename", "content_type", "expires_at", "created_at", "updated_at")
    own = {"backup_type": "full", "is_compressed": False, "is_encrypted": False}
    others = {"parent_backup_uuid": "", "source_node_id": ""}
    digest = {"size_bytes": len(content), "blob_sha256": hashlib.sha256(content).hexdigest()}
    return dict.fromkeys(texts, "") | own | others | digest | {"file_uuid": "f", "status": "available"}


def begun(status: str, **headers: str) -> web.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"file_uuid": "f", "upload_url": HERE, "status": status}
    return web.json_response(body, status=201, headers=named)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def passes_over(_server: Server, _body: bytes) -> web.Response:
    return begun("pending")


def takes_some(server: Server, body: bytes) -> web.Response:
    server.taken = body[:300]
    return begun("uploading", Upload_Offset="300")


def takes_all(server: Server, body: bytes) -> web.Response:
    server.taken = body
    return begun("available", Upload_Offset=str(len(body)))


def refuses(_server: Server, _body: bytes) -> web.Response:
    return web.json_response({"code": "unsupported_media_type", "details": "no"}, status=415)


@pytest.mark.parametrize(
    ("create", "asked"),
    [
        (passes_over, ["POST", "PATCH", "GET"]),
        (takes_some, ["POST", "PATCH", "GET"]),
        (takes_all, ["POST", "GET"]),
        (refuses, ["POST", "POST", "PATCH", "GET"]),
    ],
)
async def test_upload_goes_on_from_what_the_server_has_taken(
    peer_authority: Authority, create: Callable[[Server, bytes], web.Response], asked: list[str]
) -> None:
    server = Server(create)
    root_pem = peer_authority.root_pem
    async with serving(server) as url, AsyncClient(url, root_pem=root_pem, token="t") as client:
        stored = await client.files.upload(CONTENT, filename="f")
    assert (server.taken, server.asked) == (CONTENT, asked)
    assert stored.blob_sha256 == hashlib.sha256(CONTENT).hexdigest()


async def test_what_may_have_been_stored_is_not_sent_to_who_cannot_know(peer_authority: Authority) -> None:
    def breaks(server: Server, body: bytes) -> web.Response:
        server.taken = body
        return web.json_response({"code": "unavailable", "details": "lost"}, status=503)

    unheard, older = Server(breaks), Server(refuses)
    async with serving(unheard) as first, serving(older) as second:
        root_pem = peer_authority.root_pem
        async with AsyncClient([first, second], root_pem=root_pem, token="t", deadline_s=1.0) as client:
            with pytest.raises(Unavailable):
                await client.files.upload(CONTENT, filename="f")
    assert {*unheard.asked, *older.asked} == {"POST"}
    assert len(unheard.keys | older.keys) == 1
    assert older.taken == b""


async def test_what_needs_an_upgrade_is_told_although_an_older_node_accepts_no_bytes(
    peer_authority: Authority,
) -> None:
    def waits(_server: Server, _body: bytes) -> web.Response:
        refusal = {"code": "unavailable", "details": "Upgrade members."}
        return web.json_response(refusal, status=503, headers={"Retry-After": "60"})

    newer, older = Server(waits), Server(refuses)
    async with serving(newer) as first, serving(older) as second:
        root_pem = peer_authority.root_pem
        async with AsyncClient([first, second], root_pem=root_pem, token="t", deadline_s=100.0) as client:
            with pytest.raises(Unavailable, match=r"^Upgrade members\.$") as refused:
                await client.files.upload(CONTENT, filename="f")
    assert not refused.value.is_unknown
    assert (newer.asked, older.asked) == (["POST"], ["POST"])


def test_keys_are_of_their_time_and_never_the_same() -> None:
    keys = [UUID(new_key()) for _ in range(1000)]
    assert {key.version for key in keys} == {7}
    assert len(set(keys)) == len(keys)
    times = [key.int >> 80 for key in keys]
    assert times == sorted(times)
