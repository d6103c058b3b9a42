"""Small files: how many a second, how long each takes, and what each costs in syncs and processor time.

    python -m bench.smallfiles        (SMALLFILES_FILES=2000, SMALLFILES_CLIENTS=8 for a shorter look)

Three coordinators and three nodes, three replicas, write quorum two, all on this machine with its clients.
A file is one request over a kept HTTPS connection: its creation at any node, by tus, with its 4 KiB, answered
when the file is available. With SMALLFILES_REQUESTS=2 it is two: its record at any node, its bytes at the
node that holds the upload. Beside it what one disk does at best with one thread: 4 KiB appended and synced;
and what was published of OpenStack Swift, on other machines, by its project lead: all on one machine
(`swift-bench --saio` with the Hummingbird object server, gist.github.com/notmyname/18fcf28d), and empty
objects on a cluster of unknown size (ssbench, 128 at once, gist.github.com/notmyname/2bb85acf). Syncs are
counted by strace over SAMPLED files of each client; that slows them, so it comes last and is not timed.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench import yardstick
from bench.api import Connection
from bench.loaders import cpu_s
from ca.tls import client_context
from coordinator.runtime.wording import counted
from deploy.dev.cluster import DevelopmentCluster
from deploy.dev.processes import LOOPBACK

FILES = int(os.environ.get("SMALLFILES_FILES", "100000"))
CLIENTS = int(os.environ.get("SMALLFILES_CLIENTS", "32"))
REQUESTS = int(os.environ.get("SMALLFILES_REQUESTS", "1"))
FILE_BYTES = 4096
SAMPLED = 50
SWIFT_ONE_MACHINE, SWIFT_CLUSTER = 78.0, 631.9  # PUT per second; see above
ATTACH_S = 1.0  # for strace to hold every thread
_CALLS = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(fsync|fdatasync)$", re.MULTILINE)


class _Created(msgspec.Struct):
    upload_url: str


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of every file, in seconds: its record, its bytes, both."""

    created_s: list[float]
    stored_s: list[float]

    @property
    def whole_s(self) -> list[float]:
        """Both requests of each file."""
        return [sum(pair) for pair in zip(self.created_s, self.stored_s, strict=True)]


