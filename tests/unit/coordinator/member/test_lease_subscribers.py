"""Writes that wait for the nodes that keep records, with a real driver, log and database.

A lease of a minute shows what waits for a lease: nothing here may take that long.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from coordinator.member.driver import Driver
from coordinator.member.lease_subscribers import LeaseSubscribers
from coordinator.raft.core import NotLeader
from metadata.protocol import commands
from metadata.protocol.calls import FollowCall, FollowReply
from tests.unit.coordinator.member.test_driver import leading, reply_value, running
from tests.unit.state import ADMIN

DEADLINE_S = 20.0
LONG_LEASE_S = 60.0
_T = TypeVar("_T")


def revoke(user_id: str) -> commands.RevokeUser:
    return commands.RevokeUser(caller=ADMIN, user_id=user_id)


class Subscriber:
    """A process of a node that does what it is told, one call after the other."""

    def __init__(self, following: LeaseSubscribers, name: str) -> None:
        self._following = following
        self._name = name
        self.last = FollowReply(0, 0, [], 0.0)

    async def call(self) -> FollowReply:
        call = FollowCall(self._name, self.last.term, self.last.version)
        self.last = await self._following.follow(call)
        return self.last

    async def until(self, *blocked: str) -> None:
        """Calls until exactly this is blocked."""
        while (await self.call()).blocked != list(blocked):
            pass

    async def obey(self) -> None:
        while True:
            await self.call()


@asynccontextmanager
async def led(data: Path, sync: Callable[[int], None] = os.fdatasync) -> AsyncIterator[Driver]:
    """A driver that leads, and whose first lease is over; then leases are long."""
    async with asyncio.timeout(DEADLINE_S), running(data, sync=sync, cache_lease_s=0.0) as (driver, _):
        await leading(driver)
        driver.following.observe()
        driver.following._leases._lease_s = LONG_LEASE_S
        yield driver


@asynccontextmanager
async def task(work: Coroutine[Any, Any, _T]) -> AsyncIterator["asyncio.Task[_T]"]:
    """Runs beside the block, and is cancelled at its end."""
    made = asyncio.create_task(work)
    try:
        yield made
    finally:
        made.cancel()
        await asyncio.wait([made])


async def test_write_waits_until_the_subscriber_has_acknowledged_and_its_keys_are_blocked_till_then(
    tmp_path: Path,
) -> None:
    async with led(tmp_path) as driver:
        node = Subscriber(driver.following, "a")
        assert (await node.call()).lease_s > 0

        async with task(driver.propose(revoke("admin"))) as write:
            await node.until("user:admin")
            assert not write.done()
            async with task(node.obey()):
                assert reply_value(await write) is None
                while node.last.blocked:
                    await asyncio.sleep(0)


async def test_write_that_makes_nothing_untrue_waits_for_nobody(tmp_path: Path) -> None:
    async with led(tmp_path) as driver:
        await Subscriber(driver.following, "silent").call()

        admit = commands.AdmitUser(caller=ADMIN, user_id="alice", roles=None, groups=None)

        assert reply_value(await driver.propose(admit))


async def test_write_that_is_given_up_while_it_waits_is_not_made_and_blocks_nothing(tmp_path: Path) -> None:
    async with led(tmp_path) as driver:
        node = Subscriber(driver.following, "a")
        await node.call()
        async with task(driver.propose(revoke("admin"))):
            await node.until("user:admin")

        applied = driver.applied_index
        await node.until()

        await driver.read_barrier()
        assert driver.applied_index == applied


async def test_block_outlasts_the_caller_of_a_write_that_was_proposed(tmp_path: Path) -> None:
    entered, released = threading.Event(), threading.Event()
    is_slow = False

    def sync(descriptor: int) -> None:
        if is_slow:
            entered.set()
            released.wait(DEADLINE_S)
        os.fdatasync(descriptor)

    async with led(tmp_path, sync=sync) as driver:
        node = Subscriber(driver.following, "a")
        await node.call()
        is_slow = True
        try:
            async with task(driver.propose(revoke("admin"))):
                await node.until("user:admin")
                async with task(node.call()):
                    assert await asyncio.to_thread(entered.wait, DEADLINE_S)
            assert (await node.call()).blocked == ["user:admin"]
        finally:
            is_slow = False
            released.set()
        await node.until()


async def test_member_that_does_not_lead_lets_nobody_follow(tmp_path: Path) -> None:
    async with running(tmp_path, members=("c1", "c2", "c3")) as (driver, _):
        with pytest.raises(NotLeader):
            await Subscriber(driver.following, "a").call()


async def test_answer_is_not_given_in_another_term_than_its_read_barrier_began_in() -> None:
    term = 3

    async def barrier() -> None:
        nonlocal term
        term = 5

    following = LeaseSubscribers(lambda: (term, "c1"), barrier)

    with pytest.raises(NotLeader):
        await Subscriber(following, "a").call()


async def test_write_that_waits_when_the_lead_is_lost_is_refused() -> None:
    term = 3

    async def barrier() -> None:
        return

    following = LeaseSubscribers(lambda: (term, "c2"), barrier)
    async with asyncio.timeout(DEADLINE_S), task(following.clear(frozenset({"file:f"}))) as write:
        await asyncio.sleep(0)  # it waits now, for the lease of the leader before

        term = 0
        following.observe()

        with pytest.raises(NotLeader):
            await write
