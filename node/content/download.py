"""GET and HEAD of content: conditions, ranges, and the bytes (RFC 9110, sections 13 to 15).

A response never ends early in silence: if no replica can continue, the connection breaks.

Tested by tests/unit/node/content/test_local_downloads.py.
"""

import functools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from api.pages import query_flag
from metadata.model.records import ContentRecord
from node.content.delivery import send_span
from node.sending.body_writer import BodyWriter
from node.uploads.services import NodeServices
from web.headers.conditions import (
    Outcome,
    content_disposition,
    evaluate,
    field_of,
    http_date,
    if_range_matches,
)
from web.headers.digests import repr_digest
from web.headers.ranges import ByteRange, multipart_parts, parse_range
from web.internals.aiohttp_server import BodyResponse
from web.script_sources import require_no_code

CONTENTS_DESCRIBED_MAX = 4096  # about 4 MB
_CONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")


@dataclass(frozen=True, slots=True)
class BodyPart:
    """Part of a response's body: `opening` as it is, then these bytes of the content."""

    opening: bytes
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The response to send: status, headers in addition to the common ones, and the body in order."""

    status: int
    headers: dict[str, str]
    parts: Sequence[BodyPart]
    closing: bytes = b""

    @property
    def length_bytes(self) -> int:
        """Return the length of the whole body."""
        return len(self.closing) + sum(len(s.opening) + s.stop - s.start for s in self.parts)


async def serve_content(
    request: web.Request, services: NodeServices, content: ContentRecord, *, policy: Mapping[str, str]
) -> web.StreamResponse:
    """Return the content, some of it, 304, or a redirect to a node that holds it, for an authorized caller.

    `policy`: further headers of every response. Raises FilestoreError.
    """
    require_no_code(request.headers)
    if _wants_redirect(request, services) and (holder := _other_holder(services, content)):
        location = services.api.node_url(holder) + request.rel_url.raw_path
        moved = {"Location": location, "Cache-Control": "private, no-store"}
        return web.Response(status=307, headers=dict(policy) | moved)
    file = content.file
    headers = {**describe(file.blob_sha256, file.filename, content.available_at_ms), **policy}
    if file.due_at_ms:
        headers["Sunset"] = http_date(file.due_at_ms)  # RFC 8594: from then on it is gone
    if _is_not_modified(request, headers["ETag"], content.available_at_ms):
        return web.Response(status=304, headers=_not_modified(headers, file.content_type, policy))
    plan = plan_answer(request, content, headers["ETag"])
    response = BodyResponse(status=plan.status, headers=headers | plan.headers)
    response.content_length = plan.length_bytes
    if request.method == "HEAD":
        await response.prepare(request)
        return response
    with BodyWriter.for_response(request, response) as out:
        for part in plan.parts:
            if part.opening:
                await out.write(part.opening)
            if part.start < part.stop:
                await send_span(out, services, content, part.start, part.stop)
        if plan.closing:
            await out.write(plan.closing)
        await out.end()
    return response


def plan_answer(request: web.Request, content: ContentRecord, etag: str) -> Plan:
    """Return which bytes answer this request. Raises RangeNotSatisfiable."""
    size_bytes = content.file.size_bytes
    ranges = None
    if request.method == "GET" and _range_counts(request, etag, content.available_at_ms):
        ranges = parse_range(field_of(request.headers, "Range"), size_bytes)
    if ranges is None:
        return Plan(200, {"Content-Type": content.file.content_type}, [BodyPart(b"", 0, size_bytes)])
    if len(ranges) == 1:
        return _single(ranges[0], content)
    boundary = secrets.token_hex(16)
    multipart = multipart_parts(ranges, size_bytes, content.file.content_type, boundary)
    parts = [BodyPart(part.header, part.span.start, part.span.stop) for part in multipart.parts]
    headers = {"Content-Type": f"multipart/byteranges; boundary={boundary}"}
    return Plan(206, headers, parts, multipart.closing)


def _single(span: ByteRange, content: ContentRecord) -> Plan:
    headers = {
        "Content-Type": content.file.content_type,
        "Content-Range": span.content_range(content.file.size_bytes),
    }
    return Plan(206, headers, [BodyPart(b"", span.start, span.stop)])


def _range_counts(request: web.Request, etag: str, modified_at_ms: int) -> bool:
    """Return whether Range applies: not under an If-Range that does not hold (RFC 9110, section 13.1.5)."""
    condition = field_of(request.headers, "If-Range")
    return condition is None or if_range_matches(condition, etag, modified_at_ms)


@functools.lru_cache(CONTENTS_DESCRIBED_MAX)
def describe(sha256: str, filename: str, available_at_ms: int) -> Mapping[str, str]:
    """Return the headers of a content under one name, cached for hot small files."""
    return {
        "Accept-Ranges": "bytes",
        "ETag": f'"{sha256}"',
        "Last-Modified": http_date(available_at_ms),
        "Repr-Digest": repr_digest(sha256),
        "Content-Disposition": content_disposition(filename),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",  # in case a browser displays it
    }


def _is_not_modified(request: web.Request, etag: str, modified_at_ms: int) -> bool:
    """Return whether the answer is 304. Raises PreconditionFailed."""
    headers = request.headers
    if not any(name in headers for name in _CONDITIONS):
        return False
    return evaluate(request.method, headers, etag, modified_at_ms) is Outcome.NOT_MODIFIED


def _not_modified(headers: Mapping[str, str], content_type: str, policy: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a 304 repeats (RFC 9110, section 15.4.5), with the current name and type.

    A cache updates its own from them (RFC 9111, section 4.3.4).
    """
    repeated = {name: headers[name] for name in ("ETag", "Last-Modified", "Content-Disposition", *policy)}
    return repeated | {"Content-Type": content_type}


def _wants_redirect(request: web.Request, services: NodeServices) -> bool:
    """Return whether to redirect the client to another node: the client requests it and can follow.

    Raises InvalidRequest for a parameter that is no flag.
    """
    preferences = request.headers.get("Prefer", "").lower()
    is_preferred = "redirect" in preferences and "redirect" in (p.strip() for p in preferences.split(","))
    is_asked = bool(request.query_string) and query_flag(request, "redirect")
    return (is_preferred or is_asked) and services.api.reaches_nodes(request)


def _other_holder(services: NodeServices, content: ContentRecord) -> str:
    """Return a node to redirect to, "" if this one holds the content."""
    if services.node_id in content.replicas:
        return ""
    known = [name for name in content.replicas if services.api.view.node(name) is not None]
    return secrets.choice(known) if known else ""
