"""A node is drained: interrupted, given up; the replicas of every file are counted all the while."""

import concurrent.futures
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.model.safety_limits import SAFETY_BLOBS_MAX
from tests.cluster.harness import Cluster
from tests.cluster.test_healing import holders, let_an_hour_pass, runs_of, state_of
from tests.packed_blobs import packed_names

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]

FILES = 1000
REPLICAS = 3
WRITE_QUORUM = 2
UPLOADS_AT_ONCE = 4
SAMPLE_S = 0.05
MOVED_FIRST = 10  # replicas that are gone from the node when the drain is interrupted
MOVED_MANY = 150  # more than a node that does not drain drops without a question
EMPTY_S = 240.0  # uploads that have ended leave a node within a minute
COUNTED = (
    "SELECT b.sha256, COUNT(r.node_id) FROM blobs b LEFT JOIN blob_replicas r"
    " ON r.sha256 = b.sha256 AND r.doomed_at IS NULL WHERE b.reference_count > 0 GROUP BY b.sha256"
)
HELD = "SELECT COUNT(*) FROM blob_replicas WHERE node_id = ? AND doomed_at IS NULL"
DOOMED = "SELECT COUNT(*) FROM blob_replicas WHERE node_id = ? AND doomed_at IS NOT NULL"
ALL_HELD = "SELECT COUNT(*) FROM blob_replicas WHERE node_id = ?"


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", node_count=4, replicas=REPLICAS, write_quorum=WRITE_QUORUM) as started:
        yield started


class Sampler:
    """Looks at every coordinator's state again and again: how few replicas any file's content has."""

    def __init__(self, cluster: Cluster) -> None:
        self._states = [cluster.data(member) / "state.sqlite" for member in cluster.coordinators]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples = 0
        self.fewest = REPLICAS
        self.contents = FILES

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for state in self._states:
                with suppress(sqlite3.OperationalError):  # its coordinator is being killed, or recovers
                    self._look(state)

    def _look(self, state: Path) -> None:
        with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True, timeout=1.0)) as db:
            counts = [count for _, count in db.execute(COUNTED)]
        self.samples += 1
        self.fewest = min([self.fewest, *counts])
        self.contents = min(self.contents, len(counts))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def stored(cluster: Cluster) -> dict[str, bytes]:
    """FILES files with different content, by file_uuid."""
    contents = [os.urandom(2000) for _ in range(FILES)]
    with concurrent.futures.ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
        return dict(zip(pool.map(cluster.store, contents), contents, strict=True))


def until_everywhere(cluster: Cluster) -> None:
    """Every coordinator has applied every upload, and they have all their replicas."""

    def is_so() -> bool:
        for member in cluster.coordinators:
            with closing(
                sqlite3.connect(f"file:{cluster.data(member)}/state.sqlite?mode=ro", uri=True)
            ) as db:
                counts = [count for _, count in db.execute(COUNTED)]
            if len(counts) != FILES or min(counts) < REPLICAS:
                return False
        return True

    wait_until(is_so, what="three replicas of each file", timeout_s=60)


def held(cluster: Cluster, node: Member, asked: Member, sql: str = HELD) -> int:
    """Replicas of a node in the state of one coordinator."""
    state = cluster.data(asked) / "state.sqlite"
    with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True, timeout=5.0)) as db:
        return int(db.execute(sql, (node.id,)).fetchone()[0])


def until_moving(cluster: Cluster, node: Member, asked: Member, moved: int = MOVED_FIRST) -> int:
    """The drain is on its way; how many replicas the node had before."""
    before = held(cluster, node, asked)
    assert before > FILES / 2
    assert cluster.post(f"/cluster/nodes/{node.id}/drain").status == 200
    wait_until(lambda: held(cluster, node, asked) <= before - moved, what="a drain under way", timeout_s=120)
    return before


def blobs_on(cluster: Cluster, node: Member) -> list[str]:
    """What lies on the disk of a node, sidecars too."""
    files = [path.name for path in (cluster.data(node) / "blobs").rglob("*") if path.is_file()]
    return files + packed_names(cluster.data(node))


