"""The routes of file content, for a node's client port and, for what is passed on, its peer port.

Downloads at `/api/v1/files/{file_uuid}`, uploads at `.../content`, offsets at `.../status`, public links at
`/api/v1/public/files/{bucket_uuid}/{token}`, tickets at `/api/v1/tickets/{ticket}`.
"""

from dataclasses import replace
from typing import Final

from aiohttp import web

from api.routes import mounted
from api.spec.operation import Answer, Operation, Parameter
from ca.errors import (
    ChecksumMismatch,
    Conflict,
    FilestoreError,
    Gone,
    MethodNotAllowed,
    NotAvailable,
    OffsetMismatch,
    PreconditionFailed,
    RangeNotSatisfiable,
    RateLimited,
    UploadLocked,
)
from node.content import concatenation, delta, handlers, tus
from node.content.delta import BASE_FIELD
from node.content.responses import ContentStored, UploadOffset
from node.peer.chunk_lists import LIST_TYPE
from web.headers.tus_fields import EXTENSIONS, PATCH_TYPE

_TAG: Final = "Files"
_FILE: Final = "/api/v1/files/{file_uuid}"
_CONTENT: Final = f"{_FILE}/content"
_PUBLIC: Final = "/api/v1/public/files/{bucket_uuid}/{token}"
_TICKET: Final = "/api/v1/tickets/{ticket}"
_ANY_TYPE: Final = "*/*"  # the type of the file
_VERSION: Final = {"Tus-Resumable": "The version of the protocol: 1.0.0."}

_CACHED: Final = {
    "ETag": "The SHA-256 of the content, in quotes; strong.",
    "Last-Modified": "When its content became available.",
    "Cache-Control": "`private, no-cache`; for public links and tickets `private, no-store`.",
}
_OF_CONTENT: Final = _CACHED | {
    "Accept-Ranges": "`bytes`.",
    "Content-Length": "Number of bytes in this response.",
    "Repr-Digest": "The SHA-256 of the whole content (RFC 9530).",
    "Content-Disposition": "`attachment` with the filename (RFC 6266).",
    "Sunset": "When its retention period ends and it is gone, if it has one (RFC 8594).",
}
_WHOLE: Final = Answer("All of the content.", media_type=_ANY_TYPE, headers=_OF_CONTENT)
_PART: Final = Answer(
    "The ranges that were asked for; several of them as multipart/byteranges.",
    media_type=_ANY_TYPE,
    headers=_OF_CONTENT | {"Content-Range": "For a single range: the positions of the bytes."},
)
_UNCHANGED: Final = Answer(
    "The caller's copy is still good; its name and type may have changed.",
    headers=_CACHED | {"Content-Disposition": "As of 200.", "Content-Type": "As of 200."},
)
_OF_LINK: Final = {
    "Shared-By": "The user who created the link.",
    "Link-Expires": "When the link expires, as an HTTP date.",
}
_ELSEWHERE: Final = Answer(
    "On request: a node that holds the content itself.",
    headers={"Location": "The same path on that node.", "Cache-Control": "`private, no-store`."},
)
_HEADERS_ONLY: Final = {
    200: Answer("What GET would answer, without content.", headers=_OF_CONTENT),
    304: _UNCHANGED,
    307: _ELSEWHERE,
}
_WHOLE_BY_LINK: Final = replace(_WHOLE, headers=_OF_CONTENT | _OF_LINK)
_PART_BY_LINK: Final = replace(_PART, headers={**_PART.headers, **_OF_LINK})
_REDIRECT: Final = (Parameter("redirect", "`1`: redirect me to a node that holds it."),)
_CONDITIONS: Final = (
    Parameter("If-Match", "Only this content: an entity tag, or a list of them."),
    Parameter("If-None-Match", "Only other content than this."),
    Parameter("If-Modified-Since", "Only when it has changed since."),
    Parameter("If-Unmodified-Since", "Only when it has not."),
    Parameter("Prefer", "`redirect`: as `?redirect=1`."),
)
_RANGES: Final = (
    Parameter("Range", "`bytes=0-499,-500`, up to 16 ranges. Other units are ignored."),
    Parameter("If-Range", "The range only of this content, else all of it."),
)
_READING: Final[tuple[type[FilestoreError], ...]] = (Gone, NotAvailable, PreconditionFailed)

