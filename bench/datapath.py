"""Downloads of one node beside nginx with one worker, which serves the same files from the same page cache.

    python -m bench.datapath        (DATAPATH_RUNS=3 DATAPATH_CASES=plain for a shorter look)

Server and client are held to one core each; both servers get every case in turn, run by run, so that a
slow minute of the machine touches both. A ratio is the median of the ratios of the runs: node by nginx, of
bytes or requests per second (more is better) and of CPU seconds of the serving process (less is better). The
node checks a token and asks the coordinators, which share the machine, about every request; nginx does not.
"""

import asyncio
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.loaders import cpu_s
from bench.nginx import Nginx, why_absent
from bench.receiver import Order, Outcome
from ca.secretfiles import write_secret
from deploy.development import DevelopmentCluster
from deploy.processes import LOOPBACK, free_ports, start_child
from node.client_upload import FileSource, upload

RUNS = int(os.environ.get("DATAPATH_RUNS", "5"))
CASES = os.environ.get("DATAPATH_CASES", "")  # those whose names begin so
FILE_BYTES = 1 << 30
RANGE_BYTES = 1 << 20
RANGES = 1024  # of one run, over all connections
SMALL_SECONDS = 3
SMALL_CLIENTS = 64
SMALL_FILES = 32  # of each size, asked for in turn
SERVER_CORE, CLIENT_CORE = 0, 1
_RATE = re.compile(r"Requests/sec:\s*([0-9.]+)")
_COUNT = re.compile(r"(\d+) requests in")


@dataclass(frozen=True, slots=True)
class Figure:
    """One run of one case: MiB or requests per second, and CPU seconds per GiB or per 10,000 requests."""

    per_s: float
    server_cpu_s: float
    client_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """`targets`: what the ratio of rates should be, 0 for none."""

    name: str
    unit: str
    target: float
    measure: Callable[["Server"], Figure]


@dataclass(frozen=True, slots=True)
class Server:
    """Who is asked. `paths` are those of the files by their size; `credential` is a header line or ""."""

    name: str
    pid: int
    plain_port: int
    tls_port: int
    paths: Mapping[int, Sequence[str]]
    credential: str

    def request(self, path: str, *headers: str) -> str:
        """The text of a GET."""
        lines = [f"GET {path} HTTP/1.1", f"Host: {LOOPBACK}", *headers, self.credential]
        return "\r\n".join(line for line in lines if line) + "\r\n\r\n"


