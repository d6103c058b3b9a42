"""Creation by tus with the bytes of the file (tus creation-with-upload), of all of it or of its beginning."""

import base64
import hashlib
import http.client
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.documentation import DOCUMENT_PATH
from tests.api.expectations import KINDS, UPLOAD, check_refused, check_shape, grant, person, unique
from tests.api.test_tus_creation import PATCH_TYPE, TUS, begin
from tests.cluster.harness import Answer, Cluster

CONTENT = bytes(range(256)) * 20
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WRONG = bytes(len(CONTENT))
RECORD = {"Prefer": "return=representation"}

every_kind = pytest.mark.parametrize("kind", KINDS)


def base64_of(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def repr_digest(content: bytes) -> str:
    return f"sha-256=:{base64_of(hashlib.sha256(content).digest())}:"


def create(
    cluster: Cluster,
    content: bytes | Iterator[bytes],
    kind: str = "/vms",
    *,
    fields: Mapping[str, str] | None = None,
    token: str = "",
    headers: Mapping[str, str] | None = None,
    **named: str | None,
) -> Answer:
    """One request that brings these bytes of CONTENT, or all of it."""
    told: dict[str, str | None] = {"Content-Type": PATCH_TYPE, "Upload-Length": str(len(CONTENT))}
    told |= {name.replace("_", "-"): value for name, value in named.items()} | dict(headers or {})
    said = KINDS[kind.removeprefix("https://").partition("/api/v1")[2] or kind] | dict(fields or {})
    return begin(cluster, kind, said, token, headers=told, content=content)


def files_named(cluster: Cluster, name: str, kind: str = "vms") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get(f"/{kind}?filename={name}").json[kind.replace("-", "_")]
    return found


def patch(cluster: Cluster, url: str, offset: int, content: bytes, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    told = TUS | {"Upload-Offset": str(offset), "Content-Type": PATCH_TYPE} | named
    return cluster.request("PATCH", url, content=content, headers=told)


def content_of(cluster: Cluster, created: Answer) -> bytes:
    answer = cluster.get(f"/files/{created.json['file_uuid']}")
    assert answer.status == 200, answer.body
    return answer.body


@every_kind
def test_whole_file_is_available_with_the_answer(cluster: Cluster, kind: str) -> None:
    for node in cluster.nodes:
        answer = create(cluster, CONTENT, f"{node.url}/api/v1{kind}", Repr_Digest=repr_digest(CONTENT))
        assert answer.status == 201, answer.body
        check_shape(answer.json, UPLOAD)
        assert (answer.json["status"], answer.json["expires_at"]) == ("available", "")
        assert answer.headers["upload-offset"] == str(len(CONTENT))
        assert answer.headers["location"] == answer.json["upload_url"]
        assert answer.headers["tus-resumable"] == "1.0.0"
        assert "upload-expires" not in answer.headers
        record = cluster.get(f"{kind}/{answer.json['file_uuid']}").json
        assert (record["status"], record["blob_sha256"]) == ("available", SHA256)
        assert content_of(cluster, answer) == CONTENT
        head = cluster.request("HEAD", answer.headers["location"], headers=TUS)
        assert head.headers["upload-offset"] == head.headers["upload-length"] == str(len(CONTENT))


def test_answer_to_a_whole_file_is_as_the_document_says(cluster: Cluster) -> None:
    document = cluster.get(DOCUMENT_PATH, token=None).json
    described = document["components"]["schemas"]["UploadInitialisation"]["properties"]["expires_at"]
    for content in (CONTENT, CONTENT[:1000]):
        expires_at = create(cluster, content).json["expires_at"]
        assert bool(expires_at) == (content != CONTENT)
        assert re.fullmatch(described["pattern"], expires_at)


@every_kind
def test_record_is_the_answer_where_that_is_preferred(cluster: Cluster, kind: str) -> None:
    answer = create(cluster, CONTENT, kind, Prefer="wait=5, Return=Representation")
    assert answer.headers["preference-applied"] == "return=representation"
    path = answer.headers["content-location"]
    got = cluster.get(path)
    assert (answer.status, answer.json, answer.headers["etag"]) == (201, got.json, got.headers["etag"])
    assert answer.headers["location"].endswith(f"/files/{got.json['file_uuid']}/content")
    assert answer.headers["upload-offset"] == str(len(CONTENT))
    part = create(cluster, CONTENT[:9], kind, headers=RECORD)
    assert "preference-applied" not in part.headers
    check_shape(part.json, UPLOAD)


@pytest.mark.parametrize("taken_bytes", [1, 4000])
def test_beginning_is_taken_and_the_rest_comes_by_patch(cluster: Cluster, taken_bytes: int) -> None:
    answer = create(cluster, CONTENT[:taken_bytes])
    assert (answer.status, answer.headers["upload-offset"]) == (201, str(taken_bytes))
    assert answer.json["status"] == "uploading"
    assert answer.headers["upload-expires"].endswith("GMT")
    url = answer.headers["location"]
    assert cluster.request("HEAD", url, headers=TUS).headers["upload-offset"] == str(taken_bytes)
    assert patch(cluster, url, taken_bytes, CONTENT[taken_bytes:]).status == 204
    assert content_of(cluster, answer) == CONTENT


def test_chunked_body_is_taken(cluster: Cluster) -> None:
    for stop in (len(CONTENT), 1000):
        answer = create(cluster, iter([CONTENT[:500], CONTENT[500:stop]]))
        assert (answer.status, answer.headers["upload-offset"]) == (201, str(stop))
        assert answer.json["status"] == ("available" if stop == len(CONTENT) else "uploading")


def test_empty_file_is_available_with_the_answer(cluster: Cluster) -> None:
    for content_type in (PATCH_TYPE, None):
        answer = create(cluster, b"", Upload_Length="0", Content_Type=content_type)
        assert (answer.status, answer.headers["upload-offset"]) == (201, "0")
        assert answer.json["status"] == "available"
        assert content_of(cluster, answer) == b""


def test_creation_without_bytes_tells_its_offset(cluster: Cluster) -> None:
    answer = create(cluster, b"")
    assert (answer.status, answer.headers["upload-offset"]) == (201, "0")
    assert answer.json["status"] == "pending"


def test_length_may_come_with_a_later_piece(cluster: Cluster) -> None:
    answer = create(cluster, CONTENT[:10], Upload_Length=None, Upload_Defer_Length="1")
    assert (answer.status, answer.headers["upload-offset"]) == (201, "10")
    url = answer.headers["location"]
    assert cluster.request("HEAD", url, headers=TUS).headers["upload-defer-length"] == "1"
    last = patch(cluster, url, 10, CONTENT[10:], Upload_Length=str(len(CONTENT)))
    assert last.status == 204
    assert content_of(cluster, answer) == CONTENT


def test_part_of_a_file_comes_with_its_creation(cluster: Cluster) -> None:
    urls = []
    for part in (CONTENT[:3000], CONTENT[3000:]):
        answer = create(cluster, part, Upload_Length=str(len(part)), Upload_Concat="partial", headers=RECORD)
        assert (answer.status, answer.headers["upload-concat"]) == (201, "partial")
        assert answer.headers["upload-offset"] == str(len(part))
        urls.append(answer.headers["location"])
    began = create(cluster, CONTENT[:10], Upload_Concat="partial")
    assert (began.status, began.headers["upload-offset"]) == (201, "10")
    final = "final;" + " ".join(urls)
    refused = create(cluster, CONTENT, Upload_Length=None, Upload_Concat=final)
    check_refused(refused, "forbidden")
    made = create(cluster, b"", Upload_Length=None, Upload_Concat=final, Content_Type=None)
    assert made.status == 201, made.body
    assert content_of(cluster, made) == CONTENT


CHECKSUMS: dict[str, tuple[str, Callable[[bytes], str]]] = {
    "sha256": ("Upload-Checksum", lambda content: f"sha256 {base64_of(hashlib.sha256(content).digest())}"),
    "sha1": ("Upload-Checksum", lambda content: f"sha1 {base64_of(hashlib.sha1(content).digest())}"),
    "md5": ("Upload-Checksum", lambda content: f"md5 {base64_of(hashlib.md5(content).digest())}"),
    "Content-Digest": ("Content-Digest", repr_digest),
    "Content-MD5": ("Content-MD5", lambda content: base64_of(hashlib.md5(content).digest())),
    "Repr-Digest": ("Repr-Digest", repr_digest),
}


@pytest.mark.parametrize("name", CHECKSUMS)
def test_bytes_are_compared_and_wrong_ones_leave_no_upload(cluster: Cluster, name: str) -> None:
    header, value_of = CHECKSUMS[name]
    right, wrong = unique("right"), unique("wrong")
    answer = create(cluster, CONTENT, fields={"filename": right}, headers={header: value_of(CONTENT)})
    assert (answer.status, answer.json["status"]) == (201, "available")
    refused = create(cluster, WRONG, fields={"filename": wrong}, headers={header: value_of(CONTENT)})
    check_refused(refused, "checksum_mismatch")
    assert "location" not in refused.headers
    if name != "Repr-Digest":  # which says nothing of a beginning
        part = create(
            cluster, CONTENT[:99], fields={"filename": right}, headers={header: value_of(CONTENT[:99])}
        )
        assert (part.status, part.headers["upload-offset"]) == (201, "99")
        refused = create(
            cluster, WRONG[:99], fields={"filename": wrong}, headers={header: value_of(CONTENT[:99])}
        )
        check_refused(refused, "checksum_mismatch")
    assert files_named(cluster, wrong) == []


def test_declared_sha256_is_compared(cluster: Cluster) -> None:
    name = unique("declared")
    fields = {"filename": name, "blob_sha256": SHA256}
    check_refused(create(cluster, WRONG, fields=fields), "checksum_mismatch")
    other = create(cluster, CONTENT, fields=fields, Repr_Digest=repr_digest(WRONG))
    check_refused(other, "checksum_mismatch")
    assert files_named(cluster, name) == []
    assert create(cluster, CONTENT, fields=fields).json["status"] == "available"


@pytest.mark.parametrize(
    ("content", "headers", "code", "field"),
    [
        (CONTENT + b"x", {}, "payload_too_large", "Content-Length"),
        (iter([CONTENT, b"x"]), {}, "payload_too_large", ""),
        (CONTENT, {"Upload_Checksum": "crc32 AAAA"}, "invalid_request", "Upload-Checksum"),
        (CONTENT, {"Repr_Digest": "sha-256=:x:"}, "invalid_request", "Repr-Digest"),
        (CONTENT, {"Trailer": "Content-Digest"}, "invalid_request", "Content-Digest"),
        (CONTENT, {"If_Match": '"x"'}, "precondition_failed", "If-Match"),
        (CONTENT, {"Idempotency_Key": ""}, "invalid_request", "Idempotency-Key"),
        (CONTENT, {"Idempotency_Key": "x" * 129}, "invalid_request", "Idempotency-Key"),
        (CONTENT, {"Idempotency_Key": "a b"}, "invalid_request", "Idempotency-Key"),
        (CONTENT, {"Tus_Resumable": "0.2"}, "precondition_failed", "Tus-Resumable"),
        (CONTENT, {"Content_Type": "application/octet-stream"}, "unsupported_media_type", "Content-Type"),
    ],
)
def test_what_is_refused_leaves_no_upload(
    cluster: Cluster, content: Any, headers: dict[str, Any], code: str, field: str
) -> None:
    name = unique("refused")
    answer = create(cluster, content, fields={"filename": name}, **headers)
    check_refused(answer, code, field)
    assert files_named(cluster, name) == []


def test_condition_that_nothing_is_there_holds(cluster: Cluster) -> None:
    assert create(cluster, CONTENT, If_None_Match="*").json["status"] == "available"


def test_coordinator_takes_no_bytes(cluster: Cluster) -> None:
    for member in cluster.coordinators:
        name = unique("none")
        url = f"{member.url}/api/v1/vms"
        answer = create(cluster, CONTENT, url, fields={"filename": name})
        check_refused(answer, "unsupported_media_type", "Content-Type")
        assert "coordinator" in answer.json["details"]
        assert files_named(cluster, name) == []
        told = cluster.request("OPTIONS", url, token=None).headers["tus-extension"].split(",")
        assert "creation" in told
        assert "creation-with-upload" not in told
    told = cluster.request("OPTIONS", "/vms", token=None).headers["tus-extension"].split(",")
    assert "creation-with-upload" in told


def asked(cluster: Cluster, token: str, headers: Mapping[str, str]) -> int:
    """The status that a client is told which waits to be told to go on."""
    node = urlsplit(cluster.nodes[0].url)
    connection = http.client.HTTPSConnection(
        node.hostname or "", node.port, timeout=30, context=cluster.context
    )
    try:
        connection.putrequest("POST", "/api/v1/vms")
        fields = TUS | {"Content-Type": PATCH_TYPE, "Expect": "100-continue"} | dict(headers)
        for name, value in (fields | {"Authorization": f"Bearer {token}"}).items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.sock.settimeout(30)
        status = connection.sock.recv(65536).split()[1]
        return int(status)
    finally:
        connection.close()


def test_refusal_comes_before_a_body_is_asked_for(cluster: Cluster) -> None:
    user, size = person(cluster), len(CONTENT)
    bucket_id = cluster.post("/buckets", {"name": unique("b"), "quota_bytes": 10}).json["bucket_id"]

    def status_of(token: str, bucket: str = "", **headers: str) -> int:
        fields = KINDS["/vms"] | ({"bucket_id": bucket} if bucket else {})
        pairs = ",".join(f"{name} {base64_of(text.encode())}" for name, text in fields.items())
        told = {"Upload-Length": str(size), "Content-Length": str(size), "Upload-Metadata": pairs}
        return asked(cluster, token, told | {n.replace("_", "-"): v for n, v in headers.items()})

    assert status_of(user.token, bucket_id) == 403
    grant(cluster, f"/buckets/{bucket_id}", "write", user.id)
    assert status_of(user.token, bucket_id) == 413
    assert status_of(user.token, Content_Length=str(size + 1)) == 413
    assert status_of(user.token, If_Match="*") == 412
    assert status_of("x") == 401
    assert status_of(user.token) == 100


def test_quota_is_that_of_the_bucket(cluster: Cluster) -> None:
    body = {"name": unique("b"), "quota_bytes": len(CONTENT) + 10}
    bucket_id = cluster.post("/buckets", body).json["bucket_id"]
    fields = {"bucket_id": bucket_id}
    assert create(cluster, CONTENT, fields=fields).json["status"] == "available"
    check_refused(create(cluster, CONTENT, fields=fields), "payload_too_large")
    deferred = create(cluster, CONTENT, fields=fields, Upload_Length=None, Upload_Defer_Length="1")
    check_refused(deferred, "payload_too_large")
    bucket = cluster.get(f"/buckets/{bucket_id}").json
    assert (bucket["file_count"], bucket["used_bytes"]) == (1, len(CONTENT))
    assert bucket["reserved_bytes"] == 0


@pytest.mark.parametrize(
    "key",
    [
        "5f0c6b0e-8f0a-4a53-9a6e-0d2f6a1b7c11",
        '"2b1d8f3a-6c47-4f9b-8a3c-7e5d4f6a9b22"',
        "0192f0c1-2345-7abc-8def-0123456789ab",
    ],
)
def test_same_request_under_its_key_makes_one_file(cluster: Cluster, key: str) -> None:
    name, own_key = unique("keyed"), key.strip('"') + "-" + unique("k") if '"' not in key else key
    answers = [
        create(cluster, CONTENT, f"{node.url}/api/v1/vms", fields={"filename": name}, Idempotency_Key=own_key)
        for node in (*cluster.nodes, cluster.nodes[0])
    ]
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["file_uuid"] for answer in answers}) == 1
    assert {answer.json["status"] for answer in answers} == {"available"}
    assert len(files_named(cluster, name)) == 1
    record = create(cluster, CONTENT, fields={"filename": name}, Idempotency_Key=own_key, headers=RECORD)
    assert record.json["file_uuid"] == answers[0].json["file_uuid"]
    assert record.json["blob_sha256"] == SHA256


