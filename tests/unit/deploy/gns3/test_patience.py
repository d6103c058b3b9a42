"""Who is asked after a failure, and for how long."""

import asyncio
import time

import pytest

from ca.errors import Conflict
from ca.errors import Unavailable as ServerUnavailable
from deploy.base.failures import Failure
from deploy.gns3.server import SignInRefused
from deploy.gns3.watch import Patience
from filestore_client.base.errors import Unauthorized, Unavailable


async def unasked() -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "is_over"), [(SignInRefused(""), True), (Unauthorized(""), True), (Conflict(""), False)]
)
async def test_failures_that_tell_by_themselves_ask_nothing(error: Failure, is_over: bool) -> None:
    assert await Patience(30).is_over(error, unasked) is is_over


@pytest.mark.parametrize("error", [ServerUnavailable(""), Unavailable("")])
async def test_answer_decides_whether_the_next_one_is_tried(error: Failure) -> None:
    async def answered() -> None:
        pass

    async def refused() -> None:
        raise error

    patience = Patience(30)
    assert await patience.is_over(error, refused)
    assert not await patience.is_over(error, answered)


async def test_unanswered_questions_are_waited_for_until_the_deadline_in_all() -> None:
    async def answered_late() -> None:
        await asyncio.sleep(0.1)

    async def unanswered() -> None:
        await asyncio.Event().wait()

    patience, began_at = Patience(0.2), time.monotonic()
    for _ in range(4):
        assert not await patience.is_over(Unavailable(""), answered_late)
    for _ in range(100):
        assert await patience.is_over(Unavailable(""), unanswered)
    assert time.monotonic() - began_at < 5
