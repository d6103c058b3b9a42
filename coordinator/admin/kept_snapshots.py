"""Reads the snapshots of the metadata that this coordinator has, while the cluster runs.

A snapshot is opened read-only, in a thread; nothing of it is loaded but what was asked for.

Tested by tests/cluster/test_snapshots.py.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ca.errors import Conflict, Internal, NotFound
from coordinator.machine import backups, kinds, project_files, snapshots, vms
from coordinator.storage.config import CoordinatorFiles
from metadata.model.records import BACKUP, PROJECT_FILE, VM, Caller, FileRecord, Manifest
from metadata.model.snapshot_records import SnapshotFilePage
from metadata.protocol.commands import (
    CreateBackup,
    CreateFile,
    CreateProjectFile,
    CreateVm,
    StoredContent,
)
from metadata.protocol.query_root import LIST_LIMIT_MAX
from metadata.protocol.snapshot_calls import SnapshotContent, SnapshotFileCall, SnapshotFilesCall
from runtime.sqlite import DATABASE_ERRORS
from runtime.stopping import Stop, run_in_thread

STOP_STEPS: Final = 10_000  # of SQLite, between two looks whether the caller still waits
_SNAPSHOT_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9]{1,19}")
_KINDS: Final[dict[str, tuple[kinds.Kind[Any], type[CreateFile]]]] = {
    PROJECT_FILE: (project_files.KIND, CreateProjectFile),
    VM: (vms.KIND, CreateVm),
    BACKUP: (backups.KIND, CreateBackup),
}


class KeptSnapshots:
    """The snapshots in the directory of a coordinator."""

    def __init__(self, files: CoordinatorFiles) -> None:
        self._files = files

    async def answer(self, call: SnapshotFilesCall | SnapshotFileCall) -> SnapshotFilePage | SnapshotContent:
        """Return what a call asks for; its caller was checked. Raises NotFound, Conflict, Internal."""
        work: Callable[[sqlite3.Connection], SnapshotFilePage | SnapshotContent]
        if isinstance(call, SnapshotFilesCall):
            work = partial(
                snapshots.list_files,
                bucket_id=call.bucket_id,
                filename=call.filename,
                cursor=call.cursor,
                limit=min(call.limit, LIST_LIMIT_MAX),
            )
        else:
            work = partial(read_content, file_uuid=call.file_uuid)
        return await run_in_thread(partial(self._read, call.snapshot_id, work))

    def _read(
        self,
        snapshot_id: str,
        work: Callable[[sqlite3.Connection], SnapshotFilePage | SnapshotContent],
        stop: Stop,
    ) -> SnapshotFilePage | SnapshotContent:
        path = self._files.backups / f"{snapshot_id}.sqlite"
        if not _SNAPSHOT_ID.fullmatch(snapshot_id) or not path.exists():
            raise NotFound("This coordinator does not have the file of that snapshot any more.")
        with open_snapshot(path, stop) as db:
            return work(db)


@contextmanager
def open_snapshot(path: Path, stop: Stop) -> Iterator[sqlite3.Connection]:
    """Open a snapshot. Raises Internal if it is damaged, Conflict if an earlier release has made it."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            db.set_progress_handler(stop.is_set, STOP_STEPS)
            yield db
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            raise Conflict(
                "A release before this one has made that snapshot: it has other tables."
            ) from error
        raise Internal(f"The snapshot {path.name} cannot be read: {error}.") from error
    except DATABASE_ERRORS as error:
        raise Internal(f"The snapshot {path.name} is damaged: {error}.") from error


def read_content(db: sqlite3.Connection, file_uuid: str) -> SnapshotContent:
    """Return what creates a file of the snapshot again. Raises NotFound."""
    found = db.execute(
        "SELECT f.kind, COALESCE(u.sequence, 0) FROM files f LEFT JOIN users u ON u.user_id = f.owner_id"
        " WHERE f.file_uuid = ? AND f.status = 'available'",
        (file_uuid,),
    ).fetchone()
    if found is None or found[0] not in _KINDS:
        raise NotFound("There is no such file in that snapshot.")
    kind, create_type = _KINDS[found[0]]
    sequence, record = kinds.find(db, kind, file_uuid)
    manifest = db.execute("SELECT document FROM manifests WHERE sequence = ?", (sequence,)).fetchone()
    content = StoredContent(
        sha256=record.blob_sha256,
        replicas=[],
        md5=getattr(record, "md5", ""),
        manifest=None if manifest is None else msgspec.json.decode(manifest[0], type=Manifest),
    )
    return SnapshotContent(
        create=_creation(create_type, kind.created, record, content),
        owner_id=record.owner_id,
        owner_sequence=found[1],
    )


def _creation(
    create_type: type[CreateFile], own: tuple[str, ...], record: FileRecord, content: StoredContent
) -> Any:
    retention_hours = record.retention_hours
    return create_type(
        caller=Caller("", 0),
        file_uuid=record.file_uuid,
        bucket_id=record.bucket_id,
        filename=record.filename,
        content_type=record.content_type,
        size_bytes=record.size_bytes,
        expected_sha256="",
        retention_hours=None if retention_hours is UNSET else retention_hours,
        path=record.path,
        content=content,
        **{name: getattr(record, name) for name in own},
    )
