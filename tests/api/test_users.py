"""Users over HTTP: tokens, roles and groups, disabling, deletion, revocation."""

import base64
import json
from typing import Any

import pytest

from tests.api.expectations import (
    TIME,
    USER,
    check_refused,
    check_shape,
    create,
    grant,
    pages,
    person,
    store,
    unique,
)
from tests.cluster.harness import Cluster

TOKEN = {
    "token": str,
    "token_type": str,
    "user_id": str,
    "expires_at": str,
    "roles": list,
    "groups": list,
}


def put(cluster: Cluster, user_id: str, token: str = "", **fields: Any) -> Any:
    answer = cluster.request("PUT", f"/auth/users/{user_id}", body=fields, token=token)
    assert answer.status == 200, answer.body
    return answer.json


def test_minted_token_is_the_users(cluster: Cluster) -> None:
    user_id = unique("a.b@lab:1")
    answer = cluster.post(
        f"/auth/users/{user_id}/token", {"ttl_seconds": 60, "roles": ["r", "r"], "groups": ["g"]}
    )
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    check_shape(answer.json, TOKEN)
    token = cluster.remember(answer.json["token"])
    assert (answer.json["token_type"], answer.json["user_id"]) == ("Bearer", user_id)
    assert (answer.json["roles"], answer.json["groups"]) == (["r"], ["g"])
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["exp"] - claims["iat"] == 60
    assert cluster.get("/auth/whoami", token=token).json["user_id"] == user_id


def test_roles_and_groups_of_a_user_are_kept_until_they_are_named_again(cluster: Cluster) -> None:
    user_id = unique("u")
    cluster.user_token(user_id, roles=["r"], groups=["g"])
    token = cluster.user_token(user_id)
    assert cluster.get("/auth/whoami", token=token).json["roles"] == ["r"]
    cluster.user_token(user_id, roles=[])
    whoami = cluster.get("/auth/whoami", token=token).json
    assert (whoami["roles"], whoami["groups"]) == ([], ["g"])


def test_new_admin_is_one_for_the_cluster_status_at_once(cluster: Cluster) -> None:
    """All coordinators answer it, each by its own state; some hear of the admin a little later."""
    for number in range(10):
        token = cluster.user_token(f"fresh-{number}", roles=["admin"])
        answer = cluster.get("/cluster/status", node=cluster.nodes[number % 3], token=token)
        assert answer.status == 200, answer.body


def test_user_is_put_shown_and_listed(cluster: Cluster) -> None:
    user_id = unique("u")
    made = put(cluster, user_id, roles=["r"], groups=["h", "g"])
    check_shape(made, USER)
    assert (made["user_id"], made["roles"], made["disabled"]) == (user_id, ["r"], False)
    assert sorted(made["groups"]) == ["g", "h"]
    assert cluster.get(f"/auth/users/{user_id}").json == made
    changed = put(cluster, user_id, disabled=True)
    assert changed == made | {"disabled": True, "updated_at": changed["updated_at"]}
    same = put(cluster, user_id, roles=None, groups=None, disabled=None)
    assert same == changed | {"updated_at": same["updated_at"]}
    answer = cluster.get("/auth/users")
    assert set(answer.json) - {"next_cursor"} == {"count", "users"}
    everybody = pages(cluster, "/auth/users", "users", limit=50)
    assert [user for user in everybody if user["user_id"] == user_id] == [same]
    assert len({user["user_id"] for user in everybody}) == len(everybody)
    assert everybody[0]["user_id"] == "admin"


def test_user_must_exist_if_that_is_wanted(cluster: Cluster) -> None:
    user_id = unique("u")
    path, minting = f"/auth/users/{user_id}?existing=1", f"/auth/users/{user_id}/token?existing=1"
    check_refused(cluster.request("PUT", path, body={"disabled": True}), "not_found")
    check_refused(cluster.post(minting), "not_found")
    check_refused(cluster.get(f"/auth/users/{user_id}"), "not_found")
    check_refused(cluster.request("PUT", path, token=person(cluster).token), "forbidden")
    put(cluster, user_id)
    assert cluster.request("PUT", path, body={"disabled": True}).json["disabled"] is True
    assert cluster.request("PUT", path, body={"disabled": False}).json["disabled"] is False
    cluster.remember(cluster.post(minting).json["token"])
    check_refused(cluster.request("PUT", f"/auth/users/{user_id}?existing=2"), "invalid_request", "existing")


def test_unknown_and_malformed_users_are_not_found(cluster: Cluster) -> None:
    for user_id in (unique("nobody"), "a%20b", "x" * 129, "%00"):
        check_refused(cluster.get(f"/auth/users/{user_id}"), "not_found")
        check_refused(cluster.request("DELETE", f"/auth/users/{user_id}"), "not_found")
    for method, path in (("PUT", "/auth/users/a%20b"), ("POST", "/auth/users/a%20b/token")):
        check_refused(cluster.request(method, path), "not_found")


def test_disabled_user_is_refused_until_it_is_enabled_again(cluster: Cluster) -> None:
    user = person(cluster)
    put(cluster, user.id, disabled=True)
    for node in cluster.nodes:
        check_refused(cluster.get("/auth/whoami", token=user.token, node=node, stranger=True), "unauthorized")
    check_refused(cluster.post(f"/auth/users/{user.id}/token"), "conflict")
    put(cluster, user.id, disabled=False)
    assert cluster.get("/auth/whoami", token=cluster.user_token(user.id)).status == 200


