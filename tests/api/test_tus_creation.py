"""Creation by tus over HTTP: headers say what the body would, and are held to the same."""

import base64
from typing import Any

import pytest

from tests.api.expectations import KINDS, UPLOAD, check_refused, check_shape, grant, person, unique
from tests.cluster.harness import Answer, Cluster

CONTENT = b"0123456789" * 10
TUS = {"Tus-Resumable": "1.0.0"}
PATCH_TYPE = "application/offset+octet-stream"

every_kind = pytest.mark.parametrize("kind", KINDS)


def metadata(fields: dict[str, str]) -> dict[str, str]:
    pairs = (f"{name} {base64.b64encode(text.encode()).decode()}" for name, text in fields.items())
    return {"Upload-Metadata": ",".join(pairs)} if fields else {}


def begin(cluster: Cluster, kind: str, fields: dict[str, str], token: str = "", **options: Any) -> Answer:
    """A creation of CONTENT; `headers` in place of those that it has."""
    headers = TUS | {"Upload-Length": str(len(CONTENT))} | metadata(fields) | options.pop("headers", {})
    sent = {name: value for name, value in headers.items() if value is not None}
    return cluster.post(kind, token=token, headers=sent, **options)


def send(cluster: Cluster, url: str, token: str = "") -> Answer:
    headers = TUS | {"Upload-Offset": "0", "Content-Type": PATCH_TYPE}
    return cluster.request("PATCH", url, content=CONTENT, headers=headers, token=token)


@every_kind
def test_upload_is_created_and_goes_to_its_location(cluster: Cluster, kind: str) -> None:
    answer = begin(cluster, kind, KINDS[kind] | {"filename": "ü.bin", "filetype": "application/x-lab"})
    assert answer.status == 201
    check_shape(answer.json, UPLOAD)
    assert answer.headers["location"] == answer.json["upload_url"]
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert answer.headers["upload-expires"].endswith("GMT")
    url = answer.headers["location"]
    known = cluster.request("HEAD", url, headers=TUS)
    assert (known.headers["upload-offset"], known.headers["upload-length"]) == ("0", str(len(CONTENT)))
    assert send(cluster, url).status == 204
    record = cluster.get(f"{kind}/{answer.json['file_uuid']}").json
    assert (record["filename"], record["content_type"]) == ("ü.bin", "application/x-lab")
    assert (record["status"], record["size_bytes"]) == ("available", len(CONTENT))


def test_fields_of_every_type_are_taken(cluster: Cluster) -> None:
    bucket_id = cluster.post("/buckets", {"name": unique("b")}).json["bucket_id"]
    fields = {
        "filename": "lab.zip",
        "project_id": "5",
        "project_name": "true",
        "compression": "zstd",
        "include_images": "true",
        "is_read_only": "false",
        "retention_period": "7",
        "bucket_id": bucket_id.upper(),
        "version_tag": "",
    }
    answer = begin(cluster, "/project-files", fields)
    record = cluster.get(f"/project-files/{answer.json['file_uuid']}").json
    expected = fields | {
        "include_images": True,
        "is_read_only": False,
        "retention_period": 7,
        "bucket_id": bucket_id,
    }
    assert {name: record[name] for name in fields} == expected
    vm = begin(cluster, "/vms", KINDS["/vms"] | {"vcpus": "4", "ram_mb": "1024"})
    record = cluster.get(f"/vms/{vm.json['file_uuid']}").json
    assert (record["vcpus"], record["ram_mb"]) == (4, 1024)


def test_metadata_of_browsers_are_understood(cluster: Cluster) -> None:
    told = {"relativePath": "null", "name": "b.qcow2", "type": "application/x-qcow2"}
    needed = {"virt_type": "qemu", "format": "qcow2"}
    for extra in ({}, {"filename": "c.qcow2", "filetype": "text/plain"}):
        answer = begin(cluster, "/vms", told | needed | extra)
        record = cluster.get(f"/vms/{answer.json['file_uuid']}").json
        assert record["filename"] == extra.get("filename", "b.qcow2")
        assert record["content_type"] == extra.get("filetype", "application/x-qcow2")


