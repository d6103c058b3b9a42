"""What a coordinator has on disk, opened in the order that mends what a crash left. Blocking."""

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from ca.secretfiles import create_secret
from coordinator.config import CoordinatorFiles
from coordinator.filedigests import write_digest
from coordinator.log import SegmentLog
from coordinator.member import StateLost, recover
from coordinator.snapshots import SnapshotStore
from coordinator.store import Store

ENTRY_BYTES = 1  # of entries to read: one is always read


@dataclass(frozen=True, slots=True)
class Ledger:
    """Log, database and snapshots of one member, which agree."""

    log: SegmentLog
    store: Store
    snapshots: SnapshotStore

    def close(self) -> None:
        """Close log and database."""
        self.store.close()
        self.log.close()


def open_ledger(files: CoordinatorFiles, sync: Callable[[int], None]) -> Ledger:
    """Blocking. Raises LogDamaged, LogInUse, StateLost, OSError; then nothing stays open."""
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(closing(SegmentLog.open(files.log, sync=sync)))
        snapshots = SnapshotStore(files.snapshots, files.state)
        snapshots.recover()
        try:
            store = opened.enter_context(closing(Store(files.state)))
            recover(log, store)
        except sqlite3.DatabaseError as error:
            raise state_damaged(error) or error from error
        _keep_genesis(files, log)
        opened.pop_all()
    return Ledger(log, store, snapshots)


def state_damaged(error: sqlite3.DatabaseError) -> StateLost | None:
    """What is told of a database whose bytes are not what was written; None of another trouble."""
    if getattr(error, "sqlite_errorcode", 0) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return None
    return StateLost(
        f"state.sqlite is damaged: {error}. Set this member up again with `filestore coordinator rebuild`."
    )


def _keep_genesis(files: CoordinatorFiles, log: SegmentLog) -> None:
    """A coordinator of an older version has its first entry in the log alone, as long as that is kept."""
    if not files.genesis.exists() and log.first_index() == 1:
        create_secret(files.genesis, log.entries(1, 2, ENTRY_BYTES)[0].data)
        write_digest(files.genesis)
