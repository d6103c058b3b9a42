"""What ends a watch: what only a person mends, and nothing else."""

import asyncio

import pytest
from aiohttp import web

from ca.errors import FilestoreError
from deploy.gns3.server import SignInRefused
from deploy.gns3.watch import Watch
from filestore_client.base.errors import Unauthorized
from tests.unit.deploy.gns3.test_server import Handler, Tokens, at, serving


def told(*lines: str) -> tuple[str, str, Handler]:
    """Notifications that end after these."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="".join(f"{line}\n" for line in lines))

    return "GET", "/v3/notifications", answer


def unexpected(error: FilestoreError) -> None:
    raise AssertionError(error)


async def test_store_that_takes_no_token_ends_the_watch() -> None:
    async def back_up(_: frozenset[str] | None) -> None:
        raise Unauthorized("The token is not taken.")

    async with serving(*Tokens(9).routes, told()) as url, at(url) as server:
        with pytest.raises(Unauthorized):
            await Watch(server, back_up, every_s=60, tell=unexpected).run()


async def test_server_that_takes_no_password_ends_the_watch() -> None:
    tokens = Tokens(9)

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"message": "Could not validate credentials"}, status=401)

    async def back_up(_: frozenset[str] | None) -> None:
        raise AssertionError

    async with serving(*tokens.routes, ("GET", "/v3/notifications", refuse)) as url, at(url) as server:
        with pytest.raises(SignInRefused):
            await Watch(server, back_up, every_s=None, tell=unexpected).run()


async def test_server_that_is_away_is_told_and_waited_for() -> None:
    heard: asyncio.Queue[FilestoreError] = asyncio.Queue()

    async def back_up(_: frozenset[str] | None) -> None:
        raise AssertionError

    async with serving(*Tokens(9).routes) as url, at(url) as server:
        watch = asyncio.create_task(Watch(server, back_up, every_s=None, tell=heard.put_nowait).run())
        assert (await asyncio.wait_for(heard.get(), 10)).code == "not_found"
        assert not watch.done()
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch
