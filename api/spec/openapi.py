"""The OpenAPI 3.1 document of the operations that a process serves. No I/O here.

Routes and document are made from the same operations, so neither can have what the other lacks. Every error
of `ca.errors.CATALOGUE` is a component; each operation names those that it may answer with.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import hdrs
from msgspec import Meta, Struct

from api.bodies.cluster import TokenId
from api.bodies.fields import BucketId, FileUuid, MemberId, Text, UserId, Uuid
from api.bodies.groups import GroupName
from api.bodies.sign_in import ProviderNameText
from api.bodies.snapshots import SnapshotId
from api.bodies.users import SessionId
from api.spec.operation import Answer, Operation, Parameter
from api.spec.schemas import Schema, Schemas
from ca.errors import (
    CATALOGUE,
    FilestoreError,
    MethodNotAllowed,
    OffsetMismatch,
    RangeNotSatisfiable,
    RateLimited,
    Unauthorized,
    Unavailable,
)

VERSION: Final = "1.0"  # of the interface, not of the product
TAGS: Final[Mapping[str, str]] = {
    "Project files": "Exported network-emulation projects, with the options of their export.",
    "VM images": "Disk images of virtual machines, with their hardware.",
    "Backups": "Backup archives: full ones, and incremental ones that are based on another.",
    "Files": "The content of files of every kind: uploads, plain and resumable (tus 1.0.0), and downloads.",
    "Buckets": "Where files are stored. The owner of a bucket has admin permission on its files.",
    "Permissions": "Read, write or admin on a bucket or a file, for a user, a group or a role.",
    "Public tokens": "Links to one file that need no credential.",
    "Users": "Users who may call the API: their tokens, roles and groups, and how to revoke them.",
    "Groups": "Groups of users, which permissions name: their members, and what they were granted.",
    "Sign-in": "Identity providers (OpenID Connect), and how people sign in with them.",
    "Audit": "Who did what through this member.",
    "Trash": "Deleted files that can be restored, and files that are protected from deletion.",
    "Snapshots": "Copies of the metadata that are kept, and files that come back from them.",
    "Jobs": "Background jobs and their results.",
    "Cluster": "Nodes, coordinators, and how they join.",
    "Health": "For monitoring and load balancers.",
    "Documentation": "This document.",
}
PATH_PARAMETERS: Final[Mapping[str, Any]] = {
    "file_uuid": FileUuid,
    "bucket_id": BucketId,
    "bucket_uuid": BucketId,
    "user_id": UserId,
    "group": GroupName,
    "provider": ProviderNameText,
    "session_id": SessionId,
    "perm_id": Annotated[Uuid, Meta(description="The permission entry.")],
    "run_id": Annotated[Uuid, Meta(description="The run of a job.")],
    "job_name": Annotated[Text, Meta(description="The job.", examples=["expire"])],
    "token_id": TokenId,
    "token": Annotated[Text, Meta(description="The public token.", examples=["(43 characters)"])],
    "ticket": Annotated[Text, Meta(description="The ticket.", examples=["(some 500 characters)"])],
    "nodes/id": Annotated[MemberId, Meta(description="The node.")],
    "coordinators/id": Annotated[MemberId, Meta(description="The coordinator.", examples=["c1"])],
    "public-tokens/id": Annotated[Uuid, Meta(description="The public token's id. It is not secret.")],
    "snapshot_id": SnapshotId,
    "file": Annotated[
        Literal["viewer.js", "viewer.css", "start.js"],
        Meta(description="A file name of this page.", examples=["viewer.js"]),
    ],
}
ERROR_HEADERS: Final[Mapping[type[FilestoreError], Mapping[str, str]]] = {
    Unauthorized: {"WWW-Authenticate": "Always `Bearer` (RFC 9110, section 11.6.1)."},
    MethodNotAllowed: {"Allow": "The methods that the path supports."},
    RateLimited: {"Retry-After": "Seconds to wait."},
    Unavailable: {"Retry-After": "Seconds to wait."},
    OffsetMismatch: {"Upload-Offset": "The offset to continue at."},
    RangeNotSatisfiable: {"Content-Range": "`bytes */SIZE`."},
}
_SCHEMES: Final = {"user": "user_token", "join token": "join_token"}
_JSON: Final = "application/json"
_BYTES: Final = {"type": "string", "format": "binary"}  # not of OpenAPI 3.1, but what viewers understand
_IN_PATH: Final = re.compile(r"(?:([^/]+)/)?\{(\w+)(?::[^{}]*)?\}")
_DESCRIPTION: Final = (
    "A store for the big files of network-emulation labs: exported projects, disk "
    "images, backups.\n\n- Requests and responses are JSON, except for content and "
    "metrics. Identifiers are UUIDs in lower case. A malformed one in a path\n  is a "
    "404, in a body a 400.\n- Times are RFC 3339, UTC, with milliseconds; requests "
    "may use any zone.\n- Requests may omit an optional field, or send `null` or "
    '`""`. Unknown fields and wrong types are a 400\n  that names the field. In '
    'responses, text without a value is `""`.\n- Lists are ordered by creation, '
    "oldest first, except that audit entries are newest first. While more\n  remain, "
    "the response has `next_cursor` and a `Link` header. A page may have fewer "
    "elements than the limit, or\n  none, and still have a next page.\n- Every error "
    "is `{code, error, details}`; `code` never changes.\n- Every response has an "
    "`X-Request-Id`: the one of the request, if it was 1 to 128 of `A-Z a-z 0-9 . _ "
    "-`.\n- Unsupported methods are a 405, and unknown paths are a 404.\n"
)


class Error(Struct, frozen=True, kw_only=True):
    """The error response."""

    code: Annotated[
        str,
        Meta(
            description="What went wrong, for programs. The codes never change.",
            examples=["not_found"],
            extra_json_schema={"enum": sorted(kind.code for kind in CATALOGUE)},
        ),
    ]
    error: Annotated[str, Meta(description="A short title.", examples=["Not Found"])]
    details: Annotated[str, Meta(description="An explanation for people.", examples=["No such file."])]


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these operations, in their order."""
    listed = list(operations)
    schemas = Schemas(_types_of(listed))
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:
        path = _IN_PATH.sub(
            lambda found: f"{found[1] + '/' if found[1] else ''}{{{found[2]}}}", operation.path
        )
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Filestore",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": name, "description": text}
            for name, text in TAGS.items()
            if any(operation.tag == name for operation in listed)
        ],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {kind.code: _response_of([kind]) for kind in CATALOGUE},
            "headers": {
                "X-Request-Id": {
                    "description": "The id of this request in the logs.",
                    "required": True,
                    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
                }
            },
            "securitySchemes": {
                "user_token": _credential("A user token: `Bearer TOKEN`."),
                "join_token": _credential("A join token: `Bearer TOKEN`."),
            },
        },
    }


