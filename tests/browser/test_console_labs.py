"""The pages of labs: versions of GNS3 projects as backups name them, and the commands to copy."""

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deploy.processes import wait_until
from tests.blobs_on_disk import change_byte_on
from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, reshape, show, sign_in
from tests.browser.console_world import HOSTILE_NAMES, project_archive, stored
from tests.browser.test_console import look_at
from tests.cluster.harness import Cluster
from tests.sources import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

LAB, OTHER = "9f86d081884c7d65:lab", "60303ae22b998861:classroom-2"
ROWS = "[...document.querySelectorAll('main tbody tr')].map(row => row.textContent)"
CASES = ROOT / "tests" / "unit" / "deploy" / "gns3" / "alarms" / "cases.json"
ALARMS = "[...document.querySelectorAll('main ul.alarms li')].map(line => line.textContent)"
RULES = """(async () => {
  const app = document.querySelector('script[type=module][src]').src;
  const { alarmsOf, checked } = await import(new URL('lab-alarms.js', app));
  return CASES.map(({ run, check, newest, now }) =>
    alarmsOf(run && checked(run), check && checked(check), newest || [], Date.parse(now))
      .map(({ code, project_id, text, since }) => [code, project_id, text, since]));
})()"""
COMMANDS = "[...document.querySelectorAll('dialog code.copied')].map(code => code.textContent)"


def backup(
    cluster: Cluster, token: str, project: str, *, server: str = LAB, kind: str = "gns3-1", **fields: object
) -> str:
    """A backup of a project as `filestore gns3` stores it; its file_uuid."""
    about = {"project_id": project, "project_name": project, "filename": "lab.gns3project", **fields}
    about["version_tag"] = f"{kind}:{secrets.token_hex(4)}:{secrets.token_hex(20)}@{server}"
    content = project_archive() + secrets.token_bytes(int(str(about.pop("more_bytes", 100))))
    return stored(cluster, "/project-files", content, token, **about)


def damage(cluster: Cluster, file_uuid: str) -> None:
    """Spoil every replica, and wait until the cluster knows."""
    sha256 = cluster.get(f"/project-files/{file_uuid}").json["blob_sha256"]
    cluster.wait_everywhere(sha256)
    for node in cluster.nodes:
        change_byte_on(cluster.data(node), sha256, 0)

    def is_noticed() -> bool:
        for node in cluster.nodes:
            cluster.request("GET", f"/files/{file_uuid}", node=node)
        return not cluster.get(f"/files/{file_uuid}/replicas").json["nodes"]

    wait_until(is_noticed, what="the damage", timeout_s=90)


async def act(page: Page, row: int, text: str) -> None:
    """Choose an action of a version."""
    await page.value(f"document.querySelectorAll('main tbody .menu button')[{row}].click()")
    await choose(page, text, "[role=menu]")
    await page.until("document.querySelector('dialog[open]')")


async def test_labs_show_their_newest_good_version_and_how_to_restore_it(
    page: Page, cluster: Cluster, axe_script: str
) -> None:
    token = cluster.user_token("lara")
    first = backup(
        cluster, token, "ospf lab", message="areas 0 and 1 work", tag="golden", more_bytes=9_000_000
    )
    second = backup(cluster, token, "ospf lab", message=HOSTILE_NAMES[1])
    full = backup(cluster, token, "ospf lab", kind="gns3-full-1", more_bytes=20_000_000)
    backup(cluster, token, "bgp route reflectors", server=OTHER, tag="v1.2")
    lost = backup(cluster, token, HOSTILE_NAMES[0])
    backup(
        cluster, token, "gns3-server-configuration", kind="gns3-full-1", project_name="server configuration"
    )
    stored(cluster, "/project-files", b"no lab", token, filename="x", project_id="x", version_tag="v2")
    damage(cluster, lost)

    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/labs", "main tbody tr .badge")
    await page.until(f"{ROWS}.length === 4 && {ROWS}.every(row => /whole|damaged/.test(row))")
    rows = await page.value(ROWS)
    assert [row for row in rows if "damaged" in row] == [row for row in rows if HOSTILE_NAMES[0] in row]
    found = await look_at(page, "labs", "light", axe_script) + await look_at(page, "labs", "dark", axe_script)
    await reshape(page, 1440, "light")

    await page.value(
        "[...document.querySelectorAll('main tbody a')].find(a => a.textContent === 'ospf lab').click()"
    )
    await page.until(f"location.hash.startsWith('#/labs/9f86d081884c7d65/ospf%20lab') && {ROWS}.length === 3")
    await page.until("!document.querySelector('main').textContent.includes('not checked')")
    assert HOSTILE_NAMES[1] in (await page.value(ROWS))[1]
    found += await look_at(page, "lab", "light", axe_script) + await look_at(page, "lab", "dark", axe_script)
    await reshape(page, 1440, "light")

    await act(page, 0, "Restore")
    restore = f"filestore gns3 restore {full} --to lab --local /opt/gns3/projects"
    assert await page.value(COMMANDS) == [f"{restore} --dry-run", f"{restore} --in-place"]
    found += await look_at(page, "dialog restore", "light", axe_script)
    found += await look_at(page, "dialog restore", "dark", axe_script)
    await choose(page, "Done", "dialog")
    await closed(page)
    await reshape(page, 1440, "light")
    await act(page, 1, "Restore")
    await page.value("""(() => {
      const server = document.querySelector('dialog select');
      server.value = 'classroom-2';
      server.dispatchEvent(new Event('change', { bubbles: true }));
    })()""")
    await page.until(f"{COMMANDS}[0] === 'filestore gns3 restore {second} --to classroom-2'")
    await choose(page, "Done", "dialog")
    await closed(page)
    await act(page, 2, "Compare")
    assert await page.value(COMMANDS) == [f"filestore gns3 diff {first} {first} {full}"]
    found += await look_at(page, "dialog compare", "light", axe_script)
    await choose(page, "Done", "dialog")
    await closed(page)
    assert not found
    assert not faults(page, cluster.nodes[0])