def test_admin_cannot_lock_itself_out(cluster: Cluster) -> None:
    chief = person(cluster, roles=["admin"])
    path = f"/auth/users/{chief.id}"
    changes: list[dict[str, Any]] = [{"disabled": True}, {"roles": []}, {"roles": ["other"]}]
    for change in changes:
        check_refused(cluster.request("PUT", path, body=change, token=chief.token), "conflict")
    check_refused(cluster.post(f"{path}/token", {"roles": []}, token=chief.token), "conflict")
    check_refused(cluster.request("DELETE", path, token=chief.token), "conflict")
    assert put(cluster, chief.id, chief.token, groups=["g"])["roles"] == ["admin"]
    assert put(cluster, chief.id, roles=[])["roles"] == []


def test_deleted_user_is_gone_with_its_tokens_and_permissions(cluster: Cluster) -> None:
    user = person(cluster, groups=["g"])
    file_uuid = create(cluster, "/vms")["file_uuid"]
    grant(cluster, f"/files/{file_uuid}", "read", user.id)
    answer = cluster.request("DELETE", f"/auth/users/{user.id}")
    assert (answer.status, answer.json) == (200, {"deleted": True, "user_id": user.id})
    check_refused(cluster.get("/auth/whoami", token=user.token, stranger=True), "unauthorized")
    check_refused(cluster.get(f"/auth/users/{user.id}"), "not_found")
    check_refused(cluster.request("DELETE", f"/auth/users/{user.id}"), "not_found")
    assert cluster.get(f"/files/{file_uuid}/permissions").json["count"] == 0
    assert user.id not in [each["user_id"] for each in pages(cluster, "/auth/users", "users", limit=1000)]
    again = cluster.user_token(user.id)
    assert cluster.get("/auth/whoami", token=again).json["groups"] == []
    check_refused(cluster.get("/auth/whoami", token=user.token, stranger=True), "unauthorized")


def test_user_that_owns_something_is_not_deleted(cluster: Cluster) -> None:
    owner, keeper = person(cluster), person(cluster)
    file_uuid = create(cluster, "/vms", owner.token)["file_uuid"]
    bucket = cluster.post("/buckets", {"name": unique("b")}, token=keeper.token).json["bucket_id"]
    for user, path in ((owner, f"/files/{file_uuid}"), (keeper, f"/buckets/{bucket}")):
        check_refused(cluster.request("DELETE", f"/auth/users/{user.id}"), "conflict")
        assert cluster.get("/auth/whoami", token=user.token).status == 200
        assert cluster.request("DELETE", path).status == 200
        assert cluster.request("DELETE", f"/auth/users/{user.id}").status == 200


@pytest.mark.parametrize("place", ["body", "query", "both"])
def test_revocation_names_its_user_in_body_or_query(cluster: Cluster, place: str) -> None:
    user = person(cluster)
    body = None if place == "query" else {"user_id": user.id}
    query = "" if place == "body" else f"?user_id={user.id}"
    answer = cluster.post(f"/auth/revoke{query}", body)
    assert (answer.status, answer.body) == (200, b'"OK"')
    check_refused(cluster.get("/auth/whoami", token=user.token, stranger=True), "unauthorized")


def test_revocation_ends_permissions_tokens_and_links_at_once(cluster: Cluster) -> None:
    user = person(cluster, groups=[unique("g")])
    file_uuid = store(cluster, "/vms", b"x")
    bucket = cluster.post("/buckets", {"name": unique("b")}).json["bucket_id"]
    grant(cluster, f"/files/{file_uuid}", "admin", user.id)
    grant(cluster, f"/buckets/{bucket}", "read", user.id)
    shared = cluster.post(f"/files/{file_uuid}/public-token", token=user.token).json
    cluster.remember(shared["token"])
    assert cluster.post("/auth/revoke", {"user_id": user.id}).json == "OK"
    for place in (f"/files/{file_uuid}", f"/buckets/{bucket}"):
        assert cluster.get(f"{place}/permissions").json["count"] == 0
    check_refused(cluster.get(shared["url"], token=None, stranger=True), "gone")
    again = cluster.user_token(user.id)
    check_refused(cluster.get(f"/files/{file_uuid}", token=again), "forbidden")
    assert cluster.get("/auth/whoami", token=again).json["groups"]


def test_revocation_needs_one_known_user(cluster: Cluster) -> None:
    check_refused(cluster.post("/auth/revoke"), "invalid_request", "user_id")
    check_refused(cluster.post("/auth/revoke?user_id=a", {"user_id": "b"}), "invalid_request", "user_id")
    check_refused(cluster.post("/auth/revoke", {"user_id": "a b"}), "invalid_request", "user_id")
    check_refused(cluster.post("/auth/revoke", {"user_id": 7}), "invalid_request", "user_id")
    check_refused(cluster.post("/auth/revoke", {"user": "a"}), "invalid_request", "user")
    check_refused(cluster.post("/auth/revoke", {"user_id": unique("nobody")}), "not_found")


def test_everybody_may_ask_who_it_is(cluster: Cluster) -> None:
    user = person(cluster, roles=["r"], groups=["g"])
    answer = cluster.get("/auth/whoami", token=user.token)
    check_shape(answer.json, USER | {"token_expires_at": str})
    assert (answer.json["user_id"], answer.json["roles"], answer.json["groups"]) == (user.id, ["r"], ["g"])
    assert answer.headers["cache-control"] == "no-store"
    assert TIME.fullmatch(answer.json["created_at"])
