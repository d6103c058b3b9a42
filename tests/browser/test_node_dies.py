"""The node that served the page dies: what goes on through another one, and by whose permission."""

import os
import signal
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.test_console_day import dropped, percent_of, slow, state_of
from tests.cluster.harness import Cluster, random_file

CUT = ("500", "502", "503", "409", "423", "ERR_")  # what a browser says of a node that dies in the middle
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


async def opened(page: Page, member: Member, token: str) -> None:
    """The console of this node, with all of its pages loaded."""
    await page.shape(1280)
    await open_console(page, member)
    await sign_in(page, token)
    await page.until("performance.getEntries().some(each => each.name.endsWith('/pages/audit.js'))")


def stored_sha256(cluster: Cluster, name: str, node: Member) -> list[str]:
    listed = cluster.get(f"/backups?filename={name}", node=node).json["backups"]
    return [each["blob_sha256"] for each in listed if each["status"] == "available"]


async def test_uploads_go_on_by_themselves_when_the_node_of_the_page_dies(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    """Those under way, those that wait, and those that are dropped later; every page still opens."""
    cluster, serving, *others = own_cluster, *own_cluster.nodes
    names = [f"disk-{number}.tar" for number in range(6)]
    sums = {name: random_file(tmp_path / name, 20_000_000) for name in names}
    later = random_file(tmp_path / "later.tar", 1_000_000)
    with Browser(tmp_path / "browser", root=cluster.ca) as browser:
        async with Page(browser) as page:
            await opened(page, serving, cluster.user_token("alice"))
            await slow(page, 10_000_000)
            await dropped(page, *(tmp_path / name for name in names))
            await page.until(f"{percent_of(names[0])} > 20")
            assert not faults(page, serving)
            cluster.kill(serving)
            await slow(page, 0)
            for name in names:
                await page.until(f"{state_of(name)} === 'stored'")
            told = "document.querySelector('.banner.warn')?.textContent"
            await page.until(f"{told}?.includes('The node that served this page does not answer')")
            await dropped(page, tmp_path / "later.tar")
            await page.until(f"{state_of('later.tar')} === 'stored'")
            await show(page, "#/backups", "main tbody tr")
            await page.until("document.querySelectorAll('main tbody tr').length === 7")
            assert not faults(page, serving, told=CUT, asked=[*others, *cluster.coordinators])
            for name, sha256 in {**sums, "later.tar": later}.items():
                assert stored_sha256(cluster, name, others[0]) == [sha256]


async def test_upload_to_a_node_that_says_nothing_any_more_goes_on_through_another(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    """As when a machine loses its power: no connection breaks."""
    cluster, serving, *others = own_cluster, *own_cluster.nodes
    sha256 = random_file(tmp_path / "night.tar", 60_000_000)
    with Browser(tmp_path / "browser", root=cluster.ca) as browser:
        async with Page(browser) as page:
            await opened(page, serving, cluster.user_token("alice"))
            await slow(page, 10_000_000)
            await dropped(page, tmp_path / "night.tar")
            await page.until(f"{percent_of('night.tar')} > 20")
            os.kill(cluster.pid(serving), signal.SIGSTOP)
            try:
                await slow(page, 0)
                await page.until(f"{state_of('night.tar')} === 'stored'")
                assert stored_sha256(cluster, "night.tar", others[0]) == [sha256]
            finally:
                os.kill(cluster.pid(serving), signal.SIGCONT)
            assert not faults(page, serving, told=CUT, asked=[*others, *cluster.coordinators])


async def test_what_changes_something_is_not_sent_twice(own_cluster: Cluster, tmp_path: Path) -> None:
    """A page that got no answer cannot know: it says so, and who tries again reaches another node."""
    cluster, serving, *others = own_cluster, *own_cluster.nodes
    with Browser(tmp_path / "browser", root=cluster.ca) as browser:
        async with Page(browser) as page:
            await opened(page, serving, cluster.user_token("alice"))
            await show(page, "#/buckets", "main tbody tr")
            await choose(page, "New bucket…")
            await page.until("document.querySelector('dialog input[name=name]')")
            await page.click("dialog input[name=name]")
            await page.type("course")
            cluster.kill(serving)
            page.forget()
            await choose(page, "Create the bucket", "dialog")
            # Unless the list behind was asked for in between: then another node is known to be asked.
            told = "document.querySelector('dialog .error')?.textContent.includes('may have succeeded')"
            await page.until(f"!document.querySelector('dialog') || {told}")
            sent = [event["request"] for event in page.heard("Network.requestWillBeSent")]
            posts = [request for request in sent if request["method"] == "POST"]
            assert len(posts) == 1
            if serving.url in posts[0]["url"]:
                assert await page.value("document.querySelector('dialog input').value") == "course"
                await choose(page, "Create the bucket", "dialog")
            await page.until("!document.querySelector('dialog .error')")
            await closed(page)
            await page.until("document.querySelector('main tbody').textContent.includes('course')")
            assert not faults(page, serving, told=CUT, asked=[*others, *cluster.coordinators])


@pytest.mark.parametrize("size_bytes", [9_000, 900_000])
async def test_file_whose_creation_got_no_answer_is_there_once(
    page: Page, cluster: Cluster, tmp_path: Path, size_bytes: int
) -> None:
    """Its request has a key: another node that gets it again knows the file, however large that is."""
    serving, *others = cluster.nodes
    token, name = cluster.user_token("vera"), f"{size_bytes}.cfg"
    sha256 = random_file(tmp_path / name, size_bytes)
    await opened(page, serving, token)
    await page.send("Fetch.enable", patterns=[{"urlPattern": "*/backups", "requestStage": "Response"}])
    await dropped(page, tmp_path / name)
    paused = await page.event("Fetch.requestPaused", lambda each: each["request"]["method"] == "POST")
    assert paused["responseStatusCode"] == 201
    await page.send("Fetch.failRequest", requestId=paused["requestId"], errorReason="ConnectionAborted")
    await page.send("Fetch.disable")
    await page.until(f"{state_of(name)} === 'stored'")
    listed = cluster.get(f"/backups?filename={name}", token=token).json["backups"]
    assert [(each["status"], each["blob_sha256"]) for each in listed] == [("available", sha256)]
    assert not faults(page, serving, told=CUT, asked=[*others, *cluster.coordinators])
