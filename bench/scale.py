"""What a metadata operation costs with many files, beside the same with few: nothing should grow.

    python -m bench.scale        (SCALE_FILES=1000000, SCALE_COORDINATORS=1, SCALE_RUNS=3)

Two groups of coordinators with five nodes that answer heartbeats and hold nothing: one with SCALE_SMALL
(10,000) files in its state, one with SCALE_FILES (200,000). Both states are generated (`bench.scale_state`),
all that is measured goes through the product: mutual TLS, Raft, SQLite. In each round every case runs on the
one and then on the other, so `ratio` is that of answers per second at the same moment. Then, of the large
one: a start after a kill under load and after a stop, a pass of `trim` over all blobs and a new member, with
what a client sees meanwhile.

With SCALE_DIRECTORY the states are kept there and found again. 10^7 files take 15 GB for each member, as much
again for the snapshot, and ten minutes to be generated.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench import scale_state
from bench.loaders import CoordinatorGroup, Loaders, Measured, resident_bytes
from bench.rows import Figure, Row, as_json, show
from bench.scale_load import ScaleOrder
from ca.tls import client_context
from coordinator.admin import restore, setup
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.state_store import Store
from coordinator.storage.stored_sums import SUMS
from deploy.dev_cluster import Member
from deploy.processes import LOOPBACK, free_ports, is_ready, start_child, stop_children, wait_until
from filestore_client import AsyncClient
from metadata.model.records import CoordinatorRecord

FILES: Final = int(os.environ.get("SCALE_FILES", "200000"))
SMALL: Final = int(os.environ.get("SCALE_SMALL", "10000"))
COORDINATORS: Final = int(os.environ.get("SCALE_COORDINATORS", "3"))
RUNS: Final = int(os.environ.get("SCALE_RUNS", "5"))
COUNT: Final = int(os.environ.get("SCALE_COUNT", "400"))  # operations of one case in one round
DIRECTORY: Final = os.environ.get("SCALE_DIRECTORY", "")
CASES_CHOSEN: Final = os.environ.get("SCALE_CASES", "")
RATIO_MIN: Final = 1 / 1.2
RESTART_S_MAX: Final = 30.0
NEW_MEMBER_S_MAX: Final = 600.0
CLIENTS: Final = (1, 32)
BESIDE_CLIENTS: Final = 1
BESIDE_COUNT: Final = 50
NODES: Final = scale_state.NODES
LONG_S: Final = 3600.0  # for what is measured to end at all
ACTS: Final = ("create", "get", "list all", "list project", "list bucket", "delete")
NEWCOMER: Final = f"newcomer-{int(time.time())}"  # a name that was removed is never taken again
_MADE: Final = re.compile(r"made a snapshot at index \d+ in ([0-9.]+) s")


class Scaled:
    """A group with so many files, and what loads it."""

    def __init__(self, directory: Path, files: int) -> None:
        self.files = files
        self.group = CoordinatorGroup(
            directory, coordinator_count=COORDINATORS, replicas=scale_state.REPLICAS
        )
        self._first_path = directory / "first"
        self._loaders: Loaders | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Generated if that was not done yet, and started."""
        if not self._first_path.exists():
            self._generate()
        cluster = self.group.cluster
        try:
            # Not `cluster.start`: the nodes that it waits for are the load, which comes after this.
            for member in self.group.members:
                cluster.start_member(member)
            self._wait_ready(self.group.members)
            cluster.mint_admin_token()
            self._loaders = self.group.loaders(NODES, "bench.scale_load")
            yield
        finally:
            if self._loaders is not None:
                self._loaders.stop()
            cluster.stop()

    def _wait_ready(self, members: Sequence[Member]) -> None:
        context = client_context(self.group.cluster.ca.read_text())
        for member in members:
            wait_until(
                partial(is_ready, member.api_port, context),
                what=member.id,
                timeout_s=LONG_S,
                watched=[self.group.cluster.children[member.id]],
            )

    @property
    def first(self) -> int:
        """The sequence of the first file that was generated."""
        return int(self._first_path.read_text())

    def run(self, what: str, clients: int, count: int = COUNT) -> Measured:
        """So many of these operations. Raises RuntimeError when one failed."""
        assert self._loaders is not None, "running"
        order = ScaleOrder(what=what, clients=clients, count=count, files=self.files, first=self.first)
        return self._loaders.run(order)

    def ready_s(self, member: Member, *, kill: bool) -> float:
        """Seconds from the start of a member that was ended to its being ready."""
        cluster = self.group.cluster
        child = cluster.children[member.id]
        if kill:
            child.process.kill()
        stop_children([child])
        began_s = time.perf_counter()
        cluster.start_member(member)
        self._wait_ready([member])
        return time.perf_counter() - began_s

    def restarted(self) -> None:
        """The processes are others: start the load anew."""
        if self._loaders is not None:
            self._loaders.stop()
        wait_until(lambda: bool(self._leader()), what="a leader", timeout_s=LONG_S)
        self._loaders = self.group.loaders(NODES, "bench.scale_load")

    def _leader(self) -> str:
        try:
            return self.group.leader()
        except Exception:  # noqa: BLE001 - there is none yet
            return ""

    def memory_mib(self) -> float:
        """Of the largest coordinator, in RAM."""
        return max(resident_bytes(self.group.pid(member)) for member in self.group.members) / (1 << 20)

    def _generate(self) -> None:
        """A group with five nodes and no files; then the files, in the state of each member.

        Its log begins behind them, as after a snapshot that was installed.
        """
        with self.group:
            self.group.loaders(NODES).stop()
        first, *others = self.group.members
        states = {m.id: CoordinatorFiles(self.group.cluster.data(m)).state for m in self.group.members}
        state = states[first.id]
        node_ids = [f"load-{at}" for at in range(1, NODES + 1)]
        sequence, index, term = scale_state.fill(state, self.files, node_ids)
        with closing(Store(state)) as store:
            store.check()  # every page is read, and its checksum kept
        for member in others:
            for ending in ("", SUMS):
                source, target = (path.with_name(path.name + ending) for path in (state, states[member.id]))
                shutil.copy2(source, target)
        for member in self.group.members:
            files = CoordinatorFiles(self.group.cluster.data(member))
            with closing(SegmentLog.open(files.log)) as log:
                log.promise(replace(log.promised, installing=(index, term)))
        self._first_path.write_text(str(sequence))


