"""Small content by one request, a PUT or a PATCH: packed, on as many disks as any other, whatever fails."""

import asyncio
import base64
import hashlib
import http.client
import io
import os
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ca.identity import Identity, Role
from ca.tls import Credential
from deploy.dev_cluster import Member
from deploy.processes import LOOPBACK, wait_until
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.websocket import peer_url
from node.base.config import NodeFiles
from node.packs.store import BLOB_BYTES_MAX
from node.uploads.small_copies import encode_small_blobs
from runtime.time_limits import PATIENCE_S
from tests.cluster.gray import ANSWER_S_MAX, DISK_S, LOAD_S, SYNC_HANGS
from tests.cluster.harness import Answer, Cluster
from tests.cluster.packed import holders_of, packed_on
from tests.cluster.upload_steps import TUS, Steps, stopped

SIZE_BYTES = 4096
AT_ONCE = 24
NAME = base64.b64encode(b"lab").decode()
METHODS = pytest.mark.parametrize("method", ["PUT", "PATCH"])
BY_PUT = pytest.mark.parametrize("method", ["PUT", pytest.param("PATCH", marks=pytest.mark.long)])
BY_PATCH = pytest.mark.parametrize("method", ["PATCH", pytest.param("PUT", marks=pytest.mark.long)])
BROKEN_OFF = (ConnectionError, http.client.HTTPException, ssl.SSLError)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each test starts again what it stops."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def put(steps: Steps, node: Member | None = None, **headers: str) -> Answer:
    """All of it, at the holder or another node."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return steps.cluster.request(
        "PUT", steps.path, node=node or steps.holder, content=steps.content, headers=named, timeout_s=60
    )


def send(steps: Steps, method: str, node: Member | None = None, **headers: str) -> Answer:
    """The same by either method."""
    if method == "PUT":
        return put(steps, node, **headers)
    length = str(len(steps.content))
    return steps.patch(0, len(steps.content), node, **{"Upload_Length": length, **headers})


def is_taken(answer: Answer) -> bool:
    return answer.status in (200, 204)


def sha256_of(steps: Steps) -> str:
    return hashlib.sha256(steps.content).hexdigest()


def read(steps: Steps, node: Member) -> bytes:
    answer = steps.cluster.get(f"/files/{steps.file_uuid}", node=node)
    assert answer.status == 200, answer.body
    return answer.body


@contextmanager
def part_sent(steps: Steps, method: str, sent_bytes: int) -> Iterator[None]:
    """A request with all of it of which so much was sent, and whose client is silent then."""
    connection = http.client.HTTPSConnection(
        LOOPBACK, steps.holder.api_port, timeout=30, context=steps.cluster.context
    )
    connection.putrequest(method, steps.path)
    for name, value in (TUS | {"Upload-Offset": "0"}).items():  # of which a PUT takes no notice
        connection.putheader(name, value)
    connection.putheader("Authorization", f"Bearer {steps.cluster.admin_token}")
    connection.putheader("Content-Length", str(len(steps.content)))
    connection.endheaders()
    connection.send(steps.content[:sent_bytes])
    try:
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("size_bytes", [0, 1, SIZE_BYTES, BLOB_BYTES_MAX])
@pytest.mark.parametrize("is_declared", [True, False])
@METHODS
def test_small_content_is_packed_on_every_node_and_read_from_each(
    small: Cluster, size_bytes: int, is_declared: bool, method: str
) -> None:
    steps = Steps(small, os.urandom(size_bytes), **({} if is_declared else {"size_bytes": None}))
    answer = send(steps, method, steps.others[0])
    assert is_taken(answer), answer.body
    assert method == "PATCH" or answer.json["blob_sha256"] == sha256_of(steps)
    assert holders_of(small, sha256_of(steps)) == small.nodes
    assert not any((small.data(node) / "uploads" / steps.file_uuid).exists() for node in small.nodes)
    assert [read(steps, node) for node in small.nodes] == [steps.content] * 3
    again = send(steps, method)  # whoever lost the answer asks again
    assert (again.status, again.body) == (answer.status, answer.body)
    assert steps.offset() == size_bytes
    steps.content = os.urandom(size_bytes + 1)
    assert send(steps, method).status in (409, 413)


def test_larger_content_is_a_file(small: Cluster) -> None:
    steps = Steps(small, os.urandom(BLOB_BYTES_MAX + 1))
    assert put(steps).status == 200
    assert holders_of(small, sha256_of(steps)) == []
    small.wait_everywhere(sha256_of(steps))


def test_many_at_once_are_all_there(small: Cluster) -> None:
    uploads = [Steps(small, os.urandom(SIZE_BYTES)) for _ in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert {answer.status for answer in pool.map(put, uploads)} == {200}
    for steps in uploads:
        assert read(steps, steps.others[0]) == steps.content


@pytest.mark.parametrize(
    ("method", "headers", "code"),
    [
        ("PUT", {"Content_MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "checksum_mismatch"),
        ("PUT", {"Repr_Digest": f"sha-256=:{'A' * 43}=:"}, "checksum_mismatch"),
        ("PUT", {"If_Match": '"0"'}, "precondition_failed"),
        ("PATCH", {"Upload_Checksum": f"sha256 {'A' * 43}="}, "checksum_mismatch"),
        ("PATCH", {"Repr_Digest": f"sha-256=:{'A' * 43}=:"}, "checksum_mismatch"),
        ("PATCH", {"If_Match": '"0"'}, "precondition_failed"),
        ("PATCH", {"Content_Type": "text/plain"}, "unsupported_media_type"),
        ("PATCH", {"Upload_Length": str(SIZE_BYTES + 1)}, "conflict"),
    ],
)
def test_refused_content_leaves_nothing(
    small: Cluster, method: str, headers: dict[str, Any], code: str
) -> None:
    steps = Steps(small, os.urandom(SIZE_BYTES))
    before = [packed_on(small, node) for node in small.nodes]
    answer = send(steps, method, **headers)
    assert answer.json["code"] == code, answer.body
    assert steps.offset() == 0
    assert [packed_on(small, node) for node in small.nodes] == before
    assert is_taken(send(steps, method))


@METHODS
def test_content_that_its_creator_declared_otherwise_is_refused(small: Cluster, method: str) -> None:
    steps = Steps(small, os.urandom(SIZE_BYTES), blob_sha256="0" * 64)
    assert send(steps, method).json["code"] == "checksum_mismatch"
    assert holders_of(small, sha256_of(steps)) == []


@BY_PATCH
def test_body_that_breaks_off_goes_on_where_it_ended(small: Cluster, method: str) -> None:
    steps = Steps(small, os.urandom(SIZE_BYTES))
    with part_sent(steps, method, 1000):
        wait_until(lambda: steps.offset() == 1000, what="the bytes that came", timeout_s=30)
    assert steps.patch(1000, SIZE_BYTES).status == 204
    assert read(steps, steps.others[1]) == steps.content
    assert sha256_of(steps) in packed_on(small, steps.holder)
    again = Steps(small, os.urandom(SIZE_BYTES))
    with part_sent(again, method, 1000):
        wait_until(lambda: again.offset() == 1000, what="the bytes that came", timeout_s=30)
    assert put(again).status == 200  # all of it anew
    assert read(again, again.others[0]) == again.content


def test_node_that_hangs_keeps_nobody_waiting_long_and_gets_its_copy_later(small: Cluster) -> None:
    uploads = [Steps(small, os.urandom(SIZE_BYTES)) for _ in range(6)]
    uploads = [steps for steps in uploads if steps.holder != small.nodes[2]]
    with stopped(small, small.nodes[2]):
        for steps in uploads:
            answer = steps.cluster.request(
                "PUT", steps.path, node=steps.holder, content=steps.content, timeout_s=PATIENCE_S + LOAD_S
            )
            assert answer.status == 200, answer.body
    small.wait_healthy()
    names = {sha256_of(steps) for steps in uploads}
    wait_until(
        lambda: names <= packed_on(small, small.nodes[2]),
        what="the copies of the node that hung",
        timeout_s=90,
    )


@BY_PUT
def test_too_few_nodes_keep_the_bytes_for_later(small: Cluster, method: str) -> None:
    steps = Steps(small, os.urandom(SIZE_BYTES))
    with small.down(*steps.others):
        answer = send(steps, method)
        assert answer.status == 503, answer.body
    assert steps.offset_once_told(steps.holder) in (0, SIZE_BYTES)
    assert is_taken(send(steps, method))
    assert read(steps, steps.others[0]) == steps.content


@pytest.mark.long
@METHODS
def test_what_cannot_be_completed_is_kept_whole_in_place_of_what_came_before(
    small: Cluster, method: str
) -> None:
    steps = Steps(small, os.urandom(SIZE_BYTES))

    def is_kept() -> bool:  # once somebody asks where the upload of a silent client stands
        small.request("HEAD", steps.path, node=steps.holder, headers=TUS, timeout_s=60)
        return steps.lying_bytes(steps.holder) == 1000

    with small.down(*steps.others):
        with part_sent(steps, method, 1000):
            wait_until(is_kept, what="the bytes that came", timeout_s=60)
        wait_until(lambda: send(steps, method).status == 503, what="a refusal", timeout_s=60)
        assert steps.lying_bytes(steps.holder) == SIZE_BYTES
    assert is_taken(send(steps, method)) or steps.offset() == SIZE_BYTES
    assert read(steps, steps.others[0]) == steps.content


@BY_PUT
def test_what_was_answered_outlives_its_node_and_is_there_when_it_comes_back(
    small: Cluster, method: str
) -> None:
    steps = Steps(small, os.urandom(SIZE_BYTES))
    assert is_taken(send(steps, method))
    with small.down(steps.holder):
        assert read(steps, steps.others[0]) == steps.content
    with small.down(*steps.others):
        wait_until(
            lambda: small.get(f"/files/{steps.file_uuid}", node=steps.holder).body == steps.content,
            what="the content from the node that was killed",
            timeout_s=30,
        )


@pytest.mark.long
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_disk_that_hangs_keeps_nobody_waiting_for_ever(small: Cluster, tmp_path: Path, method: str) -> None:
    """The client is broken off, or told, and can ask another node."""
    steps = Steps(small, os.urandom(SIZE_BYTES))
    is_creation = method == "POST"
    fields = {"Upload-Length": str(SIZE_BYTES), "Upload-Offset": "0"}
    if is_creation:
        fields |= {"Upload-Metadata": f"filename {NAME}, project_id {NAME}"}
    began_s = time.monotonic()
    with SYNC_HANGS.makes(small, steps.holder, tmp_path / "strace.log"), suppress(*BROKEN_OFF):
        answer = small.request(
            method,
            "/project-files" if is_creation else steps.path,
            node=steps.holder,
            content=steps.content,
            headers={} if method == "PUT" else TUS | fields,
            timeout_s=ANSWER_S_MAX,
        )
        assert answer.status in (200, 201, 204, 503), answer.body
    assert time.monotonic() - began_s < DISK_S + PATIENCE_S + LOAD_S
    small.wait_healthy()
    assert put(steps).status == 200


def test_peer_port_takes_no_blob_under_another_s_name(small: Cluster) -> None:
    sender, receiver = small.nodes[:2]
    files = NodeFiles(small.data(sender))
    identity = files.read_config().identity
    context = MemberContexts(Credential(files.credential_path, files.root.read_text()), identity).client()
    content = os.urandom(100)
    good = encode_small_blobs([(hashlib.sha256(content).hexdigest(), content)])
    bad = encode_small_blobs([("0" * 64, content)])
    large = bytes(BLOB_BYTES_MAX + 1)
    too_large = encode_small_blobs([(hashlib.sha256(large).hexdigest(), large)])
    before = packed_on(small, receiver)
    statuses = asyncio.run(sent_to(receiver, identity.cluster, context, [good + bad, good[:-1], too_large]))
    assert statuses == [400, 400, 413]
    assert packed_on(small, receiver) == before
    assert asyncio.run(sent_to(receiver, identity.cluster, context, [b"", good])) == [200, 200]
    assert packed_on(small, receiver) == before | {hashlib.sha256(content).hexdigest()}


async def sent_to(node: Member, cluster: str, context: ssl.SSLContext, bodies: list[bytes]) -> list[int]:
    """How a node answers these bodies on its peer port."""
    name = Identity(cluster, Role.NODE, node.id).dns_name
    url, statuses = peer_url(LOOPBACK, node.peer_port, "/small-blobs"), list[int]()
    async with aiohttp.ClientSession() as session:
        for body in bodies:
            async with session.post(url, data=io.BytesIO(body), ssl=context, server_hostname=name) as answer:
                statuses.append(answer.status)
    return statuses
