"""A client whose nodes are not all to be trusted: servers on loopback, with certificates of either kind."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from ca import errors
from ca.certificates import Authority
from ca.identity import Identity, Role
from ca.keys import new_key
from ca.tls import Credential, server_context
from filestore_client import AsyncClient
from filestore_client.base.errors import Unavailable, UntrustedServer
from tests.unit.peer_nodes import CLUSTER

ANSWERED = {"file_uuid": "f"}
ENDED = timedelta(days=9)  # ago


def context(directory: Path, authority: Authority, name: str, *, is_ended: bool = False) -> ssl.SSLContext:
    key, path = new_key(), directory / f"{name}.pem"
    now = datetime.now(UTC) - (ENDED if is_ended else timedelta())
    leaf = authority.sign_leaf(key.public_key(), Identity(CLUSTER, Role.NODE, name), "127.0.0.1", now=now)
    Credential(path, authority.root_pem).write(key, leaf.pem)
    return server_context(path)


@asynccontextmanager
async def serving(tls: ssl.SSLContext, refusal: errors.FilestoreError | None = None) -> AsyncIterator[str]:
    """A node that knows one file, or refuses; its URL."""

    async def handle(request: web.Request) -> web.Response:
        del request
        if refusal is not None:
            return web.json_response(
                {"code": refusal.code, "details": refusal.details}, status=refusal.status
            )
        return web.json_response(ANSWERED)

    application = web.Application()
    application.router.add_get("/api/v1/project-files/f", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("ended_count", [1, 2])
async def test_node_whose_certificate_has_ended_is_left_for_another(
    tmp_path: Path, peer_authority: Authority, ended_count: int
) -> None:
    async with AsyncExitStack() as nodes:
        urls = [
            await nodes.enter_async_context(
                serving(context(tmp_path, peer_authority, f"n{number}", is_ended=number < ended_count))
            )
            for number in range(3)
        ]
        async with AsyncClient(urls, root_pem=peer_authority.root_pem, token="t") as client:
            assert await client.call("GET", "/api/v1/project-files/f", dict[str, str]) == ANSWERED


async def test_client_gives_up_at_once_when_no_node_is_to_be_trusted(
    tmp_path: Path, peer_authority: Authority
) -> None:
    """Long before the deadline, which is that of the test too."""
    async with AsyncExitStack() as nodes:
        urls = [
            await nodes.enter_async_context(
                serving(context(tmp_path, peer_authority, f"n{number}", is_ended=True))
            )
            for number in range(2)
        ]
        async with AsyncClient(urls, root_pem=peer_authority.root_pem, token="t", deadline_s=3600) as client:
            with pytest.raises(UntrustedServer, match="has expired"):
                await client.call("GET", "/api/v1/project-files/f", dict[str, str])


async def test_what_the_trusted_nodes_answered_is_said_at_the_deadline(
    tmp_path: Path, peer_authority: Authority
) -> None:
    busy = errors.Unavailable("No quorum.")
    ended = context(tmp_path, peer_authority, "n1", is_ended=True)
    async with (
        serving(ended) as first,
        serving(context(tmp_path, peer_authority, "n2"), busy) as second,
        AsyncClient([first, second], root_pem=peer_authority.root_pem, token="t", deadline_s=1) as client,
    ):
        with pytest.raises(Unavailable, match="No quorum"):
            await client.call("GET", "/api/v1/project-files/f", dict[str, str])
