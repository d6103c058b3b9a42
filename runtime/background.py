"""Background work of a process: a step that is repeated until the process ends.

A `Work` defines its step, and when the next one is due: after a pause, when an event is set, or both, with
the first of them. A failed step is logged once per reason and counted; the next one follows after a pause
that grows. `Works` owns the tasks of a process, ends them, and lists its work for operators. A work belongs
to the set in whose tasks it runs.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

import prometheus_client
from msgspec import Struct

from ca.errors import FilestoreError
from runtime.clock import now_ms
from runtime.failures import Backoff
from runtime.logs import LastingTroubles
from runtime.wording import reason_of

GRID_S: Final = 1.0  # pauses of this and more end together with others of the process
RETRY_S: Final = 1.0  # after a failure of work without an interval of its own
REASON_CHARS_MAX: Final = 512

_log = logging.getLogger(__name__)
_TROUBLES: Final = LastingTroubles(_log)
_WORKS: Final[ContextVar["Works | None"]] = ContextVar("works", default=None)  # of the process of this task


class Pause(NamedTuple):
    """Returned by a step if the next one is due at an unusual time. None: when the event is set."""

    s: float | None


DONE: Final = Pause(-1.0)  # a step that returns this was the last


Step = Callable[[], Awaitable[Pause | None]]
Outcome = Callable[[Exception | None], None]  # is called after each step, with what it failed with


class WorkState(Struct, frozen=True, kw_only=True):
    """How a work is. Times are of this machine's clock (ms); 0 for never. `target`: whom it is for."""

    name: str
    target: str
    state: Literal["working", "waiting", "failing"]
    steps: int
    failures: int
    failures_in_row: int
    reason: str
    began_at_ms: int
    took_s: float
    failed_at_ms: int
    next_at_ms: int


