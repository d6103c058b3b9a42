"""Project files: `/api/v1/project-files`."""

from typing import Final

from aiohttp import web

from api.access import authenticate
from api.bodies.checks import path_uuid
from api.bodies.project_files import (
    CHECKS,
    CreateProjectFileBody,
    ManifestBody,
    ManifestImageBody,
    ProjectFileBody,
    ProjectFileFilter,
    ProjectFileList,
    UpdateProjectFileBody,
)
from api.bodies.views import shown
from api.context import API
from api.file_kinds import FileKind
from api.file_operations import operations
from api.spec.operation import Answer, OperationTable
from ca.errors import NotAvailable
from metadata.model.records import PROJECT_FILE, Manifest, ProjectFilePage, ProjectFileRecord
from metadata.protocol.commands import CreateProjectFile, UpdateProjectFile
from metadata.protocol.queries import GetManifest, GetProjectFile, ListProjectFiles
from web.app import json_response

KIND: Final = FileKind(
    name=PROJECT_FILE,
    path="/api/v1/project-files",
    tag="Project files",
    noun="project file",
    metadata="project metadata",
    create_body=CreateProjectFileBody,
    update_body=UpdateProjectFileBody,
    body=ProjectFileBody,
    list_body=ProjectFileList,
    list_filter=ProjectFileFilter,
    create_command=CreateProjectFile,
    update_command=UpdateProjectFile,
    get_query=GetProjectFile,
    list_query=ListProjectFiles,
    record=ProjectFileRecord,
    page=ProjectFilePage,
    checks=CHECKS,
    descriptions={
        "list": (
            "The caller's project files, oldest first. Admins see all. Filters are applied after "
            "access control."
        )
    },
)
OPERATIONS: Final = OperationTable(KIND.tag, operations(KIND))


@OPERATIONS.add(
    f"GET {KIND.path}/{{file_uuid}}/manifest",
    "get_project_manifest",
    "Show the contents of a project's archive",
    Answer("The content of the archive.", ManifestBody),
    errors=(NotAvailable,),
)
async def get_manifest(request: web.Request) -> web.Response:
    """Return what was found in the stored archive, not what was declared about it. Needs read.

    There is no manifest before the upload has ended.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    manifest = await request.app[API].metadata.read(GetManifest(caller=caller, file_uuid=file_uuid), Manifest)
    images = [shown(ManifestImageBody, image) for image in manifest.images]
    return json_response(shown(ManifestBody, manifest, file_uuid=file_uuid, images=images))
