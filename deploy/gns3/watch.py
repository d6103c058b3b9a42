"""Backups as time goes by: of all projects every so often, and of each project when it is closed.

What time may mend is told, and tried again. What only a person mends ends the watch, so that it is seen.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from ca.errors import FilestoreError
from deploy.gns3.server import Gns3Server, SignInRefused
from filestore_client.base.errors import Unauthorized, UntrustedServer

RECONNECT_PAUSE_S: Final = 5.0
SETTLE_S: Final = 1.0  # what is closed one after another is backed up together
CLOSED: Final = "project.closed"
LASTING: Final = (SignInRefused, Unauthorized, UntrustedServer)  # nothing can be done until a person acts

BackUp = Callable[[frozenset[str] | None], Awaitable[None]]


class Watch:
    """`back_up` is awaited with the ids of projects, or None for all; what it raises ends the watch."""

    def __init__(
        self,
        server: Gns3Server,
        back_up: BackUp,
        *,
        every_s: float | None,
        only: frozenset[str] | None = None,
        tell: Callable[[FilestoreError], None],
    ) -> None:
        self._server, self._back_up, self._every_s = server, back_up, every_s
        self._only, self._tell = only, tell
        self._closed: set[str] = set()
        self._something = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled. Raises what `back_up` does, and SignInRefused."""
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
                due_at += self._every_s
                self._closed.clear()
                await self._back_up(None)
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
                await self._back_up(closed)

    async def _listen(self) -> None:
        """Note what is closed. A connection that is lost is made anew; the next run of all finds the rest."""
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
                    self._tell(error)
                told = True
            await asyncio.sleep(RECONNECT_PAUSE_S)
