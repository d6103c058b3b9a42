"""The audit log: who did what to which object, with which result, as one JSON line each.

`audit.log` has the actions of people. `housekeeping.log` has the actions of the node itself, which would hide
the others. Attempts without a valid credential are in `failed_attempts.log`: strangers can make them from
many addresses, so they have their own bound and displace no actions of users. Several processes may append to
one file: each line is one write to its end. A full file becomes NAME.1, the one before NAME.2, and so on; the
oldest is deleted.

Administrative actions call `check_writable` before they act and `record` after, and fail with either: an
action that leaves no trace must not happen. Lines reach the kernel before the response is sent. They are not
fsynced: they prove nothing about the data, and a disk that syncs slowly must not slow down rejections.
"""

import errno
import fcntl
import json
import os
import re
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final, Self

from ca.errors import Unavailable
from runtime.audit_pages import AuditPages
from runtime.clock import now_ms
from runtime.timestamps import rfc3339

_TOKEN: Final = re.compile(r"FST1\.[^\s/]*|eyJ[A-Za-z0-9_-]+\.[^\s/]*")
SIZE_BYTES_MAX: Final = 32 << 20  # of one file, some 150,000 lines
# full files, in addition to the one that is written
ROTATED_PEOPLE, ROTATED_HOUSEKEEPING, ROTATED_FAILED = 9, 2, 2
FAILED_ATTEMPTS: Final = "failed_attempts.log"
TEXT_CHARS_MAX: Final = 512  # of each field: a line stays below what one write appends at once


class AuditLog:
    """An append-only file, mode 0600. The only blocking I/O here is one short append to the page cache.

    `failed`: the log of failed attempts. `pages`: what is in both, full files too.
    """

    def __init__(
        self,
        path: Path,
        *,
        rotated: int = ROTATED_PEOPLE,
        size_bytes_max: int = SIZE_BYTES_MAX,
        failed: "AuditLog | None" = None,
    ) -> None:
        """`rotated`: how many full files stay. `failed`: this log itself by default."""
        self.paths = (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, rotated + 1)))
        self.failed = failed or self
        self._path = path
        self._rotated = rotated
        self._size_bytes_max = size_bytes_max
        self._file: FileIO | None = None
        self.pages = AuditPages(self.paths, *([failed.paths] if failed else []))

    @classmethod
    def of_people(cls, path: Path) -> Self:
        """Open the log of people's actions, with failed attempts in a separate file."""
        return cls(path, failed=cls(path.with_name(FAILED_ATTEMPTS), rotated=ROTATED_FAILED))

    def check_writable(self) -> None:
        """Raises Unavailable when `record` could not be called now: a line less is noticed before the act."""
        try:
            if os.fstatvfs(self._current().fileno()).f_bfree == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise _unwritable(error) from error

    def record(
        self,
        action: str,
        *,
        principal: str,
        object: str,  # noqa: A002
        outcome: str,
        request_id: str,
        client_address: str = "",
    ) -> None:
        """Append one line; `outcome` is `ok` or the code of an error. Raises Unavailable if that fails.

        `client_address` is "" of what no client asked for.
        """
        line = {
            "time": rfc3339(now_ms()),
            "action": action,
            "principal": _shown(principal),
            "object": _shown(object),
            "outcome": outcome,
            "request_id": request_id,
        } | ({"client_address": client_address} if client_address else {})
        try:
            _append(self._current(), json.dumps(line).encode("ascii") + b"\n")
        except OSError as error:
            self.close()
            raise _unwritable(error) from error

    def close(self) -> None:
        """Close the file, and that of failed attempts; a later `record` opens it again."""
        if self.failed is not self:
            self.failed.close()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _current(self) -> FileIO:
        """The file that has the name now, with room: others move a full one away while it is open."""
        file = self._open()
        if not self._has_name(file):
            self.close()
            file = self._open()
        if os.fstat(file.fileno()).st_size >= self._size_bytes_max:
            self._move_away(file)
            self.close()
            file = self._open()
        return file

    def _has_name(self, file: FileIO) -> bool:
        opened = os.fstat(file.fileno())
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)

    def _move_away(self, file: FileIO) -> None:
        """Rotate a full file. Only one process does: the holder of its lock, while the file has its name."""
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)  # ends when the file is closed
        if not self._has_name(file):
            return
        for number in range(self._rotated, 1, -1):
            with suppress(FileNotFoundError):
                self.paths[number - 1].replace(self.paths[number])
        self._path.replace(self.paths[1])

    def _open(self) -> FileIO:
        if self._file is None:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._file = FileIO(descriptor, "a")
        return self._file


class AuditLogUnwritable(Unavailable):
    """An action that must leave a trace cannot be done."""

    lasts = True


def _append(file: FileIO, line: bytes) -> None:
    """Append a line in one write, which the kernel puts after those of others. Raises OSError."""
    if file.write(line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _shown(text: str) -> str:
    """Bounded, and without what looks like a token: people paste them into the wrong place."""
    return _TOKEN.sub("(token)", text[:TEXT_CHARS_MAX])


def _unwritable(error: OSError) -> AuditLogUnwritable:
    return AuditLogUnwritable(f"The audit log cannot be written: {error.strerror}.", retry_after_s=30)
