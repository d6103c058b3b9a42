"""Snapshots of the metadata, and files that come back from one: `/api/v1/cluster/snapshots`. Admins only."""

from typing import Final

import msgspec
import uuid_utils
from aiohttp import web

from api.access import audited, authenticate
from api.bodies.checks import check_uuid, path_uuid
from api.bodies.fields import FilterText, GivenUuid
from api.bodies.files import KIND_WORDS
from api.bodies.snapshots import (
    ReviveBody,
    RevivedFileBody,
    SnapshotBody,
    SnapshotFileBody,
    SnapshotFileList,
    SnapshotList,
)
from api.bodies.views import shown
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, page_response, page_wanted, query_text
from api.spec.operation import Answer, OperationTable, Parameter
from ca.errors import Conflict, PayloadTooLarge, RateLimited, Unavailable
from metadata.model.records import BACKUP, PROJECT_FILE, VM, Caller
from metadata.model.snapshot_records import RevivedFile, SnapshotFilePage, SnapshotPage, SnapshotRecord
from metadata.protocol.calls import CALL_TIMEOUT_S
from metadata.protocol.commands import CreateBackup, CreateProjectFile, CreateVm, ReviveFile
from metadata.protocol.queries import GetSnapshot, ListSnapshots
from metadata.protocol.snapshot_calls import SnapshotContent, SnapshotFileCall, SnapshotFilesCall
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_PATH: Final = "/api/v1/cluster/snapshots"
_FILES: Final = f"{_PATH}/{{snapshot_id}}/files"
_RECORDS: Final = {PROJECT_FILE: "project-files", VM: "vms", BACKUP: "backups"}
OPERATIONS: Final = OperationTable("Snapshots")


