"""A request may take long as long as the server answers another one."""

import asyncio

import pytest

from ca.errors import Conflict, Unavailable
from deploy.gns3.liveness import while_alive

EVERY_S = 0.001


async def test_long_request_goes_on_while_something_is_answered() -> None:
    asked = asyncio.Event()

    async def ask() -> None:
        asked.set()

    async with while_alive(ask, every_s=EVERY_S):
        await asked.wait()
        asked.clear()
        await asked.wait()


async def test_long_request_ends_with_the_question_that_is_not_answered() -> None:
    async def ask() -> None:
        raise Unavailable("It hangs.")

    with pytest.raises(Unavailable, match="It hangs"):
        async with asyncio.timeout(10), while_alive(ask, every_s=EVERY_S):
            await asyncio.Event().wait()


async def test_error_within_comes_as_it_is() -> None:
    async def ask() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Conflict, match="of the request"):
        async with while_alive(ask, every_s=EVERY_S):
            raise Conflict("It is of the request.")


async def test_who_waits_may_be_cancelled() -> None:
    async def ask() -> None:
        await asyncio.Event().wait()

    async def wait() -> None:
        async with while_alive(ask, every_s=EVERY_S):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
