"""tus concatenation over HTTP: parts that nobody sees, and one file made of them."""

import hashlib
import os
import threading

import pytest

from tests.api.expectations import (
    DEFAULT_BUCKET,
    KINDS,
    NOBODY,
    UPLOAD,
    check_refused,
    check_shape,
    grant,
    person,
    unique,
)
from tests.cluster.harness import Answer, Cluster
from tests.cluster.part_steps import PATCH_TYPE, TUS, Parts, begin, check_content, metadata

MIB = 1 << 20
SIZES = {
    "size_bytes": int,
    "offset_bytes": int,
    "reserved_bytes": int,
    "created_at": str,
    "expires_at": str,
}
PIECES = (b"first" * 100, b"second" * 77, b"third" * 50)


def listed(cluster: Cluster, bucket_id: str, token: str = "") -> list[dict[str, str]]:
    found: list[dict[str, str]] = cluster.get(f"/buckets/{bucket_id}/files", token=token).json["files"]
    return found


def bucket(cluster: Cluster, **fields: int) -> str:
    return str(cluster.post("/buckets", {"name": unique("b"), **fields}).json["bucket_id"])


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_put_together_in_the_order_that_is_named(cluster: Cluster, kind: str) -> None:
    parts = Parts(cluster, PIECES)
    for number in (2, 0, 1):
        assert parts.send(number) == 204
    urls = [parts.urls[number] for number in (1, 2, 0)]
    answer = parts.finish(kind=kind, urls=urls, **KINDS[kind])
    assert answer.status == 201, answer.body
    check_shape(answer.json, UPLOAD)
    assert (answer.json["status"], answer.json["expires_at"]) == ("available", "")
    assert answer.headers["location"] == answer.json["upload_url"]
    assert answer.headers["upload-concat"].startswith("final;/api/v1/files/")
    assert "upload-expires" not in answer.headers
    content = PIECES[1] + PIECES[2] + PIECES[0]
    record = cluster.get(f"{kind}/{answer.json['file_uuid']}").json
    assert (record["status"], record["size_bytes"]) == ("available", len(content))
    assert record["blob_sha256"] == hashlib.sha256(content).hexdigest()
    check_content(cluster, answer.json["file_uuid"], content)
    for number in range(3):
        assert parts.head(number).status == 404


def test_parts_of_every_size_make_a_file(cluster: Cluster) -> None:
    pieces = [b"", os.urandom(3 * MIB + 1), b"", b"x", os.urandom(6 * MIB), b""]
    parts = Parts(cluster, pieces)
    for number, piece in enumerate(pieces):
        assert not piece or parts.send(number) == 204
    answer = parts.finish()
    assert answer.status == 201, answer.body
    check_content(cluster, answer.json["file_uuid"], parts.content)
    nothing = Parts(cluster, [b"", b""])
    answer = nothing.finish()
    assert answer.status == 201, answer.body
    check_content(cluster, answer.json["file_uuid"], b"")


def test_part_is_told_from_other_uploads_and_stays_when_it_is_complete(cluster: Cluster) -> None:
    answer = begin(cluster, 500)
    assert answer.status == 201
    check_shape(answer.json, UPLOAD)
    assert answer.headers["upload-concat"] == "partial"
    assert answer.headers["upload-expires"].endswith("GMT")
    parts = Parts(cluster, PIECES[:1])
    assert parts.send(0, stop=123) == 204
    assert parts.head(0).headers["upload-offset"] == "123"
    assert parts.send(0, start=123) == 204
    for node in cluster.nodes:
        told = parts.head(0, node=node)
        assert told.status == 200
        assert (told.headers["upload-offset"], told.headers["upload-length"]) == ("500", "500")
        assert told.headers["upload-concat"] == "partial"
    assert parts.send(0, start=500) == 204
    assert cluster.request("DELETE", parts.urls[0], headers=TUS).status == 204
    assert parts.head(0).status == 404


def test_length_of_a_part_may_come_later(cluster: Cluster) -> None:
    answer = begin(cluster, None)
    url = answer.headers["location"]
    headers = TUS | {"Upload-Offset": "0", "Content-Type": PATCH_TYPE}
    assert cluster.request("PATCH", url, content=b"ab", headers=headers).status == 204
    parts = Parts(cluster, [b"cd"])
    parts.send_all()
    check_refused(parts.finish(urls=[url, *parts.urls]), "conflict", "Upload-Concat")
    headers |= {"Upload-Offset": "2", "Upload-Length": "2"}
    assert cluster.request("PATCH", url, content=b"", headers=headers).status == 204
    answer = parts.finish(urls=[url, *parts.urls])
    assert answer.status == 201, answer.body
    check_content(cluster, answer.json["file_uuid"], b"abcd")