_CONTENT_DIGEST: Final = Parameter(
    "Content-Digest", "`sha-256=:BASE64:` of the bytes in this request (RFC 9530)."
)
_CONTENT_MD5: Final = Parameter("Content-MD5", "MD5 in base64 of the bytes in this request (RFC 1864).")
_REPR_DIGEST: Final = Parameter(
    "Repr-Digest", "`sha-256=:BASE64:` of the whole content (RFC 9530), checked when it is complete."
)
_TUS_RESUMABLE: Final = Parameter("Tus-Resumable", "`1.0.0`.", is_required=True)
_TAGS: Final = (
    Parameter("If-Match", "Only where the content is this already: it is not sent again."),
    Parameter("If-None-Match", "`*`: only where there is no content yet."),
)
_OF_PIECE: Final = (
    Parameter("Upload-Length", "Bytes of the whole, once, if not declared yet."),
    Parameter("Upload-Checksum", "`ALGORITHM BASE64` of the bytes in this request: sha256, sha1 or md5."),
    *_TAGS,
    _CONTENT_DIGEST,
    _CONTENT_MD5,
    _REPR_DIGEST,
)
_PROGRESS: Final = _VERSION | {
    "Upload-Offset": "The current offset of the upload.",
    "Upload-Expires": "When the upload expires if no more bytes arrive. Absent when it is complete.",
}
_RECEIVING: Final[tuple[type[FilestoreError], ...]] = (
    Conflict,
    OffsetMismatch,
    Gone,
    UploadLocked,
    ChecksumMismatch,
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="download_file",
        tag=_TAG,
        method="GET",
        path=_FILE,
        handler=handlers.download_file,
        summary="Download content",
        query=_REDIRECT,
        headers=(*_RANGES, *_CONDITIONS),
        answers={200: _WHOLE, 206: _PART, 304: _UNCHANGED, 307: _ELSEWHERE},
        errors=(*_READING, RangeNotSatisfiable),
        is_json=False,
    ),
    Operation(
        name="head_file",
        tag=_TAG,
        method="HEAD",
        path=_FILE,
        handler=handlers.download_file,
        summary="Look at content without downloading it",
        query=_REDIRECT,
        headers=_CONDITIONS,
        answers=_HEADERS_ONLY,
        errors=_READING,
        is_json=False,
    ),
    Operation(
        name="file_chunks",
        tag=_TAG,
        method="GET",
        path=f"{_FILE}/chunks",
        handler=delta.file_chunks,
        summary="List the chunks of content",
        query=(Parameter("sample", "`1`: some of the chunks are enough."),),
        answers={200: Answer("The chunks.", media_type=LIST_TYPE)},
        is_json=False,
    ),
    Operation(
        name="upload_offset",
        tag=_TAG,
        method="GET",
        path=f"{_FILE}/status",
        handler=handlers.upload_status,
        summary="Show where an upload stands",
        answers={200: Answer("Where it stands.", UploadOffset)},
        errors=(Gone, UploadLocked),
    ),
    Operation(
        name="put_content",
        tag=_TAG,
        method="PUT",
        path=_CONTENT,
        handler=handlers.put_content,
        summary="Upload content, complete or in pieces",
        takes="application/octet-stream",
        headers=(
            Parameter("Content-Range", "`bytes A-B/TOTAL`, where TOTAL may be `*`."),
            *_TAGS,
            _CONTENT_DIGEST,
            _REPR_DIGEST,
            _CONTENT_MD5,
            Parameter("Digest", "`sha-256=BASE64` of the whole content (RFC 3230)."),
        ),
        answers={
            200: Answer("The content is complete, the file available.", ContentStored),
            202: Answer("This piece is durable; more must come.", UploadOffset),
        },
        errors=(*_RECEIVING, PreconditionFailed),
        is_body_required=False,
        is_json=False,
        changes=True,
    ),
    Operation(
        name="tus_options",
        tag=_TAG,
        method="OPTIONS",
        path=_CONTENT,
        handler=tus.options,
        summary="Show the supported tus extensions",
        credential="none",
        answers={
            204: Answer(
                "What is spoken.",
                headers=_VERSION
                | {
                    "Tus-Version": "Versions: 1.0.0.",
                    "Tus-Extension": f"`{EXTENSIONS}`.",
                    "Tus-Max-Size": "Size limit of a file in bytes.",
                    "Tus-Checksum-Algorithm": "Algorithms for Upload-Checksum.",
                    "Allow": "The methods of this path.",
                },
            )
        },
        is_json=False,
    ),
    Operation(
        name="tus_head",
        tag=_TAG,
        method="HEAD",
        path=_CONTENT,
        handler=handlers.tus_head,
        summary="Show where an upload stands (tus)",
        headers=(Parameter("Tus-Resumable", "`1.0.0`."),),
        answers={
            200: Answer(
                "Where it stands.",
                headers=_PROGRESS
                | {
                    "Upload-Prefix-Digest": "`sha-256=:BASE64:` of the first `Upload-Offset` bytes of the"
                    " upload: compare it with your file before you resume. Absent at offset 0.",
                    "Upload-Length": "Bytes of the whole, once that is known.",
                    "Upload-Defer-Length": "`1` until then.",
                    "Cache-Control": "`no-store`.",
                },
            )
        },
        errors=(Gone, UploadLocked, PreconditionFailed),
        is_json=False,
    ),
    Operation(
        name="tus_patch",
        tag=_TAG,
        method="PATCH",
        path=_CONTENT,
        handler=handlers.tus_patch,
        summary="Upload the next bytes (tus)",
        takes=PATCH_TYPE,
        headers=(
            _TUS_RESUMABLE,
            Parameter("Upload-Offset", "Where these bytes begin.", is_required=True),
            Parameter(BASE_FIELD, "Of a delta: the file_uuid of the file that it refers to."),
            *_OF_PIECE,
        ),
        answers={204: Answer("The bytes are durable.", headers=_PROGRESS)},
        errors=(*_RECEIVING, PreconditionFailed),
        is_body_required=False,
        is_json=False,
        changes=True,
    ),
    Operation(
        name="tus_delete",
        tag=_TAG,
        method="DELETE",
        path=_CONTENT,
        handler=handlers.tus_delete,
        summary="Delete an upload (tus)",
        headers=(_TUS_RESUMABLE, *_TAGS),
        answers={204: Answer("It is gone.", headers=_VERSION)},
        errors=(Conflict, Gone, UploadLocked, PreconditionFailed),
        is_json=False,
    ),
    Operation(
        name="tus_post",
        tag=_TAG,
        method="POST",
        path=_CONTENT,
        handler=concatenation.tus_post,
        summary="PATCH or DELETE where these do not get through (tus)",
        takes=PATCH_TYPE,
        headers=(
            _TUS_RESUMABLE,
            Parameter("X-HTTP-Method-Override", "`PATCH` or `DELETE`.", is_required=True),
            Parameter("Upload-Offset", "Where these bytes begin; of a PATCH."),
            *_OF_PIECE,
        ),
        answers={204: Answer("As PATCH or DELETE would have answered.", headers=_PROGRESS)},
        errors=(*_RECEIVING, PreconditionFailed, MethodNotAllowed),
        is_body_required=False,
        is_json=False,
        changes=True,
    ),
    Operation(
        name="download_public",
        tag=_TAG,
        method="GET",
        path=_PUBLIC,
        handler=handlers.download_public,
        summary="Download content by a public link",
        query=_REDIRECT,
        headers=(*_RANGES, *_CONDITIONS),
        credential="none",
        answers={200: _WHOLE_BY_LINK, 206: _PART_BY_LINK, 304: _UNCHANGED, 307: _ELSEWHERE},
        errors=(*_READING, RangeNotSatisfiable, RateLimited),
        is_json=False,
    ),
    Operation(
        name="head_public",
        tag=_TAG,
        method="HEAD",
        path=_PUBLIC,
        handler=handlers.download_public,
        summary="Look at content by a public link",
        query=_REDIRECT,
        headers=_CONDITIONS,
        credential="none",
        answers=_HEADERS_ONLY | {200: replace(_HEADERS_ONLY[200], headers=_OF_CONTENT | _OF_LINK)},
        errors=(*_READING, RateLimited),
        is_json=False,
    ),
    Operation(
        name="download_ticket",
        tag=_TAG,
        method="GET",
        path=_TICKET,
        handler=handlers.download_ticket,
        summary="Download content by a ticket",
        query=_REDIRECT,
        headers=(*_RANGES, *_CONDITIONS),
        credential="none",
        answers={200: _WHOLE, 206: _PART, 304: _UNCHANGED, 307: _ELSEWHERE},
        errors=(*_READING, RangeNotSatisfiable, RateLimited),
        is_json=False,
    ),
    Operation(
        name="head_ticket",
        tag=_TAG,
        method="HEAD",
        path=_TICKET,
        handler=handlers.download_ticket,
        summary="Look at content by a ticket",
        query=_REDIRECT,
        headers=_CONDITIONS,
        credential="none",
        answers=_HEADERS_ONLY,
        errors=(*_READING, RateLimited),
        is_json=False,
    ),
)


def content_routes() -> list[web.RouteDef]:
    """Return the routes for the peer port, where they are not described."""
    return mounted(OPERATIONS)
