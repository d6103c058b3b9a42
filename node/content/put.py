"""Plain PUT of content: the whole body, or one piece of it placed by Content-Range.

A whole PUT is the content: it starts at offset 0 whatever came before, and its length is the size, which it
must tell (or be chunked). A piece starts where the upload stands. An empty piece `Content-Range: bytes
*/TOTAL` at the end of the content asks again for the completion that failed before.
"""

import re
from collections.abc import Sequence

from aiohttp import web

from ca.errors import Conflict, InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from metadata.model.records import PARTIAL, ContentRecord, FileRecord, UploadRecord
from node.content.replay import is_repeated
from node.content.responses import ContentStored, UploadOffset
from node.content.short_put import CutOff, again, may_be_short, put_short
from node.content.tus import require_takes_bytes
from node.content.upload_session import UploadSession
from node.uploads.completion import complete_upload
from node.uploads.services import NodeServices
from web.app import json_response
from web.headers.conditions import field_of
from web.headers.digests import (
    Checksum,
    agreed_sha256,
    md5_checksums,
    piece_checksums,
    piece_digest,
    whole_digest,
)
from web.headers.ranges import SIZE_BYTES_MAX, ContentRange, parse_content_range

_MULTIPART = "multipart/"
_URLENCODED = "application/x-www-form-urlencoded"
_NOTHING_OF = re.compile(r"bytes \*/([0-9]{1,16})", re.ASCII | re.IGNORECASE)


async def put(session: UploadSession) -> web.StreamResponse:
    """200 with the stored content when this request completed it, 202 with the offset when more must come."""
    header = field_of(session.request.headers, "Content-Range")
    if header is None:
        return await _put_whole(session)
    if match := _NOTHING_OF.fullmatch(header.strip(" \t")):
        return await _put_nothing(session, int(match[1]))
    return await _put_piece(session, parse_content_range(header))


def require_content(request: web.Request, record: UploadRecord) -> None:
    """Refuse what is not the content, as `require_content_itself`, and what goes to no file of its own.

    Raises Conflict for a partial upload, Forbidden for a final one.
    """
    if record.kind == PARTIAL:
        raise Conflict("A partial upload takes its bytes by PATCH (tus).")
    require_takes_bytes(request, record)
    require_content_itself(request, record)


def require_content_itself(request: web.Request, record: UploadRecord) -> None:
    """Refuse a body that is not the content, or none, for good.

    Such a body is a form around the content, which would be stored with it, or a whole PUT that says nothing
    of its length where nobody declared one.

    Asked of the request as the client sent it: passing on adds a length. Raises InvalidRequest,
    UnsupportedMediaType.
    """
    content_type = (field_of(request.headers, "Content-Type") or "").split(";")[0].strip(" \t").lower()
    if content_type == _URLENCODED or content_type.startswith(_MULTIPART):
        raise UnsupportedMediaType(
            f"Content-Type: {content_type} is a form around the file, which would be stored with it. Send the"
            " file alone: curl -T FILE URL (not -F, nor -d)."
        )
    names = ("Content-Length", "Transfer-Encoding", "Content-Range")
    told = record.size_bytes is not None or any(name in request.headers for name in names)
    if record.placement and not told:
        raise InvalidRequest("Content-Length: is required, or a chunked body.")


def body_length(request: web.Request) -> int | None:
    """How long the body will be, in bytes; None for chunked ones."""
    if "Transfer-Encoding" in request.headers:
        return None
    return request.content_length or 0


def needs_file(request: web.Request, services: NodeServices, record: UploadRecord) -> bool:
    """Whether the upload's file is wanted at once, and not only where a short request is broken off."""
    if field_of(request.headers, "Content-Range") is not None or not services.blobs.packed.takes_new():
        return True
    return not may_be_short(request, record, body_length(request))


async def take_whole(
    session: UploadSession, *, expected: str, checksums: Sequence[Checksum], length_bytes: int | None
) -> ContentRecord:
    """Take a body that is all of the content, in place of what came before, and make the file available.

    `expected`: the sha256 of the content, "" when nobody said. `checksums`: what the bytes must hash to
    besides. `length_bytes`: how long the body will be, None when that is not known.

    Raises what `UploadSession.receive_whole` and `complete_upload` do, PayloadTooLarge.
    """
    _check_whole_length(session.record, length_bytes)
    batches = None
    is_short = not session.holder.is_open and may_be_short(session.request, session.record, length_bytes)
    if is_short and length_bytes is not None:
        try:
            return await put_short(session, length_bytes, expected_sha256=expected, checksums=checksums)
        except CutOff as cut_off:
            batches = again(cut_off)
    if not session.holder.is_open:
        await session.holder.open()
    declared_bytes = session.record.size_bytes
    if length_bytes:
        await session.holder.reserve(length_bytes)
        await session.require_room(length_bytes)

    def check(received_bytes: int) -> None:
        if declared_bytes not in (None, received_bytes):
            raise InvalidRequest(f"The body has {received_bytes} bytes; {declared_bytes} were declared.")

    await session.receive_whole(whole_sha256=expected, check=check, checksums=checksums, batches=batches)
    if declared_bytes is None:
        await session.holder.declare_received()
    return await complete_upload(session.holder, expected)


