"""A real Prometheus scrapes every process over TLS with our configuration, and its tool finds no fault."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.development import Member
from deploy.processes import free_ports, wait_until
from tests.cluster.harness import Cluster

pytestmark = pytest.mark.long
OURS = Path(__file__).resolve().parent.parent.parent / "deploy" / "prometheus"
TOOL_TIMEOUT_S = 60.0
SCRAPED_S = 60.0


def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        arguments, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
    )


def targets(members: list[Member]) -> str:
    return json.dumps([f"127.0.0.1:{member.api_port}" for member in members])


@pytest.fixture(scope="module")
def configured(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our directory with the addresses of this cluster in it, as the runbook tells."""
    directory = tmp_path_factory.mktemp("prometheus")
    shutil.copy(OURS / "alerts.yml", directory)
    shutil.copy(cluster.ca, directory / "ca.pem")
    text = (OURS / "prometheus.yml").read_text("utf-8").replace("15s", "1s")
    for port, members in (("7441", cluster.coordinators), ("7443", cluster.nodes)):
        text, count = re.subn(rf"targets: \[.*:{port}\"\]", f"targets: {targets(members)}", text)
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


def asked(address: str, expression: str) -> list[Any] | None:
    """What Prometheus answers to an expression; None while it does not answer."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=10) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found
    except (urllib.error.URLError, ConnectionError):
        return None


def test_rules_are_clean(promtool: str) -> None:
    done = run(promtool, "check", "rules", str(OURS / "alerts.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_configuration_is_clean(promtool: str, configured: Path) -> None:
    done = run(promtool, "check", "config", str(configured / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_metrics_of_every_process_are_clean(promtool: str, cluster: Cluster) -> None:
    cluster.store(b"measured")
    for member in cluster.members:
        text = cluster.get("/metrics", node=member, token=None).body.decode()
        done = run(promtool, "check", "metrics", stdin=text)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), member.id


def test_every_process_is_scraped_over_tls(scraping: str, cluster: Cluster) -> None:
    def all_are_up() -> bool:
        return len(asked(scraping, "up == 1") or ()) == len(cluster.members)

    wait_until(all_are_up, what="six targets up", timeout_s=SCRAPED_S)
    wait_until(
        lambda: bool(asked(scraping, "filestore_raft_is_leader == 1")), what="a leader", timeout_s=SCRAPED_S
    )


def test_rule_about_nodes_sees_what_the_leader_hears(scraping: str, cluster: Cluster) -> None:
    """The same expression as in the rules, with another threshold."""
    expression = 'max(filestore_nodes{state="healthy"} and on (instance) filestore_raft_is_leader == 1)'
    assert expression in (OURS / "alerts.yml").read_text("utf-8")

    def are_heard() -> bool:
        found = asked(scraping, expression)
        return bool(found) and [each["value"][1] for each in found or ()] == [str(len(cluster.nodes))]

    wait_until(are_heard, what="three healthy nodes", timeout_s=SCRAPED_S)
