"""Bytes that come with the creation of their upload, wherever they go: to the node that was asked, to another
one, to another worker; and what is left of those that do not come.
"""

import base64
import hashlib
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.uploads.progress import SMALL_BYTES
from tests.cluster.harness import Answer, Cluster
from tests.cluster.upload_steps import TUS

pytestmark = pytest.mark.long  # run by `make long`

CONTENT = os.urandom(30_000)
LARGE = os.urandom(SMALL_BYTES + 1000)
TRIES = 12  # of which as good as never all go to one of two nodes, or of two workers


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of two workers each, and one copy of everything: half of what comes is of the other node."""
    directory = tmp_path_factory.mktemp("crowd")
    options = ("--workers", "2")
    with Cluster(directory, node_count=2, replicas=1, write_quorum=1, node_options=options) as started:
        started.wait_healthy()
        yield started


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, which both must have what is acknowledged."""
    with Cluster(tmp_path, node_count=2, replicas=2, write_quorum=2) as started:
        yield started


def headers_of(name: str, size_bytes: int, **headers: str) -> dict[str, str]:
    fields = {"filename": name, "backup_type": "full"}
    pairs = (f"{key} {base64.b64encode(text.encode()).decode()}" for key, text in fields.items())
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return TUS | {"Upload-Length": str(size_bytes), "Upload-Metadata": ",".join(pairs)} | named


def create(
    cluster: Cluster, node: Member, content: bytes, name: str, *, of_bytes: int = -1, **headers: str
) -> Answer:
    """A creation with these bytes, or with the first of so many."""
    told = headers_of(name, len(content) if of_bytes < 0 else of_bytes, **headers)
    return cluster.post("/backups", node=node, content=content, headers=told, timeout_s=60)


def patch(cluster: Cluster, node: Member, created: Any, offset: int, content: bytes) -> Answer:
    path = f"/files/{created['file_uuid']}/content"
    headers = TUS | {"Upload-Offset": str(offset)}
    return cluster.request("PATCH", path, node=node, content=content, headers=headers, timeout_s=60)


def unique() -> str:
    return f"backup-{uuid.uuid4()}"


