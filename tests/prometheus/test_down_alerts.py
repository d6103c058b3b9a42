"""Alerts about a node that is down, and then removed: what is heard of it is what is so now."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.test_coordinators import done
from tests.prometheus.scraping import SCRAPED_S
from tests.prometheus.test_alerts import LEFT_BYTES, fires, scraped, small_disk

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
        node = started.nodes[-1]
        started.terminate(node)
        kept = started.data(node).rename(aside / node.id)
        started.data(node).mkdir(mode=0o700)
        disks.enter_context(small_disk(started.data(node)))
        shutil.copytree(kept, started.data(node), ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)
        started.restart(node)
        started.wait_healthy()
        yield started


def test_full_disk_of_a_node_that_is_down_is_nothing_to_see_to(scraping: str, cluster: Cluster) -> None:
    """Nothing can be made room for there; that it is down is told. Removed and started, it is cut off."""
    node = cluster.nodes[-1]
    scraped(scraping, "filestore_raft_is_leader == 1")
    room = shutil.disk_usage(cluster.data(node)).free
    with (cluster.data(node) / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room - LEFT_BYTES)
    wait_until(lambda: fires(scraping, "FilestoreDiskLow"), what="the alert", timeout_s=SCRAPED_S)
    cluster.kill(node)
    wait_until(lambda: fires(scraping, "FilestoreNodeDown"), what="a node that is down", timeout_s=SCRAPED_S)
    assert not fires(scraping, "FilestoreDiskLow")

    done(cluster, "node", "remove", node.id, "--force")
    wait_until(lambda: not fires(scraping, "FilestoreNodeDown"), what="its removal", timeout_s=SCRAPED_S)
    assert not fires(scraping, "FilestoreViewStale")
    (cluster.data(node) / "ballast").unlink()
    cluster.restart(node)
    wait_until(lambda: fires(scraping, "FilestoreViewStale"), what="that it is cut off", timeout_s=SCRAPED_S)
    cluster.terminate(node)
    wait_until(lambda: not fires(scraping, "FilestoreViewStale"), what="its end", timeout_s=SCRAPED_S)
