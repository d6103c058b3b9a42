"""The audit log of a real node: every administrative act is in it, or does not happen."""

import json
from pathlib import Path

from deploy.development import Member
from tests.cluster.harness import Cluster


def audit_of(cluster: Cluster, node: Member) -> Path:
    return cluster.data(node) / "audit.log"


def recorded(path: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["action"], line["outcome"]) for line in lines]


def token_ids(cluster: Cluster, node: Member) -> set[str]:
    listed = cluster.get("/cluster/join-tokens", node=node).json["join_tokens"]
    return {token["token_id"] for token in listed}


def test_rotated_log_goes_on_under_its_name_and_an_unwritable_one_stops_the_act(own_cluster: Cluster) -> None:
    node = own_cluster.nodes[0]
    path = audit_of(own_cluster, node)
    first = own_cluster.post("/cluster/join-tokens", {}, node=node).json
    own_cluster.remember(first["token"])
    assert recorded(path)[-1] == ("create_join_token", "ok")

    path.rename(path.with_suffix(".1"))
    second = own_cluster.post("/cluster/join-tokens", {}, node=node).json
    own_cluster.remember(second["token"])
    assert recorded(path) == [("create_join_token", "ok")]

    path.unlink()
    path.mkdir()
    before = token_ids(own_cluster, node)
    refused = own_cluster.post("/cluster/join-tokens", {}, node=node)
    assert (refused.status, refused.json["code"]) == (503, "unavailable")
    assert token_ids(own_cluster, node) == before >= {first["token_id"], second["token_id"]}


def test_whole_token_in_the_place_of_its_id_is_not_recorded(own_cluster: Cluster) -> None:
    node = own_cluster.nodes[0]
    token = own_cluster.post("/cluster/join-tokens", {}, node=node).json["token"]
    own_cluster.remember(token)
    assert own_cluster.request("DELETE", f"/cluster/join-tokens/{token}", node=node).status == 404
    assert own_cluster.post(f"/auth/users/{token[:100]}/token", node=node).status in (200, 404)
    assert token.split(".")[2] not in audit_of(own_cluster, node).read_text()
