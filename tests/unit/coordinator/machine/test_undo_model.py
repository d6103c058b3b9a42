"""Trash, protection, snapshots and restores to one in a single search, while nodes lose content.

The acts of `test_trash_model`, and snapshots, single files that come back from one, and restores of the whole
cluster to one, with disks that are full, nodes that lose replicas, and clocks that jump. At any moment each
file of a snapshot that is kept can be read after a restore to it, except what was deleted for good; and
nothing is on a disk longer than promised.

FILESTORE_UNDO_SEED replays one seed; FILESTORE_UNDO_S searches for so many seconds (`-m long`).
"""

import copy
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from ca.errors import NotFound
from coordinator.admin.kept_snapshots import read_content
from coordinator.machine import snapshots
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_store import Store
from metadata.protocol import commands, queries
from tests.unit.coordinator.machine.test_trash_model import File, Search
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State
from tests.unit.trash_acts import DAY_MS, rows

QUICK_SEEDS = 8
SEARCH_S = float(os.environ.get("FILESTORE_UNDO_S", "60"))
NODES = ("n1", "n2")  # where every content goes


@dataclass
class Copy:
    """A snapshot. `files`: what there was; `promised`: content by file, without what was deleted for good."""

    path: Path
    until_ms: int
    files: dict[str, File]
    promised: dict[str, str]


@dataclass
class UndoSearch(Search):
    """One seed. `disks`: the content that each node has, whatever the log says."""

    directory: Path = Path()
    copies: list[Copy] = field(default_factory=list)  # the oldest first
    disks: dict[str, set[str]] = field(default_factory=lambda: {node_id: set() for node_id in NODES})
    evicted: set[str] = field(default_factory=set)
    hold_ms: int = 7 * DAY_MS

    def acts(self) -> list[Callable[[], None]]:
        often = [self.snapshot] * 8 + [self.revive] * 5 + [self.go_back] * 4
        others = [self.end_holds, self.drop, self.lose] * 2
        return [*super().acts(), *often, *others, self.evict, self.change_hold]

    def step(self, act: Callable[[], None]) -> None:
        self.clock(ending=False)
        act()
        self.compare()

    def create(self) -> None:
        known = {*self.files}
        super().create()
        for name in self.files.keys() - known:
            for disk in self.disks.values():
                disk.add(self.files[name].sha256)

    def for_good(self) -> None:
        self._without(super().for_good)

    def purge(self) -> None:
        self._without(super().purge)

    def squeeze(self) -> None:
        self._without(super().squeeze)

    def _without(self, act: Callable[[], None]) -> None:
        """Do what deletes for good: snapshots lose these files, and all of a content that no file has now."""
        before = dict(self.files)
        act()
        left = {file.sha256 for file in self.files.values()}
        gone = {name: before[name].sha256 for name in before.keys() - self.files.keys()}
        for each in self.copies:
            each.promised = {
                name: sha256
                for name, sha256 in each.promised.items()
                if name not in gone and (sha256 in left or sha256 not in gone.values())
            }

    def snapshot(self) -> None:
        """Files come and go while the copy is made, and after it until it is recorded."""
        number = self.state.done(commands.StartSnapshot(coordinator_id="c1", hold_ms=self.hold_ms))
        until_ms = self.true_ms + self.hold_ms
        for each in self.copies:
            each.until_ms = min(each.until_ms, until_ms)
        self._churn()
        path = self.directory / f"{self._next()}.sqlite"
        copy_database(self.state.path, path, pause_s=0)
        content = {name: file.sha256 for name, file in self.files.items()}
        taken = Copy(path, until_ms, copy.deepcopy(self.files), content)
        log_index = self.state.log_index
        self.copies.append(taken)
        self._churn()
        fate = self.dice.random()
        if fate < 0.8:
            keep = commands.KeepSnapshot(sequence=number, snapshot_id=path.stem, log_index=log_index)
            self.state.done(keep)
            return
        self.copies.remove(taken)  # it failed, or its maker is gone
        if fate < 0.9:
            self.state.done(commands.KeepSnapshot(sequence=number, snapshot_id="", log_index=0))

    def _churn(self) -> None:
        acts = (self.create, self.delete, self.restore, self.purge, self.collect, self.drop)
        for _ in range(self.dice.randrange(4)):
            self.step(self.dice.choice(acts))
        self.clock(ending=False)

    def change_hold(self) -> None:
        self.hold_ms = self.dice.choice((0, DAY_MS, 7 * DAY_MS, 30 * DAY_MS))

    def end_holds(self) -> None:
        self.clock(ending=True)
        while self.state.store.read_with(lambda db: snapshots.is_due(db, self.state.at_ms)):
            self.state.done(commands.EndHolds(rows_max=self.dice.choice((1, 3, 100))))

    def evict(self) -> None:
        """The disks are almost full: the oldest snapshots lose their content, up to one that held any."""
        self.clock(ending=True)
        self.state.done(commands.EndHolds(evict=True, rows_max=2))
        self.evicted |= self._evicted()
        lost = [self._is_out(each) for each in self.copies if each.until_ms > self.true_ms]
        assert lost == sorted(lost, reverse=True), "a snapshot lost its content before an older one"

    def _evicted(self) -> set[str]:
        found = rows(self.state, "SELECT snapshot_id FROM kept_snapshots WHERE hold = 'evicted'")
        return {name for (name,) in found if name}

    def _is_out(self, each: Copy) -> bool:
        return each.path.stem in self.evicted

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
        node_id = self.dice.choice(NODES)
        lost = [sha256 for sha256 in sorted(self.disks[node_id]) if self.dice.random() < 0.5]
        self.disks[node_id].difference_update(lost)
        self.state.done(commands.ReportLost(node_id=node_id, sha256s=lost, reason="missing"))

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
        """Restore the whole cluster to a snapshot of which nothing was deleted for good."""
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
        self._adopt()
        self.files = copy.deepcopy(chosen.files)
        del self.copies[self.copies.index(chosen) :]  # the restored cluster knows those before it
        self.evicted |= self._evicted()

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
        present = set().union(*self.disks.values())
        for each in self._kept():
            missing = set(each.promised.values()) - present
            assert not missing, f"a restore to {each.path.stem} would find no {missing}"
        for node_id, disk in self.disks.items():
            assert self._listed(node_id) <= disk, "the log lists a replica that is none"
        assert self._evicted() <= self.evicted, "a snapshot was evicted without need"

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
