"""PUT with three replicas, made while the bytes come, beside the same PUT with one, in the same run.

    python -m bench.replicated        (UPLOADS_BYTES and UPLOADS_RUNS as for bench.uploads)

Three nodes share this machine, which elsewhere have one each: they hash three times and write three times.
So the bound is what the machine allows at best, each part measured in the same run: the slowest of

- the PUT with one replica as it is;
- three times the time that the disk took for one copy alone when it was quickest (it is shared with others,
  and two or three times slower in some runs);
- the processor time of three PUTs with one replica, one after the other, over all cores: each replica is sent
  once, by the client or by the node before it in the chain, received, hashed and written.

Processor time is that of the whole machine, as who sends, receives and writes back is not always a process
of ours, less what is spent when nothing is asked. Where the three cost more one by one than at once, they
were measured while something else went on, and the less counts: no run beats the bound by that. The ratio is
bound by wall time: 0.8 is a wall time of 1.25 bounds. The other rows say who spent it.

Both keep all three copies until they have ended, and rest before they begin. A virtual machine may give
memory that was freed back to its host, and filling that takes 1.9 s of processor time per GiB where other
memory takes 0.2: a copy that was made right behind another, and in its place, would find all of its memory at
hand, and three would find a third of it.
"""

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.loaders import GIB, Mover, cpu_s
from bench.one_node import OneNode, remove_blobs
from bench.rows import Figure, Row, as_json, busy_s, show
from bench.sender import Order
from bench.uploads import FILE_BYTES, RUNS, put_kept, quickest, written
from deploy.dev_cluster import DevelopmentCluster

REPLICAS = 3
TARGET = 0.8  # of the bound
REST_S = 3.0
MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Put:
    """MiB per second, and processor time per GiB: of the machine but for its background, and of processes.

    `background`: how many cores were busy without it.
    """

    background: float
    per_s: float
    machine_s: float
    nodes_s: float
    sender_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """Three files with one replica each, and one file with three, one after the other.

    A GiB is one of the client's in `three`, and one in each file of `single`, whose times are added up.
    """

    single: Put
    three: Put

    @property
    def background(self) -> float:
        """How many cores were busy without either, at least."""
        return min(self.single.background, self.three.background)

    def limits_s(self, disk_per_s: float) -> dict[str, float]:
        """What sets a limit to a GiB with three replicas, and the least wall time that it leaves, s."""
        spent_s = min(self.single.machine_s, self.three.machine_s)
        return {
            "the PUT with one replica": MIB_PER_GIB / self.single.per_s,
            "the disk": REPLICAS * MIB_PER_GIB / disk_per_s,
            "the processor": spent_s / ((os.cpu_count() or 1) - self.background),
        }

    def bound(self, disk_per_s: float) -> tuple[Figure, str]:
        """The most that this machine can do with three replicas, from what it does with one, and by what."""
        limits_s = self.limits_s(disk_per_s)
        slowest = max(limits_s, key=lambda name: limits_s[name])
        return Figure(MIB_PER_GIB / limits_s[slowest], self.single.machine_s), slowest

    def told(self, disk_per_s: float) -> str:
        """All that the ratio was computed from."""
        limits = ", ".join(f"{name} {least_s:.2f}" for name, least_s in self.limits_s(disk_per_s).items())
        return (
            f"wall {MIB_PER_GIB / self.three.per_s:.2f} s/GiB, bound: {limits}; processor of the machine: "
            f"3 PUTs {self.single.machine_s:.2f}, 3 replicas {self.three.machine_s:.2f}, "
            f"background {self.background:.2f} cores"
        )


