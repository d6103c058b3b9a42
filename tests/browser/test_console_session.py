"""Staying signed in on a browser: all tabs of an address, until one signs out, if the user wants that."""

import json
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import choose, faults, open_console, show, sign_in
from tests.browser.test_console_day import downloaded, saved
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
SIGNED_IN = "document.querySelector('header.top .who')"
USER = "document.querySelector('header.top .who bdi')?.textContent"
# A tab uses the token of another once it is told of it. The listener of the page is before this one.
TOLD = """void addEventListener("storage", ({ key }) => {
  if (key === "filestore.token") globalThis.isTold = true;
})"""
STORED = "JSON.stringify({...localStorage})"


async def stay(page: Page, token: str) -> None:
    """Sign in, and stay signed in."""
    await page.click("[name=is_kept]")
    await sign_in(page, token)


async def account(page: Page, item: str) -> None:
    """Choose this in the menu of the account."""
    await page.value("document.querySelector('[aria-label=\"Your account\"]').click()")
    found = f"[...document.querySelectorAll('[role=menuitem]')].find(e => e.textContent.startsWith({item!r}))"
    await page.until(found)
    await page.value(f"{found}.click()")


async def test_other_tabs_are_signed_in_and_out_with_the_first(
    page: Page, browser: Browser, cluster: Cluster
) -> None:
    node = cluster.nodes[0]
    await open_console(page, node, "#/backups")
    async with Page(browser, beside=page) as waiting:
        await open_console(waiting, node)
        await waiting.until("document.querySelector('#token')")
        await stay(page, cluster.user_token("nina"))
        await waiting.until(f"{USER} === 'nina'")
        async with Page(browser, beside=page) as second:
            await open_console(second, node, "#/images")
            await second.until(SIGNED_IN)
            await second.value(TOLD)
            await account(page, "Renew the token")
            await second.until("globalThis.isTold")
            renewed = json.loads(json.loads(await second.value(STORED))["filestore.token"])["token"]
            cluster.remember(renewed)
            second.forget()
            await show(second, "#/buckets", "main tbody tr")
            asked = second.heard("Network.requestWillBeSent")
            lists = [each["requestId"] for each in asked if "/api/v1/buckets" in each["request"]["url"]]
            assert lists
            used = {
                value
                for sent in second.heard("Network.requestWillBeSentExtraInfo")
                for name, value in sent["headers"].items()
                if sent["requestId"] in lists and name.lower() == "authorization"
            }
            assert used == {f"Bearer {renewed}"}
            await account(second, "Sign out")
            for tab in (page, waiting, second):
                await tab.until("document.querySelector('#token')")
            assert "filestore.token" not in await page.value(STORED)
            assert not faults(page, node) + faults(second, node) + faults(waiting, node)


async def test_token_stays_in_its_tab_unless_its_user_wants_more(
    page: Page, browser: Browser, cluster: Cluster
) -> None:
    node = cluster.nodes[0]
    await open_console(page, node)
    await sign_in(page, cluster.user_token("olga"))
    assert "filestore.token" not in await page.value(STORED)
    async with Page(browser, beside=page) as second:
        await open_console(second, node)
        await second.until("document.querySelector('#token')")
        # Another user stays signed in beside: each tab goes on as who it was.
        await stay(second, cluster.user_token("paul"))
        await page.value("location.reload()")
        await page.until(f"{USER} === 'olga'")
        await account(page, "Sign out")
        await page.until("document.querySelector('#token')")
        assert await second.value(USER) == "paul"
        assert "filestore.token" in await second.value(STORED)


async def test_token_that_ends_signs_every_tab_out(page: Page, browser: Browser, cluster: Cluster) -> None:
    node = cluster.nodes[0]
    await open_console(page, node, "#/buckets")
    await stay(page, cluster.user_token("quinn"))
    async with Page(browser, beside=page) as second:
        await open_console(second, node, "#/shares")
        await second.until(SIGNED_IN)
        assert cluster.post("/auth/revoke", {"user_id": "quinn"}).status == 200
        await page.value("location.hash = '#/access'")
        for tab in (page, second):
            await tab.until("document.querySelector('#token')")
        assert "filestore.token" not in await page.value(STORED)


async def test_other_origins_have_nothing_of_it(page: Page, browser: Browser, cluster: Cluster) -> None:
    """The console of another node is another origin: its pages and requests have no token."""
    node, other = cluster.nodes[:2]
    await open_console(page, node)
    await stay(page, cluster.user_token("rosa"))
    async with Page(browser, beside=page) as stranger:
        await open_console(stranger, other)
        await stranger.until("document.querySelector('#token')")
        assert "filestore.token" not in await stranger.value(STORED)
        asked = f"{node.url}/api/v1/auth/whoami"
        status = f"fetch({json.dumps(asked)}, {{ credentials: 'include' }}).then(r => r.status, () => 0)"
        assert await stranger.value(status) in (0, 401)
        assert await page.value("document.cookie") == ""


async def test_root_certificate_is_downloaded_where_one_signs_in(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    await saved(page, tmp_path)
    await open_console(page, cluster.nodes[0])
    await choose(page, "Download")
    copy = await downloaded(page, tmp_path)
    assert copy.name == "filestore-root.crt"
    assert copy.read_text() == Path(cluster.ca).read_text()
    await page.click("a[href='#/help/browsers']")
    await page.until("document.querySelector('h1')?.textContent === 'Browsers and the root certificate'")
    assert not faults(page, cluster.nodes[0])