async def _put_whole(session: UploadSession) -> web.StreamResponse:
    headers = session.request.headers
    # All of the content is in the request: a digest of what that brings is one of the whole.
    expected = agreed_sha256(whole_digest(headers), piece_digest(headers), session.record.expected_sha256)
    if session.has_ended:
        return await _replay(session, 0, expected)
    content = await take_whole(
        session,
        expected=expected,
        checksums=md5_checksums(headers),
        length_bytes=body_length(session.request),
    )
    return json_response(_stored(content.file))


async def _put_piece(session: UploadSession, piece: ContentRange) -> web.StreamResponse:
    length_bytes = body_length(session.request)
    if length_bytes not in (None, piece.stop - piece.start):
        raise InvalidRequest(f"Content-Range: the body has {length_bytes} bytes.")
    expected = whole_digest(session.request.headers)
    if session.has_ended:
        if piece.stop != session.record.size_bytes or piece.total not in (None, piece.stop):
            raise Conflict("This upload has ended: the file is available.")
        return await _replay(session, piece.start, expected)
    await session.holder.stand_at(piece.start)
    if piece.total is not None:
        await _declare_total(session, piece.total)
    await session.holder.reserve(piece.stop)
    if session.record.size_bytes is not None and piece.stop > session.record.size_bytes:
        raise PayloadTooLarge(f"The upload was declared with {session.record.size_bytes} bytes.")

    def check(received_bytes: int) -> None:
        if received_bytes != piece.stop - piece.start:
            raise InvalidRequest(f"Content-Range: the body has {received_bytes} bytes.")

    checksums = piece_checksums(session.request.headers)
    await session.receive(checksums=checksums, whole_sha256=expected, check=check)
    if not session.holder.is_complete:
        return json_response(UploadOffset(offset=session.file.offset), status=202)
    return await _complete(session, expected)


async def _put_nothing(session: UploadSession, total: int) -> web.StreamResponse:
    """No bytes: only ask for completion, or where the upload stands."""
    if body_length(session.request) != 0:
        raise InvalidRequest("Content-Range: `bytes */TOTAL` goes with an empty body.")
    if session.has_ended:
        if session.record.size_bytes != total:
            raise InvalidRequest(f"Content-Range: the content has {session.record.size_bytes} bytes.")
        return await _replay(session, total, whole_digest(session.request.headers))
    if session.file.offset <= total:
        await _declare_total(session, total)
    if not session.holder.is_complete:
        return json_response(UploadOffset(offset=session.record.offset_bytes), status=202)
    return await _complete(session, whole_digest(session.request.headers))


async def _complete(session: UploadSession, expected: str) -> web.StreamResponse:
    return json_response(_stored((await complete_upload(session.holder, expected)).file))


async def _replay(session: UploadSession, start: int, expected: str) -> web.StreamResponse:
    """The last step of an upload once more, from `start` to the end: answers as the first time did.

    Raises Conflict for other content, ChecksumMismatch for a digest that is not that of the content.
    """
    checksums = piece_checksums(session.request.headers)
    if not await is_repeated(session, start, checksums, whole_sha256=expected):
        raise Conflict("This upload has ended: the file is available with other content.")
    return json_response(_stored(session.record))


def _stored(record: UploadRecord | FileRecord) -> ContentStored:
    assert record.size_bytes is not None
    return ContentStored(
        file_uuid=record.file_uuid,
        status=record.status,
        blob_sha256=record.blob_sha256,
        size_bytes=record.size_bytes,
    )


def _check_whole_length(record: UploadRecord, length_bytes: int | None) -> None:
    """Refuse before reading what cannot be the content."""
    if length_bytes is not None and length_bytes > SIZE_BYTES_MAX:
        raise PayloadTooLarge(f"Content-Length: must be at most {SIZE_BYTES_MAX}.")
    if record.size_bytes is None or length_bytes in (None, record.size_bytes):
        return
    if length_bytes is not None and length_bytes > record.size_bytes:
        raise PayloadTooLarge(f"Content-Length: the upload was declared with {record.size_bytes} bytes.")
    raise InvalidRequest(f"Content-Length: the upload was declared with {record.size_bytes} bytes.")


async def _declare_total(session: UploadSession, total: int) -> None:
    if session.record.size_bytes is None:
        await session.holder.declare(total)
    elif session.record.size_bytes != total:
        raise InvalidRequest(
            f"Content-Range: the upload was declared with {session.record.size_bytes} bytes."
        )
