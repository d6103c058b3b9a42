"""The audit log of a real node: every administrative act is in it, or does not happen."""

import json
from pathlib import Path

from deploy.dev_cluster import Member
from tests.cluster.harness import Cluster


def audit_of(cluster: Cluster, node: Member) -> Path:
    return cluster.data(node) / "audit.log"


def recorded(path: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["action"], line["outcome"]) for line in lines]


def token_ids(cluster: Cluster, node: Member) -> set[str]:
    listed = cluster.get("/cluster/join-tokens", node=node).json["join_tokens"]
    return {token["token_id"] for token in listed}


def test_whole_token_in_the_place_of_its_id_is_not_recorded(mended: Cluster) -> None:
    node = mended.nodes[0]
    token = mended.post("/cluster/join-tokens", {}, node=node).json["token"]
    mended.remember(token)
    assert mended.request("DELETE", f"/cluster/join-tokens/{token}", node=node).status == 404
    assert mended.post(f"/auth/users/{token[:100]}/token", node=node).status in (200, 404)
    assert token.split(".")[2] not in audit_of(mended, node).read_text()


def test_rotated_log_goes_on_under_its_name_and_an_unwritable_one_stops_the_act(mended: Cluster) -> None:
    node = mended.nodes[0]
    path = audit_of(mended, node)
    first = mended.post("/cluster/join-tokens", {}, node=node).json
    mended.remember(first["token"])
    assert recorded(path)[-1] == ("create_join_token", "ok")

    path.rename(path.with_suffix(".1"))
    second = mended.post("/cluster/join-tokens", {}, node=node).json
    mended.remember(second["token"])
    assert recorded(path) == [("create_join_token", "ok")]

    path.unlink()
    path.mkdir()
    before = token_ids(mended, node)
    refused = mended.post("/cluster/join-tokens", {}, node=node)
    assert (refused.status, refused.json["code"]) == (503, "unavailable")
    assert token_ids(mended, node) == before >= {first["token_id"], second["token_id"]}
    path.rmdir()
