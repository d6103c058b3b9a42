"""When the chaos is over: did all members come to the same state, was every answer right, and is every
content there?
"""

import asyncio
import contextlib
import difflib
import itertools
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ca.errors import FilestoreError
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.state_store import Store, replay
from tests.chaos.arena import POLL_S, Arena
from tests.chaos.members import Member
from tests.history import Undecided, check
from tests.packed_blobs import packed_sizes

AGREE_TIMEOUT_S = 60.0
QUIET_POLLS = 5  # the same answer so often in a row: nothing moves any more
DIFFERENCES_SHOWN_MAX = 12


async def wait_for_agreement(arena: Arena) -> bool:
    """Until all members answer and have applied the same entries; False (and a fault) if they do not."""
    quiet = 0
    before: set[tuple[int, int, int]] = set()
    seen = "nothing"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(AGREE_TIMEOUT_S):
            while quiet < QUIET_POLLS:
                statuses = await arena.statuses()
                now = {(s.last_index, s.commit, s.applied) for s in statuses.values()}
                agreed = len(statuses) == len(arena.members) and len(now) == 1 and len(set(*now)) == 1
                quiet = quiet + 1 if agreed and now == before else 0
                before = now
                seen = ", ".join(f"{s.id} {s.role} {s.applied}/{s.last_index}" for s in statuses.values())
                await asyncio.sleep(POLL_S)
            return True
    arena.faults.append(f"the members did not agree within {AGREE_TIMEOUT_S:g} s: {seen}")
    return False


async def stop_nodes(arena: Arena) -> None:
    """End the nodes; SIGTERM must do."""
    await asyncio.gather(*(_stop(arena, node) for node in arena.nodes.values()))


async def stop_members(arena: Arena) -> None:
    """End the followers at once, then the leader, so that nothing more is committed; SIGTERM must do.

    One after the other would leave a quorum for a moment, in which the leader may have states compared.
    """
    leader = await arena.leader()
    await asyncio.gather(*(_stop(arena, member) for member in arena.others(leader)))
    await _stop(arena, leader)


async def _stop(arena: Arena, member: Member) -> None:
    try:
        await asyncio.to_thread(member.stop)
    except subprocess.TimeoutExpired:
        arena.faults.append(f"{member.id} did not end on SIGTERM")
        return
    if member.process is not None and member.process.returncode != 0:
        arena.faults.append(f"{member.id} ended on SIGTERM with {member.process.returncode}")


def compare_states(members: Sequence[Member]) -> list[str]:
    """What differs between the databases of members that have stopped, all brought to the same index."""
    applied = {}
    for member in members:
        with contextlib.closing(Store(CoordinatorFiles(member.data).state)) as store:
            applied[member.id] = store.applied_index()
    target = max(applied.values())
    late = [_bring_to(member, target) for member in members if applied[member.id] < target]
    faults = [why_not for why_not in late if why_not]
    dumps = {member.id: _dump(CoordinatorFiles(member.data).state) for member in members}
    first, *others = members
    for other in others:
        if dumps[other.id] != dumps[first.id]:
            lines = difflib.unified_diff(
                dumps[first.id], dumps[other.id], first.id, other.id, lineterm="", n=0
            )
            shown = "\n    ".join(line[:300] for line in itertools.islice(lines, DIFFERENCES_SHOWN_MAX))
            faults.append(f"the state of {first.id} and of {other.id} differ at {target}:\n    {shown}")
    return faults


def _bring_to(member: Member, target: int) -> str:
    """Apply what this member's own log holds up to an index that another has applied; why not, or ""."""
    files = CoordinatorFiles(member.data)
    with (
        contextlib.closing(SegmentLog.open(files.log)) as log,
        contextlib.closing(Store(files.state)) as store,
    ):
        if log.last_index() < target:
            return f"{member.id} has only entries up to {log.last_index()} of {target}"
        replay(log, target, store)
    return ""


def _dump(path: Path) -> list[str]:
    """Every row, by table and by content: how a version laid out its tables is no part of the state."""
    lines = []
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        for (table,) in names:
            cursor = db.execute(f"SELECT * FROM {table}")
            columns = [column[0] for column in cursor.description]
            rows = (dict(sorted(zip(columns, row, strict=True))) for row in cursor)
            lines += sorted(f"{table}: {row}" for row in rows)
    return lines


def packed(arena: Arena) -> int:
    """How many of the contents that are there lie in packs, on one node or more."""
    names = {name for node in arena.nodes.values() for name in packed_sizes(node.data)}
    return sum(stored.content.sha256 in names for stored in arena.contents.kept.values())


def judge(arena: Arena) -> list[str]:
    """Everything that was wrong: answers, and what the clients and the watch have noticed."""
    faults = list(arena.faults)
    try:
        violation = check(arena.workload.ledger.history)
    except Undecided as undecided:
        faults.append(f"the history of {undecided} has too many orders to decide")
    else:
        if violation is not None:
            faults.append(f"the history is not linearizable: {violation}")
    return faults


async def final_reads(arena: Arena) -> None:
    """Every acknowledged register, once more, from every member: what was lost shows in the history."""
    with contextlib.suppress(FilestoreError):
        async with asyncio.TaskGroup() as group:
            for client in arena.pinned.values():
                group.create_task(arena.workload.read_everything(client))
