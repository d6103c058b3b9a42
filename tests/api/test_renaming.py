"""Another name and content type for a file, over HTTP: in every record, list and download, on every node."""

from typing import Any

import pytest

from tests.api.expectations import DEFAULT_BUCKET, KINDS, check_refused, create, grant, person, store, unique
from tests.cluster.harness import Answer, Cluster

every_kind = pytest.mark.parametrize("kind", KINDS)


def rename(cluster: Cluster, path: str, token: str = "", headers: Any = None, **fields: Any) -> Answer:
    return cluster.request("PATCH", path, body=fields, token=token, headers=headers or {})


@every_kind
def test_new_name_and_type_are_everywhere(cluster: Cluster, kind: str) -> None:
    file_uuid, name = store(cluster, kind, b"content"), unique("näme")
    link = cluster.post(f"/files/{file_uuid}/public-token").json
    cluster.remember(link["token"])
    path = f"{kind}/{file_uuid}"
    for node in cluster.nodes:  # each may keep what it has learnt, and be hot
        for _ in range(3):
            cluster.get(f"/files/{file_uuid}", node=node)
    before = cluster.get(path).json
    changed = rename(cluster, path, filename=name, content_type="text/x-new; charset=utf-8")
    assert changed.status == 200
    new = {"filename": name, "content_type": "text/x-new; charset=utf-8"}
    assert changed.json == before | new | {"updated_at": changed.json["updated_at"]}
    assert changed.json["updated_at"] > before["updated_at"]
    for node in cluster.nodes:
        assert cluster.get(path, node=node).json == changed.json
        for where, token in ((f"/files/{file_uuid}", ""), (link["url"], None)):
            for method, headers in (("HEAD", {}), ("GET", {}), ("GET", {"Range": "bytes=0-1"})):
                answer = cluster.request(method, where, node=node, token=token, headers=headers)
                assert answer.headers["content-type"] == new["content_type"]
                assert "n%C3%A4me" in answer.headers["content-disposition"]
                assert answer.headers["etag"] == f'"{before["blob_sha256"]}"'
    listed = cluster.get(f"{kind}?filename={_quoted(name)}").json
    assert [found for found in listed.values() if isinstance(found, list)] == [[changed.json]]
    in_bucket = cluster.get(f"/buckets/{DEFAULT_BUCKET}/files?filename={_quoted(name)}").json["files"]
    assert [file["file_uuid"] for file in in_bucket] == [file_uuid]


def _quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


def test_copy_of_a_client_is_told_the_new_name(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", b"content")
    tag = cluster.get(f"/files/{file_uuid}").headers["etag"]
    rename(cluster, f"/vms/{file_uuid}", filename="other.raw", content_type="application/x-raw")
    answer = cluster.get(f"/files/{file_uuid}", headers={"If-None-Match": tag})
    assert (answer.status, answer.body) == (304, b"")
    assert 'filename="other.raw"' in answer.headers["content-disposition"]
    assert answer.headers["content-type"] == "application/x-raw"


@every_kind
def test_file_may_be_renamed_while_it_is_uploaded(cluster: Cluster, kind: str) -> None:
    made = create(cluster, kind)
    path = f"{kind}/{made['file_uuid']}"
    assert rename(cluster, path, filename="later.bin").json["status"] == "pending"
    assert cluster.request("PUT", made["upload_url"], content=b"x").status == 200
    record = cluster.get(path).json
    assert (record["filename"], record["status"]) == ("later.bin", "available")


@every_kind
def test_nothing_named_changes_nothing(cluster: Cluster, kind: str) -> None:
    file_uuid = create(cluster, kind)["file_uuid"]
    before = cluster.get(f"{kind}/{file_uuid}").json
    for nothing in (None, ""):
        answer = rename(cluster, f"{kind}/{file_uuid}", filename=nothing, content_type=nothing)
        assert (answer.status, answer.json) == (200, before)


def test_renaming_needs_write_and_the_state_that_is_named(cluster: Cluster) -> None:
    owner, reader = person(cluster), person(cluster)
    file_uuid = create(cluster, "/vms", owner.token)["file_uuid"]
    path = f"/vms/{file_uuid}"
    grant(cluster, f"/files/{file_uuid}", "read", reader.id, token=owner.token)
    check_refused(rename(cluster, path, reader.token, filename="mine"), "forbidden")
    tag = {"If-Match": cluster.get(path).headers["etag"]}
    assert rename(cluster, path, owner.token, headers=tag, filename="first").status == 200
    check_refused(
        rename(cluster, path, owner.token, headers=tag, filename="second"), "precondition_failed", "If-Match"
    )
    assert cluster.get(path).json["filename"] == "first"
