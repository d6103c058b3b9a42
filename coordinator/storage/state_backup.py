"""Copies of a live database: consistent, throttled, durable. Blocking, for a thread.

A copy uses SQLite's backup API. If the state is complete in the file and pinned there, it is copied as a
plain file, which takes less than half of the time. The WAL grows meanwhile
(`coordinator.storage.pinned_state`).

Tested by tests/unit/coordinator/storage/test_state_store.py.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ca.secretfiles import sync_directory
from coordinator.storage.page_sums import PageSums
from runtime.stopping import NEVER, Stop

PAUSE_S = 0.005  # after each step: a copy takes at most about 200 MB/s, and leaves the disk to others
PAGES_AT_ONCE = 256  # 1 MiB
SENT_AT_ONCE = 4 << 20  # bytes of a plain file: for these milliseconds no checkpoint begins
_SYNC_STEPS = 16  # keeps the pending writes small, as other files are synced meanwhile
_SYNC_SENT = 4  # the same for a plain file
_FORMAT_AT, _NO_WAL = 18, b"\x01\x01"  # https://www.sqlite.org/fileformat.html, section 1.3.3


def copy_database(source: Path, target: Path, *, pause_s: float = PAUSE_S, stop: Stop = NEVER) -> None:
    """Copy a database consistently while others may change it, in place of `target`, durable.

    All in one read transaction. While it is open, commits of others are invisible and do not restart the copy
    (https://www.sqlite.org/c3ref/backup_finish.html), so the copy ends even under many changes. The WAL grows
    meanwhile. The copy is one file, not in WAL mode. A failed or stopped copy is removed.
    """
    with closing(
        sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    ) as live:
        live.execute("BEGIN")
        live.execute("SELECT log_index FROM applied").fetchone()  # the transaction begins with the first read
        copy_pinned(live, target, pause_s=pause_s, stop=stop)
        live.execute("COMMIT")


def copy_pinned(
    live: sqlite3.Connection, target: Path, *, pause_s: float = PAUSE_S, stop: Stop = NEVER
) -> None:
    """Copy the state that a connection sees in its open read transaction."""
    with _made(target) as descriptor:
        _copy(live, target, descriptor, lambda: stop.rest(pause_s))


def copy_settled(file: PageSums, target: Path, *, stop: Stop = NEVER) -> None:
    """Copy a database that is pinned in its file (see Store.settle). Raises OSError."""
    with _made(target) as descriptor:
        size_bytes, offset, steps = file.size_bytes(), 0, 0
        while offset < size_bytes:
            sent = file.send(descriptor, offset, min(SENT_AT_ONCE, size_bytes - offset))
            if sent == 0:
                raise OSError("the database became shorter while it was copied")
            offset, steps = offset + sent, steps + 1
            if steps % _SYNC_SENT == 0:
                os.fdatasync(descriptor)
            stop.rest(PAUSE_S)
        # The copy says WAL, as the original does. If SQLite changed that, it would create a WAL next to it.
        os.pwrite(descriptor, _NO_WAL, _FORMAT_AT)


@contextmanager
def _made(target: Path) -> Iterator[int]:
    """Yield a new file, durable at the end; remove it after a failure."""
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
        os.fsync(descriptor)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync_directory(target.parent)


def _copy(live: sqlite3.Connection, target: Path, descriptor: int, rest: Callable[[], None]) -> None:
    steps = 0

    def after_step(status: int, remaining: int, total: int) -> None:
        del status, total
        nonlocal steps
        steps += 1
        if steps % _SYNC_STEPS == 0:
            os.fdatasync(descriptor)
        if remaining:
            rest()

    with closing(sqlite3.connect(target, isolation_level=None)) as copied:
        # A failed copy is deleted, so it needs no journal; it is synced as a whole.
        copied.execute("PRAGMA journal_mode = OFF")
        copied.execute("PRAGMA synchronous = OFF")
        live.backup(copied, pages=PAGES_AT_ONCE, progress=after_step)
        copied.execute("PRAGMA journal_mode = DELETE")  # the copy says WAL, as the original does
