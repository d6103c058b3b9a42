"""What the creation of every kind of file has in common: the file's half of the command, and the answer.

File record, metadata row and upload are one change.
"""

from collections.abc import Mapping
from typing import Final, TypedDict

import uuid_utils
from aiohttp import web

from coordinator.http.app import json_response
from coordinator.model.records import Caller, UploadRecord
from coordinator.model.timestamps import rfc3339
from coordinator.protocol.commands import CreateBackup, CreateProjectFile, CreateVm
from node.api.bodies.checks import check_filename, check_media_type, check_sha256, check_uuid
from node.api.bodies.files import CreateFileBody, UploadInitialisation
from node.api.context import API
from node.api.spec.operation import Answer

CREATED: Final[Mapping[int, Answer]] = {
    201: Answer(
        description="The record is made; its bytes go to `upload_url`.",
        body=UploadInitialisation,
        headers={"Location": "The path of the new record."},
    )
}


class FileFields(TypedDict):
    """The fields of `coordinator.protocol.commands.files.CreateFile` that come from the request."""

    caller: Caller
    file_uuid: str
    bucket_id: str
    filename: str
    content_type: str
    size_bytes: int | None
    expected_sha256: str
    retention_hours: int | None


def file_fields(caller: Caller, body: CreateFileBody) -> FileFields:
    """The file's half of a command, under a new id. Raises InvalidRequest naming the field."""
    return FileFields(
        caller=caller,
        file_uuid=str(uuid_utils.uuid7()),
        bucket_id=check_uuid(body.bucket_id, "bucket_id"),
        filename=check_filename(body.filename),
        content_type=check_media_type(body.content_type),
        size_bytes=body.size_bytes,
        expected_sha256=check_sha256(body.blob_sha256),
        retention_hours=body.retention_period,
    )


async def created(
    request: web.Request, command: CreateProjectFile | CreateVm | CreateBackup, path: str
) -> web.Response:
    """Propose `command`: 201 with where the bytes go, and the new record's place below `path`."""
    services = request.app[API]
    upload = await services.metadata.propose(command, UploadRecord)
    assert upload.placement, "an upload without a node to take it"
    answer = UploadInitialisation(
        file_uuid=upload.file_uuid,
        upload_url=f"{services.public_url(upload.placement[0])}/api/v1/files/{upload.file_uuid}/content",
        expires_at=rfc3339(upload.expires_at_ms),
        status=upload.status,
    )
    return json_response(answer, status=201, headers={"Location": f"{path}/{upload.file_uuid}"})