def _credential(description: str) -> Schema:
    return {"type": "apiKey", "in": "header", "name": "Authorization", "description": description}


def _types_of(operations: list[Operation]) -> Iterable[Any]:
    yield Error
    for operation in operations:
        if operation.body is not None:
            yield operation.body
        for answer in operation.answers.values():
            yield from (body for body in (answer.body, answer.body_else) if body is not None)


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    text = operation.description or inspect.getdoc(operation.handler) or operation.summary
    parameters = [
        *_path_parameters(operation.path, schemas),
        *(_parameter(each, "query", schemas) for each in operation.query),
        *(_parameter(each, "header", schemas) for each in operation.headers),
    ]
    made: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": text,
        "security": [{_SCHEMES[operation.credential]: []}] if operation.credential in _SCHEMES else [],
        "parameters": parameters,
        "responses": _responses(operation, schemas),
    }
    if body := _request_body(operation, schemas):
        made["requestBody"] = body
    return {name: value for name, value in made.items() if value != [] or name == "security"}


def _path_parameters(path: str, schemas: Schemas) -> Iterable[Schema]:
    for before, name in _IN_PATH.findall(path):
        kind = PATH_PARAMETERS.get(f"{before}/{name}") or PATH_PARAMETERS[name]
        schema = schemas.of(kind)
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": schema.pop("description"),
            "schema": schema,
        }


