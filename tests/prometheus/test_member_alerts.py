"""Alerts about one member of a cluster to which just that happens: heard of it, and of no other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.development import Member
from deploy.processes import wait_until
from tests.cluster.clocks import library, set_clock
from tests.cluster.harness import Cluster
from tests.cluster.test_coordinators import done
from tests.prometheus.scraping import SCRAPED_S
from tests.prometheus.test_alerts import fires, scraped

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
BLOBS = 105  # more than a node gives up without asking
YEAR_S = 366 * 86_400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each test leaves it whole."""
    with Cluster(tmp_path_factory.mktemp("members") / "cluster") as started:
        yield started


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What moves clocks."""
    return library(tmp_path_factory.mktemp("clocks"))


def of(member: Member) -> str:
    return f"{{instance='127.0.0.1:{member.api_port}'}}"


@contextmanager
def clock_moved(cluster: Cluster, member: Member, shim: Path, shift_s: int) -> Iterator[None]:
    """The process is started with such a clock, and with the right one at the end."""
    with pytest.MonkeyPatch.context() as patch:
        set_clock(patch, shim, shift_s)
        cluster.restart(member)
    try:
        yield
    finally:
        cluster.terminate(member)
        cluster.restart(member)
        cluster.wait_healthy()


def test_what_was_mended_is_not_heard_of_from_a_coordinator_that_is_cut_off(
    scraping: str, cluster: Cluster, shim: Path, tmp_path: Path
) -> None:
    """As the runbook has it: replicas are lost, compare stops itself, and is told that it is so."""
    scraped(scraping, "filestore_raft_is_leader == 1")
    node, cut_off = cluster.nodes[2], next(c for c in cluster.coordinators if c != cluster.leader())
    for _ in range(BLOBS):
        cluster.store_everywhere(os.urandom(50))
    assert not fires(scraping, "FilestoreCustodyStopped")
    cluster.terminate(node)
    (cluster.data(node) / "blobs").rename(tmp_path / "lost")
    cluster.restart(node)
    wait_until(lambda: fires(scraping, "FilestoreCustodyStopped"), what="the alert", timeout_s=SCRAPED_S)

    assert not fires(scraping, "FilestoreJobFailed")
    compare = ("job", "run", "compare", "--node-id", node.id)
    done(cluster, *compare)
    wait_until(lambda: fires(scraping, "FilestoreJobFailed"), what="the failure", timeout_s=SCRAPED_S)
    cluster.terminate(cut_off)
    done(cluster, *compare, "--yes-really")
    wait_until(lambda: not fires(scraping, "FilestoreJobFailed"), what="its end", timeout_s=SCRAPED_S)
    wait_until(lambda: not fires(scraping, "FilestoreCustodyStopped"), what="its end", timeout_s=SCRAPED_S)

    with clock_moved(cluster, cut_off, shim, YEAR_S):  # it takes nobody's certificate
        scraped(scraping, f"filestore_job_failed{of(cut_off)} == 1")
        assert not fires(scraping, "FilestoreJobFailed")
        wait_until(
            lambda: fires(scraping, "FilestoreViewStale"), what="that it is cut off", timeout_s=SCRAPED_S
        )