class Work:
    """One background work. `run` takes its steps until it is cancelled."""

    def __init__(
        self,
        name: str,
        step: Step,
        *,
        every_s: float | None = None,
        first_s: float | None = 0.0,
        event: asyncio.Event | None = None,
        ready: Callable[[], Awaitable[None]] | None = None,
        retry_s: float | None = None,
        retry_s_max: float | None = None,
        fails: tuple[type[Exception], ...] = (FilestoreError, OSError),
        trouble: str = "",
        level: int = logging.WARNING,
        outcome: Outcome | None = None,
        target: str = "",
    ) -> None:
        """Define the work.

        `name` is a fixed word or two, shown in a metric; `target` is an id, which is not.

        `every_s` is the time from the end of a step to the next; None: only when `event` is set. `first_s` is
        the time before the first step; None as above. Setting the event during a step causes another one.
        `ready` is awaited once, before all steps.

        If a step raises one of `fails`, the next one follows after `retry_s` (default: `every_s`), doubled
        each time up to `retry_s_max` (default: the same). Any other exception ends `run`. `trouble` and
        `level` define what is logged then, once per reason.
        """
        self.name, self.target = name, target
        self._step, self._fails, self._outcome = step, fails, outcome
        self._every_s, self._first_s, self._event = every_s, first_s, event
        self._ready, self._level = ready, level
        self._trouble = trouble or f"background work failed: {name}"
        retry_s = (every_s or RETRY_S) if retry_s is None else retry_s
        rest_s_max = max(retry_s, (every_s or 0.0) if retry_s_max is None else retry_s_max)
        self._backoff = Backoff(rest_s_min=retry_s, rest_s_max=rest_s_max)
        self._count_failure: Callable[[], None] = lambda: None
        self._state: Literal["working", "waiting", "failing"] = "waiting"
        self._steps = self._failures = self._in_row = 0
        self._reason = ""
        self._began_at_ms = self._failed_at_ms = self._next_at_ms = 0
        self._took_s = 0.0

    def state(self) -> WorkState:
        """How it is now."""
        return WorkState(
            name=self.name,
            target=self.target,
            state=self._state,
            steps=self._steps,
            failures=self._failures,
            failures_in_row=self._in_row,
            reason=self._reason,
            began_at_ms=self._began_at_ms,
            took_s=round(self._took_s, 3),
            failed_at_ms=self._failed_at_ms,
            next_at_ms=self._next_at_ms,
        )

    def note_success(self) -> None:
        """The step under way goes well, however it ends: what failed before does not count any more."""
        self._in_row, self._reason = 0, ""
        self._backoff.note_success(self.name)

    def count_failures_with(self, count_failure: Callable[[], None]) -> None:
        """Call this for each failure from now on."""
        self._count_failure = count_failure

    async def run(self) -> None:
        """Run step after step, until cancelled. Raises what a step raises, except for `fails`."""
        works = _WORKS.get()
        if works is not None:
            works.add(self)
        try:
            if self._ready is not None:
                await self._ready()
            await self._wait(self._first_s)
            while True:
                if (pause := await self._take_step()) is DONE:
                    return
                await self._wait(self._every_s if pause is None else pause.s)
        finally:
            if works is not None:
                works.discard(self)

    async def _take_step(self) -> Pause | None:
        """Do a step. If the event is set from here on, another step follows."""
        if self._event is not None:
            self._event.clear()
        began_at_s = time.monotonic()
        self._began_at_ms, self._next_at_ms, self._state = now_ms(), 0, "working"
        try:
            pause = await self._step()
        except self._fails as error:
            self._note(began_at_s, error)
            self._next_at_ms = now_ms() + int(self._backoff.left_s(self.name) * 1000)
            await asyncio.sleep(self._backoff.left_s(self.name))
            return Pause(0.0)
        self._note(began_at_s, None)
        return pause

    def _note(self, began_at_s: float, error: Exception | None) -> None:
        self._steps += 1
        self._took_s = time.monotonic() - began_at_s
        self._state = "waiting" if error is None else "failing"
        if error is None:
            self.note_success()
        else:
            self._failures, self._in_row = self._failures + 1, self._in_row + 1
            self._reason, self._failed_at_ms = reason_of(error)[:REASON_CHARS_MAX], now_ms()
            self._backoff.note_failure(self.name, self._reason)
            facts = {"work": self.name} | ({"target": self.target} if self.target else {})
            if self._level > logging.DEBUG:
                _TROUBLES.note(self._trouble, self._reason, level=self._level, **facts)
            else:
                _log.debug("%s", self._trouble, extra={"reason": self._reason, **facts})
            self._count_failure()
        if self._outcome is not None:
            self._outcome(error)

    async def _wait(self, pause_s: float | None) -> None:
        if pause_s is not None:
            self._next_at_ms = now_ms() + int(pause_s * 1000)
            pause_s = _on_grid(pause_s, asyncio.get_running_loop().time())
        if self._event is None:
            assert pause_s is not None, f"{self.name}: nothing would begin the next step"
            await asyncio.sleep(pause_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._event.wait()


class Works:
    """The background work of one process, as an async context manager: at its end all of it has ended.

    A task that fails ends the others, as in a TaskGroup.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._failures = prometheus_client.Counter(
            "filestore_work_failures",
            "Failed steps of background work, by the name of the work.",
            ["work"],
            registry=registry,
        )
        self._running: set[Work] = set()
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._token = _WORKS.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _WORKS.reset(self._token)
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def start(self, name: str, running: Coroutine[Any, Any, None]) -> None:
        """Run this until the end of the set, or until it returns. `name`: of its task."""
        self._tasks.append(self._group.create_task(running, name=name))

    def add(self, work: Work) -> None:
        """List it from now on, and count its failures."""
        self._running.add(work)
        work.count_failures_with(self._failures.labels(work.name).inc)

    def discard(self, work: Work) -> None:
        """List it no more."""
        self._running.discard(work)

    def states(self) -> list[WorkState]:
        """All work that runs now, by name and target."""
        states = (work.state() for work in self._running)
        return sorted(states, key=lambda state: (state.name, state.target))


def _on_grid(pause_s: float, now_s: float) -> float:
    """A pause of about this length, which ends when others do: one wake-up for all of them."""
    if pause_s < GRID_S:
        return pause_s
    return round((now_s + pause_s) / GRID_S) * GRID_S - now_s


async def run_all(*works: Work) -> None:
    """Run these works concurrently until cancelled, or until one fails."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work.run(), name=work.name)
