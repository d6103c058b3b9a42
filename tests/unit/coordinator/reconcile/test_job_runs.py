"""Work on job runs by the leader: taken up wherever it was left, ended once, never without the lead."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.member.driver import Driver
from coordinator.raft.config import Config
from coordinator.raft.messages import Entry, EntryKind, HardState
from coordinator.reconcile.job_runs import Interrupted, Job, JobRuns, JobWork, StepProgress
from coordinator.reconcile.job_steps import BACKUPS_RETAINED, expire, take_backup
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_store import Store
from metadata.model.jobs import job_kind
from metadata.model.rules import RULES
from metadata.model.safety_limits import clock_doubt, correction_ms
from metadata.protocol import commands
from runtime.clock import now_ms
from tests.unit.coordinator.member.test_driver import leading
from tests.unit.coordinator.member.test_driver_group import Group, caught_up, let_in
from tests.unit.coordinator.member.test_driver_group import leading as group_leading
from tests.unit.state import ADMIN, State, bootstrap, complete, create, join, join_token

DEADLINE_S = 20.0


@asynccontextmanager
async def member(
    data: Path, members: tuple[str, ...] = ("c1",), *, rules: int = RULES
) -> AsyncIterator[tuple[Driver, Store]]:
    if not (data / "log").exists():
        first = commands.encode_envelope(commands.Envelope(0, 0, 0, 1, bootstrap(rules=rules)))
        SegmentLog.bootstrap(data / "log", HardState(1, "", 1), [Entry(1, 1, EntryKind.COMMAND, first)])
    log, store = SegmentLog.open(data / "log"), Store(data / "state.sqlite")
    snapshots = SnapshotStore(data / "snapshots", data / "state.sqlite")
    driver = Driver(
        Config("c1", members), log, store, snapshots, lambda _: None, lambda _: None, lambda *_: None
    )
    async with asyncio.timeout(DEADLINE_S):
        task = asyncio.create_task(driver.run())
        try:
            if len(members) == 1:
                await leading(driver)
            yield driver, store
        finally:
            task.cancel()
            await asyncio.wait([task])
            store.close()
            log.close()


@asynccontextmanager
async def working(
    driver: Driver,
    store: Store,
    works: Mapping[str, JobWork],
    name: str = "c1",
    clock_doubt: str = "",
    schedules: Mapping[str, float] | None = None,
    sent: Collection[str] = (),
) -> AsyncIterator[None]:
    def is_due(job_name: str) -> bool:
        return job_name != "expire" or store.is_expire_due(at_ms=now_ms())

    jobs = [Job(job_kind(each), work, partial(is_due, each), each in sent) for each, work in works.items()]
    runs = JobRuns(
        name,
        driver,
        store,
        jobs,
        clock_doubt=lambda: clock_doubt,
        schedules={"snapshot": 0.0, **(schedules or {})},
    )
    task = asyncio.create_task(runs.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def apply(driver: Driver, *proposed: commands.AnyCommand) -> None:
    for command in proposed:
        reply = msgspec.msgpack.decode(await driver.propose(command), type=commands.Reply)
        assert not reply.refusal, reply.details


def trigger(job_name: str, run_id: str = "r1", node_id: str = "c1") -> commands.TriggerJob:
    return commands.TriggerJob(caller=ADMIN, run_id=run_id, job_name=job_name, node_id=node_id)


def runs(data: Path) -> list[dict[str, Any]]:
    """Every run, oldest first, with its result decoded."""
    with closing(sqlite3.connect(data / "state.sqlite")) as db:
        db.row_factory = sqlite3.Row
        found = [dict(row) for row in db.execute("SELECT * FROM job_runs ORDER BY sequence")]
    return [{**run, "result": msgspec.json.decode(run["result"])} for run in found]


async def ended(data: Path, count: int = 1) -> list[dict[str, Any]]:
    """The runs, once so many have ended."""
    while sum(run["status"] != "running" for run in runs(data)) < count:
        await asyncio.sleep(0.02)
    return runs(data)


async def one_step(progress: StepProgress) -> None:
    progress.add(done=1)


async def test_triggered_run_is_worked_on_and_completed(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store), working(driver, store, {"expire": one_step}):
        await apply(driver, trigger("expire"))
        (run,) = await ended(tmp_path)
    assert (run["status"], run["node_id"], run["result"]) == ("completed", "c1", {"done": 1})


async def test_run_of_an_earlier_leader_goes_on_where_it_was_left_and_ends_once(tmp_path: Path) -> None:
    begun = 0

    async def work(progress: StepProgress) -> None:
        nonlocal begun
        begun += 1
        await one_step(progress)

    async with member(tmp_path) as (driver, store):
        left = commands.RecordRun(run_id="r1", node_id="c9", status="running", result='{"done":41}')
        await apply(driver, trigger("expire", node_id="c9"), left)
        async with working(driver, store, {"expire": work}):
            await ended(tmp_path)
            await apply(driver, trigger("snapshot", "r2"), trigger("expire", "r3"))
            found = await ended(tmp_path, 2)
    assert [(run["run_id"], run["status"]) for run in found] == [
        ("r1", "completed"),
        ("r2", "running"),  # of a job that this version does not know: another's
        ("r3", "completed"),
    ]
    assert (found[0]["node_id"], found[0]["result"]) == ("c1", {"done": 42})
    assert begun == 2


async def test_work_stops_with_the_lead_and_the_next_leader_takes_it_over(tmp_path: Path) -> None:
    group = Group(tmp_path)
    first, second = group.seat("c1"), group.seat("c2")
    begun = {name: asyncio.Event() for name in group.seats}
    stopped = {name: asyncio.Event() for name in group.seats}
    may_end = asyncio.Event()

    def work_of(name: str) -> JobWork:
        async def work(progress: StepProgress) -> None:
            begun[name].set()
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                stopped[name].set()
                raise
            progress.add(done=1)

        return work

    async with asyncio.timeout(DEADLINE_S), first.run() as leader, second.run() as other:
        await group_leading(leader)
        await let_in(leader, "c1", "c2")
        await caught_up(leader, other)
        async with (
            working(leader, first.store, {"expire": work_of("c1")}),
            working(other, second.store, {"expire": work_of("c2")}, "c2"),
        ):
            await apply(leader, trigger("expire"))
            await begun["c1"].wait()
            leader.transfer_leader("c2")
            await begun["c2"].wait()
            await stopped["c1"].wait()
            assert runs(second.data)[0]["node_id"] == "c2"
            may_end.set()
            (run,) = await ended(second.data)
    assert (run["status"], run["node_id"], run["result"]) == ("completed", "c2", {"done": 1})
    assert not stopped["c2"].is_set()


async def test_end_of_the_process_leaves_a_run_running_for_the_next(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def hang(progress: StepProgress) -> None:
        progress.add(done=1)
        await progress.record("running")
        begun.set()
        await asyncio.Event().wait()

    async with member(tmp_path) as (driver, store):
        async with working(driver, store, {"expire": hang}):
            await apply(driver, trigger("expire"))
            await begun.wait()
        assert [run["status"] for run in runs(tmp_path)] == ["running"]
        async with working(driver, store, {"expire": one_step}):
            (run,) = await ended(tmp_path)
    assert (run["status"], run["result"]) == ("completed", {"done": 2})


async def test_work_that_goes_wrong_ends_in_a_failed_run_that_says_why(tmp_path: Path) -> None:
    async def wrong(progress: StepProgress) -> None:
        progress.add(done=3)
        raise OSError("the disk said no")

    async with member(tmp_path) as (driver, store), working(driver, store, {"snapshot": wrong}):
        await apply(driver, trigger("snapshot"))
        (run,) = await ended(tmp_path)
        await apply(driver, trigger("snapshot", "r2"))
    assert (run["status"], run["result"]) == ("failed", {"done": 3, "error": "the disk said no"})


async def test_work_that_is_interrupted_is_taken_up_again(tmp_path: Path) -> None:
    tries = 0

    async def second_time(progress: StepProgress) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Interrupted("no quorum")

    async with member(tmp_path) as (driver, store), working(driver, store, {"expire": second_time}):
        await apply(driver, trigger("expire"))
        (run,) = await ended(tmp_path)
    assert (run["status"], tries) == ("completed", 2)


async def test_work_of_several_tasks_is_taken_up_again_or_says_what_failed(tmp_path: Path) -> None:
    tries = 0

    async def part(error: Exception) -> None:
        raise error

    async def in_parts(progress: StepProgress) -> None:
        nonlocal tries
        tries += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(part(OSError("no room")))
            if tries == 1:
                group.create_task(part(Interrupted("no quorum")))

    async with member(tmp_path) as (driver, store), working(driver, store, {"expire": in_parts}):
        await apply(driver, trigger("expire"))
        (run,) = await ended(tmp_path)
    assert (run["status"], run["result"], tries) == ("failed", {"error": "no room"}, 2)


async def test_schedule_starts_a_run_only_when_something_is_due(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        works: dict[str, JobWork] = {"expire": partial(expire, store, now_ms), "snapshot": one_step}
        async with working(driver, store, works):
            await apply(driver, trigger("snapshot"))
            assert [run["job_name"] for run in await ended(tmp_path)] == ["snapshot"]
        for node_id in ("n1", "n2"):
            await apply(driver, join_token(node_id), join(node_id, node_id))
        await apply(driver, create(ADMIN, "f1", retention_hours=0))
        await apply(driver, complete(ADMIN, "f1", "aa", ["n1", "n2"]))
        async with working(driver, store, works):
            run = (await ended(tmp_path, 2))[-1]
    assert (run["job_name"], run["invoked_by"], run["status"]) == ("expire", "schedule", "completed")
    assert (run["result"]["done"], run["result"]["retained"]) == (1, 1)


async def test_snapshot_that_was_not_sent_elsewhere_is_due_until_one_is(tmp_path: Path) -> None:
    """A day has not passed, but none of these would help where all coordinators are lost."""

    async def send(progress: StepProgress) -> None:
        progress.result["sent_to"] = "directory /mnt"

    sending: dict[str, Any] = {"schedules": {"snapshot": 86_400.0}, "sent": ("snapshot",)}
    async with member(tmp_path) as (driver, store):
        async with working(driver, store, {"snapshot": one_step}):
            await apply(driver, trigger("snapshot"))
            await ended(tmp_path)
        async with working(driver, store, {"snapshot": send}, **sending):
            found = await ended(tmp_path, 2)
        async with working(driver, store, {"snapshot": send, "expire": one_step}, **sending):
            await apply(driver, trigger("expire", "r3"))
            last = await ended(tmp_path, 3)
    assert [run["invoked_by"] for run in found] == ["admin", "schedule"]
    assert [run["job_name"] for run in last] == ["snapshot", "snapshot", "expire"]


async def test_run_that_this_version_cannot_read_fails_and_others_go_on(tmp_path: Path) -> None:
    """Of a newer leader, in the midst of an upgrade: no process may end for that."""

    async def work(progress: StepProgress) -> None:
        progress.add(done=int(progress.parameters.yes_really))

    newer = msgspec.structs.replace(trigger("gc"), parameters='{"depth":1}')
    result = commands.RecordRun(run_id="r1", node_id="c9", status="running", result='{"blobs":[1]}')
    async with member(tmp_path) as (driver, store):
        await apply(driver, newer, result)
        async with working(driver, store, {"gc": work, "expire": one_step}):
            await ended(tmp_path)
            await apply(driver, trigger("expire", "r2"))
            found = await ended(tmp_path, 2)
    assert [(run["run_id"], run["status"]) for run in found] == [("r1", "failed"), ("r2", "completed")]
    assert "depth" in found[0]["result"]["error"]


async def test_clock_that_was_ahead_keeps_no_job_from_its_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ms = now_ms() + 365 * 86_400_000
    async with member(tmp_path) as (driver, store):
        with monkeypatch.context() as patch:
            patch.setattr(driver._clocks, "_wall_ms", lambda: ahead_ms)
            end = commands.RecordRun(run_id="r1", node_id="c1", status="completed", result="{}")
            await apply(driver, trigger("gc"), end)
        async with working(driver, store, {"gc": one_step}):
            run = (await ended(tmp_path, 2))[-1]
    assert (run["invoked_by"], run["started_at_ms"] < ahead_ms) == ("schedule", True)


async def test_nothing_ends_by_a_clock_that_is_in_doubt(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        works: dict[str, JobWork] = {"expire": partial(expire, store, now_ms), "snapshot": one_step}
        for node_id in ("n1", "n2"):
            await apply(driver, join_token(node_id), join(node_id, node_id))
        await apply(driver, create(ADMIN, "f1", retention_hours=0))
        await apply(driver, complete(ADMIN, "f1", "aa", ["n1", "n2"]))
        async with working(driver, store, works, clock_doubt="It is ahead."):
            await apply(driver, trigger("expire", "r1"))
            await ended(tmp_path)
            await apply(driver, trigger("snapshot", "r2"))
            await ended(tmp_path, 2)
        doubted = runs(tmp_path)
        async with working(driver, store, works):
            found = await ended(tmp_path, 3)
    assert [(run["job_name"], run["status"]) for run in doubted] == [
        ("expire", "failed"),
        ("snapshot", "completed"),
    ]
    assert doubted[0]["result"] == {"error": "It is ahead."}
    assert (found[2]["job_name"], found[2]["result"]["retained"]) == ("expire", 1)


@pytest.mark.parametrize(
    ("offsets_ms", "is_doubted"),
    [
        ([], False),
        ([-10_000], False),
        ([-10_001], True),
        ([3_600_000], False),
        ([0, -3_600_000], False),
        ([-3_600_000, -3_600_000], True),
        ([0, -3_600_000, -3_600_000], True),
        ([0, 0, -3_600_000], False),
        ([3_600_000, -3_600_000], False),
    ],
)
def test_most_clocks_are_taken_for_right_and_of_two_the_earlier(
    offsets_ms: list[int], is_doubted: bool
) -> None:
    assert bool(clock_doubt(offsets_ms)) is is_doubted


@pytest.mark.parametrize(
    ("others_ms", "lacking_ms"),
    [
        ([], 0),
        ([10_000, 10_000], 0),
        ([10_001, 10_001], 10_001),
        ([3_600_000], 0),  # of two nobody is called wrong
        ([0, 3_600_000, 3_600_000], 0),  # nor where they are split in halves
        ([0, 3_600_000], 0),
        ([3_600_000, 3_600_000, 7_200_000], 3_600_000),
        ([3_600_000, -3_600_000], 0),
        ([3_600_000, 3_600_000, 0, 0], 0),  # most are wrong together in the eyes of the others
        ([3_600_000, 3_600_000, 3_600_000, 0], 3_600_000),
    ],
)
@pytest.mark.parametrize("sign", [1, -1], ids=["behind", "ahead"])
def test_clock_that_most_contradict_is_put_right_as_far_as_they_say(
    others_ms: list[int], lacking_ms: int, sign: int
) -> None:
    assert correction_ms(sign * other_ms for other_ms in others_ms) == sign * lacking_ms


async def test_cancelled_run_is_left_by_whoever_works_on_it(tmp_path: Path) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def hang(progress: StepProgress) -> None:
        progress.add(done=1)
        await progress.record("running")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with member(tmp_path) as (driver, store), working(driver, store, {"expire": hang}):
        await apply(driver, trigger("expire"))
        await begun.wait()
        await apply(driver, commands.CancelRun(caller=ADMIN, run_id="r1"))
        await left.wait()
        (run,) = await ended(tmp_path)
    assert (run["status"], run["result"]) == ("failed", {"done": 1, "error": "cancelled"})


def test_backup_is_whole_private_and_named_by_time_and_index(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    try:
        state.user("alice")
        path, log_index = take_backup(CoordinatorFiles(tmp_path), at_ms=1_800_000_000_123)
    finally:
        state.store.close()
    assert (path.name, log_index) == ("20270115T080000-2.sqlite", 2)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT user_id FROM users ORDER BY user_id").fetchall() == [
            ("admin",),
            ("alice",),
        ]


def test_newest_backups_are_kept_and_what_was_interrupted_is_written_over(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    files = CoordinatorFiles(tmp_path)
    files.backups.mkdir()
    (files.backups / "making").write_bytes(b"half of one")
    try:
        for number in range(BACKUPS_RETAINED + 2):
            take_backup(files, at_ms=1_800_000_000_000 + number * 1000)
    finally:
        state.store.close()
    names = sorted(path.name for path in files.backups.iterdir())
    assert names == [
        f"20270115T0800{number:02}-1.sqlite{ending}"
        for number in range(2, BACKUPS_RETAINED + 2)
        for ending in ("", ".sha256")
    ]


@pytest.mark.parametrize("wrong_ms", [0, 4_000_000_000_000])
def test_newest_backups_are_kept_whatever_a_clock_showed(tmp_path: Path, wrong_ms: int) -> None:
    """In 1970, or far ahead, and right again: what was taken last stays."""
    state, files = State(tmp_path / "state.sqlite"), CoordinatorFiles(tmp_path)
    right_ms = 1_800_000_000_000
    taken: list[Path] = []
    try:
        for first_ms in (right_ms, wrong_ms, right_ms + 86_400_000):
            for number in range(BACKUPS_RETAINED):
                state.user(f"user-{first_ms}-{number}")
                taken.append(take_backup(files, at_ms=first_ms + number * 1000)[0])
                assert set(files.backups.glob("*.sqlite")) == set(taken[-BACKUPS_RETAINED:])
    finally:
        state.store.close()


async def test_run_that_another_has_ended_is_left_alone(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        await apply(driver, trigger("expire"))
        (run,) = store.running_runs()
        await apply(driver, commands.RecordRun(run_id="r1", node_id="c9", status="completed", result="{}"))
        with pytest.raises(Interrupted, match="has ended"):
            await StepProgress("c1", driver, run).record("failed")
    assert [found["node_id"] for found in runs(tmp_path)] == ["c9"]


def test_two_backups_at_once_are_both_whole(tmp_path: Path) -> None:
    """A run that lost the lead may still copy when the next one of this process begins."""
    state = State(tmp_path / "state.sqlite")
    files = CoordinatorFiles(tmp_path)
    try:
        state.user("alice")
        with ThreadPoolExecutor(4) as threads:
            taken = [threads.submit(take_backup, files, at_ms=10**12 + 1000 * n) for n in range(4)]
            paths = [future.result()[0] for future in taken]
    finally:
        state.store.close()
    assert len(set(paths)) == 4
    for path in paths:
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
