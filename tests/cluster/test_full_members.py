"""Members whose disk is full: uploads end with an answer that says so, and deletions give room back."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.packed import packs_of
from tests.cluster.small_disks import fill, move_to_small_disks
from tests.cluster.test_space import collect

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
MIB = 1 << 20
DISK_BYTES = 200 * MIB
LEFT_BYTES = 70 * MIB  # its reserve among them
FILES, SMALL_BYTES = 400, 120_000
FREED_S = 180.0  # a minute for the sweep of the second worker, half of one for packs, and as much again


@cache
def whole_content() -> bytes:
    """No two segments are alike."""
    return os.urandom(MIB + 1) * 119


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two of three nodes have a small disk."""
    directory, aside = tmp_path_factory.mktemp("full"), tmp_path_factory.mktemp("aside")
    with ExitStack() as disks, Cluster(directory / "cluster") as started:
        move_to_small_disks(started, started.nodes[1:], disks, aside=aside, size_bytes=DISK_BYTES)
        yield started


def test_upload_that_other_nodes_have_no_room_for_is_refused_and_goes_on_when_they_have(
    cluster: Cluster,
) -> None:
    """Each takes a part of it, loses what was not durable, and would take that again, for ever."""
    holder = cluster.nodes[0]
    ballast = [fill(cluster, node, LEFT_BYTES) for node in cluster.nodes[1:]]
    created = cluster.create(node=holder)
    while not created["upload_url"].startswith(holder.url):
        created = cluster.create(node=holder)
    path = urlsplit(created["upload_url"]).path
    answer = cluster.request("PUT", path, content=whole_content(), node=holder, timeout_s=120)
    assert (answer.status, answer.json["code"]) == (507, "insufficient_storage"), answer.body
    for file in ballast:
        file.unlink()
    cluster.wait_healthy()
    answer = cluster.request("PUT", path, content=whole_content(), node=holder, timeout_s=120)
    assert answer.status == 200, answer.body
    assert cluster.get(f"/files/{created['file_uuid']}", node=cluster.nodes[1]).body == whole_content()


def test_full_disk_is_freed_by_deleting_small_files_whichever_worker_has_stored_them(tmp_path: Path) -> None:
    options = ("--workers", "2")
    with (
        ExitStack() as disks,
        Cluster(
            tmp_path / "cluster", node_count=1, replicas=1, write_quorum=1, node_options=options
        ) as cluster,
    ):
        (node,) = cluster.nodes
        move_to_small_disks(cluster, [node], disks, aside=tmp_path, size_bytes=DISK_BYTES)

        def packed_bytes() -> int:
            return sum(path.stat().st_size for path in packs_of(cluster, node))

        files = [cluster.store(os.urandom(SMALL_BYTES)) for _ in range(FILES)]
        assert packed_bytes() > FILES * SMALL_BYTES
        assert len([path for path in packs_of(cluster, node) if path.stat().st_size > 8 * MIB]) == 2
        fill(cluster, node, MIB)
        for file_uuid in files:
            assert cluster.request("DELETE", f"/files/{file_uuid}?now=1").status == 200
        collect(cluster)
        wait_until(lambda: packed_bytes() < MIB, what="room on the disk", timeout_s=FREED_S)
