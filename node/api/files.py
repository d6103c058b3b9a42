"""Files of every kind: `/api/v1/files`. Their content is the business of `node/content`."""

from typing import Final

from aiohttp import web

from ca.errors import Conflict
from coordinator.commands import DeleteFile
from coordinator.web import json_response
from node.api.access import audited, authenticate
from node.api.bodies.checks import path_uuid
from node.api.bodies.files import DeletedFile
from node.api.operation import Answer, Operation
from node.api.services import API


async def delete(request: web.Request) -> web.Response:
    """A file of any kind. Its record goes at once, the blob when nothing refers to it any more.

    Needs admin on the file. A backup that others build on is a conflict.
    """
    return await delete_of_kind(request, "")


async def delete_of_kind(request: web.Request, kind: str) -> web.Response:
    """Delete the file in the path; one of another kind ("" is any) is not found."""
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    command = DeleteFile(caller=caller, file_uuid=file_uuid, kind=kind)
    async with audited(request, "delete_file", principal=caller.subject, target=file_uuid):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(DeletedFile(file_uuid=file_uuid))


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="delete_file",
        tag="Files",
        method="DELETE",
        path="/api/v1/files/{file_uuid}",
        handler=delete,
        summary="Delete a file of any kind",
        answers={200: Answer(description="The file is deleted.", body=DeletedFile)},
        errors=(Conflict,),
    ),
)
