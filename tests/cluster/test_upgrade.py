"""Coordinators over the state of an older version: they go on to the newer rules together."""

import hashlib
import os
import sqlite3
from contextlib import closing

from coordinator.machine.execution.rules import RULES, in_force
from coordinator.runtime.config import CoordinatorFiles
from deploy.dev.cluster import Member
from deploy.dev.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.packed import holders_of, packs_of


def rules_of(cluster: Cluster, member: Member) -> int:
    with closing(sqlite3.connect(CoordinatorFiles(cluster.data(member)).state)) as db:
        return in_force(db)


def test_newer_rules_are_in_force_once_every_coordinator_runs_again(own_cluster: Cluster) -> None:
    """Small content is packed from then on; what came before stays a file."""
    *early, last = own_cluster.coordinators
    own_cluster.terminate(*own_cluster.members)
    for member in own_cluster.coordinators:  # an older version knows nothing of rules
        with closing(sqlite3.connect(CoordinatorFiles(own_cluster.data(member)).state)) as db, db:
            db.execute("DELETE FROM rules")
    own_cluster.restart(*early, *own_cluster.nodes)
    wait_until(lambda: len(own_cluster.ready_nodes()) == 3, what="every node ready", timeout_s=60)
    stored = own_cluster.store_everywhere(b"by the first rules")
    assert [packs_of(own_cluster, node) for node in own_cluster.nodes] == [[], [], []]
    assert [rules_of(own_cluster, member) for member in early] == [1, 1]
    own_cluster.restart(last)
    wait_until(
        lambda: {rules_of(own_cluster, member) for member in own_cluster.coordinators} == {RULES},
        what="newer rules everywhere",
        timeout_s=30,
    )
    own_cluster.wait_healthy()

    def is_packed() -> bool:
        content = os.urandom(1000)
        own_cluster.store_everywhere(content)
        return holders_of(own_cluster, hashlib.sha256(content).hexdigest()) == own_cluster.nodes

    wait_until(is_packed, what="nodes that have heard of the rules", timeout_s=30)
    own_cluster.kill(*own_cluster.nodes)
    own_cluster.restart(*own_cluster.nodes)
    own_cluster.wait_healthy()
    assert holders_of(own_cluster, hashlib.sha256(b"by the first rules").hexdigest()) == []
    for node in own_cluster.nodes:
        assert own_cluster.get(f"/files/{stored}", node=node).body == b"by the first rules"
