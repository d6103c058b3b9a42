"""Random histories of files, snapshots and collection against a model of what snapshots refer to.

`python -m pytest tests/unit/coordinator/machine/test_snapshots_model.py -k 'seed17'` replays one.
"""

import random
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.machine import snapshots
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_store import Store
from metadata.protocol import commands
from tests.unit.seeds import seeds
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State, complete, create

DAY_MS = 24 * HOUR_MS
NODES = ["n1", "n2", "n3"]
CONTENTS = tuple(f"{number:02d}" for number in range(12))
STEPS = 120
SEEDS = seeds(range(10), range(10, 40))


@dataclass
class Copy:
    """A snapshot. `content`: what its files, and those in its trash, refer to."""

    path: Path
    until_ms: int
    content: set[str]
    is_evicted: bool = False


@dataclass
class World:
    """The state machine, the disks as far as the log has not marked their blobs, and the snapshots."""

    state: State
    draw: random.Random
    directory: Path
    files: dict[str, str] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    made: int = 0
    days: int = 7

    def name(self) -> str:
        self.made += 1
        return f"x{self.made}"

    def create(self) -> None:
        name, content = self.name(), self.draw.choice(CONTENTS)
        self.state.done(create(ADMIN, name))
        if not isinstance(self.state.apply(complete(ADMIN, name, content, NODES)), Refusal):
            self.files[name] = content

    def delete(self) -> None:
        if not self.files:
            return
        name = self.draw.choice(sorted(self.files))
        trash_ms = self.draw.choice((0, DAY_MS, 3 * DAY_MS))
        for_good = self.draw.random() < 0.1
        command = commands.DeleteFile(
            caller=ADMIN, file_uuid=name, kind="", trash_ms=trash_ms, for_good=for_good
        )
        self.state.done(command)
        content = self.files.pop(name)
        if for_good and content not in self.referred():
            for copy in self.copies:
                copy.content.discard(content)

    def purge(self) -> None:
        rows = self.rows("SELECT file_uuid, blob_sha256 FROM trash ORDER BY sequence")
        if not rows:
            return
        name, content = self.draw.choice(rows)
        self.state.done(commands.PurgeFile(caller=ADMIN, file_uuid=name))
        if content not in self.referred():
            for copy in self.copies:
                copy.content.discard(content)

    def snapshot(self) -> None:
        """Make a copy; files come and go while it is made, and after it until it is recorded."""
        command = commands.StartSnapshot(coordinator_id="c1", hold_ms=self.days * DAY_MS)
        sequence = self.state.done(command)
        until_ms = self.state.at_ms + self.days * DAY_MS
        for copy in self.copies:
            copy.until_ms = min(copy.until_ms, until_ms)
        self.churn()
        path = self.directory / f"{self.name()}.sqlite"
        copy_database(self.state.path, path, pause_s=0)
        taken = Copy(path, until_ms, self.referred())
        log_index = self.state.log_index
        self.copies.append(taken)
        self.churn()
        self.check()
        fate = self.draw.random()
        if fate < 0.8:
            keep = commands.KeepSnapshot(sequence=sequence, snapshot_id=path.stem, log_index=log_index)
            self.state.done(keep)
        else:
            self.copies.remove(taken)  # it failed, or its maker is gone
            if fate < 0.9:
                self.state.done(commands.KeepSnapshot(sequence=sequence, snapshot_id="", log_index=0))

    def churn(self) -> None:
        for _ in range(self.draw.randrange(4)):
            self.draw.choice((self.create, self.delete, self.collect))()

    def wait(self) -> None:
        self.state.at_ms += self.draw.choice((HOUR_MS, DAY_MS, 2 * DAY_MS))

    def change_days(self) -> None:
        self.days = self.draw.choice((0, 1, 3, 7))

    def expire(self) -> None:
        while self.state.done(commands.Expire(rows_max=self.draw.choice((1, 100))))["more"]:
            pass
        while self.state.store.read_with(lambda db: snapshots.is_due(db, self.state.at_ms)):
            self.state.done(commands.EndHolds(rows_max=self.draw.choice((1, 3, 100))))

    def evict(self) -> None:
        evicted = self.state.done(commands.EndHolds(evict=True, rows_max=2))["evicted"]
        stems = [copy.path.stem for copy in self.copies]
        if evicted in stems:
            for copy in self.copies[: stems.index(evicted) + 1]:
                copy.is_evicted = True

    def collect(self) -> None:
        command = self.draw.choice(
            (
                commands.Collect(rows_max=100, grace_ms=self.draw.choice((0, DAY_MS))),
                commands.CollectPurged(rows_max=100, grace_ms=0),
            )
        )
        self.state.done(command)

    def drop(self) -> None:
        """The nodes delete what is marked."""
        for node_id in NODES:
            marked = self.rows(
                "SELECT sha256 FROM blob_replicas WHERE doomed_at IS NOT NULL AND node_id = ?", node_id
            )
            report = commands.ReportDropped(
                node_id=node_id, as_of=self.state.log_index, dropped=[each for (each,) in marked], spared=[]
            )
            self.state.done(report)

    def check(self) -> None:
        """No content of a snapshot that holds any is gone or marked, and references are counted right."""
        present = {
            sha256
            for (sha256,) in self.rows("SELECT DISTINCT sha256 FROM blob_replicas WHERE doomed_at IS NULL")
        }
        for copy in self.copies:
            if copy.until_ms > self.state.at_ms and not copy.is_evicted:
                assert copy.content <= present, f"{copy.path.stem} lacks {copy.content - present}"
        counted = self.rows(
            "SELECT b.sha256 FROM blobs b WHERE reference_count <>"
            " (SELECT COUNT(*) FROM files f WHERE f.blob_sha256 = b.sha256)"
            " + (SELECT COUNT(*) FROM trash t WHERE t.blob_sha256 = b.sha256)"
            " + (SELECT COUNT(*) FROM held_blobs h WHERE h.sha256 = b.sha256)"
        )
        assert counted == []
        totals = (
            "SELECT sequence FROM kept_snapshots s WHERE (held_blobs, held_bytes) <>"
            " (SELECT COUNT(*), COALESCE(SUM(size_bytes), 0) FROM held_blobs h WHERE h.snapshot = s.sequence)"
        )
        assert self.rows(totals) == []

    def restore(self) -> None:
        """Every file of a snapshot that holds its content can be read after a restore to it."""
        for copy in self.copies:
            if copy.until_ms <= self.state.at_ms or copy.is_evicted:
                continue
            path = self.directory / "restored.sqlite"
            shutil.copy(copy.path, path)
            with closing(Store(path)) as store:
                restored = State.over_store(path, store)
                restored.at_ms = self.state.at_ms
                restored.done(commands.RecordRestore(history=self.name()))
                wanted = store.read_with(lambda db: db.execute(_WANTED).fetchall())
            on_disks = {each for (each,) in self.rows("SELECT DISTINCT sha256 FROM blob_replicas")}
            lost = {each for (each,) in wanted} - on_disks
            assert lost.isdisjoint(copy.content)

    def end(self) -> None:
        """When all times are over, only what files refer to is left."""
        self.state.at_ms += 20 * DAY_MS
        self.expire()
        self.state.done(commands.Collect(rows_max=100, grace_ms=0))
        self.drop()
        left = {each for (each,) in self.rows("SELECT sha256 FROM blobs")}
        assert left == set(self.files.values())
        assert self.rows("SELECT * FROM held_blobs") == []

    def referred(self) -> set[str]:
        return {each for (each,) in self.rows(_WANTED)}

    def rows(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        return self.state.store.read_with(lambda db: db.execute(statement, values).fetchall())


_WANTED = "SELECT blob_sha256 FROM files WHERE blob_sha256 IS NOT NULL UNION SELECT blob_sha256 FROM trash"


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_no_content_of_a_kept_snapshot_goes_and_none_stays_beyond_its_time(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    state = State(tmp_path / "state.sqlite")
    with closing(state.store):
        state.nodes(*NODES)
        world = World(state, draw, tmp_path)
        acts = (
            *(world.create, world.delete, world.delete) * 4,
            *(world.snapshot, world.wait, world.expire, world.collect, world.drop) * 2,
            *(world.purge, world.evict, world.change_days, world.restore),
        )
        for _ in range(STEPS):
            draw.choice(acts)()
            world.check()
        world.restore()
        world.end()
