"""Does what the drills in docs/ say: the shell blocks of one section, word by word, where they are typed.

A block is preceded by a comment that says where it is typed. Its words in capitals are filled in, and where
it has a line that another machine has printed, that line is taken. What the block for every machine exports
holds in all others.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from tests.documents import PAGES
from tests.machines.bed import Machine
from tests.machines.manual import LOOK, PRINTED, until_it_succeeds

DRILLS = "\n".join(page.read_text("utf-8") for page in PAGES if "<!-- test: drill" in page.read_text("utf-8"))
EVERYWHERE = "everywhere"
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
_BLOCK = re.compile(r"<!-- test: drill on (?P<place>[\w ]+) -->\n```sh\n(?P<script>.*?)```", re.DOTALL)
_ALL_PLACES = re.compile(r"<!-- test: drill everywhere -->\n```sh\n(?P<script>.*?)```", re.DOTALL)
_TO_FILL_IN = re.compile(
    r"\b(?:NODE_ID|COORDINATOR_ID|NEW_ID|COORDINATOR|ADDRESS|SNAPSHOT|SNAPSHOT_ID|BUNDLE)\b"
)


@dataclass(frozen=True)
class Block:
    """What is typed in one place."""

    place: str
    script: str


@cache
def sections() -> dict[str, list[Block]]:
    """The blocks by the heading that they are below; those without any are left out."""
    headings = list(_HEADING.finditer(DRILLS))
    ends = [*(found.start() for found in headings[1:]), len(DRILLS)]
    blocks = {
        heading["title"]: [
            Block(found["place"], found["script"]) for found in _BLOCK.finditer(DRILLS, heading.end(), end)
        ]
        for heading, end in zip(headings, ends, strict=True)
    }
    return {title: found for title, found in blocks.items() if found}


@cache
def exports() -> str:
    """What is said beforehand."""
    (found,) = _ALL_PLACES.finditer(DRILLS)
    return found["script"]


class Drill:
    """One section; `filled` has what is to be filled in, by machine where it differs."""

    def __init__(self, title: str, places: Mapping[str, Sequence[Machine]]) -> None:
        self.left = list(sections()[title])
        self._places = places
        self._printed: list[str] = []

    def next_block(self, filled: Mapping[str, str] | None = None, **by_machine: Mapping[str, str]) -> str:
        """Type the next block on each of its machines; what the last one said."""
        block, said = self.left.pop(0), ""
        for machine in self._places[block.place]:
            words = {**(filled or {}), **by_machine.get(machine.name, {})}
            script = _TO_FILL_IN.sub(lambda found: words[found[0]], block.script)  # noqa: B023
            script = PRINTED.sub(lambda _: self._printed.pop(0), script)
            is_looked_at = script.endswith(LOOK)
            said = machine.run(exports() + script.removesuffix(LOOK))
            if is_looked_at:
                until_it_succeeds(machine, exports() + LOOK)
            self._printed.extend(PRINTED.findall(said))
        return said


@contextmanager
def drill(title: str, places: Mapping[str, Sequence[Machine]]) -> Iterator[Drill]:
    """All blocks of the section have been typed when the `with` ends; prints how long that took."""
    began_s, typed = time.monotonic(), Drill(title, places)
    yield typed
    assert not typed.left, f"{title}: not typed: {typed.left}"
    print(f"drill: {title}: {time.monotonic() - began_s:.1f} s", flush=True)
