"""The page of the trash: deleted files come back with a click, and go for good only after a question."""

import pytest

from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.console_world import stored
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
NAMES = "[...document.querySelectorAll('main tbody tr')].map((r) => r.querySelector('.name').textContent)"


def row(name: str) -> str:
    return (
        f"[...document.querySelectorAll('main tbody tr')].find((row) => row.textContent.includes({name!r}))"
    )


async def test_file_is_deleted_restored_protected_and_deleted_for_good(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("tina")
    typed = {"backup_type": "full"}
    kept, gone = (
        stored(cluster, "/backups", name.encode(), token, filename=f"{name}.tar", **typed)
        for name in ("kept", "gone")
    )
    await page.shape(1280)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    for file_uuid in (kept, gone):
        await show(page, f"#/file/{file_uuid}?kind=backup", "main .facts")
        await choose(page, "More")
        await page.value("[...document.querySelectorAll('[role=menuitem]')].at(-1).click()")
        await choose(page, "Delete", "dialog")
        await closed(page)
    await show(page, "#/trash", "main tbody tr")
    assert sorted(await page.value(NAMES)) == ["gone.tar", "kept.tar"]
    await page.value(f"{row('kept.tar')}.querySelector('td:last-child button').click()")
    await page.until(f"!{row('kept.tar')}")
    await page.value(f"{row('gone.tar')}.querySelector('input[type=checkbox]').click()")
    await choose(page, "Delete for good")
    await page.until("document.querySelector('dialog').textContent.includes('cannot be undone')")
    await choose(page, "Delete for good", "dialog")
    await closed(page)
    await page.until("document.querySelector('main .empty')")
    assert cluster.get("/trash", token=token).json["count"] == 0
    await show(page, f"#/file/{kept}?kind=backup", "main .facts")
    await choose(page, "More")
    await page.value(
        "[...document.querySelectorAll('[role=menuitem]')].find((i) => i.textContent == 'Protect…').click()"
    )
    await choose(page, "Protect", "dialog")
    await closed(page)
    await page.until("document.querySelector('main .facts').textContent.includes('Protected until')")
    assert cluster.request("DELETE", f"/backups/{kept}", token=token).status == 409
    assert not faults(page, cluster.nodes[0])
