"""Nights of labs: full backups beside restic and borg, and exports beside a client that reads them alone.

    python -m bench.gns3

First `filestore gns3 backup --local`, restic and borg (where they are installed) back up the same folder of
projects of a real gns3-server, turn by turn: a first night, nights without a change, one with a hundredth of
every disk changed, one with a hundredth of one disk. Each round has new stores and new projects. A cluster of
three nodes keeps three replicas and turns them cold after the night; restic and borg keep one copy on this
disk. Processor time is that of the command; of Filestore, the machine's is shown too, which has the nodes.
GNS3_ROUNDS, COLD_PROJECTS and COLD_MB change how much is done.

Then thirty projects of up to 300 MB on a gns3-server are exported. An export costs the GNS3 server most:
whether a project has changed is known at its end only. So the exports alone are the yardstick. Both take
turns; the first pair does not count.
"""

import os
import resource
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.cold import PROJECTS, Product, Project, other_stores, show, size_of
from bench.rows import Figure, Row, Skipped, busy_s, report
from tests.cluster.harness import FILESTORE, Cluster
from tests.gns3.installed import NotInstalled, installed
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.thirty_projects import thirty_projects

RUNS: Final = 5
ROUNDS: Final = int(os.environ.get("GNS3_ROUNDS", "3"))
RATIO_MIN: Final = 1 / 1.2
SETTLED_S: Final = 0.3  # a project whose files are younger is stored again
UNCHANGED: Final = "unchanged"
ONE: Final = "1 % of one disk changed"
NIGHTS: Final = ("first", UNCHANGED, UNCHANGED, "1 % of each disk changed", UNCHANGED, ONE)


@dataclass(frozen=True, slots=True)
class Cost:
    """One night of one store. `stored_bytes`: of one copy, of all nights so far."""

    took_s: float
    cpu_s: float
    machine_cpu_s: float
    stored_bytes: float
    sent_bytes: float


@dataclass(frozen=True, slots=True)
class Store:
    """A store: a night of it, the bytes of one copy, and the bytes that it has received so far."""

    name: str
    backup: Callable[[int], object]
    stored_bytes: Callable[[], float]
    received_bytes: Callable[[], float]
    rest: Callable[[], object] = lambda: None

    def night(self, number: int) -> Cost:
        """Back up once, and measure it; what the store does afterwards is not in its time."""
        sent_bytes, machine_s, cpu_s = self.received_bytes(), busy_s(), _children_s()
        began_s = time.perf_counter()
        self.backup(number)
        took_s = time.perf_counter() - began_s
        machine_s, cpu_s = busy_s() - machine_s, _children_s() - cpu_s
        sent_bytes = self.received_bytes() - sent_bytes
        self.rest()
        return Cost(took_s, cpu_s, machine_s, self.stored_bytes(), sent_bytes)


