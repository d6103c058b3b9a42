"""The jobs of the metadata: expiry, in steps that leave the members time for other work; snapshots.

Tested by tests/unit/coordinator/reconcile/test_job_runs.py.
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from ca.errors import Conflict, FilestoreError, InsufficientStorage
from ca.secretfiles import make_directory, sync_directory
from coordinator.admin.offsite import Offsite, history_in, history_of
from coordinator.admin.rehearsal import rehearse
from coordinator.admin.restore import write_bundle
from coordinator.machine import snapshots
from coordinator.machine.jobs import JobOutcome
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_runs import StepProgress
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from coordinator.storage.snapshot_store import SNAPSHOT_RESERVE_BYTES, describe
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_store import Store
from metadata.model.jobs import SNAPSHOT, Expired
from metadata.model.rules import SNAPSHOTS_HOLD_CONTENT
from metadata.model.snapshot_records import EndedHolds
from metadata.protocol.commands import EndHolds, Expire, KeepSnapshot, StartSnapshot
from runtime.bounds import TEXT_CHARS_MAX
from runtime.clock import now_ms
from runtime.file_digests import write_digest
from runtime.sqlite import DATABASE_ERRORS
from runtime.stopping import NEVER, Stop, run_in_thread
from runtime.timestamps import rfc3339

EXPIRE_STEP_ROWS = 100
EXPIRE_REST_S = 0.02  # after each step: at most 5000 rows a second, most of the members' time for others
BACKUPS_RETAINED = 7
DAY_MS = 86_400_000
MAKING_NAME = "making"
REHEARSAL = "rehearsal-"
_ONE_AT_A_TIME = threading.Lock()  # a run that lost the lead may still copy for a moment


def is_expire_due(store: Store, ending_ms: Callable[[], int]) -> bool:
    """Return whether `expire` would find anything."""
    return store.is_expire_due(at_ms=ending_ms()) or _is_hold_due(store, ending_ms)


async def expire(store: Store, ending_ms: Callable[[], int], progress: StepProgress) -> None:
    """End everything that is due. The result counts it, by kind; `released`: blobs that snapshots held."""
    while True:
        expired = await progress.apply(Expire(rows_max=EXPIRE_STEP_ROWS), Expired)
        counts = {name: getattr(expired, name) for name in expired.__struct_fields__ if name != "more"}
        progress.add(done=sum(counts.values()), **counts)
        if not expired.more:
            break
        await progress.note()
        await asyncio.sleep(EXPIRE_REST_S)
    has_more = _is_hold_due(store, ending_ms)
    while has_more:
        ended = await progress.apply(EndHolds(), EndedHolds)
        has_more = ended.more
        progress.add(done=ended.blobs, released=ended.blobs)
        await progress.note()
        await asyncio.sleep(EXPIRE_REST_S)


def _is_hold_due(store: Store, ending_ms: Callable[[], int]) -> bool:
    return store.read_with(partial(snapshots.is_due, at_ms=ending_ms()))


class SnapshotJob:
    """The job `snapshot` of one coordinator."""

    def __init__(
        self,
        context: ReconcileContext,
        config: CoordinatorConfig,
        files: CoordinatorFiles,
        offsite: Offsite | None = None,
    ) -> None:
        self._context, self._own_id, self._files, self._offsite = context, config.id, files, offsite
        self._hold_ms = config.snapshot_days * DAY_MS

    @property
    def is_sent(self) -> bool:
        """Return whether snapshots are sent to another place."""
        return self._offsite is not None

    def is_due(self) -> bool:
        """Return whether the daily one is needed: not on a cluster's first day, unless it is sent."""
        if self._offsite is not None:
            return True
        (since_ms,) = self._context.store.read_with(
            lambda db: db.execute("SELECT created_at_ms FROM cluster").fetchone()
        )
        return abs(self._context.clocks.now_ms() - int(since_ms)) >= DAY_MS

    async def run(self, progress: StepProgress) -> None:
        """Copy the state, and send the copy to the place in offsite.json.

        The result has the coordinator with the file, the file, its bytes, the last log entry in it, and the
        place.
        """
        sequence = 0
        if self._context.store.rules() >= SNAPSHOTS_HOLD_CONTENT:
            begin = StartSnapshot(coordinator_id=self._own_id, hold_ms=self._hold_ms)
            sequence = await progress.apply(begin, int)
        at_ms = now_ms()
        try:
            path, log_index = await run_in_thread(partial(take_backup, self._files, at_ms))
        except (OSError, FilestoreError, *DATABASE_ERRORS):
            if sequence:
                failed = KeepSnapshot(sequence=sequence, snapshot_id="", log_index=sequence)
                await progress.apply(failed, type(None))
            raise
        kept = KeepSnapshot(
            sequence=sequence,
            snapshot_id=path.stem,
            log_index=log_index,
            size_bytes=path.stat().st_size,
            files=self._context.store.usage()[0],
        )
        if sequence:
            await progress.apply(kept, type(None))
        progress.result.update(done=1, coordinator=self._own_id, file=path.name)
        progress.result.update(bytes=kept.size_bytes, log_index=log_index)
        if self._offsite is None:
            return
        history = await asyncio.to_thread(history_of, path)
        place = await self._offsite.send(path, history=history, log_index=log_index, at=rfc3339(at_ms))
        progress.result["sent_to"] = place
        if sequence:
            kept = msgspec.structs.replace(kept, sent_to=place[:TEXT_CHARS_MAX])
            await progress.apply(kept, type(None))

    def is_rehearsal_due(self) -> bool:
        """Return whether there is anything to rehearse: a snapshot that was sent."""
        return (
            self.is_sent
            and self._context.store.job_outcomes().get(SNAPSHOT.name, JobOutcome()).sent_at_ms > 0
        )

    async def rehearse(self, progress: StepProgress) -> None:
        """Restore the newest snapshot at the other place into a scratch directory, and delete it again.

        The result has its name, and the files, nodes and the log entry that it would bring back.
        """
        if self._offsite is None:
            raise Conflict("There is no offsite.json on this coordinator.")
        history = self._context.store.read_with(history_in)
        directory = await asyncio.to_thread(_scratch, self._files)
        try:
            snapshot, bundle = directory / "snapshot.sqlite", directory / "cluster.bundle"
            name = await self._offsite.fetch_newest(history, snapshot)
            await asyncio.to_thread(write_bundle, self._files.data, bundle)
            found = await asyncio.to_thread(rehearse, snapshot, bundle, directory)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        progress.result.update(
            done=1, file=name, files=found.files, nodes=found.nodes, log_index=found.log_index
        )


