"""The web console in a real browser: every page in both themes at every width, and what a person can do."""

import os
from pathlib import Path

import pytest

from tests.browser import axe
from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import (
    PAGES,
    choose,
    closed,
    faults,
    open_console,
    reshape,
    show,
    sign_in,
)
from tests.browser.console_world import HOSTILE_NAMES, World, new_world
from tests.cluster.harness import Cluster

WIDTHS = (1440, 768, 320)
USABLE_MS_MAX = 300
LOADED_BYTES_MAX = 200_000
# Whether something juts out of the window, or has to be scrolled to sideways in a dialog or a table.
TOO_WIDE = """[document.documentElement, ...document.querySelectorAll("dialog article, .rows")]
  .some((each) => each.scrollWidth > each.clientWidth)"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> World:
    return new_world(cluster)


@pytest.fixture
async def signed_in(page: Page, cluster: Cluster, world: World) -> Page:
    """Alice at the overview."""
    await open_console(page, cluster.nodes[0])
    await sign_in(page, world.token)
    return page


async def pictured(page: Page, name: str) -> None:
    """A screenshot where somebody asked for them."""
    if directory := os.environ.get("FILESTORE_SCREENSHOTS"):
        await page.screenshot(Path(directory) / f"{name}.png")


async def look_at(page: Page, name: str, theme: str, script: str) -> list[str]:
    """What is wrong with the page that is shown, at every width."""
    found = []
    for width in WIDTHS:
        await reshape(page, width, theme)
        await pictured(page, f"{name}-{theme}-{width}")
        is_wider = await page.value(TOO_WIDE)
        found += [f"{name}: wider than {width} px"] * is_wider
        found += [f"{name}: {width} px, {theme}: {line}" for line in await axe.violations(page, script)]
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_is_usable_in_both_themes_at_every_width(
    page: Page, cluster: Cluster, world: World, axe_script: str, theme: str
) -> None:
    await page.shape(1440, theme=theme)
    await open_console(page, cluster.nodes[0])
    await page.until("document.querySelector('#token')")
    found = await look_at(page, "sign-in", theme, axe_script)
    await page.shape(1440, theme=theme)
    await sign_in(page, world.token)
    for name, (address, selector) in PAGES.items():
        await page.shape(1440, theme=theme)
        await show(page, world.address(address), selector)
        found += await look_at(page, name, theme, axe_script)
    await show(page, world.link, "main.shared a.download")
    found += await look_at(page, "link", theme, axe_script)
    assert not found
    assert not faults(page, cluster.nodes[0])


async def test_dialogs_are_usable_too(
    signed_in: Page, cluster: Cluster, world: World, axe_script: str, tmp_path: Path
) -> None:
    page, found = signed_in, []
    await show(page, world.address("#/file/{project}?kind=project"), "main .facts")
    for text, closing in (("Share…", "Cancel"), ("Give access…", "Cancel")):
        await choose(page, text)
        await page.until("document.querySelector('dialog[open]')")
        found += await look_at(page, f"dialog {text}", "light", axe_script)
        await choose(page, closing, "dialog")
        await closed(page)
    (tmp_path / "lab.qcow2").write_bytes(b"QFI\xfb" + bytes(1000))
    await page.shape(1440)
    await page.drop(tmp_path / "lab.qcow2")
    await page.until("document.querySelector('dialog form fieldset')")
    found += await look_at(page, "dialog upload", "dark", axe_script)
    assert await page.value("document.querySelector('dialog select').value") == "image"
    await page.press("Escape", 27)
    await closed(page)
    assert not found
    assert not faults(page, cluster.nodes[0])


async def test_first_page_is_small_and_soon_there(page: Page, cluster: Cluster) -> None:
    """The best of three first visits, each with an empty cache."""
    times_ms = []
    for _ in range(3):
        await page.send("Network.clearBrowserCache")
        await open_console(page, cluster.nodes[0])
        await page.until("document.querySelector('#token')")
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        await page.until(paint)
        times_ms.append(await page.value(paint))
        loaded = await page.value(
            "performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)"
        )
        assert loaded < LOADED_BYTES_MAX
    assert min(times_ms) < USABLE_MS_MAX, times_ms


async def test_what_is_no_token_is_told_and_a_dropped_file_signs_in(
    page: Page, cluster: Cluster, world: World, tmp_path: Path
) -> None:
    await open_console(page, cluster.nodes[0], "#/images")
    for given, sentence in (("abc", "This is not a token."), ("eyJhbGci.abcdefgh.abcdefgh", "was rejected")):
        await page.click("#token")
        await page.value("document.querySelector('#token').select()")
        await page.type(given)
        await page.click("form button[type=submit]")
        await page.until(f"document.querySelector('.error')?.textContent.includes({sentence!r})")
    (tmp_path / "alice.token").write_text(f"{world.token}\n")
    await page.drop(tmp_path / "alice.token", x=20, y=400)  # beside the form
    await page.until("document.querySelector('main h1')?.textContent === 'Images'")
    assert await page.value("Object.keys(localStorage).length") == 0
    assert await page.value("document.cookie") == ""
    assert not faults(page, cluster.nodes[0], told=("401",))


# A file that is dropped in the very task in which the page of somebody who signed in is drawn.
DROPPED_AT_ONCE = """new MutationObserver((_, observer) => {
  if (!document.querySelector("header.top .who")) return;
  observer.disconnect();
  const data = new DataTransfer();
  data.items.add(new File(["early"], "early.tar"));
  dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}).observe(document.body, { childList: true, subtree: true })"""


async def test_file_that_is_dropped_at_once_is_offered_for_upload(
    page: Page, cluster: Cluster, world: World
) -> None:
    await open_console(page, cluster.nodes[0])
    await page.value(f"void {DROPPED_AT_ONCE}")
    await sign_in(page, world.token)
    await page.until("document.querySelector('dialog')?.textContent.includes('early.tar')")
    assert not faults(page, cluster.nodes[0])


async def test_files_are_taken_by_whatever_they_are_dragged_over(
    page: Page, cluster: Cluster, world: World
) -> None:
    """Else the browser makes a leave of a drop on what was entered last: a page that has just been drawn."""
    takes = """(type) => {
      const data = new DataTransfer();
      data.items.add(new File(["x"], "x.tar"));
      const event = new DragEvent(type, { dataTransfer: data, cancelable: true, bubbles: true });
      return !document.querySelector("main").dispatchEvent(event);
    }"""
    await open_console(page, cluster.nodes[0])
    for _ in ("before signing in", "after it"):
        assert await page.value(f"['dragenter', 'dragover'].map({takes})") == [True, True]
        if not await page.value("Boolean(document.querySelector('header.top .who'))"):
            await sign_in(page, world.token)


async def test_signing_out_and_a_revoked_token_lead_back_to_where_one_was(
    page: Page, cluster: Cluster
) -> None:
    first = cluster.user_token("carol")
    await open_console(page, cluster.nodes[0], "#/buckets")
    await sign_in(page, first)
    await page.until("document.querySelector('main h1')?.textContent === 'Buckets'")
    assert cluster.post("/auth/revoke", {"user_id": "carol"}).status == 200
    await page.value("location.hash = '#/projects?q=lab'")
    await page.until("document.querySelector('#token')")
    assert "Sign in again" in await page.value("document.querySelector('.banner').textContent")
    await sign_in(page, cluster.user_token("carol"))
    await page.until("document.querySelector('main h1')?.textContent === 'Projects'")
    assert await page.value("document.querySelector('input[type=search]').value") == "lab"
    assert not faults(page, cluster.nodes[0], told=("401",))


async def test_hostile_names_are_text_everywhere(signed_in: Page, cluster: Cluster, world: World) -> None:
    page = signed_in
    await show(page, world.address("#/buckets/{bucket}"), "main tbody tr")
    names = await page.value(
        "[...document.querySelectorAll('main .card tbody td bdi')].map(each => each.textContent)"
    )
    assert set(HOSTILE_NAMES) <= set(names)
    links = await page.value("[...document.querySelectorAll('main tbody a')].map(each => each.hash)")
    for link in links:
        await show(page, link, "main .facts")
        title = await page.value("document.querySelector('main h1 bdi').textContent")
        assert title in HOSTILE_NAMES
        await choose(page, "More")
        await choose(page, "Delete…", "[role=menu]")
        await page.until("document.querySelector('dialog .named bdi')")
        assert await page.value("document.querySelector('dialog .named bdi').textContent") == title
        assert await page.value("document.documentElement.scrollWidth <= innerWidth")
        await page.press("Escape", 27)
        await closed(page)
    assert "hit" not in await page.value("document.title.split(' · ')[1]")
    assert await page.value("document.querySelectorAll('img, main script').length") == 0
    assert not faults(page, cluster.nodes[0])


async def test_back_and_forward_go_through_the_pages(signed_in: Page, cluster: Cluster) -> None:
    page = signed_in
    for address in ("#/projects", "#/images", "#/buckets"):
        await show(page, address, "main .table-box")
    await page.click("main tbody a")
    await page.until("location.hash.startsWith('#/buckets/')")
    heading = "document.querySelector('main h1')?.textContent"
    for expected in ("Buckets", "Images", "Projects"):
        await page.value("history.back()")
        await page.until(f"{heading} === {expected!r}")
    await page.value("history.forward()")
    await page.until(f"{heading} === 'Images'")
    assert await page.value("document.title") == "Images · Filestore"
    assert not faults(page, cluster.nodes[0])


async def test_keyboard_alone_opens_searches_and_deletes(
    signed_in: Page, cluster: Cluster, world: World
) -> None:
    page = signed_in
    doomed = cluster.store(b"x", "to be deleted.gns3p", token=world.token)
    await show(page, "#/projects?q=to+be+deleted", "main tbody tr")
    assert await page.value("document.activeElement.tagName") == "H1"
    for _ in range(40):
        await page.press("Tab", 9)
        if (
            await page.value("document.activeElement.getAttribute('aria-label')")
            == "Actions for to be deleted.gns3p"
        ):
            break
    await page.press("Enter", 13)
    await page.until("document.activeElement.getAttribute('role') === 'menuitem'")
    await page.press("End", 35)
    await page.press("Enter", 13)
    await page.until("document.querySelector('dialog .named')")
    await page.value("document.querySelector('dialog button[type=submit]').focus()")
    await page.press("Enter", 13)
    await page.until("!document.querySelector('dialog') && !document.querySelector('main tbody')")
    assert cluster.get(f"/project-files/{doomed}", token=world.token).status == 404
    assert not faults(page, cluster.nodes[0])


async def test_menu_closes_when_the_page_scrolls_and_not_for_an_event_from_before(signed_in: Page) -> None:
    """A busy browser reports the scroll that brought the button into view after the click on it."""
    page, frames = signed_in, "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    await show(page, "#/projects", "main tbody tr")
    await page.value("document.querySelector('main tbody .menu button').click()")
    await page.until("document.activeElement.getAttribute('role') === 'menuitem'")
    await page.value(frames)
    await page.value("dispatchEvent(new Event('scroll'))")
    await page.value(frames)
    assert await page.value("Boolean(document.querySelector('[role=menu]'))")
    await page.value("(document.body.style.paddingBottom = '3000px', scrollTo(0, 100))")
    await page.until("!document.querySelector('[role=menu]')")


async def test_three_tabs_of_one_person_see_what_each_does(
    browser: Browser, signed_in: Page, cluster: Cluster, world: World
) -> None:
    async with Page(browser, beside=signed_in) as second, Page(browser, beside=signed_in) as third:
        for tab, node in ((second, cluster.nodes[1]), (third, cluster.nodes[0])):
            await open_console(tab, node, "#/backups")
            await tab.until("document.querySelector('#token')")  # each tab has a session of its own
            await sign_in(tab, world.token)
            await tab.until("document.querySelector('main tbody tr')")
        stored = cluster.post(
            "/backups",
            {"filename": "seen by all.tar", "backup_type": "full", "size_bytes": 0},
            token=world.token,
        )
        for tab in (second, third):
            await tab.until(
                "[...document.querySelectorAll('tbody bdi')].some(e => e.textContent === 'seen by all.tar')"
            )
        assert (
            cluster.request("DELETE", f"/files/{stored.json['file_uuid']}", token=world.token).status == 200
        )
        assert not faults(second, cluster.nodes[1]) + faults(third, cluster.nodes[0])


async def test_coordinator_serves_the_console_and_leads_to_a_node(
    page: Page, cluster: Cluster, world: World
) -> None:
    member = cluster.coordinators[0]
    await page.open(f"{member.url}/")
    await sign_in(page, world.token)
    assert await page.value("location.pathname") == "/console/"
    await show(page, "#/projects", "main tbody tr")
    assert await page.value("document.querySelectorAll('input[type=file]').length") == 0
    assert not faults(page, member)
    await page.click(".banner a")
    await page.until("document.querySelector('#token')")
    assert await page.value("location.port") in {str(node.api_port) for node in cluster.nodes}
    assert await page.value("location.hash") == "#/projects"


PICTURE = "document.body.append(Object.assign(document.createElement('img'), {src: 'https://127.0.0.1:1/x'}))"
SCRIPT = "document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))"


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (PICTURE, "img-src"),
        ("fetch('https://127.0.0.1:1/').catch(() => 0)", "connect-src"),
        (SCRIPT, "policy"),
        ("document.body.setAttribute('onclick', '1'); document.body.click()", "policy"),
        ("setTimeout(() => { document.body.innerHTML = '<p>x</p>' })", "TrustedHTML"),
        ("console.error('broken')", "broken"),
        ("setTimeout(() => { throw new Error('uncaught one') })", "uncaught one"),
    ],
    ids=["picture", "request", "script", "handler", "markup", "console", "uncaught"],
)
async def test_faults_would_be_noticed(signed_in: Page, cluster: Cluster, act: str, told: str) -> None:
    """Otherwise no test here could fail for them."""
    assert not faults(signed_in, cluster.nodes[0])
    await signed_in.send("Runtime.evaluate", expression=act)
    for _ in range(100):
        if any(told in fault for fault in faults(signed_in, cluster.nodes[0])):
            return
        await signed_in.value("new Promise(done => setTimeout(done, 50))")
    raise AssertionError(faults(signed_in, cluster.nodes[0]))


async def test_axe_would_notice(signed_in: Page, axe_script: str) -> None:
    """Otherwise its silence would mean nothing."""
    await signed_in.value("document.querySelector('main').append(document.createElement('button'))")
    assert any("button-name" in line for line in await axe.violations(signed_in, axe_script))
