"""A mutant: a deliberate bug, a few replacements of text in the product, that some test must catch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self


class MutantDoesNotFit(Exception):
    """The text that a mutant changes is not there, or there twice."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug. `changes`: (file from the root, what stands there, what the bug makes of it). `tests`:
    one of them has to fail with it, as arguments for pytest; the simulator where there are none.
    """

    name: str
    changes: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, module: str, old: str, new: str, *tests: str) -> Self:
        """One change of a module, which is given as its path without ".py"."""
        return cls(name, ((f"{module}.py", old, new),), tests)

    def check_fits(self, root: Path) -> None:
        """Raises MutantDoesNotFit unless each text that it changes is there once."""
        for name, old, _ in self.changes:
            count = (root / name).read_text(encoding="utf-8").count(old)
            if count != 1:
                raise MutantDoesNotFit(f"{self.name}: {name} has {count} times {old!r}")

    def plant(self, root: Path) -> None:
        """Puts the bug into the product under `root`. Raises MutantDoesNotFit."""
        for name, text in self.changed_files(root).items():
            (root / name).write_text(text, encoding="utf-8")

    def changed_files(self, root: Path) -> dict[str, str]:
        """Return the files that it changes, by name, as the bug makes them. Raises MutantDoesNotFit."""
        self.check_fits(root)
        changed: dict[str, str] = {}
        for name, old, new in self.changes:
            text = changed.get(name) or (root / name).read_text(encoding="utf-8")
            changed[name] = text.replace(old, new)
        return changed
