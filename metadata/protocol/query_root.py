"""The root of all queries. Apart from `queries`, which imports them all: it cuts a circle."""

from msgspec import Struct


class Query(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of all queries."""
