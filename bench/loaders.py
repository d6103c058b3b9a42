"""Processes that load a cluster, a group of coordinators to be loaded, and what they cost in CPU."""

import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import msgspec
from msgspec import Struct

from bench.load import Order, Outcome
from bench.orders import Moved
from bench.rows import TICKS_PER_S, Figure, busy_s
from deploy.dev_cluster import DevelopmentCluster, Member
from deploy.processes import LOOPBACK, free_ports
from node.membership.join import join

STOP_TIMEOUT_S = 10.0
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: answers per second, latencies, and µs of CPU per answer by the name of the process."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: Mapping[str, float]
    entry_bytes: int


class Loader:
    """One load process, spoken to in JSON lines."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.answer()

    def order(self, order: Struct) -> None:
        """Tell it what to do; `answer` waits until it is done."""
        _pipe(self.process.stdin).write(msgspec.json.encode(order) + b"\n")
        _pipe(self.process.stdin).flush()

    def answer(self) -> bytes:
        """What came of the last order, as JSON. Raises RuntimeError when the process failed."""
        line = _pipe(self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.name} ended early; see {self._log.name}")
        return line

    def stop(self) -> None:
        """End it."""
        _pipe(self.process.stdin).close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _pipe(self.process.stdout).close()
        self._log.close()


class Mover(Loader):
    """A process of `bench.orders`, named by its module."""

    def __init__(self, module: str, directory: Path) -> None:
        super().__init__(module, [module], directory / f"{module}.log")

    def move(self, order: Struct, size_bytes: int, server_pid: int) -> Figure:
        """What came of an order that moves `size_bytes`. Raises RuntimeError for a wrong answer."""
        before_s, busy_before_s = cpu_s(server_pid), busy_s()
        self.order(order)
        moved = msgspec.json.decode(self.answer(), type=Moved)
        if moved.error:
            raise RuntimeError(moved.error)
        spent_s, busy_spent_s = cpu_s(server_pid) - before_s, busy_s() - busy_before_s
        share = GIB / size_bytes
        return Figure(size_bytes / (1 << 20) / moved.elapsed_s, spent_s * share, busy_spent_s * share)


class Loaders:
    """Load processes that act as one. `servers` are the pids whose CPU time is counted, by name."""

    def __init__(self, loaders: Sequence[Loader], servers: Mapping[str, int]) -> None:
        self._loaders = loaders
        self._servers = servers
        self.changes = 0  # that were acknowledged so far

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End them all."""
        for loader in self._loaders:
            loader.stop()

    def run(self, order: Order) -> Measured:
        """Share an order out over the processes, and add up what came of it."""
        shares = _shares(order, self._loaders)
        before = {name: cpu_s(pid) for name, pid in self._servers.items()}
        for loader, share in shares:
            loader.order(share)
        outcomes = [msgspec.json.decode(loader.answer(), type=Outcome) for loader, _ in shares]
        after = {name: cpu_s(pid) for name, pid in self._servers.items()}
        count = sum(outcome.count for outcome in outcomes)
        self.changes += 0 if order.what == "read" else count
        latencies_us = sorted(value for outcome in outcomes for value in outcome.latencies_us)
        spent = {name: after[name] - before[name] for name in self._servers}
        spent["load"] = sum(outcome.cpu_s for outcome in outcomes)
        return Measured(
            per_s=sum(outcome.count / outcome.elapsed_s for outcome in outcomes),
            p50_ms=latencies_us[len(latencies_us) // 2] / 1000,
            p99_ms=latencies_us[len(latencies_us) * 99 // 100] / 1000,
            cpu_us={name: seconds * 1e6 / count for name, seconds in spent.items()},
            entry_bytes=outcomes[0].entry_bytes,
        )


class CoordinatorGroup:
    """Coordinators on this machine, three as it comes, nodes, and processes that load them as nodes."""

    def __init__(
        self, directory: Path, *, coordinator_count: int = 3, node_count: int = 0, replicas: int = 1
    ) -> None:
        """One copy on one node, as it comes: the bytes of files are not what is measured here."""
        self.directory = directory
        self.cluster = DevelopmentCluster(
            directory,
            coordinator_count=coordinator_count,
            node_count=node_count,
            replicas=replicas,
            write_quorum=replicas // 2 + 1,
        )

    def __enter__(self) -> Self:
        try:
            self.cluster.start()
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()

    @property
    def members(self) -> list[Member]:
        """The coordinators."""
        return self.cluster.layout.of_role("coordinator")

    def pid(self, member: Member) -> int:
        """Of a coordinator's process."""
        return self.cluster.children[member.id].process.pid

    def leader(self) -> str:
        """The id of the coordinator that leads now, "" for none."""
        return str(asyncio.run(self._status())["leader"])

    def coordinators(self) -> list[dict[str, Any]]:
        """Each coordinator as the cluster's status shows it."""
        shown: list[dict[str, Any]] = asyncio.run(self._status())["coordinators"]
        return shown

    async def _status(self) -> dict[str, Any]:
        async with self.cluster.client() as client:
            return await client.cluster.status()

    def loaders(self, count: int, module: str = "bench.load") -> Loaders:
        """Start so many load processes, each of which joins as a node."""
        leader = self.leader()
        others = [member for member in self.members if member.id != leader]
        servers = {"leader": self.cluster.children[leader].process.pid}
        servers |= {f"follower {at}": self.pid(member) for at, member in enumerate(others, 1)}
        ports = free_ports(2 * count)  # at once: nobody listens there, so the same ones may come again
        names = [(f"load-{at + 1}", (ports[2 * at], ports[2 * at + 1])) for at in range(count)]
        return Loaders([self._loader(name, own, module) for name, own in names], servers)

    def _loader(self, node_id: str, ports: tuple[int, int], module: str) -> Loader:
        data = self.directory / node_id
        if not data.exists():
            asyncio.run(self._join(data, node_id, ports))
        arguments = [module, "--data", str(data), "--token-file", str(self.cluster.token_file)]
        return Loader(node_id, arguments, self.directory / "logs" / f"{node_id}.log")

    async def _join(self, data: Path, node_id: str, ports: tuple[int, int]) -> None:
        api_port, peer_port = ports
        async with self.cluster.client() as client:
            minted = await client.join_tokens.create(node_id=node_id)
        await join(
            data,
            token=minted.token,
            node_id=node_id,
            coordinator_url=self.members[0].url,
            address=LOOPBACK,
            api_port=api_port,
            peer_port=peer_port,
        )


def median_of(runs: Sequence[Measured]) -> Measured:
    """Each number's median over the runs."""
    return Measured(
        per_s=statistics.median(run.per_s for run in runs),
        p50_ms=statistics.median(run.p50_ms for run in runs),
        p99_ms=statistics.median(run.p99_ms for run in runs),
        cpu_us={name: statistics.median(run.cpu_us[name] for run in runs) for name in runs[0].cpu_us},
        entry_bytes=runs[0].entry_bytes,
    )


def cpu_s(pid: int) -> float:
    """User and system time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """The memory of a process that is in RAM now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _shares(order: Order, loaders: Sequence[Loader]) -> list[tuple[Loader, Order]]:
    """As even as can be; a process without a client is left out."""
    busy = loaders[: min(order.clients, len(loaders))]
    shares = []
    for at, loader in enumerate(busy):
        clients = (order.clients + at) // len(busy)
        count = (order.count + at) // len(busy)
        shares.append((loader, msgspec.structs.replace(order, clients=clients, count=count)))
    return shares


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "both pipes were asked for"
    return pipe
