"""One pack on the disk: made, appended to, sealed, read. All calls block.

Tested by tests/unit/node/packs/test_pack_store.py.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from node.diskio.durable import Disk, Octets, write_all
from node.diskio.fs import MEDIUM_ERRORS, READ_FLAGS
from node.packs.record import (
    HEADER_BYTES,
    HeaderDamaged,
    PackHeader,
    PackInvalid,
    PackRecord,
    decode_header,
    encode_end,
    encode_header,
    marker_of,
)

SUFFIX: Final = ".pack"
NUMBER_BITS: Final = 63  # at random: a number is never used again, even if parts of its pack remain
_DIGITS: Final = 16
_NAME: Final = re.compile(rf"[0-7][0-9a-f]{{{_DIGITS - 1}}}{re.escape(SUFFIX)}")
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES})
_CREATE_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class AnotherPack(PackInvalid):
    """The file is a pack whose name is another one."""


def pack_name(number: int) -> str:
    """The file name of a pack."""
    return f"{number:0{_DIGITS}x}{SUFFIX}"


def number_of(name: str) -> int | None:
    """The number of a pack by its file name; None for another file."""
    return int(name[:_DIGITS], 16) if _NAME.fullmatch(name) else None


def numbers_in(directory: int) -> list[int]:
    """The packs of a directory; other names are passed over. Raises OSError."""
    return sorted(number for name in os.listdir(directory) if (number := number_of(name)) is not None)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PackReader:
    """A pack that is open for reading, until this object is not referenced any more.

    Its records are found without its header too.
    """

    number: int
    descriptor: int

    def header(self) -> PackHeader:
        """Return what it begins with, or began with before that was damaged.

        Raises PackInvalid for another pack, or one of another release; OSError.
        """
        try:
            return self._present_header()
        except HeaderDamaged:
            pass
        except OSError as error:
            if error.errno not in MEDIUM_ERRORS:
                raise
        return PackHeader(self.number, marker_of(self.number))

    def _present_header(self) -> PackHeader:
        header = decode_header(os.pread(self.descriptor, HEADER_BYTES, 0))
        if header.number != self.number:
            raise AnotherPack(f"its header has the number {header.number}")
        return header

    def is_another(self) -> bool:
        """Whether another pack lies under this name. Raises OSError."""
        try:
            self.header()
        except AnotherPack:
            return True
        except PackInvalid:
            return False
        return False

    def header_fault(self) -> str:
        """Why its header is of no use, "" if it is. Raises OSError when the disk may give it later."""
        try:
            self._present_header()
        except PackInvalid as error:
            return str(error)
        except OSError as error:
            if error.errno in MEDIUM_ERRORS:
                return str(error.strerror)
            raise
        return ""

    @property
    def size_bytes(self) -> int:
        """The size of the file now: others may append to it. Raises OSError."""
        return os.fstat(self.descriptor).st_size

    @property
    def is_gone(self) -> bool:
        """Whether no name leads to the file any more: its room is given back with the descriptor."""
        return os.fstat(self.descriptor).st_nlink == 0


def open_pack(number: int, directory: int) -> PackReader:
    """Raises PackInvalid for what is no file, or not ours to read; FileNotFoundError, OSError."""
    try:
        descriptor = os.open(pack_name(number), READ_FLAGS, dir_fd=directory)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PackInvalid("it is not a file")
    except OSError as error:
        if error.errno in _NO_FILE:
            raise PackInvalid(error.strerror) from error
        raise
    reader = PackReader(number, descriptor)
    weakref.finalize(reader, os.close, descriptor)  # a thread may read while others forget it
    return reader


def is_in_use(reader: PackReader) -> bool:
    """Whether a process appends to it now. Raises OSError."""
    try:
        fcntl.flock(reader.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(reader.descriptor, fcntl.LOCK_UN)
    return False


class PackWriter:
    """A new pack, which this process alone appends to. For one thread at a time.

    After an error it accepts no more: the bytes after `durable_offset` are in an unknown state.
    """

    def __init__(self, directory: int, disk: Disk) -> None:
        """Make one; its name is durable. Raises OSError."""
        self._disk = disk
        self.header, self._descriptor = self._made(directory)
        self.records: list[PackRecord] = []
        self.durable_offset = HEADER_BYTES
        self.is_broken = True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # others have it for a moment: see `is_in_use`
            write_all(disk, self._descriptor, encode_header(self.header), 0)
            disk.fsync(self._descriptor)
            disk.fsync(directory)
        except BaseException:
            os.close(self._descriptor)
            with suppress(OSError):
                os.unlink(pack_name(self.header.number), dir_fd=directory)
            raise
        self.is_broken = False

    @property
    def number(self) -> int:
        """Return the number in its name."""
        return self.header.number

    def append(self, records: Sequence[PackRecord], pieces: Sequence[Octets]) -> None:
        """Write records, whose bytes are `pieces`, and sync them: all are durable, or it raises OSError.

        The first of the records begins at `durable_offset`.
        """
        assert not self.is_broken
        self.is_broken = True
        buffer = b"".join(pieces)
        write_all(self._disk, self._descriptor, buffer, self.durable_offset)
        self._disk.fdatasync(self._descriptor)
        if not os.fstat(self._descriptor).st_nlink:
            raise FileNotFoundError(
                errno.ENOENT, "the pack was removed by someone else", pack_name(self.number)
            )
        self.is_broken = False
        self.records += records
        self.durable_offset += len(buffer)

    def seal(self) -> None:
        """Write the index after the last record, and accept no more. Raises OSError; then it has none.

        A broken pack gets none, but loses the bytes after its last sync, which nothing relies on.
        """
        if self.is_broken:
            os.ftruncate(self._descriptor, self.durable_offset)
        else:
            self.is_broken = True
            write_all(
                self._disk,
                self._descriptor,
                encode_end(self.header.marker, self.records, self.durable_offset),
                self.durable_offset,
            )
            self._disk.fdatasync(self._descriptor)

    def close(self) -> None:
        """Give the descriptor, and with it the lock, back."""
        os.close(self._descriptor)

    @staticmethod
    def _made(directory: int) -> tuple[PackHeader, int]:
        number = secrets.randbits(NUMBER_BITS)
        descriptor = os.open(pack_name(number), _CREATE_FLAGS, 0o600, dir_fd=directory)
        return PackHeader(number, marker_of(number)), descriptor
