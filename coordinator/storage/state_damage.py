"""Damage of a database, as SQLite reports it. Shared by the store, its checks, and the end of the process.

If a read of the state finds damage, the process ends: earlier reads may have been wrong already, and the
other coordinators have the same state intact.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from ca.errors import Internal, Unavailable
from runtime.sqlite import DATABASE_ERRORS

_PRIMARY: Final = 0xFF  # an extended code has the primary one in its lowest byte
_CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNREADABLE: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_READ,
        sqlite3.SQLITE_IOERR_SHORT_READ,
        sqlite3.SQLITE_IOERR_DATA,  # a checksum does not fit
        sqlite3.SQLITE_IOERR_CORRUPTFS,
    }
)
_REFUSED: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
_NO_TEXT: Final = "Could not decode to UTF-8"  # of the sqlite3 module itself, without a code


class StateDamaged(Unavailable):
    """The state on this coordinator's disk is damaged: another coordinator must answer."""


def damage_in(error: BaseException) -> StateDamaged | None:
    """Return the error for a damaged database; None for other errors."""
    if isinstance(error, StateDamaged):
        return error
    if not isinstance(error, DATABASE_ERRORS):
        return None
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # All text in the database was valid when it was written.
        is_damage = isinstance(error, UnicodeDecodeError) or str(error).startswith(_NO_TEXT)
    else:
        is_damage = code & _PRIMARY in _CORRUPT or code in _UNREADABLE
    return StateDamaged(f"state.sqlite is damaged: {error}") if is_damage else None


class StateUnreadable(Internal):
    """The disk fails to read or write the database, which may still be intact."""


def unreadable_in(error: BaseException) -> StateUnreadable | None:
    """Return the error for a database that the disk cannot read; None for other errors."""
    if not isinstance(error, sqlite3.Error):
        return None
    if getattr(error, "sqlite_errorcode", 0) & _PRIMARY not in _REFUSED:
        return None
    return StateUnreadable(
        f"state.sqlite cannot be used: {error}. Check the disk, and who owns the files. If they are "
        "lost, create this member again with `filestore coordinator rebuild`."
    )


def flaw_in(path: Path, *, at_rest: bool, deep: bool = False, mapped_bytes: int = 0) -> str:
    """Return the first fault in the structure of a database, "" if there is none.

    `at_rest`: no process has it open, and it has no WAL. `deep`: tables and indexes are compared, too. Reads
    all of it: 2 s for 10^6 files, half a minute for 10^7, several times that if `deep`. Changes nothing. A
    row with other bytes is not found: digests show that (coordinator/machine/execution/digests.py).

    `mapped_bytes`: this much is mapped, 2 GiB at most. Missing pages are then read together with their
    neighbours. If the disk does not return a page, SIGBUS ends the process: only for a process without other
    work.
    """
    check = "integrity_check" if deep else "quick_check"
    options = "mode=ro&immutable=1" if at_rest else "mode=ro"
    address = f"{path.absolute().as_uri()}?{options}"
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
            db.execute(f"PRAGMA mmap_size = {mapped_bytes}")
            (found,) = db.execute(f"PRAGMA {check}(1)").fetchone()
            return "" if found == "ok" else str(found)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return str(error)
