"""Whether a member stays as small and as fast over a million commands as it began.

    python -m bench.flat        (FLAT_COMMANDS=100000 for a shorter look)

Three coordinators, and one process that makes files as fast as they take them. At a tenth, a half and the
whole: memory of each member, disk used by log and database, commands per second since the mark before. Then a
follower is killed and started again, and a new member with an empty disk joins and catches up by snapshot.
"""

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.load import Order
from bench.loaders import CoordinatorGroup, Loaders, resident_bytes
from ca.tls import client_context
from coordinator.admin import setup
from deploy.commands.coordinator_group import add_coordinator
from deploy.dev_cluster import Member
from deploy.processes import LOOPBACK, free_ports, is_ready, stop_children, wait_until
from metadata.model.records import CoordinatorRecord

COMMANDS = int(os.environ.get("FLAT_COMMANDS", "1000000"))
MARKS = (COMMANDS // 10, COMMANDS // 2, COMMANDS)
CLIENTS = 256
ORDER_COMMANDS_MAX = 20_000  # in one order to the load process: its answer lists every latency
CATCH_UP_TIMEOUT_S = 600.0
RESTART_TIMEOUT_S = 120.0
NEWCOMER = "coordinator-4"
RESTART_S_MAX = 5.0
CATCH_UP_S_MAX = 60.0
MIB = 1 << 20
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own


@dataclass(frozen=True, slots=True)
class Mark:
    """After so many commands: by member id, memory and disk; the rate and CPU since the mark before."""

    commands: int
    per_s: float
    leader_cpu_us: float
    resident_bytes: dict[str, int]
    log_bytes: dict[str, int]
    database_bytes: dict[str, int]


@dataclass(slots=True)
class Findings:
    """What was measured."""

    marks: list[Mark] = field(default_factory=list)
    restart_s: float = 0.0
    catch_up_s: float = 0.0
    by_snapshot: bool = False  # a short log is sent whole instead


def run(directory: Path) -> Findings:
    """The whole story."""
    findings = Findings()
    with CoordinatorGroup(directory / "group") as group:
        with group.loaders(1) as loaders:
            done = 0
            for commands in MARKS:
                findings.marks.append(fill(group, loaders, done, commands))
                done = commands
        findings.restart_s = restart_s(group)
        findings.catch_up_s = catch_up_s(group)
        told = (group.directory / "logs" / f"{NEWCOMER}.log").read_text()
        findings.by_snapshot = "installed the snapshot" in told
    return findings


def fill(group: CoordinatorGroup, loaders: Loaders, done: int, commands: int) -> Mark:
    """Make files until there are `commands` of them, then look."""
    start, cpu_us = time.perf_counter(), 0.0
    for first in range(done, commands, ORDER_COMMANDS_MAX):
        count = min(ORDER_COMMANDS_MAX, commands - first)
        measured = loaders.run(Order(what="create", clients=CLIENTS, count=count))
        cpu_us += measured.cpu_us["leader"] * count
    elapsed_s = time.perf_counter() - start
    data = {member.id: group.cluster.data(member) for member in group.members}
    return Mark(
        commands=commands,
        per_s=(commands - done) / elapsed_s,
        leader_cpu_us=cpu_us / (commands - done),
        resident_bytes={member.id: resident_bytes(group.pid(member)) for member in group.members},
        log_bytes={name: used_bytes((path / "log").iterdir()) for name, path in data.items()},
        database_bytes={name: used_bytes(path.glob("state.sqlite*")) for name, path in data.items()},
    )


def restart_s(group: CoordinatorGroup) -> float:
    """From the start of a follower that was killed until it serves."""
    leader = group.leader()
    follower = next(member for member in group.members if member.id != leader)
    child = group.cluster.children[follower.id]
    child.process.kill()
    child.process.wait()
    start = time.perf_counter()
    group.cluster.start_member(follower)
    context = client_context(group.cluster.ca.read_text())
    wait_until(
        lambda: is_ready(follower.api_port, context),
        what=f"{follower.id} ready",
        timeout_s=RESTART_TIMEOUT_S,
        watched=[group.cluster.children[follower.id]],
    )
    return time.perf_counter() - start


def catch_up_s(group: CoordinatorGroup) -> float:
    """From the moment that a new, empty member is let in until it votes, with all that was committed then."""
    peer_port, api_port = free_ports(2)
    member = Member(id=NEWCOMER, role="coordinator", api_port=api_port, peer_port=peer_port)
    record = CoordinatorRecord(
        coordinator_id=member.id, address=LOOPBACK, peer_port=peer_port, api_port=api_port
    )
    bundle = group.cluster.data(group.members[0]) / "cluster.bundle"
    setup.init_from_bundle(group.cluster.data(member), bundle, member.id, record)
    group.cluster.start_member(member)
    try:
        return _caught_up_s(group, record)
    finally:
        stop_children([group.cluster.children.pop(member.id)])


def _caught_up_s(group: CoordinatorGroup, record: CoordinatorRecord) -> float:
    commit = max(each.get("commit", 0) for each in group.coordinators())
    start = time.perf_counter()
    asyncio.run(_add(group, record))

    def has_caught_up() -> bool:
        seen = [each for each in group.coordinators() if each["id"] == record.coordinator_id]
        return any(each["membership"] == "voter" and each.get("applied", 0) >= commit for each in seen)

    wait_until(
        has_caught_up,
        what=f"{record.coordinator_id} has caught up",
        timeout_s=CATCH_UP_TIMEOUT_S,
        watched=[group.cluster.children[record.coordinator_id]],
    )
    return time.perf_counter() - start


async def _add(group: CoordinatorGroup, record: CoordinatorRecord) -> None:
    async with group.cluster.client() as client:
        await add_coordinator(client, record)


def used_bytes(paths: Iterable[Path]) -> int:
    """Disk blocks of these files: a preallocated tail counts, a hole does not. One that goes is skipped."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * _BLOCK_BYTES
    return total


def show(findings: Findings) -> None:
    """The table for people."""
    table = Table("commands", "per s", "leader CPU µs", "member", "RSS MiB", "log MiB", "database MiB")
    table.title = f"bench.flat: {COMMANDS:,} files made, {CLIENTS} clients"
    for mark in findings.marks:
        first = [f"{mark.commands:,}", f"{mark.per_s:,.0f}", f"{mark.leader_cpu_us:.0f}"]
        for name, resident in mark.resident_bytes.items():
            sizes = (resident, mark.log_bytes[name], mark.database_bytes[name])
            table.add_row(*first, name, *(f"{size / MIB:.0f}" for size in sizes))
            first = ["", "", ""]
    console = Console(width=110)
    console.print(table)
    console.print(
        f"a killed follower serves again after {findings.restart_s:.1f} s (target {RESTART_S_MAX:g})"
    )
    console.print(
        f"an empty member has caught up {'by snapshot' if findings.by_snapshot else 'by log'} and votes after"
        f" {findings.catch_up_s:.1f} s (target {CATCH_UP_S_MAX:g} at a million files)"
    )


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory:
        findings = run(Path(directory))
    show(findings)
    print(json.dumps({"bench": "flat", "clients": CLIENTS, **asdict(findings)}))


if __name__ == "__main__":
    main()
