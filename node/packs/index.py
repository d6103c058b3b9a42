"""Where blobs lie in packs: a table on the same disk, which the processes of a node share.

It is a copy of what the packs say, and is made durable by nobody: a power cut may take its newest rows, and
whoever opens the packs reads again what lies behind `indexed_bytes`. One that is found damaged is marked, and
is made anew when the packs are opened again.

Beside that it has what concerns running processes alone: when somebody was told that a blob is here, and
which blobs nobody has claimed yet. All calls block, and raise OSError when the tables cannot be used; those
that only read wait for nobody who writes. For any thread.
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from coordinator.storage import database
from node.packs.record import HEAD_BYTES, HEADER_BYTES, REMOVED_BYTES, PackRecord, Place

BUSY_S: Final = 10.0  # for another process of this node to end its few rows
DAMAGED: Final = "-damaged"  # behind the name of the file, in the name of the mark
SPARE: Final = "-spare"  # of the file that keeps room while nobody has it open
_SHARED_MEMORY_BYTES: Final = 64 << 10  # of the WAL's index: twice what it begins with
_CACHE_KIB: Final = 8 << 10
_BLOBS: Final = "SELECT sha256, pack, offset, length, digest, affirmed_at_ns FROM blobs"
_DELETE_BLOB: Final = "DELETE FROM blobs WHERE sha256 = ? AND pack = ? AND offset = ?"


@dataclass(frozen=True, slots=True)
class PackedBlob:
    """A blob of `length` bytes with this XXH3, in the record at `place`; see index.sql for the time."""

    sha256: bytes
    place: Place
    length: int
    digest: bytes
    affirmed_at_ns: int


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that says that the blob at `target` counts no more."""

    sha256: bytes
    place: Place
    target: Place


@dataclass(frozen=True, slots=True)
class PackFacts:
    """What is known of a pack: see index.sql."""

    number: int
    is_sealed: bool
    indexed_bytes: int
    live_bytes: int
    live_blobs: int

    @property
    def dead_bytes(self) -> int:
        """Of records that count no more."""
        return max(self.indexed_bytes - HEADER_BYTES - self.live_bytes, 0)


class IndexDamaged(OSError):
    """The tables are not what was written; that they have to be made anew is noted beside them."""