@OPERATIONS.add(
    f"GET {_PATH}",
    "list_snapshots",
    "List the snapshots of the metadata",
    Answer("A page of snapshots.", SnapshotList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_page(request: web.Request) -> web.Response:
    """List the snapshots that the job `snapshot` has taken, oldest first. Admins only.

    Those that hold no content any more are listed up to the newest hundred, also if their file is gone. Those
    of coordinators that were removed are listed too, as they hold content: `is_readable` is false for them.
    """
    caller = await authenticate(request)
    query = ListSnapshots(caller=caller, **page_wanted(request))
    page = await request.app[API].metadata.read(query, SnapshotPage)
    snapshots = [shown(SnapshotBody, each, held_until=rfc3339(each.held_until_ms)) for each in page.snapshots]
    return page_response(request, SnapshotList, snapshots, page.next_cursor)


@OPERATIONS.add(
    f"GET {_FILES}",
    "list_snapshot_files",
    "List the files in a snapshot",
    Answer("A page of files.", SnapshotFileList, headers=NEXT_PAGE),
    query=(
        Parameter("bucket_id", "Only files of this bucket.", type=GivenUuid),
        Parameter("filename", "Only files whose name begins with this text.", type=FilterText),
        *PAGE_PARAMETERS,
    ),
    errors=(Conflict,),
)
async def list_files(request: web.Request) -> web.Response:
    """List the files with content in a snapshot, as they were then. Admins only.

    Only the coordinator that has taken it has its file: if that one does not answer, neither does any other
    member. A snapshot of an earlier release, or of a coordinator that was removed, is a conflict.
    """
    caller = await authenticate(request)
    bucket_id, filename = query_text(request, "bucket_id"), query_text(request, "filename")
    bucket_id = check_uuid(bucket_id, "bucket_id") if bucket_id else ""
    wanted = page_wanted(request)
    snapshot = await _snapshot(request, caller)
    call = SnapshotFilesCall(
        caller=caller,
        snapshot_id=snapshot.snapshot_id,
        bucket_id=bucket_id,
        filename=filename,
        cursor=wanted["cursor"],
        limit=wanted["limit"],
    )
    page = msgspec.msgpack.decode(await _answer(request, snapshot, call), type=SnapshotFilePage)
    files = [shown(SnapshotFileBody, file, kind=KIND_WORDS[file.kind]) for file in page.files]
    filters = {"bucket_id": bucket_id, "filename": filename}
    return page_response(request, SnapshotFileList, files, page.next_cursor, filters)


@OPERATIONS.add(
    f"POST {_FILES}/{{file_uuid}}/restore",
    "restore_snapshot_file",
    "Bring a file of a snapshot back",
    Answer("The file was created.", RevivedFileBody, headers={"Location": "The path of its record."}),
    status=201,
    body=ReviveBody,
    errors=(Conflict, PayloadTooLarge, RateLimited),
    changes=True,
)
async def restore(request: web.Request) -> web.Response:
    """Create a file with the record and content that a file had in a snapshot. Admins only.

    It has another id, and belongs to its owner of then if that user still exists, otherwise to the caller.
    Permissions and links do not come back, and retention starts again. If the content has left the disks, the
    response is a conflict.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = _checked(await read_json(request, ReviveBody))
    snapshot = await _snapshot(request, caller)
    call = SnapshotFileCall(caller=caller, snapshot_id=snapshot.snapshot_id, file_uuid=file_uuid)
    found = msgspec.msgpack.decode(await _answer(request, snapshot, call), type=SnapshotContent)
    command = ReviveFile(
        caller=caller,
        create=_changed(found.create, body),
        owner_id=found.owner_id,
        owner_sequence=found.owner_sequence,
    )
    async with audited(request, "restore_snapshot_file", principal=caller.subject, target=file_uuid):
        revived = await request.app[API].metadata.propose(command, RevivedFile)
    location = f"/api/v1/{_RECORDS[revived.kind]}/{revived.file_uuid}"
    answer_body = shown(RevivedFileBody, revived, kind=KIND_WORDS[revived.kind])
    return json_response(answer_body, status=201, headers={"Location": location})


def _checked(body: ReviveBody) -> ReviveBody:
    """Return the body with its ids as they are stored. Raises InvalidRequest."""
    return ReviveBody(
        bucket_id=check_uuid(body.bucket_id, "bucket_id") if body.bucket_id else "",
        parent_backup_uuid=(
            check_uuid(body.parent_backup_uuid, "parent_backup_uuid") if body.parent_backup_uuid else ""
        ),
    )


def _changed(
    create: CreateProjectFile | CreateVm | CreateBackup, body: ReviveBody
) -> CreateProjectFile | CreateVm | CreateBackup:
    """Return the creation with another id, and with what the request changes."""
    create = msgspec.structs.replace(create, file_uuid=str(uuid_utils.uuid7()))
    if body.bucket_id:
        create = msgspec.structs.replace(create, bucket_id=body.bucket_id)
    if body.parent_backup_uuid and isinstance(create, CreateBackup):
        create = msgspec.structs.replace(create, parent_backup_uuid=body.parent_backup_uuid)
    return create


async def _snapshot(request: web.Request, caller: Caller) -> SnapshotRecord:
    """Return the snapshot in the path. Raises NotFound, Forbidden."""
    query = GetSnapshot(caller=caller, snapshot_id=request.match_info["snapshot_id"])
    return await request.app[API].metadata.read(query, SnapshotRecord)


async def _answer(
    request: web.Request, snapshot: SnapshotRecord, call: SnapshotFilesCall | SnapshotFileCall
) -> bytes:
    """Ask the coordinator that has the file of the snapshot, and return its answer.

    Raises Conflict if that coordinator was removed, Unavailable if it does not answer.
    """
    if not snapshot.is_readable:
        elsewhere = f", or from {snapshot.sent_to}" if snapshot.sent_to else ""
        raise Conflict(
            f"The coordinator {snapshot.coordinator_id}, which has the file of this snapshot, was removed. "
            f"Only the whole cluster can be restored from it: from that file{elsewhere}."
        )
    metadata = request.app[API].metadata
    try:
        return await metadata.ask_coordinator(snapshot.coordinator_id, call, timeout_s=CALL_TIMEOUT_S)
    except Unavailable as error:
        raise Unavailable(
            f"Only the coordinator {snapshot.coordinator_id} has it: {error.details}"
        ) from error
