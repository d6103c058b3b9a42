"""Four nodes, two copies: nodes that hold nothing of a file, and nodes that stand in for dead ones."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.model.placement import Candidate, choose
from tests.cluster.harness import Cluster
from tests.cluster.test_damage import replica
from tests.cluster.test_handover import without_room
from tests.cluster.test_metrics import families, value

pytestmark = pytest.mark.long  # run by `make long`

ANSWER_S_MAX = 15.0  # a peer that hangs for good would cost 30 s, and more for its sync


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", node_count=4, replicas=2, write_quorum=2) as started:
        yield started


def holders_of(cluster: Cluster, content: bytes) -> list[Member]:
    return [node for node in cluster.nodes if replica(cluster, node, content).exists()]


def until_known(cluster: Cluster, node: Member) -> None:
    """The node's view is newer than what was changed before this was called."""
    since_s = time.monotonic()
    wait_until(
        lambda: value(families(cluster, node), "filestore_view_age_seconds") < time.monotonic() - since_s,
        what="a view that was asked for since",
        timeout_s=30,
    )


def test_node_without_a_copy_redirects_who_asks_for_it_and_serves_who_does_not(four: Cluster) -> None:
    content = os.urandom(200_000)
    file_uuid = four.store(content)
    holders = holders_of(four, content)
    assert len(holders) == 2
    for node in four.nodes:
        path = f"/files/{file_uuid}"
        assert four.get(path, node=node).body == content
        for asked, headers in ((f"{path}?redirect=1", {}), (path, {"Prefer": "redirect"})):
            answer = four.get(asked, node=node, headers=headers)
            if node in holders:
                assert (answer.status, answer.body) == (200, content)
                continue
            assert (answer.status, answer.headers["cache-control"]) == (307, "private, no-store")
            assert answer.headers["location"] in [f"{holder.url}/api/v1{path}" for holder in holders]
            assert four.get(answer.headers["location"]).body == content


def test_another_node_stands_in_for_one_of_the_placement_that_died(four: Cluster) -> None:
    content = os.urandom(200_000)
    created = four.create(size_bytes=len(content))
    url = created["upload_url"]
    candidates = [Candidate(node.id, "", 100, 1 << 40, 1 << 40) for node in four.nodes]
    holder, doomed = choose(created["file_uuid"], candidates, 2)
    dead = next(node for node in four.nodes if node.id == doomed)
    assert url.startswith(next(node.url for node in four.nodes if node.id == holder))
    four.kill(dead)
    answer = four.request("PUT", url, content=content, timeout_s=60)
    assert (answer.status, answer.json["status"]) == (200, "available")
    assert len(holders_of(four, content)) == 2
    for node in four.nodes:
        if node != dead:
            assert four.get(f"/files/{created['file_uuid']}", node=node).body == content


def test_content_is_placed_anew_when_its_whole_placement_is_full(four: Cluster, tmp_path: Path) -> None:
    content = os.urandom(8 << 20)
    created = four.create(size_bytes=len(content))
    candidates = [Candidate(node.id, "", 100, 1 << 40, 1 << 40) for node in four.nodes]
    chosen = choose(created["file_uuid"], candidates, 2)
    full = [node for node in four.nodes if node.id in chosen]
    with without_room(four, full, tmp_path):
        answer = four.request("PUT", created["upload_url"], content=content, timeout_s=60)
    assert (answer.status, answer.json["status"]) == (200, "available"), answer.body
    assert not set(holders_of(four, content)) & set(full)
    for node in four.nodes:
        assert four.get(f"/files/{created['file_uuid']}", node=node).body == content


def test_draining_node_stands_in_for_nobody(four: Cluster) -> None:
    content = os.urandom(200_000)
    created = four.create(size_bytes=len(content))
    candidates = [Candidate(node.id, "", 100, 1 << 40, 1 << 40) for node in four.nodes]
    holder, doomed = choose(created["file_uuid"], candidates, 2)
    draining, last = (node for node in four.nodes if node.id not in (holder, doomed))
    assert four.post(f"/cluster/nodes/{draining.id}/drain").status == 200
    until_known(four, next(node for node in four.nodes if node.id == holder))
    four.kill(next(node for node in four.nodes if node.id == doomed))
    answer = four.request("PUT", created["upload_url"], content=content, timeout_s=60)
    assert (answer.status, answer.json["status"]) == (200, "available")
    assert {node.id for node in holders_of(four, content)} == {holder, last.id}


def test_peer_that_hangs_does_not_hold_up_an_upload_with_enough_copies(own_cluster: Cluster) -> None:
    content = os.urandom(200_000)
    own_cluster.store(os.urandom(1000))  # so that nodes have connections to each other
    created = own_cluster.create(size_bytes=len(content))
    hanging = next(node for node in own_cluster.nodes if not created["upload_url"].startswith(node.url))
    os.kill(own_cluster.pid(hanging), signal.SIGSTOP)
    try:
        started_s = time.monotonic()
        assert own_cluster.request("PUT", created["upload_url"], content=content, timeout_s=60).status == 200
        assert time.monotonic() - started_s < ANSWER_S_MAX
        assert len(holders_of(own_cluster, content)) == 2
    finally:
        os.kill(own_cluster.pid(hanging), signal.SIGCONT)
