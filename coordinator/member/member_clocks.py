"""The time that most members' clocks show. Shared by proposals, jobs, tokens and status: one judgement.

This coordinator's own clocks are handed in.

Nodes and coordinators tell their clocks with each heartbeat. What one showed is kept with the moment when it
came, by a clock that is never set: when ours is set, that is known at once, before anybody tells one again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ca.identity import Identity, Role
from metadata.model.safety_limits import are_split, correction_ms
from runtime.clock import boot_time_s, now_ms

MEDIAN_AGE_MAX_S: Final = 0.1  # of the median of all clocks
SET_MS: Final = 20.0  # by less no clock is set
CLOCK_AGE_MAX_S: Final = 60.0  # a clock that was shown so long ago still counts: it has hardly drifted since
NODES_MIN: Final = 2  # with our own that is three
WRONG_LOOKS: Final = 2  # in a row: one heartbeat that was long under way is no reason to hand over


@dataclass(frozen=True, slots=True)
class _Median:
    """What was found at `at_s`, when our clock was `set_to_ms` ahead of the steady one."""

    at_s: float
    set_to_ms: float
    correction_ms: int


class MemberClocks:
    """Of all members that are heard. For one event loop."""

    def __init__(
        self, *, wall_ms: Callable[[], int] = now_ms, steady_s: Callable[[], float] = boot_time_s
    ) -> None:
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        self._shown: dict[tuple[Role, str], tuple[int, float]] = {}  # by member: what it showed, and when
        self._wrong_looks = 0
        self._median: _Median | None = None

    def receive(self, member: Identity, at_ms: int) -> None:
        """Another member's clock showed `at_ms` a moment ago; 0 is what older versions say.

        Whoever calls has checked that it is a member, so the table is bounded by their number.
        """
        if at_ms > 0:
            self._median = None
            self._shown[member.role, member.id] = (at_ms, self._steady_s())

    def offsets_ms(self) -> list[int]:
        """By how much other clocks differ from ours (ms): theirs less ours.

        They are the clocks of the nodes, which all coordinators hear alike. Where fewer than NODES_MIN are
        heard, or as many are far from ours as are not, those of the coordinators are added: a node may run on
        the machine whose clock is wrong, as this coordinator does.
        """
        at_s, at_ms = self._steady_s(), self._wall_ms()
        self._shown = {who: shown for who, shown in self._shown.items() if at_s - shown[1] <= CLOCK_AGE_MAX_S}
        offsets_ms = {
            who: shown_ms + int((at_s - shown_at_s) * 1000) - at_ms
            for who, (shown_ms, shown_at_s) in self._shown.items()
        }
        nodes_ms = [offset_ms for (role, _), offset_ms in offsets_ms.items() if role is Role.NODE]
        is_told = len(nodes_ms) >= NODES_MIN and not are_split(nodes_ms)
        return nodes_ms if is_told else list(offsets_ms.values())

    def correction_ms(self) -> int:
        """By how much our clock must be corrected (ms): see `safety_limits.correction_ms`.

        Every change and read asks: what was found a moment ago holds while nobody was heard since, and our
        clock was not set.
        """
        at_s, at_ms = self._steady_s(), self._wall_ms()
        median = self._median
        if (
            median is None
            or at_s - median.at_s > MEDIAN_AGE_MAX_S
            or abs(at_ms - at_s * 1000 - median.set_to_ms) > SET_MS
        ):
            median = self._median = _Median(at_s, at_ms - at_s * 1000, correction_ms(self.offsets_ms()))
        return median.correction_ms

    def now_ms(self) -> int:
        """What most clocks show: ours, unless most others call it wrong."""
        return self._wall_ms() + self.correction_ms()

    def ending_ms(self) -> int:
        """The earlier of both: by a time that is in doubt nothing ends that was not over by either."""
        return self._wall_ms() + min(0, self.correction_ms())

    def look(self) -> bool:
        """Whether most others have called our clock wrong at WRONG_LOOKS looks in a row."""
        self._wrong_looks = self._wrong_looks + 1 if self.correction_ms() else 0
        return self._wrong_looks >= WRONG_LOOKS
