"""Half-written files that are no longer needed, until removed. Shared by blobs, uploads, pins and the sweep.

If the disk does not allow removing one, it is reported (`node/diskio/unusable_paths.py`) and tried again
later. All calls block.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from node.diskio.fs import remove_tree
from node.diskio.unusable_paths import UnusablePaths

AREA = "uploads"


class Leftovers:
    """The leftovers of one process, in the directory `uploads`. For any thread."""

    def __init__(self, directory: int, poison: UnusablePaths) -> None:
        self._directory = directory
        self._poison = poison
        self._lock = threading.Lock()
        self._names: set[str] = set()  # that the disk does not let this process remove
        self._unchanged: dict[str, tuple[int, float]] = {}  # time of the last change, and when it was seen

    def find(self, prefix: str, is_leftover: Callable[[str], bool]) -> None:
        """Remove the files with this prefix that are leftovers, judged by the rest of their names."""
        names: list[str] = []
        with self._poison.skipping(AREA, ""):
            names = os.listdir(self._directory)
        for name in names:
            if name.startswith(prefix) and is_leftover(name.removeprefix(prefix)):
                self.remove(name)

    def find_stale(self, prefix: str, older_than_s: float, *, at_s: float) -> None:
        """Remove files with this prefix that were not written to for this long, by any process.

        `at_s`: a monotonic time. A file is stale if its modification time did not change for `older_than_s`.
        Comparing that time with the clock would make every file look stale after the clock jumps.
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
        """Remove a file, or a directory with its content, now or later. Raises Unavailable."""
        with self._lock:
            self._names.add(name)
        with self._poison.skipping(AREA, name):
            with suppress(FileNotFoundError):
                remove_tree(name, parent=self._directory)
            with self._lock:
                self._names.discard(name)

    def retry(self) -> None:
        """Try again to remove the leftovers that are still there."""
        with self._lock:
            names = sorted(self._names)
        for name in names:
            self.remove(name)