def test_names_that_are_no_fields_have_no_effect_and_padding_may_be_missing(cluster: Cluster) -> None:
    others = {"relativePath": "a/b", "caption": "Lab", "owner_id": "alice", "file_uuid": "x", "md5": "0" * 32}
    told = metadata(KINDS["/vms"] | others)
    told["Upload-Metadata"] = told["Upload-Metadata"].replace("=", "")
    answer = begin(cluster, "/vms", {}, headers=told)
    assert answer.status == 201
    record = cluster.get(f"/vms/{answer.json['file_uuid']}").json
    assert {name: record[name] for name in KINDS["/vms"]} == KINDS["/vms"]
    assert record["owner_id"] == "admin"


def test_length_may_come_later(cluster: Cluster) -> None:
    answer = begin(
        cluster, "/vms", KINDS["/vms"], headers={"Upload-Length": None, "Upload-Defer-Length": "1"}
    )
    url = answer.headers["location"]
    assert cluster.request("HEAD", url, headers=TUS).headers["upload-defer-length"] == "1"
    headers = TUS | {"Upload-Offset": "0", "Content-Type": PATCH_TYPE, "Upload-Length": str(len(CONTENT))}
    assert cluster.request("PATCH", url, content=CONTENT, headers=headers).status == 204
    assert cluster.get(f"/vms/{answer.json['file_uuid']}").json["status"] == "available"


def test_empty_upload_is_created(cluster: Cluster) -> None:
    for member in cluster.members:
        answer = begin(cluster, f"{member.url}/api/v1/vms", KINDS["/vms"], headers={"Upload-Length": "0"})
        assert answer.json["status"] == ("available" if member.role == "node" else "pending")
        url = answer.headers["location"]
        assert cluster.request("HEAD", url, headers=TUS).headers["upload-offset"] == "0"
        assert cluster.get(f"/vms/{answer.json['file_uuid']}").json["status"] == "available"


@every_kind
def test_every_member_creates(cluster: Cluster, kind: str) -> None:
    for member in cluster.members:
        answer = begin(cluster, f"{member.url}/api/v1{kind}", KINDS[kind])
        assert answer.status == 201
        assert send(cluster, answer.headers["location"]).status == 204


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("filename", "a/b"),
        ("filename", "a\nb"),
        ("filename", "x" * 256),
        ("content_type", "zip"),
        ("filetype", "zip"),
        ("bucket_id", "x"),
        ("retention_period", "0"),
        ("retention_period", "1.5"),
        ("retention_period", "\u0667"),
        ("retention_period", "9" * 30),
        ("vcpus", "many"),
        ("vcpus", "true"),
        ("virt_type", "xen"),
        ("blob_sha256", "x"),
    ],
)
def test_bad_field_is_refused_by_its_name(cluster: Cluster, name: str, text: str) -> None:
    answer = begin(cluster, "/vms", KINDS["/vms"] | {name: text})
    check_refused(answer, "invalid_request", {"filetype": "content_type"}.get(name, name))
    assert answer.headers["tus-resumable"] == "1.0.0"


@pytest.mark.parametrize("name", ["is_compressed", "is_encrypted"])
@pytest.mark.parametrize("text", ["True", "1", "yes", "null"])
def test_flag_is_true_or_false(cluster: Cluster, name: str, text: str) -> None:
    check_refused(begin(cluster, "/backups", KINDS["/backups"] | {name: text}), "invalid_request", name)


@every_kind
def test_what_a_kind_needs_is_needed_here_too(cluster: Cluster, kind: str) -> None:
    for name in KINDS[kind]:
        fields = {each: text for each, text in KINDS[kind].items() if each != name}
        check_refused(begin(cluster, kind, fields), "invalid_request", name)


