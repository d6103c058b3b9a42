"""tus 1.0.0 on an upload's address: core and every extension but those of the creation.

The protocol: https://tus.io/protocols/resumable-upload. Uploads are created by the endpoints of their kinds,
by tus as well (`api/tus_creation.py`), with bytes or without (`node/content/creation_with_upload.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import replace

from api.access import audited
from api.bodies.files import UploadInitialisation
from api.tus_creation import answer_to
from ca.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    OffsetMismatch,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from metadata.model.records import PARTIAL, Caller, UploadRecord
from metadata.protocol.commands import TerminateUpload
from node.content.replay import is_repeated
from node.content.short_put import CutOff, again, may_be_short, put_short
from node.content.upload_session import UploadSession
from node.uploads.completion import complete_upload
from node.uploads.services import NodeServices
from runtime.timestamps import rfc3339
from web.headers.conditions import field_of, http_date
from web.headers.digests import Checksum, piece_checksums, repr_digest, whole_digest
from web.headers.ranges import SIZE_BYTES_MAX
from web.headers.tus_fields import (
    PARTIAL_CONCAT,
    PATCH_TYPE,
    PREFIX_DIGEST,
    RESUMABLE,
    final_concat,
    offered,
    require_version,
    size_field,
)

ALLOW = "DELETE, HEAD, OPTIONS, PATCH, POST, PUT"


@dataclass(frozen=True, slots=True)
class PatchFields:
    """What the headers of a PATCH say. `length_bytes` is the size of the whole, if declared here.

    `checksums` are of the bytes in this request, `whole_sha256` ("" if absent) is of the whole content.
    """

    offset: int
    length_bytes: int | None
    checksums: Sequence[Checksum] = ()
    whole_sha256: str = ""


async def options(_request: web.Request) -> web.StreamResponse:
    """Version, extensions and checksum algorithms that are spoken here. No credential."""
    return web.Response(status=204, headers=offered(ALLOW))


def head(record: UploadRecord, offset: int) -> web.StreamResponse:
    """Where the upload stands: `offset` bytes are durable.

    That of a final upload is told when it has ended (tus concatenation): nobody may send it any. The digest
    of these bytes is what the log recorded with the offset, so it costs nothing to send.
    """
    headers = _progress(record, offset)
    if offset and (sha256 := record.blob_sha256 or record.prefix_sha256):
        headers[PREFIX_DIGEST] = repr_digest(sha256)
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
    """Whether all bytes of an upload are durable, of which a client takes that for the end.

    So it does of no partial upload, which ends otherwise, nor of a final one, which it does not send.
    """
    is_whole = bool(record.placement) and record.offset_bytes == record.size_bytes
    return is_whole and record.kind != PARTIAL and not record.parts


async def end(session: UploadSession) -> web.StreamResponse:
    """Complete an upload that lacks nothing else, and tell where it stands then.

    Raises what `complete_upload` does, but for content that has to come again: that is told by its offset.
    """
    if not session.has_ended and session.holder.is_complete:
        with suppress(OffsetMismatch):
            await complete_upload(session.holder)
            return head(ended(session.record), session.record.size_bytes or 0)
    return head(session.record, session.record.offset_bytes)


def require_takes_bytes(_request: web.Request, record: UploadRecord) -> None:
    """Raises Forbidden for a final upload, whose bytes are those of its parts (tus concatenation)."""
    if record.parts:
        raise Forbidden("A final upload takes no bytes: its content is that of its parts.")


async def patch(session: UploadSession) -> web.StreamResponse:
    """Take the next bytes; those that complete the content also make the file available.

    A partial upload that is complete has all bytes durable, and stays as it is.

    Raises what `parse_patch` and `UploadSession` do; OffsetMismatch with the right offset; Conflict for an
    upload that has ended, unless this repeats the PATCH that completed it.
    """
    fields = parse_patch(session.request.headers)
    if session.has_ended:
        declared, completed_from = fields.whole_sha256, session.record.patch_offset
        is_other = isinstance(completed_from, int) and fields.offset != completed_from
        if is_other or not await is_repeated(session, fields.offset, fields.checksums, whole_sha256=declared):
            raise Conflict("This upload has ended: the file is available.")
        return web.Response(status=204, headers=_progress(session.record, session.record.size_bytes or 0))
    record = await take(session, fields)
    return web.Response(status=204, headers=_progress(record, record.offset_bytes))


def needs_file(request: web.Request, services: NodeServices, record: UploadRecord) -> bool:
    """Whether a PATCH wants the upload's file at once: one that brings all of small content does not."""
    return not (services.blobs.packed.takes_new() and _brings_all(request, record))


