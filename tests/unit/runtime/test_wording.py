"""What people are told of failed connections: no word of the libraries below."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from ca.certificates import new_root
from deploy.processes import free_ports
from filestore_client import AsyncClient
from filestore_client.base.errors import Unavailable
from runtime.wording import connection_trouble, counted

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def answering(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """A server that answers everything with `handler`; its URL."""
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, LOOPBACK, port).start()
    try:
        yield f"http://{LOOPBACK}:{port}"
    finally:
        await runner.cleanup()


def refused() -> str:
    """A URL at which nobody listens."""
    (port,) = free_ports(1)
    return f"http://{LOOPBACK}:{port}"


async def failure_of(url: str, timeout_s: float = 10) -> Exception:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
        with pytest.raises((aiohttp.ClientError, TimeoutError)) as raised:
            await session.get(url)
    return raised.value


async def status_of(*urls: str) -> str:
    """What a client that gives up says."""
    root_pem, _ = new_root("lab", now=datetime.now(UTC))
    with pytest.raises(Unavailable) as raised:
        async with AsyncClient(urls, root_pem=root_pem, token="none", deadline_s=1) as client:
            await client.cluster.status()
    return raised.value.details


async def test_refused_connection_is_told_by_its_address_in_the_words_of_the_system() -> None:
    url = refused()
    assert connection_trouble(await failure_of(url)) == f"{url.removeprefix('http://')}: Connection refused"


async def test_server_without_tls_is_told_in_words() -> None:
    async with answering(lambda _: asyncio.sleep(0, web.Response())) as url:
        told = connection_trouble(await failure_of(url.replace("http", "https")))
    assert told.startswith(url.removeprefix("http://"))
    assert "object at" not in told
    assert "not permitted" not in told  # errno 1 of OpenSSL is none of the system


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (aiohttp.ServerDisconnectedError(), "the connection was closed without an answer"),
        (TimeoutError(), "no answer in time"),
        (ConnectionResetError(104, "whatever"), "Connection reset by peer"),
        (ssl.SSLError(1, "[SSL] record layer failure"), "[SSL] record layer failure"),
        (aiohttp.ServerTimeoutError("Connection timeout to host h"), "Connection timeout to host h"),
    ],
)
def test_failure_is_told_in_words(error: Exception, told: str) -> None:
    assert connection_trouble(error) == told


async def test_client_that_reached_nobody_says_so() -> None:
    url = refused()
    told = await status_of(url)
    assert told == f"No node answered within 1 s: {url.removeprefix('http://')}: Connection refused"


async def test_client_tells_the_answer_of_the_one_node_that_gave_one() -> None:
    async def refuse(_: web.BaseRequest) -> web.Response:
        body = {"code": "unavailable", "details": "1 node takes new files, 2 must."}
        return web.json_response(body, status=503)

    gone = refused()
    async with answering(refuse) as url:
        for urls in ((url, gone), (gone, url), (gone, url, gone)):
            assert "1 node takes new files, 2 must." in await status_of(*urls)


def test_number_agrees_with_its_words() -> None:
    assert [counted(count, "node takes", "nodes take") for count in (0, 1, 2)] == [
        "0 nodes take",
        "1 node takes",
        "2 nodes take",
    ]
