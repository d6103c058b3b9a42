"""The stored checksums of the database's pages, with which a start finds changes made while no process ran.

The file is stored with the database, and must never condemn a sound one. Before a checkpoint writes a page,
the page's sum is durably removed; after the checkpoint has synced the page, the new sum is written. So after
any crash or power cut, each remaining sum belongs to a page on the disk. The sums are valid while the
database has the modification time that was noted with them: another program that wrote there has changed that
time.

Layout: blocks of 4096 bytes. The first is the header: magic, the mark of the database, its modification time
in ns (0: a checkpoint was running), the salts of its WAL (0: it had none), the size of its pages, and the
XXH3 of these. Then the sums of 511 pages each, 8 bytes, 0 for unknown, with the XXH3 of number and sums as
the last. A damaged block counts as unknown. Blocking; one thread at a time.

Tested by tests/unit/coordinator/storage/test_state_file.py.
"""

import fcntl
import logging
import os
import struct
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import xxhash

from ca.secretfiles import SECRET_MODE, sync_directory

SUMS: Final = ".sums"  # is added to the name of the database
SUMS_IN_BLOCK: Final = 511
_BLOCK_BYTES: Final = 4096
_MAGIC: Final = b"FSSUMS1\n"
_HEADER: Final = struct.Struct("<8sIq8sI")
_SUM: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct(">I")  # the first of the two salts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SumsHeader:
    """The header for the database of these sums. `mark`: its PRAGMA user_version, 0 for none."""

    mark: int
    changed_ns: int
    wal_salts: bytes
    page_bytes: int


_NOTHING: Final = SumsHeader(0, 0, bytes(8), 0)


