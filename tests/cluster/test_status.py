"""`filestore status`: what it shows of real processes, and its exit code by how the cluster is."""

from typing import Any

from deploy.processes import wait_until
from tests.cluster.harness import Cluster


def status(cluster: Cluster) -> dict[str, Any]:
    answer = cluster.get("/cluster/status")
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


def test_every_member_has_its_clock_and_nothing_is_wrong(cluster: Cluster) -> None:
    cluster.leader()
    found = status(cluster)
    assert (found["health"], found["problems"], found["certificates"]) == ("healthy", [], [])
    members = found["coordinators"] + found["nodes"]
    assert len(members) == len(cluster.members)
    assert all(abs(member["clock_offset_ms"]) < 60_000 for member in members)  # one machine, one clock


def test_table_shows_problems_and_the_exit_code_follows(own_cluster: Cluster) -> None:
    leader = own_cluster.leader()
    first, second = (member for member in own_cluster.coordinators if member != leader)

    def ends_with(code: int) -> bool:
        return own_cluster.filestore("status").returncode == code

    own_cluster.kill(first)
    wait_until(lambda: ends_with(1), what="degraded", timeout_s=30)
    shown = own_cluster.filestore("status").stdout.decode()
    assert f"! The coordinator {first.id} does not answer." in shown
    assert "DEGRADED" in shown
    own_cluster.kill(second)
    wait_until(lambda: ends_with(2), what="unavailable", timeout_s=30)