def operations(small: Scaled, large: Scaled) -> list[Row]:
    """Every case on both, turn by turn."""
    cases = [(what, clients) for what in ACTS for clients in CLIENTS]
    runs: dict[tuple[str, int], list[tuple[Figure, Figure]]] = {case: [] for case in cases}
    for number in range(RUNS + 1):
        for case in cases:
            measured = [each.run(*case, count=_count(*case)) for each in (large, small)]
            if number:  # the first warms caches up
                large_figure, small_figure = (Figure(m.per_s, m.cpu_us["leader"] / 100) for m in measured)
                runs[case].append((large_figure, small_figure))
    return [
        Row.compared(f"{what}, {_clients(clients)}", "/s", RATIO_MIN, pairs)
        for (what, clients), pairs in runs.items()
    ]


def starts(large: Scaled) -> list[Row]:
    """Of one member, while the others go on: killed in the middle of changes, and stopped."""
    member = large.group.members[-1]
    rows = []
    for name, kill in (("after a kill", True), ("after a stop", False)):
        took_s = []
        for _ in range(min(RUNS, 3)):
            large.run("create", 32)
            took_s.append(large.ready_s(member, kill=kill))
            large.restarted()
        rows.append(_plain(f"start {name}", "s", statistics.median(took_s), RESTART_S_MAX, len(took_s)))
    return rows


def trim_pass(large: Scaled) -> list[Row]:
    """A pass over all blobs, and what one client sees meanwhile."""

    async def whole() -> float:
        async with large.group.cluster.client() as client:
            began_s = time.perf_counter()
            triggered = await client.jobs.trigger("trim")
            await client.jobs.wait(triggered.run_id, timeout_s=LONG_S)
            return time.perf_counter() - began_s

    took_s, meanwhile = _beside(large, "trim", lambda: asyncio.run(whole()))
    return [_plain("pass of trim, for a blob", "us", took_s * 1e6 / large.files, 0, 1), *meanwhile]


