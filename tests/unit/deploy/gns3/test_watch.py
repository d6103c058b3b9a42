"""What ends a watch: what only a person mends, and nothing else."""

import asyncio

import pytest
from aiohttp import web

from ca.errors import NotFound, Unavailable
from deploy.gns3 import watch as watching
from deploy.gns3.server import SignInRefused
from deploy.gns3.watch import Watch, retry_pauses
from filestore_client.base.errors import Unauthorized
from tests.unit.deploy.gns3.test_server import Handler, Tokens, at, serving


def told(*lines: str) -> tuple[str, str, Handler]:
    """Notifications that end after these."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="".join(f"{line}\n" for line in lines))

    return "GET", "/v3/notifications", answer


def unexpected(error: Exception, _: float) -> None:
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
    heard: asyncio.Queue[Exception] = asyncio.Queue()

    def tell(error: Exception, _: float) -> None:
        heard.put_nowait(error)

    async def back_up(_: frozenset[str] | None) -> None:
        raise AssertionError

    async with serving(*Tokens(9).routes) as url, at(url) as server:
        watch = asyncio.create_task(Watch(server, back_up, every_s=None, tell=tell).run())
        assert isinstance(await asyncio.wait_for(heard.get(), 10), NotFound)
        assert not watch.done()
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch


def test_pauses_grow_up_to_a_bound() -> None:
    pauses = [pause_s for pause_s, _ in zip(retry_pauses(), range(12), strict=False)]
    assert pauses[:4] == [10, 20, 40, 80]
    assert pauses[-2:] == [3600, 3600]
    assert pauses == sorted(pauses)


@pytest.mark.parametrize("failure", [Unavailable("away"), OSError("no room")])
async def test_run_that_cannot_begin_is_tried_again_soon(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "RETRY_S_MIN", 0.01)
    runs: list[frozenset[str] | None] = []
    pauses: list[float] = []
    done = asyncio.Event()

    async def back_up(project_ids: frozenset[str] | None) -> None:
        runs.append(project_ids)
        if len(runs) < 4:
            raise failure
        done.set()

    def tell(error: Exception, retry_s: float) -> None:
        if error is failure:
            pauses.append(retry_s)

    async with serving(*Tokens(9).routes, told()) as url, at(url) as server:
        watch = asyncio.create_task(Watch(server, back_up, every_s=86_400, tell=tell).run())
        await asyncio.wait_for(done.wait(), 10)
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch
    assert runs == [None] * 4
    assert pauses == [0.01, 0.02, 0.04]
