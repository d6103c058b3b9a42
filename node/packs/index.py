"""The index of packs: the position of each blob, in a database that the processes of a node share.

It is a copy of data in the packs, and is never synced: a power cut may lose its newest rows, and opening the
packs reads the bytes after `indexed_bytes` again. Only the index records that a blob was removed. So if rows
are lost, a removed blob may be back, as an unclaimed one.

Its rows are checked when they are read: their types, that they answer the question, and their order. Each
page of a database may be intact but belong to another place, or to an earlier time. An index that answers
wrongly raises IndexDamaged, and is marked: from then on no process uses it, until `PackStore.heal` has
rebuilt it.

It also has data of running processes: when a process was last told that a blob is here, and which blobs are
unclaimed. All calls block, and raise OSError if the tables cannot be used. Readers do not wait for writers.
For any thread.

Tested by tests/unit/node/packs/test_index_wrong.py.
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

from node.packs.record import HEAD_BYTES, PackRecord
from node.packs.rows import (
    PackedBlob,
    PackFacts,
    RowInvalid,
    blob_of,
    facts_of,
    note_of,
    place_of,
    require,
    require_ascending,
    size_of,
)
from runtime import sqlite
from runtime.sqlite import DATABASE_ERRORS

BUSY_S: Final = 10.0  # for another process of this node to end its few rows
DAMAGED: Final = "-damaged"  # behind the name of the file, in the name of the mark
SPARE: Final = "-spare"  # of the file that reserves space while the index is closed
_SHARED_MEMORY_BYTES: Final = 64 << 10  # of the WAL's index: twice what it begins with
_CACHE_KIB: Final = 8 << 10
_BLOBS: Final = "SELECT sha256, pack, offset, length, digest, affirmed_at_ns FROM blobs"
_IS_THERE: Final = "sha256 = ? AND pack = ? AND offset = ?"
_DELETE_BLOB: Final = "DELETE FROM blobs WHERE sha256 = ? AND pack = ? AND offset = ?"
_UNCLAIMED: Final = "INSERT OR REPLACE INTO unclaimed VALUES (?, ?)"
_ROW_BYTES_MAX: Final = 4096  # genuine rows have less than a tenth of it; a damaged page may contain anything
_WHOLE: Final = "1"  # for SQLite's check: all of the file, until the first fault
# What SQLite says when it is not the content of the file that is at fault.
_NO_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_ABORT,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_T = TypeVar("_T")


class IndexDamaged(OSError):
    """The tables are damaged; a mark next to them requests that they are rebuilt."""


class PackIndex:
    """The tables, with a connection that writes and one that reads."""

    def __init__(self, path: Path, *, notes_arrivals: bool = True) -> None:
        """Open or make them. Raises IndexDamaged, also where that was found before; OSError.

        `notes_arrivals`: a blob that is stored is unclaimed.
        """
        self._path, self._mark = path, f"{path}{DAMAGED}"
        self._notes_arrivals = notes_arrivals
        self._is_usable = True
        self._closing = threading.Event()
        self.require_usable()
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        with suppress(OSError):
            _spare_of(path).unlink(missing_ok=True)
        with self._telling(), ExitStack() as opened:
            self._writing = opened.enter_context(closing(_connected(path)))
            self._writing.execute("PRAGMA journal_mode = WAL")
            self._writing.executescript(files("node.packs").joinpath("index.sql").read_text("utf-8"))
            sqlite.reserve_wal(self._writing, path)  # a blob is removed on a full disk too
            self._reading = opened.enter_context(closing(_connected(path)))
            opened.pop_all()

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and no process has found it damaged."""
        return self._is_usable and not os.path.exists(self._mark)  # noqa: PTH110 - asked with each question

    def require_usable(self) -> None:
        """Raise IndexDamaged if the index is closed, or a process has found it damaged."""
        if not self.is_usable:
            raise IndexDamaged(errno.EUCLEAN, "the index of the packs is damaged and not rebuilt yet")

    def damage_error(self, why: str) -> IndexDamaged:
        """Mark the index for every process, and return the error to raise."""
        if self._is_usable:  # else another may have taken its place
            self._is_usable = False  # also if the disk takes no mark
            self.mark()
        return IndexDamaged(errno.EUCLEAN, f"the index of the packs: {why}")

    def mark(self) -> None:
        """Mark the index for every process, unless it was closed here: another may be in its place then."""
        if not self._closing.is_set():
            with suppress(OSError):
                Path(self._mark).touch()

    def close(self) -> None:
        """Give the file back. The room that it needs when it is opened stays taken."""
        self._closing.set()
        with self._write_lock, self._read_lock:
            self._is_usable = False
            for connection in (self._reading, self._writing):
                with suppress(*DATABASE_ERRORS):  # a damaged one cannot end its WAL
                    connection.close()
        _keep_room(self._path)

    def require_sound(self) -> None:
        """Raise IndexDamaged if the tables contradict themselves.

        Reads all of them, concurrently with other work.
        """
        self.require_usable()
        with self._telling():
            if why := sqlite.integrity_of(self._path, _WHOLE, self._closing):
                raise RowInvalid(why)

    def find(self, sha256: bytes) -> PackedBlob | None:
        """The blob, in one of the packs that have it."""
        copies = self.copies(sha256)
        return copies[-1] if copies else None

    def copies(self, sha256: bytes) -> list[PackedBlob]:
        """The blob in every pack that has it."""

        def checked(rows: list[tuple[Any, ...]]) -> list[PackedBlob]:
            found = list(map(blob_of, rows))
            require(all(each.sha256 == sha256 for each in found), "another blob than was asked for")
            return require_ascending(found, lambda each: (each.place.pack, each.place.offset))

        return self._read(checked, f"{_BLOBS} WHERE sha256 = ? ORDER BY pack, offset", sha256)

    def after(self, sha256: bytes, limit: int) -> list[tuple[bytes, int]]:
        """The next blobs in the order of their SHA-256, with their lengths."""

        def checked(rows: list[tuple[Any, ...]]) -> list[tuple[bytes, int]]:
            found = require_ascending(list(map(size_of, rows)), lambda each: each[0])
            require(not found or found[0][0] > sha256, "a name that lies before those asked for")
            return found

        asked = "SELECT DISTINCT sha256, length FROM blobs WHERE sha256 > ? ORDER BY sha256 LIMIT ?"
        return self._read(checked, asked, sha256, limit)

    def rows_from(self, start: bytes, stop: bytes, limit: int) -> list[PackedBlob]:
        """Return the rows of the first blobs from `start` to `stop` (excluded), by their SHA-256.

        All rows of a blob are in one answer if they are fewer than the limit: more than two are rare.
        """

        def in_order(rows: list[tuple[Any, ...]]) -> list[PackedBlob]:
            key = lambda each: (each.sha256, each.place.pack, each.place.offset)  # noqa: E731
            found = require_ascending(list(map(blob_of, rows)), key)
            require(all(start <= each.sha256 < stop for each in found), "a blob outside of those asked for")
            return found

        asked = f"{_BLOBS} WHERE sha256 >= ? AND sha256 < ? ORDER BY sha256, pack, offset LIMIT ?"
        return self._read(in_order, asked, start, stop, limit)

    def list_pack(self, number: int, *, start: int = 0, limit: int = -1) -> list[PackedBlob]:
        """Return the valid blobs of a pack from `start` on, in its order: `limit` blobs, -1 for all."""

        def checked(rows: list[tuple[Any, ...]]) -> list[PackedBlob]:
            found = require_ascending(list(map(blob_of, rows)), lambda each: each.place.offset)
            require(all(each.place.pack == number for each in found), "a blob of another pack")
            require(not found or found[0].place.offset >= start, "a blob that lies before those asked for")
            return found

        asked = f"{_BLOBS} WHERE pack = ? AND offset >= ? ORDER BY offset LIMIT ?"
        return self._read(checked, asked, number, start, limit)

    def dead_records(self, number: int) -> set[tuple[bytes, int]]:
        """The records of a pack that count no more, by the SHA-256 of their blob and where they begin."""
        asked = "SELECT sha256, pack, offset FROM dead WHERE pack = ?"
        return self._read(lambda rows: {(name, at.offset) for name, at in map(place_of, rows)}, asked, number)

    def packs(self) -> list[PackFacts]:
        """Every pack, by its number."""
        asked = "SELECT number, is_sealed, indexed_bytes, live_bytes, live_blobs FROM packs ORDER BY number"
        return self._read(
            lambda rows: require_ascending(list(map(facts_of, rows)), lambda each: each.number), asked
        )

    def totals(self) -> tuple[int, int]:
        """How many blobs there are, and their bytes; one that is being rewritten may count twice."""
        [(count, total)] = self._read(list, "SELECT COUNT(*), IFNULL(SUM(length), 0) FROM blobs")
        return count, total

    def list_unclaimed(self, limit: int) -> list[tuple[bytes, int]]:
        """Return unclaimed blobs, each with its arrival in ns since the epoch."""
        asked = "SELECT sha256, at_ns FROM unclaimed LIMIT ?"
        return self._read(lambda rows: list(map(note_of, rows)), asked, limit)

    def unclaimed_at_ns(self, sha256: bytes) -> int | None:
        """Return when an unclaimed blob arrived."""

        def checked(rows: list[tuple[Any, ...]]) -> int | None:
            found = list(map(note_of, rows))
            require(all(name == sha256 for name, _ in found), "another blob than was asked for")
            return found[0][1] if found else None

        return self._read(checked, "SELECT sha256, at_ns FROM unclaimed WHERE sha256 = ?", sha256)

    def forget_unclaimed(self, sha256: bytes, at_ns: int) -> None:
        """It was claimed, or is gone; one that came again since stays."""
        with self._changing() as db:
            db.execute("DELETE FROM unclaimed WHERE sha256 = ? AND at_ns = ?", (sha256, at_ns))

    def store(self, number: int, blobs: Sequence[PackRecord], *, stop: int, at_ns: int) -> None:
        """Store blobs, in records of a pack up to `stop`, in one step; their older records no longer count.

        Only these tables record that. If they are lost, a blob has two equal records.
        """
        with self._changing() as db:
            _know(db, number)
            for each in blobs:
                _forget(db, db.execute(f"{_BLOBS} WHERE sha256 = ?", (each.sha256,)).fetchall())
                _insert(db, number, each, at_ns)
                self._note_arrival(db, each.sha256, at_ns)
            _count_indexed(db, number, stop)

    def add(self, number: int, blobs: Iterable[PackRecord], *, stop: int, at_ns: int) -> None:
        """Records of a pack up to `stop` that were found there: some of them may have counted no more."""
        with self._changing() as db:
            _know(db, number)
            for each in blobs:
                _insert(db, number, each, at_ns)
                self._note_arrival(db, each.sha256, at_ns)
            _count_indexed(db, number, stop)

    def affirm(self, sha256: bytes, at_ns: int) -> bool:
        """Record that a caller is about to rely on the blob; return False if it is not here."""
        return bool(self.affirm_all([sha256], at_ns))

    def affirm_all(self, sha256s: Iterable[bytes], at_ns: int) -> set[bytes]:
        """Record that a caller is about to rely on these blobs; return those that are here.

        The time of each differs from the one before, also if the clock does not move.
        """
        asked = "UPDATE blobs SET affirmed_at_ns = ?1 + (affirmed_at_ns = ?1) WHERE sha256 = ?2"
        with self._changing() as db:
            return {sha256 for sha256 in sha256s if db.execute(asked, (at_ns, sha256)).rowcount > 0}

    def take_out(self, copies: Sequence[PackedBlob]) -> list[PackedBlob]:
        """Remove at once the blobs that were not affirmed since they were read; return these."""
        asked = f"{_BLOBS} WHERE {_IS_THERE} AND affirmed_at_ns = ?"
        with self._changing() as db:
            places = [(each.sha256, *_place(each), each.affirmed_at_ns) for each in copies]
            rows = [row for place in places for row in db.execute(asked, place).fetchall()]
            return _forget(db, rows)

    def move(self, number: int, moves: Sequence[tuple[PackedBlob, PackRecord]], *, stop: int) -> None:
        """Add new records of a pack up to `stop`, each replacing an older one of the same blob, in one step.

        If the older record does not count any more, the new one does not count either.
        """
        with self._changing() as db:
            _know(db, number)
            for old, new in moves:
                place = (old.sha256, *_place(old))
                gone = _forget(db, db.execute(f"{_BLOBS} WHERE {_IS_THERE}", place).fetchall())
                if gone:
                    _insert(db, number, new, gone[0].affirmed_at_ns)
                else:
                    _bury(db, new.sha256, number, new.offset)
            _count_indexed(db, number, stop)

    def seal(self, number: int) -> None:
        """Record that a pack is sealed."""
        with self._changing() as db:
            db.execute("UPDATE packs SET is_sealed = 1 WHERE number = ?", (number,))

    def note_purged(self, ids: Iterable[bytes]) -> None:
        """Note the packs that have one of these blobs, to be rewritten soon after its removal."""
        with self._changing() as db:
            noted = "INSERT OR IGNORE INTO purged SELECT pack FROM blobs WHERE sha256 = ?"
            db.executemany(noted, [(sha256,) for sha256 in ids])

    def purged_packs(self) -> frozenset[int]:
        """Return the noted packs that are still there."""
        return self._read(lambda rows: frozenset(number for (number,) in rows), "SELECT pack FROM purged")

    def drop(self, number: int) -> None:
        """Forget a pack."""
        of_pack = (("blobs", "pack"), ("dead", "pack"), ("purged", "pack"), ("packs", "number"))
        with self._changing() as db:
            for table, column in of_pack:
                db.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))  # noqa: S608 - names of ours

    def _note_arrival(self, db: sqlite3.Connection, sha256: bytes, at_ns: int) -> None:
        if self._notes_arrivals:
            db.execute(_UNCLAIMED, (sha256, at_ns))

    def _read(self, checked: Callable[[list[tuple[Any, ...]]], _T], statement: str, *values: object) -> _T:
        """Return what `checked` makes of the rows; it raises RowInvalid for rows that cannot be genuine."""
        with self._read_lock, self._telling():
            self.require_usable()
            return checked(self._reading.execute(statement, values).fetchall())

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, self._telling():
            self.require_usable()
            self._writing.execute("BEGIN IMMEDIATE")
            try:
                yield self._writing
                self._writing.execute("COMMIT")
            except BaseException:
                if self._writing.in_transaction:
                    self._writing.execute("ROLLBACK")
                raise

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Convert errors of the tables to errors of the disk."""
        try:
            yield
        except RowInvalid as error:
            raise self.damage_error(str(error)) from error
        except MemoryError as error:  # a row or a page that claims to be that large
            raise self.damage_error("it asks for more memory than there is") from error
        except DATABASE_ERRORS as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code not in _NO_DAMAGE:  # our statements are right, so it is their tables
                raise self.damage_error(str(error)) from error
            number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(number, f"the index of the packs: {error}") from error


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    try:
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("PRAGMA cell_size_check = ON")
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _ROW_BYTES_MAX)
        db.text_factory = bytes  # of ours no column has text
    except BaseException:
        db.close()
        raise
    return db


def _keep_room(path: Path) -> None:
    """Reserve the space that the last connection freed with its WAL and its shared memory.

    Otherwise the tables could not be opened again on a full disk, and the node could not start.
    """
    if path.with_name(f"{path.name}-wal").exists():
        return  # others use it
    with suppress(OSError), _spare_of(path).open("wb") as spare:
        os.posix_fallocate(spare.fileno(), 0, sqlite.WAL_RESERVED_BYTES + _SHARED_MEMORY_BYTES)


def _spare_of(path: Path) -> Path:
    return path.with_name(path.name + SPARE)


def _know(db: sqlite3.Connection, number: int) -> None:
    db.execute("INSERT OR IGNORE INTO packs VALUES (?, 0, 0, 0, 0)", (number,))


def _forget(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> list[PackedBlob]:
    """The records of these rows count no more."""
    gone = list(map(blob_of, rows))
    for each in gone:
        is_there = db.execute(_DELETE_BLOB, (each.sha256, *_place(each))).rowcount == 1
        require(is_there, "a row that is not there")
        _bury(db, each.sha256, *_place(each))
        _count_live(db, each.place.pack, -(each.length + HEAD_BYTES), -1)
    return gone


def _place(blob: PackedBlob) -> tuple[int, int]:
    return blob.place.pack, blob.place.offset


def _bury(db: sqlite3.Connection, sha256: bytes, number: int, offset: int) -> None:
    db.execute("INSERT OR IGNORE INTO dead VALUES (?, ?, ?)", (number, offset, sha256))


def _insert(db: sqlite3.Connection, number: int, record: PackRecord, at_ns: int) -> None:
    row = (record.sha256, number, record.offset, record.length, record.digest, at_ns)
    if db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?, ?)", row).rowcount:
        _count_live(db, number, record.length + HEAD_BYTES, 1)


def _count_indexed(db: sqlite3.Connection, number: int, stop: int) -> None:
    row = (stop, number)
    db.execute("UPDATE packs SET indexed_bytes = MAX(indexed_bytes, ?) WHERE number = ?", row)


def _count_live(db: sqlite3.Connection, number: int, more_bytes: int, more_blobs: int) -> None:
    counted = "UPDATE packs SET live_bytes = live_bytes + ?, live_blobs = live_blobs + ? WHERE number = ?"
    is_known = db.execute(counted, (more_bytes, more_blobs, number)).rowcount == 1
    require(is_known, "a record of a pack that it does not know")
