"""A user's day in the console, as one story, and the uploads of less lucky ones."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.console_world import IMAGE, project_archive
from tests.cluster.harness import Cluster, random_file

LARGE_BYTES = 200 * 1000 * 1000
SLOW_BYTES_S = 25 * 1000 * 1000
# What a browser says where a node dies in the middle of a request, and of a link that was revoked.
CUT = ("502", "503", "500", "409", "423", "ERR_", "410")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


async def saved(page: Page, directory: Path) -> None:
    """Downloads go into this directory, and are told of."""
    await page.send(
        "Browser.setDownloadBehavior",
        behavior="allow",
        browserContextId=page.profile,
        downloadPath=str(directory),
        eventsEnabled=True,
    )


async def downloaded(page: Page, directory: Path) -> Path:
    """The file that the browser's download manager has fetched, once it is complete."""
    begun = await page.event("Browser.downloadWillBegin")
    ended = await page.event("Browser.downloadProgress", lambda event: event["state"] != "inProgress")
    assert ended["state"] == "completed"
    page.forget()
    return directory / str(begun["suggestedFilename"])


async def slow(page: Page, bytes_s: int) -> None:
    """Uploads of this tab go no faster; 0: as fast as they can."""
    conditions = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": bytes_s or -1}
    await page.send("Network.emulateNetworkConditions", **conditions)


async def holder_of(page: Page, cluster: Cluster) -> Member:
    """The node that takes the bytes of the upload that this tab has created last."""
    for event in reversed(page.heard("Network.responseReceived")):
        if event["response"]["status"] == 201:
            body = await page.send("Network.getResponseBody", requestId=event["requestId"])
            url = str(json.loads(body["body"])["upload_url"])
            return next(node for node in cluster.nodes if f":{node.api_port}/" in url)
    raise AssertionError("nothing was created")


def state_of(name: str) -> str:
    """An expression: the state that the uploads page shows of a file."""
    row = f"[...document.querySelectorAll('.uploads li')].find(li => li.textContent.includes({name!r}))"
    return f"{row}?.querySelector('.badge')?.textContent"


def percent_of(name: str) -> str:
    """An expression: how far the upload of a file is."""
    bar = f"[...document.querySelectorAll('[role=progressbar]')].find(b => b.ariaLabel.includes({name!r}))"
    return f"Number({bar}?.ariaValueNow)"


async def dropped(page: Page, *files: Path) -> None:
    """Drop files, and agree to what is guessed of them."""
    await page.drop(*files)
    await page.until("document.querySelector('dialog form footer')")
    await choose(page, "Upload", "dialog footer")
    await closed(page)


async def upload_through_a_kill(page: Page, cluster: Cluster, serving: Member, large: Path) -> None:
    """Upload a file whose holder dies in the middle: another than the node that serves the page."""
    for _ in range(12):
        page.forget()
        await dropped(page, large)
        await page.until(f"{percent_of(large.name)} > 20")
        holder = await holder_of(page, cluster)
        if holder is not serving:
            cluster.kill(holder)
            await slow(page, 0)
            await page.until(f"{state_of(large.name)} === 'stored'")
            cluster.restart(holder)
            return
        await choose(page, "Discard…", ".uploads")
        await choose(page, "Discard the upload", "dialog")
        await closed(page)
    raise AssertionError("every upload was held by the node that serves the page")


