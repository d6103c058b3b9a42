"""The operations that every kind of file has: creation, list, record, change and deletion.

They are made from the description of the kind. `_DESCRIPTIONS`, or the kind, describes what the handlers do.

Tested by tests/api/test_files.py.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import uuid_utils
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from api import tus_creation
from api.access import audited, authenticate
from api.bodies.checks import (
    check_filename,
    check_label,
    check_media_type,
    check_path,
    check_sha256,
    check_uuid,
    path_uuid,
)
from api.bodies.files import (
    CreateFileBody,
    DeletedFile,
    FileBody,
    ListFilter,
    UploadInitialisation,
)
from api.bodies.views import shown
from api.context import API, CONCATENATE
from api.file_kinds import Act, CreateAnyFile, FileKind, own_fields
from api.files import delete_of_kind
from api.pages import (
    FILE_PARAMETERS,
    NEXT_PAGE,
    file_filters,
    page_response,
    query_text,
    repeated,
)
from api.spec.operation import Answer, Operation, parameters_of
from api.tags import CONDITIONS, OF_RECORD, UNCHANGED, Found, answer_read, record_response, state_named
from ca.errors import (
    ChecksumMismatch,
    Conflict,
    FilestoreError,
    Gone,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    PreconditionFailed,
    UploadLocked,
)
from metadata.model.later_fields import later_of
from metadata.model.records import Caller, FileRecord, UploadPart, UploadRecord
from metadata.protocol.commands import CreateFile, CreatePartial, UpdateFile
from metadata.protocol.queries import GetParts, GetUpload
from runtime.timestamps import rfc3339
from web.app import json_response, read_json
from web.headers.tus_fields import PARTIAL_CONCAT, PATCH_TYPE, versioned

CREATED: Final = Answer(
    "The record was created. Send its bytes to `upload_url`.",
    UploadInitialisation,
    headers={
        "Location": "The path of the new record; for tus, the address of its upload.",
        "Tus-Resumable": "For tus: the version of the protocol.",
        "Upload-Offset": (
            "For tus: the offset of the upload. When it reaches the size, the file is available."
        ),
        "Upload-Expires": "For tus: when the upload expires if no more bytes arrive.",
        "Upload-Concat": "For a partial or final upload: which of the two it is.",
        "Preference-Applied": "`return=representation`: the body is the record of the file.",
        "Content-Location": "With `return=representation`: the path of the record.",
        "ETag": "With `return=representation`: the state of the record.",
        "Last-Modified": "With `return=representation`: `updated_at` of the record, in seconds.",
    },
)
BY_TUS: Final = (
    "A tus client creates an upload by a POST with `Tus-Resumable`, `Upload-Length` and "
    "`Upload-Metadata`. Its body, of the type `application/offset+octet-stream`, holds the beginning "
    "of the content or all of it (tus creation-with-upload); with all of it, the response is sent when "
    "the file is available. `Upload-Offset` says how many bytes were accepted. Send the rest to "
    "`Location`. If the body is rejected, because of its checksum or its length, nothing is created. A "
    "client that may have to repeat the request sends an `Idempotency-Key`. Coordinators accept no "
    "bytes (415).\n\nA file may be uploaded in parallel parts (tus concatenation). Each part is a "
    "creation with `Upload-Concat: partial`. The last creation has `Upload-Concat: final;` and the "
    "addresses of the parts, and is answered when the file is available. If that response is lost, "
    "repeat the request to get it again."
)
_OF_FINAL: Final = (NotFound, Conflict, Gone, UploadLocked, ChecksumMismatch)
_DESCRIPTIONS: Final[Mapping[Act, str]] = {
    "create": (
        "Creates the file record, {metadata} and the upload in one change. Needs write on the bucket.\n\n"
    )
    + BY_TUS,
    "list": "The caller's {noun}s, oldest first. Admins see all.",
    "get": "The file record together with {metadata}. Needs read.",
    "update": (
        "Fields that are absent from the body keep their values. Needs write on the file. "
        "Downloads use a new name and content type at once, on every node. The content and its "
        "`ETag` do not change."
    ),
    "delete": (
        "Deletes the record at once, and the blob when nothing refers to it any more. Needs "
        "admin on the file."
    ),
}


def operations(kind: FileKind) -> tuple[Operation, ...]:
    """Return the operations that every kind has: create, list, show, change and delete."""
    return (*_of_collection(kind), *_of_record(kind))


def _of_collection(kind: FileKind) -> tuple[Operation, ...]:
    return (
        Operation(
            name=f"create_{kind.name}",
            tag=kind.tag,
            method="POST",
            path=kind.path,
            handler=partial(_create, kind),
            summary=f"Create a {kind.noun} and start its upload",
            description=_described(kind, "create"),
            body=kind.create_body,
            takes=PATCH_TYPE,
            headers=tus_creation.HEADERS,
            answers={201: dataclasses.replace(CREATED, body_else=kind.body)},
            errors=(PayloadTooLarge, PreconditionFailed, *_OF_FINAL),
            changes=True,
        ),
        tus_creation.options_of(kind.names, kind.tag, kind.path),
        Operation(
            name=f"list_{kind.names}",
            tag=kind.tag,
            method="GET",
            path=kind.path,
            handler=partial(_list_page, kind),
            summary=f"List {kind.noun}s",
            description=_described(kind, "list"),
            query=(*parameters_of(kind.list_filter), *FILE_PARAMETERS),
            answers={200: Answer(f"A page of {kind.noun}s.", kind.list_body, headers=NEXT_PAGE)},
        ),
    )


def _of_record(kind: FileKind) -> tuple[Operation, ...]:
    path = f"{kind.path}/{{file_uuid}}"
    return (
        Operation(
            name=f"get_{kind.name}",
            tag=kind.tag,
            method="GET",
            path=path,
            handler=partial(_get, kind),
            summary=f"Show a {kind.noun}",
            description=_described(kind, "get"),
            headers=CONDITIONS,
            answers={200: Answer(f"The {kind.noun}.", kind.body, headers=OF_RECORD), 304: UNCHANGED},
            errors=(PreconditionFailed,),
        ),
        Operation(
            name=f"update_{kind.name}",
            tag=kind.tag,
            method="PATCH",
            path=path,
            handler=partial(_update, kind),
            summary=f"Change the metadata of a {kind.noun}",
            description=_described(kind, "update"),
            body=kind.update_body,
            headers=CONDITIONS,
            answers={200: Answer(f"The {kind.noun} as it is now.", kind.body, headers=OF_RECORD)},
            errors=(Gone, PreconditionFailed),
            changes=True,
        ),
        Operation(
            name=f"delete_{kind.name}",
            tag=kind.tag,
            method="DELETE",
            path=path,
            handler=partial(_delete, kind),
            summary=f"Delete a {kind.noun}",
            description=_described(kind, "delete"),
            headers=CONDITIONS,
            answers={200: Answer(f"The {kind.deleted} is deleted.", DeletedFile)},
            errors=(*kind.deleted_errors, PreconditionFailed),
        ),
    )


def _described(kind: FileKind, act: Act) -> str:
    every = _DESCRIPTIONS[act].format(noun=kind.noun, metadata=kind.metadata)
    return kind.descriptions.get(act, every)


async def _create(kind: FileKind, request: web.Request) -> web.StreamResponse:
    """Answer 201 with the place that the bytes go to.

    File record, the row of its kind and upload are one change.
    """
    caller = await authenticate(request)
    if tus_creation.is_by_tus(request):
        with versioned():
            return await _create_by_tus(kind, request, caller)
    upload = await _created(kind, request, caller, await read_json(request, kind.create_body))
    location = f"{kind.path}/{upload.file_uuid}"
    return json_response(_initialisation(request, upload), status=201, headers={"Location": location})


async def _create_by_tus(kind: FileKind, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Create a file from tus headers. The response to a final upload is sent when the file is available."""
    parts = tus_creation.parts_of(request)
    if not parts:
        command: CreateAnyFile | CreatePartial
        if parts is None:
            body = tus_creation.body_of(request, kind.create_body)
            file_uuid = tus_creation.keyed_uuid(request, caller, kind.name, body)
            command = _command(kind, caller, body, file_uuid=file_uuid)
        else:
            command = tus_creation.partial_of(request, caller)
        creation = tus_creation.Creation(
            command=command,
            is_keyed="Idempotency-Key" in request.headers,
            answer=partial(_answer_to_tus, kind, request, caller, is_partial=parts is not None),
            url_of=partial(_upload_url, request),
        )
        return await tus_creation.create(request, request.app[API].metadata, creation)
    concatenate = request.app.get(CONCATENATE)
    if concatenate is None:
        raise InvalidRequest("Upload-Concat: a coordinator stores no content. Ask a node for a final upload.")
    return await concatenate(request, caller, await _final(kind, request, caller, parts))


