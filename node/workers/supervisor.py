"""The worker processes of a node, as worker 0 keeps them.

Each is a child that runs `node/worker_main.py`. Worker 0 controls it by lines on its standard input.
`reload`: the certificate on disk is new. `log-level LEVEL`: log from this level on. `drain`: accept no more
requests, let running ones end, then write `drained` to standard output. At the end of the input, worker 0 has
closed it or is gone, and the child ends. A child that ends without that is started again, after a growing
pause.

All processes hold one lock of the data directory, which the kernel frees when the last of them ends. So a
node that is started again after worker 0 was killed waits until no child works on the files any more.

Tested by tests/cluster/test_workers.py.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from runtime import logs

DRAIN: Final = b"drain\n"
RELOAD: Final = b"reload\n"
LOG_LEVEL: Final = b"log-level "
DRAINED: Final = b"drained\n"
PAUSE_S_MIN: Final = 0.2  # before a worker is started again
PAUSE_S_MAX: Final = 10.0
SETTLED_S: Final = 60.0  # a worker that ran this long is restarted without delay
END_TIMEOUT_S: Final = 3.0  # after the end of its input; then the worker is killed

_log = logging.getLogger(__name__)


class WorkerProcesses:
    """The children of worker 0: numbers 1 to `workers` - 1, none for a node of one process."""

    def __init__(
        self, workers: int, arguments: Sequence[str], *, lock: int, registry: CollectorRegistry
    ) -> None:
        """Prepare the workers; `run` starts them.

        `arguments` are the same for every worker, without its number; no secret. `lock`: a descriptor.
        """
        self._numbers = range(1, workers)
        self._arguments = ["--workers", str(workers), *arguments]
        self._lock = lock
        self._running: dict[int, _Worker] = {}
        self._ending = asyncio.Event()
        self._log_level = logs.current_level()
        self._restarts = Counter(
            "filestore_worker_restarts", "Worker processes that ended and were replaced.", registry=registry
        )

    async def run(self) -> None:
        """Keep them running; when cancelled, end them."""
        async with asyncio.TaskGroup() as group:
            for number in self._numbers:
                group.create_task(self._keep(number), name=f"worker {number}")

    def reload(self) -> None:
        """Let the workers use the certificate that is on disk now."""
        for worker in self._running.values():
            worker.send(RELOAD)

    def set_log_level(self, level: str) -> None:
        """Let the workers log from another level on, and those that are started later too."""
        self._log_level = level
        for worker in self._running.values():
            worker.send(LOG_LEVEL + level.encode("ascii") + b"\n")

    def replace(self, number: int) -> None:
        """Kill a worker that hangs; `run` starts another in its place."""
        if (worker := self._running.get(number)) is not None:
            _log.error("killing a worker that does not answer", extra={"worker": number})
            worker.kill()

    async def drain(self, timeout_s: float) -> None:
        """Let the workers reject new requests; return when all have ended, or after `timeout_s`."""
        self._ending.set()
        for worker in self._running.values():
            worker.send(DRAIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for worker in list(self._running.values()):
                    await worker.drained.wait()

    async def _keep(self, number: int) -> None:
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S_MIN
        while not self._ending.is_set():
            began_at_s = loop.time()
            code = await self._run_one(number)
            if self._ending.is_set():
                return
            lived_s = loop.time() - began_at_s
            _log.error(
                "worker ended", extra={"worker": number, "exit_code": code, "lived_s": round(lived_s, 1)}
            )
            self._restarts.inc()
            pause_s = PAUSE_S_MIN if lived_s >= SETTLED_S else min(pause_s * 2, PAUSE_S_MAX)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ending.wait()

    async def _run_one(self, number: int) -> int:
        """Run a worker; return its exit code when it has ended."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # modules in the working directory are not ours
            "-m",
            "node.worker_main",
            "--worker",
            str(number),
            "--log-level",
            self._log_level,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(self._lock,),
        )
        worker = _Worker(process)
        self._running[number] = worker
        _log.info("worker started", extra={"worker": number, "pid": process.pid})
        try:
            if self._ending.is_set():
                worker.send(DRAIN)
            await worker.listen(self._ending)
            return await process.wait()
        finally:
            worker.drained.set()
            del self._running[number]
            await worker.end()


class _Worker:
    """One child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.drained = asyncio.Event()

    def send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):  # it has ended, which `run` is about to notice
            self._process.stdin.write(line)

    def hang_up(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):
            self._process.stdin.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def listen(self, ending: asyncio.Event) -> None:
        """Read the worker's messages until it ends or closes its output."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line == DRAINED:
                self.drained.set()
                if not ending.is_set():  # another process has ended it: replace it at once
                    self.hang_up()

    async def end(self) -> None:
        """End the worker in any case."""
        self.hang_up()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            _log.warning("killing a worker that does not end", extra={"pid": self._process.pid})
            self.kill()
            await self._process.wait()
