"""Signing in to the console with a real provider, in Chromium: there and back, renewal, and the end."""

import json

import pytest

from tests.browser.chromium import Page
from tests.browser.console_pages import choose, faults, open_console, show
from tests.browser.console_pages import sign_in as sign_in_with_token
from tests.cluster.harness import Cluster
from tests.sso.conftest import Desk, redirects
from tests.sso.real_provider import RealProvider

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

USER = "document.querySelector('header.top .who bdi')?.textContent"
BUTTON = "document.querySelector('.providers button')"
SESSION = "JSON.parse(sessionStorage.getItem('filestore.renewal'))"
LONG_AGO = "2020-01-01T00:00:00Z"
DUE = f"sessionStorage.setItem('filestore.renewal', JSON.stringify({{...{SESSION}, at: '{LONG_AGO}'}}))"


async def at_provider(page: Page, provider: RealProvider, person: str = "alice") -> None:
    """Fill in the forms of the provider: the name, then the consent."""
    await page.until(f"location.origin === {provider.issuer!r} && document.querySelector('[name=login]')")
    await page.click("[name=login]")
    await page.type(person)
    await page.click("[name=password]")
    await page.type("any")
    await page.click("button[type=submit]")
    await page.until("document.querySelector('[name=prompt][value=consent]')")
    await page.click("button[type=submit]")


async def sign_in(
    page: Page, cluster: Cluster, provider: RealProvider, address: str = "", person: str = "alice"
) -> None:
    await open_console(page, cluster.nodes[0], address)
    await choose(page, "Sign in with", ".providers")
    await at_provider(page, provider, person)
    await page.until(f"{USER} === 'uni:{person}'")


def own_faults(page: Page, cluster: Cluster, provider: RealProvider, *told: str) -> list[str]:
    """Complaints, without what the pages of the provider are to blame for."""
    found = faults(page, cluster.nodes[0], told=told)
    own_pages = (provider.issuer, "fonts.googleapis.com", "favicon")
    return [each for each in found if not any(part in each for part in own_pages)]


async def test_button_leads_to_the_provider_and_back_to_the_page(
    page: Page, cluster: Cluster, provider: RealProvider
) -> None:
    await sign_in(page, cluster, provider, "#/backups?q=lab")
    assert await page.value("location.hash") == "#/backups?q=lab"
    assert await page.value("sessionStorage.getItem('filestore.sign-in')") is None
    assert await page.value(f"{SESSION}.provider") == "uni"
    cluster.remember(await page.value(f"{SESSION}.text"))
    assert "code=" not in await page.value("location.href")
    history = (await page.send("Page.getNavigationHistory"))["entries"]
    assert not [
        entry["url"]
        for entry in history
        if "/console/#/signed-in" in entry["url"] and "code=" in entry["url"]
    ]
    assert await page.value("localStorage.length") == 0
    assert await page.value("document.cookie") == ""
    assert own_faults(page, cluster, provider) == []


async def test_token_is_renewed_while_the_page_is_open(
    page: Page, cluster: Cluster, provider: RealProvider
) -> None:
    await sign_in(page, cluster, provider)
    before = await page.value("sessionStorage.getItem('filestore.token')")
    provider.know(alice=["netlab", "chess"])
    await page.value(DUE)
    await page.reload()
    await page.until(f"sessionStorage.getItem('filestore.token') !== {json.dumps(before)}")
    await page.until("document.querySelector('header.top .who small')?.textContent.includes('chess')")
    assert await page.value(f"Date.parse({SESSION}.at) > Date.now()")
    assert own_faults(page, cluster, provider) == []


async def test_provider_that_is_down_ends_no_session_of_the_console(
    page: Page, cluster: Cluster, provider: RealProvider
) -> None:
    await sign_in(page, cluster, provider)
    provider.stop()
    try:
        await page.value(DUE)
        await page.reload()
        await page.event(
            "Network.responseReceived", lambda event: event["response"]["url"].endswith("/renewal")
        )
        await page.until(f"{USER} === 'uni:alice'")
        assert await page.value(f"{SESSION}.provider") == "uni"
    finally:
        provider.start()
    assert own_faults(page, cluster, provider, "status of 503") == []


