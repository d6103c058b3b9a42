"""The jobs of the metadata: expiry, in steps that leave the members time for other work; snapshots.

Tested by tests/unit/coordinator/reconcile/test_job_runs.py.
"""

import asyncio
import shutil
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ca.errors import InsufficientStorage
from ca.secretfiles import make_directory, sync_directory
from coordinator.admin.offsite import Offsite, history_of
from coordinator.reconcile.job_runs import StepProgress
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.snapshot_store import SNAPSHOT_RESERVE_BYTES, describe
from coordinator.storage.state_backup import copy_database
from metadata.model.jobs import Expired
from metadata.protocol.commands import Expire
from runtime.clock import now_ms
from runtime.file_digests import write_digest
from runtime.stopping import NEVER, Stop, run_in_thread
from runtime.timestamps import rfc3339

EXPIRE_STEP_ROWS = 100
EXPIRE_REST_S = 0.02  # after each step: at most 5000 rows a second, most of the members' time for others
BACKUPS_RETAINED = 7
MAKING_NAME = "making"
_ONE_AT_A_TIME = threading.Lock()  # a run that lost the lead may still copy for a moment


async def expire(progress: StepProgress) -> None:
    """End everything that is due. The result counts it, by kind."""
    while True:
        expired = await progress.apply(Expire(rows_max=EXPIRE_STEP_ROWS), Expired)
        counts = {name: getattr(expired, name) for name in expired.__struct_fields__ if name != "more"}
        progress.add(done=sum(counts.values()), **counts)
        if not expired.more:
            return
        await progress.note()
        await asyncio.sleep(EXPIRE_REST_S)


async def snapshot(files: CoordinatorFiles, offsite: Offsite | None, progress: StepProgress) -> None:
    """Copy the state, and send the copy to the place in offsite.json.

    The result has the file, its bytes, the last log entry in it, and the place.
    """
    at_ms = now_ms()
    path, log_index = await run_in_thread(partial(take_backup, files, at_ms))
    progress.result.update(done=1, file=path.name, bytes=path.stat().st_size, log_index=log_index)
    if offsite is not None:
        history = await asyncio.to_thread(history_of, path)
        at = rfc3339(at_ms)
        progress.result["sent_to"] = await offsite.send(path, history=history, log_index=log_index, at=at)


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
    for older in sorted(files.backups.glob("*-*.sqlite"), key=_age)[:-BACKUPS_RETAINED]:
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
