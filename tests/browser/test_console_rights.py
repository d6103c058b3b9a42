"""What is offered to a user who may only read, what a bucket's totals are, and where the focus returns to."""

from pathlib import Path

import pytest

from metadata.model.records import DEFAULT_BUCKET_ID
from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.console_world import stored
from tests.browser.test_console_day import dropped, state_of
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
BUTTONS = "[...document.querySelectorAll('main button')].map(b => b.textContent.trim())"
ITEMS = "[...document.querySelectorAll('[role=menuitem]')].map(b => b.textContent)"
FOCUSED = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"


async def offered(page: Page, menu: str) -> list[str]:
    """What a menu offers."""
    all_menus = "[...document.querySelectorAll('main [aria-haspopup=menu]')]"
    button = f"{all_menus}.find(b => b.ariaLabel.startsWith({menu!r}))"
    await page.until(button)
    await page.value(f"{button}.click()")
    await page.until(f"{ITEMS}.length > 0")
    found: list[str] = await page.value(ITEMS)
    await page.press("Escape", 27)
    return found


@pytest.mark.parametrize("level", ["read", "write", "admin"])
async def test_only_what_the_user_may_do_is_offered(page: Page, cluster: Cluster, level: str) -> None:
    owner, user = cluster.user_token("una"), f"victor-{level}"
    token = cluster.user_token(user, groups=[f"team-{level}"])
    bucket = str(cluster.post("/buckets", {"name": f"for {level}"}, token=owner).json["bucket_id"])
    typed = {"backup_type": "full", "bucket_id": bucket}
    file = stored(cluster, "/backups", b"x", owner, filename=f"lent-{level}.tar", **typed)
    own = stored(cluster, "/backups", b"y", token, filename=f"own-{level}.tar", backup_type="full")
    grant = {"permission": level, "principal_type": "group", "principal_id": f"team-{level}"}
    alone = stored(cluster, "/backups", b"z", owner, filename=f"alone-{level}.tar", backup_type="full")
    for place in (f"/buckets/{bucket}", f"/files/{alone}"):
        assert cluster.post(f"{place}/permissions", grant, token=owner).status == 201
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)

    await show(page, f"#/file/{own}?kind=backup", "main .facts")
    await page.until(f"{BUTTONS}.includes('Share…')")
    assert "Delete…" in await offered(page, "More for this file")
    # The rights are here by now, as the page of a file waits for nothing else.
    await show(page, f"#/file/{file}?kind=backup", f"main h1 [title='lent-{level}.tar']")
    if level != "read":
        await page.until(f"{BUTTONS}.includes('More ▾')")
    assert await page.value("document.title") == f"lent-{level}.tar · Filestore"
    found = set(await page.value(BUTTONS))
    cards = await page.value("[...document.querySelectorAll('main h2')].map(h => h.textContent)")
    assert ("Share…" in found, "More ▾" in found) == (level == "admin", level != "read")
    assert ("Links" in cards, "Who has access" in cards) == (level == "admin", level == "admin")
    if level != "read":
        assert ("Delete…" in await offered(page, "More for this file")) == (level == "admin")

    await show(page, f"#/buckets/{DEFAULT_BUCKET_ID}", "main tbody tr")
    await page.until(
        "document.querySelectorAll('main tbody tr').length === 2"
    )  # its own, and the one that was shared
    await page.value("document.querySelector('main thead input').click()")
    assert ("Delete…" in await page.value(BUTTONS)) == (level == "admin")
    await page.value(f"document.querySelector('[aria-label=\"Select alone-{level}.tar\"]').click()")
    await page.until(f"{BUTTONS}.includes('Delete…')")

    await show(page, f"#/buckets/{bucket}", "main tbody tr")
    found = set(await page.value(BUTTONS))
    assert ("Upload files…" in found, "More ▾" in found) == (level != "read", level == "admin")
    await show(page, "#/uploads", "input[name=files]")
    await show(page, "#/access", "main tbody tr")
    taken = await offered(page, f"Actions for {level} of team-{level} on for")
    assert ("Remove this access…" in taken) == (level == "admin")
    assert not faults(page, cluster.nodes[0])  # nothing was asked that is refused


