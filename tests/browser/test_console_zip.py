"""A folder, or a selection of files, is one zip: all of it as it is stored, or none."""

import base64
import json
import os
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, show
from tests.browser.folder_pages import (
    all_stored,
    choose_in_menu,
    files_of,
    make_tree,
    mark,
    names_shown,
    new_bucket,
    noticed,
    noticed_in_the_end,
    open_bucket,
    stored_at,
    told,
    unpacked,
)
from tests.cluster.harness import Cluster

# Folders, and files in each: FILESTORE_TREE=500x10 are 5,001 files in 840 folders.
FOLDERS, FILES = map(int, os.environ.get("FILESTORE_TREE", "40x8").split("x"))
SEED = 66
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

# In place of the system's dialog, which a browser without a window does not have: a file of the page's own.
PICKED = """void (globalThis.showSaveFilePicker = async ({ suggestedName }) => {
  const root = await navigator.storage.getDirectory();
  globalThis.pickedName = suggestedName;
  return (globalThis.picked = await root.getFileHandle(suggestedName, { create: true }));
})"""
SAVED = """(async () => {
  const bytes = new Uint8Array(await (await picked.getFile()).arrayBuffer());
  return btoa(Array.from(bytes, (each) => String.fromCharCode(each)).join(""));
})()"""
KEPT = """(async () => {
  const names = [];
  for await (const name of (await navigator.storage.getDirectory()).keys()) names.push(name);
  return names;
})()"""


# Content is cut: by an error if IS_ONCE, else by an early end, and the rest of a file again.
CUT = """void ((asked) => (globalThis.fetch = async (where, more) => {
  const answer = await asked(where, more);
  const isRest = Boolean(more.headers.get("Range"));
  if (!/[/]files[/][0-9a-f-]{36}$/.test(where) || (IS_ONCE && isRest)) return answer;
  const reader = answer.body.getReader();
  const cut = new ReadableStream({ async pull(to) {
    const { value } = await reader.read();
    if (!isRest) to.enqueue(value.slice(0, 1000));
    if (IS_ONCE) to.error(new TypeError("network error"));
    else to.close();
  } });
  return new Response(cut, { status: answer.status, headers: answer.headers });
}))(fetch)"""


