"""Where one request waits: every hop of a change of metadata and of a small PUT, from socket to answer.

    python -m bench.hops        (HOPS_REQUESTS=300)

Three coordinators and three nodes, three replicas, on this machine; one client, which asks again when it was
answered. Every process runs as `bench.traced`, which notes the time at named places, by the clock that all
processes of a machine share: what it notes between the first byte of a request and the last of its answer
belongs to that request. A row is the median over all requests of when a place was passed; a place that is
passed more than once in a request has a number. Notes cost 1 to 2 µs each. Beside them what the machine does
at best: 4 KiB appended and synced, a round trip of TLS over loopback, work handed to a thread and back.
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import signal
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench import yardstick
from bench.api import Connection
from ca.tls import client_context
from coordinator.member.thread import Worker
from deploy.dev_cluster import DevelopmentCluster
from deploy.processes import LOOPBACK

REQUESTS = int(os.environ.get("HOPS_REQUESTS", "300"))
WARM_UP = 50
FILE_BYTES = 4096
SHARE_MIN = 0.5  # of the requests, in which a place is passed: else it is no row
PINGS = 500
TRACED = (sys.executable, "-m", "bench.traced")

Windows = list[tuple[int, int, int]]  # when a request began and ended, ns; the pid that was asked
Notes = Mapping[int, Sequence[tuple[int, str]]]  # by pid, in order


@dataclass(frozen=True, slots=True)
class Hop:
    """A place that requests pass: who passes it, and when, in µs since the request began."""

    who: str
    what: str
    at_us: float


class _Created(msgspec.Struct):
    file_uuid: str
    upload_url: str


class Client:
    """One client with a connection to each node."""

    def __init__(self, cluster: DevelopmentCluster) -> None:
        self._nodes = cluster.layout.of_role("node")
        self._pids = {node.api_port: cluster.children[node.id].process.pid for node in self._nodes}
        self._context = client_context(cluster.ca.read_text())
        self._credential = f"Authorization: Bearer {cluster.token_file.read_text().strip()}"
        self._numbers = itertools.count()
        self._connections: dict[int, Connection] = {}

    async def run(self) -> Mapping[str, Windows]:
        """All requests, by kind."""
        found: dict[str, Windows] = {"PATCH of a record": [], "POST of a record": [], "PUT of 4 KiB": []}
        first = self._nodes[0].api_port
        for number in range(WARM_UP + REQUESTS):
            creation, window = await self._ask(first, self._creation())
            created = msgspec.json.decode(creation, type=_Created)
            parts = urlsplit(created.upload_url)
            _, stored = await self._ask(parts.port or 443, self._content(parts.path))
            _, changed = await self._ask(first, self._change(created.file_uuid))
            if number >= WARM_UP:
                for kind, each in zip(found, (changed, window, stored), strict=True):
                    found[kind].append(each)
        for connection in self._connections.values():
            await connection.close()
        return found

    async def _ask(self, port: int, request: bytes) -> tuple[bytes, tuple[int, int, int]]:
        if port not in self._connections:
            opened = await asyncio.open_connection(LOOPBACK, port, ssl=self._context)
            self._connections[port] = Connection(*opened)
        begun_ns = time.monotonic_ns()
        body = await self._connections[port].ask(request)
        return body, (begun_ns, time.monotonic_ns(), self._pids[port])

    def _creation(self) -> bytes:
        body = {"filename": f"lab-{next(self._numbers)}", "project_id": "bench", "size_bytes": FILE_BYTES}
        return self._request("POST", "/api/v1/project-files", json.dumps(body).encode(), is_json=True)

    def _change(self, file_uuid: str) -> bytes:
        body = json.dumps({"version_tag": f"v{next(self._numbers)}"}).encode()
        return self._request("PATCH", f"/api/v1/project-files/{file_uuid}", body, is_json=True)

    def _content(self, path: str) -> bytes:
        return self._request("PUT", path, os.urandom(FILE_BYTES))

    def _request(self, method: str, path: str, body: bytes, *, is_json: bool = False) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {LOOPBACK}", self._credential]
        lines += ["Content-Type: application/json"] if is_json else []
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def measure(directory: Path) -> tuple[Mapping[str, Windows], Notes, Mapping[int, str], Mapping[str, float]]:
    """The requests, what was noted meanwhile, who is who by pid, and the yardsticks."""
    cluster = DevelopmentCluster(directory / "cluster")
    cluster.programs = {member.id: TRACED for member in cluster.layout.members}
    os.environ["HOPS_DIRECTORY"] = str(directory)
    try:
        cluster.start()
        bare = yardsticks(cluster, directory)
        windows = uvloop.run(Client(cluster).run())
        names = {cluster.children[member.id].process.pid: member.role for member in cluster.layout.members}
        names[cluster.children[_leader(cluster)].process.pid] = "leader"
    finally:
        cluster.stop()
    notes = {pid: _read(directory / f"{pid}.notes") for pid in names}
    return windows, notes, names, bare


def _leader(cluster: DevelopmentCluster) -> str:
    async def ask() -> str:
        async with cluster.client() as client:
            return str((await client.cluster.status())["leader"])

    return asyncio.run(ask())


def _read(path: Path) -> list[tuple[int, str]]:
    pairs = (line.split(" ", 1) for line in path.read_text().splitlines())
    return sorted((int(at_ns), text) for at_ns, text in pairs)


def timeline(windows: Windows, notes: Notes, names: Mapping[int, str]) -> list[Hop]:
    """The hops of one kind of request, in order."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    cursors = dict.fromkeys(notes, 0)
    for begun_ns, ended_ns, asked in windows:
        inside: dict[int, list[tuple[int, str]]] = {}
        for pid, lines in notes.items():
            at = cursors[pid]
            while at < len(lines) and lines[at][0] < begun_ns:
                at += 1
            start = at
            while at < len(lines) and lines[at][0] <= ended_ns:
                at += 1
            inside[pid], cursors[pid] = list(lines[start:at]), at
        for pid, who in _called(inside, names, asked).items():
            seen: defaultdict[str, int] = defaultdict(int)
            for at_ns, text in inside[pid]:
                seen[text] += 1
                what = text if seen[text] == 1 else f"{text} ({seen[text]})"
                found[who, what].append((at_ns - begun_ns) / 1000)
        found["client", "answered"].append((ended_ns - begun_ns) / 1000)
    often = {key: each for key, each in found.items() if len(each) >= SHARE_MIN * len(windows)}
    hops = [Hop(who, what, statistics.median(each)) for (who, what), each in often.items()]
    return sorted(hops, key=lambda hop: hop.at_us)