class StoredSums:
    """The file of sums of one database, created if there is none.

    It is not kept while another process has it, and if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self.header = _NOTHING
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, SECRET_MODE)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.header = self._read_header()
        except BlockingIOError:
            self.close()
        except OSError as error:
            _log.warning("%s cannot be used: %s", path, error.strerror)
            self.close()

    @property
    def is_used(self) -> bool:
        """Return whether sums are written to the file: the database has a mark."""
        return self._file >= 0 and self.header.mark != 0

    def denies(self, changed_ns: int, wal_salts: bytes) -> bool:
        """Return whether this WAL cannot belong to the database, which has not changed since the last note.

        The WAL restarts at most once between two notes.
        """
        noted = self.header
        if (
            not self.is_used
            or noted.changed_ns != changed_ns
            or not any(noted.wal_salts)
            or not any(wal_salts)
        ):
            return False
        (before,), (now,) = _COUNT.unpack_from(noted.wal_salts), _COUNT.unpack_from(wal_salts)
        return wal_salts != noted.wal_salts and now != (before + 1) % (1 << 32)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def load(self, changed_ns: int, page_bytes: int, wal_salts: bytes) -> tuple["array[int]", bool]:
        """Return the sums, and whether they belong to this state of the database.

        If not, a checkpoint of this WAL was running, and its pages may have changed. Without either, returns
        no sums and durably clears the file. Raises OSError as `forget` does.
        """
        if not self.is_used:
            return array("Q"), False
        try:
            return self._loaded(changed_ns, page_bytes, wal_salts)
        except OSError:
            self._give_up()
            return array("Q"), False

    def _loaded(self, changed_ns: int, page_bytes: int, wal_salts: bytes) -> tuple["array[int]", bool]:
        sums, noted = array("Q"), self.header
        is_whole = noted.changed_ns != 0 and noted.changed_ns == changed_ns
        is_copying = noted.changed_ns == 0 and any(wal_salts) and noted.wal_salts == wal_salts
        if noted.page_bytes != page_bytes or not (is_whole or is_copying):
            self.clear()
            return sums, False
        content = os.pread(self._file, os.fstat(self._file).st_size, _BLOCK_BYTES)
        for number in range(len(content) // _BLOCK_BYTES):
            sums.extend(_sums_in(number, content[number * _BLOCK_BYTES : (number + 1) * _BLOCK_BYTES]))
        return sums, is_whole

    def adopt(self, mark: int) -> None:
        """Start again, for a database that durably has this mark."""
        if self._file >= 0:
            self.header = replace(_NOTHING, mark=mark)
            self.clear()
            sync_directory(self._path.parent)

    def clear(self) -> None:
        """Clear all sums; durable on return. Raises OSError."""
        os.ftruncate(self._file, _BLOCK_BYTES)
        self._write_header(replace(self.header, changed_ns=0))
        os.fsync(self._file)

    def forget(self, sums: "array[int]", pages: Iterable[int], wal_salts: bytes) -> None:
        """Before a checkpoint: set these pages, numbered from 1, to 0 in `sums`. Durable on return.

        After an OSError, the database must not be written. But if the disk allows it, the file is deleted
        instead, which suffices.
        """
        try:
            self._write_blocks(sums, set(map(block_of, pages)))
            self._write_header(replace(self.header, changed_ns=0, wal_salts=wal_salts))
            os.fdatasync(self._file)
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """Delete sums that cannot be kept correct, before the next process finds them. Raises OSError."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)
        self.header = _NOTHING

    def keep(
        self, sums: "array[int]", blocks: Iterable[int], changed_ns: int, page_bytes: int, wal_salts: bytes
    ) -> None:
        """After a checkpoint: write the sums in these blocks, of pages that are on the disk.

        Not synced; given up if it fails.
        """
        with suppress(OSError):
            self._write_blocks(sums, blocks)
            self._write_header(SumsHeader(self.header.mark, changed_ns, wal_salts, page_bytes))

    def rest(self) -> None:
        """Note that the WAL is about to be removed, so that the next one proves nothing.

        Durable on return.
        """
        self._write_header(replace(self.header, wal_salts=bytes(8)))
        os.fdatasync(self._file)

    def _read_header(self) -> SumsHeader:
        raw = os.pread(self._file, _HEADER.size + _SUM.size, 0)
        if len(raw) < _HEADER.size + _SUM.size:
            return _NOTHING
        magic, *fields = _HEADER.unpack_from(raw)
        if magic != _MAGIC or _SUM.unpack_from(raw, _HEADER.size) != (_sum(raw[: _HEADER.size]),):
            return _NOTHING
        return SumsHeader(*fields)

    def _write_header(self, header: SumsHeader) -> None:
        fields = (header.mark, header.changed_ns, header.wal_salts, header.page_bytes)
        raw = _HEADER.pack(_MAGIC, *fields)
        os.pwrite(self._file, raw + _SUM.pack(_sum(raw)), 0)
        self.header = header

    def _write_blocks(self, sums: "array[int]", blocks: Iterable[int]) -> None:
        for number in sorted(blocks):
            block = sums[number * SUMS_IN_BLOCK : (number + 1) * SUMS_IN_BLOCK]
            raw = _bytes_of(block).ljust(SUMS_IN_BLOCK * _SUM.size, b"\0")
            check = _SUM.pack(_sum(_SUM.pack(number) + raw))
            if os.pwrite(self._file, raw + check, (number + 1) * _BLOCK_BYTES) != _BLOCK_BYTES:
                raise OSError("the disk took half of a block")


def block_of(page: int) -> int:
    """Return the number of the block with the sum of a page."""
    return (page - 1) // SUMS_IN_BLOCK


def _sums_in(number: int, block: bytes) -> "array[int]":
    raw = block[: SUMS_IN_BLOCK * _SUM.size]
    if _SUM.unpack_from(block, len(raw)) != (_sum(_SUM.pack(number) + raw),):
        raw = bytes(len(raw))
    return array("Q", struct.unpack(f"<{SUMS_IN_BLOCK}Q", raw))


def _bytes_of(sums: "array[int]") -> bytes:
    return struct.pack(f"<{len(sums)}Q", *sums)


def _sum(raw: bytes) -> int:
    return xxhash.xxh3_64_intdigest(raw)
