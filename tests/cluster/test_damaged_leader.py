"""The state of the leader is damaged while another coordinator lags behind the log: nothing of it spreads."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from coordinator.raft.messages import HardState
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.state_damage import flaw_in
from coordinator.storage.state_store import Store, replay
from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.unit.state_damage import place_of_row

pytestmark = pytest.mark.long  # run by `make long`

SOON_S = 90.0
COLD = "never-touched-again.gns3p"
PASS_ENTRIES = 110  # of the log, while every table is hashed once and two members report it
PAGE_BYTES = 4096


@pytest.fixture
def lagging(tmp_path: Path) -> Iterator[tuple[Cluster, Member]]:
    """Three coordinators, of which one is down and lacks what the others' logs no longer hold."""
    with Cluster(tmp_path / "cluster", node_count=1, replicas=1, write_quorum=1) as cluster:
        cluster.create(COLD)
        away = next(member for member in cluster.coordinators if member != cluster.leader())
        others = [member for member in cluster.coordinators if member != away]
        cluster.kill(away)
        for number in range(40):
            cluster.create(f"later-{number}.gns3p")
        cluster.terminate(*others)
        shorten_logs([CoordinatorFiles(cluster.data(member)) for member in others])
        for member in cluster.coordinators:
            path = cluster.data(member) / "coordinator.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"digest_s": 0.1}))
        cluster.restart(*others)
        cluster.leader()
        yield cluster, away


def shorten_logs(members: list[CoordinatorFiles]) -> None:
    """As after many changes: the logs begin behind what the databases hold, which is the same."""
    with ExitStack() as opened:
        logs = [opened.enter_context(closing(SegmentLog.open(files.log))) for files in members]
        stores = [opened.enter_context(closing(Store(files.state))) for files in members]
        committed = max(store.applied_index() for store in stores)
        for log, store in zip(logs, stores, strict=True):
            replay(log, committed, store)
            log.reset(HardState(log.hard_state.term, log.hard_state.vote, committed), *store.applied())


def applied(cluster: Cluster, member: Member) -> int:
    return next(
        int(each["applied"])
        for each in cluster.get("/cluster/status").json["coordinators"]
        if each["id"] == member.id
    )


def wait_compared(cluster: Cluster, leader: Member, passes: int) -> None:
    """Until every row was compared so many times."""
    since = applied(cluster, leader)
    wait_until(
        lambda: applied(cluster, leader) > since + passes * PASS_ENTRIES, what="passes", timeout_s=SOON_S
    )


def overwrite(path: Path, at: int, content: bytes) -> None:
    """What a disk does to a file under a process that has it open."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, content, at)
    finally:
        os.close(descriptor)


def name_in(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT filename FROM files WHERE filename LIKE '%touched-again%'").fetchall()
    return [name for (name,) in rows]


def wait_back(cluster: Cluster, member: Member) -> None:
    """Until a coordinator has what the leader has."""
    log = cluster.directory / "logs" / f"{member.id}.log"
    wait_until(lambda: "installed the snapshot" in log.read_text(), what="its snapshot", timeout_s=SOON_S)
    wait_level(cluster, member)


def wait_level(cluster: Cluster, member: Member) -> None:
    """Until a coordinator keeps up with the leader."""

    def is_level() -> bool:
        shown = cluster.get("/cluster/status").json["coordinators"]
        states = {each["id"]: each for each in shown}
        return bool(states[member.id].get("replication") == "replicate")

    wait_until(is_level, what="the one that lagged is back", timeout_s=SOON_S)


def check_came_through(cluster: Cluster, damaged: Member, away: Member) -> None:
    """The two sound ones go on together, with the row as it was; the damaged one is told apart, and ends."""
    sound = next(member for member in cluster.coordinators if member not in (damaged, away))
    wait_back(cluster, away)
    wait_until(lambda: not cluster.runs(damaged), what="the damaged one has ended", timeout_s=SOON_S)
    assert cluster.leader() != damaged
    cluster.create("after.gns3p")
    for member in (sound, away):
        state = CoordinatorFiles(cluster.data(member)).state
        assert name_in(state) == [COLD]
        assert flaw_in(state, at_rest=False) == ""
        assert not CoordinatorFiles(cluster.data(member)).diverged.exists()
        assert cluster.runs(member)


def test_byte_of_a_row_that_flips_in_the_leader_does_not_spread(lagging: tuple[Cluster, Member]) -> None:
    cluster, away = lagging
    leader = cluster.leader()
    wait_compared(cluster, leader, 4)
    state = CoordinatorFiles(cluster.data(leader)).state
    overwrite(state, place_of_row(state, "files", COLD), b"N")
    cluster.restart(away)
    check_came_through(cluster, leader, away)
    files = CoordinatorFiles(cluster.data(leader))
    assert files.diverged.exists() or files.state_damaged.exists()  # by digests, or by checks of its pages


def test_page_of_zeros_in_the_leader_does_not_spread(lagging: tuple[Cluster, Member]) -> None:
    cluster, away = lagging
    leader = cluster.leader()
    state = CoordinatorFiles(cluster.data(leader)).state
    overwrite(state, place_of_row(state, "files", COLD) // PAGE_BYTES * PAGE_BYTES, bytes(PAGE_BYTES))
    cluster.restart(away)
    check_came_through(cluster, leader, away)
    cluster.restart(leader)
    wait_level(cluster, leader)
    assert name_in(state) == [COLD]
