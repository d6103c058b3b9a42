"""Replicas fetched and passed on by real nodes: kill -9, sources that die or rot, several at once.

Every file has three copies; the fetching node's is taken away behind its back before each test.
"""

import hashlib
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from ca.tls import peer_client_context
from deploy.dev_cluster import CLUSTER_NAME, Member
from node.base.config import NodeFiles
from node.storage.partial_blob import HEADER_BYTES
from tests.blobs_on_disk import change_byte
from tests.cluster.harness import Answer, Cluster, random_file

BIG_BYTES = 160 << 20  # ten ranges, four of them under way when the first is kept
SMALL_BYTES = 40_000_000  # three ranges
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("fetching")) as started:
        yield started


@pytest.fixture(scope="module")
def big(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The file_uuid and sha256 of a big file."""
    path = tmp_path_factory.mktemp("content") / "big"
    sha256 = random_file(path, BIG_BYTES)
    file_uuid = cluster.store(path.read_bytes())
    path.unlink()
    cluster.wait_everywhere(sha256)
    return file_uuid, sha256


@pytest.fixture
def big_sha256(big: tuple[str, str]) -> str:
    return big[1]


@pytest.fixture
def small_sha256(cluster: Cluster) -> str:
    content = os.urandom(SMALL_BYTES)
    cluster.store_everywhere(content)
    return hashlib.sha256(content).hexdigest()


def take_away(cluster: Cluster, node: Member, sha256: str) -> None:
    for path in (cluster.replica(node, sha256), cluster.replica(node, f"{sha256}.sums")):
        path.unlink(missing_ok=True)


def kept_bytes(cluster: Cluster, node: Member, sha256: str) -> int:
    """How much the state of a partial replica says, beyond its header."""
    state = cluster.data(node) / "partials" / sha256 / "state"
    return max(0, state.stat().st_size - HEADER_BYTES) if state.exists() else 0


def is_whole(cluster: Cluster, node: Member, sha256: str) -> bool:
    with cluster.replica(node, sha256).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def counted(cluster: Cluster, node: Member, direction: str) -> float:
    text = cluster.get("/metrics", node=node).body.decode()
    found = re.search(
        rf'^filestore_replica_bytes_total{{direction="{direction}"}} (\S+)$', text, re.MULTILINE
    )
    assert found is not None
    return float(found[1])


def pull(cluster: Cluster, target: Member, sha256: str, size_bytes: int, sources: list[Member]) -> Answer:
    """Asked of the target's peer port, with the certificate of another node."""
    asking = next(node for node in cluster.nodes if node is not target)
    credential = NodeFiles(cluster.data(asking)).credential()
    context = peer_client_context(credential.path, credential.root_pem)
    body = json.dumps({"size_bytes": size_bytes, "sources": [source.id for source in sources]})
    connection = http.client.HTTPConnection("127.0.0.1", target.peer_port)
    plain = socket.create_connection(("127.0.0.1", target.peer_port), DEADLINE_S)
    connection.sock = context.wrap_socket(plain, server_hostname=f"{target.id}.node.{CLUSTER_NAME}.internal")
    with closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/blobs/{sha256}/pull", body, headers)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())


def pull_until(
    cluster: Cluster, target: Member, sha256: str, sources: list[Member], act: Callable[[], None]
) -> list[Answer]:
    """Pull the big blob, and do something once its first range was kept; the answer, if one came.

    Again from nothing while it is over before that: this process may stand still for longer than it takes.
    """
    while True:
        take_away(cluster, target, sha256)
        answers: list[Answer] = []
        if is_begun(cluster, target, sha256, sources, answers, act):
            return answers


def is_begun(
    cluster: Cluster,
    target: Member,
    sha256: str,
    sources: list[Member],
    answers: list[Answer],
    act: Callable[[], None],
) -> bool:
    """Whether the pull had not ended before there was something to do."""

    def run() -> None:
        with suppress(OSError, http.client.HTTPException):  # the target may be killed
            answers.append(pull(cluster, target, sha256, BIG_BYTES, sources))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        give_up_at = time.monotonic() + DEADLINE_S
        while not kept_bytes(cluster, target, sha256):
            if not thread.is_alive():
                assert [answer.status for answer in answers] == [200]
                return False
            assert time.monotonic() < give_up_at
            time.sleep(0.001)  # closer than `wait_until` looks
        act()
    finally:
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    return True


@pytest.mark.long
def test_fetch_goes_on_where_a_killed_node_stopped(cluster: Cluster, big_sha256: str) -> None:
    target, *sources = cluster.nodes
    while pull_until(cluster, target, big_sha256, sources, lambda: cluster.kill(target)):
        cluster.restart(target)  # it had ended when the kill came
        cluster.wait_healthy()
    assert not cluster.replica(target, big_sha256).exists()
    cluster.restart(target)
    cluster.wait_healthy()
    assert pull(cluster, target, big_sha256, BIG_BYTES, sources).status == 200
    assert 0 < counted(cluster, target, "received") < BIG_BYTES
    assert is_whole(cluster, target, big_sha256)
    assert list((cluster.data(target) / "partials").iterdir()) == []


@pytest.mark.long
def test_source_that_is_killed_is_followed_by_the_other(cluster: Cluster, big_sha256: str) -> None:
    target, doomed, other = cluster.nodes
    answers = pull_until(cluster, target, big_sha256, [doomed, other], lambda: cluster.kill(doomed))
    assert [answer.status for answer in answers] == [200]
    assert is_whole(cluster, target, big_sha256)
    cluster.restart(doomed)
    cluster.wait_healthy()


def test_download_goes_on_when_the_node_that_sends_it_dies(cluster: Cluster, big: tuple[str, str]) -> None:
    asked, *sources = cluster.nodes
    file_uuid, sha256 = big
    take_away(cluster, asked, sha256)
    before = [counted(cluster, source, "sent") for source in sources]
    connection = http.client.HTTPSConnection(
        "127.0.0.1", asked.api_port, timeout=DEADLINE_S, context=cluster.context
    )
    with closing(connection):
        headers = {"Authorization": f"Bearer {cluster.admin_token}"}
        connection.request("GET", f"/api/v1/files/{file_uuid}", headers=headers)
        response = connection.getresponse()
        content = bytearray(response.read(1 << 20))
        after = [counted(cluster, source, "sent") for source in sources]
        # Both send where repair has heard of the loss and fetches too; then either will do.
        sending = next(node for node, old, new in zip(sources, before, after, strict=True) if new > old)
        cluster.kill(sending)
        while piece := response.read(1 << 20):
            content += piece
    assert len(content) == BIG_BYTES  # http.client tells nobody when a body ends early
    assert hashlib.sha256(content).hexdigest() == sha256
    cluster.restart(sending)
    cluster.wait_healthy()


def test_two_sources_are_used_at_once(cluster: Cluster, small_sha256: str) -> None:
    target, *sources = cluster.nodes
    take_away(cluster, target, small_sha256)
    before = [counted(cluster, source, "sent") for source in sources]
    assert pull(cluster, target, small_sha256, SMALL_BYTES, sources).status == 200
    after = [counted(cluster, source, "sent") for source in sources]
    sent = [late - early for early, late in zip(before, after, strict=True)]
    assert all(sent), sent
    assert sum(sent) >= SMALL_BYTES
    assert is_whole(cluster, target, small_sha256)


def test_flipped_byte_at_a_source_is_not_taken_over(cluster: Cluster, small_sha256: str) -> None:
    target, rotten, sound = cluster.nodes
    take_away(cluster, target, small_sha256)
    for offset in (10, 20_000_000, SMALL_BYTES - 10):  # one in each range: whichever it is asked for
        change_byte(cluster.replica(rotten, small_sha256), offset)
    assert pull(cluster, target, small_sha256, SMALL_BYTES, [rotten, sound]).status == 200
    assert is_whole(cluster, target, small_sha256)
    # Gone, or made anew by repair meanwhile.
    assert not cluster.replica(rotten, small_sha256).exists() or is_whole(cluster, rotten, small_sha256)


def test_nothing_is_installed_when_every_source_is_bad(cluster: Cluster, small_sha256: str) -> None:
    target, rotten, missing = cluster.nodes
    for node in (target, missing):
        take_away(cluster, node, small_sha256)
    change_byte(cluster.replica(rotten, small_sha256), SMALL_BYTES - 10)
    answer = pull(cluster, target, small_sha256, SMALL_BYTES, [rotten, missing])
    assert (answer.status, answer.json["code"]) == (503, "unavailable")
    assert not cluster.replica(target, small_sha256).exists()


def test_client_port_has_no_pull(cluster: Cluster) -> None:
    url = f"{cluster.nodes[0].url}/blobs/{'0' * 64}/pull"
    assert cluster.post(url, {"size_bytes": 1, "sources": ["node-2"]}).status == 404
