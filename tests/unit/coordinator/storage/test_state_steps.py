"""What one step of the state machine costs, and where it runs: no more for a large state, and nothing that
takes long on the event loop.
"""

import asyncio
import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage.state_store import CHECKPOINT_CHANGES, Store
from metadata.protocol import commands, queries
from tests.unit.coordinator.member.test_driver import DEADLINE_S, leading, running
from tests.unit.replica_acts import add, collect, delete, dropped, lost, mark, put, recount, release, spared
from tests.unit.state import ADMIN, State, create

NODES = ("n1", "n2", "n3", "n4")
FEW, MANY = 40, 4000
STEP_ROWS = 20
SLACK = 1.3  # deeper trees


def fill(state: State, count: int) -> None:
    """Blobs of three replicas each, as files would have brought them."""
    names = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(count)]
    with closing(sqlite3.connect(state.path)) as db, db:
        db.executemany(
            "INSERT INTO blobs (sha256, size_bytes, reference_count) VALUES (?, 1, 1)",
            [(name,) for name in names],
        )
        db.executemany(
            "INSERT INTO blob_replicas (sha256, node_id) VALUES (?, ?)",
            [(name, node_id) for name in names for node_id in NODES[:3]],
        )


def work(db: sqlite3.Connection, act: object) -> int:
    """How many instructions of SQLite's an act takes: what it looks at, whatever else the machine does."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    db.set_progress_handler(step, 10)
    try:
        assert callable(act)
        act()
    finally:
        db.set_progress_handler(None, 0)
    return count


def counted(state: State) -> dict[str, tuple[int, int]]:
    """Replicas of each node that are to be kept, and doomed ones, as they lie there."""
    with closing(sqlite3.connect(state.path)) as db:
        rows = db.execute(
            "SELECT node_id, COUNT(*) - COUNT(doomed_at), COUNT(doomed_at) FROM blob_replicas GROUP BY 1"
        ).fetchall()
    return {node_id: (kept, doomed) for node_id, kept, doomed in rows}


def told(state: State) -> dict[str, tuple[int, int]]:
    """The same as it is answered; nodes without any left out."""
    found = {}
    for node_id in NODES:
        answer = state.ask(queries.GetNodeReplicas(node_id=node_id))
        if any(answer.values()):
            found[node_id] = (answer["replicas"], answer["doomed"])
    return found


def works(path: Path, count: int) -> tuple[int, int, int]:
    """What the count of a node, the counts of all, and a step of a recount take among so many blobs."""
    state = State(path)
    try:
        state.nodes(*NODES)
        fill(state, count)
        reader, writer = state.store._reader, state.store._writer
        of_node = work(reader, lambda: state.ask(queries.GetNodeReplicas(node_id="n1")))
        mark(state, "n1", "down")
        step = work(writer, lambda: state.done(commands.RecountReplicas(rows_max=STEP_ROWS)))
        of_all = work(reader, lambda: state.ask(queries.GetReplicaCounts()))
        return of_node, step, of_all
    finally:
        state.store.close()


def test_counts_and_steps_of_a_recount_cost_no_more_in_a_large_state(tmp_path: Path) -> None:
    few = works(tmp_path / "few.sqlite", FEW)
    many = works(tmp_path / "many.sqlite", MANY)
    for of_few, of_many in zip(few, many, strict=True):
        assert of_many <= SLACK * of_few + 20, (few, many)


def test_replicas_of_nodes_are_counted_right_whatever_befalls_them(state: State) -> None:
    for number in range(6):
        put(state, f"f{number}", f"sha-{number}")
    add(state, "sha-0", "n4")
    add(state, "sha-0", "n4")  # once more changes nothing
    release(state, "sha-0", "n1")
    assert told(state) == counted(state) == {"n1": (5, 1), "n2": (6, 0), "n3": (6, 0), "n4": (1, 0)}
    dropped(state, "n1", "sha-0")
    delete(state, "f1")
    delete(state, "f2")
    collect(state)
    spared(state, "n2", "sha-2")
    lost(state, "n3", "sha-3", "sha-4")
    assert told(state) == counted(state)
    mark(state, "n4", "down")
    state.done(commands.RemoveNode(caller=ADMIN, node_id="n4", force=True))
    recount(state, rows_max=1)
    assert told(state) == counted(state)
    assert "n4" not in told(state)


def test_what_is_applied_where_nothing_may_be_synced_leaves_the_checkpoint_to_the_next(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints: list[int] = []
    shorten = state.store._shorten_wal

    def shortening() -> None:
        checkpoints.append(1)
        shorten()

    monkeypatch.setattr(state.store, "_shorten_wal", shortening)
    state.store._checkpointed_changes -= CHECKPOINT_CHANGES
    entries = _entries(state, *(create(ADMIN, f"f{number}") for number in range(2)))
    state.store.apply(entries[:1], may_sync=False)
    assert (checkpoints, state.store.is_checkpoint_due) == ([], True)
    state.store.apply(entries[1:])
    assert (checkpoints, state.store.is_checkpoint_due) == ([1], False)


async def test_long_commands_and_checkpoints_stay_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    applied: list[tuple[bool, bool]] = []  # on the loop; and whether there was a long command
    checkpoints: list[bool] = []  # on the loop
    apply, shorten = Store.apply, Store._shorten_wal

    def applying(store: Store, entries: Sequence[Entry], **options: bool) -> list[bytes]:
        is_long = any(b"recount_replicas" in entry.data for entry in entries)
        applied.append((threading.get_ident() == loop_thread, is_long))
        return apply(store, entries, **options)

    def shortening(store: Store) -> None:
        checkpoints.append(threading.get_ident() == loop_thread)
        shorten(store)

    async with asyncio.timeout(DEADLINE_S), running(tmp_path) as (driver, _):
        await leading(driver)
        monkeypatch.setattr(Store, "apply", applying)
        monkeypatch.setattr(Store, "_shorten_wal", shortening)
        for number in range(CHECKPOINT_CHANGES // 10):
            name = f"user-{number}"
            await driver.propose(commands.AdmitUser(caller=ADMIN, user_id=name, roles=None, groups=None))
            if not number % 100:
                await driver.propose(commands.RecountReplicas())
            if checkpoints:
                break
            driver._store._checkpointed_changes -= 50  # as if each had changed as many rows
        assert checkpoints == [False]
    assert (True, False) in applied, "short ones are applied at once"
    assert {on_loop for on_loop, is_long in applied if is_long} == {False}


def _entries(state: State, *batch: commands.AnyCommand) -> list[Entry]:
    """Entries that follow the last one."""
    return [
        Entry(
            state.log_index + 1 + number,
            1,
            EntryKind.COMMAND,
            commands.encode_envelope(commands.Envelope(0, 0, 0, state.at_ms, command)),
        )
        for number, command in enumerate(batch)
    ]
