"""Memory that is at hand, before something is measured that fills much of it.

A virtual machine may give memory that is free back to its host within seconds (free page reporting), and who
fills it next pays for having it once more: writing a GiB to the page cache took 1.9 s of processor time where
this was measured, and 0.2 s in memory that was at hand. Writing three copies of a file would pay for two of
them, writing one right behind another for none, and the ratio of the two would say more about the host than
about either.
"""

import mmap
from contextlib import closing
from pathlib import Path

SHARE = 2  # half of what is available: less than that and others take what was given back before


def warm() -> None:
    """Fill much memory and free it at once."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    with closing(mmap.mmap(-1, _available_bytes() // SHARE, flags=flags)):
        pass


def _available_bytes() -> int:
    """What proc_meminfo(5) calls MemAvailable."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
