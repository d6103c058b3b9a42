"""Whether another coordinator should lead instead of this one.

The reason is a wrong state, lack of room, a wrong clock, or a slow disk.

A member with a wrong state, without room, or with a clock that most others call wrong reports that to the
leader and starts elections after the others. A leader hands over to a fitter member as soon as there is one.
A slow disk is known only by comparison, so only the leader hands over because of it.
"""

import contextlib
import logging

from ca.errors import Conflict
from coordinator.member.disk_pace import Pace
from coordinator.member.member import RaftMember
from coordinator.member.member_clocks import MemberClocks
from coordinator.member.succession import ready_successor
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import Reluctance

_log = logging.getLogger(__name__)


class Fitness:
    """The fitness of one member to lead. The caller must send the member's pending messages."""

    def __init__(self, member: RaftMember, clocks: MemberClocks) -> None:
        self.pace = Pace()
        self.is_clock_wrong = False
        self._has_jumped = False
        self.is_state_wrong = False
        self._member = member
        self._clocks = clocks
        self._has_room = True  # until the first check

    @property
    def has_room(self) -> bool:
        """Return False while the disk accepts no changes."""
        return self._has_room

    @has_room.setter
    def has_room(self, has_room: bool) -> None:
        self._has_room = has_room
        self._update_reluctance()

    def suspect(self) -> None:
        """Note that the state of this member is known to be wrong, from now on."""
        self.is_state_wrong = True
        self._update_reluctance()
        self._yield()

    def check(self, *, has_room: bool) -> None:
        """Check every few seconds; if others are fitter and this member leads, ask one to lead."""
        if has_room and not self._has_room:
            _log.warning("the disk has free space again")
        if self._has_room and not has_room:
            _log.error("the disk is full: only changes that free space are accepted")
        self._has_room = has_room
        self._look_at_clock()
        self._update_reluctance()
        self._yield()  # again and again: it may have become leader like that, or others may be fitter by now

    def _look_at_clock(self) -> None:
        was_wrong, self.is_clock_wrong = self.is_clock_wrong, self._clocks.look()
        if self.is_clock_wrong and not was_wrong:
            ahead_s = -self._clocks.correction_ms() / 1000
            _log.error(
                "this clock is wrong: it differs by %+.0f s from most other clocks, which are used instead",
                ahead_s,
            )
        if was_wrong and not self.is_clock_wrong:
            _log.warning("this clock agrees with most other clocks again")
        had_jumped, jump_ms = self._has_jumped, self._clocks.jump_ms()
        self._has_jumped = bool(jump_ms)
        if self._has_jumped and not had_jumped:
            _log.error("the clocks of most members have jumped by %+.0f s", jump_ms / 1000)
        if had_jumped and not self._has_jumped:
            _log.warning("the clocks of most members agree with the kept time again")

    def tick(self, *, at_s: float) -> None:
        """At each tick: ask another to lead while most are clearly faster than this disk."""
        leads = self._member.led_term > 0
        self.pace.note_term(self._member.term, leads=leads, at_s=at_s)
        if leads and self.pace.is_too_slow(at_s=at_s):
            self.pace.note_transfer(at_s=at_s)
            if self._hand_over(self._member.reluctance):
                _log.warning(
                    "the disks of most others are clearly faster than this one: transferring the lead"
                )

    def _update_reluctance(self) -> None:
        reasons = {
            Reluctance.CLOCK_WRONG: self.is_clock_wrong,
            Reluctance.NO_ROOM: not self._has_room,
            Reluctance.STATE_WRONG: self.is_state_wrong,
        }
        true = (reason for reason, is_so in reasons.items() if is_so)
        self._member.reluctance = max(true, default=Reluctance.WILLING)

    def _yield(self) -> None:
        if (own := self._member.reluctance) > Reluctance.WILLING:
            self._hand_over(Reluctance(own - 1))

    def _hand_over(self, reluctance_max: Reluctance) -> bool:
        """Ask a fit member to lead at once, at most this reluctant; return False without one."""
        target = ready_successor(self._member.status(), reluctance_max=reluctance_max)
        with contextlib.suppress(NotLeader, Conflict):
            if target:
                self._member.transfer_leader(target)
                return True
        return False
