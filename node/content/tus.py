"""tus 1.0.0 on an upload's address: core and every extension except those of the creation.

The protocol: https://tus.io/protocols/resumable-upload. The endpoints of their kinds create uploads, also by
tus (`api/tus_creation.py`), with bytes or without (`node/content/creation_with_upload.py`).
"""

from collections.abc import Mapping
from contextlib import suppress

from aiohttp import web

from api.access import audited
from api.bodies.files import UploadInitialisation
from api.tus_creation import answer_to
from ca.errors import InvalidRequest, OffsetMismatch, UnsupportedMediaType
from metadata.model.records import PARTIAL, Caller, ContentRecord, UploadRecord
from metadata.protocol.commands import TerminateUpload
from node.cold.delta import DELTA_TYPE
from node.content.delta import base_field, find_base
from node.content.incoming import COMPLETION, IncomingBytes
from node.content.receiving import write_incoming
from node.content.upload_session import UploadRequest, UploadSession
from node.uploads.services import NodeServices
from runtime.timestamps import rfc3339
from web.headers.conditions import field_of, http_date
from web.headers.digests import piece_checksums, repr_digest, whole_digest
from web.headers.tus_fields import (
    PARTIAL_CONCAT,
    PATCH_TYPE,
    PREFIX_DIGEST,
    RESUMABLE,
    capability_headers,
    final_concat,
    require_version,
    size_field,
)
from web.request_body import body_length

ALLOW = "DELETE, HEAD, OPTIONS, PATCH, POST, PUT"


async def options(_request: web.Request) -> web.StreamResponse:
    """Return version, extensions and checksum algorithms. Needs no credential."""
    return web.Response(status=204, headers=capability_headers(ALLOW))


def head(record: UploadRecord, offset: int) -> web.StreamResponse:
    """Respond with the offset of the upload: `offset` bytes are durable.

    A final upload has an offset only when it has ended (tus concatenation), as no client sends its bytes. The
    digest of these bytes is recorded in the log with the offset, so it costs nothing to send.
    """
    headers = _progress(record, offset)
    if offset:
        headers[PREFIX_DIGEST] = repr_digest(record.blob_sha256 or record.prefix_sha256)
    if record.kind == PARTIAL:
        headers["Upload-Concat"] = PARTIAL_CONCAT
    elif record.parts:
        headers["Upload-Concat"] = final_concat(record.parts)
        if record.placement:
            del headers["Upload-Offset"]
            headers.pop(PREFIX_DIGEST, None)
    if record.size_bytes is None:
        headers["Upload-Defer-Length"] = "1"
    else:
        headers["Upload-Length"] = str(record.size_bytes)
    return web.Response(status=200, headers=headers | {"Cache-Control": "no-store"})


def lacks_completion_only(record: UploadRecord) -> bool:
    """Return whether all bytes of an upload are durable, so that its client considers it finished.

    Not for a partial upload, which ends otherwise, nor for a final one, whose bytes no client sends.
    """
    is_whole = bool(record.placement) and record.offset_bytes == record.size_bytes
    return is_whole and record.kind != PARTIAL and not record.parts


async def end(session: UploadSession) -> web.StreamResponse:
    """Complete an upload that lacks only its completion, and return its offset then.

    Raises what `write_incoming` raises, except if content has to be sent again: the offset reports that.
    """
    with suppress(OffsetMismatch):
        record = await write_incoming(session, COMPLETION)
        return head(record, record.offset_bytes)
    return head(session.record, session.record.offset_bytes)


async def patch(session: UploadSession) -> web.StreamResponse:
    """Write the next bytes; those that complete the content also make the file available.

    The body is the bytes themselves, or a delta. Raises what `parse_patch`, `find_base` and `write_incoming`
    raise.
    """
    request = session.request
    if _content_type(request.headers) == DELTA_TYPE:
        base = await find_base(session.services, session.caller, base_field(request))
        incoming = parse_patch(request.headers, base=base)
    else:
        incoming = parse_patch(request.headers, body_length(request))
    record = await write_incoming(session, incoming)
    return web.Response(status=204, headers=_progress(record, record.offset_bytes))


def final_response(request: web.Request, services: NodeServices, record: UploadRecord) -> web.Response:
    """Return the response to the creation of a final upload that has ended: 201, also when repeated."""
    assert record.parts, "a final upload"
    url = f"{services.api.holder_url(request, services.node_id)}{address(record.file_uuid)}"
    body = UploadInitialisation(
        file_uuid=record.file_uuid, upload_url=url, expires_at=rfc3339(0), status="available"
    )
    return answer_to(record, body, concat=final_concat(record.parts))


def address(file_uuid: str) -> str:
    """The path of an upload."""
    return f"/api/v1/files/{file_uuid}/content"


async def delete(session: UploadSession) -> web.StreamResponse:
    """Delete the upload. Raises Conflict if it has ended."""
    answer = await _terminate(session.request, session.services, session.caller, session.record)
    await session.holder.discard()
    return answer


async def terminate(asked: UploadRequest) -> web.StreamResponse:
    """Do the same on a node that does not hold it: the sweep of other nodes deletes its bytes."""
    return await _terminate(asked.request, asked.services, asked.caller, asked.record)


async def _terminate(
    request: web.Request, services: NodeServices, caller: Caller, record: UploadRecord
) -> web.StreamResponse:
    require_version(request.headers)
    command = TerminateUpload(caller=caller, file_uuid=record.file_uuid)
    async with audited(request, "delete_file", principal=caller.subject, target=record.file_uuid):
        await services.api.metadata.propose(command, type(None))
    return web.Response(status=204, headers=RESUMABLE)


def parse_patch(
    headers: Mapping[str, str], length_bytes: int | None = None, *, base: ContentRecord | None = None
) -> IncomingBytes:
    """Return what the headers of a PATCH say of its body, which has this length.

    `base`: if the body is a delta, whose length says nothing of the content. Raises PreconditionFailed,
    UnsupportedMediaType, InvalidRequest naming the header.
    """
    require_version(headers)
    if base is None and _content_type(headers) != PATCH_TYPE:
        raise UnsupportedMediaType(f"Content-Type: must be {PATCH_TYPE}.")
    if "Upload-Offset" not in headers:
        raise InvalidRequest("Upload-Offset: is required.")
    offset = size_field(headers, "Upload-Offset")
    size_bytes = size_field(headers, "Upload-Length") if "Upload-Length" in headers else None
    if size_bytes is not None and size_bytes < offset:
        raise InvalidRequest("Upload-Length: is smaller than Upload-Offset.")
    checksums = piece_checksums(headers)
    if base is not None and checksums:
        raise InvalidRequest(f"{checksums[0].field}: cannot be of a delta. Send Repr-Digest.")
    return IncomingBytes(
        start=offset,
        length_bytes=length_bytes,
        size_bytes=size_bytes,
        checksums=checksums,
        whole_sha256=whole_digest(headers),
        patch_offset=offset,
        base=base,
    )


def _content_type(headers: Mapping[str, str]) -> str:
    return (field_of(headers, "Content-Type") or "").strip().lower()


def _progress(record: UploadRecord, offset: int) -> dict[str, str]:
    headers = RESUMABLE | {"Upload-Offset": str(offset)}
    if record.expires_at_ms:
        headers["Upload-Expires"] = http_date(record.expires_at_ms)
    return headers
