"""Memory that is at hand, for what is measured and fills much of it.

A virtual machine may give memory that is free back to its host within seconds (free page reporting), and who
fills it next pays for having it once more: writing a GiB to the page cache took 1.9 s of processor time where
this was measured, and 0.2 s in memory that was at hand. Writing three copies of a file would pay for two of
them, writing one right behind another for none, and the ratio of the two would say more about the host than
about either. To have much memory at hand by filling and freeing it costs what it should save: the machine
then gives that back while the measuring goes on.
"""

import mmap
from contextlib import ExitStack
from pathlib import Path

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


class Ballast:
    """So much memory, held until it is wanted, and again afterwards; none where there is too little."""

    def __init__(self, size_bytes: int, stack: ExitStack) -> None:
        """Held now, and freed with `stack`."""
        self._size_bytes = size_bytes if size_bytes < _available_bytes() // 2 else 0
        self._held: mmap.mmap | None = None
        stack.callback(self.free)
        self.hold()

    def hold(self) -> None:
        """As soon as what was measured has given back what it filled."""
        if self._size_bytes and self._held is None:
            self._held = mmap.mmap(-1, self._size_bytes, flags=_FLAGS)

    def free(self) -> None:
        """Right before it is wanted."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _available_bytes() -> int:
    """What proc_meminfo(5) calls MemAvailable."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
