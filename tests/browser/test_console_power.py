"""The console uses the token only for what its user asked for, and gives it to no node that was revoked."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.browser.chromium import Browser, Event, Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.console_world import stored
from tests.browser.test_node_dies import opened
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
EVIL = "../auth/revoke?user_id=victim&x="
NONE = "00000000-0000-0000-0000-00000000000f"
THIEF = b"globalThis.stolen = sessionStorage.getItem('filestore.token'); export const ran = true;"
OFFERED = "[...document.querySelectorAll('#known-names option')].map(each => each.value)"
AHEAD_MS = 5 * 24 * 3600 * 1000
# The clock of this machine is five days ahead: before any script of a page runs.
SKEWED = f"""(() => {{
  const Real = Date;
  globalThis.Date = class extends Real {{
    constructor(...given) {{ given.length ? super(...given) : super(Real.now() + {AHEAD_MS}); }}
    static now() {{ return Real.now() + {AHEAD_MS}; }}
  }};
}})()"""


def requests_of(page: Page) -> list[Event]:
    return [event["request"] for event in page.heard("Network.requestWillBeSent")]


def changes_of(page: Page) -> list[str]:
    """Requests of this tab that change something."""
    return [
        f"{each['method']} {each['url']}"
        for each in requests_of(page)
        if each["method"] not in {"GET", "HEAD", "OPTIONS"}
    ]


def shared_publicly(cluster: Cluster, content: bytes, token: str, **fields: str) -> str:
    """The path of a public link to this content."""
    named = {"filename": "notes.json", "backup_type": "full", "content_type": "application/json"}
    file_uuid = stored(cluster, "/backups", content, token, **(named | fields))
    made = cluster.post(f"/files/{file_uuid}/public-token", {}, token=token).json
    cluster.remember(made["token"])
    return f"public/files/{made['bucket_uuid']}/{made['token']}"


def given_token(page: Page) -> list[str]:
    """The addresses to which this tab has sent a token."""
    return [
        each["url"] for each in requests_of(page) if {"authorization", "Authorization"} & set(each["headers"])
    ]


async def signed_in(page: Page, cluster: Cluster, token: str) -> None:
    await page.shape(1280)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)


async def texts(page: Page, selector: str) -> list[str]:
    found = await page.value(f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)")
    return [str(text) for text in found]


async def test_address_of_a_stranger_asks_for_nothing_else(page: Page, cluster: Cluster) -> None:
    """A public file looks like a record; its address leads out of the path where records are."""
    record = {"file_uuid": EVIL, "filename": "lab.zip", "status": "available", "owner_id": "alice"}
    more = {"size_bytes": 1, "content_type": "text/plain", "bucket_id": NONE, "kind": "project"}
    link = shared_publicly(cluster, json.dumps(record | more).encode(), cluster.user_token("stranger"))
    await signed_in(page, cluster, cluster.admin_token)
    leading = f"..%2F{link.replace('/', '%2F')}"
    for address in (
        f"#/file/{leading}?kind=project",
        f"#/buckets/{leading}",
        f"#/jobs/runs/{leading}",
        f"#/link/{leading}/x",
        "#/buckets/..",
        f"#/link/{NONE}/..",
    ):
        page.forget()
        await page.value(f"location.hash = {address!r}")
        await page.until("document.querySelector('main h1')?.textContent === 'No such page'")
        assert not [url for url in page.requested() if "/public/" in url or "revoke" in url]
        assert changes_of(page) == []


async def test_record_is_the_one_that_was_asked_for(page: Page, cluster: Cluster) -> None:
    """If another record answers, the page shows no button for it, and puts nothing of it into a path."""
    await signed_in(page, cluster, cluster.admin_token)
    record = {"file_uuid": EVIL, "filename": "lab.zip", "status": "available", "bucket_id": NONE}
    body = f"new Response(JSON.stringify({json.dumps(record)}))"
    await page.value(f"""(() => {{ const real = fetch; globalThis.fetch = (url, init) =>
        String(url).includes("{NONE}") ? Promise.resolve({body}) : real(url, init); }})()""")
    await show(page, f"#/file/{NONE}?kind=backup", "main .error")
    assert "for another record" in (await texts(page, "main .error"))[0]
    assert await texts(page, "main .heading button") == []


async def test_path_encodes_what_is_in_it(page: Page, cluster: Cluster) -> None:
    """Each variable stays one part of the path, or there is no path."""
    await open_console(page, cluster.nodes[0])
    await page.until("document.querySelector('script[type=module]')")
    source = "document.querySelector('script[type=module]').src.replace('app.js', 'path.js')"
    made = """(({ path, address, fileAt }) => {
      const of = (make) => { try { return String(make()); } catch (error) { return error.code; } };
      return [
        of(() => path`auth/users/${"a/../b?c#d%2e"}/token`), of(() => path`buckets/${".."}`),
        of(() => path`x/${"."}`), of(() => path`x/${""}/y`), of(() => path`${path`files/${"é"}`}/ticket`),
        of(() => fileAt("..")), of(() => fileAt("../auth/revoke")), of(() => path`x/${"..\\\\"}`),
        of(() => address`/file/${"?kind"}?kind=${""}`),
      ];
    })"""
    assert await page.value(f"import({source}).then({made})") == [
        "auth/users/a%2F..%2Fb%3Fc%23d%252e/token",
        "not_found",
        "not_found",
        "not_found",
        "files/%C3%A9/ticket",
        "not_found",
        "not_found",
        "x/..%5C",
        "#/file/%3Fkind?kind=",
    ]


async def test_content_of_users_is_no_script_of_this_origin(page: Page, cluster: Cluster) -> None:
    """Neither on a page of the console or /docs, nor on one without a policy. Pictures still work."""
    token = cluster.user_token("stranger")
    link = shared_publicly(cluster, THIEF, token, filename="x.js", content_type="text/javascript")
    pixel = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00!\xf9\x04\x01\x00\x00\x00\x00,"
    pixel += b"\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
    picture = shared_publicly(cluster, pixel, token, filename="x.gif", content_type="image/gif")
    style = shared_publicly(cluster, b"p { color: red }", token, filename="x.css", content_type="text/css")
    run = "import(location.origin + '/api/v1/{}').then(() => 'ran', () => 'refused')"
    await signed_in(page, cluster, token)
    assert await page.value(run.format(link)) == "refused"
    await page.blocked("script-src-elem")
    await page.open(f"{cluster.nodes[0].url}/docs")
    assert await page.value(run.format(link)) == "refused"
    await page.open(f"{cluster.nodes[0].url}/healthz")  # it has no policy
    assert await page.value(run.format(link)) == "refused"
    sheet = f"""new Promise((done) => {{ const link = document.createElement('link'); link.rel = 'stylesheet';
        link.href = '/api/v1/{style}'; link.onload = () => done('used'); link.onerror = () => done('refused');
        document.head.append(link); }})"""
    assert await page.value(sheet) == "refused"
    image = f"""new Promise((done) => {{ const image = new Image(); image.src = '/api/v1/{picture}';
        image.onload = () => done('shown'); image.onerror = () => done('refused'); }})"""
    assert await page.value(image) == "shown"


async def chosen_all(page: Page, cluster: Cluster, token: str, count: int) -> None:
    """The list of backups with so many files, all of them selected."""
    for number in range(count):
        body = {"filename": f"file-{number}.tar", "backup_type": "full", "size_bytes": 1}
        assert cluster.post("/backups", body, token=token).status == 201
    await signed_in(page, cluster, token)
    await show(page, "#/backups", "main tbody tr")
    await page.until(f"document.querySelectorAll('main tbody tr').length === {count}")
    await page.click("thead input[type=checkbox]")


@pytest.mark.parametrize("how", ["Stop", "Escape", "address"])
async def test_deleting_many_stops_when_told(page: Page, cluster: Cluster, how: str) -> None:
    token = cluster.user_token(f"tidy-{how.lower()}")
    await chosen_all(page, cluster, token, 40)
    await choose(page, "Delete…")
    await page.until("document.querySelector('dialog footer')")
    slow = {"offline": False, "latency": 150, "downloadThroughput": -1, "uploadThroughput": -1}
    await page.send("Network.emulateNetworkConditions", **slow)
    await choose(page, "Delete 40 files", "dialog footer")
    await page.until("/^[3-9] of 40$/.test(document.querySelector('dialog [role=status]')?.textContent)")
    if how == "Stop":
        await choose(page, "Stop", "dialog footer")
    elif how == "Escape":
        await page.press("Escape", 27)
    else:
        await page.value("location.hash = '#/images'")
    await closed(page)
    await page.until("document.querySelector('.notice')?.textContent.includes('are kept')")
    deleted = [each for each in changes_of(page) if each.startswith("DELETE")]
    left = cluster.get("/backups?limit=100", token=token).json["backups"]
    assert 0 < len(left) < 40
    assert len(deleted) == 40 - len(left)
    if how != "address":
        await page.until(f"document.querySelectorAll('main tbody tr').length === {len(left)}")
    await page.value("new Promise(done => setTimeout(done, 1000))")  # the time of six more
    assert len([each for each in changes_of(page) if each.startswith("DELETE")]) == len(deleted)
    assert not faults(page, cluster.nodes[0])


async def test_names_are_offered_to_whom_they_are_known(browser: Browser, cluster: Cluster) -> None:
    """Administrators see all users and groups; a user only names that she has given access before."""
    token = cluster.user_token("teacher", groups=["staff"])
    cluster.user_token("pupil", groups=["class-7b"])
    file_uuid = cluster.store(b"exercise", token=token)
    grant = {"permission": "read", "principal_type": "user", "principal_id": "pupil"}
    assert cluster.post(f"/files/{file_uuid}/permissions", grant, token=token).status == 201
    whose: list[tuple[str, list[str], list[str]]] = [
        (token, ["pupil"], []),
        (cluster.admin_token, ["teacher"], ["class-7b", "staff"]),
    ]
    for signed, users, groups in whose:
        async with Page(browser) as tab:
            await signed_in(tab, cluster, signed)
            await show(tab, f"#/file/{file_uuid}?kind=project", "main .facts")
            await choose(tab, "Give access…")
            await tab.until("document.querySelector('#known-names option')")
            offered = await tab.value(OFFERED)
            assert set(users) <= set(offered)
            assert signed != token or offered == users
            await tab.value(
                """(() => { const kind = document.querySelector('dialog [name=principal_type]');
                kind.value = 'group'; kind.dispatchEvent(new Event('change', { bubbles: true })); })()"""
            )
            await tab.until(f"{OFFERED}[0] !== {json.dumps(offered[0])}")
            offered = await tab.value(OFFERED)
            assert set(groups) <= set(offered)
            assert signed != token or offered == groups
            assert not faults(tab, cluster.nodes[0], asked=cluster.members)  # for their audit logs


async def test_grant_asks_the_api_to_refuse_names_that_do_not_exist(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("teacher")
    file_uuid = cluster.store(b"exercise", token=token)
    await signed_in(page, cluster, token)
    await show(page, f"#/file/{file_uuid}?kind=project", "main .facts")
    await choose(page, "Give access…")
    await page.click("dialog [name=principal_id]")
    await page.type("alicia")
    await choose(page, "Give access", "dialog footer")
    await page.until("!document.querySelector('dialog') || document.querySelector('dialog [name=is_new]')")
    (sent,) = [each for each in changes_of(page) if "/permissions" in each]
    assert sent.endswith("/permissions?existing=1")
    if await page.value("Boolean(document.querySelector('dialog'))"):
        assert "alicia" in (await texts(page, "dialog .error"))[0]
        await page.click("dialog [name=is_new]")
        await choose(page, "Give access", "dialog footer")
        await closed(page)
    given = cluster.get(f"/files/{file_uuid}/permissions", token=token).json["permissions"]
    assert [each["principal_id"] for each in given] == ["alicia"]


async def test_clock_of_the_browser_changes_no_end(page: Page, cluster: Cluster) -> None:
    """A machine that is five days ahead makes a link of a day, not of six."""
    token = cluster.user_token("hasty")
    file_uuid = cluster.store(b"late", token=token)
    await page.send("Page.addScriptToEvaluateOnNewDocument", source=SKEWED)
    await signed_in(page, cluster, token)
    await show(page, f"#/file/{file_uuid}?kind=project", "main .facts")
    await choose(page, "Share…")
    await page.until("document.querySelector('dialog input[name=until]')")
    await choose(page, "Create the link", "dialog footer")
    await page.until("document.querySelector('dialog .copied')")
    (link,) = cluster.get(f"/files/{file_uuid}/public-tokens", token=token).json["public_tokens"]
    left = datetime.fromisoformat(link["expires_at"]) - datetime.now(UTC)
    assert abs(left - timedelta(days=1)) < timedelta(minutes=5)
    assert "Your token expires" not in await page.value("document.body.textContent")


def lists_no_more(cluster: Cluster, member: Member, gone: Member) -> bool:
    told = cluster.request("GET", f"{member.url}/console/members", token=None)
    return told.status == 200 and gone.url not in told.json["nodes"]


async def test_revoked_node_is_not_handed_the_token(own_cluster: Cluster, tmp_path: Path) -> None:
    """Its process runs and its certificate is valid: the page asks others who is a member."""
    cluster, (serving, other, stolen) = own_cluster, own_cluster.nodes
    with Browser(tmp_path / "browser", root=cluster.ca) as browser:
        async with Page(browser) as page:
            await opened(page, serving, cluster.user_token("alice"))
            assert cluster.post(f"/cluster/nodes/{stolen.id}/revoke").status == 200
            for member in (serving, other, *cluster.coordinators):
                wait_until(
                    partial(lists_no_more, cluster, member, stolen), what=f"{member.id} to know", timeout_s=30
                )
            cluster.kill(serving, other)
            page.forget()
            await page.value("location.hash = '#/buckets'")
            await page.until("document.querySelector('.banner.bad')?.textContent.includes('No node answers')")
            assert [url for url in given_token(page) if not url.startswith(serving.url)] == []
            cluster.restart(other)
            await page.until(
                "document.querySelector('.banner.warn')?.textContent.includes('that served this page')"
            )
            while not any(url.startswith(other.url) for url in given_token(page)):
                await asyncio.sleep(0.05)
            assert not [url for url in given_token(page) if url.startswith(stolen.url)]


def test_member_with_an_old_view_says_nothing_of_members(own_cluster: Cluster) -> None:
    """Cut off from the coordinators, it would list a node that was revoked since."""
    node, url = own_cluster.nodes[0], f"{own_cluster.nodes[0].url}/console/members"
    told = own_cluster.request("GET", url, token=None)
    assert (told.status, sorted(told.json["nodes"])) == (200, sorted(each.url for each in own_cluster.nodes))
    own_cluster.kill(*own_cluster.coordinators)
    wait_until(
        lambda: own_cluster.request("GET", url, token=None).status == 503,
        what=f"the view of {node.id} to be too old",
        timeout_s=30,
    )


@pytest.mark.parametrize("count", [1, 10])
async def test_what_was_under_way_when_a_dialog_went_away_is_told(
    page: Page, cluster: Cluster, count: int
) -> None:
    """Cancel after one delete was asked for, another page after several: the notice counts all."""
    token = cluster.user_token(f"hurried-{count}")
    await chosen_all(page, cluster, token, count)
    await choose(page, "Delete…")
    await page.until("document.querySelector('dialog footer')")
    slow = {"offline": False, "latency": 800, "downloadThroughput": -1, "uploadThroughput": -1}
    await page.send("Network.emulateNetworkConditions", **slow)
    page.forget()
    await choose(page, "Delete", "dialog footer")
    if count == 1:
        await page.event("Network.requestWillBeSent", lambda event: event["request"]["method"] == "DELETE")
        await choose(page, "Cancel", "dialog footer")
    else:
        await page.until("/^[3-9] of 10$/.test(document.querySelector('dialog [role=status]')?.textContent)")
        await page.value("location.hash = '#/images'")
    await closed(page)
    await page.until("document.querySelector('.notice')")
    left = len(cluster.get("/backups?limit=100", token=token).json["backups"])
    told = "The file is deleted." if count == 1 else f"{count - left} files are deleted. {left} are kept."
    assert (await texts(page, ".notice span"))[0] == told


async def test_node_that_stands_in_is_left_when_it_is_revoked(own_cluster: Cluster, tmp_path: Path) -> None:
    """It says nothing of members any more, and would say what a thief wants."""
    cluster, (serving, *others) = own_cluster, own_cluster.nodes
    with Browser(tmp_path / "browser", root=cluster.ca) as browser:
        async with Page(browser) as page:
            await opened(page, serving, cluster.user_token("alice"))
            cluster.kill(serving)
            await page.value("location.hash = '#/buckets'")
            await page.until(
                "document.querySelector('.banner.warn')?.textContent.includes('that served this page')"
            )
            while not (stolen := [n for n in others if any(u.startswith(n.url) for u in given_token(page))]):
                await asyncio.sleep(0.05)
            (honest,) = [each for each in others if each not in stolen]
            assert cluster.post(f"/cluster/nodes/{stolen[0].id}/revoke", node=honest).status == 200
            cluster.restart(serving)
            async with asyncio.timeout(120):
                while any(url.startswith(stolen[0].url) for url in given_token(page)):
                    page.forget()
                    other = "location.hash === '#/buckets' ? '#/projects' : '#/buckets'"
                    await page.value(f"location.hash = {other}")
                    while not given_token(page):
                        await asyncio.sleep(0.05)