class PackIndex:
    """The tables, with a connection that writes and one that reads."""

    def __init__(self, path: Path) -> None:
        """Open or make them. Raises IndexDamaged, also where that was found before; OSError."""
        self._path, self._mark = path, path.with_name(path.name + DAMAGED)
        if self._mark.exists():
            raise IndexDamaged(errno.EUCLEAN, "the index of the packs was found damaged")
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        with suppress(OSError):
            _spare_of(path).unlink(missing_ok=True)
        with self._telling(), ExitStack() as opened:
            self._writing = opened.enter_context(closing(_connected(path)))
            self._writing.execute("PRAGMA journal_mode = WAL")
            self._writing.executescript(files("node.packs").joinpath("index.sql").read_text("utf-8"))
            database.reserve_wal(self._writing, path)  # a blob is removed on a full disk too
            self._reading = opened.enter_context(closing(_connected(path)))
            opened.pop_all()

    def close(self) -> None:
        """Give the file back. The room that it needs when it is opened stays taken."""
        self._reading.close()
        self._writing.close()
        _keep_room(self._path)

    def find(self, sha256: bytes) -> PackedBlob | None:
        """The blob, in one of the packs that have it."""
        copies = self.copies(sha256)
        return copies[-1] if copies else None

    def copies(self, sha256: bytes) -> list[PackedBlob]:
        """The blob in every pack that has it."""
        return list(map(_found, self._all(f"{_BLOBS} WHERE sha256 = ? ORDER BY pack, offset", sha256)))

    def after(self, sha256: bytes, limit: int) -> list[tuple[bytes, int]]:
        """The next blobs in the order of their SHA-256, with their lengths."""
        asked = "SELECT DISTINCT sha256, length FROM blobs WHERE sha256 > ? ORDER BY sha256 LIMIT ?"
        return list(self._all(asked, sha256, limit))

    def in_pack(self, number: int, *, start: int = 0, limit: int = -1) -> list[PackedBlob]:
        """What counts in a pack, as it lies there from `start` on: `limit` blobs, -1 for all."""
        asked = f"{_BLOBS} WHERE pack = ? AND offset >= ? ORDER BY offset LIMIT ?"
        return list(map(_found, self._all(asked, number, start, limit)))

    def removals_in(self, number: int) -> list[Removal]:
        """The removals in a pack that are needed, in the order in which they lie there."""
        asked = (
            "SELECT sha256, pack, offset, target, target_offset FROM removals WHERE pack = ? ORDER BY offset"
        )
        return [
            Removal(sha256, Place(pack, offset), Place(target, target_offset))
            for sha256, pack, offset, target, target_offset in self._all(asked, number)
        ]

    def packs(self) -> list[PackFacts]:
        """Every pack, by its number."""
        asked = "SELECT number, is_sealed, indexed_bytes, live_bytes, live_blobs FROM packs ORDER BY number"
        return [
            PackFacts(number, bool(is_sealed), *numbers) for number, is_sealed, *numbers in self._all(asked)
        ]

    def totals(self) -> tuple[int, int]:
        """How many blobs there are, and their bytes; one that is being rewritten may count twice."""
        [(count, total)] = self._all("SELECT COUNT(*), IFNULL(SUM(length), 0) FROM blobs")
        return count, total

    def unclaimed(self, limit: int) -> list[tuple[bytes, int]]:
        """Blobs that nobody has claimed yet, each with when it came, in ns since the epoch."""
        return list(self._all("SELECT sha256, at_ns FROM unclaimed LIMIT ?", limit))

    def unclaimed_at_ns(self, sha256: bytes) -> int | None:
        """When a blob came that nobody has claimed yet."""
        found = list(self._all("SELECT at_ns FROM unclaimed WHERE sha256 = ?", sha256))
        return found[0][0] if found else None

    def forget_unclaimed(self, sha256: bytes, at_ns: int) -> None:
        """It was claimed, or is gone; one that came again since stays."""
        with self._changing() as db:
            db.execute("DELETE FROM unclaimed WHERE sha256 = ? AND at_ns = ?", (sha256, at_ns))

    def store(self, number: int, blobs: Sequence[PackRecord], *, stop: int, at_ns: int) -> None:
        """Blobs that came, in records of a pack up to `stop`, in one step: their older records count no more.

        Nothing but this table says so; where it is lost, a blob has two records that are alike.
        """
        with self._changing() as db:
            _know(db, number)
            for each in blobs:
                _forget(db, db.execute(f"{_BLOBS} WHERE sha256 = ?", (each.sha256,)).fetchall())
                _insert(db, number, each, at_ns)
                db.execute("INSERT OR REPLACE INTO unclaimed VALUES (?, ?)", (each.sha256, at_ns))
            _count_indexed(db, number, stop)

    def add(
        self,
        number: int,
        blobs: Iterable[PackRecord],
        removals: Sequence[Removal] = (),
        *,
        stop: int,
        at_ns: int = 0,
    ) -> None:
        """Records of a pack up to `stop` that were found there. What is known already stays as it is."""
        with self._changing() as db:
            _know(db, number)
            for each in blobs:
                _insert(db, number, each, at_ns)
            for removal in removals:
                _remove(db, removal)
            _count_indexed(db, number, stop)

    def affirm(self, sha256: bytes, at_ns: int) -> bool:
        """Somebody is told that a blob is here; False when it is not."""
        with self._changing() as db:
            asked = "UPDATE blobs SET affirmed_at_ns = ? WHERE sha256 = ?"
            return db.execute(asked, (at_ns, sha256)).rowcount > 0

    def take_out(self, copies: Sequence[PackedBlob]) -> list[PackedBlob]:
        """Have those count no more, in one step, of which nobody was told since they were read: these."""
        with self._changing() as db:
            asked = f"{_BLOBS} WHERE sha256 = ? AND pack = ? AND offset = ? AND affirmed_at_ns = ?"
            rows = [
                row
                for each in copies
                for row in db.execute(
                    asked, (each.sha256, each.place.pack, each.place.offset, each.affirmed_at_ns)
                ).fetchall()
            ]
            return _forget(db, rows)

    def move(
        self, number: int, moves: Sequence[tuple[PackedBlob, PackRecord]], *, stop: int
    ) -> list[PackRecord]:
        """New records of a pack up to `stop`, each in place of an older one of the same blob, in one step.

        Answers those whose older record counts no more: neither do they, and no record says so yet. No record
        says of the older ones that they count no more: their pack is about to go.
        """
        left = list[PackRecord]()
        with self._changing() as db:
            _know(db, number)
            for old, new in moves:
                place = (old.sha256, old.place.pack, old.place.offset)
                asked = f"{_BLOBS} WHERE sha256 = ? AND pack = ? AND offset = ?"
                gone = _forget(db, db.execute(asked, place).fetchall())
                if gone:
                    _insert(db, number, new, gone[0].affirmed_at_ns)
                else:
                    left.append(new)
            _count_indexed(db, number, stop)
        return left

    def seal(self, number: int, *, stop: int = 0) -> None:
        """A pack takes no more. `stop`: where it ends, if something lies there that counts for nothing."""
        with self._changing() as db:
            _count_indexed(db, number, stop)
            db.execute("UPDATE packs SET is_sealed = 1 WHERE number = ?", (number,))

    def drop(self, number: int) -> None:
        """Forget a pack, and the removals of blobs in it."""
        with self._changing() as db:
            for (holder,) in db.execute("SELECT pack FROM removals WHERE target = ?", (number,)).fetchall():
                _count_live(db, holder, -REMOVED_BYTES)
            db.execute("DELETE FROM removals WHERE target = ? OR pack = ?", (number, number))
            db.execute("DELETE FROM blobs WHERE pack = ?", (number,))
            db.execute("DELETE FROM packs WHERE number = ?", (number,))

    def _all(self, statement: str, *values: object) -> Iterator[tuple[Any, ...]]:
        with self._read_lock, self._telling():
            return iter(self._reading.execute(statement, values).fetchall())

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, self._telling():
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
        """What is wrong with the tables, as a disk would say it."""
        try:
            yield
        except sqlite3.Error as error:
            told, code = f"the index of the packs: {error}", getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                with suppress(OSError):
                    self._mark.touch()
                raise IndexDamaged(errno.EUCLEAN, told) from error
            raise OSError(errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO, told) from error


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    try:
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except BaseException:
        db.close()
        raise
    return db


