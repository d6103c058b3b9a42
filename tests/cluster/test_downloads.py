"""Downloads over HTTP: conditions, ranges, and replicas that are damaged or gone."""

import hashlib
import os
import socket
import ssl
import struct

import pytest

from tests.cluster.harness import Cluster

CONTENT = os.urandom(9_000_000)  # three segments, the last one short
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ETAG = f'"{SHA256}"'


@pytest.fixture(scope="module")
def file_uuid(cluster: Cluster) -> str:
    """A file that every node holds."""
    return cluster.store(CONTENT, 'a "b" ü.gns3p', content_type="application/zip")


def test_headers_of_a_download(cluster: Cluster, file_uuid: str) -> None:
    answer = cluster.get(f"/files/{file_uuid}", node=cluster.nodes[1])
    assert (answer.status, answer.body == CONTENT) == (200, True)
    expected = {
        "accept-ranges": "bytes",
        "etag": ETAG,
        "content-type": "application/zip",
        "content-length": str(len(CONTENT)),
        "cache-control": "private, no-cache",
        "x-content-type-options": "nosniff",
    }
    assert expected.items() <= answer.headers.items()
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert answer.headers["repr-digest"].startswith("sha-256=:")
    assert answer.headers["last-modified"].endswith(" GMT")


def test_head_tells_the_same_without_a_body(cluster: Cluster, file_uuid: str) -> None:
    answer = cluster.request("HEAD", f"/files/{file_uuid}")
    assert (answer.status, answer.body) == (200, b"")
    assert (answer.headers["content-length"], answer.headers["etag"]) == (str(len(CONTENT)), ETAG)


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=4194300-4194309", 4194300, 4194310),
        ("bytes=8999990-", 8999990, 9000000),
        ("bytes=-10", 8999990, 9000000),
        ("bytes=8999990-99999999999999999999", 8999990, 9000000),
    ],
)
def test_single_range(cluster: Cluster, file_uuid: str, asked: str, start: int, stop: int) -> None:
    answer = cluster.get(f"/files/{file_uuid}", headers={"Range": asked})
    assert (answer.status, answer.body) == (206, CONTENT[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(CONTENT)}"


def test_several_ranges_come_as_multipart(cluster: Cluster, file_uuid: str) -> None:
    answer = cluster.get(f"/files/{file_uuid}", headers={"Range": "bytes=0-9,5000000-5000009,-5"})
    kind, _, boundary = answer.headers["content-type"].partition("; boundary=")
    assert (answer.status, kind) == (206, "multipart/byteranges")
    parts = answer.body.split(f"--{boundary}".encode())[1:-1]
    contents = [part.split(b"\r\n\r\n", 1)[1][:-2] for part in parts]
    assert contents == [CONTENT[:10], CONTENT[5000000:5000010], CONTENT[-5:]]


TOO_MANY = "bytes=" + ",".join(f"{2 * number}-{2 * number}" for number in range(17))


@pytest.mark.parametrize("asked", ["bytes=-0", "bytes=9000000-", TOO_MANY])
def test_range_that_is_not_there_is_refused_with_the_size(
    cluster: Cluster, file_uuid: str, asked: str
) -> None:
    answer = cluster.get(f"/files/{file_uuid}", headers={"Range": asked})
    assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{len(CONTENT)}")


@pytest.mark.parametrize("headers", [{"Range": "items=0-1"}, {"Range": "bytes=0-1", "If-Range": '"other"'}])
def test_range_that_does_not_count_is_ignored(
    cluster: Cluster, file_uuid: str, headers: dict[str, str]
) -> None:
    answer = cluster.get(f"/files/{file_uuid}", headers=headers)
    assert (answer.status, len(answer.body)) == (200, len(CONTENT))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-None-Match": ETAG}, 304),
        ({"If-Match": '"other"'}, 412),
        ({"If-Match": ETAG, "Range": "bytes=0-1"}, 206),
        ({"If-Range": ETAG, "Range": "bytes=0-1"}, 206),
    ],
)
def test_conditions(cluster: Cluster, file_uuid: str, headers: dict[str, str], status: int) -> None:
    assert cluster.get(f"/files/{file_uuid}", headers=headers).status == status


def test_file_without_content_is_not_available(cluster: Cluster) -> None:
    created = cluster.create(size_bytes=10)
    answer = cluster.get(f"/files/{created['file_uuid']}")
    assert (answer.status, answer.json["code"]) == (409, "not_available")


@pytest.mark.parametrize("file_uuid", ["x", "0192F0C0-0000-7000-8000-000000000000", "..%2f..", "%00"])
def test_malformed_id_is_not_found(cluster: Cluster, file_uuid: str) -> None:
    assert cluster.get(f"/files/{file_uuid}").status == 404


def test_redirect_is_not_sent_by_a_node_that_holds_the_file(cluster: Cluster, file_uuid: str) -> None:
    assert cluster.get(f"/files/{file_uuid}?redirect=1", headers={"Range": "bytes=0-1"}).status == 206


def ask_and_reset(cluster: Cluster, port: int) -> None:
    """The end of the handshake, a request and a reset, all of which a node finds in one turn."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = cluster.context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as plain:
        while True:
            try:
                secure.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(1 << 16))
        secure.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.sendall(outgoing.read())
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_request_that_comes_with_the_end_of_its_connection_fails_nothing(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    for _ in range(100):
        ask_and_reset(cluster, node.api_port)
    assert cluster.get("/cluster/status", node=node).status == 200
    assert "never retrieved" not in cluster.logs()[node.id]