async def test_a_day_of_a_user(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster, serving = own_cluster, own_cluster.nodes[0]
    token = cluster.user_token("alice")
    (tmp_path / "ospf lab.gns3project").write_bytes(project_archive())
    (tmp_path / "vios.qcow2").write_bytes(IMAGE)
    large = tmp_path / "large.tar"
    sha256 = random_file(large, LARGE_BYTES)
    saves = tmp_path / "saves"
    with Browser(tmp_path / "browser", root=cluster.ca) as browser:
        async with Page(browser) as page:
            await page.shape(1280)
            await open_console(page, serving)
            await sign_in(page, token)
            await dropped(page, tmp_path / "ospf lab.gns3project", tmp_path / "vios.qcow2")
            for name in ("ospf lab", "vios"):
                await page.until(f"{state_of(name)} === 'stored'")
            assert not faults(page, serving)
            await slow(page, SLOW_BYTES_S)
            await upload_through_a_kill(page, cluster, serving, large)
            assert not faults(page, serving, told=CUT)
            await asyncio.to_thread(cluster.wait_healthy)
            page.forget()
            await show(page, "#/backups", "main tbody tr")
            await page.click("main tbody a")
            await saved(page, saves)
            await choose(page, "Download")
            copy = await downloaded(page, saves)
            assert hashlib.sha256(copy.read_bytes()).hexdigest() == sha256
            await choose(page, "More")
            await choose(page, "Rename…", "[role=menu]")
            await page.until("document.querySelector('dialog input[name=filename]')")
            await page.value("document.querySelector('dialog input[name=filename]').select()")
            await page.type("the large one.tar")
            await choose(page, "Rename", "dialog footer")
            await page.until("document.querySelector('main h1')?.textContent === 'the large one.tar'")
            link = await shared(page)
            assert not faults(page, serving)
            await open_and_save(browser, link, saves, sha256)
            await choose(page, "Revoke…")
            await choose(page, "Revoke", "dialog footer")
            await page.until(
                "[...document.querySelectorAll('main .badge')].some(b => b.textContent === 'revoked')"
            )
            assert not faults(page, serving)
            async with Page(browser) as stranger:
                await stranger.open(link)
                await stranger.until("document.querySelector('h1')?.textContent === 'This link has ended'")
                assert not faults(stranger, serving, told=("410",))
            await lose_the_node(page, cluster, serving)


async def lose_the_node(page: Page, cluster: Cluster, serving: Member) -> None:
    """The node that serves the page dies: another does its work, and the page says so, and where it is."""
    await page.value("location.hash = '#/projects'")
    await page.until("document.querySelector('main h1')?.textContent === 'Projects'")
    cluster.kill(serving)
    await page.until("document.querySelector('.banner.warn a')")
    leads = await page.value("[...document.querySelectorAll('.banner.warn a')].map(a => a.origin + a.hash)")
    assert set(leads) == {f"{node.url}/#/projects".replace("/#", "#") for node in cluster.nodes[1:]}
    await show(page, "#/backups", "main tbody tr")


async def shared(page: Page) -> str:
    """Make a link to the file that is shown: its address for people."""
    await choose(page, "Share…")
    await choose(page, "Create the link", "dialog")
    await page.until("document.querySelector('dialog .copied')")
    link = str(await page.value("document.querySelector('dialog .copied').textContent"))
    await choose(page, "Done", "dialog")
    await closed(page)
    return link


async def open_and_save(browser: Browser, link: str, saves: Path, sha256: str) -> None:
    """Open a link as somebody without an account, and download what it leads to."""
    async with Page(browser) as stranger:
        await saved(stranger, saves)
        await stranger.open(link)
        await stranger.until("document.querySelector('a.download')")
        text = await stranger.value("document.querySelector('main').textContent")
        assert "the large one.tar" in text
        assert "alice" in text
        assert sha256 in text
        await stranger.click("a.download")
        copy = await downloaded(stranger, saves)
        assert copy.name == "the large one.tar"
        assert hashlib.sha256(copy.read_bytes()).hexdigest() == sha256


async def test_token_that_ends_during_an_upload_is_asked_for_and_the_upload_goes_on(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    large = tmp_path / "evening.tar"
    sha256 = random_file(large, 40_000_000)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.user_token("dora"))
    await slow(page, 4_000_000)
    await dropped(page, large)
    await page.until(f"{percent_of(large.name)} > 10")
    assert cluster.post("/auth/revoke", {"user_id": "dora"}).status == 200
    await page.until("document.querySelector('#token')")
    await slow(page, 0)
    await sign_in(page, cluster.user_token("dora"))
    await page.until("document.querySelector('main h1')?.textContent === 'Uploads'")
    await page.until(f"{state_of(large.name)} === 'stored'")
    listed = cluster.get("/backups?filename=evening.tar").json["backups"]
    assert [each["blob_sha256"] for each in listed] == [sha256]
    assert not faults(page, cluster.nodes[0], told=("401", "423"))


async def test_upload_goes_on_after_the_page_was_loaded_anew(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    large, other = tmp_path / "night.tar", tmp_path / "other.tar"
    sha256 = random_file(large, 30_000_000)
    random_file(other, 30_000_000)
    token = cluster.user_token("erin")
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await slow(page, 4_000_000)
    await dropped(page, large)
    await page.until(f"{percent_of(large.name)} > 30")
    await choose(page, "Pause", ".uploads")
    await page.until(f"{state_of(large.name)} === 'paused'")
    file_uuid = cluster.get("/backups?filename=night.tar", token=token).json["backups"][0]["file_uuid"]

    def has_come() -> bool:
        status = cluster.get(f"/files/{file_uuid}/status", token=token)
        return status.status == 200 and status.json["offset"] > 0

    await asyncio.to_thread(wait_until, has_come, what="durable bytes", timeout_s=60)
    await show(page, "#/", "main .recent")
    assert not faults(page, cluster.nodes[0])
    page.forget()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(page.send("Page.reload"))
        await page.event("Page.javascriptDialogOpening")  # as uploads would stop
        await page.send("Page.handleJavaScriptDialog", accept=True)
        await page.event("Page.loadEventFired")
    await page.until("document.querySelector('main .recent')")
    await slow(page, 0)
    await show(page, "#/uploads", "input[name=again]")
    await page.give_files("input[name=again]", other)
    await page.until(f"{state_of(large.name)} === 'file differs'")
    await page.give_files("input[name=again]", large)
    await page.until(f"{state_of(large.name)} === 'stored'")
    stored = cluster.get(f"/backups/{file_uuid}", token=token).json
    assert (stored["status"], stored["blob_sha256"]) == ("available", sha256)
    assert await page.value("localStorage.getItem('filestore.uploads')") == "[]"
    assert not faults(page, cluster.nodes[0])


async def test_folders_are_opened_and_many_files_go_at_once(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "course"
    (folder / "week 1").mkdir(parents=True)
    for number in range(20):
        place = folder / "week 1" if number % 2 else folder
        (place / f"file-{number}.cfg").write_text(f"hostname r{number}\n")
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.user_token("frank"))
    await dropped(page, folder)
    await page.until("document.querySelectorAll('.uploads .badge.good').length === 20")
    await show(page, "#/backups", "main tbody tr")
    await page.until("document.querySelectorAll('main tbody tr').length === 20")
    assert not faults(page, cluster.nodes[0])


async def test_uploads_that_wait_are_not_sent_for_the_next_user(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    """Three are under way when Nora signs out, two wait. Otto signs in in the same tab, then Nora again."""
    files = [tmp_path / f"waiting-{number}.tar" for number in range(5)]
    for file in files:
        random_file(file, 3_000_000)
    nora, otto = cluster.user_token("nora"), cluster.user_token("otto")
    await open_console(page, cluster.nodes[0])
    await sign_in(page, nora)
    await slow(page, 100_000)
    await dropped(page, *files)
    for file in files[:3]:
        await page.until(f"{percent_of(file.name)} > 1")
    assert await page.value(state_of(files[3].name)) == "waiting"
    await page.value("document.querySelector('.who button').click()")
    await page.until("document.querySelector('.who [role=menuitem]')")
    await choose(page, "Sign out", ".who")
    await slow(page, 0)
    await sign_in(page, otto)
    await show(page, "#/uploads")
    for file in files[:3]:
        await page.until(f"{state_of(file.name)} === 'signed out'")
    assert await page.value(state_of(files[3].name)) == "waiting"
    assert cluster.get("/backups", token=otto).json["backups"] == []
    await page.value("document.querySelector('.who button').click()")
    await page.until("document.querySelector('.who [role=menuitem]')")
    await choose(page, "Sign out", ".who")
    await sign_in(page, nora)
    await show(page, "#/uploads")
    for file in files:
        await page.until(f"{state_of(file.name)} === 'stored'")
