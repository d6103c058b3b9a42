"""The clocks of the cluster were wrong when a backup was made: the order of the log counts, not the dates."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.clocks import Clocks
from tests.cluster.harness import Cluster
from tests.cluster.test_all_clocks import is_ahead
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
STATE = "project-files/state"
DAYS_S = 3 * 86_400


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(tmp_path, monkeypatch)


@pytest.fixture
def moved(tmp_path: Path, clocks: Clocks) -> Iterator[Cluster]:
    """A store of its own, whose clocks can be moved."""
    del clocks  # it is preloaded
    with Cluster(tmp_path / "cluster") as started:
        yield started


def move_all(cluster: Cluster, clocks: Clocks, shift_s: int) -> None:
    """Set all clocks, and wait until the cluster goes by them."""
    for member in cluster.members:
        clocks.move(cluster.pid(member), shift_s)
    wait_until(lambda: is_ahead(cluster, shift_s), what="the time of the leader", timeout_s=60)


def test_backup_with_a_wrong_date_replaces_none_and_is_kept(
    moved: Cluster, clocks: Clocks, old: LabServer, new: LabServer, tmp_path: Path
) -> None:
    operator = Operator(moved, tmp_path / "operator")
    operator.login("old", old)
    operator.login("new", new)
    name = f"dated {secrets.token_hex(3)}"
    project_id = old.make_project(name)

    def stored(state: bytes) -> str:
        old.write(project_id, STATE, state)
        [row] = operator.json("backup", name, "--server", "old")
        assert row["status"] == "stored"
        return str(row["file_uuid"])

    uuids = [stored(b"1"), stored(b"2")]
    move_all(moved, clocks, DAYS_S)
    uuids.append(stored(b"3"))
    move_all(moved, clocks, 0)
    wrong = uuids[-1]
    uuids += [stored(b"4"), stored(b"5")]
    dates = [moved.get(f"/project-files/{each}").json["created_at"] for each in uuids]
    assert sorted(dates) != dates, "the clocks were not moved"

    newest = uuids[-1]
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}
    [listed] = [row for row in operator.json("ls", "--server", "old") if row["name"] == name]
    assert (listed["file_uuid"], listed["backups"]) == (newest, 5)
    assert [row["file_uuid"] for row in operator.json("verify", name)] == [newest]
    restored = operator.json("restore", name, "--to", "new")[0]
    assert restored["file_uuid"] == newest
    assert new.files_of(restored["project_id"])[STATE] == b"5"

    code, out, err = operator.run("prune", name, "--keep-last", "1")
    assert (code, "dated out of order" in out, wrong in err) == (10, True, True), (out, err)
    left = [file["file_uuid"] for file in operator.project_files(project_id=project_id)]
    assert left == [wrong, newest]
