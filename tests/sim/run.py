"""`make sim`: seed after seed on every core, for SIM_S seconds; then what was done, and what was found.

python -m tests.sim                     seeds from SIM_SEED (or the clock) on, for SIM_S seconds (600)
python -m tests.sim --seed N            one seed, with a journal of every step
python -m tests.sim --members 3         groups of three that do not change: what the speed is measured with
"""

import argparse
import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.world import World

SECONDS = 600
JOURNAL_LINES_MAX = 400  # shown of the end of a failing run; all are kept in its file
COLLECT_EVERY = (
    20  # seeds between two runs of the garbage collector, which costs a tenth of the time otherwise
)
FOUND_MAX = 5  # failures after which a run ends


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that broke a promise."""

    seed: int
    what: str


@dataclass(slots=True)
class Totals:
    """What was done by some seeds."""

    seeds: int = 0
    cpu_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Totals") -> None:
        """Both together."""
        self.seeds += other.seeds
        self.cpu_s += other.cpu_s
        self.counts.update(other.counts)
        self.faults.update(other.faults)
        self.failures += other.failures


def replay_command(seed: int, members: int | None) -> str:
    """What runs a seed again, with its journal."""
    return f"python -m tests.sim --seed {seed}" + (f" --members {members}" if members else "")


def try_seed(seed: int, members: int | None = None) -> Totals:
    """One seed from beginning to end."""
    world = make_world(seed, members)
    totals = Totals(seeds=1)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever a member raises is what is looked for
        totals.failures.append(Failure(seed, f"step {world.steps}: {type(error).__name__}: {error}"))
    checkers = world.checkers
    totals.faults.update(world.faults)
    totals.faults["messages lost"] += world.network.lost
    totals.faults["messages doubled"] += world.network.doubled
    totals.counts.update(
        {
            "steps": world.steps,
            "entries committed": checkers.committed,
            "operations of clients": sum(len(client.operations) for client in world.clients),
            "elections": checkers.elections,
            "snapshots installed": checkers.installs,
            "membership changes": checkers.membership_changes,
            "compactions": checkers.compactions,
        }
    )
    return totals


def make_world(seed: int, members: int | None) -> World:
    """The world of a seed; with `members` the group has that size and does not change."""
    return World(seed, voters=members, has_membership=False if members else None)


def explain(seed: int, members: int | None, lines: Path) -> str:
    """Runs a failing seed again with a journal in a file. What a person reads of it first."""
    world = make_world(seed, members)
    tail: deque[str] = deque(maxlen=JOURNAL_LINES_MAX)
    found = "nothing was found this time"
    with lines.open("w", encoding="utf-8") as journal:

        def note(line: str) -> None:
            tail.append(line)
            journal.write(line + "\n")

        note(f"seed {seed}: {world.weather}")
        note("   step     time  what happens")
        world.journal = note
        try:
            world.run()
        except Exception as error:  # noqa: BLE001
            found = f"{type(error).__name__}: {error}"
        note(found)
    return "\n".join(tail)


def _work(first: int, stride: int, until: float, members: int | None) -> Iterator[Totals]:
    gc.disable()
    seed, done = first, 0
    while time.monotonic() < until:
        yield try_seed(seed, members)
        seed, done = seed + stride, done + 1
        if done % COLLECT_EVERY == 0:
            gc.collect()


def _worker(task: tuple[int, int, float, int | None]) -> Totals:
    first, stride, seconds, members = task
    totals, begun_s = Totals(), time.process_time()
    for done in _work(first, stride, time.monotonic() + seconds, members):
        totals.add(done)
        if len(totals.failures) >= FOUND_MAX:
            break
    totals.cpu_s = time.process_time() - begun_s
    return totals


def run_for(seconds: float, first_seed: int, *, members: int | None, cores: int) -> tuple[Totals, float]:
    """Seeds on every core. What was done, and the seconds that it took."""
    started_at = time.monotonic()
    tasks = [(first_seed + core, cores, seconds, members) for core in range(cores)]
    totals = Totals()
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        for done in pool.imap_unordered(_worker, tasks):
            totals.add(done)
    return totals, time.monotonic() - started_at


def report(totals: Totals, seconds: float, cores: int) -> str:
    """The table at the end."""
    steps = totals.counts["steps"]
    per_core = 60 * steps / seconds / cores
    per_cpu = 60 * steps / max(totals.cpu_s, 1e-3)
    lines = [
        f"{totals.seeds} seeds in {seconds:.0f} s on {cores} cores: {totals.seeds / seconds:.1f} seeds/s",
        f"{steps / seconds:,.0f} steps/s",
        f"per core {per_core:,.0f} steps a minute; {per_cpu:,.0f} in a minute of processor time",
        *(f"  {name:34} {count:14,}" for name, count in totals.counts.items()),
        "faults injected:",
        *(f"  {name:34} {count:14,}" for name, count in sorted(totals.faults.items())),
    ]
    return "\n".join(lines)


def journal_directory() -> Path:
    """Where the journals of failing seeds go."""
    return Path(tempfile.gettempdir())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seed", type=int, help="run this seed alone, with a journal")
    parser.add_argument("--members", type=int, help="a group of this size that does not change")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    directory = journal_directory()
    if options.seed is not None:
        path = directory / f"filestore-sim-{options.seed}.txt"
        print(explain(options.seed, options.members, path))
        print(f"the whole journal is in {path}")
        return int(bool(try_seed(options.seed, options.members).failures))
    seconds = float(os.environ.get("SIM_S", SECONDS))
    first_seed = int(os.environ.get("SIM_SEED", int(time.time()) * 1000))
    print(f"{seconds:.0f} seconds of seeds from {first_seed} on")
    totals, took_s = run_for(seconds, first_seed, members=options.members, cores=options.cores)
    print(report(totals, took_s, options.cores))
    for failure in totals.failures[:FOUND_MAX]:
        path = directory / f"filestore-sim-{failure.seed}.txt"
        explain(failure.seed, options.members, path)
        print(f"seed {failure.seed}, {failure.what}")
        print(f"  replay with: {replay_command(failure.seed, options.members)}   journal: {path}")
    print("no promise was broken" if not totals.failures else f"{len(totals.failures)} seeds failed")
    return int(bool(totals.failures))


if __name__ == "__main__":
    sys.exit(main())
