"""The pages of labs: versions of GNS3 projects as backups name them, and the commands to copy."""

import secrets

import pytest

from deploy.processes import wait_until
from tests.blobs_on_disk import change_byte_on
from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, reshape, show, sign_in
from tests.browser.console_world import HOSTILE_NAMES, project_archive, stored
from tests.browser.test_console import look_at
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

LAB, OTHER = "9f86d081884c7d65:lab", "60303ae22b998861:classroom-2"
ROWS = "[...document.querySelectorAll('main tbody tr')].map(row => row.textContent)"
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
