"""The trash and protection against a model, over random acts and clocks that jump.

Whatever is done in whatever order: a protected file is there, a file in the trash can be restored until its
time is over, its content has a reference, and nothing stays longer than promised.

FILESTORE_UNDO_SEED replays one seed. The long search, with snapshots, is `test_undo_model`.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.gns3.prune import KeepRules, reasons_to_keep
from metadata.model.records import DEFAULT_BUCKET_ID
from metadata.protocol import commands, queries
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    Refusal,
    State,
    complete,
    create_backup,
    create_bucket,
)
from tests.unit.trash_acts import DAY_MS, WEEK_MS, delete, purge, restore, rows, safety

ACTS_MAX = 120
FIRST_FILES = 10
QUICK_SEEDS = 6
BUCKETS = (DEFAULT_BUCKET_ID, "short", "quota")
DAYS = {DEFAULT_BUCKET_ID: 7, "short": 1, "quota": 7}
QUOTA_BYTES = 20
SIZE_BYTES = 5
SLACK_MS = 2 * HOUR_MS  # a backup that others need is looked at each hour

# By files and the trash, without what snapshots hold.
_REFERENCES = (
    "SELECT sha256, references_left FROM (SELECT sha256, reference_count -"
    " (SELECT COUNT(*) FROM held_blobs h WHERE h.sha256 = b.sha256) AS references_left FROM blobs b)"
    " WHERE references_left > 0"
)
_LOST = (
    "SELECT sha256 FROM (SELECT blob_sha256 AS sha256 FROM files WHERE blob_sha256 IS NOT NULL"
    " UNION SELECT blob_sha256 FROM trash) f WHERE NOT EXISTS"
    " (SELECT 1 FROM blob_replicas r WHERE r.sha256 = f.sha256 AND r.doomed_at IS NULL)"
)


@dataclass
class File:
    """A file in the model. `ends_ms`: when its retention, or its time in the trash, is over; 0 never."""

    bucket: str
    sha256: str
    parent: str
    kept_ms: int  # 0: for ever
    protected_ms: int = 0
    made_ms: int = 0
    trashed_ms: int = 0  # when it was deleted; 0: it was not
    trashed_at: int = 0  # the log index of that
    due_ms: int = 0  # of the trash


@dataclass
class Search:
    """One seed: a real state machine and what it should be like. `true_ms` never jumps; clocks do."""

    state: State
    dice: random.Random
    files: dict[str, File] = field(default_factory=dict)
    true_ms: int = 1_700_000_000_000
    ahead_ms: int = 0  # of all clocks
    made: int = 0
    nodes: list[str] = field(default_factory=lambda: ["n1", "n2"])  # where every content goes
    retained_ms: dict[str, int] = field(default_factory=dict)  # as the state had them before the act
    protected: set[str] = field(default_factory=set)
    tombstoned: set[str] = field(default_factory=set)
    parents: set[str] = field(default_factory=set)  # files that others were built on

    def run(self) -> None:
        self.state.nodes(*self.nodes)
        for name, days in DAYS.items():
            if name != DEFAULT_BUCKET_ID:
                self.state.done(create_bucket(ADMIN, name, quota_bytes=QUOTA_BYTES * (name == "quota")))
                self.state.done(safety(name, trash_days=days))
        acts = self.acts()
        for _ in range(FIRST_FILES):
            self.step(self.create)
        for _ in range(ACTS_MAX):
            self.step(self.dice.choice(acts))
        self.ahead_ms = 0
        self.finish()

    def step(self, act: Callable[[], None]) -> None:
        self.clock(ending=False)
        act()
        self.compare()

    def acts(self) -> list[Callable[[], None]]:
        """What may happen, each as often as it is listed."""
        often = (
            [self.create] * 9 + [self.delete] * 5 + [self.restore] * 2 + [self.wait] * 3 + [self.expire] * 2
        )
        return [
            *often,
            *(self.protect, self.purge, self.override, self.jump, self.squeeze, self.collect, self.for_good),
            self.prune,
        ]

    def clock(self, *, ending: bool) -> None:
        """As a leader dates: changes by the latest of all times, what ends by the earliest."""
        self.state.at_ms = self.true_ms + (min if ending else max)(0, self.ahead_ms)

    def pick(self, *, trashed: bool) -> str:
        names = sorted(name for name, file in self.files.items() if bool(file.trashed_ms) == trashed)
        return self.dice.choice(names) if names else "none"

    def content(self) -> str:
        """What a new file has, often that of another one."""
        return f"sha{self.dice.randrange(12)}"

    def create(self) -> None:
        name = f"f{self.made}"
        self.made += 1
        parent = self.pick(trashed=False) if self.dice.random() < 0.5 else ""
        hours = self.dice.choice([None, None, None, 1, 50])
        days = self.dice.choice([None, None, None, 2])
        bucket = self.dice.choice(BUCKETS)
        command = create_backup(
            ADMIN,
            name,
            bucket_id=bucket,
            retention_hours=hours,
            backup_type="incremental" if parent else "full",
            parent_backup_uuid=parent,
        )
        if days is not None:
            command = create_backup(
                **{each: getattr(command, each) for each in command.__struct_fields__}
                | {"protect_seconds": days * 86_400}
            )
        sha256 = self.content()
        if isinstance(self.state.apply(command), Refusal):
            return
        if isinstance(self.state.apply(complete(ADMIN, name, sha256, self.nodes)), Refusal):
            self.state.done(commands.DeleteFile(caller=ADMIN, file_uuid=name, kind=""))
            return
        at_ms = self.state.at_ms
        self.files[name] = File(
            bucket,
            sha256,
            parent,
            0 if hours is None else at_ms + hours * HOUR_MS,
            0 if days is None else at_ms + days * DAY_MS,
            made_ms=at_ms,
        )

    def _has_child(self, name: str, *, trashed: bool) -> bool:
        return any(f.parent == name and bool(f.trashed_ms) == trashed for f in self.files.values())

    def delete(self, name: str = "", *, override: bool = False, for_good: bool = False) -> None:
        name = name or self.pick(trashed=False)
        answer = delete(
            self.state,
            name,
            override_protection=override,
            for_good=for_good,
            trash_ms=WEEK_MS,
        )
        if name == "none":
            assert answer == "not_found"
            return
        file = self.files[name]
        if self._has_child(name, trashed=False):
            assert answer == "conflict"
        elif name in self.protected and not override:
            assert answer == "protected"
        elif for_good and self._has_child(name, trashed=True):
            assert answer == "conflict"
        else:
            assert answer is None, answer
            status_was_over = name in self.tombstoned
            if for_good or status_was_over:
                if not (status_was_over and self._has_child(name, trashed=True)):
                    del self.files[name]
                return
            file.trashed_ms, file.trashed_at = self.state.at_ms, self.state.log_index
            due_ms = self.state.at_ms + DAYS[file.bucket] * DAY_MS
            file.due_ms = min(due_ms, self.retained_ms.get(name) or due_ms)
            self._note_early()

    def override(self) -> None:
        self.delete(override=True)

    def for_good(self) -> None:
        self.delete(for_good=True)

    def prune(self) -> None:
        """Delete the backups of a bucket that no rule keeps, the oldest first. Some are protected."""
        bucket = self.dice.choice(BUCKETS)
        rules = self.dice.choice((KeepRules(last=2), KeepRules(daily=2), KeepRules(weekly=1, monthly=1)))
        live = [(name, f) for name, f in self.files.items() if f.bucket == bucket and not f.trashed_ms]
        moments = [datetime.fromtimestamp(file.made_ms / 1000, UTC) for _, file in live]
        for (name, _), reasons in zip(live, reasons_to_keep(moments, rules), strict=True):
            if not reasons:
                self.delete(name)

    def restore(self) -> None:
        name = self.pick(trashed=True)
        answer = restore(self.state, name)
        if name == "none":
            assert answer == "not_found"
        elif isinstance(answer, Refusal):
            assert answer in ("payload_too_large", "rate_limited"), f"{name}: {answer}: {answer.details}"
        else:
            for each in (name, *answer["parents"]):
                self.files[each].trashed_ms = 0
                content = self.state.ask(queries.GetContent(caller=ADMIN, file_uuid=each))
                assert content["replicas"], f"{each} is restored, and unreadable"
            parent = self.files[name].parent
            assert not parent or not self.files[parent].trashed_ms

    def purge(self, name: str = "") -> None:
        name = name or self.pick(trashed=True)
        answer = purge(self.state, name)
        if answer is None:
            del self.files[name]
        else:
            assert answer == ("conflict" if name != "none" else "not_found")
            assert name == "none" or self._has_child(name, trashed=True)

    def protect(self) -> None:
        name, seconds = self.pick(trashed=False), self.dice.choice([3600, 3 * 86_400])
        answer = self.state.apply(commands.ProtectFile(caller=ADMIN, file_uuid=name, ttl_seconds=seconds))
        if not isinstance(answer, Refusal):
            assert answer >= self.files[name].protected_ms
            self.files[name].protected_ms = answer

    def wait(self) -> None:
        self.true_ms += self.dice.choice([1, HOUR_MS, HOUR_MS, DAY_MS, DAY_MS, 8 * DAY_MS])

    def jump(self) -> None:
        self.ahead_ms = self.dice.choice([0, 0, 400 * DAY_MS, -400 * DAY_MS, HOUR_MS])

    def expire(self) -> None:
        self.clock(ending=True)
        self.end_due(self.dice.choice([1, 3, 1000]))

    def end_due(self, rows_max: int) -> None:
        for _ in range(500):
            if not self.state.apply(commands.Expire(rows_max=rows_max))["more"]:
                break
        else:
            raise AssertionError("the loop has no end")
        self._note_gone()
        late = [name for name, file in self.files.items() if file.trashed_ms and self._is_late(name)]
        assert not late, f"{late} stay in the trash longer than promised"

    def _is_late(self, name: str) -> bool:
        """Whether its time in the trash is over. One that others were built on may have waited for them."""
        return name not in self.parents and self.files[name].due_ms <= self.state.at_ms

    def squeeze(self) -> None:
        self.state.done(commands.SqueezeTrash(wanted_bytes=self.dice.choice([1, 12])))
        before = {name: file.trashed_at for name, file in self.files.items() if file.trashed_ms}
        self._note_early()
        left = [at for name, at in before.items() if name in self.files]
        gone = [at for name, at in before.items() if name not in self.files]
        assert max(gone, default=0) < min(left, default=1 << 62), "a file left the trash before an older one"

    def collect(self) -> None:
        self.clock(ending=True)
        self.state.done(commands.CollectPurged(rows_max=10, grace_ms=60_000))
        self.state.done(commands.Collect(rows_max=10, grace_ms=DAY_MS))

    def _there(self) -> tuple[set[str], set[str]]:
        live = {name for (name,) in rows(self.state, "SELECT file_uuid FROM files")}
        return live, {name for (name,) in rows(self.state, "SELECT file_uuid FROM trash")}

    def _note_gone(self) -> None:
        """Forget what Expire ended, after checking that it was allowed to."""
        live, trash = self._there()
        for name, file in list(self.files.items()):
            if name in live | trash:
                continue
            if file.trashed_ms:
                assert file.due_ms <= self.true_ms, f"{name} left the trash early"
            else:
                assert file.kept_ms, f"{name} had no retention"
                assert file.kept_ms <= self.true_ms, f"{name} expired early"
                assert file.protected_ms <= self.true_ms, f"{name} was protected"
            del self.files[name]

    def _note_early(self) -> None:
        """Forget what had to make room: the oldest of the trash, or of that of a bucket with a quota."""
        _, trash = self._there()
        for name, file in list(self.files.items()):
            if file.trashed_ms and name not in trash:
                del self.files[name]

    def compare(self) -> None:
        """The promises, at any moment."""
        live, trash = self._there()
        self.parents |= {file.parent for file in self.files.values()}
        assert live == {name for name, file in self.files.items() if not file.trashed_ms}
        assert trash == {name for name, file in self.files.items() if file.trashed_ms}
        for name, file in self.files.items():
            if file.parent:
                assert file.parent in self.files, f"{name} has lost its parent"
                assert file.trashed_ms or not self.files[file.parent].trashed_ms
        counts = dict(rows(self.state, _REFERENCES))
        wanted: dict[str, int] = {}
        for file in self.files.values():
            wanted[file.sha256] = wanted.get(file.sha256, 0) + 1
        assert counts == wanted
        assert rows(self.state, "PRAGMA foreign_key_check") == []
        assert rows(self.state, _LOST) == [], "content that a file or the trash refers to has no replica"
        totals = dict(rows(self.state, "SELECT bucket_id, files FROM trash_totals"))
        assert totals.get("", 0) == len(trash)
        for bucket, count, used in rows(self.state, "SELECT bucket_id, file_count, used_bytes FROM buckets"):
            own = [n for n, file in self.files.items() if file.bucket == bucket and n in live]
            assert (count, used) == (len(own), SIZE_BYTES * len(own))
        self.retained_ms = {
            name: due or 0 for name, due in rows(self.state, "SELECT file_uuid, due_at_ms FROM files")
        }
        self.tombstoned = {
            name for (name,) in rows(self.state, "SELECT file_uuid FROM files WHERE status = 'tombstoned'")
        }
        self.protected = {
            name
            for (name,) in rows(
                self.state, "SELECT file_uuid FROM files JOIN protected_files USING (sequence)"
            )
        }
        still = {
            name
            for name, file in self.files.items()
            if file.protected_ms > self.true_ms and not file.trashed_ms
        }
        assert still <= self.protected, "a protection ended early"
        assert not still & self.tombstoned, "a protected file has expired"

    def finish(self) -> None:
        """All that is not kept for ever goes within its time; then the trash is empty."""
        self.true_ms += 600 * DAY_MS  # what was dated by clocks that were ahead, too
        for _ in range(4):
            self.true_ms += SLACK_MS + DAY_MS
            self.clock(ending=True)
            self.end_due(1000)
        live, trash = self._there()
        assert trash == set(), "something stays longer than promised"
        assert all(self.files[name].kept_ms == 0 or self._is_needed(name) for name in live), (
            "something stays longer than its retention"
        )
        assert rows(self.state, "SELECT COUNT(*) FROM protected_files") == [(0,)]

    def _is_needed(self, name: str) -> bool:
        return any(
            child.parent == name and (not child.kept_ms or self._is_needed(other))
            for other, child in self.files.items()
        )


def search(directory: Path, seed: int) -> None:
    """One seed; a failure says which."""
    state = State(directory / f"{seed}.sqlite")
    try:
        Search(state, random.Random(seed)).run()
    except AssertionError as failure:
        raise AssertionError(f"FILESTORE_UNDO_SEED={seed}: {failure}") from failure
    finally:
        state.store.close()
        state.path.unlink()


@pytest.mark.parametrize("number", range(QUICK_SEEDS))
def test_nothing_that_can_be_undone_is_lost_and_nothing_stays_longer(tmp_path: Path, number: int) -> None:
    search(tmp_path, int(os.environ.get("FILESTORE_UNDO_SEED", number)))
