"""The roots of all queries. Apart from `queries`, which imports them all: it cuts a circle.

Tested by tests/unit/metadata/protocol/test_invalidation.py.
"""

from typing import Annotated

from msgspec import Meta, Struct

from metadata.model.records import Caller
from runtime.bounds import Count

LIST_LIMIT_MAX = 1000
PageLimit = Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)]


class Query(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of all queries."""


class ListQuery(Query, frozen=True, kw_only=True):
    """A page after `cursor`, in the order of creation."""

    caller: Caller
    limit: PageLimit = LIST_LIMIT_MAX
    cursor: Count = 0
