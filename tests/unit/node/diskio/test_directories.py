"""Directories that are made: their names are durable. A power cut would take all that was synced in them."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ca.secretfiles import make_directory
from coordinator.admin import setup
from coordinator.reconcile.job_steps import take_backup
from coordinator.storage.config import CoordinatorFiles
from metadata.model.records import CoordinatorRecord
from node.membership.join import _own_directory
from tests.unit.state import State


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """What was synced since."""
    found: set[Path] = set()
    sync = os.fsync

    def record(descriptor: int) -> None:
        sync(descriptor)
        found.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", record)
    return found


def initialise(data: Path) -> None:
    own = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=7442, api_port=7443)
    setup.init_cluster(data, coordinator_id="c1", cluster="lab", members=[own], development=True)


@pytest.mark.parametrize("make", [make_directory, initialise, _own_directory])
def test_data_directory_is_there_after_a_power_cut(
    tmp_path: Path, synced: set[Path], make: Callable[[Path], object]
) -> None:
    data = tmp_path / "made" / "made too" / "data"
    make(data)
    assert {data.parent, data.parent.parent, tmp_path} <= synced


def test_directory_that_was_there_is_synced_too(tmp_path: Path, synced: set[Path]) -> None:
    """Who made it may have died before."""
    (tmp_path / "data").mkdir()
    make_directory(tmp_path / "data")
    assert synced == {tmp_path}


def test_first_backup_is_there_after_a_power_cut(tmp_path: Path, synced: set[Path]) -> None:
    with closing(State(tmp_path / "state.sqlite").store):
        synced.clear()
        take_backup(CoordinatorFiles(tmp_path), at_ms=1_800_000_000_123)
    assert {tmp_path, tmp_path / "backups"} <= synced