def test_same_request_again_has_the_same_answer(cluster: Cluster) -> None:
    bucket_id = bucket(cluster)
    parts = Parts(cluster, PIECES)
    parts.send_all()
    first = parts.finish(bucket_id=bucket_id)
    assert first.status == 201, first.body
    for node in cluster.nodes:
        again = parts.finish(node=node, bucket_id=bucket_id)
        assert again.status == 201, again.body
        assert again.json["file_uuid"] == first.json["file_uuid"]
        assert again.headers["upload-concat"] == first.headers["upload-concat"]
    told = cluster.request("HEAD", first.headers["location"], headers=TUS)
    length = str(len(parts.content))
    assert (told.headers["upload-offset"], told.headers["upload-length"]) == (length, length)
    assert told.headers["upload-concat"] == first.headers["upload-concat"]
    assert len(listed(cluster, bucket_id)) == 1
    assert cluster.get(f"/buckets/{bucket_id}").json["used_bytes"] == len(parts.content)
    assert cluster.request("DELETE", f"/backups/{first.json['file_uuid']}").status == 200
    check_refused(parts.finish(bucket_id=bucket_id), "not_found", "Upload-Concat")


def test_requests_at_once_have_the_same_answer(cluster: Cluster) -> None:
    parts = Parts(cluster, [os.urandom(5 * MIB) for _ in range(3)])
    parts.send_all()
    answers: list[Answer] = []

    def ask(number: int) -> None:
        answers.append(parts.finish_once_taken(node=cluster.nodes[number % 3]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answer.status for answer in answers] == [201] * 6, [answer.body for answer in answers]
    assert len({answer.json["file_uuid"] for answer in answers}) == 1
    check_content(cluster, answers[0].json["file_uuid"], parts.content)


def test_parts_that_cannot_be_had_are_refused_and_stay(cluster: Cluster) -> None:
    stranger = person(cluster)
    parts, foreign = Parts(cluster, PIECES), Parts(cluster, PIECES[:1], token=stranger.token)
    foreign.send_all()
    assert [parts.send(0), parts.send(1, stop=7)] == [204, 204]
    whole = cluster.create(size_bytes=0)["upload_url"]
    nothing = parts.urls[0].replace(parts.uuids[0], NOBODY)
    for urls, code in [
        ([parts.urls[0], parts.urls[1]], "conflict"),
        ([parts.urls[2]], "conflict"),
        ([parts.urls[0], foreign.urls[0]], "not_found"),
        ([parts.urls[0], nothing], "not_found"),
        ([parts.urls[0], whole], "not_found"),
        ([parts.urls[0], parts.urls[0]], "invalid_request"),
        ([parts.urls[0]] * 101, "invalid_request"),
        ([parts.urls[0] + "/.."], "invalid_request"),
        ([], "invalid_request"),
    ]:
        check_refused(
            parts.finish(urls=[url.partition("/api")[1] + url.partition("/api")[2] for url in urls]),
            code,
            "Upload-Concat",
        )
    assert parts.send(1, start=7) == 204
    assert parts.send(2) == 204
    assert parts.finish().status == 201
    other = Parts(cluster, PIECES[:1])
    check_refused(other.finish(urls=[parts.urls[0]], filename="other.tar"), "not_found", "Upload-Concat")


def test_final_upload_is_held_to_what_a_file_is(cluster: Cluster) -> None:
    parts = Parts(cluster, PIECES[:1])
    parts.send_all()
    check_refused(parts.finish(backup_type="half"), "invalid_request", "backup_type")
    check_refused(parts.finish(bucket_id=NOBODY), "invalid_request", "bucket_id")
    headers = TUS | {"Upload-Concat": f"final;{parts.urls[0]}", "Upload-Length": "500"}
    check_refused(cluster.post("/backups", headers=headers), "invalid_request", "Upload-Length")
    user = person(cluster)
    own = Parts(cluster, PIECES[:1], token=user.token)
    own.send_all()
    bucket_id = bucket(cluster)
    check_refused(own.finish(bucket_id=bucket_id), "forbidden")
    check_refused(begin(cluster, 5, token=user.token, bucket_id=bucket_id), "forbidden")
    check_refused(begin(cluster, 5, bucket_id="x"), "invalid_request", "bucket_id")
    grant(cluster, f"/buckets/{bucket_id}", "write", user.id)
    answer = own.finish(bucket_id=bucket_id)
    assert answer.status == 201, answer.body
    assert cluster.get(f"/backups/{answer.json['file_uuid']}").json["owner_id"] == user.id


def test_quota_counts_parts_once(cluster: Cluster) -> None:
    bucket_id = bucket(cluster, quota_bytes=600)
    parts = Parts(cluster, PIECES[:1], bucket_id=bucket_id)
    check_refused(begin(cluster, 200, bucket_id=bucket_id), "payload_too_large")
    parts.send_all()
    assert cluster.get(f"/buckets/{bucket_id}").json["reserved_bytes"] == 500
    assert parts.finish(bucket_id=bucket_id).status == 201
    record = cluster.get(f"/buckets/{bucket_id}").json
    assert (record["used_bytes"], record["reserved_bytes"], record["file_count"]) == (500, 0, 1)


def test_owner_of_a_bucket_sees_what_reserves_its_quota_and_ends_it(cluster: Cluster) -> None:
    owner, writer = person(cluster), person(cluster)
    made = cluster.post("/buckets", {"name": unique("b"), "quota_bytes": 1000}, token=owner.token)
    place = f"/buckets/{made.json['bucket_id']}"
    grant(cluster, place, "write", writer.id, token=owner.token)
    parts = Parts(cluster, [bytes(600), bytes(400)], token=writer.token, bucket_id=made.json["bucket_id"])
    assert parts.send(0, stop=200) == 204
    open_length = begin(cluster, None, token=writer.token, bucket_id=made.json["bucket_id"])
    answer = cluster.get(f"{place}/uploads", token=owner.token).json
    assert (answer["bucket_id"], answer["count"]) == (made.json["bucket_id"], 3)
    sent, unsent, open_ended = answer["uploads"]
    check_shape(sent, dict.fromkeys(("file_uuid", "kind", "owner_id", "filename", "part_of"), str) | SIZES)
    assert (sent["file_uuid"], sent["kind"], sent["owner_id"]) == (parts.uuids[0], "partial", writer.id)
    assert (sent["size_bytes"], sent["offset_bytes"], sent["reserved_bytes"]) == (600, 200, 600)
    assert (unsent["file_uuid"], unsent["offset_bytes"]) == (parts.uuids[1], 0)
    assert open_ended["file_uuid"] == open_length.json["file_uuid"]
    assert "size_bytes" not in open_ended
    page = cluster.get(f"{place}/uploads?limit=1", token=owner.token)
    assert page.json["uploads"] == [sent]
    assert page.json["next_cursor"] in page.headers["link"]
    for upload in answer["uploads"]:
        path = f"/files/{upload['file_uuid']}"
        assert cluster.request("DELETE", path, token=owner.token).status == 200
    assert cluster.get(place, token=owner.token).json["reserved_bytes"] == 0
    assert parts.head(0).status == 404
    assert cluster.get(f"{place}/uploads", token=owner.token).json["uploads"] == []


def test_nobody_sees_a_part(cluster: Cluster) -> None:
    user, bucket_id = person(cluster), bucket(cluster)
    grant(cluster, f"/buckets/{bucket_id}", "admin", user.id)
    parts = Parts(cluster, PIECES[:1], token=user.token, bucket_id=bucket_id)
    parts.send_all()
    file_uuid = parts.uuids[0]
    for token in (user.token, ""):
        assert listed(cluster, bucket_id, token) == []
        assert all(file["file_uuid"] != file_uuid for file in listed(cluster, DEFAULT_BUCKET, token))
        for path in ("/files", "/backups", "/vms", "/project-files"):
            check_refused(cluster.get(f"{path}/{file_uuid}", token=token), "not_found")
            if path != "/files":  # there its owner and admins of the bucket delete it
                check_refused(cluster.request("DELETE", f"{path}/{file_uuid}", token=token), "not_found")
        check_refused(cluster.get(f"/files/{file_uuid}/permissions", token=token), "not_found")
        check_refused(cluster.post(f"/files/{file_uuid}/public-token", {}, token=token), "not_found")
        check_refused(cluster.post(f"/files/{file_uuid}/ticket", {}, token=token), "not_found")
    assert cluster.get(f"/buckets/{bucket_id}").json["file_count"] == 0
    assert parts.head(0, token="").status == 404  # not even an admin
    headers = TUS | {"Upload-Offset": "500", "Content-Type": PATCH_TYPE}
    check_refused(cluster.request("PATCH", parts.urls[0], content=b"", headers=headers), "not_found")
    check_refused(cluster.request("DELETE", parts.urls[0], headers=TUS), "not_found")
    check_refused(parts.finish(token=""), "not_found", "Upload-Concat")
    check_refused(cluster.request("PUT", parts.urls[0], content=PIECES[0], token=user.token), "conflict")
    check_refused(cluster.request("DELETE", f"/buckets/{bucket_id}"), "conflict")
    assert parts.head(0).headers["upload-offset"] == "500"


def test_final_upload_takes_no_bytes_and_ends_with_its_parts(cluster: Cluster) -> None:
    bucket_id = bucket(cluster)
    parts = Parts(cluster, PIECES)
    parts.send_all()
    wrong = parts.finish(bucket_id=bucket_id, blob_sha256="0" * 64)
    check_refused(wrong, "checksum_mismatch")
    check_refused(parts.finish(bucket_id=bucket_id, blob_sha256="0" * 64), "checksum_mismatch")
    (file,) = listed(cluster, bucket_id)
    url = f"/files/{file['file_uuid']}/content"
    told = cluster.request("HEAD", url, headers=TUS)
    assert told.status == 200
    assert "upload-offset" not in told.headers
    assert told.headers["upload-length"] == str(len(parts.content))
    assert told.headers["upload-concat"].count("/content") == 3
    headers = TUS | {"Upload-Offset": "0", "Content-Type": PATCH_TYPE}
    check_refused(cluster.request("PATCH", url, content=b"x", headers=headers), "forbidden")
    check_refused(cluster.request("PUT", url, content=parts.content), "forbidden")
    for number in range(3):
        assert parts.head(number).headers["upload-concat"] == "partial"
        check_refused(cluster.request("DELETE", parts.urls[number], headers=TUS), "conflict")
    check_refused(parts.finish(urls=parts.urls[:1], bucket_id=bucket_id), "conflict", "Upload-Concat")
    assert cluster.request("DELETE", url, headers=TUS).status == 204
    assert [parts.head(number).status for number in range(3)] == [404] * 3
    assert listed(cluster, bucket_id) == []
    assert cluster.get(f"/buckets/{bucket_id}").json["reserved_bytes"] == 0


def test_bytes_after_the_end_of_a_final_upload_are_refused(cluster: Cluster) -> None:
    parts = Parts(cluster, PIECES)
    parts.send_all()
    url = parts.finish().headers["location"]
    headers = TUS | {"Upload-Offset": "0", "Content-Type": PATCH_TYPE}
    check_refused(cluster.request("PATCH", url, content=parts.content, headers=headers), "forbidden")


def test_coordinators_begin_parts_and_leave_files_to_nodes(cluster: Cluster) -> None:
    for member in cluster.coordinators:
        begun = begin(cluster, 3, url=f"{member.url}/api/v1/backups")
        assert begun.status == 201, begun.body
        url = begun.headers["location"]
        headers = TUS | {"Upload-Offset": "0", "Content-Type": PATCH_TYPE}
        assert cluster.request("PATCH", url, content=b"abc", headers=headers).status == 204
        final = TUS | {"Upload-Concat": f"final;{url}"} | metadata(KINDS["/backups"])
        refused = cluster.post(f"{member.url}/api/v1/backups", headers=final)
        check_refused(refused, "invalid_request", "Upload-Concat")
        assert cluster.post("/backups", headers=final).status == 201


def test_fields_of_a_kind_are_those_of_the_final_upload(cluster: Cluster) -> None:
    parts = Parts(cluster, PIECES)
    parts.send_all()
    answer = parts.finish(kind="/vms", filename="ü.qcow2", virt_type="qemu", format="qcow2", vcpus="4")
    record = cluster.get(f"/vms/{answer.json['file_uuid']}").json
    assert (record["filename"], record["vcpus"]) == ("ü.qcow2", 4)
    assert record["md5"] == hashlib.md5(parts.content).hexdigest()


@pytest.mark.parametrize("kind", KINDS)
def test_concatenation_is_offered(cluster: Cluster, kind: str) -> None:
    for member in cluster.members:
        answer = cluster.request("OPTIONS", f"{member.url}/api/v1{kind}", token=None)
        assert "concatenation" in answer.headers["tus-extension"].split(",")