def test_key_counts_together_with_what_is_created(cluster: Cluster) -> None:
    key, name = str(uuid.uuid4()), unique("keyed")
    user = person(cluster)
    made = [
        create(cluster, CONTENT, fields={"filename": name}, Idempotency_Key=key),
        create(cluster, CONTENT, fields={"filename": f"{name}-2"}, Idempotency_Key=key),
        create(cluster, CONTENT, "/backups", fields={"filename": name}, Idempotency_Key=key),
        create(cluster, CONTENT, fields={"filename": name}, token=user.token, Idempotency_Key=key),
        create(cluster, CONTENT[:9], fields={"filename": name}, Idempotency_Key=key, Upload_Length="9"),
    ]
    assert len({answer.json["file_uuid"] for answer in made}) == len(made)
    other = create(cluster, WRONG, fields={"filename": name}, Idempotency_Key=key)
    check_refused(other, "conflict")
    assert content_of(cluster, made[0]) == CONTENT


def test_key_finds_an_upload_that_has_begun(cluster: Cluster) -> None:
    key, name = str(uuid.uuid4()), unique("keyed")
    options: dict[str, Any] = {"fields": {"filename": name}, "Idempotency_Key": key}
    empty = create(cluster, b"", **options)
    part = create(cluster, CONTENT[:1000], **options)
    again = create(cluster, CONTENT[:1000], **options)
    assert [answer.headers["upload-offset"] for answer in (empty, part, again)] == ["0", "1000", "1000"]
    whole = create(cluster, CONTENT, **options)
    assert whole.json["status"] == "available"
    ended = create(cluster, CONTENT[:1000], **options)
    assert (ended.json["status"], ended.headers["upload-offset"]) == ("available", str(len(CONTENT)))
    assert len({answer.json["file_uuid"] for answer in (empty, part, again, whole, ended)}) == 1
    assert content_of(cluster, whole) == CONTENT


