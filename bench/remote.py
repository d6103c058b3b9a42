"""A download through a node that has no replica, beside the same download from one that has.

    python -m bench.remote        (REMOTE_MIB=256 for a shorter look)

Two nodes, one copy of the file, TLS everywhere, one client that throws the bytes away. Remote and local take
turns, so that a slow minute of the machine touches both; the ratio is the median of the pairs. Everything is
loopback: the second node's work, which elsewhere has a machine of its own, shares the cores here.
"""

import asyncio
import http.client
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.loaders import cpu_s
from bench.rows import Row
from ca.tls import client_context
from deploy.development import DevelopmentCluster, Member
from node.client_upload import FileSource, upload

RUNS = 7
FILE_BYTES = int(os.environ.get("REMOTE_MIB", "1024")) << 20
GIB = 1 << 30
RATIO_MIN = 0.5
REQUEST_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """One download: bytes per second, and CPU seconds per GiB of the node asked and of the other one."""

    bytes_per_s: float
    asked_cpu_s: float
    other_cpu_s: float


@dataclass(frozen=True, slots=True)
class RemoteRow:
    """A case with its yardstick from the same run, medians of RUNS."""

    case: str
    remote: Fetched
    local: Fetched
    ratio: float
    target: float


class Nodes:
    """A cluster in which one node has the only copy of a file."""

    def __init__(self, cluster: DevelopmentCluster) -> None:
        self._cluster = cluster
        self._context = client_context(cluster.ca.read_text())
        self._headers = {"Authorization": f"Bearer {cluster.token_file.read_text().strip()}"}
        self._buffer = bytearray(1 << 20)

    async def store(self, path: Path) -> str:
        """Upload random content; its file_uuid."""
        with path.open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
        async with self._cluster.client() as client:
            fields = {"filename": "bench", "project_id": "bench", "size_bytes": FILE_BYTES}
            created = await client.create_project_file(fields)
            client.prefer(created["upload_url"].partition("/api/v1/")[0])
            with path.open("rb") as content:
                await upload(client, created["file_uuid"], FileSource(content, FILE_BYTES))
        return str(created["file_uuid"])

    def by_copy(self) -> tuple[Member, Member]:
        """The node that has the copy, then the one that has none."""
        first, second = self._cluster.layout.of_role("node")
        blobs = self._cluster.data(first) / "blobs"
        return (first, second) if any(blobs.rglob("*.sums")) else (second, first)

    def fetch(self, file_uuid: str, asked: Member, other: Member) -> Fetched:
        """One whole download."""
        pids = [self._cluster.children[node.id].process.pid for node in (asked, other)]
        connection = http.client.HTTPSConnection(
            "127.0.0.1", asked.api_port, timeout=REQUEST_TIMEOUT_S, context=self._context
        )
        with closing(connection):
            connection.connect()
            before = [cpu_s(pid) for pid in pids]
            start = time.perf_counter()
            connection.request("GET", f"/api/v1/files/{file_uuid}", headers=self._headers)
            response = connection.getresponse()
            received = 0
            while count := response.readinto(self._buffer):
                received += count
            elapsed_s = time.perf_counter() - start
        assert received == FILE_BYTES, (response.status, received)
        spent = [(cpu_s(pid) - earlier) * GIB / FILE_BYTES for pid, earlier in zip(pids, before, strict=True)]
        return Fetched(FILE_BYTES / elapsed_s, *spent)


@contextmanager
def _running(directory: Path) -> Iterator[Nodes]:
    cluster = DevelopmentCluster(directory / "cluster", node_count=2, replicas=1, write_quorum=1)
    try:
        cluster.start()
        yield Nodes(cluster)
    finally:
        cluster.stop()


def rows() -> list[RemoteRow]:
    """Measured on a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name, _running(Path(name)) as nodes:
        file_uuid = asyncio.run(nodes.store(Path(name) / "content"))
        holder, asked = nodes.by_copy()
        pairs = [
            (nodes.fetch(file_uuid, asked, holder), nodes.fetch(file_uuid, holder, asked))
            for _ in range(RUNS + 1)
        ][1:]  # the first warms caches and connections
    ratio = statistics.median(remote.bytes_per_s / local.bytes_per_s for remote, local in pairs)
    remote, local = (_median([pair[at] for pair in pairs]) for at in (0, 1))
    case = f"GET {FILE_BYTES >> 20} MiB of a remote replica, TLS"
    return [RemoteRow(case, remote, local, ratio, RATIO_MIN)]


def datapath_rows(_directory: Path) -> list[Row]:
    """The same for `bench.datapath`."""
    return [
        Row(
            name=row.case,
            unit="MiB/s",
            value=row.remote.bytes_per_s / (1 << 20),
            yardstick=row.local.bytes_per_s / (1 << 20),
            ratio=row.ratio,
            target=row.target,
            cpu_s=row.remote.asked_cpu_s + row.remote.other_cpu_s,
            yardstick_cpu_s=row.local.asked_cpu_s,
        )
        for row in rows()
    ]


def _median(runs: list[Fetched]) -> Fetched:
    return Fetched(
        statistics.median(run.bytes_per_s for run in runs),
        statistics.median(run.asked_cpu_s for run in runs),
        statistics.median(run.other_cpu_s for run in runs),
    )


def main() -> None:
    """Print the table and the JSON line."""
    found = rows()
    table = Table(
        "case", "remote MB/s", "local MB/s", "ratio", "target", "CPU asked", "CPU other", "CPU local"
    )
    table.title = f"bench.remote: medians of {RUNS}; CPU s per GiB"
    for row in found:
        table.add_row(
            row.case,
            f"{row.remote.bytes_per_s / 1e6:,.0f}",
            f"{row.local.bytes_per_s / 1e6:,.0f}",
            f"{row.ratio:.2f}",
            f"{row.target:g}",
            *(f"{s:.2f}" for s in (row.remote.asked_cpu_s, row.remote.other_cpu_s, row.local.asked_cpu_s)),
        )
    Console(width=120).print(table)
    ratios = {row.case: round(row.ratio, 3) for row in found}
    print(json.dumps({"bench": "remote", "runs": RUNS, "cores": os.cpu_count(), "ratios": ratios}))


if __name__ == "__main__":
    main()
