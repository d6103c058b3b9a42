"""All clocks show a wrong day, and are right again: nothing is lost, and nothing that ended returns."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.processes import wait_until
from runtime.clock import now_ms
from runtime.timestamps import parse_rfc3339
from tests.cluster.clocks import Clocks
from tests.cluster.harness import Cluster, run_filestore

DAY_S = 86_400
RAN_S = 5400  # for as long as it ran, a cluster doubts clocks that are behind: a test takes less
SOON_S = 60.0
DAILY, DELETED = b"kept for a day" * 20_000, b"deleted just now" * 20_000

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(tmp_path, monkeypatch)


def is_ahead(cluster: Cluster, shift_s: int) -> bool:
    """Whether the time of the cluster, which dates what is created, is this far ahead of ours."""
    created = cluster.get(f"/project-files/{cluster.create(size_bytes=1)['file_uuid']}").json
    ahead_ms = parse_rfc3339(created["created_at"], "created_at") - now_ms()
    return abs(ahead_ms - shift_s * 1000) < 60_000


@pytest.fixture
def cluster(tmp_path: Path, clocks: Clocks) -> Iterator[Cluster]:
    """One that has run for RAN_S."""
    with Cluster(tmp_path / "cluster") as started:
        for member in started.members:
            clocks.move(started.pid(member), RAN_S, steady_s=RAN_S)
        wait_until(lambda: is_ahead(started, RAN_S), what="the time of the leader", timeout_s=SOON_S)
        yield started


def move_all(cluster: Cluster, clocks: Clocks, shift_s: int) -> None:
    """Set all clocks, and wait until the cluster says that they have jumped, or no longer says so."""
    for member in cluster.members:
        clocks.move(cluster.pid(member), RAN_S + shift_s, steady_s=RAN_S)

    def is_told() -> bool:
        answer = cluster.get("/cluster/status")
        return answer.status == 200 and any("jumped" in each for each in answer.json["problems"])

    wait_until(lambda: is_told() == bool(shift_s), what="what status says", timeout_s=SOON_S)


class Stored:
    """What a clock that is ahead would end: a file, an upload, and content that was deleted just now."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.daily = cluster.store(DAILY, retention_period=24)
        self.upload = cluster.create(size_bytes=100)["file_uuid"]
        deleted = cluster.store_everywhere(DELETED)
        assert cluster.request("DELETE", f"/files/{deleted}?now=1").status == 200

    def check(self) -> None:
        cluster = self._cluster
        for job in ("expire", "gc"):
            done = cluster.filestore("job", "run", job, "--wait")
            assert done.returncode == 0, done.stderr.decode()
        assert cluster.get(f"/files/{self.daily}").body == DAILY
        assert cluster.get(f"/project-files/{self.upload}").json["status"] == "pending"
        assert all(cluster.holds(node, hashlib.sha256(DELETED).hexdigest()) for node in cluster.nodes)


def test_jump_of_all_clocks_by_days_and_back_ends_nothing_whoever_leads(
    cluster: Cluster, clocks: Clocks
) -> None:
    stored = Stored(cluster)
    move_all(cluster, clocks, 3 * DAY_S)
    stored.check()
    leader = cluster.leader()
    cluster.terminate(leader)
    wait_until(lambda: cluster.leader().id != leader.id, what="another leader", timeout_s=SOON_S)
    stored.check()
    cluster.restart(leader)
    move_all(cluster, clocks, 0)
    stored.check()
    assert is_ahead(cluster, RAN_S)
    assert cluster.get(f"/files/{cluster.store(b'after')}").body == b"after"


def test_starts_of_a_cluster_whose_clocks_are_days_ahead_end_nothing(
    cluster: Cluster, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    del clocks
    stored = Stored(cluster)
    for shift_s in (3 * DAY_S, 3 * DAY_S, RAN_S):  # what is dated three days ahead by the first does no harm
        cluster.terminate(*cluster.members)
        monkeypatch.setenv("CLOCK_SHIFT", str(shift_s))
        cluster.restart(*cluster.members)
        cluster.wait_healthy()
        stored.check()


def test_clocks_that_fall_days_behind_revive_nothing_and_date_nothing_back(
    cluster: Cluster, clocks: Clocks, tmp_path: Path
) -> None:
    file_uuid = cluster.store(b"shared")
    token = cluster.user_token("alice", ttl_seconds=60)
    link = cluster.post(f"/files/{file_uuid}/public-token", {"ttl_seconds": 60}).json["url"]
    cluster.remember(link.rpartition("/")[2])

    def answers() -> tuple[int, int]:
        return cluster.get("/project-files", token=token).status, cluster.get(link, token=None).status

    wait_until(lambda: answers() == (200, 200), what="nodes that know the time", timeout_s=SOON_S / 2)
    for member in cluster.members:
        clocks.move(cluster.pid(member), 2 * RAN_S, steady_s=2 * RAN_S)
    wait_until(lambda: answers() == (401, 410), what="their ends", timeout_s=SOON_S)
    for member in cluster.members:
        clocks.move(cluster.pid(member), 2 * RAN_S - 3 * DAY_S, steady_s=2 * RAN_S)

    def is_told() -> bool:
        answer = cluster.get("/cluster/status")
        return answer.status == 200 and any("jumped 72 h back" in each for each in answer.json["problems"])

    wait_until(is_told, what="what status says", timeout_s=SOON_S)
    assert answers() == (401, 410)
    assert is_ahead(cluster, 2 * RAN_S)
    # A token of 30 days that a machine signs whose clock is wrong as well.
    options = ("--data", str(cluster.data(cluster.coordinators[0])), "--output", str(tmp_path / "token"))
    done = run_filestore(["token", "admin", *options], os.environ | {"CLOCK_SHIFT": str(-40 * DAY_S)})
    assert done.returncode == 0, done.stderr
    signed = (tmp_path / "token").read_text().strip()
    assert cluster.get("/project-files", token=signed).status == 200