def test_key_finds_what_has_filled_the_bucket(cluster: Cluster) -> None:
    body = {"name": unique("b"), "quota_bytes": len(CONTENT) + 10}
    bucket_id = cluster.post("/buckets", body).json["bucket_id"]
    fields, key = {"bucket_id": bucket_id}, str(uuid.uuid4())
    first, second = (create(cluster, CONTENT, fields=fields, Idempotency_Key=key) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert first.json["file_uuid"] == second.json["file_uuid"]


def test_key_of_a_file_that_was_deleted_for_good_makes_another(cluster: Cluster) -> None:
    key, name = str(uuid.uuid4()), unique("keyed")
    first = create(cluster, CONTENT, fields={"filename": name}, Idempotency_Key=key)
    assert cluster.request("DELETE", f"/files/{first.json['file_uuid']}").status == 200
    refused = create(cluster, CONTENT, fields={"filename": name}, Idempotency_Key=key)
    assert (refused.status, "is in the trash" in refused.json["details"]) == (409, True)
    assert cluster.request("DELETE", f"/trash/{first.json['file_uuid']}").status == 200
    second = create(cluster, CONTENT, fields={"filename": name}, Idempotency_Key=key)
    assert second.json["status"] == "available"
    assert len(files_named(cluster, name)) == 1


def test_parts_have_keys_too(cluster: Cluster) -> None:
    options: dict[str, Any] = {"Upload_Concat": "partial", "Idempotency_Key": str(uuid.uuid4())}
    urls = {create(cluster, CONTENT, **options).headers["location"] for _ in range(3)}
    assert len(urls) == 1
