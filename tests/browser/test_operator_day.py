"""The operator's pages of the web console, as one day: nodes, jobs, users, and coordinators that are gone."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import faults, open_console, show, sign_in
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
HOSTILE = '<img src=x onerror="document.title=1">\u202egnp.\U0001f680'
UNANSWERED = ("503", "ERR_CONNECTION")  # what a browser says of a cluster without a majority


@pytest.fixture
async def operator(programs: None, own_cluster: Cluster, tmp_path: Path) -> AsyncIterator[Page]:
    """The console of the first node in a wide window, signed in as the administrator."""
    with Browser(tmp_path / "browser", root=own_cluster.ca) as browser:
        async with Page(browser) as page:
            await page.shape(1440)
            await open_console(page, own_cluster.nodes[0])
            await sign_in(page, own_cluster.admin_token)
            yield page


def text_is(selector: str, part: str) -> str:
    """JavaScript that is true once some element of this selector shows this text."""
    return (
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        f".some((each) => each.textContent.includes({json.dumps(part)}))"
    )


async def press_button(page: Page, text: str, *, within: str = "main") -> None:
    """Click the button or link that is called so, by its label or by its text, once it is there."""
    called = "each.getAttribute('aria-label') ?? each.textContent"
    found = (
        f"[...document.querySelectorAll({json.dumps(f'{within} :is(button, a)')})].find((each) => "
        f"({called}).trim() === {json.dumps(text)} && !each.disabled)"
    )
    await page.until(found)
    await page.value(
        "document.querySelectorAll('[data-wanted]').forEach((each) => each.removeAttribute('data-wanted'))"
    )
    await page.value(f"{found}.setAttribute('data-wanted', '')")
    await page.click("[data-wanted]")


async def choose(page: Page, menu: str, item: str) -> None:
    await press_button(page, menu)
    await press_button(page, item, within="[role=menu]")


async def fill(page: Page, field: str, text: str) -> None:
    await page.click(f"dialog {field}")
    await page.type(text)


async def confirm(page: Page, action: str) -> None:
    """Press the button of a dialog, which closes then."""
    await press_button(page, action, within="dialog footer")
    await page.until("!document.querySelector('dialog [aria-busy=true], dialog .error')")


async def ended_run(page: Page) -> str:
    """The log of the run that is shown, once it has ended well."""
    await page.until("location.hash.startsWith('#/jobs/runs/')")
    await page.until(text_is("main .heading .badge", "completed"))
    await page.until(text_is("main [role=log]", "Completed after"))
    return str(await page.value("document.querySelector('main [role=log]').textContent"))


async def test_day_of_an_operator(own_cluster: Cluster, operator: Page) -> None:
    page, admin = operator, own_cluster.nodes[0]
    bucket = own_cluster.post("/buckets", {"name": "course 7"}).json["bucket_id"]
    own_cluster.store_everywhere(b"only for the administrator")
    own_cluster.store(b"for the course", "shared.gns3p", bucket_id=bucket)
    own_cluster.wait_everywhere(hashlib.sha256(b"for the course").hexdigest())
    await page.until(text_is("main .health .badge", "healthy"))
    await _add_node(own_cluster, page)
    await _remove(page)
    await _drain(page)
    await _scrub(page)
    user_token = own_cluster.remember(await _add_user(page, "dora", "course 7"))
    await show(page, "#/audit", "main tbody tr")
    for action in ("changed the user", "created a token for", "gave access to", "started to drain"):
        await page.until(text_is("main tbody tr", action))
    assert faults(page, admin, asked=own_cluster.members) == []
    await page.value("sessionStorage.clear(), location.reload()")
    await page.until("document.querySelector('#token')")
    await sign_in(page, user_token)
    await _sees_only_what_is_hers(page, bucket)
    assert faults(page, admin, asked=own_cluster.members) == []


async def _add_node(cluster: Cluster, page: Page) -> None:
    """n4 joins by the token in the command that the console shows."""
    await show(page, "#/nodes", "main tbody tr")
    await _ask_for_token(page)
    await page.until("document.querySelector('dialog pre.command')?.textContent.includes('FST1')")
    command = await page.value("document.querySelector('dialog pre.command').textContent")
    assert command.startswith(
        "sudo -u filestore filestore node join --id n4 --data /var/lib/filestore/node --coordinator https://"
    )
    assert command.endswith("sudo systemctl enable --now filestore-node")
    token = re.search(r"^FST1\S+$", command, re.MULTILINE)
    assert token is not None
    await asyncio.to_thread(cluster.add_node, "n4", cluster.remember(token[0]))
    await confirm(page, "Done")
    await page.until(text_is("main tbody tr", "n4"))
    rows = "[...document.querySelectorAll('main .table-box:not(.inner) tbody tr')]"
    all_are_healthy = f"{rows}.every((each) => each.textContent.includes('healthy'))"
    await page.until(f"{rows}.length === 4 && {all_are_healthy}")


async def _ask_for_token(page: Page) -> None:
    await press_button(page, "Add a node…")
    await fill(page, "[name=name]", "n4")
    await fill(page, "[name=address]", "127.0.0.1")
    await press_button(page, "Show the commands", within="dialog footer")
    await press_button(page, "Without setup…", within="dialog footer")
    await press_button(page, "Create a join token", within="dialog footer")


async def _drain(page: Page) -> None:
    """node-3 is drained, a run of that job is watched to its end, and the node takes files again."""
    await show(page, "#/nodes", "main tbody tr")
    await choose(page, "Actions for node-3", "Drain…")
    await confirm(page, "Drain")
    await page.until(text_is("main tbody tr", "draining"))
    await show(page, "#/jobs", "main tbody tr")
    await page.until(text_is("main .table-box tbody tr", "drain"))
    await press_button(page, "drain", within="main .table-box")
    assert "drain begins, asked for by schedule." in await ended_run(page)
    await show(page, "#/nodes/node-3", "main .facts")
    await press_button(page, "Stop draining")  # it keeps for ten minutes what was stored there just now
    await page.until(text_is("main .heading .badge", "healthy"))


async def _scrub(page: Page) -> None:
    await show(page, "#/jobs", "main tbody tr")
    await press_button(page, "Run… scrub")
    await press_button(page, "Run now", within="dialog footer")
    assert "scrub begins, asked for by admin." in await ended_run(page)


async def _remove(page: Page) -> None:
    """n4, which is empty, is removed: not before it is drained, and its own name is typed."""
    await show(page, "#/nodes", "main tbody tr")
    await choose(page, "Actions for n4", "Drain…")
    await confirm(page, "Drain")
    await show(page, "#/nodes/n4", "main .facts")
    await page.until(text_is("main .heading .badge", "draining"))
    await page.until(text_is("main .facts", "Replicas0"))
    await press_button(page, "Remove…")
    await fill(page, "input", "node-2")
    await press_button(page, "Remove it", within="dialog footer")
    await page.until(text_is("dialog .error", "The name does not match"))
    await page.value("document.querySelector('dialog input').select()")
    await page.type("n4")
    await confirm(page, "Remove it")
    await page.until("location.hash.startsWith('#/nodes') && !location.hash.endsWith('n4')")
    await page.until(f"!{text_is('main .table-box:not(.inner) tbody tr', 'n4')}")


async def _add_user(page: Page, user_id: str, bucket: str) -> str:
    """Add a user with access to a bucket; the token, of which the page shows all."""
    await show(page, "#/users", "main tbody tr")
    await press_button(page, "Add a user…")
    await fill(page, "[name=user_id]", user_id)
    await fill(page, "[name=groups]", "students, staff")
    await press_button(page, "Add the user", within="dialog footer")
    await page.until("document.querySelector('dialog pre.command')")
    token = str(await page.value("document.querySelector('dialog pre.command').textContent"))
    await confirm(page, "Done")
    await page.until(text_is("main tbody tr", user_id))
    await choose(page, f"Actions for {user_id}", "Give access to a bucket…")
    await page.until("document.querySelector('dialog select')")
    chosen = f"""(() => {{
      const select = document.querySelector("dialog [name=bucket_id]");
      select.value = [...select.options].find((each) => each.textContent === {json.dumps(bucket)}).value;
    }})()"""
    await page.value(chosen)
    await confirm(page, "Give access")
    return token


async def _sees_only_what_is_hers(page: Page, bucket: str) -> None:
    await show(page, f"#/buckets/{bucket}", "main tbody tr")
    await page.until(text_is("main tbody tr", "shared.gns3p"))
    await show(page, "#/projects")
    assert not await page.value(text_is("main tbody tr", "lab.gns3p"))
    assert not await page.value(text_is("nav", "Nodes"))
    for address in ("#/nodes", "#/coordinators", "#/jobs", "#/users", "#/audit"):
        await show(page, address)
        await page.until(text_is("main", "This page is for administrators."))


async def test_majority_of_coordinators_that_is_gone_is_told_and_comes_back(
    own_cluster: Cluster, operator: Page
) -> None:
    page = operator
    await page.until(text_is("main .health .badge", "healthy"))
    leader = own_cluster.leader()
    gone = [leader, next(each for each in own_cluster.coordinators if each != leader)]
    own_cluster.kill(*gone)
    await page.until(text_is("main .health .badge", "unavailable"))
    await page.until(text_is("main .findings", "No coordinator leads: nothing can be changed."))
    await show(page, "#/coordinators", "main tbody tr")
    await page.until(text_is("main .banner", "1 of 3 answer"))
    await show(page, "#/nodes", "main tbody tr")
    await _ask_for_token(page)
    await page.until(text_is("dialog .error", "The cluster cannot do this now."))
    await press_button(page, "Cancel", within="dialog footer")
    await show(page, "#/backups", "main .table-box .error")
    assert "0 backups" not in await page.value("document.querySelector('main').textContent")
    own_cluster.restart(*gone)
    await show(page, "#/coordinators", "main tbody tr")
    await page.until("!document.querySelector('main .banner')")
    await show(page, "#/", "main .health")
    await page.until(text_is("main .health .badge", "healthy"))
    assert faults(page, own_cluster.nodes[0], told=UNANSWERED, asked=own_cluster.members) == []


async def test_hostile_names_and_addresses_are_only_text(own_cluster: Cluster, operator: Page) -> None:
    page, node = operator, own_cluster.nodes[0]
    created = own_cluster.create(HOSTILE, size_bytes=10)
    own_cluster.request("PATCH", created["upload_url"], content=b"12345", headers=_APPEND)
    await page.until(text_is("main .card", HOSTILE))
    for address in ("#/nodes/%3Cimg%20src=x%3E", "#/audit?principal=%3Cb%3Ex&action=%3Cimg%20src=x%3E"):
        await show(page, address)
        await page.until("document.querySelector('main .empty')")
    assert not await page.value("document.querySelector('main :is(img, b)')")
    assert await page.value("document.title") != "1"
    assert faults(page, node, asked=own_cluster.members) == []


_APPEND = {"Tus-Resumable": "1.0.0", "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