def new_member(large: Scaled) -> list[Row]:
    """From a coordinator's being added, with an empty disk, until it votes; what clients see meanwhile."""
    cluster, first = large.group.cluster, large.group.members[0]
    api_port, peer_port = free_ports(2)
    record = CoordinatorRecord(
        coordinator_id=NEWCOMER, address=LOOPBACK, peer_port=peer_port, api_port=api_port
    )
    data = cluster.directory / NEWCOMER
    bundle = cluster.directory / "bundle"
    bundle.unlink(missing_ok=True)
    restore.write_bundle(cluster.data(first), bundle)
    setup.init_from_bundle(data, bundle, NEWCOMER, record)
    log = cluster.directory / "logs" / f"{NEWCOMER}.log"
    child = start_child(NEWCOMER, ["coordinator", "run", "--data", str(data)], log)

    async def joined() -> float:
        async with cluster.client() as client:
            began_s = time.perf_counter()
            await client.cluster.add_coordinator(
                NEWCOMER, address=LOOPBACK, peer_port=peer_port, api_port=api_port
            )
            while not await _votes(client):
                await asyncio.sleep(1)
            return time.perf_counter() - began_s

    try:
        took_s, meanwhile = _beside(large, "snapshot", lambda: asyncio.run(joined()))
        return [
            _plain("new member", "s", took_s, NEW_MEMBER_S_MAX, 1),
            _plain("of that, the snapshot", "s", _made_s(large), 0, 1),
            *meanwhile,
        ]
    finally:
        with contextlib.suppress(Exception):
            asyncio.run(_removed(large))
        stop_children([child])
        shutil.rmtree(data, ignore_errors=True)


async def _votes(client: AsyncClient) -> bool:
    status = await client.cluster.status()
    found = [each for each in status["coordinators"] if each["id"] == NEWCOMER]
    return bool(found) and found[0]["membership"] == "voter"


async def _removed(large: Scaled) -> None:
    async with large.group.cluster.client() as client:
        await client.cluster.remove_coordinator(NEWCOMER)


def _made_s(large: Scaled) -> float:
    """How long the last snapshot took, as whoever made it has logged."""
    logs = (large.group.directory / "logs").glob("coordinator-*.log")
    made = [json.loads(line) for log in logs for line in log.read_text().splitlines() if _MADE.search(line)]
    newest = max(made, key=lambda line: str(line["time"]))
    return float(_MADE.findall(newest["message"])[0])


def _beside(large: Scaled, name: str, work: Callable[[], float]) -> tuple[float, list[Row]]:
    """What the work says, and what a client sees that creates one file after the other until it ends."""
    quiet = large.run("create", BESIDE_CLIENTS)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        found: list[Measured] = []
        while not done.done():
            found.append(large.run("create", BESIDE_CLIENTS, count=BESIDE_COUNT))
        result = done.result()
    per_s = statistics.median(each.per_s for each in found)
    worst_ms = max(each.p99_ms for each in found)
    return result, [
        Row(
            f"create, one client, during {name}",
            "/s",
            per_s,
            quiet.per_s,
            per_s / quiet.per_s,
            runs=len(found),
        ),
        Row(f"longest p99 during {name}", "ms", worst_ms, runs=len(found)),
    ]


def _plain(name: str, unit: str, value: float, target: float, runs: int) -> Row:
    return Row(name=name, unit=unit, value=value, target=target, runs=runs)


def _count(what: str, clients: int) -> int:
    """Reads are quick, and the time of a few of them is any; and the small state has only so many files."""
    count = {"get": 4 * COUNT, "delete": COUNT // 4}.get(what, COUNT)
    return count if clients > 1 else count // 2


def _clients(clients: int) -> str:
    return "one client" if clients == 1 else f"{clients} clients"


def measure(directory: Path) -> list[Row]:
    """All of it, or what was chosen."""
    chosen = CASES_CHOSEN.split(",") if CASES_CHOSEN else list(PARTS)
    rows = list[Row]()
    large = Scaled(directory / f"files-{FILES}-{COORDINATORS}", FILES)
    with ExitStack() as stack:
        if "operations" in chosen:
            shutil.rmtree(directory / "small", ignore_errors=True)  # what it was grows with every run
            small = Scaled(directory / "small", SMALL)
            stack.enter_context(small.running())
        stack.enter_context(large.running())
        if "operations" in chosen:
            rows += operations(small, large)
            mib = [each.memory_mib() for each in (large, small)]
            rows.append(Row("memory of a coordinator", "MiB", mib[0], mib[1], mib[0] / mib[1], runs=1))
        for name in chosen:
            if name != "operations":
                rows += PARTS[name](large)
    return rows


PARTS: Final[dict[str, Callable[[Scaled], list[Row]]]] = {
    "operations": lambda _: [],
    "starts": starts,
    "trim": trim_pass,
    "member": new_member,
}


def main() -> None:
    """Measure, and print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        rows = measure(Path(DIRECTORY or name))
    title = f"bench.scale: medians of {RUNS}; {FILES:,} files beside {SMALL:,}, {COORDINATORS} coordinators"
    show(title, rows)
    facts = {"files": FILES, "small": SMALL, "coordinators": COORDINATORS}
    print(json.dumps({**as_json("scale", RUNS, rows), **facts}))


if __name__ == "__main__":
    main()
