"""VM images: `/api/v1/vms`."""

import re
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from ca.errors import Gone, InvalidRequest, PayloadTooLarge, PreconditionFailed
from coordinator.http.app import read_json
from coordinator.model.bounds import DOCUMENT_CHARS_MAX
from coordinator.model.records import VM, Caller, VmPage, VmRecord
from coordinator.protocol.commands import CreateVm, UpdateVm
from coordinator.protocol.queries import GetVm, ListVms
from node.api.access import authenticate
from node.api.bodies.checks import path_uuid
from node.api.bodies.fields import MaybeMd5
from node.api.bodies.files import DeletedFile, file_body_fields
from node.api.bodies.vms import IMAGE_FORMAT, CreateVmBody, UpdateVmBody, VmBody, VmList
from node.api.context import API
from node.api.creation import CREATED, created, file_fields
from node.api.files import delete_of_kind
from node.api.filters import FILE_PARAMETERS, file_filters, filtered_response
from node.api.pages import NEXT_PAGE, cursor_text, query_text
from node.api.spec.operation import Answer, Operation, Parameter
from node.api.tags import CONDITIONS, OF_RECORD, UNCHANGED, Found, answer_read, record_response, state_named

_PATH: Final = "/api/v1/vms"
_FILE: Final = f"{_PATH}/{{file_uuid}}"
_FORMAT: Final = re.compile(IMAGE_FORMAT)
NESTED_MAX: Final = 128  # objects and lists of a document within one another
_MD5: Final = re.compile(r"[0-9a-f]{32}")


async def create(request: web.Request) -> web.Response:
    """File record, image metadata and upload are made in one change. Needs write on the bucket."""
    caller = await authenticate(request)
    body = await read_json(request, CreateVmBody)
    command = CreateVm(
        **file_fields(caller, body),
        virt_type=body.virt_type,
        format=_checked_format(body.format),
        vcpus=body.vcpus,
        ram_mb=body.ram_mb,
        extra_attributes_json=_checked_attributes(body.extra_attributes_json),
    )
    return await created(request, command, _PATH)


async def list_page(request: web.Request) -> web.Response:
    """The caller's VM images, for admins all, oldest first."""
    caller = await authenticate(request)
    filters, md5 = file_filters(request), query_text(request, "md5").lower()
    if md5 and _MD5.fullmatch(md5) is None:
        raise InvalidRequest("md5: expected 32 hex digits")
    page = await request.app[API].metadata.read(ListVms(caller=caller, md5=md5, **filters), VmPage)
    answer = VmList(
        count=len(page.files),
        vms=[_body_of(record) for record in page.files],
        next_cursor=cursor_text(page.next_cursor),
    )
    return filtered_response(request, answer, page.next_cursor, filters, md5=md5)


async def get(request: web.Request) -> web.Response:
    """File record and image metadata in one. Needs read."""
    return answer_read(request, await _find(request, await authenticate(request)))


async def update(request: web.Request) -> web.Response:
    """What the body leaves out stays as it is. Needs write on the file."""
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, UpdateVmBody)
    attributes = body.extra_attributes_json
    command = UpdateVm(
        caller=caller,
        file_uuid=file_uuid,
        retention_hours=body.retention_period,
        unchanged_since_ms=await state_named(request, partial(_find, request, caller)),
        virt_type=body.virt_type,
        format=None if body.format is None else _checked_format(body.format),
        vcpus=body.vcpus,
        ram_mb=body.ram_mb,
        extra_attributes_json=None if attributes is None else _checked_attributes(attributes),
    )
    record = await request.app[API].metadata.propose(command, VmRecord)
    return record_response(_body_of(record), record.updated_at_ms)


async def delete(request: web.Request) -> web.Response:
    """The record goes at once, the blob when nothing refers to it any more. Needs admin on the file."""
    return await delete_of_kind(request, VM, _find)


def _checked_format(text: str) -> str:
    """Raises InvalidRequest."""
    if _FORMAT.fullmatch(text) is None:
        raise InvalidRequest("format: 1 to 32 of a-z 0-9 . _ - are required")
    return text


def _checked_attributes(text: str) -> str:
    """A JSON object as text, which is kept as it came; "" is none. Raises InvalidRequest."""
    if len(text.encode()) > DOCUMENT_CHARS_MAX:
        raise InvalidRequest(f"extra_attributes_json: at most {DOCUMENT_CHARS_MAX} bytes")
    try:
        value: Any = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest("extra_attributes_json: expected the text of a JSON object")
    if not _is_shallow(value):
        raise InvalidRequest(f"extra_attributes_json: nested more than {NESTED_MAX} deep")
    return text


def _is_shallow(value: Any) -> bool:
    """Whether every reader can take it: how deep parsers go differs, also between versions of Python."""
    level = [value]
    for _ in range(NESTED_MAX):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False


async def _find(request: web.Request, caller: Caller) -> Found:
    """The record in the path as it is answered. Raises NotFound, Forbidden."""
    query = GetVm(caller=caller, file_uuid=path_uuid(request))
    record = await request.app[API].metadata.read(query, VmRecord)
    return Found(_body_of(record), record.updated_at_ms, record.blob_sha256)


def _body_of(record: VmRecord) -> VmBody:
    return VmBody(
        **file_body_fields(record),
        virt_type=record.virt_type,
        format=record.format,
        vcpus=record.vcpus,
        ram_mb=record.ram_mb,
        extra_attributes_json=record.extra_attributes_json,
        md5=record.md5,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="create_vm",
        tag="VM images",
        method="POST",
        path=_PATH,
        handler=create,
        summary="Create a VM image and begin its upload",
        body=CreateVmBody,
        answers=CREATED,
        errors=(PayloadTooLarge,),
        changes=True,
    ),
    Operation(
        name="list_vms",
        tag="VM images",
        method="GET",
        path=_PATH,
        handler=list_page,
        summary="List VM images",
        query=(
            Parameter(name="md5", description="Only images whose content has this MD5.", type=MaybeMd5),
            *FILE_PARAMETERS,
        ),
        answers={200: Answer(description="A page of VM images.", body=VmList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="get_vm",
        tag="VM images",
        method="GET",
        path=_FILE,
        handler=get,
        summary="Show a VM image",
        headers=CONDITIONS,
        answers={200: Answer(description="The VM image.", body=VmBody, headers=OF_RECORD), 304: UNCHANGED},
        errors=(PreconditionFailed,),
    ),
    Operation(
        name="update_vm",
        tag="VM images",
        method="PATCH",
        path=_FILE,
        handler=update,
        summary="Change the metadata of a VM image",
        body=UpdateVmBody,
        headers=CONDITIONS,
        answers={200: Answer(description="The VM image as it is now.", body=VmBody, headers=OF_RECORD)},
        errors=(Gone, PreconditionFailed),
        changes=True,
    ),
    Operation(
        name="delete_vm",
        tag="VM images",
        method="DELETE",
        path=_FILE,
        handler=delete,
        summary="Delete a VM image",
        headers=CONDITIONS,
        answers={200: Answer(description="The file is deleted.", body=DeletedFile)},
        errors=(PreconditionFailed,),
    ),
)
