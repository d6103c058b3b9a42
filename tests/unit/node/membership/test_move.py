"""A stopped node that goes on in another directory: all of it is there, and only there."""

import os
from pathlib import Path

import pytest

from ca.errors import Conflict, InvalidRequest
from node.base.config import DataInUse, NodeConfig, NodeFiles, NotJoined
from node.membership.move import move, take_blobs

CONFIG = NodeConfig(
    id="n1", cluster="lab", address="10.0.0.1", api_port=7443, peer_port=7444, coordinators=[]
)
BLOB = "blobs/ab/cd/abcd"


def node_at(data: Path) -> NodeFiles:
    for name in (BLOB, f"{BLOB}.sums", "uploads/u/data", "credential.pem", "audit.log"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(os.urandom(100))
    (data / BLOB).chmod(0o400)
    (data / "run").mkdir()
    files = NodeFiles(data)
    files.write_config(CONFIG)
    return files


def contents(data: Path) -> dict[str, tuple[int, bytes]]:
    aside = ("node.json", "node.json.moved", "node.lock", "workers.lock")
    return {
        str(path.relative_to(data)): (path.stat().st_mode, path.read_bytes())
        for path in data.rglob("*")
        if path.is_file() and path.name not in aside
    }


def test_moved_node_is_whole_and_the_old_directory_is_none_any_more(tmp_path: Path) -> None:
    files, target = node_at(tmp_path / "old"), tmp_path / "disk" / "new"
    before = contents(files.data)
    assert move(files.data, target) == CONFIG
    assert contents(target) == before == contents(files.data)
    assert NodeFiles(target).read_config() == CONFIG
    with pytest.raises(NotJoined):
        NodeFiles(files.data).read_config()
    with pytest.raises(Conflict):
        move(files.data, target)


def test_disk_with_a_file_system_of_its_own_is_moved_from_and_to(tmp_path: Path) -> None:
    files, target = node_at(tmp_path / "old"), tmp_path / "new"
    for top in (files.data, target):
        (top / "lost+found").mkdir(parents=True)
    (files.data / "lost+found" / "#7").touch()
    assert move(files.data, target) == CONFIG
    assert not list((target / "lost+found").iterdir())


def test_move_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """Before and after the moment in which the old directory ends."""
    files, target = node_at(tmp_path / "old"), tmp_path / "new"
    before = contents(files.data)
    target.mkdir()
    (target / "moving").write_text(str(files.data))
    (target / "blobs").mkdir()
    (target / "credential.pem").write_bytes(b"the beginn")
    files.config.rename(files.data / "node.json.moved")
    assert move(files.data, target) == CONFIG
    assert contents(target) == before
    assert NodeFiles(target).read_config() == CONFIG


def test_node_that_runs_is_not_moved_nor_one_into_what_is_in_use(tmp_path: Path) -> None:
    files, target = node_at(tmp_path / "old"), tmp_path / "new"
    with files.lock_directory(), pytest.raises(DataInUse):
        move(files.data, target)
    node_at(target)
    with pytest.raises(Conflict):
        move(files.data, target)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(Conflict):
        move(files.data, tmp_path / "other")
    with pytest.raises(InvalidRequest):
        move(files.data, files.data / "within")
    assert files.read_config() == CONFIG


def test_content_goes_with_a_node_that_has_joined_anew(tmp_path: Path) -> None:
    files, target = node_at(tmp_path / "old"), NodeFiles(tmp_path / "new")
    content = (files.data / BLOB).read_bytes()
    target.data.mkdir()
    target.write_config(CONFIG)
    take_blobs(files.data, target.data)
    assert (target.data / BLOB).read_bytes() == content
    assert not (files.data / "blobs").exists()
    with pytest.raises(NotJoined):
        NodeFiles(files.data).read_config()
    with pytest.raises(Conflict):
        take_blobs(files.data, target.data)


def test_content_that_was_taken_before_an_interruption_stays(tmp_path: Path) -> None:
    files, target = node_at(tmp_path / "old"), tmp_path / "new"
    content = (files.data / BLOB).read_bytes()
    target.mkdir()
    (target / "moving").write_text(str(files.data))
    (files.data / "blobs").rename(target / "blobs")
    take_blobs(files.data, target)
    assert (target / BLOB).read_bytes() == content
    assert [path.name for path in target.iterdir()] == ["blobs"]
