"""Deadlines of many concurrent waits, on one timer. Shared by both ends of calls.

A timer for each costs more than the rest of a small call, and nearly all are cancelled. Here, setting or
clearing a deadline is an entry of a dict; the timer fires at the earliest that was set, and finds most of
them cleared. If there are few waits, the timer is cancelled with the wait, so no wake-up is wasted.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SWEEP_S = 0.05  # between two checks; an overdue wait ends at most this long after its time
SELDOM_S = 0.1  # from one to the next
GRAIN_S = 0.001  # uvloop's timers count whole milliseconds, and may go off by as much too early

_K = TypeVar("_K", bound=Hashable)


class Deadlines(Generic[_K]):
    """`overdue` is called once for each key that is not cleared in time. For one event loop."""

    def __init__(self, overdue: Callable[[_K], None]) -> None:
        self._overdue = overdue
        self._ends_at: dict[_K, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._set_at = float("-inf")
        self._is_seldom = True

    def set(self, key: _K, timeout_s: float) -> None:
        """Set the deadline of `key`, replacing an earlier one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._is_seldom, self._set_at = now - self._set_at > SELDOM_S, now
        self._ends_at[key] = ends_at = now + timeout_s
        if self._timer is None or ends_at < self._timer_at:
            self._arm(loop, ends_at)

    def clear(self, key: _K) -> None:
        """It is over, or no longer waited for; a key without a deadline is fine."""
        self._ends_at.pop(key, None)
        if self._is_seldom and not self._ends_at:
            self.close()

    def close(self) -> None:
        """Nothing will be overdue any more."""
        self._ends_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._sweep)
        self._timer_at = at

    def _sweep(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time() + GRAIN_S
        for key in [key for key, ends_at in self._ends_at.items() if ends_at <= now]:
            # An expired one may clear others.
            if self._ends_at.pop(key, None) is not None:
                self._overdue(key)
        if self._ends_at and self._timer is None:
            # Not sooner, however many there are: each look goes through all of them.
            self._arm(loop, max(min(self._ends_at.values()), now + SWEEP_S))
