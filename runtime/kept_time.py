"""The time that a coordinator keeps when the clocks of all members jump together, and the file with it.

No comparison of clocks shows such a jump. A steady clock, which is never set, does; but not which of the two
times is wrong. So the kept time passes at the pace of the steady clock, and follows the clocks once they have
shown another time for WAIT_S. Until then, only what has ended by both times is deleted, and changes are dated
by the later one: they never go back.

A start looks like a jump ahead by the time in which the coordinator did not run. That it was off counts as
part of the wait for an earlier jump: a lab that runs for four hours a week waits for its last pause alone.
"""

import logging
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from runtime.json_files import decode_sealed

WAIT_S: Final = (
    86_400.0  # an operator needs a day to notice that all clocks are wrong; then they are believed
)
STEP_MS: Final = 2 * 3_600_000  # back: accepted at once, such as a time zone mistaken for UTC
NEAR_MS: Final = 5 * 60_000  # a restart, and what a crash did not save: no pause; the way of an answer
STARTING_S: Final = 60.0  # longer than it takes to hear the clocks of others

_log = logging.getLogger(__name__)


class Doubt(Struct, frozen=True):
    """Another time that the clocks show, the closest one to the kept time since `since_s`, for `wait_s`.

    `ahead_ms`: of the running clock.
    """

    ahead_ms: float
    since_s: float
    wait_s: float


class SavedTime(Struct, frozen=True):
    """The clock state that a coordinator keeps over a restart.

    The running clock counts the seconds of running time over all starts: it showed `running_s`. The kept time
    is `ahead_ms` ahead of it, and has run evenly since `even_since_s`. `shown_ms` is what the clocks showed.
    """

    running_s: float
    shown_ms: int
    ahead_ms: float
    even_since_s: float
    doubt: Doubt | None = None

    @property
    def kept_ms(self) -> int:
        """The kept time at that moment."""
        return round(self.ahead_ms + self.running_s * 1000)


class KeptTime:
    """The kept time of one process. `at_s` is always the steady clock's. No I/O here."""

    def __init__(self, saved: SavedTime | None, shown_ms: int, at_s: float) -> None:
        """Begin when the clocks show `shown_ms`, with what the process before has saved, if there was one."""
        if saved is None:
            saved = SavedTime(0.0, shown_ms, float(shown_ms), 0.0)
        self._steady_ahead_s = at_s - saved.running_s
        self._started_s = saved.running_s + STARTING_S
        self._pause_ms = 0
        self._ahead_ms = saved.ahead_ms
        self._even_since_s = saved.even_since_s
        self._doubt = saved.doubt
        if 0 < shown_ms - saved.kept_ms <= NEAR_MS:
            self._ahead_ms += shown_ms - saved.kept_ms
        elif saved.doubt is not None:
            pause_s = max(0.0, (shown_ms - saved.shown_ms) / 1000)
            self._doubt = msgspec.structs.replace(saved.doubt, since_s=saved.doubt.since_s - pause_s)
        self.update(shown_ms, at_s)

    def update(self, shown_ms: int, at_s: float) -> int:
        """Return the kept time when the clocks show `shown_ms`."""
        running_s = at_s - self._steady_ahead_s
        ahead_ms = shown_ms - running_s * 1000
        if -STEP_MS <= ahead_ms - self._ahead_ms <= 0:
            self._ahead_ms, self._doubt = ahead_ms, None
        else:
            self._doubt = doubt = self._doubted(ahead_ms, running_s)
            if running_s - doubt.since_s >= doubt.wait_s:
                self._set(doubt.ahead_ms, running_s)
        kept_ms = round(self._ahead_ms + running_s * 1000)
        if running_s < self._started_s:
            self._pause_ms = max(self._pause_ms, shown_ms - kept_ms)
        return kept_ms

    def _doubted(self, ahead_ms: float, running_s: float) -> Doubt:
        doubt, is_ahead = self._doubt, ahead_ms > self._ahead_ms
        if doubt is None or (doubt.ahead_ms > self._ahead_ms) != is_ahead:
            # A clock that was wrong until it was set a minute after the first start is right a minute later.
            wait_s = WAIT_S if is_ahead else min(WAIT_S, running_s - self._even_since_s)
            return Doubt(ahead_ms, running_s, wait_s)
        closest = min if is_ahead else max
        return msgspec.structs.replace(doubt, ahead_ms=closest(doubt.ahead_ms, ahead_ms))

    def _set(self, ahead_ms: float, running_s: float) -> None:
        if abs(ahead_ms - self._ahead_ms) > STEP_MS:
            self._even_since_s = running_s
        self._ahead_ms = ahead_ms

    def follow(self, leader_ms: int, at_s: float) -> None:
        """Take over the kept time of the leader, which deletes by it, unless ours is near it."""
        running_s = at_s - self._steady_ahead_s
        ahead_ms = leader_ms - running_s * 1000
        if abs(ahead_ms - self._ahead_ms) > NEAR_MS:
            self._set(ahead_ms, running_s)

    def jump_ms(self, shown_ms: int, at_s: float) -> int:
        """Return how far the clocks are ahead of the kept time (ms); 0 if a step or a pause explains it."""
        gap_ms = shown_ms - self.update(shown_ms, at_s)
        return 0 if -STEP_MS <= gap_ms <= self._pause_ms + STEP_MS else gap_ms

    def to_saved(self, shown_ms: int, at_s: float) -> SavedTime:
        """Return what the next process of this coordinator is to know."""
        self.update(shown_ms, at_s)
        running_s = at_s - self._steady_ahead_s
        return SavedTime(running_s, shown_ms, self._ahead_ms, self._even_since_s, self._doubt)


def read_saved(path: Path, own_id: str) -> SavedTime | None:
    """Read what was saved last; None if nothing was, or the file cannot be read: the clocks count then."""
    try:
        return decode_sealed(path.read_bytes(), SavedTime, of=own_id)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning(
            "%s cannot be read: expiry uses the current clocks only",
            path.name,
            extra={"reason": str(error)},
        )
        return None
