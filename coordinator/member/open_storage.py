"""Opens a coordinator's files, in an order that repairs a crash. Shared by server and metrics.

It blocks.

Tested by tests/unit/coordinator/storage/test_reopening.py.
"""

import contextlib
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.reopening import recover
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_damage import StateDamaged, damage_in, unreadable_in
from coordinator.storage.state_store import Store
from runtime.sqlite import DATABASE_ERRORS

_log = logging.getLogger(__name__)


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
    """Open the log and the database of this member; it blocks.

    Raises LogDamaged, LogInUse, StateLost, OSError, and StateDamaged for a database that SQLite or a previous
    process found damaged; then nothing stays open.
    """
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(closing(SegmentLog.open(files.log, sync=sync)))
        snapshots = SnapshotStore(files.snapshots, files.state)
        try:
            _end_installation(snapshots, log)
            store = opened.enter_context(closing(Store(files.state)))
            if files.state_damaged.exists():
                raise StateDamaged(files.state_damaged.read_text("utf-8", errors="replace").strip())
            store.check()
            if lost := recover(log, store):
                _log.error(lost)
        except (*DATABASE_ERRORS, StateDamaged) as error:
            raise damage_in(error) or unreadable_in(error) or error from error
        opened.pop_all()
    return Ledger(log, store, snapshots)


def _end_installation(snapshots: SnapshotStore, log: SegmentLog) -> None:
    """End the installation of a snapshot during which the process died. It has no mark after a full disk."""
    if (meta := snapshots.find_unfinished()) is not None:
        log.promise(replace(log.promised, installing=(meta.index, meta.term)))
        snapshots.recover()
