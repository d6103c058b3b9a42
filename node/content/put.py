"""Plain PUT of content: the whole body, or one piece of it placed by Content-Range.

A whole PUT replaces earlier bytes: it starts at offset 0, and its length is the size, which it must declare
(or be chunked). A piece starts at the offset of the upload. An empty piece `Content-Range: bytes */TOTAL` at
the end of the content repeats a failed completion.
"""

import re
from collections.abc import Mapping

from aiohttp import web

from ca.errors import Conflict, InvalidRequest, UnsupportedMediaType
from metadata.model.records import PARTIAL, UploadRecord
from node.content.incoming import IncomingBytes, require_takes_bytes
from node.content.receiving import write_incoming
from node.content.responses import ContentStored, UploadOffset
from node.content.upload_session import UploadSession
from web.app import json_response
from web.headers.conditions import field_of
from web.headers.digests import agreed_sha256, md5_checksums, piece_checksums, piece_digest, whole_digest
from web.headers.ranges import ContentRange, parse_content_range
from web.request_body import body_length

_MULTIPART = "multipart/"
_URLENCODED = "application/x-www-form-urlencoded"
_NOTHING_OF = re.compile(r"bytes \*/([0-9]{1,16})", re.ASCII | re.IGNORECASE)


async def put(session: UploadSession) -> web.StreamResponse:
    """Return 200 with the stored content if this request completed it, 202 with the offset otherwise."""
    request = session.request
    record = await write_incoming(session, parse_put(request.headers, body_length(request), session.record))
    if record.placement:
        return json_response(UploadOffset(offset=record.offset_bytes), status=202)
    assert record.size_bytes is not None, "content that is available has a size"
    stored = ContentStored(
        file_uuid=record.file_uuid,
        status=record.status,
        blob_sha256=record.blob_sha256,
        size_bytes=record.size_bytes,
    )
    return json_response(stored)


def parse_put(headers: Mapping[str, str], length_bytes: int | None, record: UploadRecord) -> IncomingBytes:
    """Return what the headers of a PUT say of its body, which has this length.

    Raises InvalidRequest naming the header, ChecksumMismatch for digests that contradict each other.
    """
    header = field_of(headers, "Content-Range")
    if header is None:
        return IncomingBytes(
            start=0,
            length_bytes=length_bytes,
            is_whole=True,
            checksums=md5_checksums(headers),
            whole_sha256=agreed_sha256(whole_digest(headers), piece_digest(headers), record.expected_sha256),
        )
    nothing_of = _NOTHING_OF.fullmatch(header.strip(" \t"))
    piece = ContentRange(0, 0, int(nothing_of[1])) if nothing_of else parse_content_range(header)
    piece_bytes = piece.stop - piece.start
    if length_bytes != piece_bytes and (length_bytes is not None or nothing_of):
        raise InvalidRequest(f"Content-Range: requires a body of {piece_bytes} bytes.")
    is_declared = record.size_bytes is not None and (record.placement or nothing_of)
    if is_declared and piece.total not in (None, record.size_bytes):
        raise InvalidRequest(f"Content-Range: the upload was declared with {record.size_bytes} bytes.")
    return IncomingBytes(
        start=None if nothing_of else piece.start,
        length_bytes=piece_bytes,
        size_bytes=piece.total,
        checksums=piece_checksums(headers),
        whole_sha256=whole_digest(headers),
    )


def require_content(request: web.Request, record: UploadRecord) -> None:
    """Reject for good a body that cannot be the content, or an upload that accepts no PUT.

    Such a body is a form around the content, which would be stored with it, or a whole PUT without a length
    if none was declared before. This looks at the request as the client sent it: passing on adds a length.
    Raises Conflict for a partial upload, Forbidden for a final one; InvalidRequest, UnsupportedMediaType.
    """
    if record.kind == PARTIAL:
        raise Conflict("A partial upload accepts bytes only by PATCH (tus).")
    require_takes_bytes(request, record)
    _require_no_form(field_of(request.headers, "Content-Type") or "")
    names = ("Content-Length", "Transfer-Encoding", "Content-Range")
    told = record.size_bytes is not None or any(name in request.headers for name in names)
    if record.placement and not told:
        raise InvalidRequest("Content-Length: is required, or a chunked body.")


def _require_no_form(header: str) -> None:
    """Raise UnsupportedMediaType for the type of a form, whose framing would be stored with the file.

    Many programs call any body a form by default, and `curl -d` drops line ends.
    """
    content_type = header.split(";")[0].strip(" \t").lower()
    if content_type == _URLENCODED:
        raise UnsupportedMediaType(
            f"Content-Type: {content_type} says that the body is a form. If it is the file alone, say so with"
            " Content-Type: application/octet-stream: curl --data-binary, wget, Python's urllib and"
            " PowerShell call it a form unless you do. curl -T FILE URL needs no header."
        )
    if content_type.startswith(_MULTIPART):
        raise UnsupportedMediaType(
            f"Content-Type: {content_type} is a form around the file, which would be stored with it. Send the"
            " file alone: curl -T FILE URL (not -F)."
        )
