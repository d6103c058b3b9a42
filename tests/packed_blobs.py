"""Packed blobs in the data directory of a node, and what a disk or a test does to one, by its files alone.

The index is one that a node may have open: SQLite's locks keep both apart.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.packs.pack_file import pack_name
from node.packs.record import HEAD_BYTES

BUSY_S = 20.0


@dataclass(frozen=True, slots=True)
class PackedContent:
    """Where the content of a blob lies, without the head of its record."""

    pack: Path
    start: int
    size_bytes: int

    def read(self) -> bytes:
        """What lies there."""
        with self.pack.open("rb") as file:
            return os.pread(file.fileno(), self.size_bytes, self.start)

    def write(self, content: bytes | bytearray) -> None:
        """Lay other bytes there."""
        with self.pack.open("r+b") as file:
            os.pwrite(file.fileno(), content, self.start)


@contextmanager
def opened_index(data: Path, *, writable: bool = True) -> Iterator[sqlite3.Connection]:
    """The index; what is changed is committed."""
    address = f"file:{data / 'packs' / 'index.sqlite'}?mode={'rw' if writable else 'ro'}"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as db, db:
        yield db


def has_index(data: Path) -> bool:
    """Whether a node has made it; one that begins for the first time makes one table after the other."""
    if not (data / "packs" / "index.sqlite").exists():
        return False
    with opened_index(data, writable=False) as db:
        last = "SELECT 1 FROM sqlite_master WHERE name = 'unclaimed'"
        return db.execute(last).fetchone() is not None


def packed_names(data: Path) -> list[str]:
    """The names of all packed blobs, ascending."""
    if not has_index(data):
        return []
    with opened_index(data, writable=False) as db:
        return [row[0].hex() for row in db.execute("SELECT DISTINCT sha256 FROM blobs ORDER BY sha256")]


def packed_sizes(data: Path) -> dict[str, int]:
    """The size of each packed blob, by its name."""
    if not has_index(data):
        return {}
    with opened_index(data, writable=False) as db:
        return {sha256.hex(): length for sha256, length in db.execute("SELECT sha256, length FROM blobs")}


@dataclass(frozen=True, slots=True)
class PackRoom:
    """A pack by its index: how many bytes of records it has, and how many of them count.

    Those that count are summed up here, whatever number the index keeps.
    """

    name: str
    is_sealed: bool
    record_bytes: int
    live_bytes: int


def packs_of(data: Path) -> list[PackRoom]:
    """Every pack that the index knows, by its number."""
    if not has_index(data):
        return []
    asked = (
        "SELECT number, is_sealed, indexed_bytes,"
        " (SELECT IFNULL(SUM(length + ?), 0) FROM blobs WHERE pack = number) FROM packs ORDER BY number"
    )
    with opened_index(data, writable=False) as db:
        return [
            PackRoom(pack_name(number), bool(is_sealed), record_bytes, live_bytes)
            for number, is_sealed, record_bytes, live_bytes in db.execute(asked, (HEAD_BYTES,))
        ]


def packed_content(data: Path, name: str) -> PackedContent | None:
    """Where a blob lies; None when it is not packed."""
    if not has_index(data):
        return None
    asked = "SELECT pack, offset, length FROM blobs WHERE sha256 = ? ORDER BY affirmed_at_ns DESC"
    with opened_index(data, writable=False) as db:
        row = db.execute(asked, (bytes.fromhex(name),)).fetchone()
    if row is None:
        return None
    number, offset, length = row
    return PackedContent(data / "packs" / pack_name(number), offset + HEAD_BYTES, length)


def packed_present(data: Path, name: str) -> PackedContent:
    """The same of one that is packed."""
    found = packed_content(data, name)
    assert found is not None, f"{name} is not packed"
    return found


def rot_packed(data: Path, name: str) -> None:
    """One bit of a blob is another."""
    found = packed_present(data, name)
    content = bytearray(found.read())
    content[0] ^= 1
    found.write(content)


def lose_packed(data: Path, name: str) -> None:
    """No index knows of a blob any more, as after a crash that took the end of a pack."""
    uncounted = (
        "UPDATE packs SET live_bytes = live_bytes - length - ?, live_blobs = live_blobs - 1"
        " FROM blobs WHERE sha256 = ? AND pack = number"
    )
    with opened_index(data) as db:
        db.execute(uncounted, (HEAD_BYTES, bytes.fromhex(name)))
        assert db.execute("DELETE FROM blobs WHERE sha256 = ?", (bytes.fromhex(name),)).rowcount


def age_packed(data: Path, name: str, at_s: float) -> None:
    """Somebody was told then for the last time that a blob is here."""
    asked = "UPDATE blobs SET affirmed_at_ns = ? WHERE sha256 = ?"
    with opened_index(data) as db:
        assert db.execute(asked, (int(at_s * 1e9), bytes.fromhex(name))).rowcount


def age_packed_all(data: Path, at_s: float, *, newer_than_s: float) -> None:
    """The same of all that came, or were told of, after that."""
    if packed_names(data):
        row = (int(at_s * 1e9), int(newer_than_s * 1e9))
        with opened_index(data) as db:
            for table, column in (("blobs", "affirmed_at_ns"), ("unclaimed", "at_ns")):
                db.execute(f"UPDATE {table} SET {column} = ? WHERE {column} > ?", row)


def exchange_packed(data: Path, first: str, second: str) -> None:
    """Each lies under the other's name, and so do their checksums."""
    aside = bytes(32)
    with opened_index(data) as db:
        for old, new in ((first, aside.hex()), (second, first), (aside.hex(), second)):
            row = (bytes.fromhex(new), bytes.fromhex(old))
            assert db.execute("UPDATE blobs SET sha256 = ? WHERE sha256 = ?", row).rowcount
