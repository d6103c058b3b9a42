"""Small files: how many a second, how long each takes, and what each costs in syncs and processor time.

    python -m bench.smallfiles        (SMALLFILES_FILES=2000, SMALLFILES_CLIENTS=8 for a shorter look;
                                       SMALLFILES_BYTES=65536 for files of that size)

Three coordinators and three nodes, three replicas, write quorum two, all on this machine with its clients.
A file is one request over a kept HTTPS connection: its creation at any node, by tus, with its 4 KiB, answered
when the file is available. With SMALLFILES_REQUESTS=2 it is two: its record at any node, its bytes at the
node that holds the upload. Then each is read once, at any node.

Beside it what this machine does at best with one thread, as processors and disk are the limit: 4 KiB appended
and synced, and a loop in Python; and what was published of OpenStack Swift, on other machines, by its project
lead: all on one machine (`swift-bench --saio` with the Hummingbird object server,
gist.github.com/notmyname/18fcf28d), and empty objects on a cluster of unknown size (ssbench, 128 at once,
gist.github.com/notmyname/2bb85acf). Syncs are counted by strace over SAMPLED files of each client; that slows
them, so it comes last and is not timed.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
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
from deploy.dev_cluster import DevelopmentCluster
from deploy.processes import LOOPBACK
from runtime.wording import counted

FILES = int(os.environ.get("SMALLFILES_FILES", "100000"))
CLIENTS = int(os.environ.get("SMALLFILES_CLIENTS", "32"))
REQUESTS = int(os.environ.get("SMALLFILES_REQUESTS", "1"))
FILE_BYTES = int(os.environ.get("SMALLFILES_BYTES", "4096"))
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
        self._paths: list[str] = []  # of the files that are stored

    async def store(self, files: int, clients: int) -> Latencies:
        """So many new files. Raises RuntimeError for an answer that is not as it should be."""
        found = Latencies([], [])
        left = iter(range(files))
        async with asyncio.TaskGroup() as group:
            for at in range(clients):
                group.create_task(self._store(at, left, found))
        return found

    async def read(self, clients: int) -> list[float]:
        """Every file that was stored, once; the seconds of each. Raises RuntimeError as `store` does."""
        took_s: list[float] = []
        left = iter(list(self._paths))
        async with asyncio.TaskGroup() as group:
            for at in range(clients):
                group.create_task(self._read(at, left, took_s))
        return took_s

    async def _store(self, at: int, left: Iterator[int], found: Latencies) -> None:
        async with self._connections() as to:
            for number in left:
                begun_s = time.perf_counter()
                entry = await to(self._ports[(at + number) % len(self._ports)])
                asked = self._creation_with_content() if REQUESTS == 1 else self._creation()
                created = msgspec.json.decode(await entry.ask(asked), type=_Created)
                stored_s = begun_s if REQUESTS == 1 else time.perf_counter()
                parts = urlsplit(created.upload_url)
                if REQUESTS != 1:
                    await (await to(parts.port or 443)).ask(self._content(parts.path))
                found.created_s.append(stored_s - begun_s)
                found.stored_s.append(time.perf_counter() - stored_s)
                self._paths.append(parts.path.removesuffix("/content"))

    async def _read(self, at: int, left: Iterator[str], took_s: list[float]) -> None:
        async with self._connections() as to:
            for number, path in enumerate(left):
                begun_s = time.perf_counter()
                entry = await to(self._ports[(at + number) % len(self._ports)])
                content = await entry.ask(self._head("GET", path, 0))
                took_s.append(time.perf_counter() - begun_s)
                assert len(content) == FILE_BYTES

    @contextlib.asynccontextmanager
    async def _connections(self) -> AsyncIterator[Callable[[int], Awaitable[Connection]]]:
        """To ports, opened when they are needed: a node gives up on a connection that stays silent."""
        opened: dict[int, Connection] = {}

        async def to(port: int) -> Connection:
            if port not in opened:
                streams = await asyncio.open_connection(LOOPBACK, port, ssl=self._context)
                opened[port] = Connection(*streams)
            return opened[port]

        yield to
        for connection in opened.values():
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
        "steps of a Python loop/s, one core": yardstick.interpreter_steps_per_s(),
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
        begun_s = time.perf_counter()
        reads_ms = sorted(took_s * 1000 for took_s in uvloop.run(clients.read(CLIENTS)))
        found[f"reads/s, {CLIENTS} clients"] = len(reads_ms) / (time.perf_counter() - begun_s)
        found["read: p50 ms"] = statistics.median(reads_ms)
        found["read: p99 ms"] = reads_ms[int(len(reads_ms) * 0.99)]
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
        "size_bytes": FILE_BYTES,
        "requests": REQUESTS,
        "files": FILES,
        "clients": CLIENTS,
        "cores": os.cpu_count(),
    }
    print(json.dumps(facts | {what: round(number, 2) for what, number in found.items()}))


if __name__ == "__main__":
    main()