def _brings_all(request: web.Request, record: UploadRecord) -> bool:
    """Whether the body of a PATCH is all of the content, which is small, and nothing of it came before.

    And there is memory for it.
    """
    headers, length_bytes = request.headers, request.content_length
    if record.kind == PARTIAL or (field_of(headers, "Upload-Offset") or "").strip(" \t") != "0":
        return False
    declared = (field_of(headers, "Upload-Length") or "").strip(" \t")
    is_declared = record.size_bytes is not None or declared == str(length_bytes)
    return is_declared and may_be_short(request, record, length_bytes)


async def take(session: UploadSession, fields: PatchFields) -> UploadRecord:
    """Take the bytes of the request in; the upload then, which has ended if they completed the content.

    Raises as `patch` does.
    """
    length_bytes, batches = session.request.content_length, None
    size_bytes = _size_of(session.record, fields.length_bytes)
    if not session.holder.is_open:
        if _brings_all(session.request, session.record):
            assert length_bytes is not None, "brings all"
            if session.record.size_bytes is None:
                await session.holder.declare(length_bytes)
            try:
                await put_short(
                    session,
                    length_bytes,
                    expected_sha256=fields.whole_sha256,
                    checksums=fields.checksums,
                    patch_offset=fields.offset,
                )
                return ended(session.record)
            except CutOff as cut_off:
                batches = again(cut_off)
        await session.holder.open()
    await session.holder.stand_at(fields.offset)
    _check_room(size_bytes, fields.offset, length_bytes)
    if session.record.size_bytes is None and size_bytes is not None:
        await session.holder.declare(size_bytes)
    if length_bytes is not None:
        await session.holder.reserve(fields.offset + length_bytes)
    await session.receive(checksums=fields.checksums, whole_sha256=fields.whole_sha256, batches=batches)
    offset = session.file.offset
    if session.holder.is_complete and session.record.kind == PARTIAL:
        await session.holder.settle()
    elif session.holder.is_complete:
        await complete_upload(session.holder, fields.whole_sha256, patch_offset=fields.offset)
        return ended(session.record)
    return replace(session.record, offset_bytes=offset)


def concatenated(request: web.Request, services: NodeServices, record: UploadRecord) -> web.Response:
    """The answer to the creation of a final upload that has ended by now: 201, however often it comes."""
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
    """Give the upload up. Raises Conflict when it has ended."""
    answer = await terminate(session.request, session.services, session.caller, session.record)
    await session.holder.discard()
    return answer


async def terminate(
    request: web.Request, services: NodeServices, caller: Caller, record: UploadRecord
) -> web.StreamResponse:
    """The same on a node that does not hold it: its bytes go where they are, by the sweep of these nodes."""
    require_version(request.headers)
    command = TerminateUpload(caller=caller, file_uuid=record.file_uuid)
    async with audited(request, "delete_file", principal=caller.subject, target=record.file_uuid):
        await services.api.metadata.propose(command, type(None))
    return web.Response(status=204, headers=RESUMABLE)


def parse_patch(headers: Mapping[str, str]) -> PatchFields:
    """The headers of a PATCH.

    Raises PreconditionFailed, UnsupportedMediaType, InvalidRequest naming the header.
    """
    require_version(headers)
    if (field_of(headers, "Content-Type") or "").strip().lower() != PATCH_TYPE:
        raise UnsupportedMediaType(f"Content-Type: must be {PATCH_TYPE}.")
    if "Upload-Offset" not in headers:
        raise InvalidRequest("Upload-Offset: is required.")
    offset = size_field(headers, "Upload-Offset")
    length_bytes = size_field(headers, "Upload-Length") if "Upload-Length" in headers else None
    if length_bytes is not None and length_bytes < offset:
        raise InvalidRequest("Upload-Length: is smaller than Upload-Offset.")
    return PatchFields(offset, length_bytes, piece_checksums(headers), whole_digest(headers))


def _size_of(record: UploadRecord, length_bytes: int | None) -> int | None:
    """The size, declared once; a client may repeat it, as it cannot know whether its first PATCH arrived."""
    if length_bytes not in (None, record.size_bytes) and record.size_bytes is not None:
        raise Conflict(f"Upload-Length: this upload was declared with {record.size_bytes} bytes.")
    return length_bytes if record.size_bytes is None else record.size_bytes


def _check_room(size_bytes: int | None, offset: int, length_bytes: int | None) -> None:
    limit_bytes = SIZE_BYTES_MAX if size_bytes is None else size_bytes
    if offset + (length_bytes or 0) > limit_bytes:
        raise PayloadTooLarge(f"The upload was declared with {limit_bytes} bytes.")


def ended(record: UploadRecord) -> UploadRecord:
    """The record of an upload that this request has completed: it was read before, and expires no more."""
    size_bytes = record.size_bytes or 0
    return replace(record, status="available", placement=[], expires_at_ms=0, offset_bytes=size_bytes)


def _progress(record: UploadRecord, offset: int) -> dict[str, str]:
    headers = RESUMABLE | {"Upload-Offset": str(offset)}
    if record.expires_at_ms:
        headers["Upload-Expires"] = http_date(record.expires_at_ms)
    return headers
