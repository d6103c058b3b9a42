"""The database that the log builds: applies batches of entries, answers queries. SQLite, blocking, no
asyncio.

WAL with synchronous=NORMAL: after a crash the database is consistent, maybe older than it was, and the log
replays from its applied index. One transaction for each batch, together with the index of its last entry.
"""

import sqlite3
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from coordinator import machine
from coordinator.commands import decode_envelope
from coordinator.queries import AnyQuery
from coordinator.raft.messages import Entry, EntryKind
from coordinator.raft.storage import Storage

REPLAY_BYTES = 4 << 20  # of log entries in one transaction
_CACHED_STATEMENTS = 512  # every statement of the machine stays prepared
_READ_CACHE_KIB = 16 * 1024


class Store:
    """One writing connection (used by one thread at a time) and one reading connection (used by the event
    loop).
    """

    def __init__(self, path: Path) -> None:
        self._writer = _connect(path)
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = NORMAL")
        self._writer.execute("PRAGMA foreign_keys = ON")
        self._writer.executescript(files("coordinator").joinpath("schema.sql").read_text("utf-8"))
        self._writer.execute(
            "INSERT OR IGNORE INTO applied (one, log_index, term, view_version) VALUES (1, 0, 0, 0)"
        )
        self._reader = _connect(path)
        self._reader.execute("PRAGMA query_only = ON")
        self._reader.execute(f"PRAGMA cache_size = -{_READ_CACHE_KIB}")

    def applied_index(self) -> int:
        """The last log entry that the database contains."""
        return int(self._reader.execute("SELECT log_index FROM applied").fetchone()[0])

    def view_version(self) -> int:
        """Log index of the last change to what GetView answers."""
        return int(self._reader.execute("SELECT view_version FROM applied").fetchone()[0])

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """Apply consecutive committed entries in one transaction; an encoded Reply for each (b"" for no
        command).

        Called in a worker thread. Any exception but a refusal is a broken invariant: nothing of the batch
        is kept.
        """
        assert entries, "a batch has entries"
        db = self._writer
        db.execute("BEGIN IMMEDIATE")
        try:
            replies = [self._apply_one(entry) for entry in entries]
            last = entries[-1]
            db.execute("UPDATE applied SET log_index = ?, term = ?", (last.index, last.term))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return replies

    def answer(self, query: AnyQuery, *, at_ms: int) -> bytes:
        """The encoded Reply to a query, from one consistent state.

        Called on the event loop: answers are pages.
        """
        self._reader.execute("BEGIN")
        try:
            return machine.answer(self._reader, at_ms, query)
        finally:
            self._reader.execute("COMMIT")

    def certificate_is_live(self, node_id: str, serial: str) -> bool:
        """Whether the log knows this certificate for this node, and it is not revoked."""
        row = self._reader.execute(
            "SELECT 1 FROM certificates WHERE serial = ? AND node_id = ? AND revoked = 0", (serial, node_id)
        ).fetchone()
        return row is not None

    def key(self, purpose: str) -> tuple[str, str, bytes]:
        """The newest key with this purpose: (kid, public half, wrapped private half)."""
        row = self._reader.execute(
            "SELECT kid, public, wrapped FROM keys WHERE purpose = ?"
            " ORDER BY created_at_ms DESC, kid LIMIT 1",
            (purpose,),
        ).fetchone()
        assert row is not None, f"no key for {purpose}"
        return row[0], row[1], bytes(row[2])

    def token_generation(self, user_id: str) -> int | None:
        """The generation that a live token of this user carries; None if there is no such user or it is
        disabled.
        """
        row = self._reader.execute(
            "SELECT generation FROM users WHERE user_id = ? AND disabled = 0", (user_id,)
        ).fetchone()
        return None if row is None else int(row[0])

    def totals(self) -> tuple[int, int, int]:
        """(files, blobs with a reference, their bytes once each)."""
        files_count = self._reader.execute("SELECT COALESCE(SUM(file_count), 0) FROM buckets").fetchone()[0]
        blobs_count, blob_bytes = self._reader.execute(
            "SELECT COUNT(*), COALESCE(SUM(size_bytes), 0) FROM blobs WHERE reference_count > 0"
        ).fetchone()
        return files_count, blobs_count, blob_bytes

    def close(self) -> None:
        """Close both connections."""
        self._reader.close()
        self._writer.close()

    def _apply_one(self, entry: Entry) -> bytes:
        if entry.kind != EntryKind.COMMAND:
            return b""
        return machine.apply(self._writer, entry.index, decode_envelope(entry.data))


def replay(log: Storage, committed: int, store: Store) -> None:
    """Bring the database up to what is known to be committed. Blocks; for the start, before anything else
    runs.

    A database that was lost, or that is older than the log, becomes what it was.
    """
    while (applied := store.applied_index()) < committed:
        store.apply(log.entries(applied + 1, committed + 1, REPLAY_BYTES))


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
        timeout=10.0,
    )
