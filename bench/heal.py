"""A node dies for good: how soon it is noticed, how fast its replicas are made anew, what clients feel of it.

    python -m bench.heal        (HEAL_MIB=256 HEAL_RUNS=1 for a shorter look)

Four nodes, three replicas; the fourth takes what was lost. A node counts as down after DOWN_AFTER_S of
silence here, and after ten minutes by default: nothing else is made easier. The yardstick is the machine's
plain copy over the same path, in the same run: one GET over mutual TLS from the peer port of a node that
has the blobs, by a client that only writes what comes and syncs it (no checksum, one connection). The rate of
repair is that of the bytes from the beginning of the job to the moment in which the log names three nodes
that count for every blob.

Clients read ranges of 1 MiB and files of 4 KiB at a steady rate, in quiet and then while replicas are made.
A node that died is started again for the next run, and the replicas that are too many then are released.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.heal_cluster import DOWN_AFTER_S, Healed, HealingCluster
from bench.reader import Order, Outcome, Reads, quantiles_ms
from bench.rows import Figure, Row, as_json, show

RUNS = int(os.environ.get("HEAL_RUNS", "3"))
TOTAL_BYTES = int(os.environ.get("HEAL_MIB", "1024")) << 20
FILES = [int(count) for count in os.environ.get("HEAL_FILES", "1,64").split(",")]  # of TOTAL_BYTES together
RATE_MIN = 0.5  # of the plain copy
P99_MAX = 2.0  # times that of quiet
QUIET_S = 20.0
RANGE_BYTES, SMALL_BYTES = 1 << 20, 4096
RANGES_PER_S, SMALLS_PER_S = 6.0, 30.0  # of one client; each node that stays has one of either


@dataclass(frozen=True, slots=True)
class Felt:
    """How long clients waited, in quiet and during repair."""

    quiet: Outcome
    during: Outcome


class Readers:
    """The process of clients. Use as a context manager."""

    def __init__(self, cluster: HealingCluster) -> None:
        self._cluster = cluster
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.reader"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._answers.readline()

    def __enter__(self) -> "Readers":
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.close()
        self._process.wait(10)
        self._answers.close()

    @contextlib.contextmanager
    def reading(self, ports: Sequence[int], large: str, smalls: list[str]) -> Iterator[list[Outcome]]:
        """Clients at these ports; the outcome is there at the end."""
        found: list[Outcome] = []
        clients = []
        for port in ports:
            clients += [self._ranges(port, large), self._smalls(port, smalls)]
        order = Order(root_pem=self._cluster.root_pem, credential=self._cluster.credential, clients=clients)
        self._orders.write(msgspec.json.encode(order) + b"\n")
        self._orders.flush()
        try:
            yield found
        finally:
            self._orders.write(b"\n")
            self._orders.flush()
            outcome = msgspec.json.decode(self._answers.readline(), type=Outcome)
            found.append(outcome)
        if outcome.error:
            raise RuntimeError(outcome.error)

    def _ranges(self, port: int, large: str) -> Reads:
        return Reads(
            kind="range of 1 MiB",
            port=port,
            paths=[large],
            per_s=RANGES_PER_S,
            bytes_wanted=RANGE_BYTES,
            headers={"Range": f"bytes={RANGE_BYTES}-{2 * RANGE_BYTES - 1}"},
        )

    def _smalls(self, port: int, smalls: list[str]) -> Reads:
        return Reads(
            kind="file of 4 KiB", port=port, paths=smalls, per_s=SMALLS_PER_S, bytes_wanted=SMALL_BYTES
        )


def heal_quietly(cluster: HealingCluster, blobs: Sequence[str]) -> tuple[Healed, Figure]:
    """One death without clients, with its yardstick."""
    victim = cluster.holder(blobs[0])
    source = next(node for node in cluster.nodes if node != victim and cluster.has_all(node, blobs[:1]))
    yardstick = cluster.plain_copy(source, blobs, victim)
    healed = cluster.kill_and_heal(victim, blobs)
    cluster.take_back(victim)
    return healed, yardstick


def heal_under_load(
    cluster: HealingCluster, blobs: Sequence[str], large: str, smalls: list[str]
) -> tuple[Healed, Felt]:
    """One death while clients read at the nodes that stay, and what they felt before and meanwhile."""
    victim = cluster.holder(blobs[0])
    ports = [node.api_port for node in cluster.nodes if node != victim]
    with Readers(cluster) as readers:
        with readers.reading(ports, large, smalls) as quiet:
            cluster.rest(QUIET_S)
        cluster.kill(victim)
        cluster.until_noticed(victim)
        with readers.reading(ports, large, smalls) as during:
            healed = cluster.until_healed(victim, blobs)
    cluster.take_back(victim)
    return healed, Felt(quiet[0], during[0])


def rows(directory: Path) -> list[Row]:
    """Every case, measured."""
    found: list[Row] = []
    with HealingCluster(directory) as cluster:
        smalls = [cluster.path(cluster.store(SMALL_BYTES)) for _ in range(32)]
        large = cluster.path(cluster.store(64 << 20))
        for count in FILES:
            stored = [cluster.store(TOTAL_BYTES // count) for _ in range(count)]
            blobs = [cluster.sha256(file_uuid) for file_uuid in stored]
            pairs = [heal_quietly(cluster, blobs) for _ in range(RUNS)]
            found += _rates(f"{count} x {TOTAL_BYTES // count >> 20} MiB", pairs)
            if count == FILES[0]:
                found += _felt([heal_under_load(cluster, blobs, large, smalls) for _ in range(RUNS)])
            for file_uuid in stored:
                cluster.delete(file_uuid)
    return found


def _rates(case: str, pairs: Sequence[tuple[Healed, Figure]]) -> list[Row]:
    healed = [pair[0] for pair in pairs]
    rates = [(pair[0].rate, pair[1]) for pair in pairs]
    return [
        Row(f"{case}: noticed after", "s", statistics.median(one.noticed_s for one in healed)),
        Row(f"{case}: three replicas after", "s", statistics.median(one.healed_s for one in healed)),
        Row.compared(f"{case}: repair", "MB/s", RATE_MIN, rates),
    ]


def _felt(runs: Sequence[tuple[Healed, Felt]]) -> list[Row]:
    rate = statistics.median(healed.rate.per_s for healed, _ in runs)
    found = [Row("repair while clients read", "MB/s", rate)]
    for name, share, target in (("p50", 0.5, 0.0), ("p99", 0.99, P99_MAX)):
        pairs = [(quantiles_ms(felt.quiet, share), quantiles_ms(felt.during, share)) for _, felt in runs]
        for kind in pairs[0][0]:
            quiet_ms = statistics.median(quiet[kind] for quiet, _ in pairs)
            ratio = statistics.median(during[kind] / quiet[kind] for quiet, during in pairs)
            found.append(Row(f"{name} of a {kind}, quiet", "ms", quiet_ms))
            found.append(Row(f"{name} of a {kind}, during repair", "x quiet", ratio, target=target))
    return found


def main() -> None:
    """Print the table and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = rows(Path(name))
    show(f"bench.heal: medians of {RUNS}; a node is down after {DOWN_AFTER_S} s; CPU s per GiB", found)
    print(json.dumps(as_json("heal", RUNS, found)))


if __name__ == "__main__":
    main()
