"""Find the pages in a database's WAL that are not copied into the file yet. Blocking, no SQLite.

Reading continues at the previous position: while a reader prevents copying, the WAL grows, and no checkpoint
should take longer for that. Its frames are numbered from 1. Frames behind the last commit may be overwritten,
so they are read again. Source: https://www.sqlite.org/fileformat.html, section 4.1.
"""

import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

_WAL_HEADER: Final = struct.Struct(">8xI4x8s8x")  # the size of pages, the salts
_FRAME_HEADER: Final = struct.Struct(">I4x8s8x")  # the number of a page, the salts
_READ_BYTES: Final = 1 << 18  # at once: copying pages costs less than a call for each header


class WalPages:
    """The frames of one WAL that are committed and not copied."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._salts = bytes(8)
        self._copied = 0  # frames that the database has
        self._pages = array("I")  # of the later frames, committed ones first
        self._committed = 0  # of `_pages`

    def pending_pages(self) -> set[int]:
        """Return the pages that the next checkpoint may write. Raises OSError."""
        del self._pages[self._committed :]
        found = False
        with suppress(FileNotFoundError):
            wal = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = self._read(wal)
            finally:
                os.close(wal)
        if not found:
            self._begin_anew(bytes(8))
        return set(self._pages)

    def note_checkpoint(self, frames: int, copied: int) -> set[int]:
        """Return the pages that a checkpoint may have written, by its numbers of committed and copied frames.

        Call `pending_pages` before it.
        """
        written = set(islice(self._pages, max(copied - self._copied, 0)))
        self._committed = min(max(frames - self._copied, 0), len(self._pages))
        done = min(max(copied - self._copied, 0), self._committed)
        del self._pages[:done]
        self._copied += done
        self._committed -= done
        return written

    def _read(self, wal: int) -> bool:
        """Continue reading. Return False if the file is no WAL."""
        header = os.pread(wal, _WAL_HEADER.size, 0)
        if len(header) < _WAL_HEADER.size:
            return False
        page_bytes, salts = _WAL_HEADER.unpack(header)
        if salts != self._salts:
            self._begin_anew(salts)
        frame_bytes = _FRAME_HEADER.size + page_bytes
        known = self._copied + len(self._pages)
        self._pages.extend(_pages_of(wal, salts, _WAL_HEADER.size + known * frame_bytes, frame_bytes))
        return True

    def _begin_anew(self, salts: bytes) -> None:
        self._salts = salts
        self._copied = self._committed = 0
        self._pages = array("I")


def wal_salts(path: str) -> bytes:
    """Return the salts that distinguish the WAL in this file from others; zeros if it is not a WAL.

    The first four bytes count its restarts, from a random number on, and the others are random. Raises
    OSError.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(_WAL_HEADER.size)
    except FileNotFoundError:
        header = b""
    if len(header) < _WAL_HEADER.size or not any(header):
        return bytes(8)
    return bytes(_WAL_HEADER.unpack(header)[1])


def _pages_of(wal: int, salts: bytes, offset: int, frame_bytes: int) -> Iterator[int]:
    read_bytes = max(_READ_BYTES // frame_bytes, 1) * frame_bytes
    while frames := os.pread(wal, read_bytes, offset):
        for at in range(0, len(frames) - _FRAME_HEADER.size + 1, frame_bytes):
            page, found = _FRAME_HEADER.unpack_from(frames, at)
            if found != salts or page == 0:
                return
            yield page
        if len(frames) < read_bytes:
            return
        offset += read_bytes
