"""Add missing records of completed packs to the index, when they are opened.

Unreadable parts of the medium are skipped, so that a bad sector costs only the blobs in it. The blobs that
are found may have been removed before, or never been claimed: the log is asked (`node/custody/orphans.py`).
All calls block.

Tested by tests/unit/node/packs/test_index_behind.py.
"""

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from node.diskio.durable import Disk
from node.diskio.fs import MEDIUM_ERRORS, read_whole, unlink
from node.packs.index import PackIndex
from node.packs.pack_file import PackReader, is_in_use, numbers_in, open_pack, pack_name
from node.packs.record import (
    HEAD_BYTES,
    HEADER_BYTES,
    PackInvalid,
    PackRecord,
    payload_of,
    read_end,
    scan,
)
from node.packs.rows import PackedBlob

PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_ROWS_BYTES: Final = 16 << 20  # of records that become rows of the index in one step
_T = TypeVar("_T", PackedBlob, PackRecord)

_log = logging.getLogger(__name__)


class PackCatchUp:
    """One opening of the packs in `directory`, a descriptor. `reader` gives each pack, open."""

    def __init__(
        self, directory: int, index: PackIndex, reader: Callable[[int], PackReader], disk: Disk
    ) -> None:
        self._directory, self._index, self._reader, self._disk = directory, index, reader, disk

    def run(self, *, is_alone: bool) -> None:
        """Read what the index lacks; forget packs that are gone.

        `is_alone`: no other process uses the packs. Raises OSError.
        """
        if is_alone:
            self._remove_unbegun()
        known = {each.number: each for each in self._index.packs()}
        present = numbers_in(self._directory)
        for number in known.keys() - set(present):
            if known[number].live_blobs:
                _log.error("a pack is gone", extra={"pack": number, "blobs": known[number].live_blobs})
            self._index.drop(number)
        left: list[tuple[int, int]] = []  # packs, and where to begin in them
        for number in present:
            facts = known.get(number)
            if (facts is None or not facts.is_sealed) and self._is_left(number):
                left.append((number, max(HEADER_BYTES, facts.indexed_bytes if facts else 0)))
        for number, start in left:
            self._make_durable(number, start)
        for number, start in left:
            self._index_records(number, start, is_known=number in known)
            self._seal(number)

    def _remove_unbegun(self) -> None:
        """Remove packs whose header a crash has kept from being written.

        No process may be writing one now.
        """
        for name in map(pack_name, numbers_in(self._directory)):
            facts = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
            is_short = stat.S_ISREG(facts.st_mode) and facts.st_size <= HEADER_BYTES
            if is_short and not any(read_whole(name, parent=self._directory, bytes_max=HEADER_BYTES)):
                unlink(name, parent=self._directory)

    def _is_left(self, number: int) -> bool:
        """Return whether no process appends to a pack, and it can be read.

        The lock is checked last, as it may appear in the meantime, before the header is written. A pack that
        is sealed while a process appends to it would not be examined after a power cut.
        """
        try:
            reader = open_pack(number, self._directory)
            if is_in_use(reader):
                return False
            if (
                reader.header_fault()
                and next(scan(reader.descriptor, reader.header(), HEADER_BYTES), None) is None
            ):
                raise PackInvalid("it has neither a header nor a record")
            return not is_in_use(reader)
        except FileNotFoundError:  # its process has ended it since, with nothing in it
            return False
        except (PackInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno not in MEDIUM_ERRORS:
                raise
            _log.error("a pack cannot be read", extra={"pack": number, "reason": str(error)})
            return False

    def _make_durable(self, number: int, start: int) -> None:
        """Sync records that a process wrote before it ended, as they may not be durable.

        They are then read from the medium: after a failed sync, the page cache may contain more than the
        medium.
        """
        reader = self._reader(number)
        try:
            self._disk.fdatasync(reader.descriptor)
        except OSError as error:
            if error.errno not in MEDIUM_ERRORS:
                raise
            _log.error("a pack cannot be made durable", extra={"pack": number, "reason": error.strerror})
        os.posix_fadvise(reader.descriptor, start // PAGE_BYTES * PAGE_BYTES, 0, os.POSIX_FADV_DONTNEED)

    def _index_records(self, number: int, start: int, *, is_known: bool) -> None:
        """Add the records of a pack to the index; nothing is written if it knows all of them (full disk)."""
        reader, at_ns = self._reader(number), time.time_ns()
        for batch in batches(_records_of(reader, start), _ROWS_BYTES):
            self._index.add(number, batch, stop=batch[-1].stop, at_ns=at_ns)
        if reader.size_bytes != start or not is_known:
            self._index.add(number, (), stop=reader.size_bytes, at_ns=at_ns)

    def _seal(self, number: int) -> None:
        """On a full disk that is left to the next who opens the packs: blobs are found all the same."""
        try:
            self._index.seal(number)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _log.warning("a pack is not sealed yet: the disk is full", extra={"pack": number})


def _records_of(reader: PackReader, start: int) -> Iterator[PackRecord]:
    """Yield the records of a pack from `start` on: by its index, otherwise those that are whole.

    Raises OSError.
    """
    header = reader.header()
    indexed = read_end(reader.descriptor, header.marker)
    if indexed is not None:
        yield from (record for record in indexed if record.offset >= start)
        return
    for record in scan(reader.descriptor, header, start):
        if _is_whole(reader, record):
            yield record


def _is_whole(reader: PackReader, record: PackRecord) -> bool:
    """Whether a record was written whole; one that the medium does not give is damaged, not torn."""
    try:
        return payload_of(reader.descriptor, record) is not None
    except OSError as error:
        if error.errno in MEDIUM_ERRORS:
            return True
        raise


def batches(items: Iterable[_T], bytes_max: int) -> Iterator[list[_T]]:
    """Split into batches of at least one item, and of about `bytes_max` payload at most."""
    batch, batch_bytes = list[_T](), 0
    for item in items:
        if batch and batch_bytes + item.length > bytes_max:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(item)
        batch_bytes += item.length + HEAD_BYTES
    if batch:
        yield batch
