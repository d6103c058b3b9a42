"""The time that most members' clocks show. Shared by proposals, jobs, tokens and status: one judgement.

This coordinator's own clocks are passed in.

Nodes and coordinators report their clocks with each heartbeat. A report is stored with its arrival by a clock
that is never set: if our clock is set, that is known at once, before the next report. If all clocks are set
together, the kept time shows it (`runtime/kept_time.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ca.identity import Identity, Role
from ca.secretfiles import write_durable
from metadata.model.safety_limits import are_split, correction_ms
from runtime.background import Work
from runtime.clock import boot_time_s, now_ms
from runtime.json_files import encode_sealed
from runtime.kept_time import KeptTime, SavedTime

MEDIAN_AGE_MAX_S: Final = 0.1  # of the median of all clocks
SET_MS: Final = 20.0  # no clock is set by less
# a clock that was reported this long ago still counts: it has hardly drifted since
CLOCK_AGE_MAX_S: Final = 60.0
NODES_MIN: Final = 2  # three with our own
WRONG_LOOKS: Final = 2  # in a row: one slow heartbeat is no reason to hand over
SAVE_S: Final = 60.0  # a crash delays the expiry of records by as much

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """The result at `at_s`, when our clock was `set_to_ms` ahead of the steady one.

    Add `correction_ms` to our clock to get the time of most clocks, and `kept_ms` for the kept time.
    """

    at_s: float
    set_to_ms: float
    correction_ms: int
    kept_ms: int


class MemberClocks:
    """The clocks of all active members. For one event loop."""

    def __init__(
        self,
        *,
        wall_ms: Callable[[], int] = now_ms,
        steady_s: Callable[[], float] = boot_time_s,
        saved: SavedTime | None = None,
    ) -> None:
        """Use these clocks. `saved`: by the previous process."""
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        # By member: its clock, and when it was reported.
        self._shown: dict[tuple[Role, str], tuple[int, float]] = {}
        self._wrong_looks = 0
        self._found: _Found | None = None
        self._kept = KeptTime(saved, wall_ms(), steady_s())

    def receive(self, member: Identity, at_ms: int) -> None:
        """Record another member's clock, which showed `at_ms` a moment ago; 0 if unknown.

        The caller has checked that it is a member, so the table is bounded by their number.
        """
        if at_ms > 0:
            self._found = None
            self._shown[member.role, member.id] = (at_ms, self._steady_s())

    def offsets_ms(self) -> list[int]:
        """Return the offsets of other clocks from ours in ms: theirs minus ours.

        They are the clocks of the nodes, which all coordinators know in the same way. If fewer than NODES_MIN
        are known, or at least half are far from ours, those of the coordinators are added: a node may run on
        the same machine as this coordinator, with the same wrong clock.
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

    def follow(self, kept_ms: int) -> None:
        """Adopt the kept time that the leader reported a moment ago."""
        if kept_ms > 0:  # until 0.3.0: 0.1.0 reports none
            self._kept.follow(kept_ms, self._steady_s())
            self._found = None

    def _find(self) -> _Found:
        """Return the basis of all times here.

        Every change and read needs it: a recent result stays valid without a new heartbeat, and while our
        clock was not set.
        """
        at_s, at_ms = self._steady_s(), self._wall_ms()
        found = self._found
        if (
            found is None
            or at_s - found.at_s > MEDIAN_AGE_MAX_S
            or abs(at_ms - at_s * 1000 - found.set_to_ms) > SET_MS
        ):
            lacking_ms = correction_ms(self.offsets_ms())
            kept_ms = self._kept.update(at_ms + lacking_ms, at_s) - at_ms
            found = self._found = _Found(at_s, at_ms - at_s * 1000, lacking_ms, kept_ms)
        return found

    def correction_ms(self) -> int:
        """Return the correction of our clock in ms: see `safety_limits.correction_ms`."""
        return self._find().correction_ms

    def shown_ms(self) -> int:
        """Return the time of most clocks: ours, unless most others call it wrong.

        Certificates use it, as in TLS.
        """
        return self._wall_ms() + self.correction_ms()

    def kept_ms(self) -> int:
        """Return the time that does not jump with the clocks."""
        return self._wall_ms() + self._find().kept_ms

    def now_ms(self) -> int:
        """Return the time of the cluster: of most clocks, or the kept time while they are behind it."""
        found = self._find()
        return self._wall_ms() + max(found.correction_ms, found.kept_ms)

    def both_ms(self) -> tuple[int, int]:
        """Return the time of most clocks, and of the cluster: a certificate may be valid by either."""
        return self.shown_ms(), self.now_ms()

    def ending_ms(self) -> int:
        """Return the earliest of all times: a record must not expire by a doubtful time."""
        found = self._find()
        return self._wall_ms() + min(0, found.correction_ms, found.kept_ms)

    def jump_ms(self) -> int:
        """Return how far most clocks have jumped ahead of the kept time (ms); usually 0."""
        return self._kept.jump_ms(self.shown_ms(), self._steady_s())

    def look(self) -> bool:
        """Return whether most others have called our clock wrong at WRONG_LOOKS checks in a row."""
        self._wrong_looks = self._wrong_looks + 1 if self.correction_ms() else 0
        return self._wrong_looks >= WRONG_LOOKS

    async def keep_saved(self, path: Path, own_id: str) -> None:
        """Save the kept time each minute, for ever. A failing disk is reported once."""

        async def save() -> None:
            content = encode_sealed(self._kept.to_saved(self.shown_ms(), self._steady_s()), of=own_id)
            await asyncio.to_thread(write_durable, path, content)

        trouble = f"{path.name} cannot be written"
        await Work("kept time", save, every_s=SAVE_S, fails=(OSError,), trouble=trouble).run()
