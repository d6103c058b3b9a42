"""A real Prometheus scrapes every process over TLS with our configuration, and its tool finds no fault."""

import subprocess
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.prometheus.scraping import OURS, SCRAPED_S, asked

pytestmark = pytest.mark.long
TOOL_TIMEOUT_S = 60.0


def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        arguments, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
    )


def test_rules_are_clean(promtool: str) -> None:
    done = run(promtool, "check", "rules", str(OURS / "alerts.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cases", ["leader_changes", "lab_backups", "offsite_snapshots"])
def test_alerts_fire_when_they_should(promtool: str, tmp_path: Path, cases: str) -> None:
    text = (Path(__file__).parent / f"{cases}.yml").read_text("utf-8")
    (tmp_path / "test.yml").write_text(text.replace("RULES", str(OURS / "alerts.yml")), "utf-8")
    done = run(promtool, "test", "rules", str(tmp_path / "test.yml"))
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
    expression = "max(filestore_nodes_taking_files and on (instance) filestore_raft_is_leader == 1)"
    assert expression in (OURS / "alerts.yml").read_text("utf-8")

    def are_heard() -> bool:
        found = asked(scraping, expression)
        return bool(found) and [each["value"][1] for each in found or ()] == [str(len(cluster.nodes))]

    wait_until(are_heard, what="three healthy nodes", timeout_s=SCRAPED_S)
