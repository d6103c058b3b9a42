"""Replicas that are damaged under a running cluster: nobody gets wrong bytes, nobody counts them."""

import hashlib
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.packs.store import BLOB_BYTES_MAX
from tests.blobs_on_disk import change_byte_on, content_on, lose_on
from tests.cluster.harness import Cluster
from tests.packed_blobs import exchange_packed, packed_content

SIZES = pytest.mark.parametrize("size_bytes", [4_000, 9_000_000], ids=["packed", "file"])


def replica(cluster: Cluster, node: Member, content: bytes) -> Path:
    """Of content that is a file on the disks of nodes."""
    return cluster.replica(node, name_of(content))


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def spoil(cluster: Cluster, node: Member, content: bytes, offset: int) -> None:
    change_byte_on(cluster.data(node), name_of(content), offset)


def lose(cluster: Cluster, node: Member, content: bytes) -> None:
    lose_on(cluster.data(node), name_of(content))


def is_gone_or_whole(cluster: Cluster, node: Member, content: bytes) -> bool:
    """Nobody counts the damaged one any more; repair may have made it anew."""
    return content_on(cluster.data(node), name_of(content)) in (None, content)


def until_refused(cluster: Cluster, file_uuid: str, content: bytes) -> None:
    """Every node refuses content of which nothing is left. What repair made anew, or is yet to use, goes
    too.
    """

    def is_refused() -> bool:
        for node in cluster.nodes:
            lose(cluster, node, content)
            (cluster.data(node) / "quarantine" / name_of(content)).unlink(missing_ok=True)
        answers = [cluster.get(f"/files/{file_uuid}", node=node) for node in cluster.nodes]
        assert all(answer.body == content for answer in answers if answer.status != 503)
        return all(answer.status == 503 and answer.json["code"] == "unavailable" for answer in answers)

    wait_until(is_refused, what="refusals", timeout_s=60)


@SIZES
def test_replica_that_is_changed_after_it_was_read_is_never_served(mended: Cluster, size_bytes: int) -> None:
    cluster, content = mended, os.urandom(size_bytes)
    file_uuid = cluster.store_everywhere(content)
    first, second, third = cluster.nodes
    assert cluster.get(f"/files/{file_uuid}", node=second).body == content
    spoil(cluster, second, content, size_bytes // 2)
    for _ in range(2):
        assert cluster.get(f"/files/{file_uuid}", node=second).body == content
    if size_bytes > BLOB_BYTES_MAX:  # what is packed was read into memory before, and is served from there
        assert is_gone_or_whole(cluster, second, content)
    assert cluster.get(f"/files/{file_uuid}", node=third).body == content
    spoil(cluster, third, content, 0)
    lose(cluster, first, content)
    for node in cluster.nodes:
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert answer.status == 503 or answer.body == content, node.id
    until_refused(cluster, file_uuid, content)


@SIZES
def test_damaged_and_missing_replicas_are_not_noticed(mended: Cluster, size_bytes: int) -> None:
    cluster, content = mended, os.urandom(size_bytes)
    file_uuid = cluster.store_everywhere(content)
    first, second, _ = cluster.nodes
    spoil(cluster, first, content, size_bytes * 2 // 3)
    lose(cluster, second, content)
    for node in (first, second):
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert (answer.status, answer.body == content) == (200, True)
    assert is_gone_or_whole(cluster, first, content)
    until_refused(cluster, file_uuid, content)


@SIZES
def test_same_content_uploaded_again_replaces_every_damaged_replica(mended: Cluster, size_bytes: int) -> None:
    cluster, content = mended, os.urandom(size_bytes)
    file_uuid = cluster.store_everywhere(content)
    _, noticed, unnoticed = cluster.nodes
    for node in (noticed, unnoticed):
        spoil(cluster, node, content, 10)
    assert cluster.get(f"/files/{file_uuid}", node=noticed).body == content
    created = cluster.create(size_bytes=len(content))

    def is_stored() -> bool:
        answer = cluster.request("PUT", created["upload_url"], content=content)
        assert answer.status in (200, 503), answer.body  # 503: the damage was told between look and commit
        return answer.status == 200

    wait_until(is_stored, what="the same content again", timeout_s=60)
    again = created["file_uuid"]
    for node in cluster.nodes:
        assert content_on(cluster.data(node), name_of(content)) == content, node.id
        for known in (file_uuid, again):
            assert cluster.get(f"/files/{known}", node=node).body == content


@pytest.mark.long
def test_finished_content_that_rots_before_its_commit_has_to_come_again(mended: Cluster) -> None:
    cluster, content = mended, os.urandom(200_000)
    url = cluster.create(size_bytes=len(content))["upload_url"]
    holder = next(node for node in cluster.nodes if url.startswith(node.url))
    others = [node for node in cluster.nodes if node is not holder]
    cluster.kill(*others)
    assert cluster.request("PUT", url, content=content).status == 503
    spoil(cluster, holder, content, 10)
    nothing = {"Content-Range": "bytes */200000"}
    answer = cluster.request("PUT", url, content=b"", headers=nothing)
    assert (answer.status, answer.headers["upload-offset"]) == (409, "0")
    cluster.restart(*others)
    cluster.wait_healthy()
    assert cluster.request("PUT", url, content=content).status == 200
    assert content_on(cluster.data(holder), name_of(content)) == content


def test_node_whose_index_of_packs_is_wrong_sends_no_wrong_byte_and_rebuilds_it(mended: Cluster) -> None:
    """Each blob lies where the index says that the other does: other nodes serve both meanwhile."""
    cluster, contents = mended, [os.urandom(4_000) for _ in range(2)]
    files = {cluster.store_everywhere(content): content for content in contents}
    node = cluster.nodes[0]
    data, names = cluster.data(node), [name_of(content) for content in contents]
    exchange_packed(data, *names)
    for file_uuid, content in files.items():
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert (answer.status, answer.body) == (200, content)

    def is_rebuilt() -> bool:
        with suppress(sqlite3.Error):  # it goes, and another comes
            found = [packed_content(data, name) for name in names]
            return all(each and each.read() == content for each, content in zip(found, contents, strict=True))
        return False

    wait_until(is_rebuilt, what="an index made of the packs", timeout_s=60)
    for file_uuid, content in files.items():
        assert cluster.get(f"/files/{file_uuid}", node=node).body == content
