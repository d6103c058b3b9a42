"""Why a coordinator ended, where an operator can do something about it."""

import sqlite3
from typing import TypeVar

from coordinator.http.listener import CannotListen
from coordinator.member.state_digests import StateDiverged
from coordinator.raft.replication import AcknowledgedLost, CommittedContradicted
from coordinator.rpc.instances import Displaced
from coordinator.storage.raft_log import LogDamaged, LogFailed
from coordinator.storage.reopening import StateLost
from coordinator.storage.state_damage import StateDamaged, damage_in, unreadable_in
from coordinator.storage.state_store import TooOld

_Error = TypeVar("_Error", bound=BaseException)


def reason_of(group: BaseExceptionGroup) -> Exception | None:
    """What an operator can do something about, if that ended the process."""
    for kind in (StateDiverged, TooOld, CannotListen, Displaced, LogDamaged, LogFailed):
        if (found := first_in(group, kind)) is not None:
            return found
    error = first_in(group, StateDamaged) or first_in(group, sqlite3.Error)
    if error is not None and (trouble := damage_in(error) or unreadable_in(error)) is not None:
        return trouble
    if (lost := first_in(group, AcknowledgedLost)) is not None:
        return StateLost(
            f"Entries are gone that this member acknowledged ({lost}): its directory is an earlier copy."
            " Set this member up again with `filestore coordinator rebuild`, under a new name."
        )
    if (contradicted := first_in(group, CommittedContradicted)) is not None:
        return StateLost(
            f"The leader lacks what was committed ({contradicted}): those that elected it have lost changes"
            " that were acknowledged. They are here: copy this directory before anything else, and see"
            " FilestoreCoordinatorDiverged in the runbook."
        )
    return None


def first_in(group: BaseExceptionGroup, kind: type[_Error]) -> _Error | None:
    """One exception of this kind in a group, however deep."""
    for error in group.exceptions:
        if isinstance(error, kind):
            return error
        if isinstance(error, BaseExceptionGroup) and (found := first_in(error, kind)) is not None:
            return found
    return None
