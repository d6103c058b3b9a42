"""The alerts and the page that says what to do about them, without a Prometheus."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ALERTS: Final = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8")
RUNBOOK: Final = (ROOT / "docs" / "runbook.md").read_text("utf-8")
PAGE: Final = "docs/runbook.md"


def anchors() -> set[str]:
    """As GitHub and others make them of headings."""
    headings = re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_names_its_section_of_the_runbook() -> None:
    found = dict(re.findall(r'- alert: (\w+)$(?:(?!- alert:).)*?runbook_url: "([^"]+)"', ALERTS, re.M | re.S))
    alerts = re.findall(r"- alert: (\w+)$", ALERTS, re.MULTILINE)
    assert len(alerts) > 30
    assert list(found) == alerts
    assert found == {alert: f"{PAGE}#{alert.lower()}" for alert in alerts}
    assert {url.partition("#")[2] for url in found.values()} <= anchors()


def test_problem_of_the_status_names_a_section_of_the_runbook() -> None:
    source = (ROOT / "api" / "cluster_health.py").read_text("utf-8")
    named = set(re.findall(r'"(Filestore[A-Za-z]+)"', source))
    assert len(named) > 15
    assert {name.lower() for name in named} <= anchors()


def test_links_within_the_runbook_lead_somewhere() -> None:
    told = set(re.findall(r"\*(Filestore[A-Za-z]+)\*", RUNBOOK))
    assert {name.lower() for name in told} <= anchors()
