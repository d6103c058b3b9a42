"""Trash, protection, snapshots and restores to one in a single search, while nodes lose content.

The acts of `test_trash_model`, and snapshots, single files that come back from one, and restores of the whole
cluster to one, with disks that are full, nodes that lose replicas or leave with all of them, and clocks that
jump. At any moment each file of a snapshot that is kept can be read after a restore to it, except what was
deleted for good; and nothing is on a disk longer than promised.

A hold that is dropped by mistake costs content only when the last file with it goes, days later. So the
search also asks after an act what would be if all files went in the usual way now: see `foresee`.

FILESTORE_UNDO_SEED replays one seed; FILESTORE_UNDO_S searches for so many seconds (`-m long`).
"""

import copy
import os
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from ca.errors import NotFound
from coordinator.admin.kept_snapshots import read_content
from coordinator.machine import snapshots
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_store import Store
from metadata.protocol import commands, queries
from tests.snapshot_promises import Promises
from tests.unit.coordinator.machine.test_trash_model import File, Search
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State
from tests.unit.trash_acts import DAY_MS, delete, rows

QUICK_SEEDS = 12
SEARCH_S = float(os.environ.get("FILESTORE_UNDO_S", "60"))
FORESEEN_OF_OTHERS = 0.1  # of the acts that should not change what snapshots hold
BORROWED_SHARE = 0.5  # of new files: content of the trash
YEARS_MS = 600 * DAY_MS
STEPS_MAX = 50  # until all files are gone: a backup goes after those that build on it
PURGED_WITHIN_MS = 60_000


@dataclass
class Hold:
    """The most that a snapshot may hold: content that files had while it was made. It may have failed.

    `until_ms`: as a clock that was ahead has dated it.
    """

    until_ms: int
    content: set[str] = field(default_factory=set)


@dataclass
class Copy(Promises):
    """A snapshot. What there was: `files`; `holds`, its own is the last; `purged`, as of the search."""

    path: Path
    number: int  # of the log entry that began it
    until_ms: int
    files: dict[str, File]
    holds: list[Hold]
    purged: dict[str, int]


