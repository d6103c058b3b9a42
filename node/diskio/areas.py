"""The directories of a node: opened, held open, created again when removed. Apart from their files.

All calls block.

Tested by tests/unit/node/storage/test_leftovers.py.
"""

import os

from node.diskio.durable import Disk
from node.diskio.fs import closing_descriptor, make_directory, open_directory


class Areas:
    """The open directories below one directory, whose descriptor is `root`. For any thread."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: dict[str, int] = {}

    def open(self, name: str, *, make: bool = True) -> int:
        """A directory, made if it is missing; the caller closes it. Raises OSError."""
        return make_directory(name, parent=self._root) if make else open_directory(name, parent=self._root)

    def keep_open(self, name: str) -> int:
        """Open an area until `close`; it is created again if it was removed (`remake`)."""
        if name not in self._open:
            self._open[name] = self.open(name)
        return self._open[name]

    def remake(self, disk: Disk) -> list[str]:
        """Make those that are held again that were removed under this process; which. Raises OSError.

        The descriptors that others know lead to the new ones.
        """
        gone = [name for name, descriptor in self._open.items() if os.fstat(descriptor).st_nlink == 0]
        for name in gone:
            with closing_descriptor(self.open(name)) as made:
                os.dup2(made, self._open[name], inheritable=False)
        if gone:
            disk.fsync(self._root)
        return gone

    def close(self) -> None:
        """Gives those that are held back."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
