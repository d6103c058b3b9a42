"""The members of the Raft group as the state knows them: addresses for everyone, tombstones for ever.

The id of a removed member stays recorded: a member that comes back under it would have forgotten its votes,
and a certificate that names it must stay dead.
"""

import sqlite3

from coordinator.machine.execution.change import Change
from metadata.model.records import REMOVED, CoordinatorRecord
from metadata.protocol.commands import RecordCoordinators


def record(change: Change, command: RecordCoordinators) -> None:
    """Write the whole new list; who is no longer in it becomes a tombstone."""
    change.db.execute("UPDATE coordinators SET role = ?", (REMOVED,))
    change.db.executemany(
        "INSERT INTO coordinators (coordinator_id, address, peer_port, api_port, role) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (coordinator_id) DO UPDATE SET address = excluded.address,"
        " peer_port = excluded.peer_port, api_port = excluded.api_port, role = excluded.role",
        [(c.coordinator_id, c.address, c.peer_port, c.api_port, c.role) for c in command.coordinators],
    )
    change.touch_view()


def list_current(db: sqlite3.Connection) -> list[CoordinatorRecord]:
    """Voters and learners, by id."""
    rows = db.execute(
        "SELECT coordinator_id, address, peer_port, api_port, role FROM coordinators WHERE role <> ?"
        " ORDER BY coordinator_id",
        (REMOVED,),
    ).fetchall()
    return [
        CoordinatorRecord(coordinator_id=i, address=a, peer_port=p, api_port=q, role=r)
        for i, a, p, q, r in rows
    ]


def list_removed(db: sqlite3.Connection) -> list[str]:
    """Ids that were members once."""
    rows = db.execute(
        "SELECT coordinator_id FROM coordinators WHERE role = ? ORDER BY coordinator_id", (REMOVED,)
    ).fetchall()
    return [coordinator_id for (coordinator_id,) in rows]
