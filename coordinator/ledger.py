"""What a coordinator has on disk, opened in the order that mends what a crash left. Blocking."""

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from ca.secretfiles import create_secret
from coordinator.config import CoordinatorFiles
from coordinator.damage import StateDamaged, damage_in
from coordinator.filedigests import write_digest
from coordinator.log import SegmentLog
from coordinator.member import recover
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
    """Blocking. Raises LogDamaged, LogInUse, StateLost, OSError, and StateDamaged for a database that SQLite
    does not find whole, or that a process before did not; then nothing stays open.
    """
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(closing(SegmentLog.open(files.log, sync=sync)))
        snapshots = SnapshotStore(files.snapshots, files.state)
        snapshots.recover()
        try:
            store = opened.enter_context(closing(Store(files.state)))
            if files.state_damaged.exists():
                raise StateDamaged(files.state_damaged.read_text("utf-8").strip())
            store.check()
            recover(log, store)
        except (sqlite3.Error, StateDamaged) as error:
            if (damage := damage_in(error)) is None:
                raise
            raise damage from error
        _keep_genesis(files, log)
        opened.pop_all()
    return Ledger(log, store, snapshots)


def _keep_genesis(files: CoordinatorFiles, log: SegmentLog) -> None:
    """A coordinator of an older version has its first entry in the log alone, as long as that is kept."""
    if not files.genesis.exists() and log.first_index() == 1:
        create_secret(files.genesis, log.entries(1, 2, ENTRY_BYTES)[0].data)
        write_digest(files.genesis)
