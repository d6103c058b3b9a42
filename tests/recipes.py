"""The recipes of CONTRIBUTING.md as a newcomer carries them out: line by line, in a copy of the tree."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.released_columns import LIST, SCHEMA, listed
from tests.sources import committed_files

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = "CONTRIBUTING.md"
_RECIPE: Final = re.compile(
    r"^### (?P<title>.+?)\n(?P<prose>[^`#][^#]*?)```text\n(?P<steps>.*?)```", re.M | re.S
)
_STEP: Final = re.compile(r"(?:(?P<file>[\w./-]+):)?\s*(?P<place>.*?)\s*(?P<sign>[→⇒])(?: (?P<text>.*))?")


class NoSuchPlace(Exception):
    """A recipe names a place that the tree does not have."""


@dataclass(frozen=True)
class Step:
    """A line of a recipe: `text` goes behind the place, or takes its line's."""

    file: str
    place: str
    is_in_its_place: bool
    text: str


def recipes(page: str) -> Mapping[str, Sequence[Step]]:
    """The steps of each recipe, by its heading."""
    return {found["title"]: [*_steps(found["steps"])] for found in _RECIPE.finditer(page)}


def _steps(text: str) -> Sequence[Step]:
    steps: list[Step] = []
    for line in text.splitlines():
        found = _STEP.fullmatch(line)
        assert found is not None, line
        file = found["file"] or steps[-1].file
        steps.append(Step(file, found["place"], found["sign"] == "⇒", found["text"] or ""))
    return steps


def copied_tree(directory: Path) -> Path:
    """What is committed, in this directory."""
    for path in committed_files():
        target = directory / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return directory


def raise_rules(tree: Path) -> None:
    """Renew the list of columns, as the commit that raises RULES does: this version is the one before."""
    (tree / LIST).write_text(listed((ROOT / SCHEMA).read_text("utf-8")), "utf-8")


def carry_out(steps: Sequence[Step], tree: Path) -> None:
    """Write all of them. Raises NoSuchPlace."""
    at = 0  # the line that the last step wrote
    for step in steps:
        path = tree / step.file
        if step.is_in_its_place and not step.place:
            assert not path.exists(), f"{step.file} is there already"
            path.write_text(step.text + "\n", "utf-8")
            at = 0
            continue
        lines = path.read_text("utf-8").split("\n")
        if step.place:
            at = _line_of(step, lines)
        if step.is_in_its_place:
            lines[at] = step.text
        else:
            at += 1
            lines.insert(at, step.text)
        path.write_text("\n".join(lines), "utf-8")


def _line_of(step: Step, lines: Sequence[str]) -> int:
    at = -1
    for part in step.place.split(" … "):
        at = next((number for number in range(at + 1, len(lines)) if part in lines[number]), -1)
        if at < 0:
            raise NoSuchPlace(f"{step.file}: {step.place}")
    return at


def write_client(tree: Path) -> None:
    """What `make fix` does of itself: the client gets from the API what it has from there."""
    subprocess.run([*python_of(tree), "-m", "release.client"], cwd=tree, check=True, timeout=60)


def python_of(tree: Path) -> Sequence[str]:
    """A Python that finds the modules of a tree, and none of another one."""
    return ("env", f"PYTHONPATH={tree}:{tree / 'client'}", "PYTHONSAFEPATH=1", sys.executable)


def program_of(tree: Path) -> Sequence[str]:
    """The command `filestore` of a tree, whose processes find nothing of another one."""
    return (*python_of(tree), "-m", "deploy.entry")