async def _answer_to_tus(
    kind: FileKind, request: web.Request, caller: Caller, upload: UploadRecord, *, is_partial: bool
) -> web.Response:
    """201 by how the upload stands: with the record of a file that is available, where that is preferred."""
    concat = PARTIAL_CONCAT if is_partial else ""
    initialisation = _initialisation(request, upload)
    if upload.placement or not tus_creation.prefers_record(request):
        return tus_creation.answer_to(upload, initialisation, concat=concat)
    try:
        found = await _find(kind, request, caller, upload.file_uuid)
    except FilestoreError:  # the file exists in any case; the client can ask for the record
        return tus_creation.answer_to(upload, initialisation, concat=concat)
    response = record_response(found.body, found.updated_at_ms, status=201)
    response.headers.update(tus_creation.headers_of(upload, initialisation.upload_url))
    response.headers["Content-Location"] = f"{kind.path}/{upload.file_uuid}"
    response.headers["Preference-Applied"] = "return=representation"
    return response


async def _final(kind: FileKind, request: web.Request, caller: Caller, parts: list[str]) -> UploadRecord:
    """The upload that is put together from these: a new one, unless the same was asked for before."""
    metadata = request.app[API].metadata
    body = tus_creation.body_of(request, kind.create_body, is_final=True)
    file_uuid = tus_creation.final_uuid(caller.subject, kind.name, parts)
    try:
        return await metadata.read(GetUpload(caller=caller, file_uuid=file_uuid), UploadRecord)
    except NotFound:
        found = await metadata.read(GetParts(caller=caller, file_uuids=parts), list[UploadPart])
    sized = replace(body, size_bytes=sum(part.size_bytes or 0 for part in found))
    return await _created(kind, request, caller, sized, file_uuid=file_uuid, parts=parts)


