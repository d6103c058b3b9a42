"""Snapshots that go to a directory, and what offsite.json may say."""

import re
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ca.certificates import root_digest
from ca.errors import InvalidRequest, Unavailable
from coordinator.admin.offsite import MARKER, Offsite, OffsiteConfig, history_of, read_offsite
from coordinator.admin.restore import restore, write_bundle, write_snapshot
from coordinator.admin.setup import init_cluster
from coordinator.storage.config import CoordinatorFiles, NotInitialised
from metadata.model.records import CoordinatorRecord
from runtime.file_digests import matches_digest

HISTORY = "0a1b2c3d4e5f"
AT = "2026-11-27T10:00:00Z"
BUCKET = {"urls": ["https://10.0.0.9:7443"], "ca": "other.pem", "token_file": "other.token", "bucket_id": "b"}


@pytest.fixture
def files(tmp_path: Path) -> CoordinatorFiles:
    own = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=2)
    init_cluster(
        tmp_path / "c1",
        coordinator_id="c1",
        cluster="lab",
        members=[own],
        replicas=1,
        write_quorum=1,
        development=True,
    )
    return CoordinatorFiles(tmp_path / "c1")


def snapshot_of(files: CoordinatorFiles, index: int, taken: str = "20261127T100000") -> Path:
    files.backups.mkdir(exist_ok=True)
    path = files.backups / f"{taken}-{index}.sqlite"
    path.write_bytes(b"state" * index)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "share"
    made.mkdir()
    (made / MARKER).touch()
    return made


async def sent(
    files: CoordinatorFiles,
    directory: Path,
    index: int,
    *,
    keep: int = 2,
    history: str = HISTORY,
    taken: str = "20261127T100000",
) -> str:
    offsite = Offsite(files, OffsiteConfig(directory=str(directory), keep=keep))
    return await offsite.send(snapshot_of(files, index, taken), history=history, log_index=index, at=AT)


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(".sqlite"))


def own(*indexes: int, history: str = HISTORY, taken: str = "20261127T100000") -> list[str]:
    return [f"lab-{history}-{taken}-{index}.sqlite" for index in indexes]


async def test_directory_gets_snapshot_digest_and_note_and_the_newest_stay(
    files: CoordinatorFiles, directory: Path
) -> None:
    for end in ("", ".sha256", ".json"):
        (directory / f".{own(8)[0]}{end}.{'0' * 16}.tmp").write_bytes(b"of a leader that was killed")
    for index in (9, 10, 11):
        assert await sent(files, directory, index) == f"directory {directory}"
    names = sorted(path.name for path in directory.iterdir())
    kept = [f"{name}{end}" for name in own(10, 11) for end in ("", ".json", ".sha256")]
    assert names == [MARKER, *sorted(kept)]
    newest = directory / own(11)[0]
    assert newest.read_bytes() == b"state" * 11
    assert matches_digest(newest)
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.glob("lab-*")} == {0o600}
    note: dict[str, Any] = msgspec.json.decode(newest.with_name(f"{newest.name}.json").read_bytes())
    assert (note["log_index"], note["taken_at"], note["coordinator"]["cluster"]) == (11, AT, "lab")
    assert note["history"] == HISTORY


async def test_what_is_not_of_this_history_stays(files: CoordinatorFiles, directory: Path) -> None:
    """Another cluster of the same name, the future before a restore, the release before, other names."""
    others = {
        *own(1, 500, history="0123456789ab"),
        "lab-20261127T100000-1.sqlite",
        ".lab-20261127T100000-1.sqlite.making",
        f"lab-2-{HISTORY}-20261127T100000-1.sqlite",
        f".lab-2-{HISTORY}-20261127T100000-1.sqlite.{'0' * 16}.tmp",
        f"lab-{HISTORY}-before-the-move-5.sqlite",
        f"lab-{HISTORY}-20261127T100000-{'9' * 20}.sqlite",
        f"lab-{HISTORY}-20261127T100000-\N{ARABIC-INDIC DIGIT ONE}.sqlite",
        f"lab-{HISTORY}-20261127T100000-1.sqlite\n",
    }
    for name in others:
        (directory / name).write_bytes(b"of somebody else")
    (directory / own(2)[0]).mkdir()
    for index in (9, 10, 11):
        await sent(files, directory, index)
    assert others | set(own(2, 10, 11)) <= {path.name for path in directory.iterdir()}


async def test_what_was_just_sent_is_never_removed_whatever_clocks_and_names_say(
    files: CoordinatorFiles, directory: Path
) -> None:
    """Clocks were a year ahead when most were taken, and somebody has planted names of later entries."""
    ahead, right = "20271128T100000", "20261127T100000"
    planted = own(10**9, 10**9 + 1, taken="20991231T000000")
    for name in planted:
        (directory / name).touch()
    for index, taken in ((5, ahead), (6, ahead), (7, right)):
        await sent(files, directory, index, taken=taken)
        assert set(own(index, taken=taken)) <= set(snapshots(directory))
    await sent(files, directory, 8, taken=right)
    assert snapshots(directory) == sorted([*own(7, 8, taken=right), *planted])
    await sent(files, directory, 9, taken=right, keep=1)
    assert snapshots(directory) == sorted([*own(9, taken=right), *planted])


