"""Groups over HTTP: their list, their members, and access that follows a membership."""

from typing import Any

import pytest

from tests.api.expectations import check_refused, check_shape, create, grant, person, store, unique
from tests.cluster.harness import Cluster

PROJECT = "/project-files"


def members(cluster: Cluster, group: str) -> dict[str, list[str]]:
    answer = cluster.get(f"/groups/{group}/members")
    assert answer.status == 200, answer.body
    return {each["user_id"]: each["sources"] for each in answer.json["members"]}


def test_group_lives_from_its_name_to_its_end(cluster: Cluster) -> None:
    group, alice, bob = unique("netlab"), person(cluster, "alice"), person(cluster, "bob")
    made = cluster.request("PUT", f"/groups/{group}", body={"description": "Winter 2026"})
    check_shape(made.json, {"group": str, "description": str, "members": int})
    assert made.json == {"group": group, "description": "Winter 2026", "members": 0}
    added = cluster.post(f"/groups/{group}/members", {"user_ids": [alice.id, bob.id, alice.id]})
    assert added.json == {"group": group, "added": [alice.id, bob.id]}
    assert members(cluster, group) == {alice.id: ["local"], bob.id: ["local"]}
    assert cluster.get("/auth/whoami", token=alice.token).json["groups"] == [group]
    again = cluster.post(f"/groups/{group}/members", {"user_ids": [alice.id]})
    assert again.json == {"group": group, "added": []}
    listed = {each["group"]: each["members"] for each in cluster.get("/groups").json["groups"]}
    assert listed[group] == 2
    removed = cluster.request("DELETE", f"/groups/{group}/members/{bob.id}")
    assert removed.json == {"deleted": True, "group": group, "user_id": bob.id}
    assert members(cluster, group) == {alice.id: ["local"]}
    assert cluster.request("DELETE", f"/groups/{group}").json == {"deleted": True, "group": group}
    check_refused(cluster.get(f"/groups/{group}"), "not_found")
    assert cluster.get("/auth/whoami", token=alice.token).json["groups"] == []


def test_access_follows_the_membership_on_every_node_with_the_next_request(cluster: Cluster) -> None:
    """Bodies are read again and again, so that nodes answer from their memory."""
    group, reader = unique("netlab"), person(cluster, "reader")
    file_uuid = store(cluster, PROJECT, b"shared")
    grant(cluster, f"/files/{file_uuid}", "read", group, kind="group")
    path = f"/files/{file_uuid}"

    def statuses() -> set[int]:
        return {cluster.get(path, token=reader.token, node=node).status for node in cluster.nodes * 3}

    assert statuses() == {403}
    for _ in range(3):
        cluster.post(f"/groups/{group}/members", {"user_ids": [reader.id]})
        assert statuses() == {200}
        cluster.request("DELETE", f"/groups/{group}/members/{reader.id}")
        assert statuses() == {403}
    cluster.post(f"/groups/{group}/members", {"user_ids": [reader.id]})
    assert statuses() == {200}
    held = cluster.get(f"/groups/{group}/permissions").json["permissions"]
    assert [(each["target"], each["file_uuid"], each["permission"]) for each in held] == [
        ("file", file_uuid, "read")
    ]
    cluster.request("DELETE", f"/groups/{group}")
    assert statuses() == {403}
    cluster.post(f"/groups/{group}/members", {"user_ids": [reader.id]})
    assert statuses() == {403}, "the permission has ended with the group"


def test_removed_member_writes_to_no_file_of_the_bucket(cluster: Cluster) -> None:
    group, writer, owner = unique("netlab"), person(cluster, "writer"), person(cluster, "owner")
    bucket = cluster.post("/buckets", {"name": unique("b")}).json["bucket_id"]
    grant(cluster, f"/buckets/{bucket}", "write", group, kind="group")
    grant(cluster, f"/buckets/{bucket}", "write", owner.id)
    cluster.post(f"/groups/{group}/members", {"user_ids": [writer.id]})
    url = create(cluster, PROJECT, owner.token, bucket_id=bucket)["upload_url"]
    head = {"Tus-Resumable": "1.0.0"}
    assert cluster.request("HEAD", url, token=writer.token, headers=head).status == 200
    cluster.request("DELETE", f"/groups/{group}/members/{writer.id}")
    assert cluster.request("PUT", url, content=b"x", token=writer.token).status == 403
    assert cluster.request("PUT", url, content=b"x", token=owner.token).status == 200


def test_unknown_user_is_added_to_nothing(cluster: Cluster) -> None:
    group, alice = unique("netlab"), person(cluster, "alice")
    answer = cluster.post(f"/groups/{group}/members", {"user_ids": [alice.id, "nobody-here"]})
    check_refused(answer, "not_found")
    assert answer.json["details"] == "There is no user named nobody-here."
    check_refused(cluster.get(f"/groups/{group}"), "not_found")
    check_refused(cluster.request("DELETE", f"/groups/{group}/members/{alice.id}"), "not_found")


@pytest.mark.parametrize("users", [[], None, "alice", [7], [""], ["a b"], ["x" * 129], ["u"] * 501, [["u"]]])
def test_bad_members_are_refused(cluster: Cluster, users: Any) -> None:
    check_refused(cluster.post("/groups/g/members", {"user_ids": users}), "invalid_request")


@pytest.mark.parametrize("group", ["a%20b", "x" * 65, "%00", "a%2Fb", "%F0%9F%98%80", "<b>"])
def test_name_that_no_group_has_is_not_found(cluster: Cluster, group: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        check_refused(
            cluster.request(method, f"/groups/{group}", body={} if method == "PUT" else None), "not_found"
        )


def test_description_is_a_label(cluster: Cluster) -> None:
    group = unique("g")
    for wrong in ("a\nb", "a\x00b", "x" * 256, 7, ["a"]):
        check_refused(
            cluster.request("PUT", f"/groups/{group}", body={"description": wrong}), "invalid_request"
        )
    check_refused(cluster.get(f"/groups/{group}"), "not_found")


def test_changes_of_groups_are_audited(cluster: Cluster) -> None:
    group, alice = unique("netlab"), person(cluster, "alice")
    node = cluster.nodes[0]
    cluster.post(f"/groups/{group}/members", {"user_ids": [alice.id]}, node=node)
    cluster.request("DELETE", f"/groups/{group}/members/{alice.id}", node=node)
    cluster.request("DELETE", f"/groups/{group}", node=node)
    entries = cluster.get("/audit?limit=1000", node=node).json["entries"]
    told = [(each["action"], each["target"]) for each in entries if group in each["target"]]
    assert told[::-1] == [
        ("add_group_members", f"group {group}: {alice.id}"),
        ("remove_group_member", f"group {group}: {alice.id}"),
        ("delete_group", f"group {group}"),
    ]