async def _created(
    kind: FileKind,
    request: web.Request,
    caller: Caller,
    body: CreateFileBody,
    *,
    file_uuid: str = "",
    parts: list[str] | UnsetType = UNSET,
) -> UploadRecord:
    command = _command(kind, caller, body, file_uuid=file_uuid, parts=parts)
    upload = await request.app[API].metadata.propose(command, UploadRecord)
    assert upload.placement or parts, "an upload without a node to take it"
    return upload


def _command(
    kind: FileKind,
    caller: Caller,
    body: CreateFileBody,
    *,
    file_uuid: str = "",
    parts: list[str] | UnsetType = UNSET,
) -> CreateAnyFile:
    """Return the command of a creation. Raises InvalidRequest naming the field."""
    return kind.create_command(
        caller=caller,
        file_uuid=file_uuid or str(uuid_utils.uuid7()),
        parts=parts,
        bucket_id=check_uuid(body.bucket_id, "bucket_id"),
        filename=check_filename(body.filename),
        content_type=check_media_type(body.content_type),
        size_bytes=body.size_bytes,
        expected_sha256=check_sha256(body.blob_sha256),
        retention_hours=body.retention_period,
        path=check_path(body.path or "") or UNSET,
        **_given(kind, body, own_fields(kind.create_command, CreateFile)),
    )


