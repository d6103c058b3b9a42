"""The root of all commands. Apart from the package, which imports them all: it cuts a circle.

Tested by tests/unit/coordinator/machine/test_batches.py.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, TypeVar

from msgspec import UNSET, Struct

from metadata.model.rules import FIRST

S = TypeVar("S", bound=Struct)
NODES: Final = "nodes"
ITSELF: Final = "itself"


class Command(Struct, frozen=True, kw_only=True, tag_field="type"):
    """One change, as data. A field is only ever added, with a default: older logs must decode for ever.

    `proposed_by`: NODES, if a node may propose it as it is; ITSELF, if a node may propose it only for itself
    (`node_id`). All others only the leader proposes; joining, renewing and minting pass through calls that
    check more. `is_long`: it changes, or reads, up to a page of rows, which may be anywhere in the state.
    `since`: the rules from which on it may be proposed; `fields_since`: the same for its later fields.
    """

    proposed_by: ClassVar[str] = "leader"
    is_long: ClassVar[bool] = False
    since: ClassVar[int] = FIRST
    fields_since: ClassVar[Mapping[str, int]] = {}

    @property
    def rules_needed(self) -> int:
        """Return the oldest rules with which this command has its full meaning."""
        return max(self.since, self.rules_of_fields)

    @property
    def rules_of_fields(self) -> int:
        """The oldest rules that all fields of this command need which are set.

        Who knows the command and not such a field applies it without that field, and says that it is done.
        """
        later = self.fields_since.items()
        return max((since for name, since in later if getattr(self, name) is not UNSET), default=FIRST)


def leaves(root: type[S]) -> Iterator[type[S]]:
    """The classes below a root that nothing is derived from: all that can be sent, or be in the log."""
    for kind in root.__subclasses__():
        if kind.__subclasses__():
            yield from leaves(kind)
        else:
            yield kind
