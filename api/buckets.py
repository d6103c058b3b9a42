"""Buckets and the files in them: `/api/v1/buckets`."""

from functools import partial
from typing import Final

import uuid_utils
from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.buckets import (
    BucketBody,
    BucketFileList,
    BucketList,
    BucketUploadBody,
    BucketUploadList,
    CreateBucketBody,
    DeletedBucket,
    UpdateBucketBody,
)
from api.bodies.checks import check_label, path_uuid
from api.bodies.files import KIND_WORDS, FileSummary, expires_at, kind_of
from api.context import API
from api.pages import (
    FILE_PARAMETERS,
    NEXT_PAGE,
    PAGE_PARAMETERS,
    cursor_text,
    file_filters,
    filtered_response,
    page_response,
    query_cursor,
    query_limit,
)
from api.spec.operation import Answer, Operation
from api.tags import CONDITIONS, OF_RECORD, UNCHANGED, Found, answer_read, record_response, state_named
from ca.errors import Conflict, PreconditionFailed
from metadata.model.listed_records import BucketUpload, BucketUploadPage
from metadata.model.records import PARTIAL, BucketPage, BucketRecord, Caller, FilePage, FileRecord
from metadata.protocol.commands import CreateBucket, DeleteBucket, UpdateBucket
from metadata.protocol.queries import GetBucket, ListBucketFiles, ListBuckets, ListBucketUploads
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_PATH: Final = "/api/v1/buckets"
_BUCKET: Final = f"{_PATH}/{{bucket_id}}"


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
    return record_response(_body_of(record), record.updated_at_ms, status=201, location=location)


async def list_page(request: web.Request) -> web.Response:
    """List the buckets, oldest first.

    They are the default bucket, and those that the caller owns or has a permission on. Admins see all.
    """
    caller = await authenticate(request)
    query = ListBuckets(caller=caller, limit=query_limit(request), cursor=query_cursor(request))
    page = await request.app[API].metadata.read(query, BucketPage)
    answer = BucketList(
        count=len(page.buckets),
        buckets=[_body_of(record) for record in page.buckets],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor)


async def get(request: web.Request) -> web.Response:
    """Show a bucket. Needs read; every user sees the default bucket."""
    return answer_read(request, await _find(request, await authenticate(request)))


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
    return record_response(_body_of(record), record.updated_at_ms)


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


async def list_files(request: web.Request) -> web.Response:
    """Files of every kind, oldest first. Needs read on the bucket.

    In the default bucket, users see the files that they own or have a permission on. Admins see all.
    """
    caller = await authenticate(request)
    bucket_id = path_uuid(request, "bucket_id")
    filters = file_filters(request)
    query = ListBucketFiles(caller=caller, bucket_id=bucket_id, **filters)
    page = await request.app[API].metadata.read(query, FilePage)
    answer = BucketFileList(
        bucket_uuid=bucket_id,
        count=len(page.files),
        files=[_summary_of(record) for record in page.files],
        next_cursor=cursor_text(page.next_cursor),
    )
    return filtered_response(request, answer, page.next_cursor, filters)


async def list_uploads(request: web.Request) -> web.Response:
    """List the unfinished uploads, oldest first, each with its reserved part of the quota.

    They include partial uploads, which are in no list of files. Callers with admin on the bucket see all;
    others need read, and see their own. Each can be deleted as a file: `DELETE /files/{file_uuid}`.
    """
    caller = await authenticate(request)
    bucket_id = path_uuid(request, "bucket_id")
    query = ListBucketUploads(
        caller=caller, bucket_id=bucket_id, limit=query_limit(request), cursor=query_cursor(request)
    )
    page = await request.app[API].metadata.read(query, BucketUploadPage)
    answer = BucketUploadList(
        bucket_id=bucket_id,
        count=len(page.uploads),
        uploads=[_upload_of(upload) for upload in page.uploads],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor)


