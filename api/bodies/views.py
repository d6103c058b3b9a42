"""Shared by the handlers of every resource: an answer is made from a record by the names of its fields."""

import functools
from typing import TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import fields

from runtime.timestamps import rfc3339

B = TypeVar("B", bound=Struct)


def shown(body: type[B], record: Struct, **others: object) -> B:
    """The record as the API shows it: its fields of the same name, `x_at` for `x_at_ms`, and `others`.

    What the record has unset, or None, is left to the default of the body.
    """
    values: dict[str, object] = {}
    for name, source, is_time in _plan(body, type(record)):
        value = getattr(record, source)
        if is_time:
            values[name] = rfc3339(value or 0)
        elif value is not None and value is not UNSET:
            values[name] = value
    return body(**values | others)


@functools.cache
def _plan(body: type[Struct], record: type[Struct]) -> tuple[tuple[str, str, bool], ...]:
    """Each field of the body that the record has: its name, its name there, and whether it is a time."""
    known = {field.name for field in fields(record)}
    names = [field.name for field in fields(body)]
    same = [(name, name, False) for name in names if name in known]
    times = [(name, f"{name}_ms", True) for name in names if name not in known and f"{name}_ms" in known]
    return (*same, *times)
