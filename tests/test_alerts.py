"""The alerts and the page that says what to do about them, without a Prometheus."""

import re
from typing import Final

from tests.documents import ROOT, RUNBOOK, RUNBOOK_PAGES, anchors

ALERTS: Final = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8")


def test_every_alert_names_its_section_of_the_runbook() -> None:
    found = dict(re.findall(r'- alert: (\w+)$(?:(?!- alert:).)*?runbook_url: "([^"]+)"', ALERTS, re.M | re.S))
    alerts = re.findall(r"- alert: (\w+)$", ALERTS, re.MULTILINE)
    assert len(alerts) > 30
    assert list(found) == alerts
    sections = {
        f"docs/{page.name}#{anchor}" for page in RUNBOOK_PAGES for anchor in anchors(page.read_text("utf-8"))
    }
    assert {url.partition("#")[2] for url in found.values()} == {alert.lower() for alert in alerts}
    assert set(found.values()) <= sections


def test_contents_of_the_runbook_list_every_alert() -> None:
    contents = next(page for page in RUNBOOK_PAGES if page.stem == "runbook").read_text("utf-8")
    listed = re.findall(r"^\| \[(\w+)\]", contents, re.MULTILINE)
    assert sorted(listed) == sorted(re.findall(r"- alert: (\w+)$", ALERTS, re.MULTILINE))


def test_problem_of_the_status_names_a_section_of_the_runbook() -> None:
    source = (ROOT / "api" / "cluster_health.py").read_text("utf-8")
    named = set(re.findall(r'"(Filestore[A-Za-z]+)"', source))
    assert len(named) > 15
    assert {name.lower() for name in named} <= anchors(RUNBOOK)