async def _find(request: web.Request, caller: Caller) -> Found:
    """The bucket in the path as it is answered. Raises NotFound, Forbidden."""
    query = GetBucket(caller=caller, bucket_id=path_uuid(request, "bucket_id"))
    record = await request.app[API].metadata.read(query, BucketRecord)
    return Found(_body_of(record), record.updated_at_ms)


def _body_of(record: BucketRecord) -> BucketBody:
    return BucketBody(
        bucket_id=record.bucket_id,
        name=record.name,
        owner_id=record.owner_id,
        quota_bytes=record.quota_bytes,
        used_bytes=record.used_bytes,
        reserved_bytes=record.reserved_bytes or 0,
        file_count=record.file_count,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )


def _summary_of(record: FileRecord) -> FileSummary:
    return FileSummary(
        file_uuid=record.file_uuid,
        filename=record.filename,
        content_type=record.content_type,
        size_bytes=record.size_bytes,
        blob_sha256=record.blob_sha256,
        status=record.status,
        expires_at=expires_at(record),
        created_at=rfc3339(record.created_at_ms),
        kind=kind_of(record),
    )


def _upload_of(upload: BucketUpload) -> BucketUploadBody:
    return BucketUploadBody(
        file_uuid=upload.file_uuid,
        kind=PARTIAL if upload.kind == PARTIAL else KIND_WORDS[upload.kind],
        owner_id=upload.owner_id,
        filename=upload.filename,
        size_bytes=UNSET if upload.size_bytes is None else upload.size_bytes,
        offset_bytes=upload.offset_bytes,
        reserved_bytes=upload.reserved_bytes,
        part_of=upload.part_of,
        created_at=rfc3339(upload.created_at_ms),
        expires_at=rfc3339(upload.expires_at_ms),
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="create_bucket",
        tag="Buckets",
        method="POST",
        path=_PATH,
        handler=create,
        summary="Create a bucket",
        body=CreateBucketBody,
        answers={
            201: Answer(
                description="The new bucket.",
                body=BucketBody,
                headers={"Location": "The path of the new bucket."} | OF_RECORD,
            )
        },
        errors=(Conflict,),
        changes=True,
    ),
    Operation(
        name="list_buckets",
        tag="Buckets",
        method="GET",
        path=_PATH,
        handler=list_page,
        summary="List buckets",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of buckets.", body=BucketList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="get_bucket",
        tag="Buckets",
        method="GET",
        path=_BUCKET,
        handler=get,
        summary="Show a bucket",
        headers=CONDITIONS,
        answers={
            200: Answer(description="The bucket.", body=BucketBody, headers=OF_RECORD),
            304: UNCHANGED,
        },
        errors=(PreconditionFailed,),
    ),
    Operation(
        name="update_bucket",
        tag="Buckets",
        method="PATCH",
        path=_BUCKET,
        handler=update,
        summary="Change a bucket's name or quota",
        body=UpdateBucketBody,
        headers=CONDITIONS,
        answers={200: Answer(description="The bucket as it is now.", body=BucketBody, headers=OF_RECORD)},
        errors=(Conflict, PreconditionFailed),
        changes=True,
    ),
    Operation(
        name="delete_bucket",
        tag="Buckets",
        method="DELETE",
        path=_BUCKET,
        handler=delete,
        summary="Delete an empty bucket",
        headers=CONDITIONS,
        answers={200: Answer(description="The bucket is deleted.", body=DeletedBucket)},
        errors=(Conflict, PreconditionFailed),
    ),
    Operation(
        name="list_bucket_files",
        tag="Buckets",
        method="GET",
        path=f"{_BUCKET}/files",
        handler=list_files,
        summary="List the files of a bucket",
        query=FILE_PARAMETERS,
        answers={200: Answer(description="A page of files.", body=BucketFileList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="list_bucket_uploads",
        tag="Buckets",
        method="GET",
        path=f"{_BUCKET}/uploads",
        handler=list_uploads,
        summary="List the unfinished uploads of a bucket",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of uploads.", body=BucketUploadList, headers=NEXT_PAGE)},
    ),
)
