"""`python -m tests.gns3.search`: random operations on real lab servers and a store, held against a model.

Three lab servers are clones, the last one of GNS3 2.2: their projects have equal ids. They change and are
backed up, restored and pruned, while processes are killed, clocks are wrong, disks are full, and replicas are
damaged. All along and at the end the newest whole state of each server's project can be restored, nothing is
called whole that is not, no restore replaces a project, and every command ends in time with a sentence.

A seed and the number of an operation say what it is, whatever came before: `--numbers` repeats some of a run.
The moments are those of the machine. Ends with 1 at the first fault, and leaves the data directory then.
"""

import argparse
import collections
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.isolation import isolate
from tests.gns3.search import verdict
from tests.gns3.search.acts import ACTS
from tests.gns3.search.stage import LABS, Fault, Stage, opened
from tests.gns3.search.strikes import KINDS

OPERATIONS = 40


def options() -> argparse.Namespace:
    """The command line; GNS3_OPERATIONS in the environment is a default."""
    parser = argparse.ArgumentParser(prog="python -m tests.gns3.search", description=__doc__)
    parser.add_argument("--operations", type=int, default=int(os.environ.get("GNS3_OPERATIONS", OPERATIONS)))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--only", nargs="+", choices=list(ACTS), default=list(ACTS), help="kinds of operations"
    )
    parser.add_argument(
        "--strikes", nargs="*", choices=list(KINDS), default=list(KINDS), help="what may come over commands"
    )
    parser.add_argument("--numbers", type=int, nargs="+", default=(), help="only these operations of a run")
    parser.add_argument("--labs", type=int, choices=range(1, len(LABS) + 1), default=len(LABS))
    parser.add_argument("--data", type=Path, default=None, help="an empty directory to work in")
    return parser.parse_args()


def main() -> int:
    """The exit code."""
    asked = options()
    isolate("tests.gns3.search")
    seed = secrets.randbelow(1 << 32) if asked.seed is None else asked.seed
    directory = asked.data or Path(tempfile.mkdtemp(prefix="gns3-search-"))
    numbers = asked.numbers or range(asked.operations)
    print(f"seed {seed}: {len(numbers)} operations in {directory}", flush=True)
    began_s = time.monotonic()
    with opened(directory, asked.labs) as stage:
        stage.strikes = asked.strikes
        fault = run(stage, seed, numbers, asked.only)
    for name, count in sorted(stage.outcomes.items()):
        print(f"  {name:<20} {count:>5}")
    print(f"{time.monotonic() - began_s:.0f} s")
    if fault:
        print(f"FAULT {fault}\ndata, logs and history: {directory}", flush=True)
        return 1
    shutil.rmtree(directory)
    return 0


def run(stage: Stage, seed: int, numbers: Sequence[int], only: Sequence[str]) -> str:
    """The operations and the verdict; the fault that was found, "" for none."""
    done = collections.Counter[str]()
    try:
        for number in numbers:
            stage.dice.seed(f"{seed} {number}")
            (name,) = stage.dice.choices(list(only), [ACTS[each][0] for each in only])
            stage.note(f"#{number} {name}")
            stage.look()  # what the last command had sent before it was killed
            if did := ACTS[name][1](stage):
                done[name] += 1
                print(f"#{number} {name}: {did}", flush=True)
            verdict.check_projects(stage)
        stage.look()
        verdict.check_all(stage)
    except Fault as fault:
        stage.note(f"FAULT {fault}")
        return str(fault)
    print(f"every lab came back: {dict(done)}")
    return ""


if __name__ == "__main__":
    sys.exit(main())