def backups(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get(f"/backups?filename={name}").json["backups"]
    return found


def check(cluster: Cluster, created: Any, content: bytes) -> None:
    for node in cluster.nodes:
        answer = cluster.get(f"/files/{created['file_uuid']}", node=node)
        assert (answer.status, answer.body) == (200, content)


def test_node_that_is_asked_holds_what_comes_with_the_creation(cluster: Cluster) -> None:
    for node in cluster.nodes:
        for _ in range(3):
            whole = create(cluster, node, CONTENT, unique())
            part = create(cluster, node, CONTENT[:9], unique(), of_bytes=len(CONTENT))
            assert whole.json["status"] == "available"
            assert part.headers["location"].startswith(node.url)
            replicas = cluster.get(f"/files/{whole.json['file_uuid']}/replicas").json["nodes"]
            assert node.id in replicas


@pytest.mark.parametrize("content", [CONTENT, LARGE, b""], ids=["small", "large", "empty"])
def test_whole_content_goes_to_its_holder(crowd: Cluster, content: bytes) -> None:
    holders = set()
    for number in range(TRIES):
        named = headers_of(unique(), len(content))
        key = {"Idempotency-Key": str(uuid.uuid4())} if number % 2 else {}
        created = crowd.post("/backups", content=content, headers=named | key)
        assert (created.status, created.json["status"]) == (201, "available")
        assert created.headers["upload-offset"] == str(len(content))
        holders |= set(crowd.get(f"/files/{created.json['file_uuid']}/replicas").json["nodes"])
        check(crowd, created.json, content)
    assert len(holders) == 2


def test_rest_goes_to_the_location(crowd: Cluster) -> None:
    holders = set()
    for _ in range(TRIES):
        content = os.urandom(3000)
        created = create(crowd, crowd.nodes[0], content[:1000], unique(), of_bytes=len(content))
        assert (created.status, created.headers["upload-offset"]) == (201, "1000")
        holder = next(n for n in crowd.nodes if created.headers["location"].startswith(n.url))
        holders.add(holder.id)
        assert patch(crowd, holder, created.json, 1000, content[1000:]).status == 204
        check(crowd, created.json, content)
    assert len(holders) == 2


def test_refused_bytes_leave_no_upload_wherever_they_went(crowd: Cluster) -> None:
    name = unique()
    for header, algorithm in (("Upload-Checksum", "md5 "), ("Content-MD5", "")):
        for _ in range(TRIES // 2):
            checksum = {header: f"{algorithm}{'A' * 22}=="}
            answer = crowd.post(
                "/backups", content=CONTENT, headers=headers_of(name, len(CONTENT)) | checksum
            )
            assert (answer.status, answer.json["code"]) == (460, "checksum_mismatch")
            told = headers_of(name, 5)
            longer = crowd.post("/backups", content=iter([b"123", b"456"]), headers=told)
            assert longer.status in (400, 413)
    assert backups(crowd, name) == []


def test_key_finds_the_file_through_every_node_and_worker(crowd: Cluster) -> None:
    for _ in range(TRIES // 2):
        name, content, key = unique(), os.urandom(5000), str(uuid.uuid4())
        created = [
            create(crowd, node, content, name, Idempotency_Key=key) for node in (*crowd.nodes, *crowd.nodes)
        ]
        assert {answer.status for answer in created} == {201}, [answer.body for answer in created]
        assert len({answer.json["file_uuid"] for answer in created}) == 1
        assert len(backups(crowd, name)) == 1
        other = create(crowd, crowd.nodes[0], bytes(5000), name, Idempotency_Key=key)
        assert (other.status, other.json["code"]) == (409, "conflict")


def break_off(
    cluster: Cluster, node: Member, content: bytes, sent_bytes: int, headers: Mapping[str, str]
) -> None:
    """A creation of which the client goes away after so many bytes."""
    fields = {"Host": "x", "Authorization": f"Bearer {cluster.admin_token}"} | dict(headers)
    fields["Content-Length"] = str(len(content))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    plain = socket.create_connection(("127.0.0.1", node.api_port), timeout=30)
    with cluster.context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        connection.sendall(f"POST /api/v1/backups HTTP/1.1\r\n{lines}\r\n".encode() + content[:sent_bytes])


def stands_at(cluster: Cluster, name: str) -> int:
    """How many bytes of the upload of this name are durable; -1 when nobody can say yet."""
    found = backups(cluster, name)
    if not found:
        return -1
    answer = cluster.request("HEAD", f"/files/{found[0]['file_uuid']}/content", headers=TUS)
    return int(answer.headers["upload-offset"]) if answer.status == 200 else -1


@pytest.mark.parametrize("is_checked", [False, True], ids=["kept", "checked"])
def test_what_breaks_off_is_gone_on_with_under_its_key(crowd: Cluster, is_checked: bool) -> None:
    """Bytes with a checksum that did not all come are dropped, as they cannot be compared."""
    for node in (*crowd.nodes, *crowd.nodes):
        name, content, sent_bytes = unique(), os.urandom(2 * SMALL_BYTES), 3 * SMALL_BYTES // 2
        told = {"Idempotency_Key": name}
        if is_checked:
            told["Content_MD5"] = base64.b64encode(hashlib.md5(content).digest()).decode()
        headers = headers_of(name, len(content), **told)
        break_off(crowd, node, content, sent_bytes, headers)
        kept = range(1) if is_checked else range(sent_bytes + 1)  # it may have gone before it was heard
        arrived = partial(stands_at, crowd, name)
        wait_until(lambda: arrived() in kept, what="what has come", timeout_s=30)  # noqa: B023
        whole = crowd.post("/backups", node=node, content=content, headers=headers)
        assert (whole.status, whole.json["status"]) == (201, "available"), whole.body
        assert len(backups(crowd, name)) == 1
        check(crowd, whole.json, content)


def test_bytes_that_reach_no_quorum_are_told_by_the_offset(pair: Cluster) -> None:
    """Nothing is wrong with them: the client goes on from there, and makes no other upload."""
    first, second = pair.nodes
    pair.kill(second)  # which the leader takes for a moment to live
    small = create(pair, first, CONTENT, name := unique())
    assert small.status == 201, small.body
    assert (small.headers["upload-offset"], small.json["status"]) == ("0", "pending")
    assert len(backups(pair, name)) == 1
    pair.restart(second)
    pair.wait_healthy()
    assert patch(pair, first, small.json, 0, CONTENT).status == 204
    check(pair, small.json, CONTENT)
