"""Stops work in a thread when the task that waits for it is cancelled. Shared by all that copy or hash.

A thread cannot be cancelled, and a process that is to end waits for its threads: work of minutes asks now and
then whether it is still wanted.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")


class WorkStopped(Exception):
    """The caller has stopped waiting for this work: its result is void."""


class Stop(threading.Event):
    """Set when the work is to end."""

    def check(self) -> None:
        """Raises WorkStopped once this is set. To be called often."""
        if self.is_set():
            raise WorkStopped

    def rest(self, pause_s: float) -> None:
        """Leave disk and processor to others for this time. Raises WorkStopped as soon as this is set."""
        if self.wait(pause_s):
            raise WorkStopped


NEVER: Final = Stop()  # for work whose caller waits in any case


async def run_in_thread(work: Callable[[Stop], T]) -> T:
    """`work` in a thread, with what is set there once the caller is cancelled."""
    stop = Stop()
    try:
        return await asyncio.to_thread(work, stop)
    finally:
        stop.set()
