"""Uploads whose other replicas find no room: they end, with an answer that says so."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.small_disks import fill, move_to_small_disks

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
MIB = 1 << 20
DISK_BYTES = 200 * MIB
LEFT_BYTES = 70 * MIB  # its reserve among them
CONTENT = os.urandom(120 * MIB)


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
    answer = cluster.request("PUT", path, content=CONTENT, node=holder, timeout_s=120)
    assert (answer.status, answer.json["code"]) == (507, "insufficient_storage"), answer.body
    for file in ballast:
        file.unlink()
    cluster.wait_healthy()
    answer = cluster.request("PUT", path, content=CONTENT, node=holder, timeout_s=120)
    assert answer.status == 200, answer.body
    assert cluster.get(f"/files/{created['file_uuid']}", node=cluster.nodes[1]).body == CONTENT