async def test_totals_are_of_what_the_user_may_see(page: Page, cluster: Cluster) -> None:
    owner, reader = cluster.user_token("xena"), cluster.user_token("yuri")
    stored(cluster, "/backups", b"z" * 5000, owner, filename="hidden.tar", backup_type="full")
    bucket = str(cluster.post("/buckets", {"name": "shown to yuri"}, token=owner).json["bucket_id"])
    typed = {"backup_type": "full", "bucket_id": bucket}
    stored(cluster, "/backups", b"z" * 5000, owner, filename="seen.tar", **typed)
    grant = {"permission": "read", "principal_type": "user", "principal_id": "yuri"}
    assert cluster.post(f"/buckets/{bucket}/permissions", grant, token=owner).status == 201
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, reader)
    row = (
        "[...document.querySelectorAll('main tbody tr')].find(tr => tr.textContent.includes('{}'))?.innerText"
    )
    await show(page, "#/buckets", "main tbody tr")
    await page.until(f"{row.format('shown to yuri')}?.includes('5.0 kB')")
    assert "not shown" in await page.value(row.format("default"))
    await show(page, f"#/buckets/{DEFAULT_BUCKET_ID}", "main .facts")
    await page.until("document.querySelector('main .facts').textContent.includes('not shown')")
    await page.value("document.querySelector('[aria-label=\"Your account\"]').click()")
    await page.value("[...document.querySelectorAll('[role=menuitem]')].at(-1).click()")
    await sign_in(page, cluster.admin_token)
    await page.until("document.querySelector('main .facts')?.textContent.includes('without a limit')")
    assert not faults(page, cluster.nodes[0])


async def test_focus_goes_back_to_where_a_dialog_came_from(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("zora")
    for name in ("first.tar", "second.tar"):
        stored(cluster, "/backups", b"x", token, filename=name, backup_type="full")
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/buckets", "main tbody tr")
    await page.click("main .heading button")
    await page.until("document.querySelector('dialog input')")
    await page.press("Escape", 27)
    await closed(page)
    await page.until(f"({FOCUSED}) === 'New bucket…'")
    await show(page, "#/backups", "main tbody tr")
    await page.value("document.querySelector('[aria-label=\"Actions for first.tar\"]').click()")
    await choose(page, "Rename…", "[role=menu]")
    await page.until("document.querySelector('dialog input')")
    await choose(page, "Cancel", "dialog footer")
    await closed(page)
    await page.until(f"({FOCUSED}) === 'Actions for first.tar'")
    # The row goes with what is deleted: the heading of the page is where to continue.
    await page.value("document.querySelector('[aria-label=\"Actions for first.tar\"]').click()")
    await choose(page, "Delete…", "[role=menu]")
    await page.until("document.querySelector('dialog')")
    await choose(page, "Delete", "dialog footer")
    await closed(page)
    await page.until("document.querySelectorAll('main tbody tr').length === 1")
    await page.until(f"document.activeElement !== document.body && ({FOCUSED}) !== ''")
    assert not faults(page, cluster.nodes[0])


async def test_lists_of_whom_others_have_given_files_say_where_they_are(page: Page, cluster: Cluster) -> None:
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.user_token("newcomer"))
    await show(page, "#/backups", "main .empty")
    await page.until("document.querySelector('main .empty a[href=\"#/access\"]')")


async def test_bucket_that_is_full_is_not_the_one_that_is_offered_instead(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    token = cluster.user_token("wanda")
    made = cluster.post("/buckets", {"name": "small", "quota_bytes": 10}, token=token)
    (tmp_path / "large.tar").write_bytes(bytes(100))
    await page.shape(1280)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, f"#/buckets/{made.json['bucket_id']}", "main .facts")
    await dropped(page, tmp_path / "large.tar")
    await page.until(f"{state_of('large.tar')} === 'failed'")
    await choose(page, "Choose another bucket", ".uploads")
    await page.until("document.querySelector('dialog form footer')")
    bucket = "document.querySelector('dialog select[name=bucket]').value"
    await page.until(f"{bucket} === '{DEFAULT_BUCKET_ID}'")
    await choose(page, "Upload", "dialog footer")
    await closed(page)
    await page.until(f"{state_of('large.tar')} === 'stored'")
    assert not faults(page, cluster.nodes[0], told=("413",))
