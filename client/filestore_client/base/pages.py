"""Lists of the API: page after page, as one iterator. Shared by files and administration.

Tested by tests/cluster/test_many_lists.py.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from filestore_client.base.errors import Internal, InvalidRequest
from filestore_client.base.records import LIST_FILTERS
from filestore_client.base.transport import Transport

T = TypeVar("T")


def check_filters(lists: Collection[str], filters: Mapping[str, object]) -> None:
    """Raises InvalidRequest for a filter that one of these lists does not have.

    A server ignores a parameter that it does not know, and would list everything. A filter without a value is
    not sent.
    """
    for listed in lists:
        known = LIST_FILTERS[listed]
        for name, value in filters.items():
            if name not in known and value not in (None, ""):
                raise InvalidRequest(f"{name}: no filter of the {listed} list, which has {', '.join(known)}.")


async def pages(
    transport: Transport, path: str, listed_as: str, record: type[T], /, **filters: object
) -> AsyncIterator[T]:
    """Every record of a list. `filters`: query parameters; those that say nothing are left out.

    Raises FilestoreError.
    """
    cursor = ""
    while True:
        page = await transport.call("GET", with_query(path, **filters, cursor=cursor), dict[str, Any])
        try:
            records = msgspec.convert(page[listed_as], list[record])  # type: ignore[valid-type]
        except (msgspec.ValidationError, KeyError) as error:
            raise Internal(f"{path}: the response is not understood by this client: {error}") from error
        for found in records:
            yield found
        cursor = str(page.get("next_cursor") or "")
        if not cursor:
            return


def with_query(path: str, /, **parameters: object) -> str:
    """The path with these parameters; None and "" are left out, truth is `1`."""
    named: Mapping[str, str] = {
        name: str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in parameters.items()
        if value not in (None, "")
    }
    return f"{path}?{urlencode(named)}" if named else path
