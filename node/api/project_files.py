"""Project files: `/api/v1/project-files`."""

import uuid_utils
from aiohttp import web

from coordinator.commands import CreateProjectFile, DeleteFile, UpdateProjectFile
from coordinator.queries import GetProjectFile, ListProjectFiles
from coordinator.records import ProjectFilePage, ProjectFileRecord, UploadRecord
from coordinator.timestamps import rfc3339
from coordinator.web import json_response, read_json
from node.api.access import audited, authenticate
from node.api.bodies import (
    CreateProjectFileBody,
    DeletedFile,
    ProjectFileBody,
    ProjectFileList,
    UpdateProjectFileBody,
    UploadInitialisation,
    check_filename,
    check_label,
    check_media_type,
    check_sha256,
    check_uuid,
    path_uuid,
)
from node.api.pages import cursor_text, page_response, query_cursor, query_limit, query_text
from node.api.services import API

_PATH = "/api/v1/project-files"
_KIND = "project_file"


async def create(request: web.Request) -> web.Response:
    """POST: file record, project row and upload in one change; 201 with where the bytes go."""
    caller = await authenticate(request)
    body = await read_json(request, CreateProjectFileBody)
    command = CreateProjectFile(
        caller=caller,
        file_uuid=str(uuid_utils.uuid7()),
        bucket_id=check_uuid(body.bucket_id, "bucket_id"),
        filename=check_filename(body.filename),
        content_type=check_media_type(body.content_type),
        size_bytes=body.size_bytes,
        expected_sha256=check_sha256(body.blob_sha256),
        retention_hours=body.retention_period,
        project_id=check_label(body.project_id, "project_id"),
        project_name=check_label(body.project_name or "", "project_name"),
        version_tag=check_label(body.version_tag or "", "version_tag"),
        compression=body.compression,
        include_images=body.include_images,
        include_snapshots=body.include_snapshots,
        is_read_only=body.is_read_only,
        keep_compute_ids=body.keep_compute_ids,
        reset_mac_addresses=body.reset_mac_addresses,
    )
    services = request.app[API]
    upload = await services.metadata.propose(command, UploadRecord)
    assert upload.placement, "an upload without a node to take it"
    answer = UploadInitialisation(
        file_uuid=upload.file_uuid,
        upload_url=f"{services.public_url(upload.placement[0])}/api/v1/files/{upload.file_uuid}/content",
        expires_at=rfc3339(upload.expires_at_ms),
        status=upload.status,
    )
    return json_response(answer, status=201, headers={"Location": f"{_PATH}/{upload.file_uuid}"})


async def list_page(request: web.Request) -> web.Response:
    """GET: the caller's project files, for admins all; `?project_id=`, `?limit=`, `?cursor=`."""
    caller = await authenticate(request)
    limit, project_id = query_limit(request), query_text(request, "project_id")
    query = ListProjectFiles(caller=caller, project_id=project_id, limit=limit, cursor=query_cursor(request))
    page = await request.app[API].metadata.read(query, ProjectFilePage)
    answer = ProjectFileList(
        count=len(page.files),
        project_files=[_body_of(record) for record in page.files],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor, project_id=project_id)


async def get(request: web.Request) -> web.Response:
    """GET of one: needs read."""
    caller = await authenticate(request)
    query = GetProjectFile(caller=caller, file_uuid=path_uuid(request))
    return json_response(_body_of(await request.app[API].metadata.read(query, ProjectFileRecord)))


async def update(request: web.Request) -> web.Response:
    """PATCH: needs write; what the body leaves out stays."""
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, UpdateProjectFileBody)
    command = UpdateProjectFile(
        caller=caller,
        file_uuid=file_uuid,
        project_name=_checked(body.project_name, "project_name"),
        version_tag=_checked(body.version_tag, "version_tag"),
        compression=body.compression,
        include_images=body.include_images,
        include_snapshots=body.include_snapshots,
        is_read_only=body.is_read_only,
        keep_compute_ids=body.keep_compute_ids,
        reset_mac_addresses=body.reset_mac_addresses,
    )
    return json_response(_body_of(await request.app[API].metadata.propose(command, ProjectFileRecord)))


async def delete(request: web.Request) -> web.Response:
    """DELETE: needs admin on the file. The record goes at once, the blob when nothing refers to it."""
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    command = DeleteFile(caller=caller, file_uuid=file_uuid, kind=_KIND)
    async with audited(request, "delete_file", principal=caller.subject, target=file_uuid):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(DeletedFile(file_uuid=file_uuid))


def _body_of(record: ProjectFileRecord) -> ProjectFileBody:
    return ProjectFileBody(
        file_uuid=record.file_uuid,
        bucket_id=record.bucket_id,
        owner_id=record.owner_id,
        filename=record.filename,
        content_type=record.content_type,
        size_bytes=record.size_bytes,
        blob_sha256=record.blob_sha256,
        status=record.status,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        project_id=record.project_id,
        project_name=record.project_name,
        version_tag=record.version_tag,
        compression=record.compression,
        include_images=record.include_images,
        include_snapshots=record.include_snapshots,
        is_read_only=record.is_read_only,
        keep_compute_ids=record.keep_compute_ids,
        reset_mac_addresses=record.reset_mac_addresses,
    )


def _checked(text: str | None, field: str) -> str | None:
    return None if text is None else check_label(text, field)