def ago(hours: float) -> str:
    """A time before now, as reports have it."""
    return (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="milliseconds")


def report(cluster: Cluster, token: str, kind: str, content: dict[str, Any], *, server: str = LAB) -> str:
    """A report as `filestore gns3` stores it; its file_uuid."""
    server_id, _, name = server.partition(":")
    said = json.dumps({"version": 1, "server_id": server_id, "server": name, **content}).encode()
    named = f"gns3-report-{server_id}.{kind}.json"
    return stored(cluster, "/backups", said, token, filename=named, backup_type="full")


async def test_console_decides_every_case_as_the_command_does(page: Page, cluster: Cluster) -> None:
    await open_console(page, cluster.nodes[0])
    await page.until("document.querySelector('#token')")
    cases = json.loads(CASES.read_text())
    decided = await page.value(RULES.replace("CASES", json.dumps(cases)))
    assert decided == [case["expected"] for case in cases]


FAILED = "The last backup failed: conflict: Its folder is not in /opt/gns3/projects. Nothing was stored."


@dataclass(frozen=True)
class Reported:
    """Fields of the report of a run, and the backup of the project that has only an export."""

    about: dict[str, Any]
    projects: dict[str, dict[str, str]]
    alarms: list[dict[str, str]]
    export: str


def reported_labs(cluster: Cluster, token: str) -> Reported:
    """Labs with reports of a run and of a check."""
    backup(cluster, token, "ospf lab", kind="gns3-full-1")
    backup(cluster, token, "always runs", kind="gns3-full-1")
    export = backup(cluster, token, "only exported")
    checked = backup(cluster, token, HOSTILE_NAMES[0], kind="gns3-full-1")
    backup(cluster, token, "by hand", server=OTHER)
    projects = {
        "ospf lab": {"name": "ospf lab", "good_at": ago(3), "status": "unchanged"},
        "always runs": {"name": "always runs", "good_at": ago(75), "status": "running"},
        "only exported": {"name": "only exported", "good_at": ago(20), "status": "failed"},
        HOSTILE_NAMES[0]: {"name": HOSTILE_NAMES[0], "good_at": ago(3), "status": "stored"},
    }
    alarms = [
        {"code": "failed", "text": FAILED, "project_id": "only exported", "name": "only exported"},
        {"code": "no_backup", "text": "The project has no full backup", "project_id": "only exported"},
        {
            "code": "gone",
            "text": "The GNS3 server does not list the project",
            "project_id": "deleted",
            "name": "deleted",
            "since": ago(30),
        },
    ]
    about: dict[str, Any] = {"kind": "full", "overdue_after_s": 26 * 3600, "ended_at": ago(3)}
    report(cluster, token, "run", {**about, "projects": {}, "alarms": [{"code": "failed", "text": "old"}]})
    report(cluster, token, "run", {**about, "projects": projects, "alarms": alarms})
    check = {
        "project_id": HOSTILE_NAMES[0],
        "name": HOSTILE_NAMES[0],
        "kind": "full",
        "at": ago(1),
        "error": f"not_found: Some of its images are not in the store: {HOSTILE_NAMES[1]}",
    }
    report(cluster, token, "check", {"backups": {checked: check}})
    return Reported(about, projects, alarms, export)


