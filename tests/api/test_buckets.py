"""Buckets over HTTP, and the lists of what is in them."""

from typing import Any

from tests.api.expectations import (
    BUCKET,
    DEFAULT_BUCKET,
    FILE_SUMMARY,
    KINDS,
    NOBODY,
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


def bucket(cluster: Cluster, token: str = "", **fields: Any) -> Any:
    answer = cluster.post("/buckets", {"name": unique("bucket")} | fields, token=token)
    assert answer.status == 201, answer.body
    return answer.json


def test_new_bucket_belongs_to_its_maker(cluster: Cluster) -> None:
    owner, name = person(cluster), unique("course 7/ospf")
    answer = cluster.post("/buckets", {"name": name, "quota_bytes": 1000}, token=owner.token)
    assert answer.status == 201
    check_shape(answer.json, BUCKET)
    assert answer.headers["location"] == f"/api/v1/buckets/{answer.json['bucket_id']}"
    assert (answer.json["owner_id"], answer.json["name"]) == (owner.id, name)
    assert (answer.json["quota_bytes"], answer.json["used_bytes"], answer.json["file_count"]) == (1000, 0, 0)
    assert cluster.get(answer.headers["location"], token=owner.token).json == answer.json
    assert bucket(cluster, owner.token)["quota_bytes"] == 0


def test_name_is_required_and_its_own(cluster: Cluster) -> None:
    check_refused(cluster.post("/buckets", {}), "invalid_request", "name")
    first, second = bucket(cluster), bucket(cluster)
    check_refused(cluster.post("/buckets", {"name": first["name"]}), "conflict")
    renamed = {"name": first["name"]}
    check_refused(cluster.request("PATCH", f"/buckets/{second['bucket_id']}", body=renamed), "conflict")
    assert cluster.request("PATCH", f"/buckets/{first['bucket_id']}", body=renamed).status == 200


def test_update_changes_what_it_names_and_nothing_else(cluster: Cluster) -> None:
    known = bucket(cluster)
    path = f"/buckets/{known['bucket_id']}"
    for change in ({"name": unique("new")}, {"quota_bytes": 5}, {"quota_bytes": 0}, {}):
        answer = cluster.request("PATCH", path, body=change)
        assert answer.status == 200
        known |= change | {"updated_at": answer.json["updated_at"]}
        assert answer.json == known


def test_list_has_the_default_bucket_and_what_one_may_see(cluster: Cluster) -> None:
    owner, other = person(cluster), person(cluster, groups=[unique("group")])
    own = bucket(cluster, owner.token)["bucket_id"]
    granted = bucket(cluster)["bucket_id"]
    assert [each["bucket_id"] for each in cluster.get("/buckets", token=owner.token).json["buckets"]] == [
        DEFAULT_BUCKET,
        own,
    ]
    grant(cluster, f"/buckets/{granted}", "read", owner.id)
    answer = cluster.get("/buckets", token=owner.token)
    assert set(answer.json) == {"count", "buckets"}
    assert [each["bucket_id"] for each in answer.json["buckets"]] == [DEFAULT_BUCKET, own, granted]
    assert answer.json["count"] == 3
    check_shape(answer.json["buckets"][0], BUCKET)
    assert answer.json["buckets"][0]["name"] == "default"
    assert pages(cluster, "/buckets", "buckets", limit=1, token=owner.token) == answer.json["buckets"]
    assert cluster.get("/buckets", token=other.token).json["count"] == 1
    everything = [each["bucket_id"] for each in pages(cluster, "/buckets", "buckets", limit=1000)]
    assert {DEFAULT_BUCKET, own, granted} <= set(everything)


def test_bucket_of_another_user_is_forbidden_until_granted(cluster: Cluster) -> None:
    other = person(cluster)
    path = f"/buckets/{bucket(cluster)['bucket_id']}"
    for method, place in (
        ("GET", path),
        ("GET", f"{path}/files"),
        ("PATCH", path),
        ("DELETE", path),
    ):
        body: Any = {} if method == "PATCH" else None
        check_refused(cluster.request(method, place, token=other.token, body=body), "forbidden")
    grant(cluster, path, "read", other.id)
    assert cluster.get(path, token=other.token).status == 200
    assert cluster.get(f"{path}/files", token=other.token).status == 200
    check_refused(cluster.request("PATCH", path, token=other.token, body={}), "forbidden")


def test_unknown_and_malformed_ids_are_not_found(cluster: Cluster) -> None:
    for bucket_id in (NOBODY, "default", "%00"):
        for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/files")):
            body: Any = {} if method == "PATCH" else None
            answer = cluster.request(method, f"/buckets/{bucket_id}{path}", body=body)
            check_refused(answer, "not_found")


def test_bucket_goes_when_it_is_empty(cluster: Cluster) -> None:
    path = f"/buckets/{(made := bucket(cluster)['bucket_id'])}"
    file_uuid = store(cluster, "/vms", b"12345", bucket_id=made)
    record = cluster.get(path).json
    assert (record["used_bytes"], record["file_count"]) == (5, 1)
    check_refused(cluster.request("DELETE", path), "conflict")
    assert cluster.request("DELETE", f"/files/{file_uuid}").status == 200
    answer = cluster.request("DELETE", path)
    assert (answer.status, answer.json) == (200, {"deleted": True, "bucket_id": made})
    check_refused(cluster.get(path), "not_found")
    check_refused(cluster.request("DELETE", f"/buckets/{DEFAULT_BUCKET}"), "conflict")


def test_quota_holds_at_creation_and_at_the_end_of_an_upload(cluster: Cluster) -> None:
    made = bucket(cluster, quota_bytes=10)["bucket_id"]
    body = KINDS["/vms"] | {"bucket_id": made}
    check_refused(cluster.post("/vms", body | {"size_bytes": 11}), "payload_too_large")
    first, second = (create(cluster, "/vms", bucket_id=made) for _ in range(2))
    assert cluster.request("PUT", first["upload_url"], content=b"123456").status == 200
    check_refused(cluster.request("PUT", second["upload_url"], content=b"654321"), "payload_too_large")
    assert cluster.get(f"/vms/{second['file_uuid']}").json["size_bytes"] == 0
    assert cluster.get(f"/buckets/{made}").json["used_bytes"] == 6
    assert cluster.request("PUT", second["upload_url"], content=b"6543").status == 200


def test_listing_of_a_bucket_has_files_of_every_kind(cluster: Cluster) -> None:
    made = bucket(cluster)["bucket_id"]
    files = [create(cluster, kind, bucket_id=made)["file_uuid"] for kind in KINDS]
    stored = store(cluster, "/backups", b"x", bucket_id=made, filename="last")
    path = f"/buckets/{made}/files"
    answer = cluster.get(path)
    assert set(answer.json) == {"bucket_uuid", "count", "files"}
    assert (answer.json["bucket_uuid"], answer.json["count"]) == (made, 4)
    assert [each["file_uuid"] for each in answer.json["files"]] == [*files, stored]
    for each in answer.json["files"]:
        check_shape(each, FILE_SUMMARY)
    assert pages(cluster, path, "files", limit=1) == answer.json["files"]
    for query in ("status=available", "filename=las"):
        listed = cluster.get(f"{path}?{query}").json
        assert [each["file_uuid"] for each in listed["files"]] == [stored]
    check_refused(cluster.get(f"{path}?status=x"), "invalid_request", "status")


def test_default_bucket_shows_everybody_their_own_and_what_they_were_granted(cluster: Cluster) -> None:
    owner, group = person(cluster), unique("group")
    friend = person(cluster, groups=[group])
    path = f"/buckets/{DEFAULT_BUCKET}/files"
    first, second, third = (create(cluster, kind, owner.token)["file_uuid"] for kind in KINDS)
    own = create(cluster, "/vms", friend.token)["file_uuid"]
    grant(cluster, f"/files/{third}", "read", friend.id, token=owner.token)
    grant(cluster, f"/files/{first}", "write", group, kind="group", token=owner.token)
    grant(cluster, f"/files/{first}", "read", friend.id, token=owner.token)

    def listed(token: str, limit: int) -> list[str]:
        return [each["file_uuid"] for each in pages(cluster, path, "files", limit=limit, token=token)]

    for limit in (1, 2, 1000):
        assert listed(owner.token, limit) == [first, second, third]
        assert listed(friend.token, limit) == [first, third, own]
    assert cluster.get(f"/buckets/{DEFAULT_BUCKET}", token=friend.token).json["name"] == "default"
