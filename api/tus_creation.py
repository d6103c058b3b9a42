"""Creation of a file by tus: a POST on the collection of a kind, whose headers say what a JSON body would.

The metadata of the upload are the fields of the creation's body, and are held to the same. A partial upload
is no file, and has none but its bucket. The id of a final one follows from its parts, that of any other from
the request's `Idempotency-Key`, if it has one: who lost the answer to its creation asks again, and finds it.

The body, if there is one, is the beginning of the content, or all of it (creation-with-upload). Nodes take it
(`node/content/creation_with_upload.py`).
"""

import functools
import hashlib
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec
import uuid_utils
from aiohttp import web
from msgspec import structs

from api.bodies.checks import check_uuid
from api.bodies.files import CreateFileBody, UploadInitialisation
from api.file_kinds import CreateAnyFile
from api.spec.operation import Answer, Operation, Parameter
from ca.errors import FilestoreError, Forbidden, InvalidRequest, NotFound, Unavailable, UnsupportedMediaType
from metadata.model.records import DEFAULT_BUCKET_ID, Caller, UploadRecord
from metadata.protocol.commands import CreatePartial, StoredContent
from metadata.protocol.queries import GetUpload
from metadata.rpc.client import MetadataClient
from runtime.bounds import PARTS_MAX
from web.app import json_response
from web.headers.conditions import field_of, http_date
from web.headers.tus_fields import (
    EXTENSIONS,
    PARTIAL_CONCAT,
    PATCH_TYPE,
    RESUMABLE,
    capability_headers,
    declared_length,
    parse_metadata,
    parts_field,
    require_version,
)
from web.json_body import convert_fields