def _children_s() -> float:
    """Processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stores_beside(directory: Path, labs: LabServer, stack: ExitStack) -> list[Store]:
    """All stores, new and empty."""
    product = Product(directory, stack)
    environment = os.environ | {
        "FILESTORE_URL": " ".join(node.url for node in product.cluster.layout.of_role("node")),
        "FILESTORE_CA": str(product.cluster.ca),
        "FILESTORE_TOKEN_FILE": str(product.cluster.token_file),
        "XDG_CONFIG_HOME": str(directory / "config"),
        "XDG_STATE_HOME": str(directory / "state"),
    }

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [FILESTORE, "gns3", *arguments], env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    command("login", labs.url, "--name", "labs", "--password-file", str(labs.password_file))
    backup = ("backup", "--all", "--bucket", "nights", "--local", str(labs.projects_path))
    mine = Store(
        "Filestore", lambda _: command(*backup), product.stored_bytes, product.received_bytes, product.freeze
    )
    others = [
        Store(name, partial(run, labs.projects_path), partial(size_of, place), partial(size_of, place))
        for name, place, run in other_stores(directory)
    ]
    return [mine, *others]


def round_of_nights(program: Path, directory: Path) -> list[dict[str, Cost]]:
    """The costs of each night, by the name of the store."""
    with ExitStack() as stack:
        labs = stack.enter_context(LabServer(program, directory / "labs"))
        projects: list[Project] = []
        for number in range(PROJECTS):
            place = labs.projects_path / labs.make_project(f"lab {number}") / "project-files" / "qemu"
            projects.append(Project(place, number))
        stores = stores_beside(directory, labs, stack)
        costs: list[dict[str, Cost]] = []
        for number, night in enumerate(NIGHTS):
            if night not in ("first", UNCHANGED):
                for project in projects[:1] if night == ONE else projects:
                    project.change()
            time.sleep(SETTLED_S)
            costs.append({store.name: store.night(number) for store in stores})
        show("content of the projects", f"{size_of(labs.projects_path) / 1e6:.0f} MB")
        return costs


def local_rows(program: Path, directory: Path) -> list[Row]:
    """All rounds: a table for people, and rows for the promises."""
    found: dict[str, list[dict[str, Cost]]] = defaultdict(list)
    for number in range(ROUNDS):
        place = directory / f"round{number}"
        place.mkdir()
        for night, costs in zip(NIGHTS, round_of_nights(program, place), strict=True):
            found[night].append(costs)
    for night, runs in found.items():
        for name in runs[0]:
            show(f"{night} ({len(runs)} runs), {name}", *_medians([costs[name] for costs in runs]))
    if len(found["first"][0]) == 1:
        return []

    def against(night: str, figure: Callable[[Cost], float]) -> list[tuple[Figure, Figure]]:
        """Filestore and the better of the others, each as how many for one."""
        pairs: list[tuple[Figure, Figure]] = []
        for costs in found[night]:
            best = min(figure(cost) for name, cost in costs.items() if name != "Filestore")
            pairs.append((Figure(1 / figure(costs["Filestore"])), Figure(1 / best)))
        return pairs

    rows = [Row.compared("unchanged night", "nights/s", RATIO_MIN, against(UNCHANGED, lambda it: it.took_s))]
    for night in ("first", ONE):
        pairs = against(night, lambda it: it.stored_bytes / 1e9)
        rows.append(Row.compared(f"stored after night '{night}'", "of a GB", RATIO_MIN, pairs))
    return rows


def _medians(costs: list[Cost]) -> tuple[str, str]:
    def of(name: str) -> float:
        return float(statistics.median(getattr(cost, name) for cost in costs))

    return (
        f"{of('took_s'):.2f} s, CPU {of('cpu_s'):.2f} s ({of('machine_cpu_s'):.1f})",
        f"stored {of('stored_bytes') / 1e6:.1f} MB, sent {of('sent_bytes') / 1e6:.1f} MB",
    )


def rows(directory: Path) -> list[Row]:
    """All rows. Raises Skipped where gns3-server cannot be installed."""
    try:
        program = installed()
    except NotInstalled as error:
        raise Skipped(str(error)) from error
    return [*local_rows(program, directory), _export_row(program, directory)]


def _export_row(program: Path, directory: Path) -> Row:
    with Cluster(directory / "store") as store, LabServer(program, directory / "labs") as labs:
        operator = Operator(store, directory / "operator")
        operator.login("labs", labs)
        count = len(thirty_projects(labs))
        _require(operator.backup("--all", "--server", "labs"), count, "stored")
        stored_bytes = operator.stored_bytes()
        pairs = [(_night(operator, count), _exports(labs)) for _ in range(RUNS + 1)][1:]
        assert operator.stored_bytes() == stored_bytes, "an unchanged night stored something"
    name = f"unchanged night of {count} exported projects / exports alone"
    return Row.compared(name, "projects/s", RATIO_MIN, pairs)


def _night(operator: Operator, count: int) -> Figure:
    began_s = time.perf_counter()
    _require(operator.backup("--all", "--server", "labs"), count, "unchanged")
    return Figure(count / (time.perf_counter() - began_s))


def _require(statuses: dict[str, str], count: int, status: str) -> None:
    assert list(statuses.values()) == [status] * count, statuses


def _exports(labs: LabServer) -> Figure:
    began_s = time.perf_counter()
    ids = [project["project_id"] for project in labs.call("GET", "/projects")]
    for project_id in ids:
        assert labs.request("GET", f"/projects/{project_id}/export")[0] == 200
    return Figure(len(ids) / (time.perf_counter() - began_s))


def main() -> None:
    """Print the table and the JSON line."""
    report("gns3", RUNS, rows)


if __name__ == "__main__":
    main()