@dataclass
class UndoSearch(Search):
    """One seed. `disks`: the content that each node has, whatever the log says."""

    directory: Path = Path()
    copies: list[Copy] = field(default_factory=list)  # the oldest first
    holds: list[Hold] = field(default_factory=list)  # the oldest first
    is_making: bool = False  # the last of `holds` has no end yet
    disks: dict[str, set[str]] = field(default_factory=dict)  # by node
    purged: dict[str, int] = field(default_factory=dict)  # content that no file has since, and since when
    evicted: set[int] = field(default_factory=set)  # numbers of snapshots
    hold_ms: int = 7 * DAY_MS
    borrowed_share: float = BORROWED_SHARE

    def __post_init__(self) -> None:
        self.disks = {node_id: set() for node_id in self.nodes}

    def acts(self) -> list[Callable[[], None]]:
        often = [self.create] * 4 + [self.snapshot] * 4 + [self.revive] * 3 + [self.for_good] * 2
        often += [self.go_back] * 3 + [self.delete] * 3
        others = [self.end_holds, self.drop, self.lose, self.borrow] * 2
        return [*super().acts(), *often, *others, self.evict, self.evict, self.lose_node, self.change_hold]

    def risky(self) -> tuple[Callable[[], None], ...]:
        """Return the acts that change the content that snapshots hold."""
        ends = (self.for_good, self.borrow, self.purge, self.squeeze)
        return *ends, self.end_holds, self.evict, self.go_back

    def step(self, act: Callable[[], None]) -> None:
        super().step(act)
        if act in self.risky() or self.dice.random() < FORESEEN_OF_OTHERS:
            self.foresee()

    def content(self) -> str:
        trashed = [file.sha256 for file in self.files.values() if file.trashed_ms]
        is_borrowed = self.dice.random() < self.borrowed_share
        return self.dice.choice(trashed) if trashed and is_borrowed else super().content()

    def borrow(self) -> None:
        """A file comes with content of the trash, and is deleted for good at once."""
        known, self.borrowed_share = {*self.files}, 1.0
        self.create()
        self.borrowed_share = BORROWED_SHARE
        self.compare()
        for name in self.files.keys() - known:
            self._without(partial(self.delete, name, for_good=True))

    def create(self) -> None:
        known = {*self.files}
        super().create()
        for name in self.files.keys() - known:
            for disk in self.disks.values():
                disk.add(self.files[name].sha256)

    def for_good(self) -> None:
        self._without(lambda: self.delete(self._equal(trashed=False), for_good=True))

    def purge(self, name: str = "") -> None:
        self._without(lambda: super(UndoSearch, self).purge(name or self._equal(trashed=True)))

    def _equal(self, *, trashed: bool) -> str:
        """A file that may be deleted for good, with content that another has in the trash; "" for none."""
        needed = {file.parent for file in self.files.values()} | self.protected
        free = {name: file for name, file in self.files.items() if name not in needed}
        kept = Counter(file.sha256 for file in self.files.values() if file.trashed_ms)
        shared = [n for n, f in free.items() if bool(f.trashed_ms) == trashed and kept[f.sha256] > trashed]
        return self.dice.choice(shared) if shared else ""

    def squeeze(self) -> None:
        self._without(super().squeeze)

    def _without(self, act: Callable[[], None]) -> None:
        """Do what deletes for good: snapshots lose these files, and all of a content that no file has now."""
        before = dict(self.files)
        act()
        left = {file.sha256 for file in self.files.values()}
        gone = {name: before[name].sha256 for name in before.keys() - self.files.keys()}
        for each in self.copies:
            each.purge(gone, left)
        lost = {*gone.values()} - left
        self.purged |= dict.fromkeys(lost, self.state.at_ms)
        for hold in self.holds:
            hold.content -= lost

    def snapshot(self) -> None:
        """Files come and go while the copy is made, and after it until it is recorded."""
        number = self.state.done(commands.StartSnapshot(coordinator_id="c1", hold_ms=self.hold_ms))
        until_ms = self.true_ms + self.hold_ms
        for each in self.copies:
            each.until_ms = min(each.until_ms, until_ms)
        latest_ms = self.state.at_ms + self.hold_ms
        for hold in self.holds:
            hold.until_ms = min(hold.until_ms, latest_ms)
        self.holds.append(Hold(latest_ms, {file.sha256 for file in self.files.values()}))
        self.is_making = True
        self._churn(6)
        path = self.directory / f"{self._next()}.sqlite"
        copy_database(self.state.path, path, pause_s=0)
        content = {name: file.sha256 for name, file in self.files.items()}
        taken = Copy(content, path, number, until_ms, *copy.deepcopy((self.files, self.holds, self.purged)))
        log_index = self.state.log_index
        self.copies.append(taken)
        self._churn(4)
        fate = self.dice.random()
        self.is_making = fate >= 0.9
        if fate < 0.8:
            keep = commands.KeepSnapshot(sequence=number, snapshot_id=path.stem, log_index=log_index)
            self.state.done(keep)
            return
        self.copies.remove(taken)  # it failed, or its maker is gone
        if fate < 0.9:
            self.state.done(commands.KeepSnapshot(sequence=number, snapshot_id="", log_index=0))

    def _churn(self, acts_max: int) -> None:
        acts = (self.create, self.delete, self.restore, self.purge, self.for_good, self.collect, self.drop)
        for _ in range(self.dice.randrange(acts_max)):
            self.step(self.dice.choice(acts))
        self.clock(ending=False)

    def change_hold(self) -> None:
        self.hold_ms = self.dice.choice((0, DAY_MS, 7 * DAY_MS, 30 * DAY_MS))

    def end_holds(self) -> None:
        self.clock(ending=True)
        _end_holds(self.state, self.dice.choice((1, 3, 100)))

    def evict(self) -> None:
        """The disks are almost full: the oldest snapshots lose their content, up to one that held any."""
        self.clock(ending=True)
        before, known = self._held(), self._evicted()
        self.state.done(commands.EndHolds(evict=True, rows_max=2))
        first = min(before.values(), default=0)
        assert max(self._evicted() - known, default=0) <= first, "a snapshot was evicted without need"
        self.evicted |= self._evicted()
        left = {file.sha256 for file in self.files.values()} | self._held().keys()
        gone = [sha256 for sha256, number in before.items() if number in self.evicted and sha256 not in left]
        self.purged |= dict.fromkeys(gone, self.state.at_ms)
        lost = [self._is_out(each) for each in self.copies if each.until_ms > self.true_ms]
        assert lost == sorted(lost, reverse=True), "a snapshot lost its content before an older one"

    def _held(self) -> dict[str, int]:
        return dict(rows(self.state, "SELECT sha256, snapshot FROM held_blobs"))

    def _evicted(self) -> set[int]:
        found = rows(self.state, "SELECT sequence FROM kept_snapshots WHERE hold = 'evicted'")
        return {number for (number,) in found}

    def _is_out(self, each: Copy) -> bool:
        return each.number in self.evicted

    def drop(self) -> None:
        """The nodes delete what the log has marked."""
        for node_id, disk in self.disks.items():
            found = rows(
                self.state,
                "SELECT sha256 FROM blob_replicas WHERE doomed_at IS NOT NULL AND node_id = ?",
                node_id,
            )
            marked = [sha256 for (sha256,) in found]
            report = commands.ReportDropped(node_id=node_id, as_of=self.state.log_index, dropped=marked)
            self.state.done(report)
            disk.difference_update(marked)

    def lose(self) -> None:
        """A node loses content, once that of the last loss was copied again."""
        self.drop()
        self._adopt()
        self._repair()
        node_id = self.dice.choice(self.nodes)
        lost = [sha256 for sha256 in sorted(self.disks[node_id]) if self.dice.random() < 0.5]
        self.disks[node_id].difference_update(lost)
        self.state.done(commands.ReportLost(node_id=node_id, sha256s=lost, reason="missing"))

    def lose_node(self) -> None:
        """A node is lost with its disk, once the content of the last loss was copied. Another one joins."""
        self.drop()
        self._adopt()
        self._repair()
        gone = self.dice.choice(self.nodes)
        del self.disks[gone]
        self.disks[self._next()] = set()
        self.nodes = sorted(self.disks)
        self._meet()
        if self.dice.random() < 0.5:
            self._repair()

    def _meet(self) -> None:
        """The log learns which nodes there are: new ones join, and lost ones are removed."""
        known = {node_id for (node_id,) in rows(self.state, "SELECT node_id FROM nodes")}
        self.state.nodes(*sorted(self.disks.keys() - known))
        for node_id in sorted(known - self.disks.keys()):
            remove = commands.RemoveNode(caller=ADMIN, node_id=node_id, force=True, is_gone=True)
            self.state.done(remove)
        while rows(self.state, "SELECT 1 FROM recounts"):
            self.state.done(commands.RecountReplicas())

    def _listed(self, node_id: str) -> set[str]:
        found = rows(self.state, "SELECT sha256 FROM blob_replicas WHERE node_id = ?", node_id)
        return {sha256 for (sha256,) in found}

    def _wanted(self) -> set[str]:
        return {
            sha256 for (sha256,) in rows(self.state, "SELECT sha256 FROM blobs WHERE reference_count > 0")
        }

    def _add(self, node_id: str, sha256: str) -> None:
        self.state.done(commands.AddReplica(sha256=sha256, node_id=node_id, as_of=self.state.log_index))

    def _adopt(self) -> None:
        """Each node compares its disk with the log: it reports what is lost, and adds what is wanted."""
        for node_id, disk in self.disks.items():
            lost = sorted(self._listed(node_id) - disk)
            self.state.done(commands.ReportLost(node_id=node_id, sha256s=lost, reason="missing"))
            for sha256 in sorted((disk & self._wanted()) - self._listed(node_id)):
                self._add(node_id, sha256)
            disk.intersection_update(self._listed(node_id))  # the rest is thrown away after a week

    def _repair(self) -> None:
        for node_id, disk in self.disks.items():
            elsewhere = set().union(*self.disks.values()) - disk
            for sha256 in sorted((elsewhere & self._wanted()) - self._listed(node_id)):
                disk.add(sha256)
                self._add(node_id, sha256)

    def _kept(self) -> list[Copy]:
        """The snapshots that a restore is promised from."""
        return [each for each in self.copies if each.until_ms > self.true_ms and not self._is_out(each)]

    def go_back(self) -> None:
        """Restore the whole cluster to a snapshot without files that were deleted for good."""
        whole = [each for each in self._kept() if each.promised.keys() == each.files.keys()]
        if not whole:
            return
        chosen = self.dice.choice(whole)
        path = self.directory / f"{self._next()}.sqlite"
        shutil.copy(chosen.path, path)
        self.state.store.close()
        self.state = State.over_store(path, Store(path))
        self.clock(ending=False)
        self.state.done(commands.RecordRestore(history=path.stem))
        self._meet()
        self._adopt()
        self.files, self.holds, self.purged = copy.deepcopy((chosen.files, chosen.holds, chosen.purged))
        self.is_making = False
        del self.copies[self.copies.index(chosen) + 1 :]  # the restored cluster knows those before it
        self.evicted = {number for number in self.evicted if number < chosen.number} | self._evicted()

    def revive(self) -> None:
        """Bring one file back from a snapshot while the cluster runs."""
        kept = [each for each in self._kept() if each.promised]
        if not kept:
            return
        chosen = self.dice.choice(kept)
        name = self.dice.choice(sorted(chosen.promised))
        with closing(sqlite3.connect(chosen.path)) as db:
            try:
                found = read_content(db, name)
            except NotFound:
                return  # it was in the trash then, or about to go
        parent = getattr(found.create, "parent_backup_uuid", "")
        if parent and (
            parent in self.tombstoned or parent not in self.files or self.files[parent].trashed_ms
        ):
            return
        self._repair()  # a new file needs a write quorum
        new = self._next()
        command = commands.ReviveFile(
            caller=ADMIN,
            create=msgspec.structs.replace(found.create, file_uuid=new),
            owner_id=found.owner_id,
            owner_sequence=found.owner_sequence,
        )
        answer = self.state.apply(command)
        if isinstance(answer, Refusal):
            assert answer in ("payload_too_large", "rate_limited", "invalid_request"), answer.details
            return
        hours = found.create.retention_hours
        ends_ms = 0 if hours is None else self.state.at_ms + hours * HOUR_MS
        self.files[new] = File(found.create.bucket_id, chosen.promised[name], parent, ends_ms)
        content = self.state.ask(queries.GetContent(caller=ADMIN, file_uuid=new))
        assert content["replicas"], f"{new} came back, and is unreadable"

    def _next(self) -> str:
        self.made += 1
        return f"x{self.made}"

    def compare(self) -> None:
        super().compare()
        content = {file.sha256 for file in self.files.values()}
        self.purged = {sha256: at_ms for sha256, at_ms in self.purged.items() if sha256 not in content}
        if self.is_making:
            self.holds[-1].content |= content
        present = set().union(*self.disks.values())
        for each in self._kept():
            missing = set(each.promised.values()) - present
            assert not missing, f"a restore to {each.path.stem} would find no {missing}"
        for node_id, disk in self.disks.items():
            assert self._listed(node_id) <= disk, "the log lists a replica that is none"
        assert self._evicted() <= self.evicted, "a snapshot was evicted without need"

    def foresee(self) -> None:
        """Let all files go in the usual way in a copy of the state: what snapshots promise stays, alone."""
        world = _copy_in_memory(self.state)
        try:
            self.clock(ending=True)
            world.at_ms = self.state.at_ms + PURGED_WITHIN_MS
            world.done(commands.CollectPurged(rows_max=1000, grace_ms=PURGED_WITHIN_MS))
            due = {sha256 for sha256, at_ms in self.purged.items() if at_ms <= self.state.at_ms}
            late = due & _readable(world)
            assert not late, f"{late} was deleted for good, and stays"
            self._let_go(world)
            last_ms = [each.until_ms - 1 for each in self._kept()]
            for at_ms in sorted({self.state.at_ms, *last_ms, *(hold.until_ms for hold in self.holds)}):
                self._hold_until(world, at_ms)
        finally:
            world.store.close()

    def _hold_until(self, world: State, at_ms: int) -> None:
        """Nothing but snapshots has content: those that are kept at this time have theirs, others none."""
        world.at_ms = at_ms
        _end_holds(world, 1000)
        world.at_ms = self.true_ms + YEARS_MS
        world.done(commands.Collect(rows_max=1000, grace_ms=0))
        readable = _readable(world)
        for each in self._kept():
            missing = set(each.promised.values()) - readable
            assert each.until_ms <= at_ms or not missing, f"{each.path.stem} would lose {missing}"
        may_stay = [hold.content for hold in self.holds if hold.until_ms > at_ms]
        longer = readable - set().union(*may_stay)
        assert not longer, f"no snapshot has {longer}, which would stay"

    def _let_go(self, world: State) -> None:
        """Delete all files, through the trash or without one, wait until that is empty, and collect."""
        trash_ms = self.dice.choice((UNSET, DAY_MS))
        newest_first = rows(world, "SELECT file_uuid FROM files ORDER BY sequence DESC")
        for (name,) in newest_first:
            delete(world, name, trash_ms=trash_ms, override_protection=True)
        world.at_ms = self.true_ms + YEARS_MS
        for _ in range(STEPS_MAX):
            world.at_ms += DAY_MS
            world.done(commands.Expire(rows_max=1000))
            if not rows(world, "SELECT 1 FROM files UNION ALL SELECT 1 FROM trash"):
                break
        else:
            raise AssertionError("files stay for ever")
        world.done(commands.CollectPurged(rows_max=1000, grace_ms=0))
        world.done(commands.Collect(rows_max=1000, grace_ms=0))

    def finish(self) -> None:
        """When all times are over, the disks have what files refer to, and nothing else."""
        super().finish()
        self.end_holds()
        for command in (commands.CollectPurged(rows_max=1000, grace_ms=0), commands.Collect(grace_ms=0)):
            self.state.done(command)
        self.drop()
        live = {sha256 for (sha256,) in rows(self.state, "SELECT DISTINCT blob_sha256 FROM files")}
        assert {sha256 for (sha256,) in rows(self.state, "SELECT sha256 FROM blobs")} == live
        assert set().union(*self.disks.values()) == live
        assert rows(self.state, "SELECT * FROM held_blobs") == []


