"""Creation of a file by tus: a POST on the collection of a kind without a body, whose headers say the rest.

The metadata of the upload are the fields of the creation's body, and are held to the same. A partial upload
is no file, and has none but its bucket. The id of a final one follows from its parts: who lost the answer to
its creation asks again, and finds it.
"""

import functools
import hashlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import uuid_utils
from aiohttp import web

from ca.errors import InvalidRequest, UnsupportedMediaType
from coordinator.http.app import json_response
from coordinator.http.json_body import convert_fields
from coordinator.model.bounds import PARTS_MAX
from coordinator.model.records import DEFAULT_BUCKET_ID, Caller, UploadRecord
from coordinator.protocol.commands import CreatePartial
from node.api.bodies.checks import check_uuid
from node.api.bodies.files import CreateFileBody, UploadInitialisation
from node.api.spec.operation import Answer, Operation, Parameter
from node.http.conditions import http_date
from node.http.tus_fields import (
    EXTENSIONS,
    PATCH_TYPE,
    RESUMABLE,
    declared_length,
    offered,
    parse_metadata,
    parts_field,
    require_version,
)

HEADERS: Final = (
    Parameter(name="Tus-Resumable", description="`1.0.0`, for a creation by tus, which has no body."),
    Parameter(name="Upload-Length", description="Of a creation by tus: the bytes that will come."),
    Parameter(name="Upload-Defer-Length", description="Of a creation by tus: `1` where nobody knows yet."),
    Parameter(
        name="Upload-Metadata",
        description="Of a creation by tus: the fields of the body, each as `name BASE64`, between commas. "
        "`filetype` stands for `content_type`. Of a partial upload `bucket_id` alone counts.",
    ),
    Parameter(
        name="Upload-Concat",
        description="Of a creation by tus: `partial` for an upload that becomes a part of a file, `final;` "
        f"and the addresses of up to {PARTS_MAX} of them, between spaces, for that file, which has no "
        "`Upload-Length`.",
    ),
)
_ALIASES: Final = {"filetype": "content_type", "name": "filename", "type": "content_type"}
_PASSED_OVER: Final = "relativePath"  # of where a browser has the file
_ALLOW: Final = "GET, HEAD, OPTIONS, POST"
_DIGITS_MAX: Final = 16
_Body = TypeVar("_Body", bound=CreateFileBody)


def is_by_tus(request: web.Request) -> bool:
    """Whether a request creates by tus. One that has a body in JSON does not, whatever its headers are."""
    if "Tus-Resumable" not in request.headers:
        return False
    return not request.body_exists or request.content_type == PATCH_TYPE


def parts_of(request: web.Request) -> list[str] | None:
    """What `parts_field` finds in a creation by tus. Raises PreconditionFailed, UnsupportedMediaType too."""
    require_version(request.headers)
    if request.body_exists:
        raise UnsupportedMediaType(
            "Content-Type: bytes are not taken here, but at the Location of the answer."
        )
    return parts_field(request.headers)


def body_of(request: web.Request, body_type: type[_Body], *, is_final: bool = False) -> _Body:
    """What a creation by tus says, as the body that would say it. A final upload has no size yet.

    Raises PayloadTooLarge, InvalidRequest naming header or field.
    """
    headers = request.headers
    if is_final and ("Upload-Length" in headers or "Upload-Defer-Length" in headers):
        raise InvalidRequest("Upload-Length: a final upload is as long as its parts are.")
    size_bytes = None if is_final else declared_length(headers)
    fields = parse_metadata(headers)
    if "size_bytes" in fields:
        raise InvalidRequest("Upload-Metadata: size_bytes is what Upload-Length says.")
    fields.pop(_PASSED_OVER, None)
    for alias, name in _ALIASES.items():
        if alias in fields:
            fields.setdefault(name, fields.pop(alias))
    kinds = _kinds(body_type)
    values = {name: _value(text, kinds.get(name, str)) for name, text in fields.items()}
    return convert_fields(values | {"size_bytes": size_bytes}, body_type)


def partial_of(request: web.Request, caller: Caller) -> CreatePartial:
    """The creation of a partial upload. Raises PayloadTooLarge, InvalidRequest naming header or field."""
    fields = parse_metadata(request.headers)
    return CreatePartial(
        caller=caller,
        file_uuid=str(uuid_utils.uuid7()),
        bucket_id=check_uuid(fields.get("bucket_id") or DEFAULT_BUCKET_ID, "bucket_id"),
        size_bytes=declared_length(request.headers),
    )


def final_uuid(subject: str, kind: str, parts: Sequence[str]) -> str:
    """The id of the file of this kind that a user puts together from these parts: a UUIDv7 as any other.

    It has the time of the first part, and 74 bits of a hash where others have random ones.
    """
    digest = hashlib.sha256("\0".join((subject, kind, *parts)).encode()).hexdigest()
    variant = "89ab"[int(digest[0], 16) % 4]
    return f"{parts[0][:13]}-7{digest[1:4]}-{variant}{digest[4:7]}-{digest[7:19]}"


def answer_to(
    upload: UploadRecord, initialisation: UploadInitialisation, *, concat: str = ""
) -> web.Response:
    """201 with the address of the upload; the body is that of a creation in JSON.

    `concat`: the Upload-Concat of a partial or a final upload.
    """
    headers = RESUMABLE | {"Location": initialisation.upload_url}
    if concat:
        headers["Upload-Concat"] = concat
    if upload.placement:
        headers["Upload-Expires"] = http_date(upload.expires_at_ms)
    return json_response(initialisation, status=201, headers=headers)


async def options(_request: web.Request) -> web.StreamResponse:
    """Version, extensions and checksum algorithms that are spoken. No credential."""
    return web.Response(status=204, headers=offered(_ALLOW))


def options_of(names: str, tag: str, path: str) -> Operation:
    """The operation that tells what can be done with the collection at `path` by tus."""
    told = {
        "Tus-Resumable": "The version of the protocol: 1.0.0.",
        "Tus-Version": "Versions: 1.0.0.",
        "Tus-Extension": f"`{EXTENSIONS}`.",
        "Tus-Max-Size": "Bytes of the largest file.",
        "Tus-Checksum-Algorithm": "What Upload-Checksum may use.",
        "Allow": "The methods of this path.",
    }
    return Operation(
        name=f"tus_options_{names}",
        tag=tag,
        method="OPTIONS",
        path=path,
        handler=options,
        summary="Ask what of tus is spoken",
        credential="none",
        answers={204: Answer(description="What is spoken.", headers=told)},
        is_json=False,
    )


@functools.cache
def _kinds(body_type: type[CreateFileBody]) -> Mapping[str, type]:
    """Which fields of a body hold no text: those, with what they hold."""
    found: dict[str, type] = {}
    for name, hint in typing.get_type_hints(body_type).items():
        parts = typing.get_args(hint) or (hint,)
        if bool in parts or int in parts:
            found[name] = bool if bool in parts else int
    return found


def _value(text: str, kind: type) -> Any:
    """What a text stands for; itself where it is nothing of the kind, which is refused by its name then."""
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    if kind is int and text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    return text
