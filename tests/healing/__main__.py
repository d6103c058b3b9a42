"""`python -m tests.healing`: random operations on a real cluster, then quiet, then the verdict.

One seed decides which operations come, with what content and against which node; timing is the machine's, so
a seed does not repeat a run exactly. The program runs itself again in namespaces of its own where the machine
allows that, so that no port is taken by others and one node can have a small disk. Ends with 1 when anything
was wrong, and leaves the data directory then.
"""

import argparse
import collections
import json
import os
import random
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ca.errors import Unavailable
from tests.chaos.isolation import isolate, why_no_disk
from tests.healing import acts, damage, disks, quiet, verdict
from tests.healing.clients import (
    Clients,
    beginning,
    deleting,
    going_on,
    looping,
    reading,
    uploading,
    uploading_often,
    withdrawing,
)
from tests.healing.stage import Stage, opened

OPERATIONS = 1000
LOOPS = 4  # files that one client uploads and deletes in a row
CALM_S = (0.0, 0.4)  # after an act on a node, for it to have an effect
# How often each comes, in any unit. Clients do most, so that there is something to lose.
CLIENTS: Mapping[str, int] = {
    "upload": 30,
    "upload again": 12,
    "upload often": 2,
    "upload within a quota": 12,
    "loop": 3,
    "withdraw": 6,
    "delete": 14,
    "read": 12,
    "upload part": 8,
    "go on": 8,
}
AGAIN = ("upload again", "upload often")
ACTS: Mapping[str, tuple[int, Callable[[Stage], str]]] = {
    "kill": (4, acts.kill),
    "restart": (6, acts.restart),
    "hang": (3, acts.hang),
    "wake": (5, acts.wake),
    "kill leader": (1, acts.kill_leader),
    "drain": (2, acts.drain),
    "undrain": (2, acts.undrain),
    "remove": (1, acts.remove),
    "join": (1, acts.join),
    "flip": (4, damage.flip),
    "truncate": (2, damage.truncate),
    "unlink": (2, damage.unlink),
    "link": (1, damage.link),
    "forbid": (1, damage.forbid),
    "scatter": (3, damage.scatter),
    "fill": (1, acts.fill),
    "sicken": (3, disks.sicken),
    "mend": (5, disks.mend),
    "poison": (3, disks.poison),
    "cure": (1, disks.cure),
    "free": (2, acts.free),
    "age": (2, acts.age),
    "job": (4, acts.run_job),
    "storage": (2, acts.change_storage),
    "quota": (3, acts.change_quota),
}
_NAME = re.compile(r" [0-9a-f-]{7,}")


