"""What the product does to a disk while `tests.unit.disk_record` looks on. Each act is a process of its own.

    python -m tests.unit.power_acts ACT ROOT ARGUMENTS...

`note` says what has just been promised: a power cut behind it must not break that.
"""

import asyncio
import ctypes
import os
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ca.certificates import Authority, new_intermediate, new_root
from ca.secretfiles import create_secret, make_directory, write_durable
from coordinator.member.member import RaftMember
from coordinator.member.open_storage import Ledger, open_ledger
from coordinator.member.rebuilding import note_damage, rebuild
from coordinator.raft.config import Config
from coordinator.raft.messages import Entry, EntryKind, HardState, Ready
from coordinator.storage import snapshot_store, state_store
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.log_directory import OsDirectory
from coordinator.storage.pinned_state import PinnedState
from coordinator.storage.promises import PromiseRecord
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store
from metadata.rpc.client import MetadataClient
from metadata.rpc.instances import count_start
from runtime import sqlite
from tests.unit.node.cold import cold_acts
from tests.unit.node.packs import pack_acts
from tests.unit.node.storage import content_acts
from tests.unit.peer_ports import CLUSTER
from tests.unit.power_worlds import LAGGING
from tests.unit.snapshot_files import fetch, taken
from tests.unit.snapshot_peers import peer

WAL_BYTES = 64 << 10
PART_BYTES = 128 << 10
SEGMENT_BYTES = 64 << 10
APPENDED_SEGMENT_BYTES = 4096
LIFE_BATCHES = 8
SYNCED_BATCHES = 3  # between two syncs
CHECKPOINT_CHANGES = 20  # so that most lives have a checkpoint, and changes behind it


def note(text: str) -> None:
    """Into the record."""
    encoded = text.encode()
    ctypes.CDLL(None).disk_record_note(encoded, len(encoded))


def entries_in(path: Path) -> list[Entry]:
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Entry])


def batches_of(entries: list[Entry]) -> list[list[Entry]]:
    """The same in each process."""
    rand, found, at = random.Random(1), [], 0
    while at < len(entries):
        found.append(entries[at : at + rand.randint(1, 6)])
        at += len(found[-1])
    return found


def apply(root: Path, entries: Path) -> None:
    """Batches on a database, some while somebody reads it, in lives that end well."""
    batches = batches_of(entries_in(entries))
    while batches:
        with closing(Store(root / "state.sqlite")) as opened:
            opened.check()
            note("checked")
            pinned = None
            for number, batch in enumerate(batches[:LIFE_BATCHES], 1):
                changes = opened._checkpointed_changes
                opened.apply(batch)
                if opened._checkpointed_changes != changes:
                    note("copied")
                if number % SYNCED_BATCHES == 0:
                    note(f"durable {opened.checkpoint()}")
                if pinned is not None:
                    pinned.close()
                pinned = PinnedState(root / "state.sqlite") if number % 4 == 1 else None
            batches = batches[LIFE_BATCHES:]
        note(f"durable {opened.applied_index()}")


def copy(root: Path, source: Path) -> None:
    """A database into a file that is new, then into one that is there."""
    for _ in range(2):
        note("begins")
        copy_database(source, root / "copy.sqlite", pause_s=0)
        note("copied")


def _opened(root: Path) -> Ledger:
    return open_ledger(CoordinatorFiles(root), os.fdatasync)


def _go_on(ledger: Ledger, entries: list[Entry]) -> None:
    """These come, are committed, and applied."""
    last = entries[-1]
    ledger.log.append(None, None, entries, sync=True)
    ledger.log.append(
        HardState(last.term, "c1", last.index), None, (), sync=False
    )  # not before they are there
    ledger.store.apply(entries)


def make(root: Path, entries: Path) -> None:
    """A snapshot, and another one in its place."""
    with closing(_opened(root)) as ledger:
        for batch in batches_of(entries_in(entries)[LAGGING:])[:3]:
            _go_on(ledger, batch)
            note(f"published {taken(ledger.snapshots, origin='c2').index}")