async def test_answer_that_this_tab_has_not_asked_for_is_refused(
    page: Page, cluster: Cluster, provider: RealProvider
) -> None:
    """Login CSRF: the page of an attacker sends the browser to the way back, with a code of the attacker."""
    url = f"{cluster.nodes[0].url}/console/sign-in/uni?code=stolen&state=made-up&iss={provider.issuer}"
    await page.open(url)
    await page.until("document.querySelector('.error')?.textContent.includes('has not begun this sign-in')")
    assert "code=" not in await page.value("location.href")
    assert not [each for each in page.requested() if each.endswith("/providers/uni/token")]
    await page.value("location.hash = '#/'")
    await page.until(BUTTON)
    assert own_faults(page, cluster, provider) == []


async def test_begun_sign_in_takes_no_answer_of_another_provider_or_state(
    page: Page, cluster: Cluster, provider: RealProvider
) -> None:
    for way in ("twin?code=c&state=S", "uni?code=c&state=other", "uni?code=c"):
        await open_console(page, cluster.nodes[0])
        await page.until(BUTTON)
        begun = {"provider": "uni", "attempt": "x", "state": "S", "isKept": False, "back": "#/"}
        await page.value(f"sessionStorage.setItem('filestore.sign-in', {json.dumps(json.dumps(begun))})")
        await page.open(f"{cluster.nodes[0].url}/console/sign-in/{way}")
        await page.until(
            "document.querySelector('.error')?.textContent.includes('has not begun this sign-in')"
        )
        assert await page.value("sessionStorage.getItem('filestore.sign-in')") is None
        await page.open("about:blank")


async def test_person_of_no_allowed_group_is_told_so(
    page: Page, cluster: Cluster, provider: RealProvider
) -> None:
    await open_console(page, cluster.nodes[0])
    await choose(page, "Sign in with", ".providers")
    await at_provider(page, provider, "carol")
    await page.until("document.querySelector('.error')?.textContent.includes('in no group that may sign in')")
    assert await page.value("sessionStorage.getItem('filestore.token')") is None
    assert own_faults(page, cluster, provider, "status of 403") == []


async def test_sign_out_ends_the_session_at_the_provider(
    page: Page, cluster: Cluster, provider: RealProvider, desk: Desk
) -> None:
    await sign_in(page, cluster, provider)
    renewal = await page.value(f"{SESSION}.text")
    await page.value("document.querySelector('[aria-label=\"Your account\"]').click()")
    item = "[...document.querySelectorAll('[role=menuitem]')].find(e => e.textContent === 'Sign out')"
    await page.until(item)
    assert not await page.value(
        "[...document.querySelectorAll('[role=menuitem]')].some(e => e.textContent.startsWith('Renew'))"
    )
    await page.value(f"{item}.click()")
    await page.until(BUTTON)
    await page.event("Network.responseReceived", lambda event: event["response"]["url"].endswith("/sign-out"))
    answer = cluster.post("/auth/providers/uni/renewal", {"renewal": renewal}, token=None, stranger=True)
    assert answer.status == 403
    assert await page.value("sessionStorage.getItem('filestore.renewal')") is None


async def test_admin_sees_the_providers_and_tests_one(
    page: Page, cluster: Cluster, provider: RealProvider
) -> None:
    await open_console(page, cluster.nodes[0])
    await sign_in_with_token(page, cluster.admin_token)
    await show(page, "#/providers", "main .card .facts")
    facts = await page.value("document.querySelector('main .facts').textContent")
    assert all(part in facts for part in (provider.issuer, "netlab", "staff", *redirects(cluster)))
    await choose(page, "Test")
    await page.until("document.querySelector('main table[aria-label=\"Test of uni\"]')")
    outcomes = await page.value("[...document.querySelectorAll('main tbody .badge')].map(e => e.textContent)")
    assert set(outcomes) <= {"ok", "note"}, outcomes
    assert outcomes.count("ok") >= 4
    assert own_faults(page, cluster, provider) == []
