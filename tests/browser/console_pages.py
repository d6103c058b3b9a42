"""The web console as a person uses it: signing in, going from page to page, and what must be true of each."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from deploy.dev_cluster import Member
from tests.browser.chromium import Page

# Address, and what is on the page once it has loaded. `{project}` and `{bucket}` are ids of what a test made.
PAGES: Final = {
    "overview": ("#/", "main .recent, main .empty"),
    "projects": ("#/projects", "main tbody tr"),
    "labs": ("#/labs", "main .table-box"),
    "images": ("#/images", "main .table-box"),
    "backups": ("#/backups", "main .table-box"),
    "buckets": ("#/buckets", "main tbody tr"),
    "bucket": ("#/buckets/{bucket}", "main .facts"),
    "file": ("#/file/{project}?kind=project", "main .facts"),
    "uploads": ("#/uploads", "main .empty"),
    "trash": ("#/trash", "main .table-box"),
    "shares": ("#/shares", "main .table-box"),
    "access": ("#/access", "main .table-box"),
    "sessions": ("#/sessions", "main tbody tr"),
}
QUIET: Final = "!document.querySelector('.loading')"


async def open_console(page: Page, member: Member, address: str = "") -> None:
    """The console of a member, at a page of it."""
    await page.open(f"{member.url}/console/{address}")


async def sign_in(page: Page, token: str) -> None:
    """Paste a token, and wait until somebody is in."""
    await page.click("#token")
    await page.type(token)
    await page.click("form button[type=submit]")
    await page.until("document.querySelector('header.top .who')")


async def choose(page: Page, text: str, within: str = "main") -> None:
    """Click the button that says this, once it is there: the first of them in `within`."""
    found = f"[...document.querySelectorAll('{within} button')].find(b => b.textContent.startsWith({text!r}))"
    await page.until(f"{found} && !{found}.disabled")
    await page.value(f"{found}.click()")


async def closed(page: Page) -> None:
    """Wait until no dialog is open any more."""
    await page.until("!document.querySelector('dialog')")


async def show(page: Page, address: str, selector: str = "main h1") -> None:
    """Another page of the console, as by a link in it, once it has loaded."""
    await page.value(f"location.hash = {address!r}")
    await page.until(f"location.hash.startsWith({address.split('?')[0]!r})")
    await page.until(f"document.querySelector({selector!r}) && {QUIET}")


async def reshape(page: Page, width: int, theme: str) -> None:
    """A window of this width, once the page is drawn for it: tables measure themselves a frame later."""
    await page.shape(width, theme=theme)
    await page.until(f"innerWidth === {width} && {QUIET}")
    await page.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def faults(
    page: Page, member: Member, *, told: tuple[str, ...] = (), asked: Iterable[Member] = ()
) -> list[str]:
    """Complaints of the browser, and what was asked of anybody else than this member and those `asked`.

    `told`: parts of complaints that the test provokes, such as the status of a link that was revoked.
    """
    own = {urlsplit(each.url).netloc for each in (member, *asked)}
    foreign = [
        f"foreign request: {url}"
        for url in page.requested()
        if not url.startswith(("blob:", "about:")) and urlsplit(url).netloc not in own
    ]
    unexpected = [each for each in page.complaints() if not any(part in each for part in told)]
    return unexpected + foreign
