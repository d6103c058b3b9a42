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
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.loaders import GIB, cpu_s
from bench.rows import Figure, Row, as_json, show
from ca.tls import client_context
from deploy.development import DevelopmentCluster, Member
from node.client_upload import FileSource, upload

RUNS = 7
FILE_BYTES = int(os.environ.get("REMOTE_MIB", "1024")) << 20
RATIO_MIN = 0.5
REQUEST_TIMEOUT_S = 60.0


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
                await upload(client, created["file_uuid"], FileSource(content))
        return str(created["file_uuid"])

    def by_copy(self) -> tuple[Member, Member]:
        """The node that has the copy, then the one that has none."""
        first, second = self._cluster.layout.of_role("node")
        blobs = self._cluster.data(first) / "blobs"
        return (first, second) if any(blobs.rglob("*.sums")) else (second, first)

    def fetch(self, file_uuid: str, asked: Member, other: Member) -> Figure:
        """One whole download; the CPU time is that of both nodes."""
        pids = [self._cluster.children[node.id].process.pid for node in (asked, other)]
        connection = http.client.HTTPSConnection(
            "127.0.0.1", asked.api_port, timeout=REQUEST_TIMEOUT_S, context=self._context
        )
        with closing(connection):
            connection.connect()
            before_s = sum(cpu_s(pid) for pid in pids)
            start = time.perf_counter()
            connection.request("GET", f"/api/v1/files/{file_uuid}", headers=self._headers)
            response = connection.getresponse()
            received = 0
            while count := response.readinto(self._buffer):
                received += count
            elapsed_s = time.perf_counter() - start
        assert received == FILE_BYTES, (response.status, received)
        spent_s = sum(cpu_s(pid) for pid in pids) - before_s
        return Figure(FILE_BYTES / (1 << 20) / elapsed_s, spent_s * GIB / FILE_BYTES)


@contextmanager
def _running(directory: Path) -> Iterator[Nodes]:
    cluster = DevelopmentCluster(directory / "cluster", node_count=2, replicas=1, write_quorum=1)
    try:
        cluster.start()
        yield Nodes(cluster)
    finally:
        cluster.stop()


def rows(directory: Path) -> list[Row]:
    """The one row. Starts and ends all that it needs below `directory`."""
    with _running(directory) as nodes:
        file_uuid = asyncio.run(nodes.store(directory / "content"))
        holder, asked = nodes.by_copy()
        pairs = [
            (nodes.fetch(file_uuid, asked, holder), nodes.fetch(file_uuid, holder, asked))
            for _ in range(RUNS + 1)
        ][1:]  # the first warms caches and connections
    case = f"GET {FILE_BYTES >> 20} MiB of a remote replica, TLS"
    return [Row.compared(case, "MiB", RATIO_MIN, pairs)]


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = rows(Path(name))
    show(f"bench.remote: medians of {RUNS}; CPU s per GiB of both nodes", found)
    print(json.dumps(as_json("remote", RUNS, found)))


if __name__ == "__main__":
    main()
