"""Buckets and the files in them: `/api/v1/buckets`."""

from functools import partial
from typing import Final

import uuid_utils
from aiohttp import web

from api.access import audited, authenticate
from api.bodies.buckets import (
    BucketBody,
    BucketFileList,
    BucketList,
    BucketUploadBody,
    BucketUploadList,
    CreateBucketBody,
    DeletedBucket,
    FolderBody,
    FolderList,
    UpdateBucketBody,
)
from api.bodies.checks import check_label, check_path, path_uuid
from api.bodies.files import KIND_WORDS, FileSummary, kind_of
from api.bodies.views import shown
from api.context import API
from api.pages import (
    FILE_PARAMETERS,
    FOLDER_PARAMETERS,
    FOLDERS_PARAMETERS,
    NEXT_PAGE,
    PAGE_PARAMETERS,
    file_filters,
    page_response,
    page_wanted,
    query_flag,
    query_label,
    query_limit,
    query_text,
    repeated,
)
from api.spec.operation import Answer, OperationTable
from api.tags import CONDITIONS, OF_RECORD, UNCHANGED, Found, answer_read, record_response, state_named
from ca.errors import Conflict, PreconditionFailed
from metadata.model.listed_records import BucketUploadPage, FolderPage
from metadata.model.records import PARTIAL, BucketPage, BucketRecord, Caller, FilePage, FileRecord
from metadata.protocol.commands import CreateBucket, DeleteBucket, UpdateBucket
from metadata.protocol.queries import (
    BucketFilesQuery,
    GetBucket,
    ListBucketFiles,
    ListBuckets,
    ListBucketUploads,
    ListFolderFiles,
    ListFolders,
)
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_PATH: Final = "/api/v1/buckets"
_BUCKET: Final = f"{_PATH}/{{bucket_id}}"
OPERATIONS: Final = OperationTable("Buckets")


@OPERATIONS.add(
    f"POST {_PATH}",
    "create_bucket",
    "Create a bucket",
    Answer("The new bucket.", BucketBody, headers={"Location": "The path of the new bucket."} | OF_RECORD),
    status=201,
    body=CreateBucketBody,
    errors=(Conflict,),
    changes=True,
)
async def create(request: web.Request) -> web.Response:
    """Create a bucket that the caller owns."""
    caller = await authenticate(request)
    body = await read_json(request, CreateBucketBody)
    command = CreateBucket(
        caller=caller,
        bucket_id=str(uuid_utils.uuid7()),
        name=check_label(body.name, "name"),
        quota_bytes=body.quota_bytes,
    )
    record = await request.app[API].metadata.propose(command, BucketRecord)
    location = f"{_PATH}/{record.bucket_id}"
    return record_response(shown(BucketBody, record), record.updated_at_ms, status=201, location=location)


