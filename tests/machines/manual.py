"""Does what docs/three-machines.md says, block by block, word by word.

A block is preceded by a comment that names its machines. Where it has a line that another machine has
printed, that line is taken. What a block exports holds in the later ones of its machine.
"""

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.processes import wait_until
from tests.machines.bed import Machine
from tests.sources import ROOT

BLOCK = re.compile(r"<!-- test: machines on (?P<numbers>[\d ]+) -->\n```sh\n(?P<script>.*?)```", re.DOTALL)
PRINTED = re.compile(r"filestore setup --join <<< '[^']+'")
LOOK = "filestore status\n"
HEALTHY_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Block:
    """What is typed on some of the machines."""

    numbers: tuple[int, ...]
    script: str


@dataclass
class Effort:
    """What it takes until the cluster is healthy: commands on all machines, and time."""

    commands: int = 0
    took_s: float = 0.0


def blocks_of(path: Path) -> list[Block]:
    """Those of a document."""
    return [
        Block(tuple(map(int, found["numbers"].split())), found["script"])
        for found in BLOCK.finditer(path.read_text(encoding="utf-8"))
    ]


def follow(machines: Sequence[Machine]) -> Effort:
    """Do all of it."""
    began_s, effort = time.monotonic(), Effort()
    printed: list[str] = []
    exports: dict[str, str] = defaultdict(str)
    for block in blocks_of(ROOT / "docs" / "three-machines.md"):
        for machine in (machines[number - 1] for number in block.numbers):
            script = PRINTED.sub(lambda _: printed.pop(0), block.script)
            exports[machine.name] += "".join(re.findall(r"^export .*\n", script, re.MULTILINE))
            if not effort.took_s and LOOK in script:
                until_it_succeeds(machine, exports[machine.name] + LOOK)
                effort.took_s = time.monotonic() - began_s
            if not effort.took_s:
                effort.commands += len(script.replace("\\\n", "").splitlines())
            printed.extend(PRINTED.findall(machine.run(exports[machine.name] + script)))
    return effort


def until_it_succeeds(machine: Machine, script: str) -> None:
    """A reader looks again."""
    wait_until(lambda: machine.succeeds(script), what="a healthy cluster", timeout_s=HEALTHY_TIMEOUT_S)
