"""What a history of reads and writes is made of: operations on keys, and what is wrong with them."""

import math
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

Kind = Literal["read", "write"]
Outcome = Literal["ok", "failed", "unknown"]
Value = str | int | None  # None is what a register holds before its first write, unless told otherwise
SHOWN_MAX = 16


class Operation(Struct, frozen=True, kw_only=True):
    """One call of one client.

    `value` is what a write writes and what a read found (of no meaning unless the read is ok). `returned_at`
    may be None when the outcome is unknown.
    """

    client: str
    key: str
    kind: Kind
    value: Value
    called_at: float
    returned_at: float | None
    outcome: Outcome

    @property
    def ends_at(self) -> float:
        """When its effect is there at the latest: infinite while nobody knows its outcome."""
        if self.outcome == "unknown" or self.returned_at is None:
            return math.inf
        return self.returned_at

    def __str__(self) -> str:
        ended = "     ?    " if self.ends_at == math.inf else f"{self.ends_at:10.6g}"
        verb = "reads " if self.kind == "read" else "writes"
        return f"[{self.called_at:10.6g} .. {ended}] {self.client} {verb} {self.value!r} ({self.outcome})"


@dataclass(frozen=True, slots=True)
class Violation:
    """What no register could have answered: the key, why, and the operations that show it by call time."""

    key: str
    reason: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"key {self.key}: {self.reason}", *(f"  {operation}" for operation in self.operations)]
        return "\n".join(lines)
