"""Who may write an upload: one live request, and never a dead one for long."""

import asyncio
from contextlib import ExitStack

import pytest

from ca.errors import RateLimited, UploadLocked
from node.uploads import write_locks
from node.uploads.write_locks import UploadLocks

ID = "0192f0c0-0000-7000-8000-000000000000"


class Connection:
    """A client's connection, as far as a lock looks at it."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def connected(self) -> bool:
        return not self.gone.is_set()


async def use(table: UploadLocks, connection: Connection, *, begun: asyncio.Event, receiving: bool) -> None:
    """A request that holds the upload until its client is gone."""
    async with table.lock(ID, connection.connected, connection.gone.set) as hold:
        hold.receiving = receiving
        begun.set()
        await connection.gone.wait()


async def test_second_writer_is_refused_while_the_first_is_live() -> None:
    table, first, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, first, begun=begun, receiving=True))
        await begun.wait()
        second = Connection()
        with pytest.raises(UploadLocked):
            async with table.lock(ID, second.connected, second.gone.set):
                pass
        first.gone.set()


async def test_writer_waits_for_the_end_of_a_request_whose_client_is_gone() -> None:
    table, first, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, first, begun=begun, receiving=True))
        await begun.wait()
        first.gone.set()
        second = Connection()
        async with table.lock(ID, second.connected, second.gone.set):
            assert table.releases == 1
    assert not table.is_locked(ID)


async def test_writer_ends_a_silent_request_and_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_locks, "TAKEOVER_STALL_S", 0.0)
    table, silent, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, silent, begun=begun, receiving=True))
        await begun.wait()
        second = Connection()
        async with table.lock(ID, second.connected, second.gone.set):
            assert silent.gone.is_set()


async def test_silent_request_is_not_ended_by_who_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_locks, "TAKEOVER_STALL_S", 0.0)
    table, silent, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, silent, begun=begun, receiving=True))
        await begun.wait()
        assert not await table.wait_until_settled(ID, ends_silent=False)
        assert not silent.gone.is_set()
        silent.gone.set()
        assert await table.wait_until_settled(
            ID, ends_silent=False
        )  # a closed connection leaves nobody to wait for


async def test_completing_request_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_locks, "TAKEOVER_STALL_S", 0.0)
    table, first, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, first, begun=begun, receiving=False))
        await begun.wait()
        assert not await table.wait_until_settled(ID)
        first.gone.set()


async def test_who_asks_waits_for_a_request_that_only_seems_to_live() -> None:
    table, first, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, first, begun=begun, receiving=True))
        await begun.wait()
        asking = group.create_task(table.wait_until_settled(ID, doubt_s=30.0))
        for _ in range(3):  # it has not been noticed yet that the client is gone
            await asyncio.sleep(0)
            assert not asking.done()
        first.gone.set()
        assert await asking
        assert table.releases == 1


async def test_writer_waits_for_a_request_that_only_seems_to_live() -> None:
    table, first, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, first, begun=begun, receiving=True))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.2, first.gone.set)
        second = Connection()
        async with table.lock(ID, second.connected, second.gone.set, doubt_s=30.0):
            assert table.releases == 1


async def test_writer_is_refused_at_once_while_the_first_receives() -> None:
    table, first, second = UploadLocks(), Connection(), Connection()
    async with table.lock(ID, first.connected, first.gone.set) as hold, asyncio.timeout(10):
        hold.receiving = True
        asyncio.get_running_loop().call_later(0.2, hold.touch)
        with pytest.raises(UploadLocked):
            async with table.lock(ID, second.connected, second.gone.set, doubt_s=30.0):
                pass


async def test_who_asks_is_answered_while_a_request_goes_on() -> None:
    table, first = UploadLocks(), Connection()
    async with table.lock(ID, first.connected, first.gone.set):  # works, and does not wait for its client
        assert not await table.wait_until_settled(ID, doubt_s=0.01)
        assert first.connected()


async def test_writers_of_one_principal_are_bounded_and_leave_room_for_others() -> None:
    table = UploadLocks()
    with ExitStack() as held:
        for number in range(write_locks.WRITERS_MAX):
            held.enter_context(table.writer("alice", f"file {number}"))
        with pytest.raises(RateLimited) as caught, table.writer("alice", "another"):
            pass
        assert caught.value.headers == {"Retry-After": "5"}
        with pytest.raises(RateLimited):
            table.require_place("alice", "another")
        table.require_place("alice", "file 7")
        table.require_place("bob", "another")
        with table.writer("bob", "another"):
            pass
        with (  # the first is to end the request that has its place
            table.writer("alice", "file 7"),
            pytest.raises(RateLimited),
            table.writer("alice", "file 7"),
        ):
            pass
        with table.writer("alice", "file 7"):
            pass
    with table.writer("alice", "another"):
        pass
    assert not table._writers