class Clients:
    """CLIENTS at a time, each with a connection to every node."""

    def __init__(self, cluster: DevelopmentCluster) -> None:
        self._ports = [node.api_port for node in cluster.layout.of_role("node")]
        self._context: ssl.SSLContext = client_context(cluster.ca.read_text())
        self._credential = f"Authorization: Bearer {cluster.token_file.read_text().strip()}"
        self._numbers = itertools.count()

    async def store(self, files: int, clients: int) -> Latencies:
        """So many new files. Raises RuntimeError for an answer that is not as it should be."""
        found = Latencies([], [])
        left = iter(range(files))
        async with asyncio.TaskGroup() as group:
            for at in range(clients):
                group.create_task(self._run(at, left, found))
        return found

    async def _run(self, at: int, left: Iterator[int], found: Latencies) -> None:
        connections: dict[int, Connection] = {}

        async def to(port: int) -> Connection:  # a node gives up on a connection that stays silent
            if port not in connections:
                opened = await asyncio.open_connection(LOOPBACK, port, ssl=self._context)
                connections[port] = Connection(*opened)
            return connections[port]

        clock_s = time.perf_counter
        for number in left:
            begun_s = clock_s()
            entry = await to(self._ports[(at + number) % len(self._ports)])
            if REQUESTS == 1:
                await entry.ask(self._creation_with_content())
                found.created_s.append(0.0)
                found.stored_s.append(clock_s() - begun_s)
                continue
            created = msgspec.json.decode(await entry.ask(self._creation()), type=_Created)
            stored_s = clock_s()
            parts = urlsplit(created.upload_url)
            await (await to(parts.port or 443)).ask(self._content(parts.path))
            found.created_s.append(stored_s - begun_s)
            found.stored_s.append(clock_s() - stored_s)
        for connection in connections.values():
            await connection.close()

    def _creation(self) -> bytes:
        name = f"lab-{next(self._numbers)}"
        body = json.dumps({"filename": name, "project_id": "bench", "size_bytes": FILE_BYTES}).encode()
        return self._head("POST", "/api/v1/project-files", len(body), "Content-Type: application/json") + body

    def _creation_with_content(self) -> bytes:
        fields = {"filename": f"lab-{next(self._numbers)}", "project_id": "bench"}
        pairs = (f"{name} {base64.b64encode(text.encode()).decode()}" for name, text in fields.items())
        told = (
            "Tus-Resumable: 1.0.0",
            f"Upload-Length: {FILE_BYTES}",
            f"Upload-Metadata: {','.join(pairs)}",
            "Content-Type: application/offset+octet-stream",
        )
        return self._head("POST", "/api/v1/project-files", FILE_BYTES, *told) + os.urandom(FILE_BYTES)

    def _content(self, path: str) -> bytes:
        return self._head("PUT", path, FILE_BYTES) + os.urandom(FILE_BYTES)

    def _head(self, method: str, path: str, length: int, *more: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {LOOPBACK}", self._credential, *more]
        return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def syncs_per_file(
    cluster: DevelopmentCluster, clients: Clients, role: str, *, at_once: int = 1
) -> float | None:
    """Syncs of a role's processes for each file, SAMPLED of each client; None without strace."""
    if shutil.which("strace") is None:
        return None
    tracers = []
    for member in cluster.layout.of_role(role):
        pid = str(cluster.children[member.id].process.pid)
        command = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-p", pid]
        tracers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    time.sleep(ATTACH_S)
    uvloop.run(clients.store(SAMPLED * at_once, at_once))
    calls = 0
    for tracer in tracers:
        with contextlib.suppress(ProcessLookupError):
            tracer.send_signal(signal.SIGINT)
        calls += sum(int(count) for count, _ in _CALLS.findall(tracer.communicate()[1]))
    return calls / (SAMPLED * at_once) if calls else None


def measure(directory: Path) -> dict[str, float]:
    """Every number, by name. Starts and ends the cluster."""
    found = {
        "bare 4 KiB appends with fdatasync/s": yardstick.fdatasync_appends_per_s(directory),
        "Swift on one machine, published: PUT/s": SWIFT_ONE_MACHINE,
        "Swift on a cluster, published: empty PUT/s": SWIFT_CLUSTER,
    }
    cluster = DevelopmentCluster(directory / "cluster")
    try:
        cluster.start()
        clients = Clients(cluster)
        uvloop.run(clients.store(CLIENTS * 4, CLIENTS))  # connections between members, and their sessions
        before = _spent_s(cluster)
        begun_s = time.perf_counter()
        latencies = uvloop.run(clients.store(FILES, CLIENTS))
        elapsed_s = time.perf_counter() - begun_s
        found[f"files/s, {CLIENTS} clients"] = FILES / elapsed_s
        for name, seconds in (
            ("file", latencies.whole_s),
            ("its record", latencies.created_s),
            ("its bytes", latencies.stored_s),
        )[: 1 if REQUESTS == 1 else 3]:
            ordered = sorted(seconds)
            found[f"{name}: p50 ms"] = statistics.median(ordered) * 1000
            found[f"{name}: p99 ms"] = ordered[int(len(ordered) * 0.99)] * 1000
        for role, spent_s in _spent_s(cluster).items():
            found[f"CPU ms of the {role}s per file"] = (spent_s - before[role]) * 1000 / FILES
        alone = uvloop.run(clients.store(SAMPLED, 1))
        found["file: p50 ms, 1 client"] = statistics.median(alone.whole_s) * 1000
        for role in ("node", "coordinator"):
            for at_once in (1, CLIENTS):
                if (syncs := syncs_per_file(cluster, clients, role, at_once=at_once)) is not None:
                    found[f"syncs of the {role}s per file, {counted(at_once, 'client', 'clients')}"] = syncs
    finally:
        cluster.stop()
    return found


def _spent_s(cluster: DevelopmentCluster) -> Mapping[str, float]:
    """Processor time of all processes of each role."""
    return {
        role: sum(cpu_s(cluster.children[member.id].process.pid) for member in cluster.layout.of_role(role))
        for role in ("node", "coordinator")
    }


def main() -> None:
    """Print the table and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = measure(Path(name))
    table = Table("what", "", title=f"bench.smallfiles: {FILES} files of {FILE_BYTES} bytes, 3 replicas")
    for what, number in found.items():
        table.add_row(what, f"{number:,.1f}")
    Console(width=100).print(table)
    facts = {
        "bench": "smallfiles",
        "requests": REQUESTS,
        "files": FILES,
        "clients": CLIENTS,
        "cores": os.cpu_count(),
    }
    print(json.dumps(facts | {what: round(number, 2) for what, number in found.items()}))


if __name__ == "__main__":
    main()
