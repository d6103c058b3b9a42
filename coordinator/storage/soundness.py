"""Whether a database file is one: its structure, as SQLite itself checks it. Blocking; changes nothing.

A row whose bytes have changed in place passes: that shows in digests
(coordinator/machine/execution/digests.py).
"""

import sqlite3
from contextlib import closing
from pathlib import Path


def flaw_in(path: Path, *, at_rest: bool, deep: bool = False) -> str:
    """The first thing that is wrong with the structure of a database, "" if nothing is.

    `at_rest`: nobody has it open, and it has no WAL. `deep`: tables and indexes are compared, too. Reads all
    of it: 0.3 s for 10^5 files, 2 s for 10^6, several times that if `deep`.
    """
    check = "integrity_check" if deep else "quick_check"
    options = "mode=ro&immutable=1" if at_rest else "mode=ro"
    address = f"{path.absolute().as_uri()}?{options}"
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
            (found,) = db.execute(f"PRAGMA {check}(1)").fetchone()
            return "" if found == "ok" else str(found)
    except sqlite3.DatabaseError as error:
        return str(error)
