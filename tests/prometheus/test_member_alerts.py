"""Alerts about one member of a cluster to which just that happens: heard of it, and of no other."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.clocks import library, set_clock
from tests.cluster.faulty_disk import injected
from tests.cluster.harness import Cluster
from tests.cluster.test_coordinators import done
from tests.prometheus.scraping import SCRAPED_S, asked, rule
from tests.prometheus.test_alerts import fires, scraped

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
BLOBS = 105  # more than a node gives up without asking
YEAR_S = 366 * 86_400
AHEAD_S = 60


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


def named(address: str, alert: str) -> set[str]:
    """The processes for which its expression holds now."""
    return {each["metric"]["instance"] for each in asked(address, rule(address, alert)) or ()}


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
    for area in ("blobs", "packs"):
        (cluster.data(node) / area).rename(tmp_path / area)
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


def test_clock_that_is_off_is_that_of_who_differs_from_most(
    scraping: str, cluster: Cluster, shim: Path
) -> None:
    """Also of one that is given the lead, which it hands over again."""
    scraped(scraping, "filestore_raft_is_leader == 1")
    wait_until(lambda: not fires(scraping, "FilestoreClockOff"), what="right clocks", timeout_s=SCRAPED_S)
    follower = next(c for c in cluster.coordinators if c != cluster.leader())
    for member in (cluster.nodes[1], follower):
        cluster.terminate(member)
        with clock_moved(cluster, member, shim, AHEAD_S):
            scraped(scraping, f"filestore_clock_offset_seconds{of(member)} > {AHEAD_S / 2}")
            assert named(scraping, "FilestoreClockOff") == {f"127.0.0.1:{member.api_port}"}
            if member == follower:
                cluster.filestore("coordinator", "transfer-leader", "--to", follower.id)
                wait_until(lambda: cluster.leader() != follower, what="another leader", timeout_s=SCRAPED_S)
                scraped(scraping, f"count(filestore_clock_offset_seconds > {AHEAD_S / 2}) == 1")
                assert named(scraping, "FilestoreClockOff") == {f"127.0.0.1:{follower.api_port}"}


def has_ended(cluster: Cluster, job_name: str) -> bool:
    jobs = {job["job_name"]: job for job in cluster.get("/jobs").json["jobs"]}
    return bool(jobs[job_name]["last_run"]["status"] != "running")


def test_directory_that_cannot_be_listed_is_heard_of_until_it_can(
    scraping: str, cluster: Cluster, tmp_path: Path
) -> None:
    """The disk takes bytes, and all that is read of it is sound."""
    node, content = cluster.nodes[0], os.urandom(200_000)  # a file, and not in a pack
    cluster.store_everywhere(content)
    directory = cluster.replica(node, hashlib.sha256(content).hexdigest()).parent
    scraped(scraping, f"filestore_poison_items{of(node)} == 0")
    with injected(cluster.pid(node), "getdents64:error=EIO", tmp_path / "strace.log", directory):
        done(cluster, "job", "run", "scrub", "--node-id", node.id)
        wait_until(lambda: fires(scraping, "FilestorePoisonItems"), what="the alert", timeout_s=SCRAPED_S)
        scraped(scraping, f"max(filestore_custody_broken_off{of(node)}) == 0")
        assert named(scraping, "FilestorePoisonItems") == {f"127.0.0.1:{node.api_port}"}
        assert not fires(scraping, "FilestoreDiskNotWritable")
    wait_until(lambda: has_ended(cluster, "scrub"), what="the end of the first run", timeout_s=SCRAPED_S)
    done(cluster, "job", "run", "scrub", "--node-id", node.id)
    wait_until(lambda: not fires(scraping, "FilestorePoisonItems"), what="its end", timeout_s=SCRAPED_S)
