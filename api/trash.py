"""The trash, `/api/v1/trash`, and the protection of files from deletion."""

from typing import Final

from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.checks import check_uuid, path_uuid
from api.bodies.fields import GivenUuid
from api.bodies.files import KIND_WORDS
from api.bodies.trash import (
    ProtectBody,
    ProtectedFile,
    PurgedFile,
    RestoredFileBody,
    TrashedFileBody,
    TrashList,
)
from api.bodies.views import shown
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, page_response, page_wanted, query_text
from api.spec.operation import Answer, OperationTable, Parameter
from ca.errors import Conflict, InvalidRequest, PayloadTooLarge, RateLimited
from metadata.model.listed_records import RestoredFile, TrashPage
from metadata.protocol.commands import ProtectFile, PurgeFile, RestoreFile
from metadata.protocol.queries import ListTrash
from runtime.timestamps import parse_rfc3339, rfc3339
from web.app import json_response, read_json

_PATH: Final = "/api/v1/trash"
_FILE: Final = f"{_PATH}/{{file_uuid}}"
_DAY_S: Final = 86_400
OPERATIONS: Final = OperationTable("Trash")


@OPERATIONS.add(
    f"GET {_PATH}",
    "list_trash",
    "List deleted files",
    Answer("A page of deleted files.", TrashList, headers=NEXT_PAGE),
    query=(Parameter("bucket_id", "Only files of this bucket.", type=GivenUuid), *PAGE_PARAMETERS),
)
async def list_page(request: web.Request) -> web.Response:
    """List the caller's deleted files that can be restored, in the order of their deletion. Admins see all.

    With `bucket_id`, callers with admin on the bucket see all that was deleted in it.
    """
    caller = await authenticate(request)
    bucket_id = _bucket(request)
    query = ListTrash(caller=caller, bucket_id=bucket_id, **page_wanted(request))
    page = await request.app[API].metadata.read(query, TrashPage)
    files = [
        shown(TrashedFileBody, file, kind=KIND_WORDS[file.kind], expires_at=rfc3339(file.due_at_ms))
        for file in page.files
    ]
    return page_response(request, TrashList, files, page.next_cursor, {"bucket_id": bucket_id})


@OPERATIONS.add(
    f"POST {_FILE}/restore",
    "restore_file",
    "Restore a deleted file",
    Answer("The file is available again.", RestoredFileBody),
    query=(Parameter("bucket_id", "The bucket that it is restored to. If absent: its own.", type=GivenUuid),),
    errors=(Conflict, PayloadTooLarge, RateLimited),
    changes=True,
)
async def restore(request: web.Request) -> web.Response:
    """Restore a file from the trash: the same file, with its permissions, but without its public links.

    Needs admin on the file, and write on the bucket, whose quota must have room for it. The backups in the
    trash that it builds on are restored too. If one of them, or the bucket, is gone for good, that is a
    conflict.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    command = RestoreFile(caller=caller, file_uuid=file_uuid, bucket_id=_bucket(request))
    async with audited(request, "restore_file", principal=caller.subject, target=file_uuid):
        restored = await request.app[API].metadata.propose(command, RestoredFile)
    return json_response(shown(RestoredFileBody, restored, kind=KIND_WORDS[restored.kind]))


@OPERATIONS.add(
    f"DELETE {_FILE}",
    "purge_file",
    "Delete a file in the trash for good",
    Answer("The file is deleted for good.", PurgedFile),
    errors=(Conflict,),
)
async def purge(request: web.Request) -> web.Response:
    """Delete a file in the trash for good. Needs admin on the file.

    Its bytes leave the disks within 15 minutes, unless another file has the same content. A node that is
    down deletes them when it returns. A backup that another one in the trash builds on is a conflict.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    async with audited(request, "purge_file", principal=caller.subject, target=file_uuid):
        command = PurgeFile(caller=caller, file_uuid=file_uuid)
        await request.app[API].metadata.propose(command, type(None))
    return json_response(PurgedFile(file_uuid=file_uuid, deleted=True))


@OPERATIONS.add(
    "POST /api/v1/files/{file_uuid}/protection",
    "protect_file",
    "Protect a file from deletion",
    Answer("The file is protected.", ProtectedFile),
    body=ProtectBody,
    errors=(Conflict,),
    changes=True,
)
async def protect(request: web.Request) -> web.Response:
    """Protect a file: no user and no job can delete it before that time. Needs admin on the file.

    The protection can be extended, and not shortened. Admins of the cluster can delete the file all the same
    with `override_protection`, which is audited.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, ProtectBody)
    days = body.protect_days
    if (days is None) == (not body.protected_until):
        raise InvalidRequest("protected_until: give this or protect_days")
    command = ProtectFile(
        caller=caller,
        file_uuid=file_uuid,
        until_ms=UNSET if days is not None else parse_rfc3339(body.protected_until, "protected_until"),
        ttl_seconds=UNSET if days is None else days * _DAY_S,
    )
    async with audited(request, "protect_file", principal=caller.subject, target=file_uuid):
        until_ms = await request.app[API].metadata.propose(command, int)
    return json_response(ProtectedFile(file_uuid=file_uuid, protected_until=rfc3339(until_ms)))


def _bucket(request: web.Request) -> str:
    bucket_id = query_text(request, "bucket_id")
    return check_uuid(bucket_id, "bucket_id") if bucket_id else ""