@dataclass
class Report:
    """What is printed in the end, and written as JSON for a test."""

    seed: int
    operations: collections.Counter[str] = field(default_factory=collections.Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    files: int = 0
    blobs: int = 0
    packed: int = 0  # of these
    blob_bytes: int = 0
    chaos_s: float = 0.0
    quiet_s: float = 0.0
    rounds: int = 0
    faults: list[str] = field(default_factory=list)


def options() -> argparse.Namespace:
    """The command line; HEALING_OPERATIONS in the environment is a default."""
    parser = argparse.ArgumentParser(prog="python -m tests.healing", description=__doc__)
    count = int(os.environ.get("HEALING_OPERATIONS", OPERATIONS))
    parser.add_argument("--operations", type=int, default=count)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--report", type=Path, default=None, help="where a JSON file is written")
    parser.add_argument("--data", type=Path, default=None, help="an empty directory to work in")
    return parser.parse_args()


def main() -> int:
    """The exit code."""
    asked = options()
    isolate("tests.healing")
    report = Report(secrets.randbelow(1 << 32) if asked.seed is None else asked.seed)
    if why_not := why_no_disk():
        report.skipped["fill"] = why_not
    directory = asked.data or Path(tempfile.mkdtemp(prefix="healing-"))
    print(f"seed {report.seed}: {asked.operations} operations in {directory}", flush=True)
    run(directory, asked.operations, report)
    tell(report, asked.operations)
    if asked.report is not None:
        asked.report.write_text(json.dumps(report.__dict__))
    if report.faults:
        print(f"data, logs and history: {directory}", flush=True)
        return 1
    if asked.data is None:
        shutil.rmtree(directory)
    return 0


def run(directory: Path, count: int, report: Report) -> None:
    """Operations, quiet, verdict; all of it goes into the report."""
    with opened(directory, report.seed, small_disk="fill" not in report.skipped) as stage:
        try:
            began_at_s = time.monotonic()
            with Clients(stage) as clients:
                operate(stage, clients, count, report)
            report.chaos_s = time.monotonic() - began_at_s
            report.rounds = quiet.settle(stage)
            report.quiet_s = time.monotonic() - began_at_s - report.chaos_s
            report.faults = verdict.judge(stage)
            report.packed = verdict.packed_blobs(stage)
            sums = "SELECT COUNT(*), IFNULL(SUM(size_bytes), 0) FROM blobs"
            ((report.blobs, report.blob_bytes),) = stage.logged(sums)
        except Unavailable as error:  # something was waited for that did not come
            stage.watch()  # maybe since a process has ended
            report.faults = [*stage.ledger.faults, error.details]
        finally:
            quiet.wake_all(stage)  # else it could not be ended in order
            (directory / "history.txt").write_text("\n".join([*stage.history, ""]))
        report.outcomes = dict(summed(stage.ledger.outcomes))
        report.files = len(stage.ledger.stored())
        stage.cluster.terminate(*[m for m in stage.cluster.members if m.id not in stage.removed])
        report.faults += verdict.examine(stage)


def operate(stage: Stage, clients: Clients, count: int, report: Report) -> None:
    """So many operations, of kinds that the dice choose. What cannot be done at the moment is not counted."""
    weights = dict(CLIENTS) | {name: weight for name, (weight, _) in ACTS.items()}
    number = 0
    while number < count:
        (name,) = stage.dice.choices(list(weights), list(weights.values()))
        if name in CLIENTS:
            is_done = begin(stage, clients, name, number)
        else:
            is_done = strike(stage, name, number)
        stage.watch()
        if is_done:
            number += 1
            report.operations[name] += 1


def begin(stage: Stage, clients: Clients, name: str, number: int) -> bool:
    """Have a client do something; whether there was something to do."""
    ledger, dice = stage.ledger, stage.dice
    if name == "upload" or (name in AGAIN and not ledger.contents):
        clients.begin(name, number, uploading(ledger.new_content()))
        return True
    if name == "upload often":
        clients.begin(name, number, uploading_often(dice.choice(ledger.contents)))
        return True
    if name == "upload again":
        clients.begin(name, number, uploading(dice.choice(ledger.contents)))
        return True
    if name == "upload part":
        clients.begin(name, number, beginning(ledger.new_content()))
        return True
    if name == "go on":
        part = ledger.take_part(dice)
        if part is not None:
            clients.begin(name, number, going_on(part))
        return part is not None
    if name == "upload within a quota":
        clients.begin(name, number, uploading(ledger.new_content(), stage.bucket_id))
        return True
    if name == "loop":
        contents = [ledger.new_content() for _ in range(LOOPS)]
        clients.begin(name, number, looping(contents, stage.bucket_id))
        return True
    if name == "withdraw":
        clients.begin(name, number, withdrawing(ledger.new_content()))
        return True
    files = ledger.stored()
    if files:
        file = dice.choice(files)
        clients.begin(name, number, reading(file) if name == "read" else deleting(file))
    return bool(files)


def strike(stage: Stage, name: str, number: int) -> bool:
    """Do something to a node, a replica or a job; whether it could be done now."""
    did = ACTS[name][1](stage)
    if did:
        stage.note(f"#{number} {name}: {did}")
        time.sleep(random.Random(f"{stage.ledger.seed} calm {number}").uniform(*CALM_S))
    return bool(did)


def summed(outcomes: Mapping[str, int]) -> collections.Counter[str]:
    """Outcomes without the names of files."""
    sums: collections.Counter[str] = collections.Counter()
    for text, count in outcomes.items():
        sums[_NAME.sub("", text)] += count
    return sums


def tell(report: Report, count: int) -> None:
    """The report for a person."""
    for name, done in sorted(report.operations.items()):
        print(f"  {name:<14} {done:>5}")
    for name, why_not in report.skipped.items():
        print(f"  {name:<14} skipped: {why_not}")
    for name, done in sorted(report.outcomes.items()):
        print(f"  {name:<34} {done:>5}")
    print(
        f"{sum(report.operations.values())} operations in {report.chaos_s:.0f} s, at rest after"
        f" {report.quiet_s:.0f} s and {report.rounds} rounds: {report.files} files, {report.blobs} blobs"
        f" ({report.packed} in packs), {report.blob_bytes / 1e6:.0f} MB"
    )
    if not report.faults:
        print("every file is right on every node, every blob has its replicas, every disk what it should")
    for text in report.faults:
        print(f"FAULT {text}")
    if report.faults:
        print(f"again: python -m tests.healing --seed {report.seed} --operations {count}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
