"""Hold content of deleted files for snapshots. Apart from `machine.snapshots`, which needs `machine.blobs`.

Content of deleted files stays while a kept snapshot refers to it.
A held blob has a row with the newest snapshot that refers to it, and one reference more: so its replicas are
repaired, moved and checked like those of files. Holds end in the order of the snapshots. So the newest one
decides, and no snapshot needs a list of its content. A file is in a snapshot if it was created before the
last entry of the snapshot, and deleted after it; while a snapshot is being made, any file may be.

Tested by tests/unit/coordinator/machine/test_snapshots.py.
"""

import sqlite3

from coordinator.machine.execution.change import Change
from metadata.model.snapshot_records import HELD


def begin(change: Change, sha256: str, since: int) -> None:
    """Hold the content of a file that is deleted now, if a kept snapshot has the file.

    `since`: the log index of its creation.
    """
    db = change.db
    found = db.execute(
        "SELECT sequence FROM kept_snapshots WHERE hold = ? AND (log_index IS NULL OR log_index >= ?)"
        " ORDER BY sequence DESC LIMIT 1",
        (HELD, since),
    ).fetchone()
    if found is None:
        return
    earlier = db.execute("SELECT snapshot, size_bytes FROM held_blobs WHERE sha256 = ?", (sha256,)).fetchone()
    if earlier is None:
        (size_bytes,) = db.execute("SELECT size_bytes FROM blobs WHERE sha256 = ?", (sha256,)).fetchone()
        db.execute("INSERT INTO held_blobs VALUES (?, ?, ?)", (sha256, found[0], size_bytes))
        db.execute("UPDATE blobs SET reference_count = reference_count + 1 WHERE sha256 = ?", (sha256,))
        _count(db, found[0], 1, size_bytes)
    elif earlier[0] < found[0]:
        db.execute("UPDATE held_blobs SET snapshot = ? WHERE sha256 = ?", (found[0], sha256))
        _count(db, earlier[0], -1, -earlier[1])
        _count(db, found[0], 1, earlier[1])


def forget(db: sqlite3.Connection, sha256: str) -> bool:
    """Forget that content is held; return whether it was. The caller removes that reference."""
    row = db.execute(
        "DELETE FROM held_blobs WHERE sha256 = ? RETURNING snapshot, size_bytes", (sha256,)
    ).fetchall()
    for snapshot, size_bytes in row:
        _count(db, snapshot, -1, -size_bytes)
    return bool(row)


def _count(db: sqlite3.Connection, snapshot: int, blobs: int, size_bytes: int) -> None:
    db.execute(
        "UPDATE kept_snapshots SET held_blobs = held_blobs + ?, held_bytes = held_bytes + ?"
        " WHERE sequence = ?",
        (blobs, size_bytes, snapshot),
    )
