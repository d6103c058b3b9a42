"""What a cluster costs that nobody asks anything: processor time and wake-ups of each of its processes.

    python -m bench.idle        (IDLE_S=60, IDLE_WORKERS=1)

Three coordinators and three nodes on this machine. A wake-up is a voluntary context switch of any thread of
the process: it had nothing to do, and was woken. The yardstick is a process of this interpreter that does
nothing but sleep for 0.1 s at a time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from deploy.dev_cluster import DevelopmentCluster

MEASURED_S = float(os.environ.get("IDLE_S", "60"))
WORKERS = os.environ.get("IDLE_WORKERS", "1")
SETTLING_S = 20.0  # what a start leaves to do has been done by then
CPU_PERCENT_MAX = 1.0
WAKE_UPS_MAX = 10.0
SLEEPER = (sys.executable, "-c", "import time\nwhile True: time.sleep(0.1)")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one process, or of a process and its children, since its start."""

    cpu_s: float
    wake_ups: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Of one member: percent of a core, and wake-ups per second."""

    name: str
    processes: int
    cpu_percent: float
    wake_ups_per_s: float


def counters(pid: int) -> Counters:
    """Of a process and all of its threads, living or dead for the time, living for the wake-ups."""
    directory = Path("/proc") / str(pid)
    # The name of a process may hold spaces and brackets (proc_pid_stat(5)).
    fields = (directory / "stat").read_text().rpartition(")")[2].split()
    switches = 0
    for status in directory.glob("task/*/status"):
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        switches += int(lines["voluntary_ctxt_switches"])
    return Counters((int(fields[11]) + int(fields[12])) / TICKS_PER_S, switches)


def family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for children in (Path("/proc") / str(pid)).glob("task/*/children"):
        for child in children.read_text().split():
            yield from family(int(child))


def measure(pids: dict[str, int]) -> list[Idle]:
    """All at once, for MEASURED_S."""
    families = {name: list(family(pid)) for name, pid in pids.items()}
    before = {pid: counters(pid) for members in families.values() for pid in members}
    began_at_s = time.monotonic()
    time.sleep(MEASURED_S)
    after = {pid: counters(pid) for pid in before}
    took_s = time.monotonic() - began_at_s
    return [
        Idle(
            name,
            len(members),
            100 * sum(after[pid].cpu_s - before[pid].cpu_s for pid in members) / took_s,
            sum(after[pid].wake_ups - before[pid].wake_ups for pid in members) / took_s,
        )
        for name, members in families.items()
    ]


def run(directory: Path) -> list[Idle]:
    """Every member, and the yardstick."""
    cluster = DevelopmentCluster(directory / "cluster", node_options=("--workers", WORKERS))
    with subprocess.Popen(SLEEPER) as sleeper:
        try:
            cluster.start()
            time.sleep(SETTLING_S)
            pids = {name: child.process.pid for name, child in cluster.children.items()}
            return measure({"sleeps for 0.1 s at a time": sleeper.pid} | pids)
        finally:
            cluster.stop()
            sleeper.kill()


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory:
        found = run(Path(directory))
    title = f"bench.idle: {MEASURED_S:g} s; at most {CPU_PERCENT_MAX:g} % and {WAKE_UPS_MAX:g} wake-ups/s"
    table = Table("who", "processes", "% of a core", "wake-ups/s", title=title)
    for each in found:
        table.add_row(each.name, str(each.processes), f"{each.cpu_percent:.2f}", f"{each.wake_ups_per_s:.1f}")
    Console().print(table)
    members = {each.name: [round(each.cpu_percent, 2), round(each.wake_ups_per_s, 1)] for each in found}
    print(json.dumps({"bench": "idle", "seconds": MEASURED_S, "workers": int(WORKERS), "members": members}))


if __name__ == "__main__":
    main()
