"""A trouble that lasts, such as a disk that fails: one line in the log when it begins, and one when it ends.

Each request, replica or pass that meets it would else write a line of its own, thousands of the same. On the
event loop.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

QUIET_S: Final = 60.0  # without anybody who met it: it is over
TROUBLES_MAX: Final = 64  # at a time; of more the first lines are all logged


@dataclass(slots=True)
class _Trouble:
    loop: asyncio.AbstractEventLoop
    met_at_s: float
    count: int


class LastingTroubles:
    """Those that one part of a process meets, by what is said of them."""

    def __init__(self, log: logging.Logger, *, quiet_s: float = QUIET_S) -> None:
        self._log = log
        self._quiet_s = quiet_s
        self._met: dict[tuple[str, str], _Trouble] = {}

    def met(self, what: str, reason: str, **facts: object) -> None:
        """Somebody has met it: logged with the facts of the first."""
        loop, key = asyncio.get_running_loop(), (what, reason)
        known = self._met.get(key)
        if known is not None and known.loop is loop:
            known.met_at_s, known.count = loop.time(), known.count + 1
            return
        self._log.error("%s", what, extra={"reason": reason, **facts})
        if len(self._met) < TROUBLES_MAX or known is not None:
            self._met[key] = _Trouble(loop, loop.time(), 1)
            loop.call_later(self._quiet_s, self._look, key)

    def _look(self, key: tuple[str, str]) -> None:
        trouble = self._met[key]
        left_s = trouble.met_at_s + self._quiet_s - trouble.loop.time()
        if left_s > 0:
            trouble.loop.call_later(left_s, self._look, key)
            return
        del self._met[key]
        what, reason = key
        facts = {"what": what, "reason": reason, "count": trouble.count}
        self._log.warning("this has not happened again for %.0f s", self._quiet_s, extra=facts)
