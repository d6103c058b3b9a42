"""Uploads to one node beside what disk and processor could do at best, and beside nginx, in the same run.

    python -m bench.uploads        (UPLOADS_RUNS=3 UPLOADS_CASES=plain for a shorter look)

One replica, write quorum one: a PUT is answered when its bytes were hashed with sha256, written, synced and
committed by the coordinators, which share the machine, as the sender does. The bound is the slower of two
things done alone: writing as many bytes and fsync, and sha256 of as many bytes on one core. nginx, with one
worker, neither hashes nor syncs. Every case is measured in turn, run by run, so that a slow minute of the
machine touches all; a ratio is the median of the ratios of the runs.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench import rows as rows_of
from bench.loaders import cpu_s
from bench.nginx import Nginx, why_absent
from bench.sender import Order, Outcome
from deploy.development import DevelopmentCluster
from deploy.processes import LOOPBACK, free_ports, start_child

RUNS = int(os.environ.get("UPLOADS_RUNS", "5"))
CASES = os.environ.get("UPLOADS_CASES", "")  # those whose names begin so
FILE_BYTES = int(os.environ.get("UPLOADS_BYTES", str(1 << 30)))
CONNECTIONS = 4  # which share FILE_BYTES
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Figure:
    """One run of one case: MiB per second, and CPU seconds of the server per GiB."""

    mib_per_s: float
    cpu_s_per_gib: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A case over all runs. `yardstick` says beside what; a target of 0 is none."""

    name: str
    yardstick: str
    target: float
    pairs: Sequence[tuple[Figure, Figure]]

    @property
    def ratio(self) -> float:
        """The median of ours by theirs, run by run."""
        return statistics.median(ours.mib_per_s / theirs.mib_per_s for ours, theirs in self.pairs)

    def median(self, of: Callable[[Figure], float], *, theirs: bool = False) -> float:
        """Over the runs, of ours or of the yardstick."""
        return statistics.median(of(pair[1] if theirs else pair[0]) for pair in self.pairs)


