"""Which pages of a file lie in memory, asked of the kernel without reading any.

A read with RWF_NOWAIT is no such question: where it finds nothing it starts the reading ahead that brings the
page and its neighbours.
"""

import ctypes
import mmap
import os
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)


def pages_in_memory(path: Path, start: int, stop: int) -> list[bool]:
    """One for each page that has any of the bytes from `start` to `stop` (excluded). Raises OSError."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    with path.open("r+b") as file, mmap.mmap(file.fileno(), stop - first, offset=first) as mapped:
        told = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        address = ctypes.c_char.from_buffer(mapped)
        failed = _LIBC.mincore(ctypes.byref(address), ctypes.c_size_t(len(mapped)), told)
        del address  # a mapping that is looked at cannot be closed
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
    return [bool(page & 1) for page in told]


def drops_pages(folder: Path) -> bool:
    """Whether the file system there lets go of pages that were written: one that lies in memory does not."""
    path = _dropped_page(folder)
    try:
        return not any(pages_in_memory(path, 0, mmap.PAGESIZE))
    finally:
        path.unlink()


def counts_reads(folder: Path) -> bool:
    """Whether `read_from_disks_bytes` counts what is read from the file system there."""
    path = _dropped_page(folder)
    before = read_from_disks_bytes()
    path.read_bytes()
    path.unlink()
    return read_from_disks_bytes() > before


def read_from_disks_bytes() -> int:
    """How much this process has had read from disks (proc_pid_io(5))."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes:")))


def _dropped_page(folder: Path) -> Path:
    path = folder / "page-cache-probe"
    with path.open("wb") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path
