"""Checksums of the pages of the database file, so that a changed bit is found in tables and indexes alike.

SQLite has none: a flipped bit in a row or in an index is read like any other value. The file is only written
by checkpoints, so between two of them no page may change. The sums describe the file as it was when this
process started, or last wrote a page. They are in memory, 8 bytes for each page, and stored for the next
process (coordinator/storage/stored_sums.py). A round reads the whole file. Writes of another process are
distinguished from damage by the file's modification time, which disk damage does not change. Blocking, no
SQLite; any thread.
"""

import errno
import os
import struct
import threading
from array import array
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import xxhash

from coordinator.storage.stored_sums import StoredSums, block_of
from coordinator.storage.wal_pages import WalPages, wal_salts

SLICE_BYTES: Final = 1 << 20  # read and compared with the lock held: a millisecond
_PAGE_SIZE: Final = struct.Struct(">16xH")  # https://www.sqlite.org/fileformat.html, section 1.3
_PAGE_BYTES_MIN: Final = 512


class PageSums:
    """The checksums of the pages of one database file.

    `close` it after the last connection: a descriptor that is closed before that drops the locks of SQLite
    (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    """

    def __init__(self, path: Path, stored: StoredSums) -> None:
        """Read the stored sums; closing this object also closes `stored`. Raises OSError."""
        self._wal_path = f"{path}-wal"
        self._stored = stored
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._written_ns = os.fstat(self._file).st_mtime_ns
        self.denies_wal = stored.denies(self._written_ns, self._wal_salts())  # the WAL of another database
        self._wal = WalPages(self._wal_path)
        self._sums = self._loaded()  # of page 1, 2, ...; 0: unknown
        self._learned: set[int] = set()  # blocks with sums that are not in the file yet
        self._next = 0  # the first page of the next slice

    def close(self) -> None:
        """Stop reading. May be called twice."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
            self._stored.close()

    def size_bytes(self) -> int:
        """Return the size of the file. Raises OSError."""
        with self._lock:
            self._require_open()
            return os.fstat(self._file).st_size

    def send(self, target: int, offset: int, count: int) -> int:
        """Append bytes of the file to another one, past SQLite; return how many.

        Raises OSError, also when closed. Opening the database a second time, and closing that, would end
        SQLite's locks on it.
        """
        with self._lock:
            self._require_open()
            return os.sendfile(target, self._file, offset, count)

    @property
    def mark(self) -> int:
        """Return the mark that the database must have, 0 while no sums are stored."""
        return self._stored.header.mark if self._stored.is_used else 0

    def adopt(self, mark: int) -> None:
        """Start to store sums of the database, which durably has this mark."""
        with self._lock:
            self._stored.adopt(mark)
            self._learned.update(range(block_of(len(self._sums)) + 1) if self._sums else ())

    def rest(self) -> None:
        """Prepare for the end of the last connection, when nothing remains to be copied from the WAL."""
        with self._lock:
            if self._stored.is_used:
                self._keep()
                self._stored.rest()

    @contextmanager
    def around_checkpoint(self) -> Iterator[Callable[[int, int], None]]:
        """Enclose a checkpoint, so that no slice is compared meanwhile.

        The written pages get new sums afterwards. Yields a function to call with the checkpoint's numbers:
        frames in the WAL, and copied frames.
        """
        with self._lock:
            self._forget_foreign()
            pages = sorted(self._wal.pending_pages())
            before = self._sums_of(pages)
            written: Collection[int] = pages
            if self._stored.is_used:
                self._forget(pages)

            def told(frames: int, copied: int) -> None:
                nonlocal written
                written = self._wal.note_checkpoint(frames, copied)

            try:
                yield told
            finally:
                self._written_ns = os.fstat(self._file).st_mtime_ns
                self._put_back(pages, before)
                self._take_sums(sorted(written))
            self._learned.update(map(block_of, pages))
            self._keep()

    def compare_all(self) -> tuple[list[int], bool]:
        """Return the pages that have changed, and whether all sums were known."""
        with self._lock:
            known = sum(map(bool, self._sums))
            self._next = 0
        odd, is_round = self.compare_slice()
        while not odd and not is_round:
            odd, is_round = self.compare_slice()
        with self._lock:
            return odd, 0 < known == sum(map(bool, self._sums))

    def compare_slice(self) -> tuple[list[int], bool]:
        """Return the changed pages in the next 1 MiB of the file, and whether a round has ended.

        A page without a sum gets one.
        """
        with self._lock:
            if self._file < 0 or (page_bytes := self._page_bytes()) == 0:
                return [], True
            self._forget_foreign()
            first = self._next
            data = memoryview(os.pread(self._file, SLICE_BYTES, first * page_bytes))
            count = len(data) // page_bytes
            self._grow(first + count)
            odd = []
            for page in range(count):
                found = _sum(data[page * page_bytes : (page + 1) * page_bytes])
                if self._sums[first + page] == 0:
                    self._learned.add(block_of(first + page + 1))
                elif found != self._sums[first + page]:
                    odd.append(first + page + 1)
                self._sums[first + page] = found
            is_last = count * page_bytes < SLICE_BYTES
            if is_last:
                cut = (
                    page for page, known in enumerate(self._sums[first + count :], first + count + 1) if known
                )
                odd.extend(islice(cut, 1))
                if not odd:
                    self._keep()
            self._next = 0 if is_last else first + count
            return odd, is_last

    def _loaded(self) -> "array[int]":
        """Return the sums of the previous process.

        If it died in a checkpoint, the WAL lists the pages that it may have written, and that were copied
        since.
        """
        sums, is_whole = self._stored.load(self._written_ns, self._page_bytes(), self._wal_salts())
        if sums and not is_whole:
            for page in self._wal.pending_pages():
                if page <= len(sums):
                    sums[page - 1] = 0
        return sums

    def _forget(self, pages: list[int]) -> None:
        """Forget the sums of pages that are about to be written. Raises OSError."""
        if pages:
            self._grow(pages[-1])
        for page in pages:
            self._sums[page - 1] = 0
        self._stored.forget(self._sums, pages, self._wal_salts())

    def _keep(self) -> None:
        """Store the learned sums, unless another process wrote to the database in the meantime."""
        salts, page_bytes = self._wal_salts(), self._page_bytes()
        noted = self._stored.header
        is_new = (noted.changed_ns, noted.wal_salts) != (self._written_ns, salts)
        if not self._stored.is_used or not (self._learned or is_new):
            return
        if os.fstat(self._file).st_mtime_ns == self._written_ns:
            self._stored.keep(self._sums, self._learned, self._written_ns, page_bytes, salts)
            self._learned.clear()

    def _forget_foreign(self) -> None:
        """Another process made a checkpoint: what it wrote is not known here."""
        written_ns = os.fstat(self._file).st_mtime_ns
        if written_ns != self._written_ns:
            self._written_ns = written_ns
            self._sums = array("Q")
            if self._stored.is_used:
                self._stored.clear()

    def _require_open(self) -> None:
        if self._file < 0:
            raise OSError(errno.EBADF, "another database lies there now")

    def _sums_of(self, pages: list[int]) -> list[int]:
        self._grow(pages[-1] if pages else 0)
        return [self._sums[page - 1] for page in pages]

    def _put_back(self, pages: list[int], sums: list[int]) -> None:
        """Restore the previous sums of pages that were not written after all."""
        for page, known in zip(pages, sums, strict=True):
            self._sums[page - 1] = known

    def _take_sums(self, pages: list[int]) -> None:
        page_bytes = self._page_bytes()
        if pages and page_bytes:
            self._grow(pages[-1])
        for page in pages:
            data = os.pread(self._file, page_bytes, (page - 1) * page_bytes)
            self._sums[page - 1] = _sum(data) if len(data) == page_bytes > 0 else 0

    def _grow(self, pages: int) -> None:
        if (missing := pages - len(self._sums)) > 0:
            self._sums.extend(array("Q", bytes(8 * missing)))

    def _page_bytes(self) -> int:
        """Return the size of a page; 0 for a file without a header."""
        header = os.pread(self._file, _PAGE_SIZE.size, 0)
        if len(header) < _PAGE_SIZE.size:
            return 0
        (size,) = _PAGE_SIZE.unpack(header)
        return 65_536 if size == 1 else size if size >= _PAGE_BYTES_MIN else 0

    def _wal_salts(self) -> bytes:
        """Return the salts of the WAL; zeros if there is none."""
        return wal_salts(self._wal_path)


def _sum(page: memoryview | bytes) -> int:
    return xxhash.xxh3_64_intdigest(page) or 1  # 0 is for unknown sums