class Sending:
    """The process that sends bodies."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sender"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answer()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def put(self, pid: int, order: Order) -> Figure:
        """Give an order; `pid` is the server's. Raises RuntimeError when an answer is not as it should be."""
        assert self._process.stdin is not None
        before_s = cpu_s(pid)
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        outcome = msgspec.json.decode(self._answer(), type=Outcome)
        if outcome.error:
            raise RuntimeError(outcome.error)
        size_bytes = order.body_bytes * len(order.paths)
        spent_s = cpu_s(pid) - before_s
        return Figure(size_bytes / (1 << 20) / outcome.elapsed_s, spent_s * GIB / size_bytes)

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Node:
    """A node of one replica with its coordinators, which serves plain HTTP too."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._cluster = DevelopmentCluster(directory / "cluster", node_count=1, replicas=1, write_quorum=1)
        stack.callback(self._cluster.stop)
        self._cluster.start()
        self._member = self._cluster.layout.of_role("node")[0]
        self.data = self._cluster.data(self._member)
        self._plain_port = self._serve_plain()
        token = self._cluster.token_file.read_text().strip()
        self._credential = f"Authorization: Bearer {token}"

    def put(self, sending: Sending, *, tls: bool, connections: int) -> Figure:
        """FILE_BYTES over so many connections; what they left on the disk is removed again."""
        size_bytes = FILE_BYTES // connections
        file_uuids = [asyncio.run(self._create(size_bytes)) for _ in range(connections)]
        order = Order(
            port=self._member.api_port if tls else self._plain_port,
            paths=[f"/api/v1/files/{file_uuid}/content" for file_uuid in file_uuids],
            body_bytes=size_bytes,
            credential=self._credential,
            tls=tls,
        )
        try:
            return sending.put(self._cluster.children[self._member.id].process.pid, order)
        finally:
            for blob in (self.data / "blobs").glob("*/*/*"):
                blob.unlink()

    async def _create(self, size_bytes: int) -> str:
        fields = {"filename": "bench", "project_id": "bench", "size_bytes": size_bytes}
        async with self._cluster.client() as client:
            return str((await client.create_project_file(fields))["file_uuid"])

    def _serve_plain(self) -> int:
        """Start the node anew with a plain listener beside; its port."""
        child = self._cluster.children[self._member.id]
        child.process.terminate()
        child.process.wait()
        port = free_ports(1)[0]
        arguments = ["node", "run", "--data", str(self.data), "--http", f"{LOOPBACK}:{port}"]
        self._cluster.children[self._member.id] = start_child(self._member.id, arguments, child.log)
        self._cluster.wait_healthy()
        return port


def put_to_nginx(nginx: Nginx, sending: Sending, *, tls: bool, connections: int) -> Figure:
    """The same to nginx."""
    names = [f"{at}" for at in range(connections)]
    order = Order(
        port=nginx.tls_port if tls else nginx.plain_port,
        paths=[f"/{name}" for name in names],
        body_bytes=FILE_BYTES // connections,
        tls=tls,
    )
    try:
        return sending.put(nginx.pid, order)
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (nginx.root / name).unlink()


def bounds(directory: Path) -> tuple[Figure, Figure]:
    """FILE_BYTES written and synced, and FILE_BYTES hashed on one core; each alone."""
    block = os.urandom(1 << 20)
    path = directory / "yardstick"
    started_at = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(block)
        os.fsync(file.fileno())
    written_s = time.perf_counter() - started_at
    path.unlink()
    digest, started_at = hashlib.sha256(), time.perf_counter()
    for _ in range(FILE_BYTES >> 20):
        digest.update(block)
    hashed_s = time.perf_counter() - started_at
    mib = FILE_BYTES / (1 << 20)
    return Figure(mib / written_s), Figure(mib / hashed_s, hashed_s * GIB / FILE_BYTES)


def rows(directory: Path) -> list[Row]:
    """Every case, measured. Starts and ends all that it needs below `directory`."""
    with ExitStack() as stack:
        sending = Sending()
        stack.callback(sending.close)
        node = Node(directory, stack)
        nginx: Nginx | None = None
        if reason := why_absent(takes_put=True):
            print(f"bench.uploads: nginx skipped: {reason}")
        else:
            root = directory / "root"
            root.mkdir()
            nginx = stack.enter_context(Nginx(directory / "nginx", root, takes_put=True))
        return _measure(directory, sending, node, nginx)


def _measure(directory: Path, sending: Sending, node: Node, nginx: Nginx | None) -> list[Row]:
    seen: dict[tuple[str, str, float], list[tuple[Figure, Figure]]] = {}
    for run in range(RUNS + 1):
        disk, sha256 = bounds(directory)
        best = min(disk, sha256, key=lambda figure: figure.mib_per_s)
        if run:  # the first does not count
            seen.setdefault(("disk write and fsync", "sha256, one core", 0.0), []).append((disk, sha256))
        for name, tls, connections in _CHOSEN:
            ours = node.put(sending, tls=tls, connections=connections)
            pairs = [("min(disk, sha256)", 0.0 if tls else 0.8, best)]
            if nginx is not None:
                theirs = put_to_nginx(nginx, sending, tls=tls, connections=connections)
                pairs.append(("nginx", 0.65 if tls else 0.0, theirs))
            for yardstick, target, figure in pairs:
                if run:
                    seen.setdefault((name, yardstick, target), []).append((ours, figure))
    return [Row(*key, pairs) for key, pairs in seen.items()]


_CHOSEN = [
    (name, tls, connections)
    for name, tls, connections in (
        ("plain PUT, 1 connection", False, 1),
        ("TLS PUT, 1 connection", True, 1),
        (f"plain PUT, {CONNECTIONS} connections", False, CONNECTIONS),
        (f"TLS PUT, {CONNECTIONS} connections", True, CONNECTIONS),
    )
    if name.startswith(CASES)
]


def show(found: Sequence[Row]) -> None:
    """The table for people."""
    table = Table("case", "node", "beside", "yardstick", "ratio", "target", "CPU node", "CPU yardstick")
    table.title = f"bench.uploads: MiB per second, medians of {RUNS}; CPU seconds per GiB"
    for row in found:
        table.add_row(
            row.name,
            f"{row.median(lambda f: f.mib_per_s):,.0f}",
            row.yardstick,
            f"{row.median(lambda f: f.mib_per_s, theirs=True):,.0f}",
            f"{row.ratio:.2f}",
            f"{row.target:g}" if row.target else "",
            f"{row.median(lambda f: f.cpu_s_per_gib):.2f}",
            f"{row.median(lambda f: f.cpu_s_per_gib, theirs=True):.2f}",
        )
    Console(width=130).print(table)


def summary(found: Sequence[Row]) -> Mapping[str, object]:
    """What the JSON line says of each row."""
    return {
        f"{row.name} / {row.yardstick}": {
            "ratio": round(row.ratio, 3),
            "mib_per_s": round(row.median(lambda f: f.mib_per_s)),
            "yardstick_mib_per_s": round(row.median(lambda f: f.mib_per_s, theirs=True)),
            "cpu_s_per_gib": round(row.median(lambda f: f.cpu_s_per_gib), 2),
            "target": row.target,
        }
        for row in found
    }


def datapath_rows(directory: Path) -> list[rows_of.Row]:
    """The same for `bench.datapath`, where each row has one yardstick."""
    return [
        rows_of.Row(
            name=f"{row.name} / {row.yardstick}",
            unit="MiB/s",
            value=row.median(lambda f: f.mib_per_s),
            yardstick=row.median(lambda f: f.mib_per_s, theirs=True),
            ratio=row.ratio,
            target=row.target,
            cpu_s=row.median(lambda f: f.cpu_s_per_gib),
            yardstick_cpu_s=row.median(lambda f: f.cpu_s_per_gib, theirs=True),
        )
        for row in rows(directory)
    ]


def main() -> None:
    """Print the table and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = rows(Path(name))
    show(found)
    facts = {"bench": "uploads", "runs": RUNS, "cores": os.cpu_count(), "file_bytes": FILE_BYTES}
    print(json.dumps({**facts, "rows": summary(found)}))


if __name__ == "__main__":
    main()