class Clients:
    """The process that takes large bodies, and wrk for small ones, both on the clients' core."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.receiver"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.sched_setaffinity(self._process.pid, {CLIENT_CORE})
        self._answer()

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def take(self, server: Server, order: Order) -> Figure:
        """Give an order. Raises RuntimeError when an answer is not as it should be."""
        assert self._process.stdin is not None
        before_s = cpu_s(server.pid)
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        outcome = msgspec.json.decode(self._answer(), type=Outcome)
        if outcome.error:
            raise RuntimeError(f"{server.name}: {outcome.error}")
        size_bytes = order.body_bytes * sum(len(requests) for requests in order.requests)
        gib = size_bytes / (1 << 30)
        server_s = cpu_s(server.pid) - before_s
        return Figure(size_bytes / (1 << 20) / outcome.elapsed_s, server_s / gib, outcome.cpu_s / gib)

    def load(self, server: Server, size_bytes: int) -> Figure:
        """Small files, again and again. The token is in a script of mode 0600, not in an argument."""
        script = self._directory / f"{server.name}-{size_bytes}.lua"
        write_secret(script, _script(server, size_bytes).encode())
        before_s = cpu_s(server.pid)
        command = ["wrk", "-t1", f"-c{SMALL_CLIENTS}", f"-d{SMALL_SECONDS}s", "-s", str(script)]
        done = subprocess.run(
            ["taskset", "-c", str(CLIENT_CORE), *command, f"http://{LOOPBACK}:{server.plain_port}/"],
            check=True,
            capture_output=True,
            text=True,
        )
        rate, count = _RATE.search(done.stdout), _COUNT.search(done.stdout)
        if rate is None or count is None or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
            raise RuntimeError(f"{server.name}: {done.stdout}")
        server_s = cpu_s(server.pid) - before_s
        return Figure(float(rate[1]), server_s * 10_000 / int(count[1]))


def _script(server: Server, size_bytes: int) -> str:
    """Requests for the files of that size in turn, made once."""
    requests = [json.dumps(server.request(path)) for path in server.paths[size_bytes]]
    return (
        f"local requests = {{ {', '.join(requests)} }}\nlocal at = 0\n"
        "request = function()\n  at = at % #requests + 1\n  return requests[at]\nend\n"
    )


def cases(clients: Clients) -> list[Case]:
    """What is measured, with the targets of one worker."""

    def whole(connections: int, *, tls: bool = False, copied: bool = False) -> Callable[[Server], Figure]:
        def measure(server: Server) -> Figure:
            request = server.request(server.paths[FILE_BYTES][0], "Connection: close" if tls else "")
            order = Order(
                port=server.tls_port if tls else server.plain_port,
                requests=[[request]] * connections,
                body_bytes=FILE_BYTES,
                tls=tls,
                copied=copied,
            )
            return clients.take(server, order)

        return measure

    def ranges(server: Server) -> Figure:
        dice = random.Random(1)
        asked = []
        for _ in range(RANGES):
            start = dice.randrange(FILE_BYTES - RANGE_BYTES)
            span = f"Range: bytes={start}-{start + RANGE_BYTES - 1}"
            asked.append(server.request(server.paths[FILE_BYTES][0], span))
        requests = [asked[first::16] for first in range(16)]
        return clients.take(
            server,
            Order(port=server.plain_port, requests=requests, body_bytes=RANGE_BYTES, wanted="HTTP/1.1 206"),
        )

    return [
        Case("plain, 1 GiB", "MiB", 1.2, whole(1)),
        Case("plain, 1 GiB, client copies", "MiB", 0, whole(1, copied=True)),
        Case("plain, 1 GiB, 8 connections", "MiB", 1.0, whole(8)),
        Case("plain, 1 MiB ranges, 16 connections", "MiB", 1.2, ranges),
        Case("tls, 1 GiB", "MiB", 1.25, whole(1, tls=True)),
        Case("tls, 1 GiB, 8 connections", "MiB", 1.1, whole(8, tls=True)),
        Case("small, 4 KiB, 64 connections", "requests", 0.25, lambda s: clients.load(s, 4 << 10)),
        Case("small, 64 KiB, 64 connections", "requests", 0.4, lambda s: clients.load(s, 64 << 10)),
    ]


class Servers:
    """A node with its coordinators, and nginx beside it with links to the node's own files."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._cluster = DevelopmentCluster(directory / "cluster", node_count=1, replicas=1, write_quorum=1)
        stack.callback(self._cluster.stop)
        self._cluster.start()
        self._plain_port = self._serve_plain()
        self._token = self._cluster.token_file.read_text().strip()
        stored = asyncio.run(self._store_all())
        root = directory / "root"
        root.mkdir()
        for size_bytes, files in stored.items():
            for at, (_, sha256) in enumerate(files):
                blob = self._cluster.data(self._member) / "blobs" / sha256[:2] / sha256[2:4] / sha256
                (root / f"{size_bytes}-{at}").symlink_to(blob)
        nginx = stack.enter_context(Nginx(directory / "nginx", root))
        self.node = Server(
            name="node",
            pid=self._cluster.children[self._member.id].process.pid,
            plain_port=self._plain_port,
            tls_port=self._member.api_port,
            paths={size: [f"/api/v1/files/{uuid}" for uuid, _ in files] for size, files in stored.items()},
            credential=f"Authorization: Bearer {self._token}",
        )
        names = {size: [f"/{size}-{at}" for at in range(len(files))] for size, files in stored.items()}
        self.nginx = Server("nginx", nginx.pid, nginx.plain_port, nginx.tls_port, names, "")
        for server in (self.node, self.nginx):
            for thread in Path(f"/proc/{server.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {SERVER_CORE})

    def _serve_plain(self) -> int:
        """Start the node anew with a plain listener beside; its port."""
        self._member = self._cluster.layout.of_role("node")[0]
        child = self._cluster.children[self._member.id]
        child.process.terminate()
        child.process.wait()
        port = free_ports(1)[0]
        data = str(self._cluster.data(self._member))
        arguments = ["node", "run", "--data", data, "--http", f"{LOOPBACK}:{port}"]
        self._cluster.children[self._member.id] = start_child(self._member.id, arguments, child.log)
        self._cluster.wait_healthy()
        return port

    async def _store_all(self) -> dict[int, list[tuple[str, str]]]:
        """(file_uuid, sha256) of the files of each size."""
        counts = {FILE_BYTES: 1, 4 << 10: SMALL_FILES, 64 << 10: SMALL_FILES}
        return {size: [await self._store(size) for _ in range(count)] for size, count in counts.items()}

    async def _store(self, size_bytes: int) -> tuple[str, str]:
        path, digest = self._directory / "content", hashlib.sha256()
        with path.open("wb") as file:
            for left_bytes in range(size_bytes, 0, -(1 << 20)):
                block = os.urandom(min(left_bytes, 1 << 20))
                digest.update(block)
                file.write(block)
        async with self._cluster.client() as client:
            fields = {"filename": "bench", "project_id": "bench", "size_bytes": size_bytes}
            created = await client.create_project_file(fields)
            with path.open("rb") as file:
                await upload(client, created["file_uuid"], FileSource(file, size_bytes))
        return str(created["file_uuid"]), digest.hexdigest()


def measure(chosen: Sequence[Case], servers: Servers) -> dict[str, list[tuple[Figure, Figure]]]:
    """Per case the runs, node before nginx and the other way round in turn, after one that does not count."""
    seen: dict[str, list[tuple[Figure, Figure]]] = {}
    for case in chosen:
        pairs = []
        for run in range(RUNS + 1):
            order = [servers.node, servers.nginx] if run % 2 else [servers.nginx, servers.node]
            found = {server.name: case.measure(server) for server in order}
            pairs.append((found["node"], found["nginx"]))
        seen[case.name] = pairs[1:]
    return seen


def ratio(pairs: Sequence[tuple[Figure, Figure]], of: Callable[[Figure], float]) -> float:
    """The median of node by nginx, pair by pair."""
    return statistics.median(of(node) / max(of(nginx), 1e-9) for node, nginx in pairs)


def show(chosen: Sequence[Case], seen: Mapping[str, Sequence[tuple[Figure, Figure]]]) -> None:
    """The table for people."""
    table = Table("case", "node", "nginx", "ratio", "target", "CPU node", "CPU nginx", "CPU ratio")
    table.title = f"bench.datapath: per second, medians of {RUNS}; CPU s per GiB or 10,000 requests"
    for case in chosen:
        pairs = seen[case.name]
        rates = [statistics.median(pair[at].per_s for pair in pairs) for at in (0, 1)]
        spent = [statistics.median(pair[at].server_cpu_s for pair in pairs) for at in (0, 1)]
        table.add_row(
            case.name,
            *(f"{rate:,.0f} {case.unit}" for rate in rates),
            f"{ratio(pairs, lambda f: f.per_s):.2f}",
            f"{case.target:g}" if case.target else "",
            *(f"{seconds:.2f}" for seconds in spent),
            f"{ratio(pairs, lambda f: f.server_cpu_s):.2f}",
        )
    Console(width=130).print(table)


def main() -> None:
    """Print the table and the JSON line."""
    if reason := why_absent():
        print(f"bench.datapath: skipped: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        clients = Clients(directory)
        stack.callback(clients.close)
        chosen = [case for case in cases(clients) if case.name.startswith(CASES)]
        if not shutil.which("wrk"):
            print("bench.datapath: small files skipped: wrk is not installed (Debian: apt install wrk)")
            chosen = [case for case in chosen if not case.name.startswith("small")]
        seen = measure(chosen, Servers(directory, stack))
    show(chosen, seen)
    ratios = {
        case.name: {
            "rate": round(ratio(seen[case.name], lambda f: f.per_s), 3),
            "cpu": round(ratio(seen[case.name], lambda f: f.server_cpu_s), 3),
            "client_cpu_s_per_gib": round(statistics.median(n.client_cpu_s for n, _ in seen[case.name]), 3),
        }
        for case in chosen
    }
    print(json.dumps({"bench": "datapath", "runs": RUNS, "cores": os.cpu_count(), "ratios": ratios}))


if __name__ == "__main__":
    main()
