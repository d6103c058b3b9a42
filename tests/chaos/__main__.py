"""`python -m tests.chaos`: break a real cluster for CHAOS_S seconds, then say whether it kept its promises.

The program runs itself again in namespaces of its own where the machine allows that. One seed decides
which faults come when; timing is the machine's, so a seed does not repeat a run exactly. Ends with 1 when
anything was wrong, and leaves the data directory then.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.chaos import verdict
from tests.chaos.arena import Arena, opened, readers, writers
from tests.chaos.faults import KINDS, Kind
from tests.chaos.gaps import AFTERWARDS_S, AIM_S, Window
from tests.chaos.isolation import ISOLATED, isolate
from tests.chaos.nodes import NODE_NAMES
from tests.chaos.report import HASTY_NAME, Report, tell

CHAOS_S = 600.0
CALM_S = (0.2, 1.5)  # between two faults, on top of what belongs to the first
RECOVERY_S_MAX = 3.0
HASTY = 0.2  # of the faults
QUICK_PACE = 0.5  # what is left is still longer than most elections take


def options() -> argparse.Namespace:
    """The command line; CHAOS_S and CHAOS_MEMBERS in the environment are defaults."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("CHAOS_S", CHAOS_S)))
    parser.add_argument("--members", type=int, default=int(os.environ.get("CHAOS_MEMBERS", "3")))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", default="", help="names, separated by commas; all by default")
    parser.add_argument("--once", action="store_true", help="each fault once, quickly, instead of for a time")
    parser.add_argument("--recovery-s-max", type=float, default=RECOVERY_S_MAX, help="0: no bound")
    parser.add_argument("--report", type=Path, default=None, help="where a JSON file is written")
    parser.add_argument("--data", type=Path, default=None, help="an empty directory to work in")
    return parser.parse_args()


def main() -> int:
    """The exit code."""
    asked = options()
    isolate("tests.chaos")
    seed = secrets.randbelow(1 << 32) if asked.seed is None else asked.seed
    report = Report(seed, asked.members)
    chosen = choose(asked.faults, report)
    directory = asked.data or Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {seed}: {asked.members} coordinators, {len(NODE_NAMES)} nodes in {directory}", flush=True)
    uvloop.run(run(asked, chosen, directory, report))
    if report.recoveries_s and 0 < asked.recovery_s_max < max(report.recoveries_s):
        report.violations.append(f"a recovery took {max(report.recoveries_s):.2f} s")
    tell(report)
    if asked.report is not None:
        asked.report.write_text(json.dumps(report.__dict__))
    if report.violations:
        print(f"data and logs: {directory}", flush=True)
        return 1
    if asked.data is None:
        shutil.rmtree(directory)
    return 0


def choose(names: str, report: Report) -> list[Kind]:
    """The kinds of fault that were asked for and that this machine can do."""
    wanted = [name for name in names.split(",") if name] or [kind.name for kind in KINDS]
    unknown = set(wanted) - {kind.name for kind in KINDS}
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = []
    for kind in KINDS:
        if kind.name in wanted:
            if why_not := kind.why_not():
                report.skipped[kind.name] = why_not
            else:
                chosen.append(kind)
    return chosen


async def run(asked: argparse.Namespace, chosen: list[Kind], directory: Path, report: Report) -> None:
    """Chaos, then calm, then the verdict; all of it goes into the report."""
    async with opened(
        directory,
        count=asked.members,
        dice=random.Random(report.seed),
        networked=bool(os.environ.get(ISOLATED)),
        small_disk=any(kind.needs_disk for kind in chosen),
    ) as arena:
        arena.pace = QUICK_PACE if asked.once else 1.0
        for window in await under_load(arena, chosen, asked, report):
            writes_s, reads_s = arena.streams.around(window)
            report.gaps_s[HASTY_NAME if window.is_hasty else window.name].append(
                (round(writes_s, 3), round(reads_s, 3))
            )
            if max(writes_s, reads_s) > AIM_S:
                report.long_gaps.append(f"{window}: writes {writes_s:.2f} s, reads {reads_s:.2f} s")
        arena.heal()
        await conclude(arena, report)
        report.violations = verdict.judge(arena)
        ledger = arena.workload.ledger
        report.recoveries_s = arena.recoveries_s
        report.outcomes, report.errors = dict(ledger.outcomes), dict(ledger.errors)
        report.operations = len(ledger.history)
        if report.violations:
            history = [str(o) + " " + o.key for o in ledger.history]
            (directory / "history.txt").write_text("\n".join(history))


async def conclude(arena: Arena, report: Report) -> None:
    """Read everything once more, end everybody in order, and compare what they leave."""
    if not await verdict.wait_for_agreement(arena):
        return
    await verdict.final_reads(arena)
    await arena.contents.read_everything()
    await arena.cold.be_mended()
    report.contents, report.contents_stored = len(arena.contents.kept), arena.contents.stored_count
    report.packed = await asyncio.to_thread(verdict.packed, arena)
    await verdict.stop_nodes(arena)  # they propose changes
    report.cold, report.cold_acts = await asyncio.to_thread(arena.cold.judge), dict(arena.cold.counts)
    if await verdict.wait_for_agreement(arena):
        await verdict.stop_members(arena)
        stopped = list(arena.members.values())
        arena.faults.extend(await asyncio.to_thread(verdict.compare_states, stopped))


async def under_load(
    arena: Arena, chosen: list[Kind], asked: argparse.Namespace, report: Report
) -> list[Window]:
    """Faults while clients work, until the time is over; when each was."""
    clients, windows = writers(arena), list[Window]()
    async with asyncio.TaskGroup() as group:
        with contextlib.suppress(TimeoutError):
            await arena.settled()
        await arena.resumed(arena.now_s(), "the start")
        group.create_task(arena.workload.run([*clients, *readers(arena)]))
        group.create_task(arena.contents.run())
        group.create_task(arena.cold.run())
        group.create_task(arena.streams.run())
        until = arena.now_s() + asked.seconds
        deck: list[Kind] = []
        while chosen and (asked.once or arena.now_s() < until):
            if not deck:
                deck = arena.dice.sample(chosen, len(chosen))
            windows.append(await strike(arena, deck.pop(), report))
            if asked.once and not deck:
                break
        arena.workload.stop()
        arena.contents.stop()
        arena.cold.stop()
        arena.streams.stop()
    return windows


async def strike(arena: Arena, kind: Kind, report: Report) -> Window:
    """One fault and the calm after it; when it was.

    Some come before all members are back from the one before: what clients wait then is counted by itself.
    """
    is_hasty = arena.dice.random() < HASTY and arena.pace >= 1
    if not is_hasty:
        with contextlib.suppress(TimeoutError):
            await arena.settled()
    arena.victim, began_at = "", arena.now_s()
    try:
        await kind.inject(arena)
    except TimeoutError:
        arena.faults.append(f"at {arena.now_s():.1f} s: {kind.name} could not be done in time")
        arena.heal()
    mended_at = arena.now_s()
    took_s = await arena.resumed(mended_at, f"{kind.name} was mended")
    report.faults[kind.name] += 1
    report.resumed_s[kind.name].append(-1.0 if took_s is None else round(took_s, 3))
    window = Window(kind.name, arena.victim, began_at, mended_at, is_hasty=is_hasty)
    report.timeline.append(str(window))
    await asyncio.sleep(AFTERWARDS_S + arena.dice.uniform(*CALM_S) * arena.pace)
    return window


if __name__ == "__main__":
    sys.exit(main())
