"""Permissions on buckets and files over HTTP: giving, listing, taking back."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.api.expectations import (
    FUTURE,
    NOBODY,
    OWN_PERMISSION,
    PERMISSION,
    check_refused,
    check_shape,
    create,
    grant,
    pages,
    person,
    unique,
)
from tests.cluster.harness import Answer, Cluster


@pytest.fixture(params=["files", "buckets"])
def place(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """The path of a new file or bucket of the admin's."""
    if request.param == "files":
        return f"/files/{create(cluster, '/project-files')['file_uuid']}"
    return f"/buckets/{cluster.post('/buckets', {'name': unique('b')}).json['bucket_id']}"


def body_for(principal_id: str, permission: str = "read", **fields: Any) -> dict[str, Any]:
    return {"permission": permission, "principal_id": principal_id, "principal_type": "user"} | fields


def test_grant_answers_with_the_entry(cluster: Cluster, place: str) -> None:
    for kind in ("user", "group", "role"):
        answer = cluster.post(f"{place}/permissions", body_for("alice@lab", "write", principal_type=kind))
        assert answer.status == 201
        check_shape(answer.json, PERMISSION)
        assert answer.headers["location"] == f"/api/v1{place}/permissions/{answer.json['id']}"
        assert answer.json | {"id": "", "created_at": ""} == {
            "id": "",
            "permission": "write",
            "principal_id": "alice@lab",
            "principal_type": kind,
            "granted_by": "admin",
            "created_at": "",
            "expires_at": "",
        }


def test_expiry_is_answered_in_utc(cluster: Cluster, place: str) -> None:
    answer = cluster.post(f"{place}/permissions", body_for("alice", expires_at=FUTURE))
    assert answer.json["expires_at"] == "2096-02-03T03:05:06.000Z"


def test_name_of_a_group_is_shorter_than_that_of_a_user(cluster: Cluster, place: str) -> None:
    assert cluster.post(f"{place}/permissions", body_for("x" * 128)).status == 201
    for kind in ("group", "role"):
        answer = cluster.post(f"{place}/permissions", body_for("x" * 65, principal_type=kind))
        check_refused(answer, "invalid_request", "principal_id")


def test_same_grant_again_keeps_the_entry_with_the_newer_expiry(cluster: Cluster, place: str) -> None:
    path = f"{place}/permissions"
    first = cluster.post(path, body_for("alice")).json
    again = cluster.post(path, body_for("alice", expires_at=FUTURE))
    assert again.status == 201
    assert again.json == first | {"expires_at": "2096-02-03T03:05:06.000Z"}
    assert cluster.post(path, body_for("alice")).json == first
    assert cluster.post(path, body_for("alice", "write")).json["id"] != first["id"]
    assert cluster.get(path).json["count"] == 2


def test_life_is_counted_from_the_time_of_the_cluster(cluster: Cluster, place: str) -> None:
    made = cluster.post(f"{place}/permissions", body_for("alice", ttl_seconds=3600)).json
    life = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert life == timedelta(hours=1)
    assert cluster.get(f"{place}/permissions").json["permissions"] == [made]
    both = cluster.post(f"{place}/permissions", body_for("alice", ttl_seconds=3600, expires_at=FUTURE))
    check_refused(both, "invalid_request", "ttl_seconds")


@pytest.mark.parametrize("kind", ["user", "group", "role"])
def test_principal_must_exist_if_that_is_wanted(cluster: Cluster, place: str, kind: str) -> None:
    """Without that it may be named before it exists; any caller may want it."""
    owner, name = person(cluster), unique("p")
    grant(cluster, place, "admin", owner.id)

    def granted(query: str, principal_id: str = name) -> Answer:
        body = body_for(principal_id, principal_type=kind)
        return cluster.post(f"{place}/permissions{query}", body, token=owner.token)

    check_refused(granted("?existing=1"), "not_found")
    check_refused(granted("?existing=yes"), "invalid_request", "existing")
    assert [each["principal_id"] for each in cluster.get(f"{place}/permissions").json["permissions"]] == [
        owner.id
    ]
    assert granted("").status == 201
    names = {} if kind == "user" else {f"{kind}s": [name]}
    user_id = name if kind == "user" else unique("u")
    assert cluster.request("PUT", f"/auth/users/{user_id}", body=names).status == 200
    assert granted("?existing=1").status == 201
    assert cluster.request("DELETE", f"/auth/users/{user_id}").status == 200
    check_refused(granted("?existing=1"), "not_found")
    if kind == "role":
        assert granted("?existing=1", "service").status == 201