def test_drain_is_interrupted_and_ends_with_an_empty_node_and_no_file_below_its_quorum(four: Cluster) -> None:
    files = stored(four)
    until_everywhere(four)
    away, *staying = four.nodes
    leader = four.leader()
    watching = next(member for member in four.coordinators if member is not leader)
    let_an_hour_pass(four, away)
    with Sampler(four) as sampler:
        until_moving(four, away, watching)
        four.kill(leader, away)
        left = held(four, away, watching)
        assert left > 0, "the drain had ended already"
        four.restart(away)
        four.restart(leader)
        wait_until(lambda: held(four, away, watching, ALL_HELD) == 0, what="an empty node", timeout_s=EMPTY_S)
        wait_until(lambda: not blobs_on(four, away), what="an empty disk", timeout_s=EMPTY_S)
    assert sampler.samples > 20
    assert sampler.contents == FILES
    assert sampler.fewest >= WRITE_QUORUM
    for content in files.values():
        assert len(holders(four, content, staying)) == REPLICAS
    wait_until(lambda: ended(four, staying[0]), what="the end of the run", timeout_s=60)
    assert four.filestore("node", "remove", away.id).returncode == 0
    for file_uuid, content in list(files.items())[::40]:
        assert four.get(f"/files/{file_uuid}", node=staying[0]).body == content


def ended(cluster: Cluster, asked: Member) -> bool:
    runs: list[Any] = runs_of(cluster, "drain", asked)
    assert {run["status"] for run in runs} <= {"completed", "running"}
    return bool(runs) and all(run["status"] == "completed" for run in runs)


def test_drain_that_is_given_up_leaves_a_node_that_is_well(four: Cluster) -> None:
    files = stored(four)
    until_everywhere(four)
    node, asked = four.nodes[0], four.nodes[1]
    watching = four.coordinators[0]
    let_an_hour_pass(four, node)
    with Sampler(four) as sampler:
        before = until_moving(four, node, watching, MOVED_MANY)
        assert four.request("DELETE", f"/cluster/nodes/{node.id}/drain", node=asked).status == 200
        assert held(four, node, watching) > 0, "the drain had ended already"
        wait_until(lambda: ended(four, asked), what="the end of the run", timeout_s=120)
        wait_until(lambda: is_settled(four), what="every replica and none doomed", timeout_s=EMPTY_S)
    assert 0 < held(four, node, watching) < before
    assert sampler.fewest >= WRITE_QUORUM
    assert state_of(four, node, asked) == "healthy"
    assert four.get("/cluster/status", node=asked).json["health"] == "healthy"
    assert len(blobs_on(four, node)) == held(four, node, watching)  # in packs, without a sidecar
    for content in files.values():
        assert len(holders(four, content, four.nodes)) >= REPLICAS
    for file_uuid, content in list(files.items())[::40]:
        assert four.get(f"/files/{file_uuid}", node=node).body == content
    placed = [four.create(size_bytes=1)["upload_url"] for _ in range(20)]
    assert any(url.startswith(node.url) for url in placed)


def test_no_more_is_released_than_a_node_drops_once_it_does_not_drain_any_more(four: Cluster) -> None:
    """It hangs while it drains, and drops nothing."""
    files = stored(four)
    until_everywhere(four)
    node, asked, watching = four.nodes[0], four.nodes[1], four.coordinators[0]
    let_an_hour_pass(four, node)
    os.kill(four.pid(node), signal.SIGSTOP)
    try:
        assert four.post(f"/cluster/nodes/{node.id}/drain", node=asked).status == 200
        wait_until(lambda: held(four, node, watching, DOOMED) > 0, what="what it shall drop", timeout_s=60)
        wait_until(lambda: ended(four, asked), what="the end of the run", timeout_s=120)
        assert held(four, node, watching, DOOMED) < SAFETY_BLOBS_MAX < held(four, node, watching, ALL_HELD)
        assert four.request("DELETE", f"/cluster/nodes/{node.id}/drain", node=asked).status == 200
    finally:
        os.kill(four.pid(node), signal.SIGCONT)
    wait_until(lambda: is_settled(four), what="every replica and none doomed", timeout_s=EMPTY_S)
    for file_uuid, content in list(files.items())[::40]:
        assert four.get(f"/files/{file_uuid}", node=node).body == content


def is_settled(cluster: Cluster) -> bool:
    """No file lacks a replica, and no node has one to drop."""
    doomed = "SELECT COUNT(*) FROM blob_replicas WHERE doomed_at IS NOT NULL"
    lacking = "SELECT COUNT(*) FROM blobs WHERE missing > 0"
    return cluster.logged(doomed) == [(0,)] and cluster.logged(lacking) == [(0,)]
