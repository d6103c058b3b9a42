"""What a coordinator has on disk, opened in the order that mends what a crash left. Blocking."""

from collections.abc import Callable
from dataclasses import dataclass

from ca.secretfiles import create_secret
from coordinator.config import CoordinatorFiles
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
    """Blocking. Raises LogDamaged, LogInUse, StateLost, OSError; then nothing stays open."""
    log = SegmentLog.open(files.log, sync=sync)
    try:
        snapshots = SnapshotStore(files.snapshots, files.state)
        snapshots.recover()
        store = Store(files.state)
    except BaseException:
        log.close()
        raise
    ledger = Ledger(log, store, snapshots)
    try:
        recover(log, store)
        _keep_genesis(files, log)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _keep_genesis(files: CoordinatorFiles, log: SegmentLog) -> None:
    """A coordinator of an older version has its first entry in the log alone, as long as that is kept."""
    if not files.genesis.exists() and log.first_index() == 1:
        create_secret(files.genesis, log.entries(1, 2, ENTRY_BYTES)[0].data)
