"""How long a cluster takes no changes when the coordinator that leads dies, or hangs.

    python -m bench.elections        (ELECTION_RUNS=15)

Three coordinators and one node on this machine, otherwise idle. The leader is killed, or stopped by SIGSTOP;
from then on one client creates file records at the node, again until one is acknowledged. Between two runs
all are well for SETTLED_S, and a moment more that differs from run to run, so that a run begins anywhere
between two heartbeats.
"""

import http.client
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ca.tls import client_context
from deploy.dev_cluster import DevelopmentCluster, Member
from deploy.processes import LOOPBACK

RUNS = int(os.environ.get("ELECTION_RUNS", "15"))
SETTLED_S = 3.0
RETRY_S = 0.005
REQUEST_TIMEOUT_S = 15.0
PATH = "/api/v1/project-files"


class Elections:
    """A running cluster, and one client of its node."""

    def __init__(self, cluster: DevelopmentCluster) -> None:
        self._cluster = cluster
        self._context = client_context(cluster.ca.read_text())
        self._headers = {
            "Authorization": f"Bearer {cluster.token_file.read_text().strip()}",
            "Content-Type": "application/json",
        }
        self._port = cluster.layout.of_role("node")[0].api_port

    def _leader(self) -> Member:
        """Who leads. Not while nobody does."""
        with closing(self._connect()) as connection:
            connection.request("GET", "/api/v1/cluster/status", headers=self._headers)
            status = json.loads(connection.getresponse().read())
        return next(each for each in self._cluster.layout.members if each.id == status["leader"])

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            LOOPBACK, self._port, timeout=REQUEST_TIMEOUT_S, context=self._context
        )

    def _change(self) -> None:
        """One change, tried until it is acknowledged."""
        with closing(self._connect()) as connection:
            while True:
                body = json.dumps({"filename": "bench.gns3p", "project_id": "bench"})
                connection.request("POST", PATH, body, self._headers)
                response = connection.getresponse()
                response.read()
                if response.status == http.HTTPStatus.CREATED:
                    return
                time.sleep(RETRY_S)

    def _settle(self) -> None:
        self._cluster.wait_healthy()
        self._change()
        time.sleep(SETTLED_S + random.random())

    def killed_s(self) -> float:
        """From SIGKILL of the leader to an acknowledged change."""
        self._settle()
        leader = self._leader()
        process = self._cluster.children[leader.id].process
        process.kill()
        took_s = self._timed()
        process.wait()
        self._cluster.start_member(leader)
        return took_s

    def hung_s(self) -> float:
        """The same for SIGSTOP."""
        self._settle()
        process = self._cluster.children[self._leader().id].process
        process.send_signal(signal.SIGSTOP)
        try:
            return self._timed()
        finally:
            process.send_signal(signal.SIGCONT)

    def _timed(self) -> float:
        began_at_s = time.perf_counter()
        self._change()
        return time.perf_counter() - began_at_s


def run(directory: Path) -> dict[str, list[float]]:
    """The seconds of every run."""
    cluster = DevelopmentCluster(directory / "cluster", node_count=1, replicas=1, write_quorum=1)
    try:
        cluster.start()
        elections = Elections(cluster)
        ways: dict[str, Callable[[], float]] = {"killed": elections.killed_s, "hung": elections.hung_s}
        return {name: sorted(way() for _ in range(RUNS)) for name, way in ways.items()}
    finally:
        cluster.stop()


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory:
        found = run(Path(directory))
    table = Table("leader", "least s", "median s", "mean s", "most s", title=f"bench.elections: {RUNS} runs")
    for name, times_s in found.items():
        figures = (times_s[0], statistics.median(times_s), statistics.mean(times_s), times_s[-1])
        table.add_row(name, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    rounded = {name: [round(each, 3) for each in times_s] for name, times_s in found.items()}
    print(json.dumps({"bench": "elections", "runs": RUNS, "seconds": rounded}))


if __name__ == "__main__":
    main()
