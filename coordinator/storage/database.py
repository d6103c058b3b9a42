"""Open the file of the state: its connections, its WAL, and the tables of this version.

SQLite, blocking. The writer only checkpoints explicitly, never automatically: see Store.

Tested by tests/unit/coordinator/machine/execution/test_rules.py.
"""

import secrets
import sqlite3
from contextlib import ExitStack, closing
from importlib.resources import files
from pathlib import Path

from ca.errors import Internal
from ca.secretfiles import SECRET_MODE, reserve_secret, sync_directory
from coordinator.machine.execution.change import rules_in_force
from metadata.model.later_fields import LATER
from metadata.model.rules import FIRST, RULES
from runtime.sqlite import DATABASE_ERRORS, WAL_BYTES_MAX, reserve_wal

NOTED_MAX = 2**31 - 1
_CACHED_STATEMENTS = 512  # every statement of the machine stays prepared
_READ_CACHE_KIB = 16 * 1024
_WRITE_CACHE_KIB = 64 * 1024  # the upper levels of every index of a million files


class UnknownRules(Internal):
    """The state needs rules that this program does not know; no entry of the batch was applied."""


def connect(path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Return writer and reader of a database file, which is created if it does not exist; both or none.

    Only its owner can access it and the files that SQLite puts next to it. Its name and that of its WAL are
    durable on return. SQLite syncs their directory too, but reports no failure of that. It would then write
    into the database changes that only the WAL can repair, whose name a power cut removes. Raises
    sqlite3.Error, OSError.
    """
    try:
        reserve_secret(path)
    except FileExistsError:
        path.chmod(SECRET_MODE)  # by name: closing a descriptor of a database ends the locks on it
    with ExitStack() as opened:
        writer = opened.enter_context(closing(_opened(path)))
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA synchronous = NORMAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")  # see Store._shorten_wal
        writer.execute("PRAGMA temp_store = MEMORY")
        writer.execute(f"PRAGMA cache_size = -{_WRITE_CACHE_KIB}")
        writer.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        reserve_wal(writer, path)
        sync_directory(path.parent)
        reader = opened.enter_context(closing(_opened(path)))
        reader.execute("PRAGMA query_only = ON")
        reader.execute(f"PRAGMA cache_size = -{_READ_CACHE_KIB}")
        opened.pop_all()
    return writer, reader


def read_at_rest(path: Path) -> tuple[int, int, int]:
    """Return the last log entry in the file itself, without its WAL, its mark and its note.

    Zeros if that cannot be read. Only while this process has no connection to it: closing a file ends the
    locks on it.
    """
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
            row = db.execute("SELECT log_index FROM applied").fetchone()
            is_found = bool(row) and isinstance(row[0], int)
            return (row[0], mark_of(db), read_rest_note(db)) if is_found else (0, 0, 0)
    except DATABASE_ERRORS:
        return 0, 0, 0


def mark_of(writer: sqlite3.Connection) -> int:
    """Return the mark that distinguishes this file from others, 0 for none.

    Copies have the same mark, until they get another one.
    """
    return int(writer.execute("PRAGMA user_version").fetchone()[0])


def new_mark(writer: sqlite3.Connection) -> int:
    """Give the file a new mark, which it has only after a checkpoint; nothing is noted of it."""
    write_rest_note(writer, 0)
    mark = secrets.randbelow(1 << 30) + 1
    writer.execute(f"PRAGMA user_version = {mark}")
    return mark


def read_rest_note(db: sqlite3.Connection) -> int:
    """Return the last log entry that the file itself had when its WAL restarted, 0 if none was noted.

    The note is in PRAGMA application_id: 31 bits, which 0.1.0 leaves unchanged.
    """
    return int(db.execute("PRAGMA application_id").fetchone()[0])


def write_rest_note(db: sqlite3.Connection, log_index: int) -> None:
    """Note that entry, in the open transaction; 0 for none."""
    db.execute(f"PRAGMA application_id = {log_index if log_index <= NOTED_MAX else 0}")


def prepare(writer: sqlite3.Connection) -> None:
    """Create missing tables. Raises UnknownRules."""
    writer.execute("PRAGMA foreign_keys = ON")
    if writer.execute("SELECT 1 FROM sqlite_schema WHERE name = 'rules'").fetchone() is not None:
        known_rules(writer)  # first: tables of other rules may lack columns of the schema
    schema = files("coordinator.storage").joinpath("schema.sql").read_text("utf-8")
    schema += "".join(each.schema for each in LATER)
    writer.executescript(schema)
    writer.execute("INSERT OR IGNORE INTO blob_totals (one, blobs, bytes) VALUES (1, 0, 0)")
    writer.execute("INSERT OR IGNORE INTO applied (one, log_index, term, view_version) VALUES (1, 0, 0, 0)")


def known_rules(db: sqlite3.Connection) -> int:
    """Return the rules in force. Raises UnknownRules for rules that this program does not know."""
    found = rules_in_force(db)
    if found > RULES:
        raise UnknownRules(
            f"The cluster uses rules {found}, and this program knows those up to {RULES}."
            " Run a newer version of Filestore here."
        )
    if found < FIRST:
        raise UnknownRules(
            "This metadata is from before release 0.1.0, which this program cannot read: upgrade all members"
            " to 0.1.0 first."
        )
    return found


def newest_key(db: sqlite3.Connection, purpose: str) -> tuple[str, str, bytes] | None:
    """Return (kid, public half, wrapped private half) of the newest key for a purpose, or None."""
    row = db.execute(
        "SELECT kid, public, wrapped FROM keys WHERE purpose = ? ORDER BY created_at_ms DESC, kid LIMIT 1",
        (purpose,),
    ).fetchone()
    return None if row is None else (row[0], row[1], bytes(row[2]))


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
        timeout=10.0,
    )
