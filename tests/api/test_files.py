"""What files of every kind have in common: creation, filters and pages of lists, deletion."""

import hashlib

import pytest

from tests.api.expectations import (
    DEFAULT_BUCKET,
    KINDS,
    NOBODY,
    TIME,
    UPLOAD,
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

LISTS = {"/project-files": "project_files", "/vms": "vms", "/backups": "backups"}


def test_file_that_no_disk_has_room_for_is_refused_and_told_what_each_lacks(cluster: Cluster) -> None:
    body = {"filename": "large", "project_id": "lab", "size_bytes": 2**53 - 1}
    refused = cluster.post("/project-files", body)
    assert refused.status == 507
    for node in cluster.nodes:
        assert f"{node.id} with " in refused.json["details"]
    assert "bytes free, of which" in refused.json["details"]


@pytest.mark.parametrize("kind", KINDS)
def test_creation_answers_where_the_bytes_go(cluster: Cluster, kind: str) -> None:
    answer = cluster.post(kind, KINDS[kind])
    assert answer.status == 201
    check_shape(answer.json, UPLOAD)
    file_uuid = answer.json["file_uuid"]
    assert answer.headers["location"] == f"/api/v1{kind}/{file_uuid}"
    assert answer.json["upload_url"].endswith(f"/api/v1/files/{file_uuid}/content")
    assert answer.json["upload_url"].startswith("https://127.0.0.1:")
    assert answer.json["status"] == "pending"
    assert TIME.fullmatch(answer.json["expires_at"])
    record = cluster.get(answer.headers["location"]).json
    assert (record["bucket_id"], record["content_type"]) == (DEFAULT_BUCKET, "application/octet-stream")
    assert (record["blob_sha256"], record["size_bytes"], record["owner_id"]) == ("", 0, "admin")


@pytest.mark.parametrize("kind", KINDS)
def test_optional_fields_may_be_absent_null_or_empty(cluster: Cluster, kind: str) -> None:
    optional = ["bucket_id", "content_type", "retention_period", "size_bytes", "blob_sha256"]
    for nothing in (None, ""):
        made = create(cluster, kind, **dict.fromkeys(optional, nothing))
        assert made["status"] == "pending"


@pytest.mark.parametrize("kind", KINDS)
def test_list_has_what_the_caller_owns_oldest_first_and_admins_see_all(cluster: Cluster, kind: str) -> None:
    owner, other = person(cluster), person(cluster)
    made = [create(cluster, kind, owner.token)["file_uuid"] for _ in range(3)]
    answer = cluster.get(kind, token=owner.token)
    assert set(answer.json) == {"count", LISTS[kind]}
    assert answer.json["count"] == 3
    assert [record["file_uuid"] for record in answer.json[LISTS[kind]]] == made
    assert answer.json[LISTS[kind]][0] == cluster.get(f"{kind}/{made[0]}").json
    grant(cluster, f"/files/{made[0]}", "admin", other.id)
    assert cluster.get(kind, token=other.token).json == {"count": 0, LISTS[kind]: []}
    everything = [record["file_uuid"] for record in pages(cluster, kind, LISTS[kind], limit=1000)]
    assert [file_uuid for file_uuid in everything if file_uuid in made] == made


@pytest.mark.parametrize("kind", KINDS)
def test_list_is_narrowed_by_status_and_beginning_of_name(cluster: Cluster, kind: str) -> None:
    owner = person(cluster)
    pending = create(cluster, kind, owner.token, filename="b-1 %_é")["file_uuid"]
    stored = store(cluster, kind, b"x", owner.token, filename="b-2")
    create(cluster, kind, owner.token, filename="B-3")

    def found(query: str) -> list[str]:
        answer = cluster.get(f"{kind}?{query}", token=owner.token)
        assert answer.json["count"] == len(answer.json[LISTS[kind]])
        return [record["file_uuid"] for record in answer.json[LISTS[kind]]]

    assert found("filename=b-") == [pending, stored]
    assert found("filename=b-1%20%25_%C3%A9") == [pending]
    assert found("filename=%25") == []
    assert found("status=available") == [stored]
    assert found("status=available&filename=b-1") == []
    assert found("status=deleted") == []
    assert len(found("status=&filename=")) == 3
    assert found("filename=b-&without_filename=b-1") == [stored]


@pytest.mark.parametrize("kind", KINDS)
def test_pages_hold_every_element_once(cluster: Cluster, kind: str) -> None:
    owner = person(cluster)
    made = [create(cluster, kind, owner.token, filename=f"{n % 2}")["file_uuid"] for n in range(5)]
    for limit in (1, 2, 5, 6):
        listed = pages(cluster, kind, LISTS[kind], limit=limit, token=owner.token)
        assert [record["file_uuid"] for record in listed] == made
    odd = pages(cluster, f"{kind}?filename=1&status=pending", LISTS[kind], limit=1, token=owner.token)
    assert [record["file_uuid"] for record in odd] == made[1::2]


def test_any_text_may_be_asked_for(cluster: Cluster) -> None:
    owner = person(cluster)
    create(cluster, "/vms", owner.token)
    for text in ("%ED%A0%80", "%00", "%FF", "%27%3B--", "*", "_", "%F0%9F%98%80"):
        answer = cluster.get(f"/vms?filename={text}", token=owner.token)
        assert (answer.status, answer.json["vms"]) == (200, []), text
        assert cluster.get(f"/project-files?project_id={text}", token=owner.token).json["count"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_deleted_file_is_not_found_by_any_path(cluster: Cluster, kind: str) -> None:
    for place in (kind, "/files"):
        file_uuid = store(cluster, kind, b"content")
        answer = cluster.request("DELETE", f"{place}/{file_uuid}")
        assert (answer.status, answer.json) == (200, {"file_uuid": file_uuid, "status": "deleted"})
        for path in (f"{kind}/{file_uuid}", f"/files/{file_uuid}"):
            check_refused(cluster.get(path), "not_found")
        check_refused(cluster.request("DELETE", f"{place}/{file_uuid}"), "not_found")


@pytest.mark.parametrize("kind", KINDS)
def test_file_is_deleted_only_with_the_content_that_is_named(cluster: Cluster, kind: str) -> None:
    file_uuid = store(cluster, kind, b"content")
    known = cluster.request("HEAD", f"/files/{file_uuid}").headers
    empty = create(cluster, kind)["file_uuid"]
    tag, date = {"If-Match": '"other"'}, {"If-Unmodified-Since": "Mon, 01 Jan 2024 00:00:00 GMT"}
    for place in (f"{kind}/{file_uuid}", f"/files/{file_uuid}"):
        for named in (tag, date):
            check_refused(cluster.request("DELETE", place, headers=named), "precondition_failed")
    assert cluster.get(f"/files/{file_uuid}").body == b"content"
    check_refused(cluster.request("DELETE", f"/files/{empty}", headers=tag), "precondition_failed")
    assert cluster.request("DELETE", f"/files/{empty}", headers=date).status == 200
    matching = {"If-Match": known["etag"], "If-Unmodified-Since": known["last-modified"]}
    assert cluster.request("DELETE", f"{kind}/{file_uuid}", headers=matching).status == 200


@pytest.mark.parametrize("kind", KINDS)
def test_file_of_another_kind_is_not_found(cluster: Cluster, kind: str) -> None:
    others = [path for path in KINDS if path != kind]
    file_uuid = create(cluster, kind)["file_uuid"]
    for other in others:
        check_refused(cluster.get(f"{other}/{file_uuid}"), "not_found")
        check_refused(cluster.request("PATCH", f"{other}/{file_uuid}", body={}), "not_found")
        check_refused(cluster.request("DELETE", f"{other}/{file_uuid}"), "not_found")
    assert cluster.get(f"{kind}/{file_uuid}").status == 200


@pytest.mark.parametrize("kind", [*KINDS, "/files"])
def test_unknown_and_malformed_ids_are_not_found(cluster: Cluster, kind: str) -> None:
    for file_uuid in (NOBODY, NOBODY.upper(), "x", "%00", "..%2f..", NOBODY + "0"):
        check_refused(cluster.get(f"{kind}/{file_uuid}"), "not_found")
        check_refused(cluster.request("DELETE", f"{kind}/{file_uuid}"), "not_found")


@pytest.mark.parametrize("kind", KINDS)
def test_delete_needs_more_than_write(cluster: Cluster, kind: str) -> None:
    owner, writer = person(cluster), person(cluster)
    file_uuid = create(cluster, kind, owner.token, filename=unique("f"))["file_uuid"]
    grant(cluster, f"/files/{file_uuid}", "write", writer.id, token=owner.token)
    for place in (kind, "/files"):
        check_refused(cluster.request("DELETE", f"{place}/{file_uuid}", token=writer.token), "forbidden")
    assert cluster.request("PATCH", f"{kind}/{file_uuid}", body={}, token=writer.token).status == 200


def test_replicas_are_told_of_what_is_available(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/backups", b"replicated")
    answer = cluster.get(f"/files/{file_uuid}/replicas")
    assert answer.status == 200
    assert answer.json["blob_sha256"] == hashlib.sha256(b"replicated").hexdigest()
    assert answer.json["count"] == len(answer.json["nodes"]) >= 2
    assert set(answer.json["nodes"]) <= {node.id for node in cluster.nodes}
    begun = create(cluster, "/backups")["file_uuid"]
    check_refused(cluster.get(f"/files/{begun}/replicas"), "not_available")
    check_refused(cluster.get(f"/files/{NOBODY}/replicas"), "not_found")
