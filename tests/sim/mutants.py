"""`make mutants`: are the checkers any good? Each deliberate bug must be caught by them.

    python -m tests.sim.mutants                      all of them: first the directed scenarios, then seeds
    python -m tests.sim.mutants --seeds-alone        without the scenarios: what random search finds, and when
    python -m tests.sim.mutants "vote granted twice" some of them

A bug is put into a copy of the product, in a temporary directory that comes first on the path of a process of
its own. One line for each; the exit code tells whether any survived.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.sim.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("ca", "coordinator", "tests")
SEEDS = 120  # the named number: every mutant is caught within them
HUNT_S_MAX = 1200
DETAILS_CHARS_MAX = 110


class MutantDoesNotFit(Exception):
    """The text that a mutant changes is not there, or there twice."""


def check_fits(mutant: Mutant, root: Path = ROOT) -> None:
    """Raises MutantDoesNotFit unless each text that the mutant changes is there once."""
    for name, old, _ in mutant.changes:
        count = (root / "coordinator" / name).read_text(encoding="utf-8").count(old)
        if count != 1:
            raise MutantDoesNotFit(f"{mutant.name}: {name} has {count} times {old!r}")


def plant(mutant: Mutant, root: Path) -> None:
    """Puts a bug into the product under `root`. Raises MutantDoesNotFit."""
    check_fits(mutant, root)
    for name, old, new in mutant.changes:
        path = root / "coordinator" / name
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def hunt(mutant: Mutant, arguments: Sequence[str], root: Path = ROOT) -> str:
    """What caught the mutant, "" if it survived."""
    with tempfile.TemporaryDirectory(prefix="filestore-mutant-") as directory:
        copy = Path(directory)
        for package in COPIED:
            shutil.copytree(root / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        plant(mutant, copy)
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.sim.hunt", *arguments],
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
                timeout=HUNT_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
    if done.returncode not in (0, 1) or (done.returncode == 1 and done.stderr):
        return f"by the end of the process: {(done.stderr.splitlines() or ['killed'])[-1]}"
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else ""


def line_of(mutant: Mutant, found: str) -> str:
    """One line of the table."""
    if not found:
        return f"{mutant.name} SURVIVED"
    return f"{mutant.name} caught {found}"[: 2 * DETAILS_CHARS_MAX]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seeds-alone", action="store_true")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    for mutant in chosen:
        check_fits(mutant)
    arguments = ["--seeds", str(options.seeds)] + (["--seeds-alone"] if options.seeds_alone else [])
    survivors = 0
    healthy = hunt(Mutant("none", ()), ["--seeds", "3"])
    if healthy:
        print(f"the product without any mutant is caught {healthy}")
        return 1
    with ThreadPoolExecutor(options.cores) as pool:
        for mutant, found in zip(chosen, pool.map(lambda each: hunt(each, arguments), chosen), strict=True):
            print(line_of(mutant, found), flush=True)
            survivors += not found
    print(f"{len(chosen)} mutants, {survivors} survived")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