def install(root: Path, source: Path, entries: Path) -> None:
    """A snapshot comes from another member, and takes the place of a state with changes in its WAL."""
    others = SnapshotStore(source / "snapshots", source / "other.sqlite")
    with closing(_opened(root)) as ledger:
        note("began")
        _go_on(ledger, entries_in(entries)[LAGGING:9])
        meta = fetch(others, ledger.snapshots)
        note("verified")
        member = RaftMember(
            Config("c1", ("c1", "c2", "c3")), ledger.log, ledger.store, ledger.snapshots, random.Random(1)
        )
        member.persist(Ready(snapshot=meta, must_sync=True))
        note("installed")
        _go_on(ledger, [Entry(meta.index + 1, meta.term, EntryKind.NOOP, b"")])
        note("acknowledged")


def decide(root: Path, source: Path) -> None:
    """A snapshot comes, and is going to be the state: the process ends before it is."""
    others = SnapshotStore(source / "snapshots", source / "other.sqlite")
    own = SnapshotStore(root / "snapshots", root / "state.sqlite")
    own.place(fetch(others, own))
    note("decided")
    os._exit(0)


def start(root: Path) -> None:
    """Members whose power was cut start again, and stop."""
    for path in sorted(root.iterdir()):
        note(f"begins {path.name}")
        _opened(path).close()
        note(f"ended {path.name}")


def killed(root: Path, calls: Path, act: Path, *arguments: Path) -> None:
    """A process dies after so many calls of an act, and the next one starts: what the first has not synced
    shows, and is as little durable as before.
    """
    _die_at(root, calls, act, *arguments)
    note("starts")
    _started(root)


def _die_at(root: Path, calls: Path, act: Path, *arguments: Path) -> None:
    if (child := os.fork()) == 0:
        ctypes.CDLL(None).disk_record_die_after(int(calls.name))
        ACTS[act.name](root, *arguments)
        os._exit(0)
    os.waitpid(child, 0)


def _started(root: Path) -> None:
    try:
        _opened(root).close()
    except StateDamaged as damage:
        asyncio.run(rebuild(CoordinatorFiles(root), damage, nobody, sync=os.fdatasync))
        _opened(root).close()


def nobody() -> MetadataClient:
    """Of other members, of whom there are none."""
    raise AssertionError("the log holds all")


def rebuild_alone(root: Path) -> None:
    """A state that looks sound and is not, as the process that ends here has found."""
    files = CoordinatorFiles(root)
    note_damage(files, StateDamaged("by a test"))
    note("noted")
    asyncio.run(rebuild(files, StateDamaged("by a test"), nobody, sync=os.fdatasync))
    note("rebuilt")
    with closing(_opened(root)):
        note("opened")


def rebuild_fetched(root: Path, source: Path) -> None:
    """The same, of a member whose log does not reach back: the state is another's."""
    files = CoordinatorFiles(root)
    note_damage(files, StateDamaged("by a test"))
    note("noted")
    asyncio.run(fetch_state(files, source))
    note("rebuilt")
    with closing(_opened(root)):
        note("opened")


async def fetch_state(files: CoordinatorFiles, source: Path) -> None:
    """Rebuild from a coordinator that hands out the snapshot in this directory."""
    now = datetime.now(UTC)
    root_pem, root_key = new_root(CLUSTER, now=now)
    authority = Authority(root_pem, *new_intermediate(root_pem, root_key, CLUSTER, now=now))
    others = SnapshotStore(source / "snapshots", source / "other.sqlite")
    with tempfile.TemporaryDirectory() as directory:
        async with peer(others, Path(directory), authority) as connect:
            await rebuild(files, StateDamaged("by a test"), connect, sync=os.fdatasync)


def lose_log(root: Path) -> None:
    """A member whose log has lost its end starts, and starts again."""
    for _ in range(2):
        with closing(_opened(root)) as ledger:
            note(f"recovers {ledger.log.promised.lost_term}")