def test_list_is_complete_and_in_order(cluster: Cluster, place: str) -> None:
    made = [grant(cluster, place, level, f"user{n}") for n, level in enumerate(["read", "admin", "write"])]
    answer = cluster.get(f"{place}/permissions")
    assert set(answer.json) == {"count", "permissions"}
    assert answer.json["count"] == 3
    assert [entry["id"] for entry in answer.json["permissions"]] == made
    for entry in answer.json["permissions"]:
        check_shape(entry, PERMISSION)
    assert pages(cluster, f"{place}/permissions", "permissions", limit=2) == answer.json["permissions"]


def test_withdrawn_permission_is_gone(cluster: Cluster, place: str) -> None:
    kept, gone = (grant(cluster, place, "read", name) for name in ("alice", "bob"))
    path = f"{place}/permissions/{gone}"
    answer = cluster.request("DELETE", path)
    assert (answer.status, answer.json) == (200, {"deleted": True, "id": gone})
    check_refused(cluster.request("DELETE", path), "not_found")
    assert [entry["id"] for entry in cluster.get(f"{place}/permissions").json["permissions"]] == [kept]


def test_permission_is_found_only_where_it_is(cluster: Cluster, place: str) -> None:
    elsewhere = f"/files/{create(cluster, '/vms')['file_uuid']}"
    entry = grant(cluster, place, "read", "alice")
    check_refused(cluster.request("DELETE", f"{elsewhere}/permissions/{entry}"), "not_found")
    for perm_id in (NOBODY, "x", "%00"):
        check_refused(cluster.request("DELETE", f"{place}/permissions/{perm_id}"), "not_found")
    assert cluster.get(f"{place}/permissions").json["count"] == 1


@pytest.mark.parametrize("kind", ["files", "buckets"])
def test_permissions_of_nothing_are_not_found(cluster: Cluster, kind: str) -> None:
    for target in (NOBODY, "x"):
        path = f"/{kind}/{target}/permissions"
        check_refused(cluster.get(path), "not_found")
        check_refused(cluster.post(path, body_for("alice")), "not_found")
        check_refused(cluster.request("DELETE", f"{path}/{NOBODY}"), "not_found")


def test_only_admins_of_the_place_give_list_and_take(cluster: Cluster, place: str) -> None:
    writer, chief = person(cluster), person(cluster)
    entry = grant(cluster, place, "write", writer.id)
    path = f"{place}/permissions"
    check_refused(cluster.get(path, token=writer.token), "forbidden")
    check_refused(cluster.post(path, body_for(writer.id, "admin"), token=writer.token), "forbidden")
    check_refused(cluster.request("DELETE", f"{path}/{entry}", token=writer.token), "forbidden")
    grant(cluster, place, "admin", chief.id)
    given = cluster.post(path, body_for("carol"), token=chief.token)
    assert (given.status, given.json["granted_by"]) == (201, chief.id)
    assert cluster.get(path, token=chief.token).json["count"] == 3
    assert cluster.request("DELETE", f"{path}/{entry}", token=chief.token).status == 200


def test_own_permissions_are_listed_with_what_they_are_on(cluster: Cluster, place: str) -> None:
    bob, carol = person(cluster), person(cluster, groups=[unique("team")])
    grant(cluster, place, "write", bob.id)
    (found,) = cluster.get("/permissions", token=bob.token).json["permissions"]
    check_shape(found, OWN_PERMISSION)
    is_file = place.startswith("/files/")
    target_id = place.rpartition("/")[2]
    assert (found["target"], found["file_uuid" if is_file else "bucket_id"]) == (
        place[1:].partition("s/")[0],
        target_id,
    )
    assert found["kind"] == ("project" if is_file else "")
    assert cluster.get("/permissions", token=carol.token).json["permissions"] == []
    assert found["id"] in [each["id"] for each in pages(cluster, "/permissions", "permissions", limit=3)]
