"""Snapshots that go to a directory, and what offsite.json may say."""

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ca.errors import InvalidRequest, Unavailable
from coordinator.admin.offsite import Offsite, OffsiteConfig, read_offsite
from coordinator.admin.setup import init_cluster
from coordinator.model.records import CoordinatorRecord
from coordinator.runtime.config import CoordinatorFiles, NotInitialised
from coordinator.storage.file_digests import matches_digest

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


def snapshot_of(files: CoordinatorFiles, index: int) -> Path:
    files.backups.mkdir(exist_ok=True)
    path = files.backups / f"20261127T100000-{index}.sqlite"
    path.write_bytes(b"state" * index)
    return path


async def sent(files: CoordinatorFiles, directory: Path, index: int, *, keep: int = 2) -> str:
    offsite = Offsite(files, OffsiteConfig(directory=str(directory), keep=keep))
    return await offsite.send(snapshot_of(files, index), log_index=index, at=AT)


async def test_directory_gets_snapshot_digest_and_note_and_the_newest_stay(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    (directory / "other-20261127T100000-1.sqlite").write_bytes(b"of another cluster")
    (directory / ".lab-20261127T090000-8.sqlite.making").write_bytes(b"of a leader that was killed")
    for index in (9, 10, 11):
        assert await sent(files, directory, index) == f"directory {directory}"
    names = sorted(path.name for path in directory.iterdir())
    assert names == [
        *(
            f"lab-20261127T100000-{index}.sqlite{end}"
            for index in (10, 11)
            for end in ("", ".json", ".sha256")
        ),
        "other-20261127T100000-1.sqlite",
    ]
    newest = directory / "lab-20261127T100000-11.sqlite"
    assert newest.read_bytes() == b"state" * 11
    assert matches_digest(newest)
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.glob("lab-*")} == {0o600}
    note: dict[str, Any] = msgspec.json.decode(newest.with_name(f"{newest.name}.json").read_bytes())
    assert (note["log_index"], note["taken_at"], note["coordinator"]["cluster"]) == (11, AT, "lab")


async def test_what_another_cluster_whose_name_begins_alike_keeps_there_stays(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    others = {
        "lab-2-20261127T100000-1.sqlite",
        "lab-before-the-move-5.sqlite",
        ".lab-2-20261127T100000-2.sqlite.making",
    }
    for name in others:
        (directory / name).write_bytes(b"of somebody else")
    for index in (9, 10, 11):
        await sent(files, directory, index)
    assert others <= {path.name for path in directory.iterdir()}


async def test_directory_that_is_not_mounted_is_not_made(files: CoordinatorFiles, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is it mounted"):
        await sent(files, tmp_path / "missing", 9)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "give a directory, or a bucket"),
        ({"directory": "/mnt", **BUCKET}, "give a directory, or a bucket"),
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
