"""Uploads that are resumed with a file that is not what it was: nothing is put together of two versions."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.test_console_day import dropped, percent_of, slow, state_of
from tests.cluster.harness import Cluster, random_file
from tests.cluster.upload_steps import TUS

SIZE_BYTES = 30_000_000
BLOCK_BYTES = 4096
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_lab(disk: Path, *blocks: int) -> None:
    """Write blocks, as a VM does: by default one that was sent and one that was not. Size and ends stay."""
    with disk.open("r+b") as file:
        for at in blocks or (2_000_000, 26_000_000):
            file.seek(at)
            file.write(os.urandom(BLOCK_BYTES))


async def begun(page: Page, cluster: Cluster, token: str, disk: Path) -> str:
    """The file_uuid of an upload of which more than two million bytes have arrived, and that is paused."""
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await slow(page, 6_000_000)
    await dropped(page, disk)
    await page.until(f"{percent_of(disk.name)} > 36")
    await choose(page, "Pause", ".uploads")
    (record,) = cluster.get(f"/backups?filename={disk.name}", token=token).json["backups"]
    file_uuid = str(record["file_uuid"])

    def has_come() -> bool:
        return arrived(cluster, token, file_uuid) > 2_100_000

    await asyncio.to_thread(wait_until, has_come, what="durable bytes", timeout_s=60)
    return file_uuid


def arrived(cluster: Cluster, token: str, file_uuid: str) -> int:
    status = cluster.get(f"/files/{file_uuid}/status", token=token)
    return int(status.json["offset"]) if status.status == 200 else 0


async def choose_again(page: Page, disk: Path) -> None:
    await page.until("document.querySelector('input[name=again]')")
    await page.give_files("input[name=again]", disk)


def says(text: str) -> str:
    """An expression: whether an upload says this of what is wrong with it."""
    return f"document.querySelector('.uploads .error')?.textContent.includes({text!r})"


async def reload(page: Page) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(page.send("Page.reload"))
        await page.event("Page.javascriptDialogOpening")  # as uploads would stop
        await page.send("Page.handleJavaScriptDialog", accept=True)
        await page.event("Page.loadEventFired")


async def test_changed_file_is_not_gone_on_with_and_the_one_that_was_begun_is(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    disk, copy = tmp_path / "lab-a.img", tmp_path / "kept" / "lab-a.img"
    sha256 = random_file(disk, SIZE_BYTES)
    copy.parent.mkdir()
    copy.write_bytes(disk.read_bytes())
    token = cluster.user_token("greta")
    file_uuid = await begun(page, cluster, token, disk)
    page.forget()
    await reload(page)
    run_lab(disk)
    await slow(page, 0)
    await show(page, "#/uploads", "input[name=again]")
    if place := os.environ.get("FILESTORE_SCREENSHOTS"):
        await page.screenshot(Path(place) / "begun-earlier.png")
    before = arrived(cluster, token, file_uuid)
    await choose_again(page, disk)
    await page.until(f"{state_of(disk.name)} === 'file differs'")
    assert await page.value(says("differ from the bytes that are already uploaded"))
    if place := os.environ.get("FILESTORE_SCREENSHOTS"):
        await page.screenshot(Path(place) / "file-differs.png")
    assert arrived(cluster, token, file_uuid) == before
    await choose_again(page, copy)
    await page.until(f"{state_of(disk.name)} === 'stored'")
    stored = cluster.get(f"/backups/{file_uuid}", token=token).json
    assert (stored["status"], stored["blob_sha256"]) == ("available", sha256)
    assert not faults(page, cluster.nodes[0])


async def test_interrupted_upload_is_told_as_such_after_a_reload(
    page: Page, browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    disk = tmp_path / "cut.tar"
    random_file(disk, SIZE_BYTES)
    token = cluster.user_token("ursula")
    badge = "document.querySelector('nav a[href=\"#/uploads\"] .badge.warn')?.textContent"
    file_uuid = await begun(page, cluster, token, disk)
    async with Page(browser, beside=page) as second:
        await open_console(second, cluster.nodes[0])
        await sign_in(second, token)
        await choose(page, "Resume", ".uploads")
        await page.until(f"{state_of(disk.name)} === 'uploading'")
        await show(second, "#/uploads", ".uploads")
        assert "Another tab of this browser is sending it." in await second.value(
            "document.querySelector('.uploads').textContent"
        )
        await choose(page, "Pause", ".uploads")
    await page.until(f"{state_of(disk.name)} === 'paused'")
    await reload(page)
    await page.until(f"{badge} === '1 stopped'")  # wherever the user is
    await show(page, "#/uploads", ".uploads")
    size = f"{round(arrived(cluster, token, file_uuid) / 1e6)} MB of 30 MB"
    await page.until(f"{state_of(disk.name)} === 'stopped at {size}'")
    assert await page.value(f"{percent_of(disk.name)}") > 0
    await choose_again(page, disk)
    await page.until(f"{state_of(disk.name)} === 'uploading' && !{badge}")
    await slow(page, 0)
    await page.until(f"{state_of(disk.name)} === 'stored' && !{badge}")
    assert not faults(page, cluster.nodes[0])


async def test_other_browser_starts_over_with_a_changed_file(
    page: Page, browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    disk, longer = tmp_path / "lab-b.img", tmp_path / "longer.img"
    random_file(disk, SIZE_BYTES)
    random_file(longer, SIZE_BYTES + 1)
    token = cluster.user_token("henri")
    file_uuid = await begun(page, cluster, token, disk)
    run_lab(disk)
    async with Page(browser) as other:
        await open_console(other, cluster.nodes[1])
        await sign_in(other, token)
        await show(other, "#/uploads", "input[name=again]")
        await choose_again(other, longer)
        await other.until(says("30,000,001 bytes"))
        await choose_again(other, disk)
        await other.until(says("differ from the bytes that are already uploaded"))
        await choose(other, "Start over", ".uploads")
        await other.until("document.querySelector('dialog form footer')")
        await choose(other, "Upload", "dialog footer")
        await closed(other)
        await other.until(f"{state_of(disk.name)} === 'stored'")
        await other.until("document.querySelectorAll('.uploads li').length === 1")
        assert not faults(other, cluster.nodes[1])
    listed = cluster.get(f"/backups?filename={disk.name}", token=token).json["backups"]
    assert [each["blob_sha256"] for each in listed] == [sha256_of(disk)]
    assert listed[0]["file_uuid"] != file_uuid


async def test_file_that_is_written_to_while_it_is_sent_is_not_stored(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    disk = tmp_path / "lab-c.img"
    random_file(disk, SIZE_BYTES)
    token = cluster.user_token("iris")
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await slow(page, 6_000_000)
    await dropped(page, disk)
    await page.until(f"{percent_of(disk.name)} > 36")
    run_lab(disk)
    await slow(page, 0)
    await page.until(f"{state_of(disk.name)} === 'file differs'")
    assert await page.value(says("was changed, moved or deleted"))
    (record,) = cluster.get(f"/backups?filename={disk.name}", token=token).json["backups"]
    assert record["status"] == "uploading"


async def test_node_that_does_not_tell_what_it_has_is_given_nothing(
    page: Page, browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    """As nodes of an older version, but for the tab that has sent these bytes of this file."""
    disk, name = tmp_path / "lab-d.img", "upload-prefix-digest"
    sha256 = random_file(disk, SIZE_BYTES)
    token = cluster.user_token("jana")
    file_uuid = await begun(page, cluster, token, disk)
    before = arrived(cluster, token, file_uuid)

    async def hide_digest(asking: Page) -> None:
        paused = await asking.event("Fetch.requestPaused", lambda event: event["request"]["method"] == "HEAD")
        headers = [each for each in paused["responseHeaders"] if each["name"].lower() != name]
        assert len(headers) == len(paused["responseHeaders"]) - 1
        told = {"responseCode": paused["responseStatusCode"], "responseHeaders": headers}
        await asking.send("Fetch.continueResponse", requestId=paused["requestId"], **told)
        await asking.send("Fetch.disable")

    patterns = [{"urlPattern": "*/content", "requestStage": "Response"}]
    async with Page(browser) as other:
        await open_console(other, cluster.nodes[1])
        await sign_in(other, token)
        await show(other, "#/uploads", "input[name=again]")
        await other.send("Fetch.enable", patterns=patterns)
        await choose_again(other, disk)
        await hide_digest(other)
        await other.until(says("runs an older version"))
        assert arrived(cluster, token, file_uuid) == before
    await slow(page, 0)
    await page.send("Fetch.enable", patterns=patterns)
    await choose(page, "Resume", ".uploads")
    await hide_digest(page)
    await page.until(f"{state_of(disk.name)} === 'stored'")
    assert cluster.get(f"/backups/{file_uuid}", token=token).json["blob_sha256"] == sha256


async def test_upload_that_was_ended_meanwhile_stays_when_another_file_is_chosen_for_it(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    disk, token = tmp_path / "lab-e.img", cluster.user_token("karl")
    sha256 = random_file(disk, 4_000_000)
    content = disk.read_bytes()
    about = {"filename": disk.name, "backup_type": "full", "size_bytes": len(content)}
    created = cluster.post("/backups", about, token=token).json
    path = f"/files/{created['file_uuid']}/content"

    def sent(start: int, stop: int) -> int:
        headers = {**TUS, "Upload-Offset": str(start)}
        return cluster.request(
            "PATCH", path, content=content[start:stop], headers=headers, token=token
        ).status

    assert await asyncio.to_thread(sent, 0, 3_000_000) == 204
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/uploads", "input[name=again]")
    assert await asyncio.to_thread(sent, 3_000_000, len(content)) == 204
    run_lab(disk, 2_000_000)
    await choose_again(page, disk)
    await page.until(says("All of that had arrived, and it is stored"))
    await choose(page, "Remove", ".uploads")
    await page.until("document.querySelectorAll('.uploads li').length === 0")
    stored = cluster.get(f"/backups/{created['file_uuid']}", token=token).json
    assert (stored["status"], stored["blob_sha256"]) == ("available", sha256)


async def test_upload_that_has_ended_meanwhile_is_not_deleted_when_it_is_given_up(
    page: Page, cluster: Cluster
) -> None:
    """Another tab has stored it since this one listed it."""
    content, token = os.urandom(2000), cluster.user_token("lena")
    about = {"filename": "lab-f.img", "backup_type": "full", "size_bytes": len(content)}
    file_uuid = cluster.post("/backups", about, token=token).json["file_uuid"]
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/uploads", "input[name=again]")
    headers = {**TUS, "Upload-Offset": "0"}
    path = f"/files/{file_uuid}/content"
    assert cluster.request("PATCH", path, content=content, headers=headers, token=token).status == 204
    await choose(page, "Discard", ".uploads")
    await page.until("document.querySelector('dialog footer')")
    await choose(page, "Discard the upload", "dialog footer")
    await page.until("document.querySelector('dialog .error')?.textContent.includes('stored')")
    assert cluster.get(f"/backups/{file_uuid}", token=token).json["status"] == "available"


async def test_file_that_was_changed_during_a_pause_and_kept_its_time_is_compared_anew(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    """Browsers tell by the time of change that a file was written to."""
    disk, token = tmp_path / "lab-g.img", cluster.user_token("mona")
    random_file(disk, SIZE_BYTES)
    await begun(page, cluster, token, disk)
    await choose(page, "Resume", ".uploads")
    await page.until(f"{percent_of(disk.name)} > 60")
    await choose(page, "Pause", ".uploads")
    changed_at_ns = disk.stat().st_mtime_ns
    run_lab(disk, 1_000_000, 28_000_000)
    os.utime(disk, ns=(changed_at_ns, changed_at_ns))
    await slow(page, 0)
    await choose(page, "Resume", ".uploads")
    await page.until(f"{state_of(disk.name)} === 'file differs'")
    assert await page.value(says("differ from the bytes that are already uploaded"))