def _initialisation(request: web.Request, upload: UploadRecord) -> UploadInitialisation:
    """The address of the upload; of one that has ended at any node, as each tells so."""
    return UploadInitialisation(
        file_uuid=upload.file_uuid,
        upload_url=_upload_url(request, upload),
        expires_at=rfc3339(upload.expires_at_ms),
        status=upload.status,
    )


def _upload_url(request: web.Request, upload: UploadRecord) -> str:
    holder_url = request.app[API].holder_url(request, next(iter(upload.placement), ""))
    return f"{holder_url}/api/v1/files/{upload.file_uuid}/content"


async def _list_page(kind: FileKind, request: web.Request) -> web.Response:
    caller = await authenticate(request)
    filters = file_filters(request)
    own = _narrowed(kind, request)
    query = kind.list_query(caller=caller, **filters, **own)
    page = await request.app[API].metadata.read(query, kind.page)
    files = [_body_of(kind, record) for record in page.files]
    return page_response(request, kind.list_body, files, page.next_cursor, repeated(filters) | own)


async def _get(kind: FileKind, request: web.Request) -> web.Response:
    return answer_read(request, await _find(kind, request, await authenticate(request)))


async def _update(kind: FileKind, request: web.Request) -> web.Response:
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, kind.update_body)
    command = kind.update_command(
        caller=caller,
        file_uuid=file_uuid,
        filename=UNSET if body.filename is None else check_filename(body.filename),
        content_type=UNSET if body.content_type is None else check_media_type(body.content_type),
        retention_hours=body.retention_period,
        path=check_path(body.path) if isinstance(body.path, str) else UNSET,
        unchanged_since_ms=await state_named(request, partial(_find, kind, request, caller)),
        **_given(kind, body, own_fields(kind.update_command, UpdateFile)),
    )
    async with audited(request, "update_file", principal=caller.subject, target=file_uuid):
        record = await request.app[API].metadata.propose(command, kind.record)
    return record_response(_body_of(kind, record), record.updated_at_ms)


async def _delete(kind: FileKind, request: web.Request) -> web.Response:
    return await delete_of_kind(request, kind.name, partial(_find, kind))


async def _find(kind: FileKind, request: web.Request, caller: Caller, file_uuid: str = "") -> Found:
    """The record in the path as it is answered, or that of this name. Raises NotFound, Forbidden."""
    query = kind.get_query(caller=caller, file_uuid=file_uuid or path_uuid(request))
    record = await request.app[API].metadata.read(query, kind.record)
    return Found(_body_of(kind, record), record.updated_at_ms, record.blob_sha256)


def _given(kind: FileKind, body: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the given own fields of a kind that a body has, checked in this order. Raises InvalidRequest."""
    values = ((name, getattr(body, name)) for name in names)
    checks = {**kind.checks, **{each.name: check_label for each in later_of(kind.name) if each.is_label}}
    return {
        name: checks[name](value, name) if name in checks else value
        for name, value in values
        if value is not None
    }


def _narrowed(kind: FileKind, request: web.Request) -> dict[str, Any]:
    """The kind's own filters as the query of the request has them, "" for any. Raises InvalidRequest."""
    values = {name: query_text(request, name) for name in own_fields(kind.list_filter, ListFilter)}
    checked = {name: check(values[name], name) for name, check in kind.filter_checks.items() if values[name]}
    return values | checked


def _body_of(kind: FileKind, record: FileRecord) -> FileBody:
    ends_at = rfc3339(record.due_at_ms or 0)
    return shown(kind.body, record, retention_period=record.retention_hours, expires_at=ends_at)
