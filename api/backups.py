"""Backups, declared as a kind of file: `/api/v1/backups`. Apart from the operations that all kinds share."""

from typing import Final

from api.bodies.backups import (
    CHECKS,
    BackupBody,
    BackupFilter,
    BackupList,
    CreateBackupBody,
    UpdateBackupBody,
)
from api.file_kinds import FileKind
from api.file_operations import BY_TUS, operations
from api.spec.operation import Operation
from ca.errors import Conflict
from metadata.model.records import BACKUP, BackupPage, BackupRecord
from metadata.protocol.commands import CreateBackup, UpdateBackup
from metadata.protocol.queries import GetBackup, ListBackups

_CREATE: Final = """\
File record, backup metadata and upload are made in one change. Needs write on the bucket.

An incremental backup names an existing one as `parent_backup_uuid`, which the caller may read.

"""
_UPDATE: Final = """\
What the body leaves out stays as it is. Needs write on the file, and read on a new parent. Downloads show
another name and content type at once, on every node; content and its `ETag` are the same.

A change to `full` drops the parent; a chain may not loop."""
_DELETE: Final = """\
The record goes at once, the blob when nothing refers to it any more. Needs admin on the file.

A backup that others build on is a conflict."""

KIND: Final = FileKind(
    name=BACKUP,
    path="/api/v1/backups",
    tag="Backups",
    noun="backup",
    metadata="backup metadata",
    create_body=CreateBackupBody,
    update_body=UpdateBackupBody,
    body=BackupBody,
    list_body=BackupList,
    list_filter=BackupFilter,
    create_command=CreateBackup,
    update_command=UpdateBackup,
    get_query=GetBackup,
    list_query=ListBackups,
    record=BackupRecord,
    page=BackupPage,
    checks=CHECKS,
    descriptions={"create": _CREATE + BY_TUS, "update": _UPDATE, "delete": _DELETE},
    deleted="backup",
    deleted_errors=(Conflict,),
)
OPERATIONS: Final[tuple[Operation, ...]] = operations(KIND)