async def test_snapshots_after_a_restore_stay_beside_those_of_the_future_before_it(
    files: CoordinatorFiles, directory: Path
) -> None:
    for index in (100, 101, 102):
        await sent(files, directory, index)
    for index in (51, 52, 201, 202):
        await sent(files, directory, index, history="cafecafecafe")
        assert set(own(index, history="cafecafecafe")) <= set(snapshots(directory))
    assert snapshots(directory) == sorted([*own(101, 102), *own(201, 202, history="cafecafecafe")])


def test_history_is_that_of_the_root_until_a_restore_draws_another(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    taken, bundle = tmp_path / "taken.sqlite", tmp_path / "lab.bundle"
    write_bundle(files.data, bundle)
    write_snapshot(files.data, taken)
    histories = {history_of(taken)}
    assert histories == {root_digest(files.root.read_text())[:12]}
    for new_id in ("r1", "r2"):
        own = CoordinatorRecord(coordinator_id=new_id, address="127.0.0.1", peer_port=1, api_port=2)
        restore(tmp_path / new_id, snapshot=taken, bundle_path=bundle, own=own)
        taken = tmp_path / f"{new_id}.sqlite"
        write_snapshot(tmp_path / new_id, taken)
        histories.add(history_of(taken))
    assert len(histories) == 3
    assert all(re.fullmatch("[0-9a-f]{12}", history) for history in histories)


async def test_directory_that_is_not_mounted_is_not_made(files: CoordinatorFiles, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is it mounted"):
        await sent(files, tmp_path / "missing", 9)
    assert not (tmp_path / "missing").exists()


async def test_directory_without_a_mark_gets_nothing_as_its_share_may_not_be_mounted(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    point = tmp_path / "mnt"
    point.mkdir()
    for name in ("other-20261127T100000-1.sqlite", *own(1)):  # as if written while it was not mounted
        (point / name).touch()
    before = sorted(point.iterdir())
    with pytest.raises(Unavailable, match=f"touch {point}/{MARKER}"):
        await sent(files, point, 9)
    assert sorted(point.iterdir()) == before


async def test_links_that_somebody_planted_are_replaced_and_what_they_point_to_stays(
    files: CoordinatorFiles, directory: Path
) -> None:
    key = files.cluster_key.read_bytes()
    for end in ("", ".sha256", ".json"):
        (directory / f"{own(9)[0]}{end}").symlink_to(files.cluster_key)
        (directory / f"{own(7)[0]}{end}").symlink_to(files.cluster_key)
        (directory / f".{own(9)[0]}{end}.{'0' * 16}.tmp").symlink_to(files.cluster_key)
    await sent(files, directory, 9, keep=1)
    assert files.cluster_key.read_bytes() == key
    assert snapshots(directory) == own(9)
    assert not [path for path in directory.iterdir() if path.is_symlink()]


async def test_copy_is_read_again_and_one_that_differs_gets_no_name(
    files: CoordinatorFiles, directory: Path
) -> None:
    """What the kernel gives here is different each time it is read: the copy is not what was summed up."""
    snapshot = files.data / "20261127T100000-9.sqlite"
    snapshot.symlink_to("/proc/sys/kernel/random/uuid")
    before = await sent(files, directory, 8)
    offsite = Offsite(files, OffsiteConfig(directory=str(directory), keep=1))
    with pytest.raises(Unavailable, match="differs from what was written"):
        await offsite.send(snapshot, history=HISTORY, log_index=9, at=AT)
    assert before
    assert snapshots(directory) == own(8)
    assert not list(directory.glob(".*"))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "expected a directory, or a bucket"),
        ({"directory": "/mnt", **BUCKET}, "expected a directory, or a bucket"),
        ({**BUCKET, "token_file": ""}, "token_file: is missing"),
        ({**BUCKET, "urls": ["http://10.0.0.9"]}, "https:// is required"),
    ],
)
def test_file_that_names_no_place_is_refused_with_the_reason(
    files: CoordinatorFiles, config: dict[str, Any], told: str
) -> None:
    files.offsite.write_bytes(msgspec.json.encode(config))
    with pytest.raises(InvalidRequest, match=told):
        read_offsite(files)


def test_file_may_be_absent_and_must_be_understood(files: CoordinatorFiles) -> None:
    assert read_offsite(files) is None
    files.offsite.write_bytes(b'{"token": "secret"}')
    with pytest.raises(NotInitialised, match="token"):
        read_offsite(files)
