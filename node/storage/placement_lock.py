"""Lets one thread of one process at a time place or remove blobs. Apart from the blobs: a lock alone.

A blob's content and its sidecar are two files. Two workers of a node that place and quarantine the same blob
at once could leave one without the other.

Tested by tests/unit/node/storage/test_blobs.py.
"""

import fcntl
import os
import threading
from types import TracebackType

LOCK_NAME = "placing.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class PlacingLock:
    """A context manager that blocks until it has the lock. The kernel frees it when a process dies."""

    def __init__(self, directory: int) -> None:
        """Open the file of the lock in `directory`, a descriptor. Raises OSError."""
        self._threads = threading.Lock()
        self._descriptor = os.open(LOCK_NAME, _FLAGS, 0o600, dir_fd=directory)

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the file. No thread may be inside."""
        os.close(self._descriptor)
