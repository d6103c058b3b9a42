"""The long suite of a real Prometheus: not part of `make test`, run by `make prometheus`."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import free_ports, wait_until
from tests.cluster.harness import Cluster
from tests.debian_packages import installed
from tests.prometheus.scraping import OURS, SCRAPED_S, asked, targets


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The program; skips the test where there is none, and none can be installed."""
    return installed("prometheus", "prometheus")


@pytest.fixture(scope="session")
def promtool(prometheus: str) -> str:
    """Its tool, which comes with it."""
    return shutil.which("promtool") or pytest.skip(f"{prometheus} comes without promtool")


@pytest.fixture(scope="module")
def guests() -> list[Member]:
    """Coordinators that are scraped beside those that the cluster begins with."""
    return []


@pytest.fixture(scope="module")
def configured(cluster: Cluster, guests: list[Member], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our directory with the addresses of this cluster in it, as the runbook tells."""
    directory = tmp_path_factory.mktemp("prometheus")
    shutil.copy(OURS / "alerts.yml", directory)
    shutil.copy(cluster.ca, directory / "ca.pem")
    text = (OURS / "prometheus.yml").read_text("utf-8").replace("15s", "1s").replace("30s", "1s")
    for number, member in enumerate(cluster.coordinators, 1):
        assert text.count(f"//10.0.0.{number}:7441/") == 2
        text = text.replace(f"//10.0.0.{number}:7441/", f"//127.0.0.1:{member.api_port}/")
    if guests:
        watched = f"    static_configs: [{{targets: {targets(guests)}}}]\n"
        text, count = re.subn(r"(job_name: filestore-coordinators\n)", rf"\1{watched}", text)
        assert count == 1
    (directory / "prometheus.yml").write_text(text, "utf-8")
    return directory


@pytest.fixture(scope="module")
def scraping(prometheus: str, configured: Path) -> Iterator[str]:
    """A Prometheus that scrapes; its address."""
    port = free_ports(1)[0]
    with (configured / "output").open("wb") as output:
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={configured / 'prometheus.yml'}",
                f"--storage.tsdb.path={configured / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until(lambda: asked(address, "up") is not None, what="Prometheus", timeout_s=SCRAPED_S)
            yield address
        finally:
            process.terminate()
            process.wait(30)
