"""The files of the job `snapshot`, and when jobs that run seldom are looked at again."""

import asyncio
from pathlib import Path

import pytest

from coordinator.reconcile import job_runs
from coordinator.reconcile.job_steps import BACKUPS_RETAINED, take_backup
from coordinator.storage.config import CoordinatorFiles
from metadata.model.jobs import REHEARSE
from tests.unit.coordinator.reconcile.test_job_runs import ended, member, one_step
from tests.unit.state import State


def test_backups_of_another_history_are_left_alone_and_the_new_one_stays(tmp_path: Path) -> None:
    """After a restore to an older state, those of the lost future have higher indexes."""
    state, files = State(tmp_path / "state.sqlite"), CoordinatorFiles(tmp_path)
    files.backups.mkdir()
    future = [files.backups / f"20270115T0800{number:02}-{900 + number}.sqlite" for number in range(9)]
    for path in future:
        path.touch()
    try:
        taken = [take_backup(files, at_ms=1_800_000_000_000 + number * 1000)[0] for number in range(9)]
    finally:
        state.store.close()
    assert set(files.backups.glob("*.sqlite")) == {*future, *taken[-BACKUPS_RETAINED:]}


async def test_job_that_was_not_due_is_looked_at_again_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs once a week, and what it needs came a moment after the first look."""
    monkeypatch.setattr(job_runs, "LOOK_AGAIN_S", 0.1)
    looks: list[bool] = []

    def is_due() -> bool:
        looks.append(len(looks) > 0)
        return looks[-1]

    async with member(tmp_path) as (driver, store):
        jobs = [job_runs.Job(REHEARSE, one_step, is_due)]
        running = asyncio.create_task(job_runs.JobRuns("c1", driver, store, jobs).run())
        try:
            (run,) = await ended(tmp_path)
        finally:
            running.cancel()
            await asyncio.wait([running])
    assert (run["job_name"], looks) == ("rehearse", [False, True])
