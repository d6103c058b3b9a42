"""The root of all queries. Apart from `queries`, which imports them all: it cuts a circle.

Tested by tests/unit/metadata/protocol/test_invalidation.py.
"""

from msgspec import Struct


class Query(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of all queries."""
