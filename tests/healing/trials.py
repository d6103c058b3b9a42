"""`python -m tests.healing.trials`: members that start on damaged files, thousands of times.

Each trial harms one to three files of a copy of a real directory (`tests/healing/harms.py`), lets the product
work on it, and holds what comes against a model: no wrong byte is served, nothing hangs, nothing says a
traceback, nothing that one sound copy has is lost in silence. A refusal with a sentence is in order. A trial
is a process of its own, with a deadline. The seed and the number of a trial say all that is done in it; the
directories that it was done to are kept when anything was wrong, for `--originals`.
"""

import argparse
import collections
import itertools
import os
import random
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tests.healing import coordinator_trials, node_trials, process_trials
from tests.healing.harms import Harm, harm
from tests.healing.trial_outcomes import Outcome, hear_tracebacks

TRIALS: Final = 2000
HARMS: Final = (1, 1, 1, 2, 3)  # files that are harmed in a trial
PROCESSES_EVERY: Final = 40  # one trial in so many starts whole processes
SHOWN_MAX: Final = 20  # trials with faults
SHOWN_OF_EACH: Final = 3
MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 2 << 30
LOUD: Final = "HEALING_LOUD"  # in the environment: trials say what was refused, and what is logged


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tried: how its directories are made, and what is done with a copy of them."""

    prepare: Callable[[Path, int], None]
    try_it: Callable[[Path, Path, Sequence[Harm]], Outcome]
    harmed: Sequence[str]  # directories, of which one is harmed
    deadline_s: float
    at_once: int = 1 << 10  # fewer where it takes ports


SUBJECTS: Final[dict[str, Subject]] = {
    "node": Subject(node_trials.prepare, node_trials.try_it, ("data",), 60.0),
    "coordinator": Subject(coordinator_trials.prepare, coordinator_trials.try_it, ("data",), 60.0),
    "processes": Subject(
        process_trials.prepare,
        process_trials.try_it,
        process_trials.HARMED,
        process_trials.DEADLINE_S,
        at_once=1,
    ),
}


@dataclass
class Report:
    """What came of all trials."""

    cases: collections.Counter[tuple[str, str, str, str]] = field(default_factory=collections.Counter)
    faults: list[tuple[int, str]] = field(default_factory=list)
    done: int = 0


@dataclass(slots=True)
class _Running:
    number: int
    subject: str
    pid: int
    pipe: int
    ends_at_s: float
    directory: Path
    told: bytes = b""


def subject_of(number: int, only: Sequence[str]) -> str:
    """What a trial tries."""
    if len(only) < len(SUBJECTS):
        return only[number % len(only)]
    if number % PROCESSES_EVERY == 0:
        return "processes"
    return "node" if number % 2 else "coordinator"


def run(
    originals: Path, work: Path, numbers: Sequence[int], seed: int, only: Sequence[str], jobs: int
) -> Report:
    """These trials, some at once."""
    report, running, waiting = Report(), list[_Running](), collections.deque(numbers)
    try:
        while waiting or running:
            while waiting and len(running) < jobs and (number := _next(waiting, running, only)) is not None:
                running.append(_begin(originals, work, number, seed, subject_of(number, only)))
            for each in _ended(running):
                running.remove(each)
                _judge(each, report)
                shutil.rmtree(each.directory, ignore_errors=True)
    finally:
        for each in running:
            _kill(each)
            shutil.rmtree(each.directory, ignore_errors=True)
    return report


def _next(waiting: collections.deque[int], running: Sequence[_Running], only: Sequence[str]) -> int | None:
    """The next trial that may begin: of some there may be only so many at once."""
    for number in waiting:
        subject = subject_of(number, only)
        if sum(each.subject == subject for each in running) < SUBJECTS[subject].at_once:
            waiting.remove(number)
            return number
    return None


def _begin(originals: Path, work: Path, number: int, seed: int, subject: str) -> _Running:
    directory = work / f"trial-{number}"
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(reader)
        told = _tried(originals / subject, directory, number, seed, subject)
        with open(writer, "wb") as pipe:
            pipe.write(told)
        os._exit(0)
    os.close(writer)
    ends_at_s = time.monotonic() + SUBJECTS[subject].deadline_s
    return _Running(number, subject, pid, reader, ends_at_s, directory)


def _tried(originals: Path, directory: Path, number: int, seed: int, subject: str) -> bytes:
    """In the process of the trial: what came of it, as JSON."""
    outcome, harms = Outcome(), list[Harm]()
    try:
        _quieten(directory)
        hear_tracebacks(outcome)
        harms = made(originals, directory, number, seed, subject)
        found = SUBJECTS[subject].try_it(directory, originals / "model.json", harms)
        outcome.refusals += found.refusals
        outcome.faults += found.faults
        if LOUD in os.environ:
            print(number, *found.refusals, sep="\n  ", flush=True)
    except BaseException:  # noqa: BLE001 - the parent judges
        outcome.faults.append(traceback.format_exc()[-4000:])
    told = ([(each.act, each.kind, str(each)) for each in harms], outcome.name, outcome.faults[:SHOWN_MAX])
    return msgspec.json.encode(told)


def made(originals: Path, directory: Path, number: int, seed: int, subject: str) -> list[Harm]:
    """The directory of a trial, and what was harmed in it."""
    shutil.copytree(originals / "newer", directory, symlinks=True)
    dice = random.Random(f"{seed} {number}")
    area = dice.choice(SUBJECTS[subject].harmed)
    return [harm(dice, directory / area, originals / "older" / area) for _ in range(dice.choice(HARMS))]


def _quieten(directory: Path) -> None:
    """What is logged goes nowhere else."""
    null = os.open(os.devnull, os.O_RDWR)
    if LOUD not in os.environ:
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory.parent)


def _ended(running: Sequence[_Running]) -> Iterator[_Running]:
    """Those that have told all, or have had their time."""
    ready, _, _ = select.select([each.pipe for each in running], [], [], 0.5)
    for each in list(running):
        if each.pipe in ready:
            piece = os.read(each.pipe, 1 << 16)
            each.told += piece
            if not piece:
                os.close(each.pipe)
                os.waitpid(each.pid, 0)
                yield each
        elif time.monotonic() > each.ends_at_s:
            _kill(each)
            each.told = b""
            yield each


def _kill(each: _Running) -> None:
    os.killpg(each.pid, signal.SIGKILL)
    os.waitpid(each.pid, 0)
    os.close(each.pipe)


def _judge(each: _Running, report: Report) -> None:
    report.done += 1
    if not each.told:
        report.cases[each.subject, "?", "?", "FAULT"] += 1
        report.faults.append((each.number, f"{each.subject}: it had not ended after its time, or was killed"))
        return
    harms, outcome, faults = msgspec.json.decode(
        each.told, type=tuple[list[tuple[str, str, str]], str, list[str]]
    )
    for act, kind, _ in harms:
        report.cases[each.subject, kind, act, outcome] += 1
    done = "; ".join(told for _, _, told in harms)
    report.faults += [(each.number, f"{each.subject}: {done}: {fault}") for fault in faults]


def tell(report: Report, again: str) -> None:
    """The report for a person."""
    for (subject, kind, act, outcome), count in sorted(report.cases.items()):
        print(f"  {subject:<12} {kind:<32} {act:<16} {outcome:<8} {count:>5}")
    print(f"{report.done} trials, {len({number for number, _ in report.faults})} with a fault")
    if not report.faults:
        print("no wrong byte, no loop without an end, no traceback, nothing lost in silence")
    for number, faults in itertools.islice(by_trial(report.faults), SHOWN_MAX):
        for fault in faults[:SHOWN_OF_EACH]:
            print(f"FAULT in {number}: {fault}")
        print(f"again: {again} --only {number}", flush=True)


def by_trial(faults: Sequence[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """The faults of each trial, by its number."""
    for number, found in itertools.groupby(sorted(faults), key=lambda each: each[0]):
        yield number, [fault for _, fault in found]


def options() -> argparse.Namespace:
    """The command line; HEALING_TRIALS in the environment is a default."""
    parser = argparse.ArgumentParser(prog="python -m tests.healing.trials", description=__doc__)
    parser.add_argument("--trials", type=int, default=int(os.environ.get("HEALING_TRIALS", TRIALS)))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, metavar="N", help="one trial, by its number")
    parser.add_argument("--subject", choices=SUBJECTS, action="append", help="nothing but this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials at once")
    parser.add_argument("--originals", type=Path, default=None, help="directories of an earlier run")
    return parser.parse_args()


def main() -> int:
    """The exit code."""
    asked = options()
    seed = secrets.randbelow(1 << 32) if asked.seed is None else asked.seed
    only = asked.subject or list(SUBJECTS)
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    work = Path(tempfile.mkdtemp(prefix="trials-", dir=MEMORY if in_memory else None))
    originals = asked.originals or work / "originals"
    print(f"seed {seed}: {asked.trials} trials in {work}", flush=True)
    for name in only:
        if not (originals / name).exists():
            SUBJECTS[name].prepare(originals / name, seed)
    numbers = range(asked.trials) if asked.only is None else [asked.only]
    report = run(originals, work, numbers, seed, only, asked.jobs)
    chosen = "".join(f" --subject {name}" for name in asked.subject or ())
    tell(report, f"python -m tests.healing.trials --seed {seed}{chosen} --originals {originals}")
    if report.faults:
        print(f"what the trials were made of: {originals}", flush=True)
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
