"""How much room a directory has, and which user owns it. Shared by coordinators, nodes and the doctor.

Tested by tests/unit/coordinator/storage/test_full_disk.py.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ca.errors import Conflict

NO_ROOM_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})

FILES_SPARE = 16  # inodes: an upload takes a handful until it is in place, a snapshot and the state some more


def writable_bytes(found: os.statvfs_result) -> int:
    """Return how many bytes can be written to a file system; 0 if it has hardly any free inodes.

    Space that is reserved for the superuser does not count.
    """
    if found.f_files and found.f_favail < FILES_SPARE:  # some file systems have no number of inodes
        return 0
    return found.f_bavail * found.f_frsize


@contextmanager
def while_stopped(directory: Path) -> Iterator[None]:
    """No process starts here meanwhile. Raises Conflict while one runs, OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Conflict(f"{directory} is in use by another process. Stop that process first.") from None
    finally:
        os.close(descriptor)
