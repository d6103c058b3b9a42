"""`make mutants`: are the tests any good? Each deliberate bug must be caught by them.

    python -m tests.mutants                      all of them
    python -m tests.mutants --seeds-alone        those of the consensus by random search alone
    python -m tests.mutants "vote granted twice" some of them

A bug is put into a copy of the product, in a temporary directory that comes first on the path of a process of
its own. One line for each; the exit code tells whether any survived. First of all, the product without a bug
must pass every test that is named.
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.mutants import MUTANTS
from tests.mutants.hunting import ROOT, hunt
from tests.mutants.mutant import Mutant

SEEDS = 120  # the named number: every mutant of the consensus is caught within them
DETAILS_CHARS_MAX = 110


def line_of(mutant: Mutant, found: str) -> str:
    """One line of the table."""
    if not found:
        return f"{mutant.name} SURVIVED"
    return f"{mutant.name} caught {found}"[: 2 * DETAILS_CHARS_MAX]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seeds-alone", action="store_true")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    for mutant in chosen:
        mutant.check_fits(ROOT)
    arguments = ["--seeds", str(options.seeds)] + (["--seeds-alone"] if options.seeds_alone else [])
    tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    for healthy in [Mutant("none", ())] + ([Mutant("none", (), tests)] if tests else []):
        if found := hunt(healthy, ["--seeds", "3"]):
            print(f"the product without any mutant is caught {found}")
            return 1
    survivors = 0
    with ThreadPoolExecutor(options.cores) as pool:
        for mutant, found in zip(chosen, pool.map(lambda each: hunt(each, arguments), chosen), strict=True):
            print(line_of(mutant, found), flush=True)
            survivors += not found
    print(f"{len(chosen)} mutants, {survivors} survived")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
