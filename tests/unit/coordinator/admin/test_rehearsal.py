"""Restores that are tried, and what the command says of a snapshot before it restores it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ca.errors import InvalidRequest, NotFound, Unavailable
from coordinator.admin import restore, setup
from coordinator.admin.offsite import MARKER, Offsite, OffsiteConfig, history_of
from coordinator.admin.rehearsal import rehearse
from coordinator.storage.config import CoordinatorFiles
from deploy.commands.coordinator import coordinator
from deploy.commands.snapshots import snapshot as snapshot_command
from runtime.file_digests import digest_beside
from tests.unit.coordinator.admin.test_setup import record

AT = "2026-11-27T10:00:00Z"


@pytest.fixture
def files(tmp_path: Path) -> CoordinatorFiles:
    made = CoordinatorFiles(tmp_path / "c1")
    setup.init_cluster(
        made.data, coordinator_id="c1", cluster="lab", members=[record("c1")], development=True
    )
    return made


@pytest.fixture
def bundle(files: CoordinatorFiles, tmp_path: Path) -> Path:
    path = tmp_path / "kept.bundle"
    restore.write_bundle(files.data, path)
    return path


@pytest.fixture
def taken(files: CoordinatorFiles, tmp_path: Path) -> Path:
    """A snapshot of before, with two newer ones beside it, and others that are not of its kind."""
    path = tmp_path / "lab-cafe-20261127T100000-1.sqlite"
    restore.write_snapshot(files.data, path)
    for name in ("lab-cafe-20261129T100000-30.sqlite", "lab-cafe-20261128T100000-4.sqlite"):
        (tmp_path / name).touch()
    for name in ("lab-beef-20261128T100000-9.sqlite", "20261128T100000-9.sqlite", "lab-cafe-notes.sqlite"):
        (tmp_path / name).touch()
    return path


def test_rehearsal_restores_a_snapshot_and_leaves_nothing(taken: Path, bundle: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = rehearse(taken, bundle, scratch)
    assert (found.files, found.nodes) == (0, 0)
    assert found.log_index > 1  # the restore has made its own changes
    assert list(scratch.iterdir()) == []


def test_rehearsal_of_a_damaged_snapshot_fails_and_leaves_nothing(
    taken: Path, bundle: Path, tmp_path: Path
) -> None:
    with taken.open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"x" * 100)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(InvalidRequest, match="damaged"):
        rehearse(taken, bundle, scratch)
    assert list(scratch.iterdir()) == []
    done = CliRunner().invoke(snapshot_command, ["verify", str(taken), "--bundle", str(bundle)])
    assert isinstance(done.exception, InvalidRequest)


def test_restore_says_what_comes_back_and_that_there_are_newer_snapshots(
    taken: Path, bundle: Path, tmp_path: Path
) -> None:
    facts = restore.snapshot_facts(taken)
    assert facts.newer == ["lab-cafe-20261128T100000-4.sqlite", "lab-cafe-20261129T100000-30.sqlite"]
    assert (facts.files, facts.nodes, facts.coordinators, facts.log_index) == (0, [], ["c1"], 1)
    options = ["restore", "--snapshot", str(taken), "--bundle", str(bundle)]
    options += ["--data", str(tmp_path / "r1"), "--id", "r1", "--address", "127.0.0.1"]
    done = CliRunner().invoke(coordinator, options)
    assert done.exit_code == 0, done.output
    assert "entry 1 of the log" in done.output
    assert "Brings back:  0 files, 0 nodes (none)" in done.output
    assert (
        "its directory has 2 newer snapshots, the newest is lab-cafe-20261129T100000-30.sqlite" in done.output
    )
    assert "restore_cluster" in (tmp_path / "r1" / "audit.log").read_text()


def test_snapshot_of_any_name_is_dated_by_its_file(files: CoordinatorFiles, tmp_path: Path) -> None:
    path = tmp_path / "mine.sqlite"
    restore.write_snapshot(files.data, path)
    facts = restore.snapshot_facts(path)
    assert facts.taken_at_ms == int(path.stat().st_mtime * 1000)
    assert facts.newer == []
    with pytest.raises(InvalidRequest, match="not a snapshot"):
        restore.snapshot_facts(tmp_path / "c1" / "coordinator.json")


async def test_newest_snapshot_of_this_history_is_fetched_from_the_directory(
    files: CoordinatorFiles, bundle: Path, tmp_path: Path
) -> None:
    place = tmp_path / "share"
    place.mkdir()
    (place / MARKER).touch()
    offsite = Offsite(files, OffsiteConfig(directory=str(place)))
    history = history_of(files.state)
    target = tmp_path / "fetched.sqlite"
    with pytest.raises(NotFound):
        await offsite.fetch_newest(history, target)
    for index in (3, 20):
        path = tmp_path / f"20261127T100000-{index}.sqlite"
        restore.write_snapshot(files.data, path)
        await offsite.send(path, history=history, log_index=index, at=AT)
    (place / "lab-0123456789ab-20261127T100000-99.sqlite").write_bytes(b"of another history")
    name = await offsite.fetch_newest(history, target)
    assert name == f"lab-{history}-20261127T100000-20.sqlite"
    assert digest_beside(target).read_text().endswith("  fetched.sqlite\n")
    assert rehearse(target, bundle, tmp_path).files == 0
    (place / MARKER).unlink()
    with pytest.raises(Unavailable, match="is the directory mounted"):
        await offsite.fetch_newest(history, tmp_path / "again.sqlite")
