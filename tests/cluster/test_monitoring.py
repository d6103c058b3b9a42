"""Rules, runbook and dashboard speak of what there is: each alert has its section, each metric exists."""

import json
import re

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.cli import cli
from deploy.gns3.alarms.metrics import metrics_text
from deploy.gns3.identity import ServerIdentity
from tests.cluster.harness import Cluster
from tests.documents import PAGES, ROOT, RUNBOOK

ALERTS = (ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8")
SCRAPING = (ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8")
DASHBOARD = ROOT / "deploy/grafana/filestore.json"
METRIC = re.compile(r"\bfilestore_\w+")
OF_THE_STATUS = {"FilestoreTrashShrinks"}  # a problem that `filestore status` reports, and no alert
SECTION_CHARS_MIN = 100


def test_every_alert_has_its_section_in_the_runbook_and_no_section_is_left_over() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    sections = dict(re.findall(r"^## (Filestore\w+)\n(.+?)(?=^#+ |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
    assert len(alerts) == len(set(alerts))
    assert {*alerts, *OF_THE_STATUS} == set(sections)
    assert all(len(text) > SECTION_CHARS_MIN for text in sections.values())


def test_every_alert_has_a_severity_and_a_summary() -> None:
    count = ALERTS.count("- alert:")
    assert len(re.findall(r"labels: \{severity: (?:page|ticket)\}", ALERTS)) == count
    assert ALERTS.count("summary:") == count


@pytest.fixture(scope="module")
def offered(cluster: Cluster) -> set[str]:
    """The names of all samples of a coordinator, a node and a backup of labs, also those without a sample."""
    members = (cluster.coordinators[0], cluster.nodes[0])
    texts = [cluster.get("/metrics", node=member, token=None).body.decode() for member in members]
    names = set()
    of_labs = metrics_text(
        ServerIdentity(), [], ended_at=0, good_at={}, oldest_good_at=0, overdue_after_s=0
    ).decode()
    for text in [*texts, of_labs]:
        for family in text_string_to_metric_families(text):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return names


def test_rules_name_metrics_that_exist(offered: set[str]) -> None:
    expressions = "\n".join(re.findall(r"expr:(.*?)(?=\n +(?:for|labels):)", ALERTS, re.DOTALL))
    named = set(METRIC.findall(expressions))
    assert named
    assert named <= offered


def test_dashboard_names_metrics_that_exist(offered: set[str]) -> None:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    named = {
        name for panel in panels for target in panel["targets"] for name in METRIC.findall(target["expr"])
    }
    assert named
    assert named <= offered


def test_pages_name_commands_that_exist() -> None:
    texts = [page.read_text("utf-8") for page in (ROOT / "README.md", *PAGES)]
    named = {
        tuple(words.split())
        for text in texts
        for words in re.findall(r"`filestore ((?!-)(?:[a-z0-9-]+ ?)+)", text)
    }
    assert all(exists(cli, words) for words in named), named


def exists(group: click.Command, words: tuple[str, ...]) -> bool:
    """Whether these words, up to the first argument, name commands."""
    if not words or not isinstance(group, click.Group):
        return True
    command = group.get_command(click.Context(group), words[0])
    return command is not None and exists(command, words[1:])


def test_scrape_configuration_trusts_the_cluster_s_root_alone() -> None:
    assert SCRAPING.count("scheme: https") == 2
    assert SCRAPING.count("ca_file: ca.pem") == 2 + SCRAPING.count("https://") == 8
    assert "http://" not in SCRAPING
    assert "insecure_skip_verify" not in SCRAPING
