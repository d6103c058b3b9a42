"""A download through a node that has no replica, beside the same download from one that has.

    python -m bench.remote        (REMOTE_MIB=256 for a shorter look)

Two nodes, one copy of the file, TLS everywhere. Remote and local take turns, now one first and now the other,
so that a slow minute of the machine touches both; the ratio is the median of the pairs. Everything is
loopback: the second node's work, which elsewhere has a machine of its own, shares the cores here. So the
client is that of the other downloads over TLS (`bench.receiver`), which throws the records away unread. One
that decrypts needs a core of its own, and gets it on two cores from the local download only: it is shown too.
"""

import asyncio
import http.client
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.loaders import GIB, Mover, cpu_s
from bench.receiver import Order, request_of
from bench.rows import Figure, Row, as_json, show
from ca.tls import client_context
from deploy.dev_cluster import DevelopmentCluster, Member

RUNS = 15
FILE_BYTES = int(os.environ.get("REMOTE_MIB", "1024")) << 20
RATIO_MIN = 0.5
REQUEST_TIMEOUT_S = 60.0

Download = Callable[[str, Member], float]  # of a file from a node: MiB per second


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
            return (await client.files.upload(path, kind="project", resume=False)).file_uuid

    def by_copy(self) -> tuple[Member, Member]:
        """The node that has the copy, then the one that has none. Raises RuntimeError unless it is one."""
        first, second = self._cluster.layout.of_role("node")
        has_first, has_second = self._has_copy(first), self._has_copy(second)
        if has_first == has_second:
            raise RuntimeError("the copy is not where it was made")
        return (first, second) if has_first else (second, first)

    def measured(self, download: Download, file_uuid: str, asked: Member) -> Figure:
        """One whole download; the CPU time is that of both nodes."""
        before_s = self._cpu_s()
        per_s = download(file_uuid, asked)
        return Figure(per_s, (self._cpu_s() - before_s) * GIB / FILE_BYTES)

    def receive(self, receiver: Mover, file_uuid: str, asked: Member) -> float:
        """By a client that throws the records away."""
        credentials = [f"{name}: {value}" for name, value in self._headers.items()]
        request = request_of(f"/api/v1/files/{file_uuid}", "Connection: close", *credentials)
        order = Order(port=asked.api_port, requests=[[request]], body_bytes=FILE_BYTES, tls=True)
        return receiver.move(order, FILE_BYTES, self._pid(asked)).per_s

    def decrypt(self, file_uuid: str, asked: Member) -> float:
        """By a client that decrypts them."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", asked.api_port, timeout=REQUEST_TIMEOUT_S, context=self._context
        )
        with closing(connection):
            connection.connect()
            start = time.perf_counter()
            connection.request("GET", f"/api/v1/files/{file_uuid}", headers=self._headers)
            response = connection.getresponse()
            received = 0
            while count := response.readinto(self._buffer):
                received += count
            elapsed_s = time.perf_counter() - start
        assert received == FILE_BYTES, (response.status, received)
        return FILE_BYTES / (1 << 20) / elapsed_s

    def _has_copy(self, node: Member) -> bool:
        return any((self._cluster.data(node) / "blobs").rglob("*.sums"))

    def _pid(self, node: Member) -> int:
        return self._cluster.children[node.id].process.pid

    def _cpu_s(self) -> float:
        return sum(cpu_s(self._pid(node)) for node in self._cluster.layout.of_role("node"))


@contextmanager
def _running(directory: Path) -> Iterator[Nodes]:
    cluster = DevelopmentCluster(directory / "cluster", node_count=2, replicas=1, write_quorum=1)
    try:
        cluster.start()
        yield Nodes(cluster)
    finally:
        cluster.stop()


@contextmanager
def _receiver(directory: Path) -> Iterator[Mover]:
    receiver = Mover("bench.receiver", directory)
    try:
        yield receiver
    finally:
        receiver.stop()


def rows(directory: Path) -> list[Row]:
    """Both rows. Starts and ends all that it needs below `directory`."""
    with _running(directory) as nodes, _receiver(directory) as receiver:
        file_uuid = asyncio.run(nodes.store(directory / "content"))
        holder, asked = nodes.by_copy()

        def pairs(download: Download) -> list[tuple[Figure, Figure]]:
            found = []
            for run in range(RUNS + 1):
                order = [asked, holder] if run % 2 else [holder, asked]
                figures = {node.id: nodes.measured(download, file_uuid, node) for node in order}
                found.append((figures[asked.id], figures[holder.id]))
            assert nodes.by_copy() == (holder, asked), "the copy has moved"
            return found[1:]  # the first warms caches and connections

        case = f"GET {FILE_BYTES >> 20} MiB of a remote replica, TLS, client"
        return [
            Row.compared(f"{case} decrypts", "MiB", 0, pairs(nodes.decrypt)),
            Row.compared(
                f"{case} discards", "MiB", RATIO_MIN, pairs(lambda *what: nodes.receive(receiver, *what))
            ),
        ]


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = rows(Path(name))
    show(f"bench.remote: medians of {RUNS}; CPU s per GiB of both nodes", found)
    print(json.dumps(as_json("remote", RUNS, found)))


if __name__ == "__main__":
    main()
