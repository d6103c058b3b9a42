"""Half-written files that nothing needs, until removed. Shared by blobs, uploads, pins and the sweep.

One that the disk does not let go stays, is told (`node/diskio/unusable_paths.py`), and is tried again now and
then. All calls block.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from node.diskio.fs import remove_tree
from node.diskio.unusable_paths import PoisonItems

AREA = "uploads"


class Leftovers:
    """The leftovers of one process, in the directory `uploads`. For any thread."""

    def __init__(self, directory: int, poison: PoisonItems) -> None:
        self._directory = directory
        self._poison = poison
        self._lock = threading.Lock()
        self._names: set[str] = set()  # that the disk did not let go
        self._unchanged: dict[str, tuple[int, float]] = {}  # time of the last change, and when it was seen

    def find(self, prefix: str, is_leftover: Callable[[str], bool]) -> None:
        """Remove everything with this prefix of which the rest of the name says that it is left over."""
        names: list[str] = []
        with self._poison.skipping(AREA, ""):
            names = os.listdir(self._directory)
        for name in names:
            if name.startswith(prefix) and is_leftover(name.removeprefix(prefix)):
                self.remove(name)

    def find_stale(self, prefix: str, older_than_s: float, *, at_s: float) -> None:
        """Remove what nobody has written to for this long, whoever began it: it may have ended since.

        `at_s`: a steady clock's. What counts is that the time of the last change stays as it is: after a jump
        of the machine's clock, every file looks as if nobody had written to it for long.
        """
        names: list[str] = []
        with self._poison.skipping(AREA, ""):
            names = [name for name in os.listdir(self._directory) if name.startswith(prefix)]
        self._unchanged = {name: seen for name, seen in self._unchanged.items() if name in names}
        for name in names:
            if name not in self._names and self._is_stale(name, older_than_s, at_s):  # else: `retry`
                self.remove(name)

    def _is_stale(self, name: str, older_than_s: float, at_s: float) -> bool:
        with self._poison.skipping(AREA, name), suppress(FileNotFoundError):
            changed_ns = os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_mtime_ns
            seen = self._unchanged.get(name)
            if seen is None or seen[0] != changed_ns:
                seen = self._unchanged[name] = changed_ns, at_s
            return at_s - seen[1] >= older_than_s
        return False

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with what is in it, now or later. Raises Unavailable."""
        with self._lock:
            self._names.add(name)
        with self._poison.skipping(AREA, name):
            with suppress(FileNotFoundError):
                remove_tree(name, parent=self._directory)
            with self._lock:
                self._names.discard(name)

    def retry(self) -> None:
        """Try those again that are still there."""
        with self._lock:
            names = sorted(self._names)
        for name in names:
            self.remove(name)
