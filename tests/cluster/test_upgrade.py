"""Coordinators over the state of an older version: they go on to the newer rules together."""

import sqlite3
from contextlib import closing

import pytest

from coordinator.machine.execution.change import rules_in_force
from coordinator.storage.config import CoordinatorFiles
from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.model.rules import FIRST, RULES
from tests.cluster.harness import Cluster


def rules_of(cluster: Cluster, member: Member) -> int:
    with closing(sqlite3.connect(CoordinatorFiles(cluster.data(member)).state)) as db:
        return rules_in_force(db)


@pytest.mark.long
def test_newer_rules_are_in_force_once_every_coordinator_runs_again(own_cluster: Cluster) -> None:
    *early, last = own_cluster.coordinators
    own_cluster.terminate(*own_cluster.coordinators)
    for member in own_cluster.coordinators:  # as the release before leaves it
        with closing(sqlite3.connect(CoordinatorFiles(own_cluster.data(member)).state)) as db, db:
            db.execute("UPDATE rules SET version = ?", (FIRST,))
    wait_until(lambda: not own_cluster.ready_nodes(), what="nodes that have missed them", timeout_s=30)
    own_cluster.restart(*early)
    wait_until(lambda: len(own_cluster.ready_nodes()) == 3, what="every node ready", timeout_s=60)
    stored = own_cluster.store(b"by the first rules")
    assert [rules_of(own_cluster, member) for member in early] == [FIRST, FIRST]
    own_cluster.restart(last)
    wait_until(
        lambda: {rules_of(own_cluster, member) for member in own_cluster.coordinators} == {RULES},
        what="newer rules everywhere",
        timeout_s=30,
    )
    own_cluster.wait_healthy()
    assert own_cluster.get(f"/files/{stored}").body == b"by the first rules"
