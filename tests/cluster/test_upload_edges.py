"""Uploads at the edges of HTTP: targets, headers and lengths that clients rarely send, too many at once."""

import hashlib
import os
import socket
import ssl
import time

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.uploads.write_locks import POLL_DOUBT_S, TAKEOVER_STALL_S
from tests.cluster.harness import Answer, Cluster
from tests.cluster.test_uploads import TUS, Upload

WRITERS_MAX = 32


def connect(cluster: Cluster, node: Member) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", node.api_port), timeout=20)
    return cluster.context.wrap_socket(plain, server_hostname="127.0.0.1")


def answer_to(cluster: Cluster, node: Member, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and all that came, of a request that ends its connection. `head`: its first lines."""
    with connect(cluster, node) as connection:
        connection.sendall(with_credential(cluster, head + "Connection: close\r\n") + body)
        received = b""
        while part := connection.recv(65536):
            received += part
    return int(received.split()[1]), received


def with_credential(cluster: Cluster, head: str, token: str = "") -> bytes:
    return f"{head}Host: x\r\nAuthorization: Bearer {token or cluster.admin_token}\r\n\r\n".encode()


def path_of(upload: Upload) -> str:
    return f"/api/v1/files/{upload.file_uuid}/content"


@pytest.mark.parametrize("origin", ["http://x", "https://other:1", "http://a@b"])
def test_target_with_an_origin_works_at_the_holder_and_is_passed_on(cluster: Cluster, origin: str) -> None:
    upload = Upload(cluster, size_bytes=4)
    for node in (upload.holder, upload.other):
        status, _ = answer_to(cluster, node, f"HEAD {origin}{path_of(upload)}?x=%2f HTTP/1.1\r\n")
        assert status == 200, node.id
    put = f"PUT {origin}{path_of(upload)} HTTP/1.1\r\nContent-Length: 4\r\n"
    assert answer_to(cluster, upload.other, put, b"abcd")[0] == 200
    assert upload.content() == b"abcd"


def test_sender_that_pauses_is_not_ended_by_who_looks_on(cluster: Cluster) -> None:
    """Neither at the holder nor where the bytes and the question pass through another node."""
    for by in ("holder", "other"):
        upload = Upload(cluster, size_bytes=8)
        node = upload.holder if by == "holder" else upload.other
        head = f"PUT {path_of(upload)} HTTP/1.1\r\nContent-Length: 8\r\nConnection: close\r\n"
        with connect(cluster, node) as connection:
            connection.sendall(with_credential(cluster, head) + b"abcd")
            paused_at_s = time.monotonic()
            while time.monotonic() < paused_at_s + TAKEOVER_STALL_S + POLL_DOUBT_S:
                answer = cluster.get(f"/files/{upload.file_uuid}/status", node=node)
                assert (answer.status, answer.json["offset"]) == (200, 0)
            connection.sendall(b"efgh")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert upload.content() == b"abcdefgh"


@pytest.mark.parametrize("extra", [50, 61, 62])
def test_as_many_headers_are_taken_through_another_node(cluster: Cluster, extra: int) -> None:
    upload = Upload(cluster, size_bytes=4)
    lines = "".join(f"X-{number}: a\r\n" for number in range(extra))
    path = f"/api/v1/files/{upload.file_uuid}/status"
    statuses = [
        answer_to(cluster, node, f"GET {path} HTTP/1.1\r\n{lines}")[0]
        for node in (upload.holder, upload.other)
    ]
    assert statuses == ([200, 200] if extra + 3 <= 64 else [400, 400])


def test_put_that_tells_no_length_is_refused_where_nobody_declared_one(cluster: Cluster) -> None:
    upload = Upload(cluster)
    for node in (upload.holder, upload.other):
        status, answer = answer_to(cluster, node, f"PUT {path_of(upload)} HTTP/1.1\r\n")
        assert (status, b'"details":"Content-Length: is required' in answer) == (400, True)
    assert (upload.offset(), upload.status()) == (0, "pending")
    assert upload.put(b"abcd").status == 200


@pytest.mark.parametrize("at_holder", [True, False])
def test_put_that_tells_no_length_is_the_empty_file_that_was_declared(
    cluster: Cluster, at_holder: bool
) -> None:
    upload = Upload(cluster, size_bytes=0)
    node = upload.holder if at_holder else upload.other
    assert answer_to(cluster, node, f"PUT {path_of(upload)} HTTP/1.1\r\n")[0] == 200
    assert upload.content() == b""


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 2000"])
@pytest.mark.parametrize("at_holder", [True, False])
def test_whole_put_whose_body_never_comes_keeps_what_was_there(
    cluster: Cluster, framing: str, at_holder: bool
) -> None:
    upload = Upload(cluster)
    first = os.urandom(1000)
    assert upload.put(first, Content_Range="bytes 0-999/2000").json == {"offset": 1000}
    head = f"PUT {path_of(upload)} HTTP/1.1\r\n{framing}\r\nExpect: 100-continue\r\n"
    with connect(cluster, upload.holder if at_holder else upload.other) as connection:
        connection.sendall(with_credential(cluster, head))
        assert connection.recv(64).startswith(b"HTTP/1.1 100 ")  # the body is what it waits for
    assert upload.offset() == 1000
    rest = os.urandom(1000)
    assert upload.put(rest, Content_Range="bytes 1000-1999/2000").status == 200
    assert upload.content() == first + rest


def test_client_that_vanishes_while_it_repeats_its_last_step_stops_nobody(cluster: Cluster) -> None:
    upload, content = Upload(cluster), os.urandom(2000)
    assert upload.put(content).status == 200
    head = f"PUT {path_of(upload)} HTTP/1.1\r\nContent-Length: 2000\r\n"
    with connect(cluster, upload.holder) as connection:
        connection.sendall(with_credential(cluster, head) + content[:1000])
        # Before the pace of a body would end it, which is after 30 seconds.
        wait_until(lambda: upload.put(content).status == 200, what="the other's turn", timeout_s=15)


def test_empty_body_where_bytes_were_declared_keeps_what_was_there(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=10)
    upload.put(b"abcd", Content_Range="bytes 0-3/10")
    chunked = f"PUT {path_of(upload)} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    assert answer_to(cluster, upload.holder, chunked, b"0\r\n\r\n")[0] == 400
    assert upload.offset() == 4


def test_whole_put_replaces_what_was_there(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=10)
    upload.put(b"abcd", Content_Range="bytes 0-3/10")
    assert upload.put(b"0123456789").status == 200
    assert upload.content() == b"0123456789"


@pytest.mark.parametrize(
    ("length", "status"),
    [
        (2**53, 413),
        (2**53 - 1, 507),
        pytest.param(2**62, 413, marks=pytest.mark.long),
        pytest.param(10**15, 507, marks=pytest.mark.long),
    ],
)
def test_length_that_no_disk_has_room_for_is_refused_before_the_body(
    cluster: Cluster, length: int, status: int
) -> None:
    upload = Upload(cluster)
    head = f"PUT {path_of(upload)} HTTP/1.1\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n"
    assert answer_to(cluster, upload.holder, head)[0] == status
    assert upload.put(b"abcd").status == 200


@pytest.mark.parametrize("at_holder", [True, False])
def test_digest_behind_the_body_is_refused(cluster: Cluster, at_holder: bool) -> None:
    upload = Upload(cluster)
    node = upload.holder if at_holder else upload.other
    head = f"PUT {path_of(upload)} HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: Repr-Digest\r\n"
    status, answer = answer_to(cluster, node, head, b"4\r\nabcd\r\n0\r\nRepr-Digest: sha-256=:AAAA:\r\n\r\n")
    assert (status, b'"details":"Repr-Digest: ' in answer) == (400, True)
    assert upload.status() == "pending"


def test_slow_uploads_of_one_user_leave_room_for_others(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    slow, other = cluster.user_token("slow"), cluster.user_token("other")
    connections = []
    try:
        for _ in range(WRITERS_MAX):
            path = f"/api/v1/files/{held_by(cluster, node, slow)}/content"
            head = f"PUT {path} HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n"
            connection = connect(cluster, node)
            connections.append(connection)
            connection.sendall(with_credential(cluster, head, slow))
            assert connection.recv(64).startswith(b"HTTP/1.1 100 ")
        refused = put_nine(cluster, node, slow)
        assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (
            429,
            "rate_limited",
            "5",
        )
        assert put_nine(cluster, node, other).status == 200
        created = [create_with_nine(cluster, node, token) for token in (slow, other)]
        assert [answer.status for answer in created] == [429, 201]
        owned = cluster.get("/project-files?filename=nine", token=slow).json["project_files"]
        assert owned == []
    finally:
        for connection in connections:
            connection.close()


def held_by(cluster: Cluster, node: Member, token: str) -> str:
    """A new file whose upload this node holds."""
    while True:
        created = cluster.create(size_bytes=9, token=token)
        if created["upload_url"].startswith(node.url):
            return str(created["file_uuid"])


def put_nine(cluster: Cluster, node: Member, token: str) -> Answer:
    path = f"/files/{held_by(cluster, node, token)}/content"
    return cluster.request("PUT", path, node=node, token=token, content=b"x" * 9)


def create_with_nine(cluster: Cluster, node: Member, token: str) -> Answer:
    pairs = "filename bmluZQ==,project_id eA=="  # nine, x
    headers = TUS | {"Upload-Length": "9", "Upload-Metadata": pairs}
    return cluster.post("/project-files", node=node, token=token, content=b"x" * 9, headers=headers)


def counts(cluster: Cluster, node: Member) -> dict[str, float]:
    text = cluster.get("/metrics", node=node, token=None).body.decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("filestore_")]
    return {name: float(value) for name, value in lines}


@pytest.mark.long
def test_metrics_of_nodes_move(own_cluster: Cluster) -> None:
    cluster, content = own_cluster, os.urandom(5_000_000)
    upload = Upload(cluster, size_bytes=len(content))
    third = next(node for node in cluster.nodes if node not in (upload.holder, upload.other))
    head = f"PUT {path_of(upload)} HTTP/1.1\r\nContent-Length: {len(content)}\r\nExpect: 100-continue\r\n"
    with connect(cluster, upload.holder) as waiting:
        waiting.sendall(with_credential(cluster, head))
        assert waiting.recv(64).startswith(b"HTTP/1.1 100 ")
        assert counts(cluster, upload.holder)["filestore_uploads_in_progress"] == 1
    assert upload.put(content).status == 200
    holder = counts(cluster, upload.holder)
    assert holder["filestore_upload_bytes_total"] == len(content)
    assert holder["filestore_uploads_completed_total"] == 1
    everywhere = [counts(cluster, node) for node in cluster.nodes]
    for direction in ("sent", "received"):  # in a chain: each node sends once at most
        name = f'filestore_replica_bytes_total{{direction="{direction}"}}'
        assert sorted(count[name] for count in everywhere) == [0, len(content), len(content)]
    assert holder["filestore_disk_size_bytes"] >= holder["filestore_disk_free_bytes"] > 0
    sha256 = hashlib.sha256(content).hexdigest()
    path = cluster.replica(third, sha256)
    assert cluster.get(f"/files/{upload.file_uuid}", node=third).body == content
    assert counts(cluster, third)['filestore_download_bytes_total{source="local"}'] == len(content)
    path.chmod(0o600)
    path.write_bytes(bytes(len(content)))
    assert cluster.get(f"/files/{upload.file_uuid}", node=third).body == content
    after = counts(cluster, third)
    assert after['filestore_download_bytes_total{source="peer"}'] == len(content)
    assert after["filestore_damaged_segments_total"] == 1
