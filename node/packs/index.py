"""Where blobs lie in packs: a table on the same disk, which the processes of a node share.

It is a copy of what the packs say, and is made durable by nobody: a power cut may take its newest rows, and
whoever opens the packs reads again what lies behind `indexed_bytes`. One that is damaged is made anew.
All calls block. For any thread.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from node.packs.record import HEAD_BYTES, REMOVED_BYTES, PackRecord, Place

BUSY_S: Final = 10.0  # for another process of this node to end its few rows
_CACHE_KIB: Final = 16 << 10
_BLOBS: Final = "SELECT sha256, pack, offset, length, digest FROM blobs"
_DELETE_BLOB: Final = "DELETE FROM blobs WHERE sha256 = ? AND pack = ? AND offset = ?"


@dataclass(frozen=True, slots=True)
class PackedBlob:
    """A blob of `length` bytes with this XXH3, in the record at `place`."""

    sha256: bytes
    place: Place
    length: int
    digest: bytes


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


class PackIndex:
    """The tables. Raises sqlite3.Error, from every call, when they cannot be used."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._db.executescript(files("node.packs").joinpath("index.sql").read_text("utf-8"))
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    def find(self, sha256: bytes) -> PackedBlob | None:
        """The blob, in one of the packs that have it."""
        copies = self.copies(sha256)
        return copies[-1] if copies else None

    def copies(self, sha256: bytes) -> list[PackedBlob]:
        """The blob in every pack that has it."""
        asked = (
            "SELECT sha256, pack, offset, length, digest FROM blobs WHERE sha256 = ? ORDER BY pack, offset"
        )
        return list(map(_found, self._all(asked, sha256)))

    def after(self, sha256: bytes, limit: int) -> list[tuple[bytes, int]]:
        """The next blobs in the order of their SHA-256, with their lengths."""
        asked = "SELECT DISTINCT sha256, length FROM blobs WHERE sha256 > ? ORDER BY sha256 LIMIT ?"
        return list(self._all(asked, sha256, limit))

    def in_pack(self, number: int) -> list[PackedBlob]:
        """What counts in a pack, in the order in which it lies there."""
        return list(map(_found, self._all(f"{_BLOBS} WHERE pack = ? ORDER BY offset", number)))

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
        asked = "SELECT number, is_sealed, indexed_bytes, live_bytes FROM packs ORDER BY number"
        return [
            PackFacts(number, bool(is_sealed), *numbers) for number, is_sealed, *numbers in self._all(asked)
        ]

    def totals(self) -> tuple[int, int]:
        """How many blobs there are, and their bytes; one that is being rewritten may count twice."""
        [(count, total)] = self._all("SELECT COUNT(*), IFNULL(SUM(length), 0) FROM blobs")
        return count, total

    def add(
        self, number: int, blobs: Iterable[PackRecord], removals: Sequence[Removal] = (), *, stop: int
    ) -> None:
        """Records of a pack up to `stop`, in one step. What is known already stays as it is."""
        with self._changing() as db:
            db.execute("INSERT OR IGNORE INTO packs VALUES (?, 0, 0, 0)", (number,))
            for each in blobs:
                _insert(db, number, each)
            for removal in removals:
                _remove(db, removal)
            _count_indexed(db, number, stop)

    def move(
        self, number: int, moves: Sequence[tuple[PackedBlob, PackRecord]], *, stop: int
    ) -> list[PackRecord]:
        """New records of a pack up to `stop`, each in place of an older one of the same blob, in one step.

        Answers those whose older record counts no more: neither do they, and no record says so yet. No record
        says of the older ones that they count no more: their pack is about to go.
        """
        left = list[PackRecord]()
        with self._changing() as db:
            db.execute("INSERT OR IGNORE INTO packs VALUES (?, 0, 0, 0)", (number,))
            for old, new in moves:
                row = (old.sha256, old.place.pack, old.place.offset)
                if not db.execute(_DELETE_BLOB, row).rowcount:
                    left.append(new)
                    continue
                _count_live(db, old.place.pack, -(old.length + HEAD_BYTES))
                _insert(db, number, new)
            _count_indexed(db, number, stop)
        return left

    def seal(self, number: int) -> None:
        """A pack takes no more."""
        with self._changing() as db:
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
        with self._lock:
            return iter(self._db.execute(statement, values).fetchall())

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _remove(db: sqlite3.Connection, removal: Removal) -> None:
    """Have a blob count no more, and remember why as long as its pack is there."""
    target = removal.target
    gone = db.execute(
        f"{_DELETE_BLOB} RETURNING length", (removal.sha256, target.pack, target.offset)
    ).fetchone()
    if gone is not None:
        _count_live(db, target.pack, -(gone[0] + HEAD_BYTES))
    if db.execute("SELECT 1 FROM packs WHERE number = ?", (target.pack,)).fetchone() is None:
        return  # that pack is gone
    row = (removal.place.pack, removal.place.offset, target.pack, target.offset, removal.sha256)
    if db.execute("INSERT OR IGNORE INTO removals VALUES (?, ?, ?, ?, ?)", row).rowcount:
        _count_live(db, removal.place.pack, REMOVED_BYTES)


def _insert(db: sqlite3.Connection, number: int, record: PackRecord) -> None:
    row = (record.sha256, number, record.offset, record.length, record.digest)
    if db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?)", row).rowcount:
        _count_live(db, number, record.length + HEAD_BYTES)


def _count_indexed(db: sqlite3.Connection, number: int, stop: int) -> None:
    row = (stop, number)
    db.execute("UPDATE packs SET indexed_bytes = MAX(indexed_bytes, ?) WHERE number = ?", row)


def _count_live(db: sqlite3.Connection, number: int, more_bytes: int) -> None:
    db.execute("UPDATE packs SET live_bytes = live_bytes + ? WHERE number = ?", (more_bytes, number))


def _found(row: tuple[Any, ...]) -> PackedBlob:
    sha256, pack, offset, length, digest = row
    return PackedBlob(sha256, Place(pack, offset), length, digest)