def _copy_in_memory(state: State) -> State:
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with closing(sqlite3.connect(state.path)) as db:
        db.backup(memory)
    return State.over_store(state.path, Store.over(memory, memory))


def _end_holds(state: State, rows_max: int) -> None:
    while state.store.read_with(lambda db: snapshots.is_due(db, state.at_ms)):
        state.done(commands.EndHolds(rows_max=rows_max))


def _readable(state: State) -> set[str]:
    """The content with a replica that is not marked for deletion."""
    found = rows(state, "SELECT DISTINCT sha256 FROM blob_replicas WHERE doomed_at IS NULL")
    return {sha256 for (sha256,) in found}


def search(directory: Path, seed: int) -> None:
    """One seed; a failure says which."""
    directory.mkdir()
    world = UndoSearch(State(directory / "state.sqlite"), random.Random(seed), directory=directory)
    try:
        world.run()
    except AssertionError as failure:
        raise AssertionError(f"FILESTORE_UNDO_SEED={seed}: {failure}") from failure
    finally:
        world.state.store.close()
        shutil.rmtree(directory)


@pytest.mark.parametrize("number", range(QUICK_SEEDS))
def test_nothing_is_lost_that_the_trash_or_a_snapshot_keeps_and_nothing_stays_longer(
    tmp_path: Path, number: int
) -> None:
    search(tmp_path / "seed", int(os.environ.get("FILESTORE_UNDO_SEED", number)))


@pytest.mark.long
@pytest.mark.timeout(SEARCH_S + 60)
def test_long_search_finds_nothing_lost(tmp_path: Path) -> None:
    seed, ends_at = random.randrange(1 << 30), time.monotonic() + SEARCH_S
    searched = 0
    while time.monotonic() < ends_at:
        search(tmp_path / "seed", seed + searched)
        searched += 1
    print(f"{searched} seeds from {seed}")
    assert searched > 0
