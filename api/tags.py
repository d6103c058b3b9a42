"""Entity tags of records, and conditional requests (RFC 9110, section 13). Shared by buckets and files.

A tag is a digest of the record as it is answered: another one whenever a byte of the answer is. No state of a
record has the tag of an earlier one, since `updated_at` rises with every change. It is not the tag of the
file's content, which is that of `/api/v1/files/{file_uuid}`. Modification times are sent and compared by
seconds, so that `If-Modified-Since` alone is not enough to call a copy good: it is passed over here.
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
    Parameter("If-Unmodified-Since", "Only if the record was not changed later."),
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
    """A record as it is answered, and when it was last changed. `content_sha256`: of a file, "" for none."""

    body: Struct
    updated_at_ms: int
    content_sha256: str = ""


Find = Callable[[], Awaitable[Found]]


def tag_of(body: Struct) -> str:
    """The entity tag of a record that is answered so, with its quotes."""
    digest = hashlib.blake2b(msgspec.json.encode(body), digest_size=_TAG_BYTES)
    return f'"{digest.hexdigest()}"'


def record_response(
    body: Struct, updated_at_ms: int, *, status: int = 200, location: str = ""
) -> web.Response:
    """An answer with the record and its tag."""
    headers = _headers(body, updated_at_ms)
    if location:
        headers[hdrs.LOCATION] = location
    return json_response(body, status=status, headers=headers)


def answer_read(request: web.Request, found: Found) -> web.Response:
    """The answer to a GET of a record: as `record_response`, or 304. Raises PreconditionFailed."""
    if _evaluate(request, found, (tag_of(found.body),)) is Outcome.NOT_MODIFIED:
        return web.Response(status=304, headers=_headers(found.body, found.updated_at_ms))
    return record_response(found.body, found.updated_at_ms)


async def state_named(request: web.Request, find: Find, *, also_content: bool = False) -> int | UnsetType:
    """Which state of the record a change is meant for, by the conditions of the request; unset without any.

    The record is read only where there is a condition. `also_content`: the tag of the content names it too.
    Raises what `find` does, and PreconditionFailed.
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
