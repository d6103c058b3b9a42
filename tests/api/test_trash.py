"""The trash and protection over HTTP: what a deletion answers, what comes back, and who may do what."""

import pytest

from tests.api.expectations import DEFAULT_BUCKET, KINDS, check_refused, person, store
from tests.cluster.harness import Answer, Cluster

every_kind = pytest.mark.parametrize("kind", KINDS)


def delete(cluster: Cluster, path: str, query: str = "", *, token: str = "") -> Answer:
    return cluster.request("DELETE", f"{path}{query}", token=token)


def trashed(cluster: Cluster, query: str = "", *, token: str = "") -> list[str]:
    found, cursor = list[str](), ""
    while True:
        answer = cluster.get(f"/trash?limit=500{query}{cursor}", token=token)
        assert answer.status == 200, answer.body
        found += [file["file_uuid"] for file in answer.json["files"]]
        if "next_cursor" not in answer.json:
            return found
        cursor = f"&cursor={answer.json['next_cursor']}"


@every_kind
def test_deleted_file_comes_back_as_it_was(cluster: Cluster, kind: str) -> None:
    file_uuid = store(cluster, kind, b"content", path="lab/r1")
    path = f"{kind}/{file_uuid}"
    before = cluster.get(path)
    answer = delete(cluster, path)
    assert (answer.status, answer.json) == (200, {"file_uuid": file_uuid, "status": "deleted"})
    for gone in (path, f"/files/{file_uuid}"):
        check_refused(cluster.get(gone), "not_found")
    (listed,) = [f for f in cluster.get("/trash").json["files"] if f["file_uuid"] == file_uuid]
    assert (listed["path"], listed["size_bytes"], listed["deleted_by"]) == ("lab/r1", 7, "admin")
    restored = cluster.post(f"/trash/{file_uuid}/restore")
    assert restored.json == {
        "file_uuid": file_uuid,
        "kind": listed["kind"],
        "bucket_id": DEFAULT_BUCKET,
        "parents": [],
    }
    after = cluster.get(path)
    assert (after.json, after.headers["etag"]) == (before.json, before.headers["etag"])
    for node in cluster.nodes:
        assert cluster.get(f"/files/{file_uuid}", node=node).body == b"content"
    check_refused(cluster.post(f"/trash/{file_uuid}/restore"), "not_found")


def test_deletion_for_good_leaves_nothing_to_restore(cluster: Cluster) -> None:
    first, second = store(cluster, "/vms", b"1"), store(cluster, "/vms", b"2")
    assert delete(cluster, f"/files/{first}", "?now=1").status == 200
    assert delete(cluster, f"/vms/{second}").status == 200
    assert first not in trashed(cluster)
    answer = delete(cluster, f"/trash/{second}")
    assert answer.json == {"file_uuid": second, "deleted": True}
    for file_uuid in (first, second):
        check_refused(cluster.post(f"/trash/{file_uuid}/restore"), "not_found")
    check_refused(delete(cluster, f"/vms/{second}", "?now=yes"), "invalid_request")


def test_others_neither_see_nor_restore_it(cluster: Cluster) -> None:
    owner, other = person(cluster), person(cluster)
    file_uuid = store(cluster, "/vms", b"x", token=owner.token)
    assert delete(cluster, f"/vms/{file_uuid}", token=owner.token).status == 200
    assert trashed(cluster, token=owner.token) == [file_uuid]
    assert trashed(cluster, f"&bucket_id={DEFAULT_BUCKET}", token=other.token) == []
    for answer in (
        cluster.post(f"/trash/{file_uuid}/restore", token=other.token),
        delete(cluster, f"/trash/{file_uuid}", token=other.token),
    ):
        check_refused(answer, "forbidden")
    assert cluster.post(f"/trash/{file_uuid}/restore", token=owner.token).status == 200


