"""The state as it is at one entry of the log, to be read for as long as it takes, while changes go on.

An open read transaction of SQLite's. The WAL grows as long as it is open. Blocking, but for `pin`, which is
short.
"""

import sqlite3
import time
from pathlib import Path

from coordinator.machine.execution.digests import whole_digest
from coordinator.protocol.commands import HashWhole, decode_envelope
from coordinator.raft.messages import Entry, EntryKind

_WHOLE_TAG = b"hash_whole"  # spares decoding every other entry
PAUSE_S = 0.002  # after each few thousand rows: others want this processor, and Python's lock, too


class Pinned:
    """The state at `index`. Used by one thread at a time; closed by whoever was given it."""

    def __init__(self, path: Path) -> None:
        """At the last entry that was applied. Raises sqlite3.Error."""
        address = f"{path.absolute().as_uri()}?mode=rw"
        self.db = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        try:
            self.db.execute("PRAGMA query_only = ON")
            self.db.execute("BEGIN")
            (self.index,) = self.db.execute("SELECT log_index FROM applied").fetchone()
        except BaseException:
            self.db.close()
            raise

    def digest(self) -> str:
        """Of all the rows. Raises sqlite3.Error for what cannot be read."""
        return whole_digest(self.db, pause=_pause)

    def close(self) -> None:
        """Let the WAL begin anew."""
        self.db.close()


def is_whole_hash(entry: Entry) -> bool:
    """Whether all of the state is hashed as it is after this entry."""
    is_likely = entry.kind is EntryKind.COMMAND and _WHOLE_TAG in entry.data
    return is_likely and isinstance(decode_envelope(entry.data).command, HashWhole)


def up_to_whole_hash(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Entries up to the first after which all of the state is hashed, and those that follow."""
    for end, entry in enumerate(entries, 1):
        if is_whole_hash(entry):
            return entries[:end], entries[end:]
    return entries, []


def content_digest(path: Path) -> str:
    """Of all the rows of a database that is at rest. Raises sqlite3.Error."""
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    db = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        return whole_digest(db, pause=_pause)
    finally:
        db.close()


def _pause() -> None:
    time.sleep(PAUSE_S)
