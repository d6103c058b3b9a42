"""Groups, invitations and sessions in the console, as an administrator and a student use them."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.browser import axe
from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import QUIET, closed, faults, open_console, reshape, show, sign_in
from tests.browser.test_operator_day import choose, fill, press_button
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
WIDTHS: Final = (1280, 360)
THEMES: Final = ("light", "dark")
GROUP: Final = "netlab-2026"


@pytest.fixture
async def student(browser: Browser) -> AsyncIterator[Page]:
    """Another browser."""
    async with Page(browser) as opened:
        yield opened


async def looked_at(page: Page, name: str, axe_script: str) -> list[str]:
    """What is wrong with the page as it is now, in both themes, on a phone and on a screen."""
    found = []
    for theme in THEMES:
        for width in WIDTHS:
            await reshape(page, width, theme)
            if directory := os.environ.get("FILESTORE_SCREENSHOTS"):
                await page.screenshot(Path(directory) / f"people-{name}-{theme}-{width}.png")
            if await page.value("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{name}: wider than {width} px")
            found += [f"{name}: {width}, {theme}: {line}" for line in await axe.violations(page, axe_script)]
    await reshape(page, WIDTHS[0], THEMES[0])
    return found


async def group_made(page: Page, bucket: str, axe_script: str) -> list[str]:
    """A group with stella, which was given the bucket. What is wrong with its pages."""
    await show(page, "#/groups", "main .table-box")
    await press_button(page, "Add a group…")
    await fill(page, "[name=group]", GROUP)
    await fill(page, "[name=description]", "Network lab, winter 2026")
    await press_button(page, "Add the group", within="dialog")
    await page.until(f"location.hash === '#/groups/{GROUP}' && document.querySelector('main .card')")
    await press_button(page, "Add members…")
    await fill(page, "[name=others]", "stella, nobody-here")
    await press_button(page, "Add them", within="dialog")
    await page.until("document.querySelector('dialog .error')?.textContent.includes('nobody-here')")
    await page.value("document.querySelector('dialog [name=others]').value = 'stella'")
    await press_button(page, "Add them", within="dialog")
    await closed(page)
    await page.until("document.querySelector('main tbody tr')?.textContent.includes('stella')")
    await press_button(page, "Give access to a bucket…")
    await page.until("document.querySelector('dialog [name=bucket_id] option')")
    await page.value(f"document.querySelector('dialog [name=bucket_id]').value = '{bucket}'")
    await press_button(page, "Give access", within="dialog")
    await closed(page)
    await page.until("document.querySelectorAll('main tbody tr').length === 2")
    problems = await looked_at(page, "group", axe_script)
    await show(page, "#/groups", "main tbody tr")
    return problems + await looked_at(page, "groups", axe_script)


async def link_made(page: Page) -> str:
    """A link for stella, as the page of users shows it."""
    await show(page, "#/users", "main tbody tr")
    await choose(page, "Actions for stella", "Make an invitation link…")
    await press_button(page, "Make it", within="dialog")
    await page.until("document.querySelector('dialog pre.command')")
    link = str(await page.value("document.querySelector('dialog pre.command').textContent"))
    await press_button(page, "Done", within="dialog")
    await closed(page)
    return link


async def test_student_gets_in_by_a_link_and_sees_what_the_group_was_given(
    page: Page, student: Page, cluster: Cluster, axe_script: str
) -> None:
    bucket = cluster.post("/buckets", {"name": "course 7"}).json["bucket_id"]
    cluster.user_token("stella")
    await page.shape(WIDTHS[0])
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    problems = await group_made(page, bucket, axe_script)
    link = await link_made(page)
    secret = cluster.remember(link.rpartition("/")[2])
    await student.shape(WIDTHS[0])
    await student.open(link)
    await student.until("document.querySelector('main.alone form button')")
    problems += await looked_at(student, "invited", axe_script)
    assert cluster.get("/auth/users/stella/sessions").json["count"] == 1, "only the token of before"
    await press_button(student, "Accept the invitation")
    await student.until("document.querySelector('h1')?.textContent.startsWith('Welcome')")
    assert secret not in await student.value("location.href")
    problems += await looked_at(student, "welcome", axe_script)
    await press_button(student, "Continue to your files")
    await student.until("document.querySelector('header.top .who')?.textContent.includes('stella')")
    await show(student, "#/buckets", "main tbody tr")
    await student.until("document.querySelector('main tbody').textContent.includes('course 7')")
    assert not any(secret in url for url in student.requested())
    await show(page, f"#/groups/{GROUP}", "main tbody tr")
    await press_button(page, "Remove stella…")
    await press_button(page, "Remove", within="dialog footer")
    await closed(page)
    await show(student, "#/", "main h1")
    await show(student, "#/buckets", "main .table-box")
    await student.until(f"{QUIET} && !document.querySelector('main').textContent.includes('course 7')")
    await student.open(link)
    await press_button(student, "Accept the invitation")
    await student.until("document.querySelector('.error')?.textContent.includes('was used')")
    problems += await looked_at(student, "used", axe_script)
    assert not problems
    assert not faults(page, cluster.nodes[0], asked=cluster.members, told=("404",))
    assert not faults(student, cluster.nodes[0], asked=cluster.members, told=("410",))


async def test_user_ends_sessions_also_the_one_in_use(page: Page, cluster: Cluster, axe_script: str) -> None:
    first = cluster.post("/auth/users/sam/token", {"label": "laptop"}).json["token"]
    cluster.remember(first)
    other = cluster.user_token("sam")
    await page.shape(WIDTHS[0])
    await open_console(page, cluster.nodes[0])
    await sign_in(page, first)
    await show(page, "#/sessions", "main tbody tr")
    await page.until("document.querySelectorAll('main tbody tr').length === 2")
    problems = await looked_at(page, "sessions", axe_script)
    await press_button(page, "End token…")
    await press_button(page, "End it", within="dialog footer")
    await closed(page)
    await page.until("document.querySelectorAll('main tbody tr').length === 1")
    assert cluster.get("/auth/whoami", token=other, stranger=True).status == 401
    assert cluster.get("/auth/whoami", token=first).status == 200
    await press_button(page, "End all…")
    await press_button(page, "End all", within="dialog footer")
    await page.until(
        "document.querySelector('main.sign-in .banner')?.textContent.includes('all your sessions')"
    )
    assert cluster.get("/auth/whoami", token=first, stranger=True).status == 401
    assert not problems
    assert not faults(page, cluster.nodes[0], asked=cluster.members)
