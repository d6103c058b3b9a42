"""Backups: archives that are full, or incremental upon another one.

The chain of parents never loops, and a backup that another one names as its parent stays: `files` refuses to
remove it, expiry passes it over.
"""

from typing import Any

from msgspec import UNSET

from ca.errors import InvalidRequest, NotFound, Protected
from coordinator.machine import files, kinds
from coordinator.machine.execution.access import Level, User, require_user
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import BACKUP, BackupPage, BackupRecord, Caller, UploadRecord
from metadata.protocol.commands import CreateBackup, UpdateBackup
from metadata.protocol.queries import GetBackup, ListBackups

ANCESTORS_MAX = 1000  # of one backup; a restore reads all of them
INCREMENTAL = "incremental"

KIND = kinds.describe(BACKUP, "backups", BackupRecord, CreateBackup, UpdateBackup, ListBackups)


def create(change: Change, command: CreateBackup, user: User | None = None) -> UploadRecord:
    """Create the file record, its backup row and its upload in one change.

    `user`: whose it is; the caller by default.
    """
    user = user or require_user(change.users, command.caller)
    parent_uuid = command.parent_backup_uuid
    _check_lineage(command.backup_type, parent_uuid)
    if parent_uuid:
        _check_parent(change, command.caller, command.file_uuid, parent_uuid)
    return kinds.create(change, KIND, user, command)


def update(change: Change, command: UpdateBackup) -> BackupRecord:
    """Change what the command names. Needs write."""
    user = require_user(change.users, command.caller)
    sequence, record = kinds.require(change, KIND, user, command.file_uuid, Level.WRITE)
    values = kinds.named(KIND, command)
    parent_uuid = _parent_after(record, values)
    if parent_uuid != record.parent_backup_uuid:
        if record.status == "available" and record.protected_until_ms is not UNSET:
            raise Protected("The backup is protected, and so is what it builds on.")
        values["parent_backup_uuid"] = parent_uuid
        if parent_uuid:
            _check_parent(change, command.caller, command.file_uuid, parent_uuid)
    return kinds.store(change, KIND, sequence, record, command, values)


def get(question: Question, query: GetBackup) -> BackupRecord:
    """Return the record. Needs read."""
    return kinds.get(question, KIND, query.caller, query.file_uuid)


def list_page(question: Question, query: ListBackups) -> BackupPage:
    """Return one page, oldest first: what the caller owns, for admins all.

    The filters are applied after access control.
    """
    return BackupPage(*kinds.list_page(question, KIND, query))


def _parent_after(record: BackupRecord, values: dict[str, Any]) -> str:
    """Return the parent that the backup has once `values` are stored. A change to `full` drops it."""
    backup_type: str = values.get("backup_type", record.backup_type)
    stays = record.parent_backup_uuid if backup_type == INCREMENTAL else ""
    parent_uuid: str = values.get("parent_backup_uuid", stays)
    _check_lineage(backup_type, parent_uuid)
    return parent_uuid


def _check_lineage(backup_type: str, parent_uuid: str) -> None:
    if backup_type == INCREMENTAL and not parent_uuid:
        raise InvalidRequest("parent_backup_uuid: an incremental backup names the one that it builds on.")
    if backup_type != INCREMENTAL and parent_uuid:
        raise InvalidRequest("parent_backup_uuid: only an incremental backup has a parent.")


def _check_parent(change: Change, caller: Caller, file_uuid: str, parent_uuid: str) -> None:
    """Raise InvalidRequest or Forbidden unless the caller may build the backup `file_uuid` upon this one."""
    try:
        parent = files.require(change, caller, parent_uuid, Level.READ, BACKUP)
    except NotFound:
        raise InvalidRequest("parent_backup_uuid: there is no such backup.") from None
    if parent.status == "tombstoned":
        raise InvalidRequest("parent_backup_uuid: the retention period of this backup has passed.")
    ancestors, is_loop = change.db.execute(
        "WITH RECURSIVE ancestors (file_uuid, parent_uuid, nth) AS ("
        " SELECT file_uuid, parent_backup_uuid, 1 FROM backups WHERE file_uuid = ?"
        " UNION ALL SELECT b.file_uuid, b.parent_backup_uuid, a.nth + 1"
        " FROM ancestors a CROSS JOIN backups b ON b.file_uuid = a.parent_uuid WHERE a.nth <= ?)"
        " SELECT MAX(nth), MAX(file_uuid = ?) FROM ancestors",
        (parent_uuid, ANCESTORS_MAX, file_uuid),
    ).fetchone()
    if is_loop:
        raise InvalidRequest("parent_backup_uuid: that backup builds on this one.")
    if ancestors > ANCESTORS_MAX:
        raise InvalidRequest(f"parent_backup_uuid: a chain has at most {ANCESTORS_MAX} backups before it.")
