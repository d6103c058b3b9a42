"""What systemd hears of a process, on a real socket: of threads that work, block, or wait in the kernel."""

import asyncio
import ctypes
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.service_manager import ServiceManager, keep_informed, waits_for_device
from tests.notify_socket import NotifySocket

ALIVE = "WATCHDOG=1"
WATCHDOG_S = 0.08
THREAD = "disk"


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotifySocket]:
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1_000_000)))
    with NotifySocket(tmp_path / "notify") as listening:
        monkeypatch.setenv("NOTIFY_SOCKET", str(listening.path))
        yield listening


class Process:
    """A process that keeps the manager informed, with one thread for its disk. It counts the rounds."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        self.condition = "Serves"
        self._rounds = 0
        self._round = asyncio.Condition()

    async def status(self) -> str:
        async with self._round:
            self._rounds += 1
            self._round.notify_all()
        return self.condition

    async def rounds(self, number: int) -> None:
        """Wait for so many rounds from now."""
        until = self._rounds + number
        async with self._round:
            await self._round.wait_for(lambda: self._rounds >= until)

    async def take_job(self) -> None:
        await asyncio.wrap_future(self.pool.submit(lambda: None))


@asynccontextmanager
async def informing() -> AsyncIterator[Process]:
    process = Process()
    running = asyncio.create_task(
        keep_informed(ServiceManager(), thread_name=THREAD, take_job=process.take_job, status=process.status)
    )
    try:
        yield process
    finally:
        running.cancel()
        await asyncio.wait({running})
        await asyncio.to_thread(process.pool.shutdown)


async def until(condition: Callable[[], bool], process: Process) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await process.rounds(1)


def test_changes_are_told_as_systemd_names_them(heard: NotifySocket) -> None:
    manager = ServiceManager()
    manager.ready()
    manager.notify_reloading()
    manager.notify_stopping()
    lines = heard.lines()
    assert lines[:2] == ["READY=1", "RELOADING=1"]
    assert lines[2].startswith("MONOTONIC_USEC=")
    assert lines[3:] == ["STOPPING=1", "STATUS=Stopping"]


def test_name_in_the_abstract_namespace_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"filestore-test-{os.getpid()}"
    with NotifySocket(Path(f"\0{name}")) as listening:
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        ServiceManager().ready()
        assert listening.lines() == ["READY=1"]


def test_status_is_one_short_line_and_told_when_it_changes(heard: NotifySocket) -> None:
    manager = ServiceManager()
    for text in ("Serves", "Serves", "a\nREADY=1", "x" * 1000):
        manager.show(text)
    assert heard.statuses() == ["Serves", "a READY=1", "x" * 200]
    assert heard.count("READY=1") == 0


def test_nothing_is_told_where_nobody_asked(monkeypatch: pytest.MonkeyPatch, heard: NotifySocket) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET")
    manager = ServiceManager()
    manager.ready()
    manager.alive()
    assert heard.lines() == []


def test_change_that_a_full_socket_took_not_goes_before_the_next_beat(heard: NotifySocket) -> None:
    manager = ServiceManager()
    told = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 2
    for _ in range(told):
        manager.alive()
    manager.notify_reloading()
    manager.ready()
    assert set(heard.lines()) == {ALIVE}
    manager.alive()
    changes = [line for line in heard.lines() if line in ("RELOADING=1", "READY=1", ALIVE)][-3:]
    assert changes == ["RELOADING=1", "READY=1", ALIVE]


def test_manager_that_is_gone_stops_nothing(heard: NotifySocket) -> None:
    heard.path.unlink()
    manager = ServiceManager()
    manager.ready()
    manager.show("Serves")


@pytest.mark.parametrize(
    ("pid", "beat_s"), [("", WATCHDOG_S / 4), (str(os.getppid()), 5.0)], ids=["ours", "other"]
)
def test_beats_are_as_frequent_as_the_watchdog_of_this_process_wants(
    heard: NotifySocket, monkeypatch: pytest.MonkeyPatch, pid: str, beat_s: float
) -> None:
    monkeypatch.setenv("WATCHDOG_PID", pid)
    assert ServiceManager().beat_s == beat_s


async def test_process_that_works_is_alive(heard: NotifySocket) -> None:
    async with informing() as process:
        await until(lambda: heard.count(ALIVE) >= 3, process)
        process.condition = "Its disk is full"
        await until(lambda: heard.statuses() == ["Serves", "Its disk is full"], process)


async def test_process_whose_disk_threads_take_no_jobs_is_not_alive(heard: NotifySocket) -> None:
    release = threading.Event()
    async with informing() as process:
        await until(lambda: heard.count(ALIVE) >= 1, process)
        process.pool.submit(release.wait)
        await process.rounds(2)  # a job that was asked for before may have been done
        before = heard.count(ALIVE)
        await process.rounds(5)
        assert heard.count(ALIVE) == before
        release.set()
        await until(lambda: heard.count(ALIVE) > before, process)


async def test_process_is_alive_while_the_kernel_holds_its_thread_for_a_device(
    heard: NotifySocket, tmp_path: Path
) -> None:
    async with informing() as process:
        async with held_in_the_kernel(process.pool, tmp_path / "fifo"):
            await until(lambda: waits_for_device(THREAD), process)
            assert not waits_for_device("another")
            before = heard.count(ALIVE)
            await until(lambda: heard.count(ALIVE) >= before + 3, process)
        await until(lambda: not waits_for_device(THREAD), process)


@asynccontextmanager
async def held_in_the_kernel(pool: ThreadPoolExecutor, fifo: Path) -> AsyncIterator[None]:
    """A thread of the pool waits as for a device: for a child with its memory, which waits for a writer."""
    os.mkfifo(fifo)
    libc = ctypes.CDLL(None)
    actions = ctypes.create_string_buffer(1024)  # more than any C library's structure of that name
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, os.fsencode(fifo), os.O_RDONLY, 0)
    pid, words = ctypes.c_int(), (ctypes.c_char_p * 2)(b"/bin/true", None)
    spawning = pool.submit(libc.posix_spawn, ctypes.byref(pid), words[0], actions, None, words, None)
    try:
        yield
    finally:
        await asyncio.to_thread(lambda: os.close(os.open(fifo, os.O_WRONLY)))
        assert await asyncio.wrap_future(spawning) == 0
        await asyncio.to_thread(os.waitpid, pid.value, 0)


async def test_event_loop_that_stands_still_beats_no_more(heard: NotifySocket) -> None:
    async with informing() as process:
        await until(lambda: heard.count(ALIVE) >= 1, process)
        before = heard.count(ALIVE)
        threading.Event().wait(WATCHDOG_S)  # the loop turns no more for as long as a watchdog would wait
        assert heard.count(ALIVE) == before
