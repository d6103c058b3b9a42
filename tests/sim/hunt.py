"""Looks for a bug in whatever product is on the path: first the directed scenarios, then seed after seed.

Prints what it found in one line; ends with 0 when something was found, with 1 when not. `tests.mutants`
runs it in a process of its own for each mutant.
"""

import argparse
import faulthandler
import signal
import sys
from types import FrameType

from tests.sim import scenario
from tests.sim.world import World

SEED_S_MAX = 60  # a seed takes about one second; one that never ends is a finding too


class Stuck(Exception):
    """A run took far too long."""


def first_found(seeds: int, *, with_scenarios: bool) -> str:
    """What caught the bug, "" if nothing did."""
    for name in scenario.names() if with_scenarios else ():
        try:
            _bounded(lambda name=name: scenario.run_named(name))
        except Exception as error:  # noqa: BLE001 - any failure is a finding
            return f"after 0 seeds, by {name}: {_first_line(error)}"
    for seed in range(seeds):
        try:
            _bounded(lambda seed=seed: World(seed).run())
        except Exception as error:  # noqa: BLE001
            return f"after {seed + 1} seeds: {_first_line(error)}"
    return ""


def _bounded(run: object) -> None:
    assert callable(run), "something to run"
    signal.alarm(SEED_S_MAX)
    try:
        run()
    finally:
        signal.alarm(0)


def _first_line(error: Exception) -> str:
    text = str(error).splitlines() or [type(error).__name__]
    return text[0]


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Stuck(f"no end after {SEED_S_MAX} s")


def main() -> int:
    """The command."""
    faulthandler.enable()
    parser = argparse.ArgumentParser(prog="python -m tests.sim.hunt")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--seeds-alone", action="store_true", help="without the directed scenarios")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    found = first_found(options.seeds, with_scenarios=not options.seeds_alone)
    print(found)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