def append(root: Path) -> None:
    """A log on a real disk: what is acknowledged, voted, forgotten, and begun anew."""
    log = SegmentLog.open(root / "log", segment_bytes=APPENDED_SEGMENT_BYTES)
    index, rand = 0, random.Random(2)
    for term in range(1, 25):
        hard_state = HardState(term, f"c{term % 3}", index)
        count = rand.randint(1, 4)
        entries = [
            Entry(index + at, term, EntryKind.COMMAND, rand.randbytes(400)) for at in range(1, count + 1)
        ]
        log.append(hard_state, None, entries, sync=True)
        index += count
        note(f"acknowledged {index} {term} {hard_state.vote}")
        if term % 5 == 0:
            log.prepare_spare()
        if term % 7 == 0:
            log.discard(log.forget(index - 6))
        if term % 11 == 0:
            index += 100
            log.reset(HardState(term, hard_state.vote, index), index, term)
            note(f"acknowledged {index} {term} {hard_state.vote}")
        if term % 9 == 0:
            log.close()
            log = SegmentLog.open(root / "log", segment_bytes=APPENDED_SEGMENT_BYTES)
    log.close()


def promise(root: Path) -> None:
    """A member that has forgotten its votes goes from term to term."""
    with closing(SegmentLog.open(root / "log")) as log:
        log.promise(PromiseRecord(1, "c1", lost_term=9))
        note("promised 1")
        for term in range(2, 12):
            log.promise(replace(log.promised, term=term))
            note(f"promised {term}")


def shape(root: Path) -> None:
    """A file that is allocated, written, cut and written again, each time durable."""
    directory = OsDirectory(root / "files")
    file = directory.create("a")
    directory.sync()
    for size_bytes in (10_000, 3_000, 20_000, 700):
        if size_bytes > file.size_bytes():
            file.allocate(size_bytes)
        else:
            file.truncate(size_bytes)
        file.sync()
        note(f"has {size_bytes}")
        file.write(0, b"written")
        file.sync()
        note(f"has {size_bytes} written")


def place(root: Path) -> None:
    """Small files that take the place of others, or must be new."""
    for number in range(4):
        write_durable(root / "small", str(number).encode() * 3000)
        note(f"small {number}")
        create_secret(root / f"secret-{number}", str(number).encode() * 3000)
        note(f"secret {number}")
        make_directory(root / f"a{number}" / "b")
        note(f"directory {number}")


def count(root: Path) -> None:
    """Starts of a directory."""
    for _ in range(4):
        instance = count_start(root / "instance.json", "c1")
        assert instance is not None, "the disk works"
        note(f"counted {instance.directory} {instance.start}")


def use_packs(root: Path) -> None:
    """Small blobs of a node."""
    pack_acts.use_packs(root, note)


def find_packs(root: Path, calls: Path) -> None:
    """The same for small blobs of a node, which are found by the next process."""
    _die_at(root, calls, Path("use_packs"))
    pack_acts.find_packs(root, note)


def receive_content(root: Path) -> None:
    """Content that comes to a node."""
    content_acts.receive_content(root, note)


def find_content(root: Path, calls: Path) -> None:
    """The same, which the next process goes on with."""
    content_acts.use_small_segments()
    _die_at(root, calls, Path("receive_content"))
    content_acts.find_content(root, note)


def use_cold(root: Path) -> None:
    """Replicas of a node that turn cold, and hot again."""
    cold_acts.use_cold(root, note)


_CONTENT = (use_packs, find_packs, receive_content, find_content, use_cold)
_STATES = (apply, copy, make, install, decide, start, rebuild_alone, rebuild_fetched, lose_log)
ACTS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (*_STATES, *_CONTENT, killed, append, promise, shape, place, count)
}


def log_defaults() -> dict[str, Any]:
    """Of the arguments of `SegmentLog.open`: a log is read much sooner with small segments."""
    defaults: dict[str, Any] = vars(SegmentLog)["open"].__func__.__kwdefaults__
    return defaults


def main() -> None:
    """The command."""
    act, root, *arguments = sys.argv[1:]
    log_defaults()["segment_bytes"] = SEGMENT_BYTES
    sqlite.WAL_RESERVED_BYTES = WAL_BYTES
    snapshot_store.CHUNK_BYTES_MAX = PART_BYTES
    state_store.CHECKPOINT_CHANGES = CHECKPOINT_CHANGES
    ACTS[act](Path(root), *map(Path, arguments))


if __name__ == "__main__":
    main()
