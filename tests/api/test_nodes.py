"""Nodes over HTTP: taken out of placement, taken back in, and not removed while they hold anything."""

from collections.abc import Iterator
from operator import itemgetter

import pytest

from tests.api.expectations import check_refused, check_shape, pages, person, store
from tests.cluster.harness import Cluster

NODE = {
    "id": str,
    "url": str,
    "address": str,
    "api_port": int,
    "peer_port": int,
    "zone": str,
    "weight": int,
    "joined_at": str,
    "draining": bool,
}


@pytest.fixture
def drained(cluster: Cluster) -> Iterator[str]:
    """The path of a node that is draining, until the test is over."""
    path = f"/cluster/nodes/{cluster.nodes[-1].id}"
    assert cluster.post(f"{path}/drain").status == 200
    yield path
    assert cluster.request("DELETE", f"{path}/drain").status == 200


def test_nodes_are_listed_and_shown(cluster: Cluster) -> None:
    answer = cluster.get("/cluster/nodes")
    assert set(answer.json) == {"count", "nodes"}
    nodes = answer.json["nodes"]
    assert {node["id"] for node in nodes} == {member.id for member in cluster.nodes}
    assert nodes == sorted(nodes, key=itemgetter("joined_at", "id"))
    assert answer.json["count"] == len(cluster.nodes)
    assert pages(cluster, "/cluster/nodes", "nodes", limit=1) == nodes
    for node in nodes:
        check_shape(node, NODE)
        assert cluster.get(f"/cluster/nodes/{node['id']}").json == node


def test_draining_is_answered_shown_and_undone(cluster: Cluster) -> None:
    path = f"/cluster/nodes/{cluster.nodes[-1].id}"
    before = cluster.get(path).json
    for method, draining in (("POST", True), ("POST", True), ("DELETE", False), ("DELETE", False)):
        answer = cluster.request(method, f"{path}/drain")
        assert (answer.status, answer.json) == (200, before | {"draining": draining})
        assert cluster.get(path).json == answer.json


def test_nothing_new_is_placed_on_a_draining_node(cluster: Cluster, drained: str) -> None:
    away = cluster.get(drained).json["url"]
    for _ in range(12):
        assert not cluster.create()["upload_url"].startswith(away)
    assert store(cluster, "/vms", b"on the others")


def test_node_is_not_removed_before_it_is_drained_and_empty(cluster: Cluster) -> None:
    store(cluster, "/vms", b"held by all")
    path = f"/cluster/nodes/{cluster.nodes[-1].id}"
    check_refused(cluster.request("DELETE", path), "conflict")
    assert cluster.post(f"{path}/drain").status == 200
    try:
        check_refused(cluster.request("DELETE", path), "conflict")
    finally:
        assert cluster.request("DELETE", f"{path}/drain").json["draining"] is False


def test_node_that_lives_is_not_removed_by_force(cluster: Cluster) -> None:
    path = f"/cluster/nodes/{cluster.nodes[-1].id}"
    check_refused(cluster.request("DELETE", f"{path}?force=1"), "conflict")
    check_refused(cluster.request("DELETE", f"{path}?force=yes"), "invalid_request")
    check_refused(cluster.request("DELETE", "/cluster/nodes/no-such-node?force=1"), "not_found")


def test_unknown_and_malformed_nodes_are_not_found(cluster: Cluster) -> None:
    for node_id in ("no-such-node", "-", "A", "%00"):
        path = f"/cluster/nodes/{node_id}"
        for method, place in (("GET", path), ("DELETE", path), ("POST", f"{path}/drain")):
            check_refused(cluster.request(method, place), "not_found")
        check_refused(cluster.request("DELETE", f"{path}/drain"), "not_found")


def test_nodes_are_managed_by_admins(cluster: Cluster) -> None:
    user, path = person(cluster), f"/cluster/nodes/{cluster.nodes[-1].id}"
    for method, place in (("GET", path), ("DELETE", path), ("POST", f"{path}/drain")):
        check_refused(cluster.request(method, place, token=user.token), "forbidden")
    assert cluster.get(path).json["draining"] is False


def test_every_member_tells_prometheus_where_all_of_one_role_are(cluster: Cluster) -> None:
    """Nodes that have joined and never run are none to be asked."""
    for asked in (cluster.nodes[0], cluster.coordinators[0]):
        for role, members in (("node", cluster.nodes), ("coordinator", cluster.coordinators)):
            answer = cluster.get(f"/metrics/targets?role={role}", node=asked, token=None)
            (group,) = answer.json
            assert sorted(group["targets"]) == sorted(f"127.0.0.1:{each.api_port}" for each in members)
            assert group["labels"] == {}
            assert answer.headers["content-type"].startswith("application/json")
        (both,) = cluster.get("/metrics/targets", node=asked, token=None).json
        assert len(both["targets"]) == len(cluster.members)
        refused = cluster.get("/metrics/targets?role=other", node=asked, token=None)
        check_refused(refused, "invalid_request")
