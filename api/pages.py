"""Pages of a list: what the query asks for, which files it wants, and where the next page is.

A cursor is the log index of the last element shown, or what stands for it in a list that has none, so that
a list stays stable while others come and go. Filters come after access control: a page may be short of its
limit, or empty, and have a next one, since each looks at a bounded number of files.
"""

from collections.abc import Iterable
from typing import Annotated, Final, TypedDict, TypeVar
from urllib.parse import urlencode

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import FileStatus, MaybeLabel, NextCursor
from api.spec.operation import Parameter
from ca.errors import InvalidRequest
from metadata.protocol.queries import LIST_LIMIT_MAX
from runtime.bounds import COUNT_MAX, LABEL_CHARS_MAX, TEXT_CHARS_MAX
from web.app import json_response

_T = TypeVar("_T")

NUMBER_DIGITS_MAX: Final = 16  # COUNT_MAX has as many
NEXT_PAGE: Final = {"Link": 'Address of the next page (RFC 8288, `rel="next"`). Absent on the last page.'}
PAGE_PARAMETERS: Final = (
    Parameter(
        name="limit",
        description=(
            f"Maximum number of elements, 1..{LIST_LIMIT_MAX}. If absent: the largest possible number."
        ),
        type=Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX, examples=[100])],
    ),
    Parameter(name="cursor", description="`next_cursor` of the previous page.", type=NextCursor),
)
STATUSES: Final = ("pending", "uploading", "available", "tombstoned", "deleted")
FILE_PARAMETERS: Final = (
    Parameter(name="status", description="Only files with this status.", type=FileStatus),
    Parameter(
        name="filename",
        description="Only files whose name begins with this text. Case matters.",
        type=MaybeLabel,
    ),
    *PAGE_PARAMETERS,
)


def page_response(
    request: web.Request, answer: Struct, next_cursor: int | str, **filters: str
) -> web.Response:
    """`answer`, with a `Link: <...>; rel="next"` (RFC 8288) that repeats the filters while more remains."""
    if not next_cursor:
        return json_response(answer)
    query = {name: value for name, value in filters.items() if value}
    if request.query.get("limit"):
        query["limit"] = request.query["limit"]
    query["cursor"] = str(next_cursor)
    return json_response(answer, headers={"Link": f'<{request.path}?{urlencode(query)}>; rel="next"'})


def numbered_page(request: web.Request, elements: Iterable[tuple[int, _T]]) -> tuple[list[_T], int]:
    """The page of `elements` that the query asks for, and the cursor of the next one, 0 when nothing remains.

    Their numbers rise from 1 or more. For short lists that are in memory. Raises InvalidRequest.
    """
    limit, cursor = query_limit(request), query_cursor(request)
    left = [each for each in elements if each[0] > cursor]
    next_cursor = left[limit - 1][0] if len(left) > limit else 0
    return [element for _, element in left[:limit]], next_cursor


def cursor_text(next_cursor: int) -> str | UnsetType:
    """`next_cursor` in an answer: absent when nothing remains."""
    return str(next_cursor) if next_cursor else UNSET


def query_text(request: web.Request, name: str) -> str:
    """A query parameter, "" when it is absent. Raises InvalidRequest when it is too long or comes twice."""
    values = request.query.getall(name, [])
    if len(values) > 1:
        raise InvalidRequest(f"{name}: appears more than once")
    if values and len(values[0]) > TEXT_CHARS_MAX:
        raise InvalidRequest(f"{name}: at most {TEXT_CHARS_MAX} characters")
    return values[0] if values else ""


def query_flag(request: web.Request, name: str) -> bool:
    """Return whether a parameter is `1`; "" and `0` are not. Raises InvalidRequest for anything else.

    So a typing error removes no node.
    """
    value = query_text(request, name)
    if value not in ("", "0", "1"):
        raise InvalidRequest(f"{name}: expected 1")
    return value == "1"


def query_limit(request: web.Request) -> int:
    """`?limit=`, 1..1000. Raises InvalidRequest."""
    return query_number(request, "limit", LIST_LIMIT_MAX, LIST_LIMIT_MAX)


def query_cursor(request: web.Request) -> int:
    """`?cursor=`, the `next_cursor` of the page before, or 0. Raises InvalidRequest."""
    return query_number(request, "cursor", 0, COUNT_MAX)


def query_number(request: web.Request, name: str, default: int, number_max: int) -> int:
    """Return the number 1..`number_max` of a query parameter, `default` if absent. Raises InvalidRequest."""
    text = query_text(request, name)
    if not text:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX else 0
    if not 1 <= number <= number_max:
        expected = (
            f"an integer from 1 to {number_max}"
            if name == "limit"
            else ("the next_cursor of a previous page")
        )
        raise InvalidRequest(f"{name}: expected {expected}")
    return number


class FileFilters(TypedDict):
    """The fields of `metadata.protocol.queries.ListFilesQuery` that come from the request."""

    limit: int
    cursor: int
    status: str
    filename_prefix: str


def file_filters(request: web.Request) -> FileFilters:
    """Return the filters in the request's query. Raises InvalidRequest naming the parameter."""
    status = query_text(request, "status")
    if status and status not in STATUSES:
        raise InvalidRequest(f"status: expected one of {', '.join(STATUSES)}")
    filename = query_text(request, "filename")
    if len(filename) > LABEL_CHARS_MAX:
        raise InvalidRequest(f"filename: at most {LABEL_CHARS_MAX} characters")
    return FileFilters(
        limit=query_limit(request), cursor=query_cursor(request), status=status, filename_prefix=filename
    )


def filtered_response(
    request: web.Request, answer: Struct, next_cursor: int, filters: FileFilters, **others: str
) -> web.Response:
    """`answer`, with a link to the next page that repeats these filters and the others."""
    return page_response(
        request,
        answer,
        next_cursor,
        status=filters["status"],
        filename=filters["filename_prefix"],
        **others,
    )
