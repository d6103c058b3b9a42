"""What a run came to, and how it is told."""

import collections
import statistics
from dataclasses import dataclass, field

from tests.chaos.gaps import AIM_S

NAME_WIDTH = 18
HASTY_NAME = "(two at once)"  # the row of faults that began before all were back from another


@dataclass
class Report:
    """What is printed in the end, and written as JSON for a test."""

    seed: int
    members: int
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    resumed_s: dict[str, list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    gaps_s: dict[str, list[tuple[float, float]]] = field(  # of writes and of reads, around each
        default_factory=lambda: collections.defaultdict(list)
    )
    long_gaps: list[str] = field(default_factory=list)  # those above AIM_S, and around what
    skipped: dict[str, str] = field(default_factory=dict)
    recoveries_s: list[float] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    operations: int = 0
    contents_stored: int = 0
    contents: int = 0  # of these, that were not deleted
    packed: int = 0  # of the latter
    cold: int = 0  # of the same
    cold_acts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    timeline: list[str] = field(default_factory=list)


def tell(report: Report) -> None:
    """The report for a person."""
    _tell_gaps(report)
    for name, why_not in report.skipped.items():
        print(f"  {name:<{NAME_WIDTH}} skipped: {why_not}")
    if recoveries_s := report.recoveries_s:
        median_s, worst_s = statistics.median(recoveries_s), max(recoveries_s)
        print(
            f"recovery after the death of the leader: {len(recoveries_s)} times,"
            f" median {median_s:.2f} s, worst {worst_s:.2f} s"
        )
    stored, kept = report.contents_stored, report.contents
    print(f"contents: {stored} stored, {kept} kept, of which {report.packed} in packs and {report.cold} cold")
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(report.cold_acts.items())))
    print(f"operations: {report.operations}")
    for name, count in sorted(report.outcomes.items()):
        print(f"  {name:<26} {count:>8}")
    for name, count in sorted(report.errors.items()):
        print(f"  refused: {name:<17} {count:>8}")
    if not report.violations:
        print(
            "no lost acknowledged write, no stale read, no double apply, equal state on all members,"
            " every content whole on every node"
        )
    for text in report.violations:
        print(f"VIOLATION {text}")
    if report.violations:
        print("\n".join(("what was done when:", *report.timeline)))
        print(f"seed {report.seed}", flush=True)


def _tell_gaps(report: Report) -> None:
    """The longest gap around each fault, as two clients saw it, and each that is longer than AIM_S."""
    print(f"{'longest gaps in seconds':<{NAME_WIDTH + 8}}      writes            reads       writes resumed")
    print(f"{'fault':<{NAME_WIDTH + 2}} count" + "    median  worst" * 2 + "    after its end")
    for name, gaps_s in sorted(report.gaps_s.items()):
        columns = [*zip(*gaps_s, strict=True), report.resumed_s.get(name, [])]
        figures = "".join(f"    {statistics.median(each):6.2f} {max(each):6.2f}" for each in columns if each)
        print(f"  {name:<{NAME_WIDTH}} {len(gaps_s):>5}{figures}")
    for text in report.long_gaps:
        print(f"  above {AIM_S} s: {text}")