HEADERS: Final = (
    Parameter("Tus-Resumable", ("`1.0.0`, for a creation by tus. Its body is then not JSON.")),
    Parameter("Upload-Length", "For tus: the size of the content."),
    Parameter("Upload-Defer-Length", "For tus: `1` if the size is not known yet."),
    Parameter(
        "Upload-Metadata",
        (
            "For tus: the fields of the body, as `name BASE64` pairs separated by commas. "
            "`filetype` stands for `content_type`; the folder in `relativePath` stands for `path`; other "
            "names have no effect. For a partial upload only "
            "`bucket_id` counts."
        ),
    ),
    Parameter(
        "Upload-Concat",
        (
            "For tus: `partial` for an upload that becomes a part of a file; or `final;` and "
            f"the addresses of up to {PARTS_MAX} partial uploads, separated by spaces, for "
            "that file. A final upload has no `Upload-Length`."
        ),
    ),
    Parameter(
        "Idempotency-Key",
        (
            "For tus: 1 to 128 characters chosen by the client, best a new UUIDv7. A repeated "
            "request with the same key creates no second upload and gets the first response."
        ),
    ),
    Parameter("Prefer", "`return=representation`: return the record once the file is available."),
    Parameter(
        "Upload-Checksum", "For tus: `ALGORITHM BASE64` of the bytes in this request; sha256, sha1 or md5."
    ),
    Parameter("Content-Digest", ("For tus: `sha-256=:BASE64:` of the bytes in this request.")),
    Parameter("Content-MD5", "For tus: MD5 in base64 of the bytes in this request."),
    Parameter("Repr-Digest", "For tus: `sha-256=:BASE64:` of the whole content."),
)
_ALIASES: Final = {"filetype": "content_type", "name": "filename", "type": "content_type"}
_ALLOW: Final = "GET, HEAD, OPTIONS, POST"
_DIGITS_MAX: Final = 16
_KEY: Final = re.compile(r'"?([!#-~]{1,128})"?')
_TIMED: Final = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_Body = TypeVar("_Body", bound=CreateFileBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A creation by tus after its checks: the proposed command, and how to respond.

    `is_keyed`: its file_uuid follows from the request, so it may have been carried out before. `answer`
    returns a 201 with the state of the upload; `url_of` returns its address.
    """

    command: CreateAnyFile | CreatePartial
    is_keyed: bool
    answer: Callable[[UploadRecord], Awaitable[web.Response]]
    url_of: Callable[[UploadRecord], str]

    @property
    def is_partial(self) -> bool:
        """Whether it makes a partial upload."""
        return isinstance(self.command, CreatePartial)

    def with_placement(self, file_uuid: str, node_id: str) -> "Creation":
        """Return this creation with an id, and with the node that has the bytes as its first node."""
        return replace(self, command=structs.replace(self.command, file_uuid=file_uuid, placement=[node_id]))

    def with_content(self, content: StoredContent) -> "Creation":
        """Return this creation with all of its content."""
        return replace(self, command=structs.replace(self.command, content=content, placement=[]))


# Takes the bytes that come with a creation, and answers it; a process without content has none.
Receive = Callable[[web.Request, Creation], Awaitable[web.StreamResponse]]
RECEIVE = web.AppKey[Receive]("receive")


async def begin(metadata: MetadataClient, creation: Creation) -> UploadRecord:
    """Create the upload, or return the one that was created before with the same key.

    The earlier one may use up the quota, so it is looked up even if this creation is rejected.
    """
    command = creation.command
    try:
        return await metadata.propose(command, UploadRecord)
    except Unavailable:
        raise
    except FilestoreError as refusal:
        if not creation.is_keyed:
            raise
        try:
            query = GetUpload(caller=command.caller, file_uuid=command.file_uuid)
            return await metadata.read(query, UploadRecord)
        except NotFound:
            raise refusal from None


async def create(request: web.Request, metadata: MetadataClient, creation: Creation) -> web.StreamResponse:
    """Answer a creation by tus. Raises UnsupportedMediaType for bytes that this process cannot accept."""
    receive = request.app.get(RECEIVE)
    if request.body_exists and receive is None:
        raise UnsupportedMediaType(
            "Content-Type: a coordinator accepts no bytes. Ask a node, or create the upload without "
            "bytes and send them to the Location of the response."
        )
    is_empty = creation.command.size_bytes == 0 and not creation.is_partial
    if receive is not None and (request.body_exists or is_empty):  # an empty file has all of its bytes
        return await receive(request, creation)
    return await creation.answer(await begin(metadata, creation))


def is_by_tus(request: web.Request) -> bool:
    """Return whether a request creates by tus. A request with a JSON body never does."""
    if "Tus-Resumable" not in request.headers:
        return False
    return not request.body_exists or request.content_type == PATCH_TYPE


def parts_of(request: web.Request) -> list[str] | None:
    """Return the result of `parts_field` for a creation by tus. Also raises PreconditionFailed, Forbidden."""
    require_version(request.headers)
    parts = parts_field(request.headers)
    if parts and request.body_exists:
        raise Forbidden("A final upload accepts no bytes: its content is that of its parts.")
    return parts


def body_of(request: web.Request, body_type: type[_Body], *, is_final: bool = False) -> _Body:
    """Convert the headers of a creation by tus to a body. A final upload has no size yet.

    Raises PayloadTooLarge, InvalidRequest naming header or field.
    """
    headers = request.headers
    if is_final and ("Upload-Length" in headers or "Upload-Defer-Length" in headers):
        raise InvalidRequest("Upload-Length: not allowed, as a final upload is as long as its parts.")
    size_bytes = None if is_final else declared_length(headers)
    fields = parse_metadata(headers)
    if "size_bytes" in fields:
        raise InvalidRequest("Upload-Metadata: size_bytes must be equal to Upload-Length")
    for alias, name in _ALIASES.items():
        if alias in fields:
            fields.setdefault(name, fields.pop(alias))
    if "/" in fields.get("relativePath", "") and "path" in body_type.__struct_fields__:
        fields.setdefault("path", fields["relativePath"].rpartition("/")[0])
    known, kinds = set(body_type.__struct_fields__), _kinds(body_type)
    # Browsers' libraries send every field that they have of a file, such as `lastModified`.
    values = {name: _value(text, kinds.get(name, str)) for name, text in fields.items() if name in known}
    return convert_fields(values | {"size_bytes": size_bytes}, body_type)


def partial_of(request: web.Request, caller: Caller) -> CreatePartial:
    """The creation of a partial upload. Raises PayloadTooLarge, InvalidRequest naming header or field."""
    fields = parse_metadata(request.headers)
    bucket_id = check_uuid(fields.get("bucket_id") or DEFAULT_BUCKET_ID, "bucket_id")
    size_bytes = declared_length(request.headers)
    keyed = keyed_uuid(request, caller, PARTIAL_CONCAT, (bucket_id, size_bytes))
    return CreatePartial(
        caller=caller, file_uuid=keyed or str(uuid_utils.uuid7()), bucket_id=bucket_id, size_bytes=size_bytes
    )


def keyed_uuid(request: web.Request, caller: Caller, kind: str, said: Any) -> str:
    """The id of the upload that the request's Idempotency-Key stands for, "" when it has none.

    The key counts together with all that is `said`: another creation under it has another id. It has the time
    of a key that is a UUIDv7. Raises InvalidRequest.
    """
    key = field_of(request.headers, "Idempotency-Key")
    if key is None:
        return ""
    if (match := _KEY.fullmatch(key.strip(" \t"))) is None:
        raise InvalidRequest("Idempotency-Key: must be 1 to 128 visible ASCII characters.")
    timed = _TIMED.fullmatch(match[1])
    return _uuid_of(timed and timed[1], caller.subject, kind, match[1], msgspec.json.encode(said).decode())


def final_uuid(subject: str, kind: str, parts: Sequence[str]) -> str:
    """The id of the file of this kind that a user puts together from these parts: a UUIDv7 as any other.

    It has the time of the first part, and 74 bits of a hash where others have random ones.
    """
    return _uuid_of(parts[0][:13], subject, kind, *parts)


def answer_to(
    upload: UploadRecord, initialisation: UploadInitialisation, *, concat: str = ""
) -> web.Response:
    """201 with the address of the upload; the body is that of a creation in JSON.

    `concat`: the Upload-Concat of a partial or a final upload.
    """
    headers = headers_of(upload, initialisation.upload_url, concat=concat)
    return json_response(initialisation, status=201, headers=headers)


def headers_of(upload: UploadRecord, url: str, *, concat: str = "") -> dict[str, str]:
    """The headers of an answer to a creation by tus. The response to a final upload has no offset."""
    headers = RESUMABLE | {"Location": url}
    if concat:
        headers["Upload-Concat"] = concat
    if not upload.parts:
        headers["Upload-Offset"] = str(upload.offset_bytes)
    if upload.placement:
        headers["Upload-Expires"] = http_date(upload.expires_at_ms)
    return headers


def prefers_record(request: web.Request) -> bool:
    """Whether the client wants the record in place of the usual answer (RFC 7240, section 4.2)."""
    preferences = (field_of(request.headers, "Prefer") or "").lower().split(",")
    return "return=representation" in {each.partition(";")[0].strip(" \t") for each in preferences}


async def options(request: web.Request) -> web.StreamResponse:
    """Version, extensions and checksum algorithms that are spoken. No credential."""
    return web.Response(status=204, headers=capability_headers(_ALLOW, takes_bytes=RECEIVE in request.app))


def options_of(names: str, tag: str, path: str) -> Operation:
    """Return the operation that describes the tus extensions of the collection at `path`."""
    told = {
        "Tus-Resumable": "The version of the protocol: 1.0.0.",
        "Tus-Version": "Versions: 1.0.0.",
        "Tus-Extension": f"`{EXTENSIONS}`; without creation-with-upload on a coordinator.",
        "Tus-Max-Size": "Size limit of a file in bytes.",
        "Tus-Checksum-Algorithm": "Algorithms for Upload-Checksum.",
        "Allow": "The methods of this path.",
    }
    return Operation(
        name=f"tus_options_{names}",
        tag=tag,
        method="OPTIONS",
        path=path,
        handler=options,
        summary="Show the supported tus extensions",
        credential="none",
        answers={204: Answer("The supported extensions.", headers=told)},
        is_json=False,
    )


def _uuid_of(timed: str | None, *named: str) -> str:
    """A UUIDv7 with 74 bits of a hash of what it is named by, and with this time, or as good as none."""
    digest = hashlib.sha256("\0".join(named).encode()).hexdigest()
    variant = "89ab"[int(digest[0], 16) % 4]
    time = timed or f"{digest[19:27]}-{digest[27:31]}"
    return f"{time}-7{digest[1:4]}-{variant}{digest[4:7]}-{digest[7:19]}"


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
    """Convert a text to `kind`. Invalid text is returned unchanged and rejected later, with its field."""
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    if kind is int and text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    return text