class Group:
    """Three nodes, three replicas of each file, write quorum two."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._cluster = DevelopmentCluster(directory / "three", node_count=REPLICAS, replicas=REPLICAS)
        stack.callback(self._cluster.stop)
        self._cluster.start()
        self._nodes = self._cluster.layout.of_role("node")
        self._credential = f"Authorization: Bearer {self._cluster.token_file.read_text().strip()}"

    def put(self, sender: Mover) -> Figure:
        """FILE_BYTES over TLS, to the node that takes them; the CPU time is that of all nodes together.

        What they left on the disks is removed again. Raises RuntimeError when one of them was left without.
        """
        url = urlsplit(asyncio.run(self._create()))
        order = Order(
            port=url.port or 0,
            paths=[url.path],
            body_bytes=FILE_BYTES,
            credential=self._credential,
            tls=True,
        )
        before_s = self._cpu_s()
        try:
            sent = sender.move(order, FILE_BYTES, self._pids()[0])
            spent_s = self._cpu_s() - before_s
            self._require_all()
        finally:
            for blobs in self._blobs():
                remove_blobs(blobs)
        return Figure(sent.per_s, spent_s * GIB / FILE_BYTES, sent.machine_cpu_s)

    async def _create(self) -> str:
        fields = {"filename": "bench", "project_id": "bench", "size_bytes": FILE_BYTES}
        async with self._cluster.client() as client:
            created = await client.call("POST", "/api/v1/project-files", dict[str, str], body=fields)
            return created["upload_url"]

    def _require_all(self) -> None:
        """Two are enough for an answer, but not to be held against the bound of three."""
        for blobs in self._blobs():
            if FILE_BYTES not in [path.stat().st_size for path in blobs.glob("*/*/*")]:
                raise RuntimeError(f"no replica was made in {blobs}")

    def _blobs(self) -> list[Path]:
        return [self._cluster.data(node) / "blobs" for node in self._nodes]

    def _pids(self) -> list[int]:
        return [self._cluster.children[node.id].process.pid for node in self._nodes]

    def _cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self._pids())


def _measured(background: float, sender: Mover, put: Callable[[], Figure]) -> Put:
    """One PUT that `sender` makes."""
    before_s = cpu_s(sender.process.pid)
    figure = put()
    return Put(
        background=background,
        per_s=figure.per_s,
        machine_s=figure.machine_cpu_s - background * MIB_PER_GIB / figure.per_s,
        nodes_s=figure.server_cpu_s,
        sender_s=(cpu_s(sender.process.pid) - before_s) * GIB / FILE_BYTES,
    )


def _one_by_one(background: float, sender: Mover, node: OneNode) -> Put:
    """As many files as there are replicas: the speed of one, the time of all."""
    try:
        puts = [
            _measured(background, sender, lambda: put_kept(node, sender, tls=True, connections=1))
            for _ in range(REPLICAS)
        ]
    finally:
        remove_blobs(node.blobs)
    return Put(
        background=background,
        per_s=statistics.median(put.per_s for put in puts),
        machine_s=sum(put.machine_s for put in puts),
        nodes_s=sum(put.nodes_s for put in puts),
        sender_s=sum(put.sender_s for put in puts),
    )


def _rested() -> float:
    """Wait until nothing goes on any more: how many cores are busy even so."""
    os.sync()
    before_s = busy_s()
    time.sleep(REST_S)
    return (busy_s() - before_s) / REST_S


def _runs(directory: Path) -> tuple[float, list[Run]]:
    """MiB per second of the disk at its best, and all runs but the first, which does not count."""
    disks, runs = [], []
    with ExitStack() as stack:
        sender = Mover("bench.sender", directory)
        stack.callback(sender.stop)
        node, group = OneNode(directory, stack, {}), Group(directory, stack)
        turns: list[tuple[str, Callable[[], Put]]] = [
            ("single", lambda: _one_by_one(_rested(), sender, node)),
            ("three", lambda: _measured(_rested(), sender, lambda: group.put(sender))),
        ]
        for _ in range(RUNS + 1):
            _rested()
            disks.append(quickest(written(directory)).per_s)
            runs.append(Run(**{name: put() for name, put in turns}))
            turns.reverse()  # neither comes always behind the other
    return max(disks), runs[1:]


def rows(directory: Path) -> list[Row]:
    """Speed beside the bound, then whose time it cost. Starts and ends all that it needs in `directory`."""
    disk_per_s, runs = _runs(directory)
    bounds = [run.bound(disk_per_s) for run in runs]
    pairs = [
        (Figure(run.three.per_s, run.three.machine_s), bound)
        for run, (bound, _) in zip(runs, bounds, strict=True)
    ]
    found = [Row.compared("TLS PUT, 3 replicas, beside the bound", "MiB/s", TARGET, pairs)]
    spenders: dict[str, Callable[[Put], float]] = {
        "the nodes": lambda put: put.nodes_s,
        "the sender": lambda put: put.sender_s,
    }
    for name, spent_s in spenders.items():
        costs = [(Figure(spent_s(run.three)), Figure(spent_s(run.single))) for run in runs]
        found.append(Row.compared(f"3 replicas, CPU s of {name} / 3 PUTs", "s", 0, costs))
    single = [(Figure(run.three.per_s), Figure(run.single.per_s)) for run in runs]
    found.append(Row.compared("TLS PUT, 3 replicas / 1 replica", "MiB/s", 0, single))
    for run in runs:
        print(f"bench.replicated: {run.told(disk_per_s)}")
    by = ", ".join(f"{name} ({count})" for name, count in Counter(name for _, name in bounds).items())
    print(f"bench.replicated: the bound is {by} of {len(runs)}; disk {disk_per_s:,.0f} MiB/s")
    return found


def main() -> None:
    """Print the table and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = rows(Path(name))
    show(f"bench.replicated: medians of {RUNS}; CPU s per GiB of the whole machine", found)
    print(json.dumps(as_json("replicated", RUNS, found)))


if __name__ == "__main__":
    main()
