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

_CREATE: Final = (
    "Creates the file record, the backup metadata and the upload in one change. Needs "
    "write on the bucket.\n\nAn incremental backup gives an existing backup that the "
    "caller may read as `parent_backup_uuid`.\n\n"
)
_UPDATE: Final = (
    "Fields that are absent from the body keep their values. Needs write on the file, and "
    "read on a new parent.\nDownloads use a new name and content type at once, on every "
    "node. The content and its `ETag` do not change.\n\nA change to `full` removes the "
    "parent. A chain may not contain a loop."
)
_DELETE: Final = (
    "Deletes the record at once. The file goes to the trash of its bucket and can be restored for "
    "some days; then, or with `now` at once, the blob is deleted when nothing refers to it any "
    "more. Needs admin on the file.\n\nA backup that is the parent of another one cannot be deleted "
    "(409)."
)

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
