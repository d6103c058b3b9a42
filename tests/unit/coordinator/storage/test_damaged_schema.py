"""A damaged schema, of which SQLite's message is not UTF-8.

The sqlite3 module raises UnicodeDecodeError then, and not sqlite3.Error. It is damage all the same.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ca.errors import Internal
from coordinator.admin.doctor import examine
from coordinator.admin.kept_snapshots import open_snapshot
from coordinator.admin.restore import _check_new_id, _newest_intermediate
from coordinator.admin.setup import init_cluster
from coordinator.member.open_storage import open_ledger
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.database import read_at_rest
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_damage import StateDamaged, flaw_in
from metadata.model.records import CoordinatorRecord
from runtime.stopping import Stop


@pytest.fixture
def damaged(tmp_path: Path) -> CoordinatorFiles:
    """A coordinator of whose schema one word is no UTF-8 any more."""
    files = CoordinatorFiles(tmp_path / "c1")
    member = CoordinatorRecord(coordinator_id="c1", address="192.0.2.1", peer_port=1, api_port=2)
    init_cluster(files.data, coordinator_id="c1", cluster="lab", members=[member], replicas=1, write_quorum=1)
    content = bytearray(files.state.read_bytes())
    content[content.index(b"CREATE TABLE") + 8] ^= 0x80
    files.state.write_bytes(content)
    with pytest.raises(UnicodeDecodeError), closing(sqlite3.connect(files.state)) as db:
        db.execute("SELECT * FROM applied")
    return files


def test_damaged_schema_is_found_at_start_and_told(damaged: CoordinatorFiles) -> None:
    with pytest.raises(StateDamaged, match="is damaged"):
        open_ledger(damaged, os.fdatasync)
    findings = examine(damaged, deep=True)
    assert [problem.where for problem in findings.problems] == [damaged.state]
    assert flaw_in(damaged.state, at_rest=True)
    assert read_at_rest(damaged.state) == (0, 0, 0)
    assert _newest_intermediate(damaged.state) is None
    _check_new_id(damaged.state, "c2")


def test_snapshot_with_a_damaged_schema_is_moved_aside(damaged: CoordinatorFiles) -> None:
    snapshots = SnapshotStore(damaged.snapshots, damaged.state)
    shutil.copyfile(damaged.state, snapshots._intent_path)
    assert snapshots.find_unfinished() is None
    assert not snapshots._intent_path.exists()


def test_kept_snapshot_with_a_damaged_schema_is_said_to_be_damaged(damaged: CoordinatorFiles) -> None:
    with pytest.raises(Internal, match="is damaged"), open_snapshot(damaged.state, Stop()) as db:
        db.execute("SELECT * FROM files")
