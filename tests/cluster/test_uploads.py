"""Uploads over HTTP: plain PUT and tus, at the node that holds the upload and at others."""

import base64
import hashlib
import http.client
import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

import pytest

from deploy.dev_cluster import Member
from tests.blobs_on_disk import content_on
from tests.cluster.harness import Answer, Cluster

CONTENT = os.urandom(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


class Upload:
    """A file record with its address at the node that holds it and at one that does not."""

    def __init__(self, cluster: Cluster, **fields: object) -> None:
        body = {"filename": "lab.gns3p", "project_id": "p", **fields}
        answer = cluster.post("/project-files", body)
        assert answer.status == 201, answer.body
        self.cluster = cluster
        self.file_uuid = answer.json["file_uuid"]
        self.url = answer.json["upload_url"]
        port = urlsplit(self.url).port
        self.holder = next(node for node in cluster.nodes if node.api_port == port)
        self.other = next(node for node in cluster.nodes if node.api_port != port)

    def send(
        self,
        method: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        node: Member | None = None,
    ) -> Answer:
        """One request to the upload's address, at its holder unless `node` is given."""
        path = f"/files/{self.file_uuid}/content"
        return self.cluster.request(method, path, node=node or self.holder, content=content, headers=headers)

    def put(self, content: bytes, **headers: str) -> Answer:
        return self.send("PUT", content, {name.replace("_", "-"): value for name, value in headers.items()})

    def patch(self, offset: int, content: bytes, *, node: Member | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("PATCH", content, {**TUS, "Upload-Offset": str(offset), **named}, node=node)

    def offset(self) -> int:
        answer = self.send("HEAD", headers={"Tus-Resumable": "1.0.0"})
        assert answer.status == 200
        return int(answer.headers["upload-offset"])

    def content(self) -> bytes:
        answer = self.cluster.get(f"/files/{self.file_uuid}", node=self.other)
        assert answer.status == 200, answer.body
        return answer.body

    def status(self) -> str:
        return str(self.cluster.get(f"/project-files/{self.file_uuid}").json["status"])


def digest_of(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


@pytest.mark.parametrize("size_bytes", [len(CONTENT), None])
def test_whole_put_makes_the_file_available(cluster: Cluster, size_bytes: int | None) -> None:
    upload = Upload(cluster, size_bytes=size_bytes)
    answer = upload.put(CONTENT, Repr_Digest=digest_of(CONTENT))
    assert (answer.status, answer.json) == (
        200,
        {
            "file_uuid": upload.file_uuid,
            "status": "available",
            "blob_sha256": SHA256,
            "size_bytes": len(CONTENT),
        },
    )
    assert upload.content() == CONTENT


def test_put_at_another_node_is_passed_on(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=len(CONTENT))
    assert upload.send("PUT", CONTENT, node=upload.other).status == 200
    assert upload.content() == CONTENT


def test_repeated_put_answers_the_same_and_other_content_is_refused(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=4)
    first = upload.put(b"abcd")
    assert upload.put(b"abcd").json == first.json
    assert upload.put(b"abcx").status == 409
    assert upload.content() == b"abcd"


@pytest.mark.parametrize(("content", "status"), [(b"x" * 11, 413), (b"x" * 9, 400)])
def test_whole_put_of_another_length_is_refused_and_not_kept(
    cluster: Cluster, content: bytes, status: int
) -> None:
    upload = Upload(cluster, size_bytes=10)
    answer = upload.put(content)
    assert (answer.status, "Content-Length" in answer.json["details"]) == (status, True)
    chunked = chunked_put(upload, content)
    assert chunked == status
    assert (upload.offset(), upload.status()) == (0, "pending")


def chunked_put(upload: Upload, content: bytes) -> int:
    """The status that a PUT without Content-Length gets."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", upload.holder.api_port, timeout=30, context=upload.cluster.context
    )
    path = f"/api/v1/files/{upload.file_uuid}/content"
    headers = {"Authorization": f"Bearer {upload.cluster.admin_token}"}
    try:
        connection.request("PUT", path, body=iter([content]), headers=headers, encode_chunked=True)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["Digest", "Repr-Digest", "Content-Digest"])
def test_put_with_a_wrong_digest_is_refused_and_not_kept(cluster: Cluster, name: str) -> None:
    upload = Upload(cluster, size_bytes=4)
    digest = digest_of(b"other")
    value = digest.replace(":", "") if name == "Digest" else digest
    answer = upload.send("PUT", b"abcd", {name: value})
    assert (answer.status, answer.json["code"]) == (460, "checksum_mismatch")
    assert upload.offset() == 0


def test_content_that_is_not_what_its_creator_declared_is_refused(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=4, blob_sha256=hashlib.sha256(b"abcd").hexdigest())
    assert upload.put(b"abcx").status == 460
    assert upload.patch(0, b"abcx").status == 460
    assert upload.offset() == 0
    assert [upload.patch(0, b"ab").status, upload.patch(2, b"cx").status] == [204, 460]
    assert upload.offset() == 0
    assert upload.patch(0, b"abcd").status == 204
    assert upload.content() == b"abcd"


def test_pieces_by_content_range_complete_the_file(cluster: Cluster) -> None:
    upload = Upload(cluster)
    first = upload.put(b"abcd", Content_Range="bytes 0-3/*")
    assert (first.status, first.json) == (202, {"offset": 4})
    again = upload.put(b"abcd", Content_Range="bytes 0-3/*")
    assert (again.status, again.json["code"], again.headers["upload-offset"]) == (409, "offset_mismatch", "4")
    assert upload.put(b"efg", Content_Range="bytes 4-6/7", Content_Digest=digest_of(b"x")).status == 460
    assert cluster.get(f"/files/{upload.file_uuid}/status", node=upload.other).json == {"offset": 4}
    assert upload.status() == "uploading"
    assert upload.put(b"efg", Content_Range="bytes 4-6/7").status == 200
    assert upload.put(b"", Content_Range="bytes */7").status == 200
    assert upload.content() == b"abcdefg"


@pytest.mark.parametrize(
    "value", ["bytes 0-3/9", "bytes 0-2/10", "bytes 3-0/10", "items 0-3/10", "bytes */9"]
)
def test_bad_content_range_is_refused_naming_it(cluster: Cluster, value: str) -> None:
    upload = Upload(cluster, size_bytes=10)
    answer = upload.put(b"abcd", Content_Range=value)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert "Content-Range" in answer.json["details"]
    assert upload.offset() == 0


def test_tus_upload_of_deferred_length(cluster: Cluster) -> None:
    upload = Upload(cluster)
    assert upload.send("HEAD", headers=TUS).headers["upload-defer-length"] == "1"
    first = upload.patch(0, b"abcd", node=upload.other)
    assert (first.status, first.headers["upload-offset"]) == (204, "4")
    assert first.headers["upload-expires"].endswith("GMT")
    assert upload.patch(3, b"efg").headers["upload-offset"] == "4"
    assert upload.patch(4, b"efgh", Upload_Length="7").status == 413
    refused = upload.send("HEAD", headers=TUS).headers
    assert (refused["upload-offset"], refused["upload-defer-length"]) == ("4", "1")
    assert upload.patch(4, b"efg", Upload_Length="7").status == 204
    assert upload.patch(4, b"efg").status == 204
    assert upload.patch(7, b"").status == 409
    assert upload.patch(4, b"efx").status == 409
    assert upload.content() == b"abcdefg"


def test_any_node_tells_the_digest_of_the_bytes_before_the_offset(cluster: Cluster) -> None:
    upload, name = Upload(cluster, size_bytes=7), "upload-prefix-digest"
    assert name not in upload.send("HEAD", headers=TUS).headers
    upload.patch(0, b"abc")
    upload.patch(3, b"d", node=upload.other)
    for node in cluster.nodes:
        headers = upload.send("HEAD", headers=TUS, node=node).headers
        assert (headers["upload-offset"], headers[name]) == ("4", digest_of(b"abcd"))
    assert upload.patch(4, b"efg").status == 204
    for node in cluster.nodes:
        headers = upload.send("HEAD", headers=TUS, node=node).headers
        assert (headers["upload-offset"], headers[name]) == ("7", digest_of(b"abcdefg"))


@pytest.mark.parametrize("at_holder", [True, False])
def test_request_that_ends_a_tus_upload_tells_of_no_expiry(cluster: Cluster, at_holder: bool) -> None:
    upload = Upload(cluster, size_bytes=8)
    node = upload.holder if at_holder else upload.other
    first, last, again = (upload.patch(offset, b"abcd", node=node) for offset in (0, 4, 4))
    assert [answer.status for answer in (first, last, again)] == [204, 204, 204]
    assert ["upload-expires" in answer.headers for answer in (first, last, again)] == [True, False, False]


def test_tus_works_where_only_post_gets_through(cluster: Cluster) -> None:
    upload, given_up = Upload(cluster, size_bytes=7), Upload(cluster, size_bytes=7)
    for node, method in ((upload.holder, "PATCH"), (upload.other, "patch")):
        start = upload.offset()
        headers = {**TUS, "Upload-Offset": str(start), "X-HTTP-Method-Override": method}
        answer = upload.send("POST", b"abcdefg"[start : start + 4], headers, node=node)
        assert answer.status == 204, answer.body
    assert upload.content() == b"abcdefg"
    assert given_up.send("POST", b"", {**TUS, "X-HTTP-Method-Override": "GET"}).status == 405
    assert given_up.send("POST", b"", {**TUS, "X-HTTP-Method-Override": "DELETE"}).status == 204
    assert given_up.send("HEAD", headers=TUS).status == 404
    audit = (cluster.data(given_up.holder) / "audit.log").read_text().splitlines()
    assert any(given_up.file_uuid in line and '"delete_file"' in line for line in audit)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_empty_file_completes_on_an_empty_request(cluster: Cluster, method: str) -> None:
    upload = Upload(cluster, size_bytes=0)
    answer = upload.put(b"") if method == "PUT" else upload.patch(0, b"")
    assert answer.status in (200, 204)
    assert (upload.status(), upload.content()) == ("available", b"")


def test_tus_errors_carry_the_protocol_version(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=4)
    bad_version = upload.patch(0, b"abcd", Tus_Resumable="0.2.2")
    assert (bad_version.status, bad_version.headers["tus-version"]) == (412, "1.0.0")
    bad_type = upload.patch(0, b"abcd", Content_Type="text/plain")
    assert (bad_type.status, bad_type.headers["tus-resumable"]) == (415, "1.0.0")
    assert upload.patch(0, b"abcd", Upload_Checksum="sha1 x").status == 400
    assert upload.offset() == 0


def test_options_tells_what_is_spoken_without_a_credential(cluster: Cluster) -> None:
    upload = Upload(cluster)
    answer = cluster.request("OPTIONS", f"/files/{upload.file_uuid}/content", token=None)
    assert (answer.status, answer.headers["tus-version"]) == (204, "1.0.0")
    creations = "creation,creation-defer-length,creation-with-upload"
    assert answer.headers["tus-extension"] == f"checksum,concatenation,{creations},expiration,termination"


def test_terminated_upload_is_gone_everywhere(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=10)
    upload.patch(0, b"abcd")
    assert upload.send("DELETE", headers=TUS, node=upload.other).status == 204
    assert upload.send("HEAD", headers=TUS).status == 404
    assert cluster.get(f"/project-files/{upload.file_uuid}").status == 404
    assert not (cluster.data(upload.holder) / "uploads" / upload.file_uuid).exists()


def test_finished_upload_is_not_terminated(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=4)
    upload.put(b"abcd")
    assert upload.send("DELETE", headers=TUS).status == 409
    assert upload.content() == b"abcd"


def begin(
    upload: Upload, content: bytes, length_bytes: int, *, checksum: str = ""
) -> http.client.HTTPSConnection:
    """A PATCH of which only the beginning is sent."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", upload.holder.api_port, timeout=30, context=upload.cluster.context
    )
    connection.putrequest("PATCH", f"/api/v1/files/{upload.file_uuid}/content")
    headers = {
        **TUS,
        "Upload-Offset": "0",
        "Content-Length": str(length_bytes),
        "Authorization": f"Bearer {upload.cluster.admin_token}",
        "Expect": "100-continue",
    }
    if checksum:
        headers["Upload-Checksum"] = checksum
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.sock.recv(64).startswith(b"HTTP/1.1 100")  # now it holds the upload
    connection.send(content)
    return connection


def test_second_writer_is_refused_while_the_first_writes(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=10)
    first = begin(upload, b"abcd", 10)
    refused = upload.patch(0, b"x" * 10)
    assert (refused.status, refused.json["code"]) == (423, "upload_locked")
    first.send(b"efghij")
    assert first.getresponse().status == 204
    first.close()
    assert upload.content() == b"abcdefghij"


def test_writer_goes_on_where_a_lost_client_stopped(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=10)
    lost = begin(upload, b"abcd", 10)
    lost.sock.shutdown(socket.SHUT_RDWR)
    lost.close()
    assert upload.offset() == 4
    assert upload.patch(4, b"efghij").status == 204
    assert upload.content() == b"abcdefghij"


def test_same_content_twice_is_stored_once(cluster: Cluster) -> None:
    content = os.urandom(1000)
    for _ in range(2):
        assert Upload(cluster, size_bytes=1000).put(content).status == 200
    sha256 = hashlib.sha256(content).hexdigest()
    cluster.wait_everywhere(sha256)
    for node in cluster.nodes:
        assert content_on(cluster.data(node), sha256) == content
