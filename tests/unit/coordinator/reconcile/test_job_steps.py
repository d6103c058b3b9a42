"""The files of the job `snapshot`."""

from pathlib import Path

from coordinator.reconcile.job_steps import BACKUPS_RETAINED, take_backup
from coordinator.storage.config import CoordinatorFiles
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
