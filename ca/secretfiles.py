"""Small files that must survive a crash whole, and secrets that only their owner may read.

A file is written under a random name in the same directory, synced, and renamed: a reader sees the old
content or the new, never a part. A crash may leave a `.NAME.*.tmp` behind; nothing reads it.

Tested by tests/unit/ca/test_keys.py.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ca.errors import Conflict, Internal

SECRET_MODE: Final = 0o600
SECRET_BYTES_MAX: Final = 1 << 20  # a bound on what a wrong path costs
_READABLE_BY_GROUP: Final = stat.S_IRGRP
_ACCESSIBLE_BY_GROUP_OR_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class UnsafeSecretFile(Internal):
    """A secret cannot be read, or others than its owner could too; `details` says how to put it right."""


def write_secret(path: Path, data: bytes) -> None:
    """Replace `path` by `data` atomically and durably, mode 0600. Raises OSError as the disk does."""
    write_durable(path, data, mode=SECRET_MODE)


def write_durable(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data` atomically; when this returns, file and name survive a power cut."""
    _place(path, data, mode, os.replace)


def create_secret(path: Path, data: bytes) -> None:
    """Write a secret like `write_secret`, if the file does not exist. Raises Conflict if it does."""
    try:
        _place(path, data, SECRET_MODE, _link)
    except FileExistsError as error:
        raise Conflict(f"{path} already exists and is not overwritten") from error


def make_directory(path: Path) -> None:
    """Make a directory for its owner alone, with those above it that are missing.

    Their names are durable when this returns. Raises OSError.

    Also when it was there: who made it may have died before the sync. Not where its parent cannot be read.
    """
    missing = [each for each in path.parents if not each.exists()]
    for each in reversed(missing):
        _make_directory(each, 0o777)
    _make_directory(path, 0o700)


def _make_directory(path: Path, mode: int) -> None:
    """One that cannot be made durable goes again: the next attempt must not find it and go on."""
    is_new = not path.exists()
    path.mkdir(mode=mode, exist_ok=True)
    try:
        with contextlib.suppress(PermissionError):
            sync_directory(path.parent)
    except OSError:
        if is_new:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def reserve_secret(path: Path) -> None:
    """Make an empty file of mode 0600, for who writes to it by its name. Raises FileExistsError, OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SECRET_MODE))


def read_secret(path: Path) -> bytes:
    """Return the content of a secret.

    Raises UnsafeSecretFile if others could read it too, or it is unreadable.
    """
    try:
        # Without O_NONBLOCK a FIFO in this place would hold the process until someone writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnsafeSecretFile(f"{path} cannot be read: {error.strerror}") from error
    try:
        _check_private(path, os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(SECRET_BYTES_MAX)
    except OSError as error:  # of a disk that fails
        raise UnsafeSecretFile(f"{path} cannot be read: {error.strerror}. Check the disk.") from error
    finally:
        os.close(descriptor)


def systemd_credential(name: str) -> Path | None:
    """The file that systemd hands this service over under that name (LoadCredential=), if it does."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(directory, name) if directory else None
    return path if path is not None and path.exists() else None


def _check_private(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise UnsafeSecretFile(f"{path} is not a regular file")
    if facts.st_size > SECRET_BYTES_MAX:
        raise UnsafeSecretFile(
            f"{path} is larger than {SECRET_BYTES_MAX} bytes, so it is not a secret of Filestore"
        )
    refused = _ACCESSIBLE_BY_GROUP_OR_OTHERS
    if _is_systemd_credential(path):
        # systemd lets the service's user in by an access list, whose mask the mode shows as the group's read
        # bit.
        refused &= ~_READABLE_BY_GROUP
    if facts.st_mode & refused:
        mode = stat.S_IMODE(facts.st_mode)
        raise UnsafeSecretFile(
            f"{path} has mode {mode:04o}, which lets other users access it. Run: chmod 600 {path}"
        )


def _is_systemd_credential(path: Path) -> bool:
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    return bool(directory) and path.parent == Path(directory or "")


def _place(path: Path, data: bytes, mode: int, settle: Callable[[str, str], None]) -> None:
    """Write a synced file next to `path`; `settle(temporary, final)` gives it its name."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Never wider than the final mode at any moment; fchmod undoes what the umask took away.
    descriptor = os.open(temporary, flags, mode & SECRET_MODE)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        settle(str(temporary), str(path))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def _link(temporary: str, final: str) -> None:
    """Give the file its name unless the name is used: unlike rename, link(2) does not replace."""
    os.link(temporary, final)
    Path(temporary).unlink()


def sync_file(path: Path) -> None:
    """Make durable what was written to a file. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
