"""Project files: `/api/v1/project-files`."""

from functools import partial
from typing import Final

from aiohttp import web

from ca.errors import Gone, NotAvailable, PayloadTooLarge, PreconditionFailed
from coordinator.http.app import json_response, read_json
from coordinator.model.records import PROJECT_FILE, Caller, Manifest, ProjectFilePage, ProjectFileRecord
from coordinator.protocol.commands import CreateProjectFile, UpdateProjectFile
from coordinator.protocol.queries import GetManifest, GetProjectFile, ListProjectFiles
from node.api.access import authenticate
from node.api.bodies.checks import check_label, path_uuid
from node.api.bodies.fields import FilterText
from node.api.bodies.files import DeletedFile, file_body_fields
from node.api.bodies.project_files import (
    CreateProjectFileBody,
    ManifestBody,
    ManifestImageBody,
    ProjectFileBody,
    ProjectFileList,
    UpdateProjectFileBody,
)
from node.api.context import API
from node.api.creation import CREATED, created, file_fields
from node.api.files import delete_of_kind
from node.api.filters import FILE_PARAMETERS, file_filters, filtered_response
from node.api.pages import NEXT_PAGE, cursor_text, query_text
from node.api.spec.operation import Answer, Operation, Parameter
from node.api.tags import CONDITIONS, OF_RECORD, UNCHANGED, Found, answer_read, record_response, state_named

_PATH: Final = "/api/v1/project-files"
_FILE: Final = f"{_PATH}/{{file_uuid}}"
_TAG: Final = "Project files"


async def create(request: web.Request) -> web.Response:
    """File record, project metadata and upload are made in one change. Needs write on the bucket."""
    caller = await authenticate(request)
    body = await read_json(request, CreateProjectFileBody)
    command = CreateProjectFile(
        **file_fields(caller, body),
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
    return await created(request, command, _PATH)


async def list_page(request: web.Request) -> web.Response:
    """The caller's project files, for admins all, oldest first. Filters come after access control."""
    caller = await authenticate(request)
    filters, project_id = file_filters(request), query_text(request, "project_id")
    query = ListProjectFiles(caller=caller, project_id=project_id, **filters)
    page = await request.app[API].metadata.read(query, ProjectFilePage)
    answer = ProjectFileList(
        count=len(page.files),
        project_files=[_body_of(record) for record in page.files],
        next_cursor=cursor_text(page.next_cursor),
    )
    return filtered_response(request, answer, page.next_cursor, filters, project_id=project_id)


async def get(request: web.Request) -> web.Response:
    """File record and project metadata in one. Needs read."""
    return answer_read(request, await _find(request, await authenticate(request)))


async def get_manifest(request: web.Request) -> web.Response:
    """What the stored archive says of itself: read from it, not declared by anybody. Needs read.

    There is none before the upload has ended.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    manifest = await request.app[API].metadata.read(GetManifest(caller=caller, file_uuid=file_uuid), Manifest)
    answer = ManifestBody(
        file_uuid=file_uuid,
        archive=manifest.archive,
        project_name=manifest.project_name,
        format_version=manifest.format_version,
        images=[ManifestImageBody(filename=image.filename, md5=image.md5) for image in manifest.images],
        truncated=manifest.truncated,
    )
    return json_response(answer)


async def update(request: web.Request) -> web.Response:
    """What the body leaves out stays as it is. Needs write on the file."""
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, UpdateProjectFileBody)
    command = UpdateProjectFile(
        caller=caller,
        file_uuid=file_uuid,
        retention_hours=body.retention_period,
        unchanged_since_ms=await state_named(request, partial(_find, request, caller)),
        project_name=_checked(body.project_name, "project_name"),
        version_tag=_checked(body.version_tag, "version_tag"),
        compression=body.compression,
        include_images=body.include_images,
        include_snapshots=body.include_snapshots,
        is_read_only=body.is_read_only,
        keep_compute_ids=body.keep_compute_ids,
        reset_mac_addresses=body.reset_mac_addresses,
    )
    record = await request.app[API].metadata.propose(command, ProjectFileRecord)
    return record_response(_body_of(record), record.updated_at_ms)


async def delete(request: web.Request) -> web.Response:
    """The record goes at once, the blob when nothing refers to it any more. Needs admin on the file."""
    return await delete_of_kind(request, PROJECT_FILE, _find)


async def _find(request: web.Request, caller: Caller) -> Found:
    """The record in the path as it is answered. Raises NotFound, Forbidden."""
    query = GetProjectFile(caller=caller, file_uuid=path_uuid(request))
    record = await request.app[API].metadata.read(query, ProjectFileRecord)
    return Found(_body_of(record), record.updated_at_ms, record.blob_sha256)


def _body_of(record: ProjectFileRecord) -> ProjectFileBody:
    return ProjectFileBody(
        **file_body_fields(record),
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


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="create_project_file",
        tag=_TAG,
        method="POST",
        path=_PATH,
        handler=create,
        summary="Create a project file and begin its upload",
        body=CreateProjectFileBody,
        answers=CREATED,
        errors=(PayloadTooLarge,),
        changes=True,
    ),
    Operation(
        name="list_project_files",
        tag=_TAG,
        method="GET",
        path=_PATH,
        handler=list_page,
        summary="List project files",
        query=(
            Parameter(name="project_id", description="Only files of this project.", type=FilterText),
            *FILE_PARAMETERS,
        ),
        answers={
            200: Answer(description="A page of project files.", body=ProjectFileList, headers=NEXT_PAGE)
        },
    ),
    Operation(
        name="get_project_file",
        tag=_TAG,
        method="GET",
        path=_FILE,
        handler=get,
        summary="Show a project file",
        headers=CONDITIONS,
        answers={
            200: Answer(description="The project file.", body=ProjectFileBody, headers=OF_RECORD),
            304: UNCHANGED,
        },
        errors=(PreconditionFailed,),
    ),
    Operation(
        name="get_project_manifest",
        tag=_TAG,
        method="GET",
        path=f"{_FILE}/manifest",
        handler=get_manifest,
        summary="Show what a project's archive holds",
        answers={200: Answer(description="What the archive says.", body=ManifestBody)},
        errors=(NotAvailable,),
    ),
    Operation(
        name="update_project_file",
        tag=_TAG,
        method="PATCH",
        path=_FILE,
        handler=update,
        summary="Change the metadata of a project file",
        body=UpdateProjectFileBody,
        headers=CONDITIONS,
        answers={
            200: Answer(description="The project file as it is now.", body=ProjectFileBody, headers=OF_RECORD)
        },
        errors=(Gone, PreconditionFailed),
        changes=True,
    ),
    Operation(
        name="delete_project_file",
        tag=_TAG,
        method="DELETE",
        path=_FILE,
        handler=delete,
        summary="Delete a project file",
        headers=CONDITIONS,
        answers={200: Answer(description="The file is deleted.", body=DeletedFile)},
        errors=(PreconditionFailed,),
    ),
)