def _called(
    inside: Mapping[int, Sequence[tuple[int, str]]], names: Mapping[int, str], asked: int
) -> dict[int, str]:
    """What each process is called in one request: of those that do the same the quickest comes first."""
    called = {asked: "node"} | {pid: "leader" for pid, name in names.items() if name == "leader"}
    for role, words in (("coordinator", ("follower 1", "follower 2")), ("node", ("replica 1", "replica 2"))):
        rest = [pid for pid, name in names.items() if name == role and pid not in called]
        called |= dict(zip(sorted(rest, key=lambda pid: _first(inside[pid])), words, strict=False))
    return called


def _first(lines: Iterable[tuple[int, str]]) -> float:
    """When a follower acknowledged, or anything else happened there, if it did not."""
    made = [at_ns for at_ns, text in lines if text == "acknowledgement made"]
    return min(made or [at_ns for at_ns, _ in lines], default=float("inf"))


def yardsticks(cluster: DevelopmentCluster, directory: Path) -> dict[str, float]:
    """µs, by name."""
    found = {"4 KiB appended, fdatasync": 1e6 / yardstick.fdatasync_appends_per_s(directory)}
    data = cluster.data(cluster.layout.of_role("coordinator")[0])
    ours, theirs = socket.socketpair()
    echo = multiprocessing.get_context("spawn").Process(target=_echo, args=(theirs, data / "credential.pem"))
    echo.start()
    theirs.close()
    context = client_context(cluster.ca.read_text())
    context.check_hostname = False
    with context.wrap_socket(_dialled(ours)) as connection:
        found["round trip of 300 bytes, TLS over loopback"] = _median_us(lambda: _ping(connection))
    ours.close()
    echo.join()
    found["work handed to a thread and back"] = uvloop.run(_thread_us())
    return found


def _echo(parent: socket.socket, credential: Path) -> None:
    """A process that answers with what it was sent, until the other side ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credential)
    with socket.create_server((LOOPBACK, 0)) as listener:
        parent.sendall(listener.getsockname()[1].to_bytes(2))
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(accepted, server_side=True) as connection:
            while data := connection.recv(4096):
                connection.sendall(data)


def _dialled(control: socket.socket) -> socket.socket:
    dialled = socket.create_connection((LOOPBACK, int.from_bytes(control.recv(2))))
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return dialled


def _ping(connection: ssl.SSLSocket) -> None:
    connection.sendall(bytes(300))
    connection.recv(4096)


def _median_us(act: Callable[[], object]) -> float:
    taken = []
    for _ in range(PINGS):
        begun_ns = time.monotonic_ns()
        act()
        taken.append(time.monotonic_ns() - begun_ns)
    return statistics.median(taken) / 1000


async def _thread_us() -> float:
    worker, taken = Worker("yardstick"), []
    for _ in range(PINGS):
        begun_ns = time.monotonic_ns()
        await worker.run(time.monotonic_ns)
        taken.append(time.monotonic_ns() - begun_ns)
    worker.close()
    return statistics.median(taken) / 1000


def show(console: Console, kind: str, hops: Sequence[Hop]) -> None:
    """The table for people."""
    table = Table("µs", "after", "who", "what", title=f"bench.hops: {kind}, medians of {REQUESTS}")
    before_us = 0.0
    for hop in hops:
        table.add_row(f"{hop.at_us:,.0f}", f"+{hop.at_us - before_us:,.0f}", hop.who, hop.what)
        before_us = hop.at_us
    console.print(table)


def main() -> None:
    """Print the tables and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        windows, notes, names, bare = measure(Path(name))
    console = Console(width=100)
    facts: dict[str, object] = {"bench": "hops", "requests": REQUESTS, "cores": os.cpu_count()}
    for kind, each in windows.items():
        hops = timeline(each, notes, names)
        show(console, kind, hops)
        facts[kind] = [[hop.who, hop.what, round(hop.at_us)] for hop in hops]
    for what, us in bare.items():
        console.print(f"{what}: {us:,.0f} µs")
    print(json.dumps(facts | {what: round(us, 1) for what, us in bare.items()}))


if __name__ == "__main__":
    main()
