"""One line of a benchmark's table, whatever it measured: shown to people, and as JSON for machines."""

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RUNS = int(os.environ.get("DATAPATH_RUNS", "5"))
CASES = os.environ.get("DATAPATH_CASES", "")  # what is to be measured; "" is everything


def _ticks() -> tuple[int, int, int]:
    """Of all cores since their start: altogether, idle, and taken by other machines (proc_stat(5))."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
    _user, _nice, _system, idle, waiting, _irq, _soft, stolen = ticks
    return sum(ticks), idle + waiting, stolen


_BEGAN = _ticks()
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def congestion_control() -> str:
    """What paces the kernel's connections: of what goes over loopback it decides more than who serves."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def busy_s() -> float:
    """Processor time of the whole machine so far: of processes, of the kernel's threads, of interrupts."""
    whole, idle, stolen = _ticks()
    return (whole - idle - stolen) / TICKS_PER_S


def shares() -> tuple[float, float]:
    """Of the processor's time since this began: how much other machines took, and how much nobody used.

    Where much was taken, figures say little, and ratios more.
    """
    whole, idle, stolen = (now - then for now, then in zip(_ticks(), _BEGAN, strict=True))
    return stolen / max(whole, 1), idle / max(whole, 1)


class Skipped(Exception):
    """What is needed to measure it is missing; the text says what."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One run of one case: MiB or requests per second, and CPU seconds of who serves, per GiB or 10,000.

    `machine_cpu_s`: those of the whole machine, as far as they were counted.
    """

    per_s: float
    server_cpu_s: float = 0.0
    machine_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """`ratio` is that of `value` to `yardstick`, run by run; `target` is what it should be at least.

    Without a yardstick (0), `value` itself should be `target` at most. A target of 0 is none. Each figure is
    the median of `runs`, 0 for as many as all others of the benchmark.
    """

    name: str
    unit: str
    value: float
    yardstick: float = 0.0
    ratio: float = 0.0
    target: float = 0.0
    cpu_s: float = 0.0
    yardstick_cpu_s: float = 0.0
    cpu_ratio: float = 0.0
    runs: int = 0

    @property
    def is_met(self) -> bool | None:
        """Whether the target is; None without one."""
        if not self.target:
            return None
        return self.ratio >= self.target if self.yardstick else self.value <= self.target

    @classmethod
    def compared(cls, name: str, unit: str, target: float, pairs: Sequence[tuple[Figure, Figure]]) -> "Row":
        """Medians over the runs, each a pair of what is measured and its yardstick."""

        def median(of: Callable[[tuple[Figure, Figure]], float]) -> float:
            return statistics.median(of(pair) for pair in pairs)

        cpu_ratios = [ours.server_cpu_s / its.server_cpu_s for ours, its in pairs if its.server_cpu_s]
        return cls(
            name=name,
            unit=unit,
            value=median(lambda pair: pair[0].per_s),
            yardstick=median(lambda pair: pair[1].per_s),
            ratio=median(lambda pair: pair[0].per_s / max(pair[1].per_s, 1e-9)),
            target=target,
            cpu_s=median(lambda pair: pair[0].server_cpu_s),
            yardstick_cpu_s=median(lambda pair: pair[1].server_cpu_s),
            cpu_ratio=statistics.median(cpu_ratios) if cpu_ratios else 0.0,
            runs=len(pairs),
        )


def show(title: str, rows: Sequence[Row]) -> None:
    """The table for people."""
    stolen, idle = shares()
    table = Table(
        *("case", "measured", "yardstick", "ratio", "target", "CPU s", "yardstick's", "met"),
        title=title,
        caption=f"of the processor's time, {stolen:.0%} was taken by other machines, {idle:.0%} by nobody; "
        f"TCP under {congestion_control()}",
    )
    for row in rows:
        table.add_row(
            row.name,
            f"{_short(row.value)} {row.unit}",
            _short(row.yardstick) if row.yardstick else "",
            f"{row.ratio:.2f}" if row.yardstick else "",
            (f"≥ {row.target:g}" if row.yardstick else f"≤ {row.target:g}") if row.target else "",
            f"{row.cpu_s:.2f}" if row.cpu_s else "",
            f"{row.yardstick_cpu_s:.2f}" if row.yardstick_cpu_s else "",
            {True: "yes", False: "no", None: ""}[row.is_met],
        )
    Console(width=130).print(table)


def _short(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def as_json(bench: str, runs: int, rows: Sequence[Row]) -> Mapping[str, object]:
    """What the last line of a benchmark says."""
    found = {
        row.name: {
            "value": round(row.value, 3),
            "unit": row.unit,
            "yardstick": round(row.yardstick, 3) if row.yardstick else None,
            "ratio": round(row.ratio, 3) if row.yardstick else None,
            "target": row.target or None,
            "met": row.is_met,
            "cpu_s": round(row.cpu_s, 3) if row.cpu_s else None,
            "yardstick_cpu_s": round(row.yardstick_cpu_s, 3) if row.yardstick_cpu_s else None,
            "cpu_ratio": round(row.cpu_ratio, 3) if row.cpu_ratio else None,
            "runs": row.runs or runs,
        }
        for row in rows
    }
    stolen = round(shares()[0], 3)
    return {
        "bench": bench,
        "runs": runs,
        "cores": os.cpu_count(),
        "tcp": congestion_control(),
        "stolen_share": stolen,
        "rows": found,
    }


def report(bench: str, runs: int, rows: Callable[[Path], list[Row]], *, title: str = "") -> None:
    """Measure in an empty directory; print the table and the JSON line. Skipped: there are no rows."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        try:
            found = rows(Path(name))
        except Skipped as reason:
            print(f"bench.{bench}: skipped: {reason}")
            found = []
    show(f"bench.{bench}: medians of {runs}{title}", found)
    print(json.dumps(as_json(bench, runs, found)))
