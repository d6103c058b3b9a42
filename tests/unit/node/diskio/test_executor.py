"""The threads for disk work, and pieces that are written in them while more come."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncGenerator

import pytest

from ca.errors import InsufficientStorage
from node.diskio.executor import DISK_THREADS, LONG_JOBS_MAX, DiskWorkers, write_overlapped


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


async def test_long_jobs_leave_threads_to_others() -> None:
    disk, release, begun = DiskWorkers(), threading.Event(), threading.Semaphore(0)

    def job() -> None:
        begun.release()
        release.wait(10)

    long = [asyncio.create_task(disk.run_long(job)) for _ in range(2 * DISK_THREADS)]
    async with asyncio.timeout(5):
        for _ in range(LONG_JOBS_MAX):
            assert await disk.run(begun.acquire, timeout=5)
        assert not begun.acquire(blocking=False)
        long.pop().cancel()
    release.set()
    await asyncio.gather(*long)
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
            raise ConnectionError("the client disconnected")
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


async def forever() -> AsyncGenerator[bytes, None]:
    """One piece, and then nothing more comes."""
    yield b"x"
    await asyncio.Event().wait()


async def test_cancellation_beside_a_failed_write_is_not_lost() -> None:
    disk, failed = DiskWorkers(), threading.Event()

    def write(_chunk: bytes) -> None:
        failed.set()
        raise InsufficientStorage("full")

    writing = asyncio.create_task(write_overlapped(disk, forever(), write))
    while not failed.is_set():
        await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    disk.close()


async def test_failed_write_keeps_its_cause_and_leaves_no_cancellation() -> None:
    disk = DiskWorkers()

    def write(_chunk: bytes) -> None:
        raise InsufficientStorage("full") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(InsufficientStorage) as raised:
        await write_overlapped(disk, forever(), write)
    assert isinstance(raised.value.__cause__, OSError)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    disk.close()


async def test_timeout_of_the_reading_stays_what_it_is() -> None:
    disk = DiskWorkers()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x"
        raise TimeoutError("nothing came")

    with pytest.raises(TimeoutError, match="nothing came"):
        await write_overlapped(disk, chunks(), len)
    disk.close()


async def test_who_waits_for_a_thread_gets_it_before_the_next_piece_of_others() -> None:
    disk, order = DiskWorkers(), list[str]()
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    async def chunks() -> AsyncGenerator[str, None]:
        for name in ("first", "second"):
            yield name

    def write(chunk: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(10)
        order.append(chunk)

    others_done = threading.Event()
    busy = [asyncio.wrap_future(disk.begin(others_done.wait, 10)) for _ in range(DISK_THREADS - 1)]
    writing = asyncio.create_task(write_overlapped(disk, chunks(), write))
    await begun.wait()
    waiting = asyncio.wrap_future(disk.begin(order.append, "other"))
    assert disk.has_waiting
    may_end.set()
    await asyncio.gather(writing, waiting)
    assert order == ["first", "other", "second"]
    others_done.set()
    await asyncio.gather(*busy)
    disk.close()


async def test_piece_behind_the_end_of_the_threads_is_refused() -> None:
    disk = DiskWorkers()
    disk.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        async with asyncio.timeout(10):
            await write_overlapped(disk, forever(), len)
    assert not disk.has_waiting


def test_all_threads_are_there_before_the_first_job() -> None:
    before = threading.active_count()
    disk = DiskWorkers()
    assert threading.active_count() == before + DISK_THREADS
    disk.close()
    assert threading.active_count() == before