def _parameter(parameter: Parameter, place: str, schemas: Schemas) -> Schema:
    schema = schemas.of(parameter.type)
    schema.pop("description", None)
    if place == "query" and not parameter.is_required and schema != {"type": "string"}:
        schema = {"anyOf": [schema, {"const": ""}]}  # which counts as left out
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": schema,
    }


def _request_body(operation: Operation, schemas: Schemas) -> Schema:
    is_required, content = operation.is_body_required, dict[str, Schema]()
    if operation.body is not None:
        content[_JSON] = {"schema": schemas.of(operation.body), "example": schemas.example(operation.body)}
        # No body at all stands for `{}`.
        is_required = any(field.required for field in msgspec.structs.fields(operation.body))
    if operation.takes:
        content[operation.takes] = {"schema": dict(_BYTES)}
    return {"required": is_required, "content": content} if content else {}


def _responses(operation: Operation, schemas: Schemas) -> Schema:
    """The successes, then the errors by status; the codes of one status are described together."""
    responses = {
        str(status): _response(answer, schemas) for status, answer in sorted(operation.answers.items())
    }
    by_status: dict[int, list[type[FilestoreError]]] = {}
    for kind in sorted(operation.all_errors, key=lambda kind: (kind.status, kind.code)):
        by_status.setdefault(kind.status, []).append(kind)
    for status, kinds in by_status.items():
        if operation.method == hdrs.METH_HEAD:
            responses[str(status)] = _response_of(kinds, has_body=False)
        elif len(kinds) == 1:
            responses[str(status)] = {"$ref": f"#/components/responses/{kinds[0].code}"}
        else:
            responses[str(status)] = _response_of(kinds)
    return responses


def _response(answer: Answer, schemas: Schemas) -> Schema:
    made: Schema = {"description": answer.description, "headers": _headers(answer.headers)}
    if answer.body is not None:
        schema = schemas.of(answer.body)
        if answer.body_else is not None:
            schema = {"anyOf": [schema, schemas.of(answer.body_else)]}
        made["content"] = {_JSON: {"schema": schema, "example": schemas.example(answer.body)}}
    elif answer.media_type:
        media_types = [name for name in (answer.media_type, answer.media_type_else) if name]
        made["content"] = {name: {"schema": {} if name == _JSON else dict(_BYTES)} for name in media_types}
    return made


def _response_of(kinds: list[type[FilestoreError]], *, has_body: bool = True) -> Schema:
    """An error status, which one of `kinds` explains. `has_body`: whether the answer has a body for it."""
    made: Schema = {
        "description": " ".join(" ".join((kind.__doc__ or "").split()) for kind in kinds),
        "headers": _headers(
            {name: text for kind in kinds for name, text in ERROR_HEADERS.get(kind, {}).items()}
        ),
    }
    if has_body:
        codes = {"properties": {"code": {"enum": [kind.code for kind in kinds]}}}
        made["content"] = {
            _JSON: {
                "schema": {"allOf": [{"$ref": "#/components/schemas/Error"}, codes]},
                "examples": {kind.code: {"value": _example_of(kind)} for kind in kinds},
            }
        }
    return made


def _example_of(kind: type[FilestoreError]) -> dict[str, str]:
    meaning = " ".join((kind.__doc__ or "").split())
    return {"code": kind.code, "error": kind.title, "details": meaning}


def _headers(described: Mapping[str, str]) -> Schema:
    return {
        "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"},
        **{name: {"description": text, "schema": {"type": "string"}} for name, text in described.items()},
    }
