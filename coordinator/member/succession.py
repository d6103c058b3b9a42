"""Choose the successor of a leader, among the active voters. No I/O here.

Tested by tests/unit/coordinator/member/test_fitness.py.
"""

from coordinator.raft.core import MemberProgress, Status
from coordinator.raft.messages import Reluctance
from coordinator.raft.progress import ProgressState

WHY_NOT = {  # for a member that is asked by name
    Reluctance.CLOCK_WRONG: "The clock of {} is wrong.",
    Reluctance.NO_ROOM: "The disk of {} is full: it would accept no changes.",
    Reluctance.STATE_WRONG: "The state of {} is wrong.",
    Reluctance.RECOVERING: "{} has lost the end of its log, and has not caught up yet.",
}


def successor(status: Status, *, reluctance_max: Reluctance) -> str:
    """Return the voter that should lead; "" if no active one is at most this reluctant.

    A voter that keeps up with the log is preferred, then the least reluctant, then the most advanced.
    """
    live = live_voters(status)
    most = min(reluctance_max, Reluctance.STATE_WRONG)  # a more reluctant one must not lead
    fit = [voter for voter, progress in live.items() if progress.reluctance <= most]
    return max(fit, key=lambda voter: (_merit(live[voter]), voter), default="")


def ready_successor(status: Status, *, reluctance_max: Reluctance) -> str:
    """Return the successor, if it can take over at once.

    A leader cannot transfer the lead to a voter that is far behind, and would accept no changes meanwhile.
    """
    target = successor(status, reluctance_max=reluctance_max)
    return target if target and _keeps_up(live_voters(status)[target]) else ""


def why_not(status: Status, target: str, *, reluctance: Reluctance) -> str:
    """Return why `target` should not lead in place of one with this reluctance; "" if it may."""
    progress = live_voters(status).get(target)
    if progress is None or progress.reluctance <= reluctance:
        return ""
    return WHY_NOT[progress.reluctance].format(target)


def live_voters(status: Status) -> dict[str, MemberProgress]:
    """Return the other active voters, as their leader sees them."""
    progress = status.progress
    return {
        voter: progress[voter]
        for voter in status.members.voters
        if voter != status.id and voter in progress and progress[voter].active
    }


def _keeps_up(progress: MemberProgress) -> bool:
    return progress.state is ProgressState.REPLICATE


def _merit(progress: MemberProgress) -> tuple[bool, int, int]:
    return _keeps_up(progress), -progress.reluctance, progress.match