def _keep_room(path: Path) -> None:
    """Take what the last connection gave back with its WAL and its shared memory.

    On a disk that is full then nobody could open the tables again, and the node could not start.
    """
    if path.with_name(f"{path.name}-wal").exists():
        return  # others use it
    with suppress(OSError), _spare_of(path).open("wb") as spare:
        os.posix_fallocate(spare.fileno(), 0, database.WAL_RESERVED_BYTES + _SHARED_MEMORY_BYTES)


def _spare_of(path: Path) -> Path:
    return path.with_name(path.name + SPARE)


def _know(db: sqlite3.Connection, number: int) -> None:
    db.execute("INSERT OR IGNORE INTO packs VALUES (?, 0, 0, 0, 0)", (number,))


def _forget(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> list[PackedBlob]:
    """These blobs count no more."""
    gone = list(map(_found, rows))
    for each in gone:
        db.execute(_DELETE_BLOB, (each.sha256, each.place.pack, each.place.offset))
        _count_live(db, each.place.pack, -(each.length + HEAD_BYTES), -1)
    return gone


def _remove(db: sqlite3.Connection, removal: Removal) -> None:
    """Have a blob count no more, and remember why as long as its pack is there."""
    target = removal.target
    asked = f"{_BLOBS} WHERE sha256 = ? AND pack = ? AND offset = ?"
    _forget(db, db.execute(asked, (removal.sha256, target.pack, target.offset)).fetchall())
    if db.execute("SELECT 1 FROM packs WHERE number = ?", (target.pack,)).fetchone() is None:
        return  # that pack is gone
    row = (removal.place.pack, removal.place.offset, target.pack, target.offset, removal.sha256)
    if db.execute("INSERT OR IGNORE INTO removals VALUES (?, ?, ?, ?, ?)", row).rowcount:
        _count_live(db, removal.place.pack, REMOVED_BYTES)


def _insert(db: sqlite3.Connection, number: int, record: PackRecord, at_ns: int) -> None:
    """It counts, unless a record that was read before says that it does not."""
    asked = "SELECT 1 FROM removals WHERE target = ? AND target_offset = ?"
    if db.execute(asked, (number, record.offset)).fetchone() is not None:
        return
    row = (record.sha256, number, record.offset, record.length, record.digest, at_ns)
    if db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?, ?)", row).rowcount:
        _count_live(db, number, record.length + HEAD_BYTES, 1)


def _count_indexed(db: sqlite3.Connection, number: int, stop: int) -> None:
    row = (stop, number)
    db.execute("UPDATE packs SET indexed_bytes = MAX(indexed_bytes, ?) WHERE number = ?", row)


def _count_live(db: sqlite3.Connection, number: int, more_bytes: int, more_blobs: int = 0) -> None:
    db.execute(
        "UPDATE packs SET live_bytes = live_bytes + ?, live_blobs = live_blobs + ? WHERE number = ?",
        (more_bytes, more_blobs, number),
    )


def _found(row: tuple[Any, ...]) -> PackedBlob:
    sha256, pack, offset, length, digest, affirmed_at_ns = row
    return PackedBlob(sha256, Place(pack, offset), length, digest, affirmed_at_ns)
