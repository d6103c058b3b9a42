"""Replicas that are damaged under a running cluster: nobody gets wrong bytes, nobody counts them."""

import hashlib
import os
from pathlib import Path

from deploy.dev.cluster import Member
from deploy.dev.processes import wait_until
from tests.cluster.harness import Cluster


def replica(cluster: Cluster, node: Member, content: bytes) -> Path:
    return cluster.replica(node, hashlib.sha256(content).hexdigest())


def change_byte(path: Path, offset: int) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def is_gone_or_whole(path: Path) -> bool:
    """Nobody counts the damaged one any more; repair may have made it anew."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    except FileNotFoundError:
        return True


def until_refused(cluster: Cluster, file_uuid: str, content: bytes) -> None:
    """Every node refuses content of which nothing is left. What repair made anew, or is yet to use, goes
    too.
    """

    def is_refused() -> bool:
        for node in cluster.nodes:
            path = replica(cluster, node, content)
            path.unlink(missing_ok=True)
            (cluster.data(node) / "quarantine" / path.name).unlink(missing_ok=True)
        answers = [cluster.get(f"/files/{file_uuid}", node=node) for node in cluster.nodes]
        assert all(answer.body == content for answer in answers if answer.status != 503)
        return all((answer.status, answer.json["code"]) == (503, "unavailable") for answer in answers)

    wait_until(is_refused, what="refusals", timeout_s=60)


def test_replica_that_is_changed_after_it_was_read_is_never_served(mended: Cluster) -> None:
    cluster, content = mended, os.urandom(9_000_000)
    file_uuid = cluster.store_everywhere(content)
    first, second, third = cluster.nodes
    assert cluster.get(f"/files/{file_uuid}", node=second).body == content
    change_byte(replica(cluster, second, content), 5_000_000)
    for _ in range(2):
        assert cluster.get(f"/files/{file_uuid}", node=second).body == content
    assert is_gone_or_whole(replica(cluster, second, content))
    assert cluster.get(f"/files/{file_uuid}", node=third).body == content
    change_byte(replica(cluster, third, content), 0)
    replica(cluster, first, content).unlink()
    for node in cluster.nodes:
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert answer.status == 503 or answer.body == content, node.id
    until_refused(cluster, file_uuid, content)


def test_damaged_and_missing_replicas_are_not_noticed(mended: Cluster) -> None:
    cluster, content = mended, os.urandom(9_000_000)
    file_uuid = cluster.store_everywhere(content)
    first, second, _ = cluster.nodes
    path = replica(cluster, first, content)
    change_byte(path, 6_000_000)
    replica(cluster, second, content).unlink()
    for node in (first, second):
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert (answer.status, answer.body == content) == (200, True)
    assert is_gone_or_whole(path)
    until_refused(cluster, file_uuid, content)


def test_same_content_uploaded_again_replaces_every_damaged_replica(mended: Cluster) -> None:
    cluster, content = mended, os.urandom(1_000_000)
    file_uuid = cluster.store_everywhere(content)
    _, noticed, unnoticed = cluster.nodes
    for node in (noticed, unnoticed):
        change_byte(replica(cluster, node, content), 10)
    assert cluster.get(f"/files/{file_uuid}", node=noticed).body == content
    created = cluster.create(size_bytes=len(content))

    def is_stored() -> bool:
        answer = cluster.request("PUT", created["upload_url"], content=content)
        assert answer.status in (200, 503), answer.body  # 503: the damage was told between look and commit
        return answer.status == 200

    wait_until(is_stored, what="the same content again", timeout_s=60)
    again = created["file_uuid"]
    for node in cluster.nodes:
        assert replica(cluster, node, content).read_bytes() == content, node.id
        for known in (file_uuid, again):
            assert cluster.get(f"/files/{known}", node=node).body == content


def test_finished_content_that_rots_before_its_commit_has_to_come_again(mended: Cluster) -> None:
    cluster, content = mended, os.urandom(1000)
    url = cluster.create(size_bytes=len(content))["upload_url"]
    holder = next(node for node in cluster.nodes if url.startswith(node.url))
    others = [node for node in cluster.nodes if node is not holder]
    cluster.kill(*others)
    assert cluster.request("PUT", url, content=content).status == 503
    change_byte(replica(cluster, holder, content), 10)
    nothing = {"Content-Range": "bytes */1000"}
    answer = cluster.request("PUT", url, content=b"", headers=nothing)
    assert (answer.status, answer.headers["upload-offset"]) == (409, "0")
    cluster.restart(*others)
    cluster.wait_healthy()
    assert cluster.request("PUT", url, content=content).status == 200
    assert replica(cluster, holder, content).read_bytes() == content
