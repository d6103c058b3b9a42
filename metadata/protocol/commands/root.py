"""The root of all commands. Apart from the package, which imports them all: it cuts a circle."""

from msgspec import Struct


class Command(Struct, frozen=True, kw_only=True, tag_field="type"):
    """One change, as data. A field is only ever added, with a default: older logs must decode for ever."""
