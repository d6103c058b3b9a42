"""A cluster that browsers reach, with a certificate for them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ca.webcertificate import WebCertificateFiles
from deploy.dev.cluster import Member
from deploy.dev.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.web_browser import HOST, Browser
from tests.web_certificates import trusting, write_pair


def renewed(directory: Path) -> WebCertificateFiles:
    """A new pair in place of an older one, which browsers go on to trust: some members still have it."""
    files = write_pair(directory / "pair", (HOST,))
    with (directory / "trusted.pem").open("ab") as trusted:
        trusted.write(files.certificate.read_bytes())
    return files


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[Cluster]:
    """Three nodes, all with everything. Who kills one starts it again."""
    files = renewed(directory)
    options = (*("--web-certificate", str(files.certificate), "--web-key", str(files.key)),)
    with Cluster(directory / "cluster", node_options=options, coordinator_options=options) as started:
        yield started


@pytest.fixture
def browser(cluster: Cluster, directory: Path) -> Browser:
    return Browser(cluster, trusting(directory / "trusted.pem"))


def web_expiry(cluster: Cluster, member: Member) -> float:
    lines = cluster.get("/metrics", node=member, token=None).body.decode().splitlines()
    found = [line for line in lines if "certificate_expiry" in line and 'certificate="web"' in line]
    return float(found[0].split()[-1])


@pytest.mark.parametrize("role", ["node", "coordinator"])
def test_certificate_is_read_again_at_a_signal_and_a_bad_one_refused(
    cluster: Cluster, directory: Path, role: str
) -> None:
    member = next(member for member in cluster.members if member.role == role)
    before = web_expiry(cluster, member)
    old = (directory / "pair" / "web.key").read_bytes()
    new = renewed(directory)
    key = new.key.read_bytes()
    new.key.write_bytes(old)
    os.kill(cluster.pid(member), signal.SIGHUP)
    refused = "the certificate for browsers cannot be used"
    wait_until(lambda: refused in cluster.logs()[member.id], what="a refusal", timeout_s=10)
    assert web_expiry(cluster, member) == before
    new.key.write_bytes(key)
    os.kill(cluster.pid(member), signal.SIGHUP)
    wait_until(lambda: web_expiry(cluster, member) > before, what="the new certificate", timeout_s=10)
    answer = Browser(cluster, trusting(new.certificate)).ask("GET", "/healthz", member=member, token=None)
    assert answer.status == 200
    assert cluster.get("/healthz", node=member, token=None).status == 200  # with the cluster's root
