"""The dialogs of an administrator, as axe-core and a narrow window see them, in both themes."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.browser import axe
from tests.browser.chromium import Page
from tests.browser.console_pages import closed, faults, open_console, reshape, show, sign_in
from tests.browser.test_operator_day import choose, fill, press_button
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
WIDTHS: Final = (1440, 320)
# Whether something juts out of the window, or has to be scrolled to sideways in the dialog.
TOO_WIDE: Final = """[document.documentElement, document.querySelector("dialog article")]
  .some((each) => each.scrollWidth > each.clientWidth)"""
Opening = Callable[[Page], Awaitable[None]]


def item(address: str, menu: str, text: str) -> Opening:
    """Choose this from a menu of a page."""

    async def opening(page: Page) -> None:
        await show(page, address, "main tbody tr")
        await choose(page, menu, text)

    return opening


def button(address: str, text: str) -> Opening:
    """Press this button of a page."""

    async def opening(page: Page) -> None:
        await show(page, address, "main tbody tr")
        await press_button(page, text)

    return opening


async def refused_removal(page: Page) -> None:
    """A node that holds something is not removed: the dialog then says what could be given up."""
    await item("#/nodes", "Actions for node-2", "Remove…")(page)
    await fill(page, "input", "node-2")
    await press_button(page, "Remove it", within="dialog footer")
    await page.until("document.querySelector('dialog fieldset')")


async def join_command(page: Page) -> None:
    await button("#/nodes", "Add a node…")(page)
    await fill(page, "[name=name]", "n9")
    await fill(page, "[name=address]", "n9.example.org")
    await press_button(page, "Show the commands", within="dialog footer")
    await page.until("document.querySelector('dialog pre.command')")


async def token_command(page: Page) -> None:
    await join_command(page)
    await press_button(page, "Without setup…", within="dialog footer")
    await press_button(page, "Create a join token", within="dialog footer")
    await page.until("document.querySelector('dialog pre.command')?.textContent.includes('FST1')")


async def minted_token(page: Page) -> None:
    await item("#/users", "Actions for zoe", "Create a token…")(page)
    await press_button(page, "Create it", within="dialog footer")
    await page.until("document.querySelector('dialog pre.command')")


async def invitation(page: Page) -> None:
    await item("#/users", "Actions for zoe", "Make an invitation link…")(page)
    await press_button(page, "Make it", within="dialog footer")
    await page.until("document.querySelector('dialog pre.command')")


# How each is opened; by text alone: from the menu of a coordinator that follows.
DIALOGS: Final[dict[str, Opening | str]] = {
    "drain": item("#/nodes", "Actions for node-2", "Drain…"),
    "remove node": item("#/nodes", "Actions for node-2", "Remove…"),
    "removal refused": refused_removal,
    "revoke node": item("#/nodes", "Actions for node-2", "Revoke its certificates…"),
    "add node": button("#/nodes", "Add a node…"),
    "join command": join_command,
    "token command": token_command,
    "transfer": "Let it lead…",
    "transfer to any": button("#/coordinators", "Hand the lead over…"),
    "add coordinator": button("#/coordinators", "Add a coordinator…"),
    "remove coordinator": "Remove…",
    "mint": item("#/users", "Actions for zoe", "Create a token…"),
    "minted": minted_token,
    "invite": item("#/users", "Actions for zoe", "Make an invitation link…"),
    "invitation": invitation,
    "add group": button("#/groups", "Add a group…"),
    "add members": item("#/groups", "Actions for students", "Add members…"),
    "delete group": item("#/groups", "Actions for students", "Delete…"),
    "group's bucket": button("#/groups/students", "Give access to a bucket…"),
    "end all sessions": button("#/sessions?user=zoe", "End all…"),
    "change user": item("#/users", "Actions for zoe", "Change roles and groups…"),
    "delete user": item("#/users", "Actions for zoe", "Delete…"),
    "add user": button("#/users", "Add a user…"),
    "run job": button("#/jobs", "Run… scrub"),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_dialog_of_an_operator_is_usable(
    page: Page, cluster: Cluster, axe_script: str, theme: str
) -> None:
    cluster.user_token("zoe", groups=["students"])
    follower = next(each for each in cluster.coordinators if each != cluster.leader())
    found = []
    await page.shape(1440, theme=theme)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    for name, opening in DIALOGS.items():
        await reshape(page, 1440, theme)
        if isinstance(opening, str):
            opening = item("#/coordinators", f"Actions for {follower.id}", opening)
        await opening(page)
        await page.until("document.querySelector('dialog[open]')")
        for width in WIDTHS:
            await reshape(page, width, theme)
            if directory := os.environ.get("FILESTORE_SCREENSHOTS"):
                await page.screenshot(
                    Path(directory) / f"dialog-{name.replace(' ', '-')}-{theme}-{width}.png"
                )
            if await page.value(TOO_WIDE):
                found.append(f"{name}: wider than {width} px")
            lines = await axe.violations(page, axe_script)
            found += [f"{name}: {width} px, {theme}: {line}" for line in lines]
        await page.press("Escape", 27)
        await closed(page)
    assert not found
    told = ("409",)  # the removal that is refused
    assert not faults(page, cluster.nodes[0], told=told, asked=cluster.members)


async def test_dialog_of_who_was_signed_in_is_not_shown_to_the_next(page: Page, cluster: Cluster) -> None:
    """It shows a token that was just made, while the token of who made it is revoked."""
    cluster.user_token("boss")
    assert cluster.request("PUT", "/auth/users/boss", body={"roles": ["admin"]}).status == 200
    pupil = cluster.user_token("pupil")
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.user_token("boss", roles=["admin"]))
    await show(page, "#/users", "main tbody tr")
    await press_button(page, "Add a user…")
    await page.until("document.querySelector('dialog [name=user_id]')")
    await page.click("dialog [name=user_id]")
    await page.type("colleague")
    await press_button(page, "Add the user", within="dialog footer")
    await page.until("document.querySelector('dialog pre.command')")
    cluster.remember(await page.value("document.querySelector('dialog pre.command').textContent"))
    assert cluster.post("/auth/revoke", {"user_id": "boss"}).status == 200
    await page.until("document.querySelector('#token')")
    await sign_in(page, pupil)
    await page.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert not await page.value("Boolean(document.querySelector('dialog'))")