async def test_alarms_say_what_needs_attention(page: Page, cluster: Cluster, axe_script: str) -> None:
    token = cluster.user_token("laura")
    known = reported_labs(cluster, token)
    about, projects = known.about, known.projects
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/labs", "main ul.alarms li")
    await page.until(f"{ROWS}.length === 5 && {ROWS}.every(row => !row.includes('not checked'))")
    told = await page.value(ALARMS)
    assert [line.split()[0] for line in told] == ["overdue", "failed", "no", "gone", "check"]
    assert "always runs on lab: Its nodes ran during the last run. No backup is known to be" in told[0]
    assert FAILED in told[1]
    assert HOSTILE_NAMES[1] in told[4]
    rows = {name: row for row in await page.value(ROWS) for name in [*projects, "by hand"] if name in row}
    states = ("whole", "overdue", "failed", "check failed", "whole")
    assert [
        state in row for state, row in zip(states, map(rows.__getitem__, [*projects, "by hand"]), strict=True)
    ]
    text = await page.value("document.querySelector('main').textContent")
    assert "4 projects, last run 3 h ago." in " ".join(text.split())
    assert "No report of a run: classroom-2." in " ".join(text.split())
    found = await look_at(page, "alarms", "light", axe_script)
    found += await look_at(page, "alarms", "dark", axe_script)
    await reshape(page, 1440, "light")

    await show(page, "#/labs/9f86d081884c7d65/only%20exported?owner=laura", "main .facts .plain-list li")
    await page.until("document.querySelector('main .facts').textContent.includes('no full backup')")
    found += await look_at(page, "lab with alarms", "light", axe_script)

    cluster.request("DELETE", f"/project-files/{known.export}", token=token)
    stale = {name: {**each, "good_at": ago(100)} for name, each in projects.items()}
    report(cluster, token, "run", {**about, "ended_at": ago(100), "projects": stale, "alarms": known.alarms})
    report(cluster, token, "run", {"version": 2, "projects": None}, server=OTHER)
    await show(page, "#/", "main .recent")
    assert "gns3-report" not in await page.value("document.querySelector('main .recent').textContent")
    await show(page, "#/labs", "main ul.alarms li")
    await page.until(f"{ALARMS}.length === 8 && {ALARMS}[0].startsWith('no run lab: No run of all projects')")
    await choose(page, "Show all 9")
    await page.until(f"{ALARMS}.length === 9")
    assert not found
    assert not faults(page, cluster.nodes[0])


async def test_tag_whose_move_is_interrupted_is_on_two_versions(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("linus")
    first, second = (backup(cluster, token, "mpls", tag=tag) for tag in ("golden", "-"))
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/labs/9f86d081884c7d65/mpls?owner=linus", "main tbody tr")
    await page.send("Network.setBlockedURLs", urls=[f"*/project-files/{first}"])
    await act(page, 0, "Tag")
    await page.click("dialog input[name=tag]")
    await page.type("golden")
    await choose(page, "Save", "dialog footer")
    await page.until("document.querySelector('dialog .error')")

    def tags() -> list[str]:
        return [cluster.get(f"/project-files/{each}").json["tag"] for each in (first, second)]

    assert tags() == ["golden", "golden"]
    await page.send("Network.setBlockedURLs", urls=[])
    await choose(page, "Save", "dialog footer")
    await closed(page)
    assert tags() == ["-", "golden"]


async def test_tag_moves_from_one_version_to_another(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("lars")
    first, second = (backup(cluster, token, "mpls", tag=tag) for tag in ("golden", "-"))
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/labs/9f86d081884c7d65/mpls?owner=lars", "main tbody tr")
    await act(page, 0, "Tag")
    await page.click("dialog input[name=tag]")
    await page.type("golden")
    await page.click("dialog input[name=message]")
    await page.type("after the exam")
    await choose(page, "Save", "dialog footer")
    await closed(page)
    await page.until(f"{ROWS}[0].includes('golden') && !{ROWS}[1].includes('golden')")
    records = [cluster.get(f"/project-files/{each}").json for each in (first, second)]
    assert [(each["tag"], each["message"]) for each in records] == [("-", ""), ("golden", "after the exam")]
    assert not faults(page, cluster.nodes[0])
