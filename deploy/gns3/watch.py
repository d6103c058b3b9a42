"""Continuous backups: of all projects at an interval, and of each project when it is closed.

Temporary failures are reported and retried. After a failure, the next project is tried if the server answers
a short request. A failure that needs a person ends the watch, so that it is noticed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from ca.errors import FilestoreError
from ca.errors import Unavailable as ServerUnavailable
from deploy.base.failures import FAILURES, Failure
from deploy.gns3.server import Gns3Server, SignInRefused
from filestore_client.base.errors import Unauthorized, Unavailable, UntrustedServer

RECONNECT_PAUSE_S: Final = 5.0
SETTLE_S: Final = 1.0  # what is closed one after another is backed up together
RETRY_S_MIN: Final = 10.0
RETRY_S_MAX: Final = 3600.0
CLOSED: Final = "project.closed"
QUESTION_S_MAX: Final = 5.0
LASTING: Final = (SignInRefused, Unauthorized, UntrustedServer)  # nothing can be done until a person acts
ABSENT: Final = (ServerUnavailable, Unavailable)  # of one request; the next one may be answered

BackUp = Callable[[frozenset[str] | None], Awaitable[object]]


def retry_pauses() -> Iterator[float]:
    """Yield the pauses before further tries, in seconds: each is twice the one before, up to a bound."""
    pause_s = RETRY_S_MIN
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, RETRY_S_MAX)


class Watch:
    """`back_up` is awaited with the ids of projects, or None for all. It raises if a run could not begin.

    `tell` is called with what failed, and the pause after which it is tried again.
    """

    def __init__(
        self,
        server: Gns3Server,
        back_up: BackUp,
        *,
        every_s: float | None,
        only: frozenset[str] | None = None,
        tell: Callable[[Failure | OSError, float], None],
    ) -> None:
        self._server, self._back_up, self._every_s = server, back_up, every_s
        self._only, self._tell = only, tell
        self._closed: set[str] = set()
        self._something = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled. Raises what only a person mends."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen())
                group.create_task(self._work())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _work(self) -> None:
        due_at = time.monotonic() if self._every_s is not None else None
        while True:
            if due_at is not None and self._every_s is not None and time.monotonic() >= due_at:
                self._closed.clear()
                await self._run(None)
                while due_at <= time.monotonic():  # what came due meanwhile is not made up for
                    due_at += self._every_s
            left_s = None if due_at is None else max(0.0, due_at - time.monotonic())
            try:
                async with asyncio.timeout(left_s):
                    await self._something.wait()
                    await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                continue
            self._something.clear()
            closed, self._closed = frozenset(self._closed), set()
            if closed:
                await self._run(closed)

    async def _run(self, project_ids: frozenset[str] | None) -> None:
        """Back up, and try again while the run cannot begin."""
        for pause_s in retry_pauses():
            try:
                await self._back_up(project_ids)
            except LASTING:
                raise
            except (*FAILURES, OSError) as error:
                self._tell(error, pause_s)
            else:
                return
            await asyncio.sleep(pause_s)

    async def _listen(self) -> None:
        """Note closed projects.

        A lost connection is reopened, and the next run of all projects finds the rest.
        """
        told = False
        while True:
            try:
                async for notification in self._server.notifications():
                    told = False
                    project_id = str(notification.event.get("project_id", ""))
                    if notification.action == CLOSED and (self._only is None or project_id in self._only):
                        self._closed.add(project_id)
                        self._something.set()
            except LASTING:
                raise
            except FilestoreError as error:
                if not told:
                    self._tell(error, RECONNECT_PAUSE_S)
                told = True
            await asyncio.sleep(RECONNECT_PAUSE_S)


class Patience:
    """Short questions; those without an answer are waited for until the deadline in all."""

    def __init__(self, deadline_s: float) -> None:
        self._left_s = deadline_s

    async def is_over(self, error: Failure, question: Callable[[], Awaitable[object]]) -> bool:
        """Return whether the next items would fail in the same way. If that is unclear, `question` is called.

        It has QUESTION_S_MAX for its answer, within the rest of the deadline.
        """
        if not isinstance(error, ABSENT):
            return isinstance(error, LASTING)
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(min(QUESTION_S_MAX, self._left_s)):
                await question()
        except (*FAILURES, TimeoutError):
            self._left_s -= time.monotonic() - asked_at
            return True
        return False
