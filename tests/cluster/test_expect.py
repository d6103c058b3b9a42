"""A client that waits to be told to go on is refused before it has sent anything, whichever node it asks."""

import http.client
import os
import socket
import ssl

import pytest

from deploy.dev_cluster import Member
from tests.cluster.harness import Cluster
from tests.cluster.test_uploads import TUS, Upload

CONTENT = os.urandom(3_000_000)
HOLDERS = pytest.mark.parametrize("at_holder", [True, False])


def asking(
    cluster: Cluster, upload: Upload, node: Member, method: str, length: int | None, headers: dict[str, str]
) -> ssl.SSLSocket:
    """A connection on which a head was sent that waits."""
    framing = {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
    fields = {
        "Host": "x",
        "Authorization": f"Bearer {cluster.admin_token}",
        "Expect": "100-continue",
        **framing,
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    plain = socket.create_connection(("127.0.0.1", node.api_port), timeout=30)
    connection = cluster.context.wrap_socket(plain, server_hostname="127.0.0.1")
    connection.sendall(f"{method} /api/v1/files/{upload.file_uuid}/content HTTP/1.1\r\n{lines}\r\n".encode())
    return connection


def first_status(
    cluster: Cluster, upload: Upload, node: Member, method: str, length: int | None, **headers: str
) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with asking(cluster, upload, node, method, length, named) as connection:
        return int(connection.recv(12).split()[1])


@HOLDERS
def test_refusal_comes_before_the_word_to_go_on(cluster: Cluster, at_holder: bool) -> None:
    upload = Upload(cluster, size_bytes=8)
    node = upload.holder if at_holder else upload.other
    assert upload.patch(0, b"abcd").status == 204

    def patch(length: int | None, **headers: str) -> int:
        return first_status(cluster, upload, node, "PATCH", length, **(TUS_FIELDS | headers))

    def put(length: int | None, **headers: str) -> int:
        return first_status(cluster, upload, node, "PUT", length, **headers)

    assert patch(5, Upload_Offset="4") == 413
    assert patch(4, Upload_Offset="3") == 409
    assert patch(4, Upload_Offset="4", Content_Type="text/plain") == 415
    assert patch(4, Upload_Offset="4", Tus_Resumable="0.1") == 412
    assert patch(4, Upload_Offset="4", Upload_Length="9") == 409
    assert patch(4, Upload_Offset="x") == 400
    assert patch(4, Upload_Offset="4", Upload_Checksum="sha1 x") == 400
    assert put(9) == 413
    assert put(7) == 400
    assert put(3, Content_Range="bytes 3-5/8") == 409
    assert put(4, Content_Range="bytes 4-7/9") == 400
    assert put(8, Content_Type="multipart/form-data; boundary=x") == 415
    assert put(8, If_Match='"x"') == 412
    assert upload.offset() == 4
    assert put(8) == 100
    assert patch(4, Upload_Offset="4") == 100
    assert upload.put(b"abcdefgh").status == 200
    assert patch(4, Upload_Offset="4") == 409
    assert put(7) == 409


TUS_FIELDS = {name.replace("-", "_"): value for name, value in TUS.items()}


@HOLDERS
def test_quota_is_asked_before_the_word_to_go_on(cluster: Cluster, at_holder: bool) -> None:
    name = f"small-{at_holder}-{os.urandom(4).hex()}"
    bucket_id = cluster.post("/buckets", {"name": name, "quota_bytes": 100}).json["bucket_id"]
    upload = Upload(cluster, bucket_id=bucket_id)
    node = upload.holder if at_holder else upload.other
    assert first_status(cluster, upload, node, "PUT", 101) == 413
    assert first_status(cluster, upload, node, "PATCH", 101, **TUS_FIELDS, Upload_Offset="0") == 413
    assert first_status(cluster, upload, node, "PUT", 100) == 100


@HOLDERS
@pytest.mark.parametrize("length", [len(CONTENT), None])
def test_content_follows_the_word_to_go_on(cluster: Cluster, at_holder: bool, length: int | None) -> None:
    upload = Upload(cluster)
    node = upload.holder if at_holder else upload.other
    with asking(cluster, upload, node, "PUT", length, {}) as connection:
        assert connection.recv(64) == b"HTTP/1.1 100 Continue\r\n\r\n"
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
        connection.sendall(CONTENT if length else chunk)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200, answer.read()
    assert upload.content() == CONTENT
