"""Which processes of a node use the index of its packs. Shared by the store and the doctor.

Locks show that, which end with their process.

DIR/packs/opening.lock held while completed packs are read into the index DIR/packs/users.lock shared by the
processes that use the index

All calls block, and raise OSError.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OPENING: Final = "opening.lock"
USERS: Final = "users.lock"


class IndexUsers:
    """The users of the index in `directory`, a descriptor; this process is none of them at first."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._users = self._opened(USERS)

    @contextmanager
    def opening(self) -> Iterator[bool]:
        """For opening the index, one process at a time; gives whether no other one uses it.

        This process is a user from then on, if that did not fail.
        """
        lock = self._opened(OPENING)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield self._is_alone()
            except BaseException:
                self.leave()
                raise
            fcntl.flock(self._users, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def leave(self) -> None:
        """This process uses the index no more."""
        fcntl.flock(self._users, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._users)

    def _is_alone(self) -> bool:
        """Whether no other process uses the index, nor will before the lock for opening is given back."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _opened(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._directory)
