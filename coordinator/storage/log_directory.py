"""The directory interface of the log, and the real one: flat names, positioned writes, explicit syncs.

Nothing here is durable before a sync: data after `File.sync`, names after `Directory.sync`. The simulator's
directory loses everything else in a crash, so the log may rely only on what is documented here.

Tested by tests/unit/coordinator/storage/test_power_loss.py.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ca.errors import Conflict
from ca.secretfiles import sync_directory
from runtime.disk import writable_bytes


class LogInUse(Conflict):
    """Another process has this log open."""


class File(Protocol):
    """An open file. One thread changes it; any thread may read meanwhile. All calls may raise OSError."""

    def size_bytes(self) -> int:
        """Return the size now, including allocated and unwritten bytes."""

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return `size_bytes` from `offset`; fewer only at the end of the file."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`. After an OSError any part of it may be there."""

    def allocate(self, size_bytes: int) -> None:
        """Make the file at least this large, with zeros, so that writes within it need no more room."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, and free the room."""

    def sync(self) -> None:
        """Make data and size durable. After an OSError only earlier synced bytes are certain."""

    def close(self) -> None:
        """Close the file without a sync."""


class Directory(Protocol):
    """A directory of one log. Names have no separators. All calls may raise OSError."""

    def names(self) -> list[str]:
        """Return every name in it, sorted."""

    def open(self, name: str) -> File:
        """Open an existing file, for reading and writing."""

    def create(self, name: str) -> File:
        """Create an empty file, in place of an older one of that name."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file, in place of an older one of that name."""

    def remove(self, name: str) -> None:
        """Remove the name of a file."""

    def sync(self) -> None:
        """Make all present names durable."""

    def lock(self) -> None:
        """Lock other processes out until `close`. Raises LogInUse."""

    def free_bytes(self) -> int:
        """Return the free room for files."""

    def path(self, name: str) -> Path:
        """Return the path of a file, for messages to the operator."""

    def close(self) -> None:
        """Close the directory and its lock; files stay open."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_is_reshaped", "_sync")

    def __init__(self, descriptor: int, sync: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._sync = sync
        self._is_reshaped = False

    def size_bytes(self) -> int:
        """See `File.size_bytes`."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size_bytes: int) -> bytes:
        """See `File.read`."""
        data = os.pread(self._descriptor, size_bytes, offset)
        while 0 < len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, offset: int, data: bytes) -> None:
        """See `File.write`. A short write is continued, or raises."""
        written = os.pwrite(self._descriptor, data, offset)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], offset + written)

    def allocate(self, size_bytes: int) -> None:
        """See `File.allocate`."""
        os.posix_fallocate(self._descriptor, 0, size_bytes)
        self._is_reshaped = True

    def truncate(self, size_bytes: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self._descriptor, size_bytes)
        self._is_reshaped = True

    def sync(self) -> None:
        """See `File.sync`."""
        if self._is_reshaped:  # fdatasync need not store more of the size than reading the data back needs
            os.fsync(self._descriptor)
            self._is_reshaped = False
        self._sync(self._descriptor)

    def close(self) -> None:
        """See `File.close`."""
        os.close(self._descriptor)


class OsDirectory:
    """A directory of the operating system, created if it is missing.

    `sync` makes the data of a descriptor durable or raises OSError.
    """

    def __init__(self, path: Path, *, sync: Callable[[int], None] = os.fdatasync) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)  # also an existing one: its creator may not have synced it
        self._path = path
        self._sync = sync
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def names(self) -> list[str]:
        """See `Directory.names`."""
        return sorted(os.listdir(self._descriptor))

    def open(self, name: str) -> OsFile:
        """See `Directory.open`."""
        return self._open(name, os.O_RDWR)

    def create(self, name: str) -> OsFile:
        """See `Directory.create`."""
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def _open(self, name: str, flags: int) -> OsFile:
        return OsFile(os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor), self._sync)

    def rename(self, source: str, target: str) -> None:
        """See `Directory.rename`."""
        os.rename(source, target, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """See `Directory.remove`."""
        os.unlink(name, dir_fd=self._descriptor)

    def sync(self) -> None:
        """See `Directory.sync`."""
        os.fsync(self._descriptor)

    def lock(self) -> None:
        """See `Directory.lock`."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogInUse(
                f"A coordinator already runs in this directory: another process has {self._path} open."
            ) from error

    def free_bytes(self) -> int:
        """See `Directory.free_bytes`."""
        return writable_bytes(os.fstatvfs(self._descriptor))

    def path(self, name: str) -> Path:
        """See `Directory.path`."""
        return self._path / name

    def close(self) -> None:
        """See `Directory.close`."""
        os.close(self._descriptor)
