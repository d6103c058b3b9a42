"""Alerts at a cluster to which just that happens: each is heard of when it should be, and not before."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.small_disks import fill, move_to_small_disks
from tests.cluster.test_coordinators import Guest, add, done, prepared, running, wait_voter
from tests.cluster.worker_processes import pids_of
from tests.prometheus.scraping import SCRAPED_S, asked, rule

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
MIB = 1 << 20
TERMS_MIN = 6  # before anything is scraped: more than the alert about changes of leader allows
DISK_BYTES = 64 * MIB
LEFT_BYTES = MIB  # of such a disk: less than the reserve


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes of two processes; two of three have a small disk. The lead has changed hands often."""
    directory, aside = tmp_path_factory.mktemp("alerts"), tmp_path_factory.mktemp("aside")
    with ExitStack() as disks, Cluster(directory / "cluster", node_options=("--workers", "2")) as started:
        move_to_small_disks(started, started.nodes[1:], disks, aside=aside, size_bytes=DISK_BYTES)
        for _ in range(TERMS_MIN):
            done(started, "coordinator", "transfer-leader")
        yield started


@pytest.fixture(scope="module")
def guest(cluster: Cluster) -> Guest:
    """A coordinator that is not started yet, nor added."""
    return prepared(cluster, "c4")


@pytest.fixture(scope="module")
def guests(guest: Guest) -> list[Member]:
    """It is scraped."""
    return [guest.member]


def scraped(address: str, condition: str) -> None:
    """Returns once Prometheus has seen that."""
    wait_until(lambda: bool(asked(address, condition)), what=condition, timeout_s=SCRAPED_S)


def fires(address: str, alert: str) -> bool:
    """Whether its expression holds now, however long it would have to."""
    found = asked(address, rule(address, alert))
    assert found is not None
    return bool(found)


def test_uploads_that_are_refused_for_want_of_room_get_somebody_up(scraping: str, cluster: Cluster) -> None:
    """Every node lives and its disk takes bytes, so nothing else does."""
    scraped(scraping, "filestore_raft_is_leader == 1")
    assert not fires(scraping, "FilestoreTooFewNodes")
    ballast = [fill(cluster, node, LEFT_BYTES) for node in cluster.nodes[1:]]
    wait_until(
        lambda: cluster.filestore("status").returncode == 6, what="a full cluster", timeout_s=SCRAPED_S
    )
    assert cluster.post("/project-files", {"filename": "lab", "project_id": "lab"}).status == 507
    assert [each["disk"] for each in cluster.get("/cluster/status").json["nodes"]] == ["ok", "low", "low"]
    wait_until(lambda: fires(scraping, "FilestoreTooFewNodes"), what="the alert", timeout_s=SCRAPED_S)
    assert not fires(scraping, "FilestoreDiskNotWritable")
    for file in ballast:
        file.unlink()
    wait_until(lambda: not fires(scraping, "FilestoreTooFewNodes"), what="its end", timeout_s=SCRAPED_S)
    cluster.store(b"taken again")


def test_new_coordinator_does_not_count_as_changes_of_leader(
    scraping: str, cluster: Cluster, guest: Guest
) -> None:
    """It runs before it is added, as the readme has it, and knows the first term alone until then."""
    terms = f"filestore_raft_term{{instance='127.0.0.1:{guest.api_port}'}}"

    with running(guest):
        scraped(scraping, f"{terms} == 1")
        add(cluster, guest)
        wait_voter(cluster, guest.id)
        scraped(scraping, f"{terms} >= {TERMS_MIN}")
        scraped(scraping, f"count_over_time({terms}[5s]) > 3")
        assert not fires(scraping, "FilestoreLeaderChangesOften")
        done(cluster, "coordinator", "remove", guest.id)


def test_lead_that_changes_hands_again_and_again_is_heard_of(scraping: str, cluster: Cluster) -> None:
    assert not fires(scraping, "FilestoreLeaderChangesOften")
    for _ in range(TERMS_MIN + 2):
        done(cluster, "coordinator", "transfer-leader")
    wait_until(lambda: fires(scraping, "FilestoreLeaderChangesOften"), what="the alert", timeout_s=SCRAPED_S)


def test_node_that_drains_leaves_nothing_short(scraping: str, cluster: Cluster) -> None:
    """With three nodes and three copies wanted nothing can leave it, so that this lasts."""
    node, file_uuid = cluster.nodes[2], cluster.store(b"to be moved")
    assert cluster.post(f"/cluster/nodes/{node.id}/drain").status == 200
    short = "sum(filestore_blobs_short and on (instance) filestore_raft_is_leader == 1) > 0"
    scraped(scraping, short)
    wait_until(lambda: not fires(scraping, "FilestoreReplicasShort"), what="its copies", timeout_s=SCRAPED_S)
    assert asked(scraping, short)
    assert fires(scraping, "FilestoreDrainLasts")
    assert cluster.request("DELETE", f"/cluster/nodes/{node.id}/drain").status == 200
    wait_until(lambda: not fires(scraping, "FilestoreDrainLasts"), what="its end", timeout_s=SCRAPED_S)
    assert cluster.request("DELETE", f"/project-files/{file_uuid}").status in (200, 204)


def test_process_that_ends_again_and_again_is_heard_of(scraping: str, cluster: Cluster) -> None:
    """It is up at most scrapes, as one that a supervisor starts again at once."""
    node = cluster.nodes[0]
    of_node = f"{{instance='127.0.0.1:{node.api_port}'}}"
    scraped(scraping, f"process_start_time_seconds{of_node}")
    assert not fires(scraping, "FilestoreRestartsOften")
    for number in range(1, 5):
        cluster.kill(node)
        cluster.restart(node)
        scraped(scraping, f"changes(process_start_time_seconds{of_node}[1h]) == {number}")
        assert fires(scraping, "FilestoreRestartsOften") == (number > 3)
    cluster.wait_healthy()


def test_worker_that_ends_again_and_again_is_heard_of(scraping: str, cluster: Cluster) -> None:
    node = cluster.nodes[1]
    of_node = f"{{instance='127.0.0.1:{node.api_port}'}}"
    scraped(scraping, f"filestore_worker_restarts_total{of_node} == 0")
    for number in range(1, 5):
        wait_until(lambda: 1 in pids_of(cluster, node), what="the worker", timeout_s=SCRAPED_S)
        os.kill(pids_of(cluster, node)[1], signal.SIGKILL)
        scraped(scraping, f"filestore_worker_restarts_total{of_node} == {number}")
    scraped(scraping, f"({rule(scraping, 'FilestoreRestartsOften')}) and up{of_node}")
