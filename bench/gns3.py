"""A night in which nothing has changed: `filestore gns3 backup --all` beside the exports alone.

    python -m bench.gns3

Thirty projects of up to 300 MB on a real gns3-server, which `make gns3` installs too; their backups lie in a
cluster of three nodes. An export costs the GNS3 server most: whether a project has changed is known at its
end only. So the exports alone, by one client that reads them and nothing else, are the yardstick. Both take
turns; the first pair does not count.
"""

import time
from pathlib import Path

from bench.rows import Figure, Row, Skipped, report
from tests.cluster.harness import Cluster
from tests.gns3.installed import NotInstalled, installed
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.thirty_projects import thirty_projects

RUNS = 5
RATIO_MIN = 1 / 1.2  # nights per hour, of the exports alone


def rows(directory: Path) -> list[Row]:
    """The one row. Raises Skipped where gns3-server cannot be installed."""
    try:
        program = installed()
    except NotInstalled as error:
        raise Skipped(str(error)) from error
    with Cluster(directory / "store") as store, LabServer(program, directory / "labs") as labs:
        operator = Operator(store, directory / "operator")
        operator.login("labs", labs)
        count = len(thirty_projects(labs))
        _require(operator.backup("--all", "--server", "labs"), count, "stored")
        stored_bytes = operator.stored_bytes()
        pairs = [(_night(operator, count), _exports(labs)) for _ in range(RUNS + 1)][1:]
        assert operator.stored_bytes() == stored_bytes, "an unchanged night stored something"
    name = f"unchanged night of {count} projects / exports alone"
    return [Row.compared(name, "projects/s", RATIO_MIN, pairs)]


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
