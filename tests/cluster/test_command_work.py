"""`filestore node work` and `filestore coordinator work`: what a member does by itself."""

from typing import Any

from deploy.processes import wait_until
from tests.cluster.command_output import objects, objects_in, output
from tests.cluster.harness import Cluster

OF_EVERY_MEMBER = {"connection", "heartbeats", "renewal"}
OF_A_NODE = {"announcement", "collect", "compare", "copies", "custody", "disk", "orphans", "packs", "scrub"}
OF_A_COORDINATOR = {
    "digests of the state",
    "jobs",
    "kept time",
    "quotas",
    "raft connection",
    "states of nodes",
}


def test_work_of_a_node_is_listed_by_the_node_itself(cluster: Cluster) -> None:
    node_id = cluster.nodes[1].id
    listed = objects(cluster, "node", "work", node_id)
    names = {each["name"] for each in listed}
    assert names >= OF_EVERY_MEMBER | OF_A_NODE
    assert not names & OF_A_COORDINATOR
    disk = next(each for each in listed if each["name"] == "disk")
    assert (disk["worker"], disk["failures"]) == (0, 0)
    assert disk["began_at"]
    connections = [each for each in listed if each["name"] == "connection"]
    assert {each["target"] for each in connections} == {each.id for each in cluster.coordinators}
    assert {each["state"] for each in connections} == {"working"}
    later = objects(cluster, "node", "work", node_id)
    assert next(each for each in later if each["name"] == "disk")["steps"] >= disk["steps"]
    heading, *rows = output(cluster, "node", "work", node_id).splitlines()
    assert heading.split()[:3] == ["work", "worker", "state"]
    assert len(rows) == len(listed)


def test_work_of_a_coordinator_is_listed_by_itself(cluster: Cluster) -> None:
    listed = objects(cluster, "coordinator", "work", cluster.coordinators[2].id)
    assert {each["name"] for each in listed} >= OF_EVERY_MEMBER | OF_A_COORDINATOR
    others = {each.id for each in cluster.coordinators} - {cluster.coordinators[2].id}
    assert {each["target"] for each in listed if each["name"] == "raft connection"} == others


def test_work_that_fails_shows_and_says_why(cluster: Cluster) -> None:
    node, away = cluster.nodes[0], cluster.coordinators[1]
    found: list[dict[str, Any]] = []

    def is_shown() -> bool:
        done = cluster.filestore("node", "work", node.id, "--json")
        listed = objects_in(done.stdout.decode())
        found[:] = [each for each in listed if each["target"] == away.id and each["name"] == "connection"]
        return done.returncode == 10 and found[0]["state"] == "failing"

    with cluster.down(away):
        wait_until(is_shown, what="the work that fails", timeout_s=30)
    (connection,) = found
    assert connection["reason"]
    assert connection["failures"] >= connection["failures_in_row"] > 0


def test_unknown_member_has_no_work(cluster: Cluster) -> None:
    assert cluster.filestore("node", "work", "nobody").returncode == 4
