"""The pages of snapshots: an administrator finds a deleted file in one by its name, and brings it back."""

import json

import pytest

from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.console_world import stored
from tests.cluster.harness import Cluster
from tests.cluster.test_coordinators import done

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
ROWS = "[...document.querySelectorAll('main tbody tr')]"


async def test_deleted_file_is_found_in_a_snapshot_and_comes_back(page: Page, cluster: Cluster) -> None:
    bucket = str(cluster.post("/buckets", {"name": "rescue"}).json["bucket_id"])
    assert cluster.request("PATCH", f"/buckets/{bucket}", body={"trash_days": 0}).status == 200
    for name in ("thesis", "notes"):
        fields = {"filename": f"{name}.tar", "backup_type": "full", "bucket_id": bucket}
        stored(cluster, "/backups", name.encode(), cluster.admin_token, **fields)
    done(cluster, "job", "run", "snapshot", "--wait")
    listed = cluster.get(f"/buckets/{bucket}/files").json["files"]
    for file in listed:
        assert cluster.request("DELETE", f"/files/{file['file_uuid']}").status == 200
    newest = json.loads(done(cluster, "snapshot", "ls", "--json").splitlines()[-1])["snapshot_id"]
    await page.shape(1280)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    await show(page, "#/snapshots", "main tbody tr")
    await page.value(f"document.querySelector('main a[href=\"#/snapshots/{newest}\"]').click()")
    await page.until(f"location.hash.startsWith('#/snapshots/{newest}') && {ROWS}.length >= 2")
    await page.click("main input[type=search]")
    await page.type("thesis")
    await page.until(f"{ROWS}.length === 1")
    await page.value(f"{ROWS}[0].querySelector('td:last-child button').click()")
    await page.until("document.querySelector('dialog')?.textContent.includes('thesis.tar')")
    await choose(page, "Restore", "dialog")
    await closed(page)
    (back,) = cluster.get(f"/buckets/{bucket}/files").json["files"]
    assert (back["filename"], back["owner_id"]) == ("thesis.tar", "admin")
    assert cluster.get(f"/files/{back['file_uuid']}").body == b"thesis"
    assert not faults(page, cluster.nodes[0])
