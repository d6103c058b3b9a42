"""A first look at speed: a development cluster on this machine, clients and servers sharing its cores.

    python -m bench.smoke

Four nodes and three replicas, so that one node always has to fetch what it serves from another. Each
number is the median of RUNS; yardsticks are measured in the same run. No claim about networks: everything
is loopback and TLS.
"""

import asyncio
import http.client
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import yardstick
from ca.tls import client_context
from deploy.dev_cluster import DevelopmentCluster, Member

RUNS = 5
CREATE_SECONDS = 3.0
CLIENTS = 32
FILE_BYTES = 128 << 20
REQUEST_TIMEOUT_S = 30.0


class Bench:
    """A running cluster and the ways to load it."""

    def __init__(self, cluster: DevelopmentCluster) -> None:
        self._cluster = cluster
        self._context = client_context(cluster.ca.read_text())
        self._headers = {"Authorization": f"Bearer {cluster.token_file.read_text().strip()}"}
        self.nodes = cluster.layout.of_role("node")

    def connect(self, node: Member) -> http.client.HTTPSConnection:
        """A keep-alive connection to a node."""
        return http.client.HTTPSConnection(
            "127.0.0.1", node.api_port, timeout=REQUEST_TIMEOUT_S, context=self._context
        )

    def creates_per_s(self, clients: int) -> float:
        """Project file records made per second by so many clients, each waiting for every answer."""
        counts = [0] * clients
        stop_at = time.perf_counter() + CREATE_SECONDS
        body = json.dumps({"filename": "bench.gns3p", "project_id": "bench"})

        def run(client: int) -> None:
            with closing(self.connect(self.nodes[client % len(self.nodes)])) as connection:
                while time.perf_counter() < stop_at:
                    headers = self._headers | {"Content-Type": "application/json"}
                    connection.request("POST", "/api/v1/project-files", body, headers)
                    response = connection.getresponse()
                    response.read()
                    assert response.status == 201, response.status
                    counts[client] += 1

        threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / CREATE_SECONDS

    def store(self, path: Path) -> tuple[str, float]:
        """Upload new random content by tus to the node that holds the upload; its file_uuid and bytes per
        second.
        """
        with path.open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
        return asyncio.run(self._store(path))

    async def _store(self, path: Path) -> tuple[str, float]:
        async with self._cluster.client() as client:
            start = time.perf_counter()
            file = await client.files.upload(path, kind="project", resume=False)
            return file.file_uuid, FILE_BYTES / (time.perf_counter() - start)

    def fetch_bytes_per_s(self, file_uuid: str, node: Member) -> float:
        """One whole download through a node."""
        buffer = bytearray(1 << 20)
        with closing(self.connect(node)) as connection:
            start = time.perf_counter()
            connection.request("GET", f"/api/v1/files/{file_uuid}", headers=self._headers)
            response = connection.getresponse()
            received = 0
            while count := response.readinto(buffer):
                received += count
            assert received == FILE_BYTES, (response.status, received)
            return FILE_BYTES / (time.perf_counter() - start)

    def holds(self, node: Member, sha256: str) -> bool:
        """Whether a node has the blob on its disk."""
        return any(self._cluster.data(node).rglob(sha256))

    def sha256_of(self, file_uuid: str) -> str:
        """The checksum of a stored file."""
        with closing(self.connect(self.nodes[0])) as connection:
            connection.request("GET", f"/api/v1/project-files/{file_uuid}", headers=self._headers)
            return str(json.loads(connection.getresponse().read())["blob_sha256"])


def median(measure: Callable[[], float], scale: float = 1.0) -> float:
    """Of RUNS measurements, divided by the scale."""
    return statistics.median(measure() for _ in range(RUNS)) / scale


def run(directory: Path) -> dict[str, float]:
    """Every number, by name."""
    mega = 1e6
    numbers = {
        "fdatasync appends/s": median(lambda: yardstick.fdatasync_appends_per_s(directory)),
        "disk write+fsync MB/s": median(lambda: yardstick.write_bytes_per_s(directory), mega),
        "sha256 MB/s": median(yardstick.sha256_bytes_per_s, mega),
    }
    cluster = DevelopmentCluster(directory / "cluster", node_count=4)
    try:
        cluster.start()
        bench = Bench(cluster)
        numbers["creates/s, 1 client"] = median(lambda: bench.creates_per_s(1))
        numbers[f"creates/s, {CLIENTS} clients"] = median(lambda: bench.creates_per_s(CLIENTS))
        stored = [bench.store(directory / "bench.gns3p") for _ in range(RUNS)]
        numbers["upload MB/s, 3 replicas"] = statistics.median(speed for _, speed in stored) / mega
        file_uuid, _ = stored[-1]
        sha256 = bench.sha256_of(file_uuid)
        local = next(node for node in bench.nodes if bench.holds(node, sha256))
        remote = next(node for node in bench.nodes if not bench.holds(node, sha256))
        numbers["download MB/s, local replica"] = median(
            lambda: bench.fetch_bytes_per_s(file_uuid, local), mega
        )
        numbers["download MB/s, from a peer"] = median(
            lambda: bench.fetch_bytes_per_s(file_uuid, remote), mega
        )
    finally:
        cluster.stop()
    return numbers


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory:
        numbers = run(Path(directory))
    table = Table("what", f"median of {RUNS}", title="bench.smoke (yardsticks first)")
    for name, number in numbers.items():
        table.add_row(name, f"{number:,.0f}")
    Console().print(table)
    rounded = {name: round(number, 1) for name, number in numbers.items()}
    facts = {"bench": "smoke", "runs": RUNS, "cores": os.cpu_count(), "file_bytes": FILE_BYTES}
    print(json.dumps(dict(itertools.chain(facts.items(), rounded.items()))))


if __name__ == "__main__":
    main()
