"""Entity tags of records, and conditional requests (RFC 9110, section 13). Shared by buckets and files.

A tag is a digest of the record as it is sent, so it changes with every byte of the response. A record never
gets an earlier tag again, because `updated_at` rises with every change. The tag of the file's content is a
different one (`/api/v1/files/{file_uuid}`). `If-Modified-Since` is ignored: modification times have a
resolution of seconds, which is too coarse to prove that a copy is current.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET, Struct, UnsetType

from api.spec.operation import Answer, Parameter
from web.app import json_response
from web.headers.conditions import Outcome, evaluate, field_of, http_date

CONDITIONS: Final = (
    Parameter("If-Match", "Only if the record has this entity tag, or one of a list."),
    Parameter("If-None-Match", "Only if the record has another entity tag."),
    Parameter("If-Unmodified-Since", "Only if the record was not changed after this time."),
)
OF_RECORD: Final = {
    "ETag": "The state of the record, for `If-Match`; strong. It differs from the content's entity tag.",
    "Last-Modified": "`updated_at`, in seconds.",
    "Cache-Control": "`private, no-cache`.",
}
UNCHANGED: Final = Answer("The caller's copy is still current.", headers=OF_RECORD)
_NAMES: Final = tuple(condition.name for condition in CONDITIONS)
_TAG_BYTES: Final = 16


class Found(NamedTuple):
    """A record as it is sent, and when it was last changed. `content_sha256`: "" if it has no content."""

    body: Struct
    updated_at_ms: int
    content_sha256: str = ""


Find = Callable[[], Awaitable[Found]]


def tag_of(body: Struct) -> str:
    """Return the entity tag of a record, with its quotes."""
    digest = hashlib.blake2b(msgspec.json.encode(body), digest_size=_TAG_BYTES)
    return f'"{digest.hexdigest()}"'


def record_response(
    body: Struct, updated_at_ms: int, *, status: int = 200, location: str = ""
) -> web.Response:
    """Return a response with the record and its tag."""
    headers = _headers(body, updated_at_ms)
    if location:
        headers[hdrs.LOCATION] = location
    return json_response(body, status=status, headers=headers)


def answer_read(request: web.Request, found: Found) -> web.Response:
    """Answer a GET with the record and its tag, or with 304. Raises PreconditionFailed."""
    if _evaluate(request, found, (tag_of(found.body),)) is Outcome.NOT_MODIFIED:
        return web.Response(status=304, headers=_headers(found.body, found.updated_at_ms))
    return record_response(found.body, found.updated_at_ms)


async def state_named(request: web.Request, find: Find, *, also_content: bool = False) -> int | UnsetType:
    """Return the `updated_at_ms` of the record if it meets the request's conditions; UNSET if there are none.

    The record is read only if the request has a condition. `also_content`: the content's tag matches too.
    Raises any exception of `find`, and PreconditionFailed.
    """
    if not any(name in request.headers for name in _NAMES):
        return UNSET
    found = await find()
    of_content = (f'"{found.content_sha256}"',) if also_content and found.content_sha256 else ()
    _evaluate(request, found, (tag_of(found.body), *of_content))
    return found.updated_at_ms


def _headers(body: Struct, updated_at_ms: int) -> dict[str, str]:
    return {
        hdrs.ETAG: tag_of(body),
        hdrs.LAST_MODIFIED: http_date(updated_at_ms),
        hdrs.CACHE_CONTROL: "private, no-cache",
    }


def _evaluate(request: web.Request, found: Found, tags: tuple[str, ...]) -> Outcome:
    fields = {name: value for name in _NAMES if (value := field_of(request.headers, name)) is not None}
    return evaluate(request.method, fields, tags, found.updated_at_ms, what="the record")
