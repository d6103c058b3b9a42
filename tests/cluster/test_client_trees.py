"""A tree of 5,000 files in 800 folders goes up and comes back through the file system of the client."""

import os
import subprocess
from pathlib import Path

import pytest

from filestore_client.filesystem import FilestoreFileSystem
from tests.cluster.connections import options_of
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LABS, DEVICES, FILES = 25, 31, 5000
NAMES = (
    "startup-config.cfg",
    "running config.cfg",
    "vlan.dat",
    "été.txt",
    "[old] config?.cfg",
    "100%.log",
    "a&b#c",
)


def make_tree(top: Path) -> int:
    """Make FILES files in LABS folders, each with DEVICES folders; return how many folders there are."""
    folders = [top / f"lab {lab}" / f"r{device}" for lab in range(LABS) for device in range(DEVICES)]
    for folder in folders:
        folder.mkdir(parents=True)
    for number in range(FILES):
        round_, at = divmod(number, len(folders))
        (folders[at] / NAMES[round_]).write_bytes(os.urandom(number % 3000))
    return len([path for path in top.rglob("*") if path.is_dir()])


def test_tree_of_many_folders_comes_back_as_it_was(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source, back = tmp_path / "source", tmp_path / "back"
    assert make_tree(source) == 800
    fs = FilestoreFileSystem(**options_of(cluster))
    fs.put(str(source), "filestore://trees/x", recursive=True)
    assert len(fs.find("trees/x")) == FILES
    fs.mv("trees/x/lab 7", "trees/x/moved", recursive=True)
    fs.mv("trees/x/moved", "trees/x/lab 7", recursive=True)
    fs.get("trees/x", str(back), recursive=True)
    done = subprocess.run(["diff", "-r", source, back], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    fs.rm("trees", recursive=True)
