"""The root of request bodies."""

from msgspec import Struct


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown fields are refused. Optional ones may be absent, null or "" (`coordinator.http.json_body`)."""
