"""Small files that survive a power cut, and whole writes. Shared by downloads and uploads."""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

SECRET_MODE: Final = 0o600


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


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of it at `offset`, uncopied. Raises OSError; some of it may be written then."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        if not count:
            raise OSError(errno.EIO, "the disk takes no bytes")
        view, offset = view[count:], offset + count
