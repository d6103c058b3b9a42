"""Alerts about a node that is down, and then removed: what is heard of it is what is so now."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.small_disks import fill, move_to_small_disks
from tests.cluster.test_coordinators import done
from tests.prometheus.scraping import SCRAPED_S, asked
from tests.prometheus.test_alerts import DISK_BYTES, LEFT_BYTES, fires, scraped

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node that is silent for three seconds is down; the last one has a small disk."""
    directory, aside = tmp_path_factory.mktemp("down"), tmp_path_factory.mktemp("aside")
    options = ("--down-after", "3")
    with (
        ExitStack() as disks,
        Cluster(directory / "cluster", node_count=4, coordinator_options=options) as started,
    ):
        move_to_small_disks(started, started.nodes[-1:], disks, aside=aside, size_bytes=DISK_BYTES)
        yield started


def readiness(cluster: Cluster, node: Member) -> bytes:
    """What it says of itself; nothing before it listens."""
    try:
        return cluster.get("/readyz", node=node, token=None).body
    except OSError:
        return b""


def test_full_disk_of_a_node_that_is_down_is_nothing_to_see_to(scraping: str, cluster: Cluster) -> None:
    """Nothing can be made room for there; that it is down is told. Removed, it is no member to be watched."""
    node = cluster.nodes[-1]
    scraped(scraping, "filestore_raft_is_leader == 1")
    ballast = fill(cluster, node, LEFT_BYTES)
    wait_until(lambda: fires(scraping, "FilestoreDiskLow"), what="the alert", timeout_s=SCRAPED_S)
    cluster.kill(node)
    wait_until(lambda: fires(scraping, "FilestoreNodeDown"), what="a node that is down", timeout_s=SCRAPED_S)
    assert not fires(scraping, "FilestoreDiskLow")

    done(cluster, "node", "remove", node.id, "--force")
    wait_until(lambda: not fires(scraping, "FilestoreNodeDown"), what="its removal", timeout_s=SCRAPED_S)
    assert not fires(scraping, "FilestoreViewStale")
    ballast.unlink()
    of_node = f"up{{instance='127.0.0.1:{node.api_port}'}}"
    wait_until(lambda: not asked(scraping, of_node), what="that nobody asks it", timeout_s=SCRAPED_S)
    cluster.restart(node)
    wait_until(
        lambda: b"was removed" in readiness(cluster, node),
        what="that it says why it serves nothing",
        timeout_s=SCRAPED_S,
    )
    assert not fires(scraping, "FilestoreViewStale")
    cluster.terminate(node)