@OPERATIONS.add(
    f"GET {_PATH}",
    "list_buckets",
    "List buckets",
    Answer("A page of buckets.", BucketList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_page(request: web.Request) -> web.Response:
    """List the buckets, oldest first.

    They are the default bucket, and those that the caller owns or has a permission on. Admins see all.
    """
    caller = await authenticate(request)
    query = ListBuckets(caller=caller, **page_wanted(request))
    page = await request.app[API].metadata.read(query, BucketPage)
    buckets = [shown(BucketBody, record) for record in page.buckets]
    return page_response(request, BucketList, buckets, page.next_cursor)


@OPERATIONS.add(
    f"GET {_BUCKET}",
    "get_bucket",
    "Show a bucket",
    Answer("The bucket.", BucketBody, headers=OF_RECORD),
    others={304: UNCHANGED},
    headers=CONDITIONS,
    errors=(PreconditionFailed,),
)
async def get(request: web.Request) -> web.Response:
    """Show a bucket. Needs read; every user sees the default bucket."""
    return answer_read(request, await _find(request, await authenticate(request)))


@OPERATIONS.add(
    f"PATCH {_BUCKET}",
    "update_bucket",
    "Change a bucket's name or quota",
    Answer("The bucket as it is now.", BucketBody, headers=OF_RECORD),
    body=UpdateBucketBody,
    headers=CONDITIONS,
    errors=(Conflict, PreconditionFailed),
    changes=True,
)
async def update(request: web.Request) -> web.Response:
    """Change a bucket. Absent fields keep their values. Needs admin on the bucket."""
    caller = await authenticate(request)
    bucket_id = path_uuid(request, "bucket_id")
    body = await read_json(request, UpdateBucketBody)
    command = UpdateBucket(
        caller=caller,
        bucket_id=bucket_id,
        name=None if body.name is None else check_label(body.name, "name"),
        quota_bytes=body.quota_bytes,
        unchanged_since_ms=await state_named(request, partial(_find, request, caller)),
    )
    record = await request.app[API].metadata.propose(command, BucketRecord)
    return record_response(shown(BucketBody, record), record.updated_at_ms)


@OPERATIONS.add(
    f"DELETE {_BUCKET}",
    "delete_bucket",
    "Delete an empty bucket",
    Answer("The bucket is deleted.", DeletedBucket),
    headers=CONDITIONS,
    errors=(Conflict, PreconditionFailed),
)
async def delete(request: web.Request) -> web.Response:
    """Delete an empty bucket. Needs admin on the bucket.

    A bucket that contains files is a conflict, and so is the default bucket.
    """
    caller = await authenticate(request)
    bucket_id = path_uuid(request, "bucket_id")
    unchanged_since_ms = await state_named(request, partial(_find, request, caller))
    command = DeleteBucket(caller=caller, bucket_id=bucket_id, unchanged_since_ms=unchanged_since_ms)
    async with audited(request, "delete_bucket", principal=caller.subject, target=bucket_id):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(DeletedBucket(deleted=True, bucket_id=bucket_id))


@OPERATIONS.add(
    f"GET {_BUCKET}/files",
    "list_bucket_files",
    "List the files of a bucket",
    Answer("A page of files.", BucketFileList, headers=NEXT_PAGE),
    query=(*FOLDER_PARAMETERS, *FILE_PARAMETERS),
)
async def list_files(request: web.Request) -> web.Response:
    """Files of every kind, oldest first. Needs read on the bucket.

    With `path` those of one folder; `list_folders` lists the folders in it. In the default bucket, users
    see the files that they own or have a permission on. Admins see all.
    """
    caller = await authenticate(request)
    bucket_id = path_uuid(request, "bucket_id")
    filters = file_filters(request)
    query: BucketFilesQuery = ListBucketFiles(caller=caller, bucket_id=bucket_id, **filters)
    is_recursive = query_flag(request, "recursive")
    of_folder: dict[str, str] = {}
    name = query_label(request, "name")
    if "path" in request.query or name:
        path = check_path(query_text(request, "path"))
        query = ListFolderFiles(
            caller=caller,
            bucket_id=bucket_id,
            path=path,
            is_recursive=is_recursive or "path" not in request.query,
            name=name,
            **filters,
        )
        of_folder = {"name": name, "recursive": "1" if is_recursive else ""}
        if "path" in request.query:
            of_folder["path"] = path or "/"
    page = await request.app[API].metadata.read(query, FilePage)
    files = [_summary_of(record) for record in page.files]
    return page_response(
        request, BucketFileList, files, page.next_cursor, repeated(filters) | of_folder, bucket_uuid=bucket_id
    )


@OPERATIONS.add(
    f"GET {_BUCKET}/folders",
    "list_folders",
    "List the folders of a bucket",
    Answer("A page of folders.", FolderList, headers=NEXT_PAGE),
    query=FOLDERS_PARAMETERS,
)
async def list_folders(request: web.Request) -> web.Response:
    """List the folders directly in a folder, by name. Needs read on the bucket.

    In the default bucket, users see the folders with files that they own or have a permission on. A folder
    exists as long as a file is in it or below it: it is created by a file's `path`, and cannot be empty.
    """
    caller = await authenticate(request)
    bucket_id = path_uuid(request, "bucket_id")
    path = check_path(query_text(request, "path"))
    query = ListFolders(
        caller=caller,
        bucket_id=bucket_id,
        path=path,
        limit=query_limit(request),
        after=query_label(request, "cursor"),
    )
    page = await request.app[API].metadata.read(query, FolderPage)
    start = f"{path}/" if path else ""
    folders = [FolderBody(name=name, path=start + name) for name in page.folders]
    return page_response(request, FolderList, folders, page.next_name, {"path": path}, bucket_id=bucket_id)


@OPERATIONS.add(
    f"GET {_BUCKET}/uploads",
    "list_bucket_uploads",
    "List the unfinished uploads of a bucket",
    Answer("A page of uploads.", BucketUploadList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_uploads(request: web.Request) -> web.Response:
    """List the unfinished uploads, oldest first, each with its reserved part of the quota.

    They include partial uploads, which are in no list of files. Callers with admin on the bucket see all;
    others need read, and see their own. Each can be deleted as a file: `DELETE /files/{file_uuid}`.
    """
    caller = await authenticate(request)
    bucket_id = path_uuid(request, "bucket_id")
    query = ListBucketUploads(caller=caller, bucket_id=bucket_id, **page_wanted(request))
    page = await request.app[API].metadata.read(query, BucketUploadPage)
    uploads = [
        shown(BucketUploadBody, upload, kind=PARTIAL if upload.kind == PARTIAL else KIND_WORDS[upload.kind])
        for upload in page.uploads
    ]
    return page_response(request, BucketUploadList, uploads, page.next_cursor, bucket_id=bucket_id)


async def _find(request: web.Request, caller: Caller) -> Found:
    """The bucket in the path as it is answered. Raises NotFound, Forbidden."""
    query = GetBucket(caller=caller, bucket_id=path_uuid(request, "bucket_id"))
    record = await request.app[API].metadata.read(query, BucketRecord)
    return Found(shown(BucketBody, record), record.updated_at_ms)


def _summary_of(record: FileRecord) -> FileSummary:
    return shown(FileSummary, record, expires_at=rfc3339(record.due_at_ms or 0), kind=kind_of(record))
