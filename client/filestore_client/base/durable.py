"""Small files that survive a power cut, whole writes, and holes. Shared by downloads and uploads.

Tested by tests/unit/filestore_client/test_partial_file.py.
"""

import ctypes
import errno
import functools
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

SECRET_MODE: Final = 0o600
HOLE_BYTES: Final = 64 << 10  # zeros of this length, at a multiple of it, become a hole
_ZEROS: Final = bytes(HOLE_BYTES)
_KEEP_SIZE_AND_PUNCH_HOLE: Final = 0x01 | 0x02  # flags of fallocate(2)


def write_durable(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data` in one rename; file and name survive a power cut then. Raises OSError."""
    made = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(descriptor, data, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        made.replace(path)
    except BaseException:
        with suppress(OSError):
            made.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of it at `offset`, uncopied. Raises OSError; some of it may be written then."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        if not count:
            raise OSError(errno.EIO, "the disk takes no bytes")
        view, offset = view[count:], offset + count


def write_sparse(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of it at `offset`; long zeros become holes if the file system has some. Raises OSError."""
    view, start, at = memoryview(data), 0, -offset % HOLE_BYTES
    while at + HOLE_BYTES <= len(view):
        # Of bytes: a comparison of views takes fifty times as long.
        if not view[at] and bytes(view[at : at + HOLE_BYTES]) == _ZEROS and _is_hole(descriptor, offset + at):
            write_all(descriptor, view[start:at], offset + start)
            start = at + HOLE_BYTES
        at += HOLE_BYTES
    write_all(descriptor, view[start:], offset + start)


def _is_hole(descriptor: int, offset: int) -> bool:
    """Return whether a hole could be made there. Otherwise the caller writes zeros."""
    punch = _puncher()
    return punch is not None and punch(descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, offset, HOLE_BYTES) == 0


@functools.cache
def _puncher() -> Callable[[int, int, int, int], int] | None:
    """Return fallocate(2) of Linux, which Python has without its flags; None elsewhere."""
    library = ctypes.CDLL(None)
    for name in ("fallocate64", "fallocate"):
        with suppress(AttributeError):
            found = getattr(library, name)
            found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
            return found  # type: ignore[no-any-return]
    return None
