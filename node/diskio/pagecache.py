"""Reads files without stopping the loop: from the page cache at once. Shared by segments and links.

The rest is read by a thread.

Tested by tests/unit/node/uploads/test_links.py.
"""

import os

PROBE_BYTES = (
    128 * 1024
)  # the smallest read-ahead of the kernel: pages are read, and mostly evicted, in windows of this size
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_PROBE = [bytearray(1)]  # never looked at


def is_cached(fd: int, start: int, stop: int) -> bool:
    """Whether these bytes are in the page cache, as far as a look at one in PROBE_BYTES can tell.

    False also where the file system cannot tell, and where the file ends before `stop`.
    """
    if not _NOWAIT:
        return False
    try:
        for at in range(start, stop, PROBE_BYTES):
            if not os.preadv(fd, _PROBE, at, _NOWAIT):
                return False
        return os.preadv(fd, _PROBE, stop - 1, _NOWAIT) == 1
    except OSError:  # EAGAIN: not cached. EOPNOTSUPP: cannot tell. Anything worse the thread meets again.
        return False


def read_now(fd: int, start: int, buffer: memoryview) -> int:
    """Fill the buffer from `start` on as far as the page cache has it: how many bytes, 0 where it has none.

    0 also where the file system cannot tell, and at the end of the file.
    """
    if not _NOWAIT:
        return 0
    try:
        return os.preadv(fd, [buffer], start, _NOWAIT)
    except OSError:  # as above
        return 0


def read_cached(fd: int, start: int, size_bytes: int) -> bytes:
    """These bytes if the page cache has them, as far as `is_cached` can tell, else b"". For little at a time.

    A look and a plain read: preadv needs a buffer that is filled with zeros first, and copied after.
    """
    if not is_cached(fd, start, start + size_bytes):
        return b""
    try:
        piece = os.pread(fd, size_bytes, start)
    except OSError:
        return b""
    return piece if len(piece) == size_bytes else b""
