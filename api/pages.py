"""Pages of a list: limit and filters from the query, and the cursor of the next page.

A cursor is the log index of the last element shown, or a substitute in a list without one, so a list stays
stable while elements are added and removed. Filters come after access control: a page may have fewer elements
than its limit, or none, and still have a next page, since each examines a bounded number of files.

Tested by tests/api/test_files.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, TypedDict, TypeVar
from urllib.parse import urlencode

from aiohttp import web
from msgspec import UNSET, Meta, Struct

from api.bodies.fields import FileStatus, FolderCursor, FolderPath, MaybeLabel, NextCursor
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
        "limit",
        (f"Maximum number of elements, 1..{LIST_LIMIT_MAX}. If absent: the largest possible number."),
        type=Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX, examples=[100])],
    ),
    Parameter("cursor", "`next_cursor` of the previous page.", type=NextCursor),
)
STATUSES: Final = ("pending", "uploading", "available", "tombstoned", "deleted")
FILE_PARAMETERS: Final = (
    Parameter("status", "Only files with this status.", type=FileStatus),
    Parameter("filename", "Only files whose name begins with this text. Case matters.", type=MaybeLabel),
    Parameter(
        "without_filename", "Leave out files whose name begins with this, such as `restic:`.", type=MaybeLabel
    ),
    *PAGE_PARAMETERS,
)

FOLDER_PARAMETERS: Final = (
    Parameter("path", "Only files in this folder; `/` is the top of the bucket.", type=FolderPath),
    Parameter("recursive", "`1`: with `path`, also the files in all folders below it."),
    Parameter("name", "Only files with exactly this name.", type=MaybeLabel),
)
FOLDERS_PARAMETERS: Final = (
    Parameter(
        "path", "The folder whose folders are listed. If absent: the top of the bucket.", type=FolderPath
    ),
    PAGE_PARAMETERS[0],
    Parameter("cursor", "`next_cursor` of the previous page.", type=FolderCursor),
)


def page_response(
    request: web.Request,
    body: type[Struct],
    elements: Sequence[Struct],
    next_cursor: int | str,
    filters: Mapping[str, str] | None = None,
    **fields: str,
) -> web.Response:
    """A page: `body` with the elements, their count and `fields`, and a cursor while more remains.

    Then a `Link: <...>; rel="next"` (RFC 8288) repeats the filters.
    """
    (name,) = {*body.__struct_fields__} - {"count", "next_cursor", *fields}
    cursor = str(next_cursor) if next_cursor else UNSET
    answer = body(count=len(elements), next_cursor=cursor, **{name: elements}, **fields)
    if not next_cursor:
        return json_response(answer)
    query = {name: value for name, value in (filters or {}).items() if value}
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


class PageWanted(TypedDict):
    """The fields of `metadata.protocol.queries.ListQuery` that come from the request."""

    limit: int
    cursor: int


class FileFilters(PageWanted):
    """The filters of `ListFilesQuery`."""

    status: str
    filename_prefix: str
    without_prefix: str


def page_wanted(request: web.Request) -> PageWanted:
    """Which page the query of the request asks for. Raises InvalidRequest."""
    return PageWanted(limit=query_limit(request), cursor=query_cursor(request))


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


def file_filters(request: web.Request) -> FileFilters:
    """Return the filters in the request's query. Raises InvalidRequest naming the parameter."""
    status = query_text(request, "status")
    if status and status not in STATUSES:
        raise InvalidRequest(f"status: expected one of {', '.join(STATUSES)}")
    return FileFilters(
        **page_wanted(request),
        status=status,
        filename_prefix=query_label(request, "filename"),
        without_prefix=query_label(request, "without_filename"),
    )


def query_label(request: web.Request, name: str) -> str:
    """A query parameter that is compared with a label. Raises InvalidRequest when it is longer than one."""
    label = query_text(request, name)
    if len(label) > LABEL_CHARS_MAX:
        raise InvalidRequest(f"{name}: at most {LABEL_CHARS_MAX} characters")
    return label


def repeated(filters: FileFilters) -> dict[str, str]:
    """The filters by their names in the query, for the link to the next page."""
    return {
        "status": filters["status"],
        "filename": filters["filename_prefix"],
        "without_filename": filters["without_prefix"],
    }
