"""Checksums of the pages of the database file, so that a changed bit is found in tables and indexes alike.

SQLite has none: a flipped bit in a row or in an index is read like any other value. The file is written by
checkpoints alone, so between two of them no page may change. The sums are of the file as it was when this
process began, or wrote a page last; they are in memory, 8 bytes for each page. A round reads the whole file.
What another process writes is told from damage by the time of the file, which damage of a disk leaves alone.
Blocking, no SQLite; any thread.
"""

import os
import struct
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import xxhash

SLICE_BYTES: Final = 1 << 20  # read and compared with the lock held: a millisecond
_PAGE_SIZE: Final = struct.Struct(">16xH")  # https://www.sqlite.org/fileformat.html, section 1.3
_PAGE_BYTES_MIN: Final = 512
_WAL_HEADER: Final = struct.Struct(">8xI4x8s8x")  # section 4.1: the size of pages, the salts
_FRAME_HEADER: Final = struct.Struct(">I4x8s8x")  # the number of a page, the salts


class PageSums:
    """Of one database file. `close` it after the last connection: a descriptor that is closed before that
    drops the locks of SQLite (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    """

    def __init__(self, path: Path) -> None:
        self._wal_path = f"{path}-wal"
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._sums = array("Q")  # of page 1, 2, ...; 0 where it is not known
        self._written_ns = 0
        self._next = 0  # where the next slice begins, in pages

    def close(self) -> None:
        """Nothing is read any more. May be repeated."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around a checkpoint: no slice is compared meanwhile, and what it wrote has new sums after it."""
        with self._lock:
            self._forget_foreign()
            pages = sorted(set(self._pages_in_wal()))
            try:
                yield
            finally:
                self._written_ns = os.fstat(self._file).st_mtime_ns
                self._take_sums(pages)

    def compare_slice(self) -> tuple[list[int], bool]:
        """The pages, of the next 1 MiB of the file, that are not what they were; whether a round has ended.

        A page whose sum is not known gets it.
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
                if found != (self._sums[first + page] or found):
                    odd.append(first + page + 1)
                self._sums[first + page] = found
            is_last = count * page_bytes < SLICE_BYTES
            self._next = 0 if is_last else first + count
            return odd, is_last

    def _forget_foreign(self) -> None:
        """Another process made a checkpoint: what it wrote is not known here."""
        written_ns = os.fstat(self._file).st_mtime_ns
        if written_ns != self._written_ns:
            self._written_ns = written_ns
            self._sums = array("Q", bytes(8 * len(self._sums)))

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
        """0 for a file without a header."""
        header = os.pread(self._file, _PAGE_SIZE.size, 0)
        if len(header) < _PAGE_SIZE.size:
            return 0
        (size,) = _PAGE_SIZE.unpack(header)
        return 65_536 if size == 1 else size if size >= _PAGE_BYTES_MIN else 0

    def _pages_in_wal(self) -> Iterator[int]:
        """The pages that a checkpoint may write: of every frame since the WAL began anew."""
        with suppress(FileNotFoundError):
            wal = os.open(self._wal_path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield from _pages_of(wal)
            finally:
                os.close(wal)


def _pages_of(wal: int) -> Iterator[int]:
    header = os.pread(wal, _WAL_HEADER.size, 0)
    if len(header) < _WAL_HEADER.size:
        return
    page_bytes, salts = _WAL_HEADER.unpack(header)
    offset = _WAL_HEADER.size
    while len(frame := os.pread(wal, _FRAME_HEADER.size, offset)) == _FRAME_HEADER.size:
        page, found = _FRAME_HEADER.unpack(frame)
        if found != salts or page == 0:
            return
        yield page
        offset += _FRAME_HEADER.size + page_bytes


def _sum(page: memoryview | bytes) -> int:
    return xxhash.xxh3_64_intdigest(page) or 1  # 0 is for what is not known
