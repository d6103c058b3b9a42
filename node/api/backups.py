"""Backups: `/api/v1/backups`."""

from functools import partial
from typing import Final

from aiohttp import web

from ca.errors import Conflict, Gone, PayloadTooLarge, PreconditionFailed
from coordinator.http.app import read_json
from coordinator.model.records import BACKUP, BackupPage, BackupRecord, Caller
from coordinator.protocol.commands import CreateBackup, UpdateBackup
from coordinator.protocol.queries import GetBackup, ListBackups
from node.api.access import authenticate
from node.api.bodies.backups import BackupBody, BackupList, CreateBackupBody, UpdateBackupBody
from node.api.bodies.checks import check_label, check_uuid, path_uuid
from node.api.bodies.files import DeletedFile, file_body_fields
from node.api.context import API
from node.api.creation import CREATED, created, file_fields
from node.api.files import delete_of_kind
from node.api.filters import FILE_PARAMETERS, file_filters, filtered_response
from node.api.pages import NEXT_PAGE, cursor_text
from node.api.spec.operation import Answer, Operation
from node.api.tags import CONDITIONS, OF_RECORD, UNCHANGED, Found, answer_read, record_response, state_named

_PATH: Final = "/api/v1/backups"
_FILE: Final = f"{_PATH}/{{file_uuid}}"


async def create(request: web.Request) -> web.Response:
    """File record, backup metadata and upload are made in one change. Needs write on the bucket.

    An incremental backup names an existing one as `parent_backup_uuid`, which the caller may read.
    """
    caller = await authenticate(request)
    body = await read_json(request, CreateBackupBody)
    parent = body.parent_backup_uuid
    command = CreateBackup(
        **file_fields(caller, body),
        backup_type=body.backup_type,
        is_compressed=body.is_compressed,
        is_encrypted=body.is_encrypted,
        parent_backup_uuid=check_uuid(parent, "parent_backup_uuid") if parent else "",
        source_node_id=check_label(body.source_node_id, "source_node_id"),
    )
    return await created(request, command, _PATH)


async def list_page(request: web.Request) -> web.Response:
    """The caller's backups, for admins all, oldest first."""
    caller = await authenticate(request)
    filters = file_filters(request)
    page = await request.app[API].metadata.read(ListBackups(caller=caller, **filters), BackupPage)
    answer = BackupList(
        count=len(page.files),
        backups=[_body_of(record) for record in page.files],
        next_cursor=cursor_text(page.next_cursor),
    )
    return filtered_response(request, answer, page.next_cursor, filters)


async def get(request: web.Request) -> web.Response:
    """File record and backup metadata in one. Needs read."""
    return answer_read(request, await _find(request, await authenticate(request)))


async def update(request: web.Request) -> web.Response:
    """What the body leaves out stays as it is. Needs write on the file, and read on a new parent.

    A change to `full` drops the parent; a chain may not loop.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, UpdateBackupBody)
    parent, source = body.parent_backup_uuid, body.source_node_id
    command = UpdateBackup(
        caller=caller,
        file_uuid=file_uuid,
        retention_hours=body.retention_period,
        unchanged_since_ms=await state_named(request, partial(_find, request, caller)),
        backup_type=body.backup_type,
        is_compressed=body.is_compressed,
        is_encrypted=body.is_encrypted,
        parent_backup_uuid=None if parent is None else check_uuid(parent, "parent_backup_uuid"),
        source_node_id=None if source is None else check_label(source, "source_node_id"),
    )
    record = await request.app[API].metadata.propose(command, BackupRecord)
    return record_response(_body_of(record), record.updated_at_ms)


async def delete(request: web.Request) -> web.Response:
    """The record goes at once, the blob when nothing refers to it any more. Needs admin on the file.

    A backup that others build on is a conflict.
    """
    return await delete_of_kind(request, BACKUP, _find)


async def _find(request: web.Request, caller: Caller) -> Found:
    """The record in the path as it is answered. Raises NotFound, Forbidden."""
    query = GetBackup(caller=caller, file_uuid=path_uuid(request))
    record = await request.app[API].metadata.read(query, BackupRecord)
    return Found(_body_of(record), record.updated_at_ms, record.blob_sha256)


def _body_of(record: BackupRecord) -> BackupBody:
    return BackupBody(
        **file_body_fields(record),
        backup_type=record.backup_type,
        is_compressed=record.is_compressed,
        is_encrypted=record.is_encrypted,
        parent_backup_uuid=record.parent_backup_uuid,
        source_node_id=record.source_node_id,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="create_backup",
        tag="Backups",
        method="POST",
        path=_PATH,
        handler=create,
        summary="Create a backup and begin its upload",
        body=CreateBackupBody,
        answers=CREATED,
        errors=(PayloadTooLarge,),
        changes=True,
    ),
    Operation(
        name="list_backups",
        tag="Backups",
        method="GET",
        path=_PATH,
        handler=list_page,
        summary="List backups",
        query=FILE_PARAMETERS,
        answers={200: Answer(description="A page of backups.", body=BackupList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="get_backup",
        tag="Backups",
        method="GET",
        path=_FILE,
        handler=get,
        summary="Show a backup",
        headers=CONDITIONS,
        answers={200: Answer(description="The backup.", body=BackupBody, headers=OF_RECORD), 304: UNCHANGED},
        errors=(PreconditionFailed,),
    ),
    Operation(
        name="update_backup",
        tag="Backups",
        method="PATCH",
        path=_FILE,
        handler=update,
        summary="Change the metadata of a backup",
        body=UpdateBackupBody,
        headers=CONDITIONS,
        answers={200: Answer(description="The backup as it is now.", body=BackupBody, headers=OF_RECORD)},
        errors=(Gone, PreconditionFailed),
        changes=True,
    ),
    Operation(
        name="delete_backup",
        tag="Backups",
        method="DELETE",
        path=_FILE,
        handler=delete,
        summary="Delete a backup",
        headers=CONDITIONS,
        answers={200: Answer(description="The backup is deleted.", body=DeletedFile)},
        errors=(Conflict, PreconditionFailed),
    ),
)
