"""Why a coordinator ended, if an operator can do something about it. Apart from `server`: no I/O.

Tested by tests/cluster/test_refused_starts.py.
"""

import sqlite3

from coordinator.member.state_digests import StateDiverged
from coordinator.raft.replication import AcknowledgedLost, CommittedContradicted
from coordinator.storage.database import UnknownRules
from coordinator.storage.raft_log import LogDamaged, LogFailed
from coordinator.storage.reopening import StateLost
from coordinator.storage.state_damage import StateDamaged, damage_in, unreadable_in
from metadata.rpc.instances import Displaced
from runtime.lifetime import first_in
from web.listener import CannotListen


def reason_of(group: BaseExceptionGroup) -> Exception | None:
    """Return the error that ended the process, if an operator can do something about it."""
    for kind in (StateDiverged, UnknownRules, CannotListen, Displaced, LogDamaged, LogFailed):
        if (found := first_in(group, kind)) is not None:
            return found
    error = first_in(group, StateDamaged) or first_in(group, sqlite3.Error)
    if error is not None and (trouble := damage_in(error) or unreadable_in(error)) is not None:
        return trouble
    if (lost := first_in(group, AcknowledgedLost)) is not None:
        return StateLost(
            f"Entries that this member acknowledged ({lost}) are gone: its directory is an old copy. "
            "Create this member again with `filestore coordinator rebuild`, under a new name."
        )
    if (contradicted := first_in(group, CommittedContradicted)) is not None:
        return StateLost(
            f"The leader lacks committed entries ({contradicted}): the members that elected it have "
            "lost acknowledged changes. They are stored here. Copy this directory before anything "
            "else, and see FilestoreCoordinatorDiverged in the runbook."
        )
    return None
