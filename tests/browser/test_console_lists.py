"""What pages show at once: all links and permissions, kinds of files, and the audit logs of all members."""

import json
import re
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import Page
from tests.browser.console_pages import faults, open_console, show, sign_in
from tests.browser.console_world import stored
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
TRIES = 25  # more than an address may fail at once


def rows(part: str) -> str:
    """JavaScript: the texts of those rows in which this is."""
    texts = "[...document.querySelectorAll('main tbody tr')].map((each) => each.textContent)"
    return f"{texts}.filter((each) => each.includes({json.dumps(part)}))"


async def test_links_and_permissions_come_with_one_request_each(page: Page, cluster: Cluster) -> None:
    ivan, judy = cluster.user_token("ivan"), cluster.user_token("judy", groups=["team"])
    typed = {"backup_type": "full"}
    ids = [stored(cluster, "/backups", b"x", ivan, filename=f"of ivan {n}.tar", **typed) for n in range(12)]
    shared = cluster.post(f"/files/{ids[3]}/public-token", {}, token=ivan)
    cluster.remember(shared.json["token"])
    grant = {"permission": "read", "principal_type": "group", "principal_id": "team"}
    assert cluster.post(f"/files/{ids[5]}/permissions", grant, token=ivan).status == 201
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, ivan)
    page.forget()
    await show(page, "#/shares", "main tbody tr")
    await show(page, "#/access", "main tbody tr")
    assert "of ivan 5.tar" in (await page.value(rows("team")))[0]
    asked = {urlsplit(url).path for url in page.requested()}
    assert {"/api/v1/public-tokens", "/api/v1/permissions"} <= asked
    assert not [path for path in asked if path.startswith("/api/v1/files/")]
    await page.value("location.hash = '#/'")
    await page.value("document.querySelector('[aria-label=\"Your account\"]').click()")
    await page.value("[...document.querySelectorAll('[role=menuitem]')].at(-1).click()")
    await sign_in(page, judy)
    await show(page, "#/access?who=received", "main tbody tr")
    assert "of ivan 5.tar" in (await page.value(rows("read")))[0]
    assert not faults(page, cluster.nodes[0])


async def test_list_of_a_bucket_says_of_which_kind_a_file_is(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("kim")
    made = cluster.post("/buckets", {"name": "kinds of kim"}, token=token)
    bucket = made.json["bucket_id"]
    image = {"filename": "disk.qcow2", "virt_type": "qemu", "format": "qcow2", "bucket_id": bucket}
    stored(cluster, "/vms", b"QFI\xfb", token, **image)
    stored(cluster, "/backups", b"x", token, filename="day.tar", backup_type="full", bucket_id=bucket)
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, f"#/buckets/{bucket}", "main tbody tr")
    for name, kind in (("disk.qcow2", "image"), ("day.tar", "backup")):
        assert kind in (await page.value(rows(name)))[0]
    for link in await page.value("[...document.querySelectorAll('main tbody a')].map((each) => each.hash)"):
        await show(page, link, "main .facts")
    assert not faults(page, cluster.nodes[0])  # a kind that is guessed wrongly is answered 404


async def test_audit_page_shows_what_every_member_has_on_record(page: Page, cluster: Cluster) -> None:
    through = [*cluster.nodes, cluster.coordinators[0]]
    for member in through:
        answer = cluster.request("PUT", "/auth/users/leo", content=b'{"groups": []}', node=member)
        assert answer.status == 200, answer.body
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    await show(page, "#/audit?action=put_user&target=leo", "main tbody tr")
    seen = await page.value(rows("changed the user"))
    for member in through:
        assert [row for row in seen if member.id in row], (member.id, seen)
    times = await page.value("[...document.querySelectorAll('main tbody time')].map(t => t.dateTime)")
    assert times == sorted(times, reverse=True)
    assert len(times) >= len(through)
    await show(page, "#/users", "main tbody tr")
    await show(page, f"#/audit?member={cluster.nodes[1].id}&target=leo", "main tbody tr")
    assert not await page.value(rows(cluster.nodes[2].id))
    assert not faults(page, cluster.nodes[0], asked=cluster.members)


async def test_token_that_ended_is_told_as_such_after_many_failed_tries(page: Page, cluster: Cluster) -> None:
    node = cluster.nodes[2]
    await open_console(page, node)
    await sign_in(page, cluster.user_token("mallory"))
    told = [cluster.get("/auth/whoami", token="e.e.e", node=node).status for _ in range(TRIES)]
    assert told[-1] == 429
    assert cluster.post("/auth/revoke", {"user_id": "mallory"}).status == 200
    await page.value("location.hash = '#/buckets'")
    await page.until("document.querySelector('#token')")
    assert "Your token has expired" in await page.value("document.querySelector('.banner').textContent")
    assert 429 in [event["response"]["status"] for event in page.heard("Network.responseReceived")]
    for _ in range(TRIES):
        cluster.get("/auth/whoami", token="e.e.e", node=node)
    await page.click("#token")
    await page.type("eyJhbGci.abcdefgh.abcdefgh")
    await page.click("form button[type=submit]")
    await page.until("document.querySelector('.error')?.textContent.includes('Too many attempts')")
    shown = await page.value("document.querySelector('.error').textContent")
    assert re.search(r"Wait \d+ seconds? before", shown), shown
    assert not faults(page, node, told=("429", "401"))