@pytest.mark.parametrize(
    ("headers", "code", "field"),
    [
        ({"Tus-Resumable": "0.2.2"}, "precondition_failed", "Tus-Resumable"),
        ({"Tus-Resumable": ""}, "precondition_failed", "Tus-Resumable"),
        ({"Upload-Length": None}, "invalid_request", "Upload-Length"),
        ({"Upload-Length": "-1"}, "invalid_request", "Upload-Length"),
        ({"Upload-Length": "1e3"}, "invalid_request", "Upload-Length"),
        ({"Upload-Length": str(2**53)}, "payload_too_large", "Upload-Length"),
        ({"Upload-Length": "9" * 5000}, "payload_too_large", "Upload-Length"),
        ({"Upload-Defer-Length": "1"}, "invalid_request", "Upload-Length"),
        ({"Upload-Length": None, "Upload-Defer-Length": "2"}, "invalid_request", "Upload-Defer-Length"),
        ({"Upload-Metadata": "filename"}, "invalid_request", "filename"),
        ({"Upload-Metadata": "filename !"}, "invalid_request", "Upload-Metadata"),
        ({"Upload-Metadata": "filename eA==,filename eA=="}, "invalid_request", "Upload-Metadata"),
        ({"Upload-Metadata": "filename eA==,size_bytes NQ=="}, "invalid_request", "Upload-Metadata"),
        ({"Upload-Concat": "whole"}, "invalid_request", "Upload-Concat"),
        ({"Upload-Concat": "final;"}, "invalid_request", "Upload-Concat"),
        ({"Upload-Concat": "final;/a /b"}, "invalid_request", "Upload-Concat"),
    ],
)
def test_bad_header_is_refused_by_its_name(
    cluster: Cluster, headers: dict[str, Any], code: str, field: str
) -> None:
    answer = begin(cluster, "/vms", KINDS["/vms"], headers=headers)
    check_refused(answer, code, field)
    assert answer.headers["tus-resumable"] == "1.0.0"
    if field == "Tus-Resumable":
        assert answer.headers["tus-version"] == "1.0.0"


@every_kind
def test_creation_in_json_stays_one_whatever_its_headers_are(cluster: Cluster, kind: str) -> None:
    for headers in (TUS, TUS | {"Upload-Length": "5"}, {"Tus-Resumable": "9"}):
        answer = cluster.post(kind, KINDS[kind], headers=headers)
        assert answer.status == 201
        assert answer.headers["location"] == f"/api/v1{kind}/{answer.json['file_uuid']}"
        assert cluster.get(f"{kind}/{answer.json['file_uuid']}").json["size_bytes"] == 0


def test_creation_needs_what_it_needs_in_json(cluster: Cluster) -> None:
    user = person(cluster)
    bucket_id = cluster.post("/buckets", {"name": unique("b"), "quota_bytes": 10}).json["bucket_id"]
    inside = KINDS["/vms"] | {"bucket_id": bucket_id}
    check_refused(begin(cluster, "/vms", inside, user.token), "forbidden")
    grant(cluster, f"/buckets/{bucket_id}", "write", user.id)
    check_refused(begin(cluster, "/vms", inside, user.token), "payload_too_large")
    refused = cluster.post("/vms", token=None, headers=TUS | {"Upload-Length": "1"}, stranger=True)
    check_refused(refused, "unauthorized")


@every_kind
def test_what_is_spoken_is_told_without_a_credential(cluster: Cluster, kind: str) -> None:
    for member in cluster.members:
        answer = cluster.request("OPTIONS", f"{member.url}/api/v1{kind}", token=None)
        assert (answer.status, answer.body) == (204, b"")
        assert "creation" in answer.headers["tus-extension"].split(",")
        assert answer.headers["tus-version"] == answer.headers["tus-resumable"] == "1.0.0"
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"
