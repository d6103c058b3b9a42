"""Small grammar that clients of other stores bring along: what it means here, or that it is refused."""

import base64
import hashlib
import http.client
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from deploy.base.connection import read_text
from tests.api.expectations import KINDS, check_refused, create, person, store, unique
from tests.api.test_error_codes import answer_on, connect
from tests.cluster.harness import Answer, Cluster
from tests.cluster.test_uploads import TUS, Upload

CONTENT = b"0123456789"


def post_text(cluster: Cluster, path: str, text: str) -> Answer:
    headers = {"Content-Type": "application/json"}
    return cluster.request("POST", path, content=text.encode(), headers=headers)


@pytest.mark.parametrize("number", ["7.0", "7e0", "0.7E1", "700e-2", "7.000000000000000000"])
def test_number_without_a_fraction_is_an_integer(cluster: Cluster, number: str) -> None:
    fields = json.dumps(KINDS["/vms"])[:-1]
    answer = post_text(cluster, "/vms", f'{fields}, "vcpus": {number}, "size_bytes": {number}}}')
    assert answer.status == 201, answer.body
    record = cluster.get(f"/vms/{answer.json['file_uuid']}").json
    assert (record["vcpus"], record["size_bytes"]) == (7, 7)
    assert cluster.get(f"/vms/{answer.json['file_uuid']}").body.count(b'"size_bytes":7,') == 1
    bucket = post_text(cluster, "/buckets", f'{{"name": "{unique("b")}", "quota_bytes": {number}}}')
    assert bucket.json["quota_bytes"] == 7


@pytest.mark.parametrize(
    "number", ["7.5", "1e300", "1e-1", "4503599627370496.25", "1e99999999999999999999", "-1.0", "1e17"]
)
def test_number_with_a_fraction_or_out_of_range_is_none(cluster: Cluster, number: str) -> None:
    fields = json.dumps(KINDS["/vms"])[:-1]
    answer = post_text(cluster, "/vms", f'{fields}, "size_bytes": {number}}}')
    check_refused(answer, "invalid_request", "size_bytes")


def test_target_that_is_too_long(cluster: Cluster) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        check_refused(cluster.get("/vms?filename=" + "x" * 9000, node=member), "uri_too_long")


@pytest.mark.parametrize("scheme", ["Bearer  ", "bearer    ", "BEARER "])
def test_any_number_of_spaces_stands_before_a_credential(cluster: Cluster, scheme: str) -> None:
    credential = {"Authorization": f"{scheme}{cluster.admin_token}"}
    file_uuid = store(cluster, "/vms", CONTENT)
    assert cluster.get(f"/vms/{file_uuid}", token=None, headers=credential).status == 200
    assert cluster.get(f"/files/{file_uuid}", token=None, headers=credential).body == CONTENT


@pytest.mark.parametrize("kind", KINDS)
def test_capitals_in_an_id_mean_the_same(cluster: Cluster, kind: str) -> None:
    upload = create(cluster, kind)
    file_uuid = upload["file_uuid"]
    capitals = file_uuid.upper()
    for node in cluster.nodes:
        assert cluster.get(f"{kind}/{capitals}", node=node).json["file_uuid"] == file_uuid
        assert cluster.get(f"/files/{capitals}/status", node=node).json == {"offset": 0}
    for start, node in ((0, cluster.nodes[0]), (5, cluster.nodes[1])):
        headers = TUS | {"Upload-Offset": str(start), "Upload-Length": "10"}
        path, piece = f"/files/{capitals}/content", CONTENT[start : start + 5]
        assert cluster.request("PATCH", path, content=piece, headers=headers, node=node).status == 204
    link = cluster.post(f"/files/{capitals}/public-token").json
    cluster.remember(link["token"])
    for node in cluster.nodes:
        assert cluster.get(f"/files/{capitals}", node=node).body == CONTENT
    assert cluster.request("PATCH", f"{kind}/{capitals}", body={}).status == 200
    assert cluster.request("DELETE", f"{kind}/{capitals}").json["file_uuid"] == file_uuid
    bucket_id = cluster.post("/buckets", {"name": unique("b")}).json["bucket_id"]
    assert cluster.get(f"/buckets/{bucket_id.upper()}").json["bucket_id"] == bucket_id


