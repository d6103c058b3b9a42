"""Shared by all that has to do with files: the fields of a kind that came after release 0.1.0, said once.

They are optional. The Structs of a kind, from the body of a request to the record, get them by `with_later`;
rules, tables, checks, the options of `filestore put` and the client are made of LATER as well. A field has a
table of its own (`vms_os_name`): the release before must find in the tables that it knows only columns that
it knows. "A field of a kind of file" in CONTRIBUTING.md has an example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from msgspec import UNSET, Struct, UnsetType, defstruct

from runtime.bounds import Count, Text

S = TypeVar("S", bound=Struct)


@dataclass(frozen=True, slots=True)
class Later:
    """A field that was added later: a label, a number or a flag, like its example.

    `since`: the first rules with which it may be set.
    """

    kind: str
    name: str
    meaning: str
    example: str | int | bool
    since: int

    @property
    def is_label(self) -> bool:
        """Whether it is a text."""
        return isinstance(self.example, str)

    @property
    def table(self) -> str:
        """The table of its values."""
        return f"{self.kind}s_{self.name}"

    @property
    def schema(self) -> str:
        """The statement that makes its table."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (sequence INTEGER PRIMARY KEY"
            " REFERENCES files (sequence) ON DELETE CASCADE,"
            f" {self.name} {'TEXT' if self.is_label else 'INTEGER'} NOT NULL) STRICT;\n"
        )


LATER: Final[tuple[Later, ...]] = (
    # kind, name, meaning, example, and since which rules
    Later("project_file", "message", "What its owner says about this version.", "before BGP", since=6),
    Later("project_file", "tag", "A name of this version; `-` for none.", "golden", since=6),
)


def later_of(kind: str) -> list[Later]:
    """Return those of a kind."""
    return [each for each in LATER if each.kind == kind]


def with_later(kind: str, typed: Callable[[Later], tuple[Any, ...] | None]) -> Callable[[type[S]], type[S]]:
    """Add the later fields of a kind to a Struct. `typed`: type and default there, None for no field."""

    def added(struct: type[S]) -> type[S]:
        own = [(each.name, *said) for each in later_of(kind) if (said := typed(each)) is not None]
        if not own:
            return struct
        config, since = struct.__struct_config__, {each.name: each.since for each in later_of(kind)}
        made: Any = defstruct(
            struct.__name__,
            own,
            bases=(struct,),
            module=struct.__module__,
            namespace={
                "__doc__": struct.__doc__,
                "fields_since": getattr(struct, "fields_since", {}) | {name: since[name] for name, *_ in own},
            },
            frozen=True,
            kw_only=True,
            tag=config.tag,
            tag_field=config.tag_field,
        )
        return cast("type[S]", made)

    return added


def in_the_log(field: Later) -> tuple[Any, ...]:
    """Return the field of commands and records, which is left out where it was not given."""
    return {str: Text, int: Count, bool: bool}[type(field.example)] | UnsetType, UNSET


def in_queries(field: Later) -> tuple[Any, ...] | None:
    """Lists are narrowed by labels; "" is any."""
    return (Text, "") if field.is_label else None