def _scratch(files: CoordinatorFiles) -> Path:
    """Make a directory for a rehearsal, and delete those of rehearsals that were interrupted.

    Raises InsufficientStorage without room for two copies of the state.
    """
    for left in files.data.glob(f"{REHEARSAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    needed_bytes = 2 * files.state.stat().st_size + SNAPSHOT_RESERVE_BYTES
    free_bytes = shutil.disk_usage(files.data).free
    if free_bytes < needed_bytes:
        raise InsufficientStorage(f"A rehearsal needs {needed_bytes} bytes: {free_bytes} are free.")
    return Path(tempfile.mkdtemp(prefix=REHEARSAL, dir=files.data))


def take_backup(files: CoordinatorFiles, at_ms: int, stop: Stop = NEVER) -> tuple[Path, int]:
    """Write the present state to a new file in `files.backups`, for its owner alone.

    Returns the file and the index of the last log entry in it. The newest BACKUPS_RETAINED are kept, by that
    index, as a clock may be wrong. Blocks until it is durable; a file with its final name is complete. Raises
    InsufficientStorage.
    """
    with _ONE_AT_A_TIME:
        return _take_backup(files, at_ms, stop)


def _take_backup(files: CoordinatorFiles, at_ms: int, stop: Stop) -> tuple[Path, int]:
    make_directory(files.backups)
    making = files.backups / MAKING_NAME
    size_bytes, free_bytes = files.state.stat().st_size, shutil.disk_usage(files.backups).free
    if free_bytes < size_bytes + SNAPSHOT_RESERVE_BYTES:
        raise InsufficientStorage(
            f"There is no room for a copy of {size_bytes} bytes: {free_bytes} are free."
        )
    copy_database(files.state, making, stop=stop)  # over the remains of an interrupted one
    taken = describe(making)
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    path = files.backups / f"{at:%Y%m%dT%H%M%S}-{taken.index}.sqlite"
    write_digest(making, named_as=path, stop=stop)
    making.replace(path)
    # Files that are newer than the present state are of another history: from before a restore.
    own = [each for each in files.backups.glob("*-*.sqlite") if _age(each)[0] <= taken.index]
    for older in sorted(own, key=_age)[:-BACKUPS_RETAINED]:
        older.unlink()
    for digest in sorted(files.backups.glob("*.sha256")):  # theirs, and the remains of a crash
        if not digest.with_suffix("").exists():
            digest.unlink()
    sync_directory(files.backups)
    return path, taken.index


def _age(backup: Path) -> tuple[int, str]:
    """Sort by the index in the name, then by the time in it. Foreign names come first."""
    taken_at, _, index = backup.stem.rpartition("-")
    return int(index) if index.isdecimal() else -1, taken_at
