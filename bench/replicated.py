"""PUT with three replicas, made while the bytes come, beside the same PUT with one, in the same run.

    python -m bench.replicated        (UPLOADS_BYTES and UPLOADS_RUNS as for bench.uploads)

Three nodes share this machine, which elsewhere have one each: they hash three times and write three times.
So the bound is what the machine allows at best, each part measured in the same run: the slower of the PUT
with one replica as it is, three times the time that the disk took for one copy alone when it was quickest (it
is shared with others, and two or three times slower in some runs), and three times the processor time of a
PUT with one replica, over all cores. That is the time of the whole machine: the sender's, as each replica is
sent once, by the client or by the node before it in the chain; the node's; and the kernel's, which receives
and writes back for nobody's account. What the idle processes here take anyway is left out on both sides. The
ratio is bound by wall time: 0.8 is a wall time of 1.25 bounds. Both fill memory that is at hand
(`bench.warming`).
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from bench.loaders import GIB, Mover, cpu_s
from bench.one_node import OneNode, remove_blobs
from bench.rows import Figure, Row, as_json, busy_s, show
from bench.sender import Order
from bench.uploads import FILE_BYTES, RUNS, bounds, put_to_node
from bench.warming import Ballast
from deploy.development import DevelopmentCluster

REPLICAS = 3
TARGET = 0.8  # of the bound
BACKGROUND_S = 3.0  # with everything started, and nothing asked
SPARE_BYTES = 1 << 30  # of memory at hand: buffers of sockets and processes


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

        What they left on the disks is removed again: memory that no cache has held yet costs more to fill.
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
        finally:
            for node in self._nodes:
                remove_blobs(self._cluster.data(node) / "blobs")
        return Figure(sent.per_s, (self._cpu_s() - before_s) * GIB / FILE_BYTES)

    async def _create(self) -> str:
        fields = {"filename": "bench", "project_id": "bench", "size_bytes": FILE_BYTES}
        async with self._cluster.client() as client:
            return str((await client.create_project_file(fields))["upload_url"])

    def _pids(self) -> list[int]:
        return [self._cluster.children[node.id].process.pid for node in self._nodes]

    def _cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self._pids())


def bound_of(disk_per_s: float, one: Figure, background: float) -> Figure:
    """The most that this machine can do with three replicas, from what it does with one.

    `background`: how many cores are busy when nothing is measured.
    """
    wall_s = FILE_BYTES / (1 << 20) / one.per_s
    disk_s = REPLICAS * FILE_BYTES / (1 << 20) / disk_per_s
    spent_s = one.machine_cpu_s * FILE_BYTES / GIB - background * wall_s
    cpu_wall_s = REPLICAS * spent_s / ((os.cpu_count() or 1) - background)
    best_s = max(wall_s, disk_s, cpu_wall_s)
    return Figure(FILE_BYTES / (1 << 20) / best_s, REPLICAS * one.server_cpu_s)


def _background() -> float:
    before_s = busy_s()
    time.sleep(BACKGROUND_S)
    return (busy_s() - before_s) / BACKGROUND_S


def rows(directory: Path) -> list[Row]:
    """The one row. Starts and ends all that it needs below `directory`."""
    disks, ones, threes = [], [], []
    with ExitStack() as stack:
        sender = Mover("bench.sender", directory)
        stack.callback(sender.stop)
        node, group = OneNode(directory, stack, {}), Group(directory, stack)
        few, many = (
            Ballast(FILE_BYTES + SPARE_BYTES, stack),
            Ballast(REPLICAS * FILE_BYTES + SPARE_BYTES, stack),
        )
        background = _background()
        for _ in range(RUNS + 1):
            os.sync()  # what was removed is not on the disk's mind any more
            few.free()
            disks.append(bounds(directory)[0].per_s)
            ones.append(put_to_node(node, sender, tls=True, connections=1))
            few.hold()
            os.sync()
            many.free()
            threes.append(group.put(sender))
            many.hold()
    found = [bound_of(max(disks), one, background) for one in ones]
    pairs = list(zip(threes, found, strict=True))[1:]  # the first does not count
    return [Row.compared("TLS PUT, 3 replicas, beside the bound", "MiB/s", TARGET, pairs)]


def main() -> None:
    """Print the table and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = rows(Path(name))
    show(f"bench.replicated: medians of {RUNS}; CPU s per GiB", found)
    print(json.dumps(as_json("replicated", RUNS, found)))


if __name__ == "__main__":
    main()
