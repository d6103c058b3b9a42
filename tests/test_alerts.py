"""The alerts and the page that says what to do about them, without a Prometheus."""

import re
import shlex
import subprocess
from pathlib import Path
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


def test_command_of_the_guide_makes_addresses_of_the_console(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    command = re.search(r"`(sed -i [^`]+ alerts\.yml)`", guide)
    assert command is not None
    (tmp_path / "alerts.yml").write_text(ALERTS)
    subprocess.run(shlex.split(command[1]), cwd=tmp_path, check=True)
    urls = re.findall(r'runbook_url: "([^"]+)"', (tmp_path / "alerts.yml").read_text("utf-8"))
    sections = {page.stem: anchors(page.read_text("utf-8")) for page in RUNBOOK_PAGES}
    for url in urls:
        found = re.fullmatch(r"https://10\.0\.0\.1:7443/console/#/help/([a-z-]+)\?at=(\w+)", url)
        assert found is not None, url
        assert found[2] in sections[found[1]], url
