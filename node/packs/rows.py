"""The rows of the index of the packs, and the checks that detect damaged ones.

SQLite returns any content of a page: any type in any column, in any order. No I/O here.

Tested by tests/unit/node/packs/test_index_wrong.py.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from node.packs.record import (
    DIGEST_BYTES,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    SHA256_BYTES,
    PackRecord,
    Place,
)

_NUMBER_MAX: Final = 2**63 - 1
_FILE_BYTES_MAX: Final = 1 << 40  # of a pack, far beyond any: a place is read and counted on from
_T = TypeVar("_T")


class RowInvalid(Exception):
    """The index gave rows that were never written so; the text says why."""


@dataclass(frozen=True, slots=True)
class PackedBlob:
    """A blob of `length` bytes with this XXH3, in the record at `place`; see index.sql for the time."""

    sha256: bytes
    place: Place
    length: int
    digest: bytes
    affirmed_at_ns: int


@dataclass(frozen=True, slots=True)
class PackFacts:
    """The facts about a pack: see index.sql."""

    number: int
    is_sealed: bool
    indexed_bytes: int
    live_bytes: int
    live_blobs: int

    @property
    def dead_bytes(self) -> int:
        """Return the bytes of records that do not count any more."""
        return max(self.indexed_bytes - HEADER_BYTES - self.live_bytes, 0)


def record_of(row: PackedBlob) -> PackRecord:
    """The record that a row says there is."""
    return PackRecord(row.place.offset, row.length, row.sha256, row.digest)


def require(is_right: bool, otherwise: str) -> None:
    """Raise RowInvalid, which says what the index gave, unless that is right."""
    if not is_right:
        raise RowInvalid(f"it gave {otherwise}")


def require_ascending(rows: list[_T], key: Callable[[_T], Any]) -> list[_T]:
    """Return the rows. Raise RowInvalid unless each comes behind the one before it."""
    if len(rows) > 1:  # a question about one blob mostly has one row
        keys = list(map(key, rows))
        require(all(map(operator.lt, keys, keys[1:])), "rows out of order")
    return rows


def blob_of(row: tuple[Any, ...]) -> PackedBlob:
    """sha256, pack, offset, length, digest, affirmed_at_ns. Raises RowInvalid, as all of these."""
    sha256, pack, offset, length, digest, affirmed_at_ns = row
    name, place = place_of((sha256, pack, offset))
    is_right = _is_bytes(digest, DIGEST_BYTES) and _is_number(affirmed_at_ns)
    require(is_right and _is_number(length, 0, PAYLOAD_BYTES_MAX), "a blob that is none")
    return PackedBlob(name, place, length, digest, affirmed_at_ns)


def place_of(row: tuple[Any, ...]) -> tuple[bytes, Place]:
    """sha256, pack, offset."""
    sha256, pack, offset = row
    is_right = (
        _is_bytes(sha256, SHA256_BYTES)
        and _is_number(pack)
        and _is_number(offset, HEADER_BYTES, _FILE_BYTES_MAX)
    )
    require(is_right, "a place that is none")
    return sha256, Place(pack, offset)


def facts_of(row: tuple[Any, ...]) -> PackFacts:
    """number, is_sealed, indexed_bytes, live_bytes, live_blobs."""
    number, is_sealed, indexed_bytes, live_bytes, live_blobs = row
    is_right = all(_is_number(size, 0, _FILE_BYTES_MAX) for size in (indexed_bytes, live_bytes, live_blobs))
    require(is_right and _is_number(number) and _is_number(is_sealed), "a pack that is none")
    return PackFacts(number, bool(is_sealed), indexed_bytes, live_bytes, live_blobs)


def size_of(row: tuple[Any, ...]) -> tuple[bytes, int]:
    """sha256, length."""
    sha256, length = row
    is_right = _is_bytes(sha256, SHA256_BYTES) and _is_number(length, 0, PAYLOAD_BYTES_MAX)
    require(is_right, "a blob that is none")
    return sha256, length


def note_of(row: tuple[Any, ...]) -> tuple[bytes, int]:
    """sha256, at_ns."""
    sha256, at_ns = row
    require(_is_bytes(sha256, SHA256_BYTES) and _is_number(at_ns), "a note that is none")
    return sha256, at_ns


def _is_bytes(value: object, size_bytes: int) -> bool:
    return type(value) is bytes and len(value) == size_bytes


def _is_number(value: object, least: int = 0, most: int = _NUMBER_MAX) -> bool:
    return type(value) is int and least <= value <= most