def test_chain_comes_back_together_and_to_another_bucket(cluster: Cluster) -> None:
    full = store(cluster, "/backups", b"full")
    child = store(cluster, "/backups", b"child", backup_type="incremental", parent_backup_uuid=full)
    check_refused(delete(cluster, f"/backups/{full}"), "conflict")
    assert [delete(cluster, f"/backups/{each}").status for each in (child, full)] == [200, 200]
    bucket_id = cluster.post("/buckets", {"name": f"b {child}"}).json["bucket_id"]
    answer = cluster.post(f"/trash/{child}/restore?bucket_id={bucket_id}")
    assert (answer.status, answer.json["parents"], answer.json["bucket_id"]) == (200, [full], bucket_id)
    assert cluster.get(f"/backups/{child}").json["parent_backup_uuid"] == full
    check_refused(cluster.post(f"/trash/{child}/restore?bucket_id=x"), "invalid_request")


def test_bucket_says_how_long_and_how_much(cluster: Cluster) -> None:
    created = cluster.post("/buckets", {"name": f"days {id(cluster)}"}).json
    path = f"/buckets/{created['bucket_id']}"
    assert "trash_days" not in created
    changed = cluster.request("PATCH", path, body={"trash_days": 0, "protect_days": 3})
    assert (changed.json["trash_days"], changed.json["protect_days"]) == (0, 3)
    audited = [
        entry["outcome"]
        for node in cluster.nodes
        for entry in cluster.get(
            f"/audit?action=update_bucket&target={created['bucket_id']}", node=node
        ).json["entries"]
    ]
    assert audited == ["ok"]
    file_uuid = store(cluster, "/vms", b"x", bucket_id=created["bucket_id"])
    assert cluster.get(f"/vms/{file_uuid}").json["protected_until"]
    check_refused(delete(cluster, f"/vms/{file_uuid}"), "protected")
    exempt = store(cluster, "/vms", b"x", bucket_id=created["bucket_id"], protect_days=0)
    assert delete(cluster, f"/vms/{exempt}").status == 200
    assert exempt not in trashed(cluster)
    for body in ({"trash_days": 91}, {"protect_days": 3661}, {"trash_days": -1}):
        check_refused(cluster.request("PATCH", path, body=body), "invalid_request")


def test_protected_file_is_only_deleted_by_an_admin_that_says_so(cluster: Cluster) -> None:
    owner = person(cluster)
    file_uuid = store(cluster, "/project-files", b"x", token=owner.token)
    path, protection = f"/project-files/{file_uuid}", f"/files/{file_uuid}/protection"
    first = cluster.post(protection, {"protect_days": 2}, token=owner.token)
    assert first.status == 200
    assert cluster.get(path).json["protected_until"] == first.json["protected_until"]
    for body in ({"protect_days": 1}, {}, {"protect_days": 1, "protected_until": "2096-02-03T04:05:06Z"}):
        check_refused(cluster.post(protection, body, token=owner.token), "invalid_request")
    for query in ("", "?now=1"):
        check_refused(delete(cluster, path, query, token=owner.token), "protected")
        check_refused(delete(cluster, path, query), "protected")
    override = "?override_protection=1"
    check_refused(delete(cluster, path, override, token=owner.token), "forbidden")
    assert delete(cluster, path, override).status == 200
    audited = [
        entry
        for node in cluster.nodes
        for entry in cluster.get(f"/audit?target={file_uuid}&action=override_protection", node=node).json[
            "entries"
        ]
    ]
    assert sorted(entry["outcome"] for entry in audited) == ["forbidden", "ok"]
    counted = sum(
        "filestore_protection_overrides_total 1" in cluster.get("/metrics", node=node).body.decode()
        for node in cluster.nodes
    )
    assert counted == 1
    assert cluster.post(f"/trash/{file_uuid}/restore", token=owner.token).status == 200
    check_refused(delete(cluster, path, token=owner.token), "protected")


def test_upload_says_how_long_its_file_is_protected(cluster: Cluster) -> None:
    created = cluster.post("/vms", KINDS["/vms"] | {"protect_days": 1})
    assert created.status == 201, created.body
    path = f"/vms/{created.json['file_uuid']}"
    assert cluster.get(path).json["protected_until"]
    assert delete(cluster, path).status == 200  # it has no content yet
    check_refused(cluster.post("/vms", KINDS["/vms"] | {"protect_days": 3661}), "invalid_request")