@pytest.mark.timeout(1200)
async def test_tree_of_folders_goes_up_and_comes_back_as_a_zip(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    token = cluster.user_token("quinn")
    bucket = new_bucket(cluster, token, "labs of quinn")
    stored_at(cluster, token, bucket, "spring/notes.txt", b"before")
    contents = make_tree(tmp_path / "campus", folders=FOLDERS, files=FILES, seed=SEED)
    await open_bucket(page, cluster, token, bucket, "spring")
    await names_shown(page, ["notes.txt"])
    await page.give_files("input[name=folder]", tmp_path / "campus")
    await told(page, f"{len(contents):,} files")
    await told(page, "Links and empty folders are not uploaded")
    await page.until("document.querySelector('dialog input[name=folder]')")
    assert await page.value("document.querySelector('dialog input[name=folder]').value") == "spring"
    await choose(page, "Upload", "dialog footer")
    up_s = await all_stored(page, len(contents))
    expected = sorted([f"spring/{path}" for path in contents] + ["spring/notes.txt"])
    found = files_of(cluster, token, bucket)
    assert [(path, state) for path, state, _ in found] == [(path, "available") for path in expected]
    await show(page, f"#/buckets/{bucket}?folder=spring", "main tbody tr")
    await names_shown(page, ["campus", "notes.txt"])
    await page.value(PICKED)
    await choose_in_menu(page, "campus", "Download as a zip…")
    await told(page, f"{len(contents):,} files")
    await choose(page, "Download", "dialog footer")
    progress = "document.querySelector('dialog')?.textContent || ''"
    down_s = await noticed_in_the_end(page, "campus.zip is saved", progress)
    print(f"{len(contents)} files: {len(contents) / up_s:.0f} a second up, {len(contents) / down_s:.0f} down")
    await closed(page)
    assert await page.value("pickedName") == "campus.zip"
    assert unpacked(base64.b64decode(await page.value(SAVED))) == contents
    assert not faults(page, cluster.nodes[0])


NAMED = """(async (files, base) => {
  const place = document.querySelector('script[type=module]').src;
  const { namesIn } = await import(new URL('folders/zip.js', place));
  const given = files.map(([path, filename]) => ({ path, filename }));
  return namesIn(given, base).map(({ name }) => name);
})"""


async def test_names_in_a_zip_are_different_and_lead_nowhere_else(page: Page, cluster: Cluster) -> None:
    await open_console(page, cluster.nodes[0])
    await page.until("document.querySelector('#token')")
    expected = [
        (("lab/r1", "a.cfg"), "r1/a.cfg"),
        (("lab/r1", "a.cfg"), "r1/a (2).cfg"),
        (("lab/r1", "a (2).cfg"), "r1/a (2) (2).cfg"),
        (("lab/r1", "a.cfg"), "r1/a (3).cfg"),
        (("lab", "r1"), "r1 (2)"),
        (("lab", ".."), "_"),
        (("lab", "."), "_ (2)"),
        (("lab", "..\\..\\x.tar.gz"), ".._.._x.tar.gz"),
        (("lab", ".profile"), ".profile"),
        (("lab", ".profile"), ".profile (2)"),
        (("lab/..\\x", "y"), ".._x/y"),
    ]
    given = json.dumps([file for file, _ in expected])
    assert await page.value(f"{NAMED}({given}, 'lab')") == [name for _, name in expected]


async def test_selection_is_a_zip_in_a_browser_that_cannot_write_files(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    token = cluster.user_token("rosa")
    bucket = new_bucket(cluster, token, "zips of rosa")
    for path, content in (
        ("lab/a.cfg", b"1"),
        ("lab/a.cfg", b"2"),
        ("lab/r1/a.cfg", b"3"),
        ("lab/r1", b"4"),
        ("lab/back\\slash", b"5"),
        ("lab/..", b"6"),
        ("lab/not chosen", b"7"),
    ):
        stored_at(cluster, token, bucket, path, content)
    await open_bucket(page, cluster, token, bucket, "lab")
    await page.send(
        "Browser.setDownloadBehavior",
        behavior="allow",
        browserContextId=page.profile,
        downloadPath=str(tmp_path),
        eventsEnabled=True,
    )
    await page.value("delete globalThis.showSaveFilePicker")
    await page.until("document.querySelectorAll('main tbody .file-name').length === 7")
    await page.value("document.querySelector('[aria-label=\"Select all\"]').click()")
    await mark(page, "not chosen")
    await choose(page, "Download as a zip…")
    await told(page, "2.0 GB at most")
    await told(page, "6 files")
    await choose(page, "Download", "dialog footer")
    done = await page.event("Browser.downloadProgress", lambda event: event["state"] == "completed")
    assert done["receivedBytes"] > 0
    assert unpacked((tmp_path / "lab.zip").read_bytes()) == {
        "a.cfg": b"1",
        "a (2).cfg": b"2",
        "r1/a.cfg": b"3",
        "r1 (2)": b"4",
        "back_slash": b"5",
        "_": b"6",
    }
    assert not faults(page, cluster.nodes[0])


async def test_file_that_cannot_be_read_ends_the_zip_with_its_name(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("sam")
    bucket = new_bucket(cluster, token, "zips of sam")
    stored_at(cluster, token, bucket, "lab/a.cfg")
    doomed = stored_at(cluster, token, bucket, "lab/r1/b.cfg")
    await open_bucket(page, cluster, token, bucket)
    await page.value(PICKED)
    await choose_in_menu(page, "lab", "Download as a zip…")
    await told(page, "2 files")
    assert cluster.request("DELETE", f"/files/{doomed}", token=token).status == 200
    await choose(page, "Download", "dialog footer")
    await told(page, "The zip is not complete and was not saved. lab/r1/b.cfg:")
    assert await page.value(KEPT) == []
    assert not faults(page, cluster.nodes[0], told=("404",))


async def test_content_that_is_cut_goes_on_where_it_was(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("tess")
    bucket = new_bucket(cluster, token, "zips of tess")
    contents = {"lab/a.bin": bytes(range(256)) * 200, "lab/large.bin": bytes(range(251)) * 9000}
    for path, content in contents.items():
        stored_at(cluster, token, bucket, path, content)
    await open_bucket(page, cluster, token, bucket)
    await page.value(PICKED)
    await page.value(CUT.replace("IS_ONCE", "true"))
    await choose_in_menu(page, "lab", "Download as a zip…")
    await choose(page, "Download", "dialog footer")
    await noticed(page, "lab.zip is saved")
    assert unpacked(base64.b64decode(await page.value(SAVED))) == contents
    assert not faults(page, cluster.nodes[0])


async def test_content_that_stays_cut_is_no_shorter_file(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("theo")
    bucket = new_bucket(cluster, token, "zips of theo")
    stored_at(cluster, token, bucket, "lab/a.bin", bytes(50_000))
    await open_bucket(page, cluster, token, bucket)
    await page.value(PICKED)
    await page.value(CUT.replace("IS_ONCE", "false"))
    await choose_in_menu(page, "lab", "Download as a zip…")
    await choose(page, "Download", "dialog footer")
    await told(page, "The zip is not complete and was not saved. lab/a.bin: It ended early.")
    assert await page.value(KEPT) == []
    assert not faults(page, cluster.nodes[0])
