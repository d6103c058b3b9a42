"""A public link that somebody opens in a browser: the file is saved, and no script in it runs."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import Page
from tests.cluster.harness import Cluster

CONTENT = b"""<!doctype html>
<html lang="en"><title>A page that somebody has uploaded</title>
<body><p>shown</p><img src="/healthz" alt="">
<script>document.documentElement.dataset.script = "ran"; fetch("/readyz")</script></body></html>
"""
RAN = 'data-script="ran"'
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def link(cluster: Cluster) -> str:
    """The public link to a page with a script in it."""
    file_uuid = cluster.store(CONTENT, "page.html", content_type="text/html")
    answer = cluster.post(f"/files/{file_uuid}/public-token", {})
    assert answer.status == 201, answer.body
    cluster.remember(answer.json["token"])
    return str(answer.json["url"])


async def show(page: Page, link: str, *, without: set[str]) -> str:
    """What the browser makes of the file when its answer lacks some headers, after it has loaded."""
    await page.send("Fetch.enable", patterns=[{"urlPattern": link, "requestStage": "Response"}])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(page.open(link))
        paused = await page.event("Fetch.requestPaused")
        sent = {header["name"].lower() for header in paused["responseHeaders"]}
        assert without <= sent
        kept = [header for header in paused["responseHeaders"] if header["name"].lower() not in without]
        body = await page.send("Fetch.getResponseBody", requestId=paused["requestId"])
        assert body["base64Encoded"]
        await page.send(
            "Fetch.fulfillRequest",  # a response that goes on is held to the policy that it arrived with
            requestId=paused["requestId"],
            responseCode=paused["responseStatusCode"],
            responseHeaders=kept,
            body=body["body"],
        )
    return await page.markup()


def paths_of(page: Page) -> list[str]:
    return [urlsplit(url).path for url in page.requested()]


async def test_link_saves_the_file_and_shows_nothing(page: Page, link: str, tmp_path: Path) -> None:
    await page.send(
        "Browser.setDownloadBehavior",
        behavior="allow",
        browserContextId=page.profile,
        downloadPath=str(tmp_path),
        eventsEnabled=True,
    )
    answer = await page.send("Page.navigate", url=link)
    assert answer["isDownload"]
    begun = await page.event("Browser.downloadWillBegin")
    assert begun["suggestedFilename"] == "page.html"
    ended = await page.event("Browser.downloadProgress", lambda event: event["state"] != "inProgress")
    assert ended["state"] == "completed"
    assert (tmp_path / "page.html").read_bytes() == CONTENT
    assert await page.value("location.href") == "about:blank"
    assert paths_of(page) == [urlsplit(link).path]
    assert RAN not in await page.markup()


async def test_script_does_not_run_where_the_file_is_shown_all_the_same(page: Page, link: str) -> None:
    shown = await show(page, link, without={"content-disposition"})
    assert "<p>shown</p>" in shown
    assert RAN not in shown
    assert paths_of(page) == [urlsplit(link).path]
    assert page.violated() == ["img-src"]
    assert any("sandboxed" in complaint for complaint in page.complaints())


async def test_script_would_run_without_these_headers(page: Page, link: str) -> None:
    """Otherwise the two tests above could not fail."""
    shown = await show(page, link, without={"content-disposition", "content-security-policy"})
    assert RAN in shown
    assert {"/healthz", "/readyz"} <= set(paths_of(page))
