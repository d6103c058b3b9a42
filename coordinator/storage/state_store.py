"""The database that the log builds: applies batches of entries, answers queries. SQLite, blocking.

WAL with synchronous=NORMAL: after a crash the database is consistent, maybe older than it was, and the log
replays from its applied index. One transaction for each batch, together with the index of its last entry.
No other code may open the database file as a plain file while a Store is open: closing any descriptor of it
drops the locks that SQLite holds on it (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ca.errors import InsufficientStorage, Internal
from coordinator import machine
from coordinator.machine import expiry, jobs
from coordinator.machine.blobs import is_over_quota
from coordinator.machine.execution import slice_changes
from coordinator.raft.membership import decode_membership
from coordinator.raft.messages import Entry, EntryKind, Members
from coordinator.raft.storage import Storage
from coordinator.storage.database import connect, known_rules, newest_key, prepare
from coordinator.storage.page_sums import PageSums
from coordinator.storage.state_damage import StateDamaged, damage_in
from coordinator.storage.state_file import StateFile
from metadata.model.records import LEARNER, VOTER, CoordinatorRecord, JobRunRecord
from metadata.protocol.commands import Bootstrap, RaiseRules, decode_envelope
from metadata.protocol.queries import AnyQuery
from runtime.bounds import COUNT_MAX
from runtime.sqlite import DATABASE_ERRORS

REPLAY_BYTES = 4 << 20  # of log entries in one transaction
# Of rows that are close together, with those that `slice_changes` notes: thousands of pages.
CHECKPOINT_CHANGES = 6000
HELD_BACK_MAX = 4  # doublings of that while a reader prevents copying
SCATTERED_WEIGHT = 4  # a row of a long command counts as this many, as it has its own page
T = TypeVar("T")
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_log = logging.getLogger(__name__)


class StoreFull(InsufficientStorage):
    """The disk has no room for the database. No entry of the batch was applied; it may be tried again."""


class Store:
    """One writing connection (used by one thread at a time) and one reading connection (for any thread).

    Every method raises StateDamaged if SQLite finds the database damaged, and nothing is read or applied
    after that: the next read might return bytes that only look right.
    """

    def __init__(self, path: Path) -> None:
        """Open the store.

        Raises sqlite3.Error, OSError, UnknownRules, StateDamaged; then nothing stays open.
        """
        file = StateFile(path)
        connections = connect(path)
        try:
            self._begin(file, *connections)
            # The last sync of the previous process may have failed: then it is unknown how much of the WAL is
            # on the disk, and no later sync would report it. So this process writes and syncs what it copies
            # from the WAL.
            self._shorten_wal()
        except BaseException:
            self.close()
            raise

    @classmethod
    def over(cls, writer: sqlite3.Connection, reader: sqlite3.Connection) -> "Store":
        """Return a store with these connections (isolation_level None), which may be the same one."""
        store = cls.__new__(cls)
        store._begin(None, writer, reader)
        return store

    def _begin(self, file: StateFile | None, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self._path = None if file is None else file.path
        self._writer, self._reader, self._file = writer, reader, file
        self._reading = threading.Lock()  # queries of two threads would end each other's transaction
        self._damage: StateDamaged | None = None
        self._on_damage: Callable[[StateDamaged], None] | None = None
        self._load()
        if file is not None:
            try:
                file.begin(writer)
            except StateDamaged as damage:
                raise self._found(damage) from damage

    def _load(self) -> None:
        prepare(self._writer)
        if self._path is not None:
            slice_changes.track(self._writer)
        row = self._writer.execute("SELECT log_index, term, view_version FROM applied").fetchone()
        self._applied, self._view_version = (int(row[0]), int(row[1])), int(row[2])
        self._rules = known_rules(self._writer)
        self._checkpointed_changes = self._writer.total_changes
        self._held_back = 0  # checkpoints in a row that left frames in the WAL

    def reopen(self) -> None:
        """Continue with the new file of the database: a snapshot was installed."""
        with self._reading:
            if self._path is not None:
                # Before the new one is opened: the last connection to close removes the WAL by its name.
                self._reader.close()
                self._writer.close()
                self._writer, self._reader = connect(self._path)
                assert self._file is not None
                self._file.begin_anew()
            self._load()
        self._adopt()

    def condemn(self, damage: StateDamaged) -> None:
        """Treat the database as damaged, as a separate reader of the file has found."""
        self._found(damage)

    def watch(self, on_damage: Callable[[StateDamaged], None] | None) -> None:
        """Set the callback for a damaged database, called in the thread that found it; None for none."""
        self._on_damage = on_damage

    def applied(self) -> tuple[int, int]:
        """Return (index, term) of the last log entry in the database; (0, 0) for none."""
        return self._applied

    def applied_index(self) -> int:
        """Return the last log entry in the database."""
        return self._applied[0]

    def view_version(self) -> int:
        """Return the log index of the last change of the view."""
        return self._view_version

    def members(self) -> Members:
        """Return the Raft group as of `applied`; empty before the first entry."""
        with self._read() as db:
            return members_in(db)

    def checkpoint(self) -> int:
        """Return the applied index that survives a power cut: the log may forget entries up to it.

        With synchronous=NORMAL a commit is not synced. A checkpoint syncs the WAL before it copies, and the
        database before the WAL restarts (https://www.sqlite.org/pragma.html#pragma_synchronous). The name of
        the WAL is durable since `connect`. So at any moment the database file and a synced WAL together have
        every commit before the sync, and recovery replays the WAL up to its last valid commit
        (https://www.sqlite.org/walformat.html, section 4.3). This is one fdatasync of a few MiB without a
        lock: any thread may call it while another applies. Raises OSError if the sync fails, which must end
        the process.
        """
        applied_index = self._applied[0]
        if self._file is not None:
            self._file.sync_wal()
        return applied_index

    def settle(self) -> PageSums | None:
        """Return the file if it contains all commits, otherwise None. For the thread that applies.

        A caller that pins that state keeps it so: a checkpoint copies nothing that a reader does not see.
        """
        self._shorten_wal()
        return None if self._file is None or self._held_back else self._file.pages

    def drop_cache(self) -> None:
        """Drop the cache, so that the next reads come from the file. For the thread that applies."""
        self._writer.execute("PRAGMA shrink_memory")

    def rules(self) -> int:
        """Return the rules for the next command."""
        return self._rules

    def apply(self, entries: Sequence[Entry], *, may_sync: bool = True) -> list[bytes]:
        """Apply consecutive committed entries in one transaction.

        Returns an encoded Reply for each (b"" for no command). With `may_sync` it also copies the WAL into
        the database, if that is due.

        Called in a worker thread; a few short entries without `may_sync` anywhere. Raises StoreFull if there
        is no room, UnknownRules. Any other exception is a broken invariant. After any error, nothing of the
        batch is kept.
        """
        assert entries, "a batch has entries"
        assert entries[0].index == self._applied[0] + 1, f"entry {entries[0].index} is not the next to apply"
        self._check_sound()
        db, last = self._writer, entries[-1]
        changes_before = db.total_changes
        try:
            db.execute("BEGIN IMMEDIATE")
            batch = machine.Batch(db)
            replies = [_apply(db, batch, entry) for entry in entries]
            batch.end()
            db.execute("UPDATE applied SET log_index = ?, term = ?", (last.index, last.term))
            if self._file is not None:
                self._file.note_rest(db, self._applied[0])
            view_version = db.execute("SELECT view_version FROM applied").fetchone()[0]
            rules = known_rules(db)
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if _is_full(error):
                self._shorten_wal()  # so that it can restart within its room
                raise StoreFull("The disk of this coordinator is full.") from error
            self._examine(error)
            raise
        self._applied = (last.index, last.term)
        self._view_version = view_version
        self._rules = rules
        if batch.is_long:
            self._checkpointed_changes -= (SCATTERED_WEIGHT - 1) * (db.total_changes - changes_before)
        if may_sync and self.is_checkpoint_due:
            self._shorten_wal()
        return replies

    @property
    def is_checkpoint_due(self) -> bool:
        """Return whether the next `apply` that may sync ends with a checkpoint, two syncs."""
        changes = self._writer.total_changes - self._checkpointed_changes
        return self._path is not None and changes >= CHECKPOINT_CHANGES << self._held_back

    def _shorten_wal(self) -> None:
        """Copy the WAL into the database, so that it restarts with the next change.

        An automatic checkpoint of SQLite would not report a failed sync, and would try again, as if the page
        cache still had the data. On a full disk the WAL grows while it has room.
        """
        self._checkpointed_changes = self._writer.total_changes
        if self._file is None:
            return
        try:
            with self._file.around_checkpoint() as told:
                _, frames, copied = self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                told(frames, copied)
        except DATABASE_ERRORS as error:
            if not _is_full(error):
                self._examine(error)
                raise
            self._held_back = 1
            return
        # A reader of an earlier state prevents copying the rest, and a new attempt is useless until it ends.
        self._held_back = min(self._held_back + 1, HELD_BACK_MAX) if copied < frames else 0

    def answer(self, query: AnyQuery, *, at_ms: int) -> bytes:
        """Return the encoded Reply to a query, from one consistent state.

        Called on the event loop: answers are pages.
        """
        with self._read() as db:
            db.execute("BEGIN")
            try:
                return machine.answer(db, at_ms, query)
            finally:
                if db.in_transaction:  # some errors have ended it
                    db.execute("COMMIT")

    def certificate_is_live(self, node_id: str, serial: str) -> bool:
        """Return whether the log knows this certificate for this node, and it is not revoked."""
        row = self._read_row(
            "SELECT 1 FROM certificates WHERE serial = ? AND node_id = ? AND revoked = 0", serial, node_id
        )
        return row is not None

    def key(self, purpose: str) -> tuple[str, str, bytes]:
        """Return (kid, public half, wrapped private half) of the newest key with this purpose.

        Raises Internal.
        """
        with self._read() as db:
            found = newest_key(db, purpose)
        if found is None:
            raise Internal(f"the state holds no {purpose} key")
        return found

    def token_generation(self, user_id: str) -> int | None:
        """Return the generation of valid tokens of this user; None if it is unknown or disabled."""
        row = self._read_row(
            "SELECT generation FROM users WHERE user_id = ? AND disabled = 0 AND deleted = 0", user_id
        )
        return None if row is None else int(row[0])

    def running_runs(self) -> list[JobRunRecord]:
        """Return the job runs that have not ended, by the name of their job."""
        with self._read() as db:
            return jobs.list_running(db)

    def newest_runs(self) -> list[JobRunRecord]:
        """Return the newest run of each job that ever ran."""
        with self._read() as db:
            return jobs.newest(db)

    def read_with(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Return the answer of a function of the state machine that only reads."""
        with self._read() as db:
            return question(db)

    def is_recount_due(self) -> bool:
        """Return whether a RecountReplicas would find anything."""
        return self._read_row("SELECT 1 FROM recounts LIMIT 1") is not None

    def is_expire_due(self, *, at_ms: int) -> bool:
        """Return whether an Expire at this time would find anything."""
        with self._read() as db:
            return expiry.is_due(db, at_ms)

    def is_over_quota(self, *, at_ms: int, grace_ms: int) -> bool:
        """Return whether a CollectOverQuota at this time would find anything."""
        with self._read() as db:
            return is_over_quota(db, at_ms, grace_ms)

    def job_outcomes(self) -> dict[str, jobs.JobOutcome]:
        """Return the outcome of each job, by its name; one that never ran may be missing."""
        with self._read() as db:
            return jobs.outcomes(db)

    def node_certificates_ending(self, *, before_ms: int) -> list[tuple[str, int]]:
        """Return nodes whose newest live certificate ends before that, by id, each with its end."""
        with self._read() as db:
            rows: list[tuple[str, int]] = db.execute(
                "SELECT c.node_id, MAX(c.not_after_ms) AS ends_at_ms FROM nodes n JOIN certificates c"
                " ON c.node_id = n.node_id WHERE c.revoked = 0 GROUP BY c.node_id"
                " HAVING ends_at_ms < ? ORDER BY c.node_id",
                (before_ms,),
            ).fetchall()
            return rows

    def node_replicas(self) -> dict[str, int]:
        """Return how many replicas of each node count, by its id; a node without any may be missing."""
        with self._read() as db:
            return dict(db.execute("SELECT node_id, replicas - doomed FROM replica_totals ORDER BY node_id"))

    def usage(self) -> tuple[int, int]:
        """Return (files, their bytes), each file counted separately. Cheap, as the sums are maintained."""
        row = self._read_row(
            # SUM would end in an error beyond 2^63, which 1,025 full buckets reach.
            "SELECT COALESCE(SUM(file_count), 0), CAST(MIN(TOTAL(used_bytes), ?) AS INTEGER) FROM buckets",
            COUNT_MAX,
        )
        assert row is not None
        return row[0], row[1]

    def totals(self) -> tuple[int, int, int]:
        """Return (files, blobs with a reference, their bytes once each).

        Cheap, as the sums are maintained.
        """
        row = self._read_row(
            "SELECT (SELECT COALESCE(SUM(file_count), 0) FROM buckets), blobs, MIN(bytes, ?)"
            " FROM blob_totals WHERE one = 1",
            COUNT_MAX,
        )
        assert row is not None
        return row[0], row[1], row[2]

    def trash(self) -> tuple[int, int]:
        """Return (files in the trash, their bytes), each file counted separately. Cheap."""
        row = self._read_row("SELECT files, bytes FROM trash_totals WHERE bucket_id = ''")
        return (0, 0) if row is None else (row[0], row[1])

    def check(self) -> None:
        """Raise StateDamaged unless every page is as the previous process left it. Blocks, for the start."""
        if self._file is not None:
            with self._read() as db:
                flaw = self._file.flaw(db)
            self._require_sound(flaw)
            self._adopt()

    def _adopt(self) -> None:
        if self._file is not None:
            self._file.adopt(self._writer)

    def compare_pages(self) -> bool:
        """Compare the next 1 MiB of the file with what was written there; return whether a round has ended.

        Any thread. Raises StateDamaged.
        """
        if self._file is None:
            return True
        flaw, is_round = self._file.compare_slice()
        self._require_sound(flaw)
        return is_round

    def _require_sound(self, flaw: str) -> None:
        """Raise StateDamaged, if there is a flaw."""
        if flaw:
            raise self._found(StateDamaged(f"state.sqlite is damaged: {flaw}"))

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        with self._read() as db:
            rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
        return [name for (name,) in rows]

    def compare_indexes(self, table: str, stop: threading.Event) -> None:
        """Compare a table with its indexes, entry by entry.

        It runs at a quarter of the speed of disk and processor, on any thread. It ends soon after `stop`, and
        if many changes arrive. Raises StateDamaged.
        """
        if self._file is not None:
            try:
                self._require_sound(self._file.compare_indexes(table, stop))
            except DATABASE_ERRORS as error:
                self._examine(error)
                raise

    def close(self) -> None:
        """Close both connections, after copying all commits into the file, with its sums."""
        with self._reading:
            if self._file is not None and self._damage is None:
                with suppress(*DATABASE_ERRORS, OSError, StateDamaged):
                    self._shorten_wal()
                    self._file.rest()
            self._reader.close()
            self._writer.close()
            if self._file is not None:  # last: see PageSums
                self._file.close()

    def _read_row(self, statement: str, *values: str | int) -> tuple[Any, ...] | None:
        with self._read() as db:
            row: tuple[Any, ...] | None = db.execute(statement, values).fetchone()
            return row

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._reading:
            self._check_sound()
            try:
                yield self._reader
            except DATABASE_ERRORS as error:
                self._examine(error)
                raise

    def _check_sound(self) -> None:
        if self._damage is not None:
            raise StateDamaged(self._damage.details)

    def _examine(self, error: BaseException) -> None:
        """Raise StateDamaged if the error means that."""
        if (damage := damage_in(error)) is not None:
            raise self._found(damage) from error

    def _found(self, damage: StateDamaged) -> StateDamaged:
        self._damage = self._damage or damage
        if self._on_damage is not None:
            self._on_damage(self._damage)
        return damage


def members_in(db: sqlite3.Connection) -> Members:
    """Return the membership in a database."""
    return _members(db.execute("SELECT coordinator_id, role FROM coordinators").fetchall())


def members_of(coordinators: Iterable[CoordinatorRecord]) -> Members:
    """Return the membership for a list of coordinators."""
    return _members((record.coordinator_id, record.role) for record in coordinators)


def replay(log: Storage, committed: int, store: Store) -> None:
    """Apply all committed entries that the database lacks. Blocks; for the start."""
    while (applied := store.applied_index()) < committed:
        store.apply(log.entries(applied + 1, committed + 1, REPLAY_BYTES))


def _apply(db: sqlite3.Connection, batch: machine.Batch, entry: Entry) -> bytes:
    if entry.kind == EntryKind.COMMAND:
        reply = batch.apply(entry.index, envelope := decode_envelope(entry.data))
        if isinstance(envelope.command, Bootstrap | RaiseRules):
            known_rules(db)  # a program that does not know them may not be able to read the rest
        return reply
    if entry.kind == EntryKind.MEMBERSHIP:
        return _apply_membership(db, batch, entry)
    return b""


def _apply_membership(db: sqlite3.Connection, batch: machine.Batch, entry: Entry) -> bytes:
    """Apply a membership that Raft has decided, independent of its session, with the same reply."""
    change = decode_membership(entry.data)
    if not change.payload:
        return b""
    envelope = msgspec.structs.replace(decode_envelope(change.payload), session=0)
    reply = batch.apply(entry.index, envelope)
    assert members_in(db) == change.members, f"entry {entry.index} records others than its members"
    return reply


def _is_full(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) in _FULL


def _members(rows: Iterable[tuple[str, str]]) -> Members:
    known = sorted(rows)
    return Members(
        tuple(coordinator_id for coordinator_id, role in known if role == VOTER),
        tuple(coordinator_id for coordinator_id, role in known if role == LEARNER),
    )