def ask(cluster: Cluster, path: str, *lines: tuple[str, str]) -> tuple[int, bytes]:
    """A GET with these headers, which may repeat themselves."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", cluster.nodes[0].api_port, timeout=30, context=cluster.context
    )
    connection.putrequest("GET", f"/api/v1{path}")
    for name, value in (("Authorization", f"Bearer {cluster.admin_token}"), *lines):
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_range_that_stands_there_twice_is_ignored(cluster: Cluster) -> None:
    path = f"/files/{store(cluster, '/vms', CONTENT)}"
    for _ in range(3):  # also once the node knows the file
        assert ask(cluster, path, ("Range", "bytes=0-1")) == (206, CONTENT[:2])
        assert ask(cluster, path, ("Range", "bytes=0-1"), ("Range", "bytes=5-6")) == (200, CONTENT)
        assert ask(cluster, path, ("Range", "bytes=0-1"), ("Range", "bytes=0-1")) == (200, CONTENT)
    status, body = ask(
        cluster, path, ("Range", "bytes=0-1"), ("Range", "5-6")
    )  # as one list it is well-formed
    assert status == 206
    assert body.count(b"Content-Range") == 2


def test_content_range_that_stands_there_twice_is_refused(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=8)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", upload.other.api_port, timeout=30, context=cluster.context
    )
    connection.putrequest("PUT", f"/api/v1/files/{upload.file_uuid}/content")
    for name, value in (
        ("Authorization", f"Bearer {cluster.admin_token}"),
        ("Content-Range", "bytes 0-3/8"),
        ("Content-Range", "bytes 4-7/8"),
        ("Content-Length", "4"),
    ):
        connection.putheader(name, value)
    connection.endheaders(b"abcd")
    assert connection.getresponse().status == 400
    connection.close()
    assert upload.offset() == 0


def test_methods_that_nobody_knows(cluster: Cluster) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        for method in ("PROPFIND", "MKCOL", "BREW"):
            check_refused(cluster.request(method, "/vms", node=member), "not_implemented")
        check_refused(cluster.request("TRACE", "/vms", node=member), "method_not_allowed")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1", "uri_too_long"),
        (b"GET /healthz HTTP/1.1\r\nX: /" + b"x" * 9000, "invalid_request"),
        (b"BREW /healthz HTTP/1.1", "not_implemented"),
        (b"BR/EW /healthz HTTP/1.1", "invalid_request"),
        (b"PROPFIND /nope HTTP/1.1", "not_implemented"),
        (b"POST /api/v1/vms HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", "not_implemented"),
        (b"POST /api/v1/vms HTTP/1.1\r\nTransfer-Encoding: chunked, chunked", "invalid_request"),
        (b"POST /api/v1/vms HTTP/1.1\r\nTransfer-Encoding: gzip", "invalid_request"),
    ],
)
def test_what_nobody_here_knows_has_a_status_of_its_own(cluster: Cluster, line: bytes, code: str) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        with connect(cluster, member) as connection:
            connection.sendall(line + b"\r\nHost: x\r\n\r\n")
            check_refused(answer_on(connection), code)


def test_options_of_the_whole_server(cluster: Cluster) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        with connect(cluster, member) as connection:
            connection.sendall(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
            head = connection.recv(2000)
        assert head.startswith(b"HTTP/1.1 204 ")
        assert b"\r\nAllow: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT\r\n" in head


def md5_of(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()


@pytest.mark.parametrize("at_holder", [True, False])
def test_content_md5_is_checked(cluster: Cluster, at_holder: bool) -> None:
    upload = Upload(cluster)
    node = upload.holder if at_holder else upload.other

    def put(content: bytes, md5: str, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return upload.send("PUT", content, {"Content-MD5": md5, **named}, node=node)

    for malformed in ("", "x", "eA==", hashlib.md5(CONTENT).hexdigest()):
        check_refused(put(CONTENT, malformed), "invalid_request", "Content-MD5")
    check_refused(put(CONTENT, md5_of(b"other")), "checksum_mismatch", "Content-MD5")
    assert (upload.offset(), upload.status()) == (0, "pending")
    check_refused(put(b"0123", md5_of(b"x"), Content_Range="bytes 0-3/*"), "checksum_mismatch")
    assert put(b"0123", md5_of(b"0123"), Content_Range="bytes 0-3/*").status == 202
    refused = upload.patch(4, b"45", node=node, Content_MD5=md5_of(b"x"))
    check_refused(refused, "checksum_mismatch")
    assert upload.offset() == 4
    assert put(CONTENT, md5_of(CONTENT)).status == 200
    assert put(CONTENT, md5_of(CONTENT)).status == 200
    check_refused(put(CONTENT, md5_of(b"other")), "checksum_mismatch")
    assert upload.content() == CONTENT


def test_large_content_with_a_wrong_md5_is_not_kept(cluster: Cluster) -> None:
    content = bytes(5_000_000)
    upload = Upload(cluster, size_bytes=len(content))
    check_refused(upload.send("PUT", content, {"Content-MD5": md5_of(b"x")}), "checksum_mismatch")
    assert upload.offset() == 0
    assert upload.send("PUT", content, {"Content-MD5": md5_of(content)}).status == 200


def test_token_file_may_begin_with_the_mark_of_windows(cluster: Cluster, tmp_path: Path) -> None:
    marked = tmp_path / "token"
    marked.write_bytes(b"\xef\xbb\xbf" + person(cluster).token.encode() + b"\r\n")
    marked.chmod(0o600)
    done = cluster.filestore("ls", "--token-file", str(marked))
    assert done.returncode == 0, done.stderr.decode()
    root = tmp_path / "root.pem"
    root.write_bytes(b"\xef\xbb\xbf" + cluster.ca.read_bytes())
    assert read_text(root, "the CA certificate").startswith("-----BEGIN")


def test_members_on_loopback_are_localhost_too(cluster: Cluster) -> None:
    context: Any = ssl.create_default_context(cafile=str(cluster.ca))
    for member in cluster.members:
        connection = http.client.HTTPSConnection("localhost", member.api_port, timeout=30, context=context)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
