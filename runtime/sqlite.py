"""Reserve space for the WAL of SQLite files, and check tables at low cost. Shared by coordinators and nodes.

All calls block.

Tested by tests/unit/coordinator/storage/test_state_store.py.
"""

import logging
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Final

# The sqlite3 module raises UnicodeDecodeError if a message of SQLite names a damaged part of the schema.
DATABASE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
WAL_RESERVED_BYTES = 8 << 20  # allocated at start: room for some thousand more changes on a full disk
WAL_BYTES_MAX = 64 << 20  # what the WAL shrinks to after a snapshot has held it back
STEPS_AT_ONCE = 20_000  # of SQLite's machine: a millisecond or a few
REST_S_MAX = 0.1

_log = logging.getLogger(__name__)


def integrity_of(path: Path, table: str, stop: threading.Event) -> str:
    """Return the inconsistency in a table and its indexes, or "" if there is none.

    It works a quarter of the time, as requests need the processors. It stops when `stop` is set, and when the
    WAL, which cannot be reset meanwhile, grows too long. Raises sqlite3.Error.
    """
    wal = path.with_name(f"{path.name}-wal")
    is_given_up = False
    rested_s = time.monotonic()

    def rest() -> int:
        nonlocal rested_s, is_given_up
        time.sleep(min(3 * (time.monotonic() - rested_s), REST_S_MAX))
        rested_s = time.monotonic()
        is_given_up = stop.is_set() or wal.stat().st_size > WAL_BYTES_MAX
        return int(is_given_up)

    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    ) as db:
        db.set_progress_handler(rest, STEPS_AT_ONCE)
        try:
            (found,) = db.execute("SELECT * FROM pragma_integrity_check(?)", (table,)).fetchone()
        except sqlite3.OperationalError:
            if not is_given_up:
                raise
            return ""
    return "" if found == "ok" else str(found)


def reserve_wal(writer: sqlite3.Connection, path: Path) -> None:
    """Reserve space for the WAL now, so that some more changes succeed on a full disk.

    The bytes after its last frame are not a valid frame, and end a recovery like the end of the file. The
    write lock keeps other processes from writing there in the meantime.
    """
    writer.execute("BEGIN IMMEDIATE")
    try:
        wal = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(wal).st_size < WAL_RESERVED_BYTES:
                os.posix_fallocate(wal, 0, WAL_RESERVED_BYTES)
        finally:
            os.close(wal)
    except OSError as error:
        _log.warning("cannot reserve space for changes on a full disk: %s", error.strerror)
    finally:
        writer.execute("ROLLBACK")
