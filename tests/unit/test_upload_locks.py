"""Who may write an upload: one live request, and never a dead one for long. Also the threads that write."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import pytest

from ca.errors import InsufficientStorage, RateLimited, UploadLocked
from node.content import locks
from node.content.locks import UploadLocks
from node.disk import DiskWorkers, write_overlapped

ID = "0192f0c0-0000-7000-8000-000000000000"


class Connection:
    """A client's connection, as far as a lock looks at it."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def connected(self) -> bool:
        return not self.gone.is_set()


async def use(table: UploadLocks, connection: Connection, *, begun: asyncio.Event, receiving: bool) -> None:
    """A request that holds the upload until its client is gone."""
    async with table.hold(ID, connection.connected, connection.gone.set) as hold:
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
            async with table.hold(ID, second.connected, second.gone.set):
                pass
        first.gone.set()


async def test_writer_waits_for_the_end_of_a_request_whose_client_is_gone() -> None:
    table, first, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, first, begun=begun, receiving=True))
        await begun.wait()
        first.gone.set()
        second = Connection()
        async with table.hold(ID, second.connected, second.gone.set):
            assert table.releases == 1
    assert not table.holds(ID)


async def test_writer_ends_a_silent_request_and_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TAKEOVER_STALL_S", 0.0)
    table, silent, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, silent, begun=begun, receiving=True))
        await begun.wait()
        second = Connection()
        async with table.hold(ID, second.connected, second.gone.set):
            assert silent.gone.is_set()


async def test_completing_request_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TAKEOVER_STALL_S", 0.0)
    table, first, begun = UploadLocks(), Connection(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use(table, first, begun=begun, receiving=False))
        await begun.wait()
        assert not await table.settled(ID)
        first.gone.set()


async def test_writers_of_one_principal_are_bounded_and_leave_room_for_others() -> None:
    table = UploadLocks()
    with ExitStack() as held:
        for _ in range(locks.WRITERS_MAX):
            held.enter_context(table.writer("alice"))
        with pytest.raises(RateLimited) as caught, table.writer("alice"):
            pass
        assert caught.value.headers == {"Retry-After": "5"}
        with table.writer("bob"):
            pass
    with table.writer("alice"):
        pass
    assert not table._writers


async def test_cancelled_caller_goes_on_only_after_its_thread_has_ended() -> None:
    disk, release, ended = DiskWorkers(), threading.Event(), threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def job() -> None:
        loop.call_soon_threadsafe(begun.set)
        release.wait(10)
        ended.set()

    caller = asyncio.create_task(disk.run(job))
    await begun.wait()
    caller.cancel()
    loop.call_later(0.05, release.set)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
    disk.close()


async def test_error_of_a_write_ends_the_reading() -> None:
    disk = DiskWorkers()

    async def chunks() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"x"

    def write(_chunk: bytes) -> None:
        raise InsufficientStorage("full")

    with pytest.raises(InsufficientStorage):
        await write_overlapped(disk, chunks(), write)
    disk.close()


async def test_chunks_are_written_in_order_one_at_a_time() -> None:
    disk, written, running = DiskWorkers(), bytearray(), threading.Lock()

    async def chunks() -> AsyncGenerator[bytes, None]:
        for number in range(100):
            yield bytes([number])

    def write(chunk: bytes) -> None:
        assert running.acquire(blocking=False)
        written.extend(chunk)
        running.release()

    await write_overlapped(disk, chunks(), write)
    assert written == bytes(range(100))
    disk.close()


async def test_next_chunk_is_asked_for_while_one_is_written_and_the_one_after_it_waits() -> None:
    disk, asked, may_write = DiskWorkers(), [], threading.Event()

    async def chunks() -> AsyncGenerator[int, None]:
        for number in range(4):
            asked.append(number)
            yield number

    def write(_chunk: int) -> None:
        assert may_write.wait(10)

    writing = asyncio.create_task(write_overlapped(disk, chunks(), write))
    await asyncio.sleep(0.05)
    assert asked == [0, 1]
    may_write.set()
    await writing
    assert asked == [0, 1, 2, 3]
    disk.close()


@pytest.mark.parametrize("failing", [0, 1, 3])
async def test_nothing_is_written_behind_a_chunk_that_failed(failing: int) -> None:
    disk, written = DiskWorkers(), []

    async def chunks() -> AsyncGenerator[int, None]:
        for number in range(6):
            yield number

    def write(chunk: int) -> None:
        if chunk == failing:
            raise InsufficientStorage("full")
        written.append(chunk)

    with pytest.raises(InsufficientStorage):
        await write_overlapped(disk, chunks(), write)
    assert written == list(range(failing))
    disk.close()


async def test_who_is_cancelled_waits_for_the_writes_that_have_begun() -> None:
    disk, begun, ended = DiskWorkers(), asyncio.Event(), []
    loop, may_write = asyncio.get_running_loop(), threading.Event()

    async def chunks() -> AsyncGenerator[int, None]:
        for number in range(6):
            yield number

    def write(chunk: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_write.wait(10)
        ended.append(chunk)

    writing = asyncio.create_task(write_overlapped(disk, chunks(), write))
    await begun.wait()
    for _ in range(3):
        writing.cancel()
        await asyncio.sleep(0)
    assert not writing.done()
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    known = list(ended)
    disk.close()
    assert ended == known  # none was under way any more


@pytest.mark.parametrize("ends_badly", [False, True])
async def test_failed_write_is_told_at_once_and_before_what_the_reading_says(ends_badly: bool) -> None:
    disk, never = DiskWorkers(), asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x"
        if ends_badly:
            raise ConnectionError("the client went away")
        await never.wait()

    def write(_chunk: bytes) -> None:
        raise InsufficientStorage("full")

    with pytest.raises(InsufficientStorage):
        async with asyncio.timeout(10):
            await write_overlapped(disk, chunks(), write)
    disk.close()


async def test_cancellation_is_not_lost_while_a_write_is_waited_for() -> None:
    disk, begun, may_end = DiskWorkers(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x"
        await begun.wait()
        raise ConnectionError("the peer broke off")

    def write(_chunk: bytes) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(10)

    writing = asyncio.create_task(write_overlapped(disk, chunks(), write))
    await begun.wait()
    await asyncio.sleep(0.05)  # the reading has ended by now, which the write outlasts
    writing.cancel()
    loop.call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await writing
    disk.close()
