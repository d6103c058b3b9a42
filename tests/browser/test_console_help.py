"""The pages of docs/ in the console: every link to the runbook leads to its section."""

import re
from typing import Final

import pytest

from api.console.files import HELP
from tests.browser import axe
from tests.browser.chromium import Page
from tests.browser.console_pages import faults, open_console, sign_in
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
SECTIONS: Final = re.findall(r"\((runbook-[a-z]+)\.md#(\w+)\)", (HELP / "runbook.md").read_text("utf-8"))
SHOWN: Final = "!document.querySelector('.loading') && document.querySelector('article.help')"


async def go(page: Page, address: str) -> None:
    """Another page of the help, once it is drawn."""
    await page.value(f"location.hash = {address!r}")


async def test_every_section_of_the_runbook_is_found_by_its_name(page: Page, cluster: Cluster) -> None:
    assert len(SECTIONS) > 30
    await open_console(page, cluster.nodes[0], "#/help")
    await page.until(SHOWN)
    for name, section in SECTIONS:
        await go(page, f"#/help/runbook?at={section}")
        await page.until(
            f"location.hash === '#/help/{name}?at={section}' && document.activeElement.id === '{section}'"
        )
        assert await page.value("document.activeElement.getBoundingClientRect().top") < 400
    assert not faults(page, cluster.nodes[0])


async def test_pages_are_drawn_whole_and_their_links_lead_somewhere(
    page: Page, cluster: Cluster, axe_script: str
) -> None:
    await open_console(page, cluster.nodes[0], "#/help")
    await page.until(SHOWN)
    names = {path.stem for path in HELP.glob("*.md")}
    for name in sorted(names):
        await go(page, f"#/help/{name}")
        title = (HELP / f"{name}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
        await page.until(f"{SHOWN} && document.querySelector('h1').textContent === {title!r}")
        text = await page.value("document.querySelector('article.help').innerText")
        assert "```" not in text, name
        assert "](" not in text, name
        links = "[...document.querySelectorAll('article.help a')].map(a => a.getAttribute('href'))"
        for link in await page.value(links):
            if link.startswith("#/help/"):
                assert re.split(r"[/?]", link)[2] in names, (name, link)
        here = f"[...document.querySelectorAll('article.help a[href^=\"#/help/{name}?\"]')]"
        lost = f"{here}.map(a => a.href.split('at=')[1]).filter(at => !document.getElementById(at))"
        assert not await page.value(lost), name
    assert not await axe.violations(page, axe_script)
    assert not faults(page, cluster.nodes[0])


async def test_help_is_read_without_a_token_and_within_the_frame_with_one(
    page: Page, cluster: Cluster
) -> None:
    await open_console(page, cluster.nodes[0], "#/help/there-is-none")
    await page.until("document.querySelector('.empty')")
    await go(page, "#/")
    await page.until("document.querySelector('#token')")
    await sign_in(page, cluster.user_token("wendy"))
    await go(page, "#/help/sharing")
    await page.until(f"{SHOWN} && document.querySelector('nav#navigation')")
    assert not faults(page, cluster.nodes[0], told=("404",))
