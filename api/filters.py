"""The parameters of lists: pages, and what every list of files can be narrowed by.

`?filename=` is the beginning of a name. Filters come after access control: a page may be short of its limit,
or empty, and have a next one, since each looks at a bounded number of files.
"""

from typing import Final, TypedDict

from aiohttp import web
from msgspec import Struct

from api.bodies.fields import FileStatus, MaybeLabel
from api.pages import PAGE_PARAMETERS, page_response, query_cursor, query_limit, query_text
from api.spec.operation import Parameter
from ca.errors import InvalidRequest
from runtime.bounds import LABEL_CHARS_MAX

STATUSES: Final = ("pending", "uploading", "available", "tombstoned", "deleted")
FILE_PARAMETERS: Final = (
    Parameter(name="status", description="Only files in this state.", type=FileStatus),
    Parameter(name="filename", description="Only files whose name begins so; case counts.", type=MaybeLabel),
    *PAGE_PARAMETERS,
)


class FileFilters(TypedDict):
    """The fields of `metadata.protocol.queries.ListFilesQuery` that come from the request."""

    limit: int
    cursor: int
    status: str
    filename_prefix: str


def file_filters(request: web.Request) -> FileFilters:
    """What the query of the request asks for. Raises InvalidRequest naming the parameter."""
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
