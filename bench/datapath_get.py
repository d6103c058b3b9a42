"""Downloads of one node beside nginx with one worker, which serves the same files from the same page cache.

Server and client are held to one core each; both servers get every case in turn, run by run, so that a
slow minute of the machine touches both. A ratio is the median of the ratios of the runs: node by nginx, of
bytes or requests per second (more is better) and of CPU seconds of the serving process (less is better). The
node checks a token and asks the coordinators, which share the machine, about every request; nginx does not.
"""

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.loaders import Mover, cpu_s
from bench.nginx import Nginx, why_absent
from bench.one_node import OneNode
from bench.receiver import Order, request_of
from bench.rows import CASES, RUNS, Figure, Row, Skipped
from ca.secretfiles import write_secret
from deploy.processes import LOOPBACK

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
class Case:
    """`target`: what the ratio of rates should be, 0 for none. `repeats`: how often as many runs as usual.

    A body without encryption is over in half a second, in which the machine is quick or slow as a whole: by
    how often client and server wake each other.
    """

    name: str
    unit: str
    target: float
    measure: Callable[["Server"], Figure]
    repeats: int = 1


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
        return request_of(path, *headers, self.credential)


class Clients:
    """The process that takes large bodies, and wrk for small ones, both on the clients' core."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._receiver = Mover("bench.receiver", directory)
        os.sched_setaffinity(self._receiver.process.pid, {CLIENT_CORE})

    def close(self) -> None:
        """End it."""
        self._receiver.stop()

    def take(self, server: Server, order: Order) -> Figure:
        """Give an order. Raises RuntimeError when an answer is not as it should be."""
        size_bytes = order.body_bytes * sum(len(requests) for requests in order.requests)
        return self._receiver.move(order, size_bytes, server.pid)

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
        Case("plain, 1 GiB", "MiB", 1.2, whole(1), repeats=5),
        Case("plain, 1 GiB, client copies", "MiB", 0, whole(1, copied=True), repeats=3),
        Case("plain, 1 GiB, 8 connections", "MiB", 1.0, whole(8)),
        Case("plain, 1 MiB ranges, 16 connections", "MiB", 1.2, ranges, repeats=3),
        Case("tls, 1 GiB", "MiB", 1.25, whole(1, tls=True)),
        Case("tls, 1 GiB, 8 connections", "MiB", 1.1, whole(8, tls=True)),
        Case("small, 4 KiB, 64 connections", "requests", 0.25, lambda s: clients.load(s, 4 << 10)),
        Case("small, 64 KiB, 64 connections", "requests", 0.4, lambda s: clients.load(s, 64 << 10)),
    ]


class Servers:
    """A node, and nginx beside it with links to the node's own files, and copies of what is packed."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        counts = {FILE_BYTES: 1, 4 << 10: SMALL_FILES, 64 << 10: SMALL_FILES}
        node = OneNode(directory, stack, counts)
        root = directory / "root"
        root.mkdir()
        for size_bytes, files in node.stored.items():
            for at, (_, sha256) in enumerate(files):
                node.put_in_place(sha256, root / f"{size_bytes}-{at}")
        nginx = stack.enter_context(Nginx(directory / "nginx", root))
        self.node = Server(
            name="node",
            pid=node.pid,
            plain_port=node.plain_port,
            tls_port=node.tls_port,
            paths={s: [f"/api/v1/files/{uuid}" for uuid, _ in files] for s, files in node.stored.items()},
            credential=f"Authorization: Bearer {node.token}",
        )
        names = {size: [f"/{size}-{at}" for at in range(count)] for size, count in counts.items()}
        self.nginx = Server("nginx", nginx.pid, nginx.plain_port, nginx.tls_port, names, "")
        for server in (self.node, self.nginx):
            for thread in Path(f"/proc/{server.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {SERVER_CORE})


def measure(chosen: Sequence[Case], servers: Servers) -> dict[str, list[tuple[Figure, Figure]]]:
    """Per case the runs, node before nginx and the other way round in turn, after one that does not count."""
    seen: dict[str, list[tuple[Figure, Figure]]] = {}
    for case in chosen:
        pairs = []
        for run in range(RUNS * case.repeats + 1):
            order = [servers.node, servers.nginx] if run % 2 else [servers.nginx, servers.node]
            found = {server.name: case.measure(server) for server in order}
            pairs.append((found["node"], found["nginx"]))
        seen[case.name] = pairs[1:]
    return seen


def rows(directory: Path) -> list[Row]:
    """Every case that is asked for. Raises Skipped without nginx."""
    if reason := why_absent():
        raise Skipped(reason)
    with ExitStack() as stack:
        clients = Clients(directory)
        stack.callback(clients.close)
        chosen = [case for case in cases(clients) if CASES == "downloads" or case.name.startswith(CASES)]
        if not shutil.which("wrk"):
            print("bench.datapath: small files skipped: wrk is not installed (Debian: apt install wrk)")
            chosen = [case for case in chosen if not case.name.startswith("small")]
        seen = measure(chosen, Servers(directory, stack))
    return [Row.compared(case.name, case.unit, case.target, seen[case.name]) for case in chosen]
