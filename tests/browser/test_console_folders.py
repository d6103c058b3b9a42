"""Folders in the console: uploads of trees, names that are there, zips, moving, deleting."""

import json
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.folder_pages import (
    choose_in_menu,
    files_of,
    mark,
    names_shown,
    new_bucket,
    noticed,
    open_bucket,
    paths_of,
    stored_at,
    told,
)
from tests.browser.test_console import look_at
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


async def test_names_that_are_there_are_told_before_the_upload(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    token = cluster.user_token("tom")
    bucket = new_bucket(cluster, token, "clashes of tom")
    names = ("kept.cfg", "replaced.cfg", "skipped.cfg")
    old = {name: stored_at(cluster, token, bucket, f"lab/r1/{name}", b"old") for name in names}
    stored_at(cluster, token, bucket, "lab/new.cfg", b"another folder")
    (tmp_path / "r1").mkdir()
    for name in (*names, "new.cfg"):
        (tmp_path / "r1" / name).write_bytes(b"new")
    await open_bucket(page, cluster, token, bucket, "lab")
    await page.give_files("input[name=folder]", tmp_path / "r1")
    await told(page, "4 files")
    await choose(page, "Upload", "dialog footer")
    await told(page, "3 names are already there")
    for name, choice in zip(names, ("keep", "replace", "skip"), strict=True):
        await page.value(f"""(() => {{
          const choice = document.querySelector('[aria-label="What happens to lab/r1/{name}"]');
          choice.value = "{choice}";
          choice.dispatchEvent(new Event("change", {{ bubbles: true }}));
        }})()""")
    await choose(page, "Continue", "dialog footer")
    await noticed(page, "3 files are stored.")
    await page.until("document.querySelectorAll('.uploads .badge.good').length === 3")
    expected = ["kept.cfg", "kept.cfg", "new.cfg", "replaced.cfg", "skipped.cfg"]

    def is_replaced() -> bool:
        return old["replaced.cfg"] not in [uuid for _, _, uuid in files_of(cluster, token, bucket)]

    wait_until(is_replaced, what="the old file to be deleted", timeout_s=30)
    assert paths_of(cluster, token, bucket) == ["lab/new.cfg", *(f"lab/r1/{name}" for name in expected)]
    assert {old["kept.cfg"], old["skipped.cfg"]} <= {uuid for _, _, uuid in files_of(cluster, token, bucket)}
    assert not faults(page, cluster.nodes[0])


async def test_what_one_may_not_delete_is_not_offered_to_be_replaced(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    owner, token = cluster.user_token("uma"), cluster.user_token("vic")
    bucket = new_bucket(cluster, owner, "shared by uma")
    grant = {"permission": "write", "principal_type": "user", "principal_id": "vic"}
    assert cluster.post(f"/buckets/{bucket}/permissions", grant, token=owner).status == 201
    stored_at(cluster, owner, bucket, "of uma.cfg")
    stored_at(cluster, token, bucket, "of vic.cfg")
    files = [tmp_path / name for name in ("of uma.cfg", "of vic.cfg")]
    for file in files:
        file.write_bytes(b"new")
    await open_bucket(page, cluster, token, bucket)
    await page.give_files("input[name=files]", *files)
    await told(page, "2 files")
    await choose(page, "Upload", "dialog footer")
    await told(page, "1 file cannot be replaced")
    for file, choices in zip(files, (["keep", "skip"], ["keep", "replace", "skip"]), strict=True):
        box = f"document.querySelector('[aria-label=\"What happens to {file.name}\"]')"
        assert await page.value(f"[...{box}.options].map((each) => each.value)") == choices
    await page.value("""(() => {
      const all = document.querySelector("dialog select[name=all]");
      all.value = "skip";
      all.dispatchEvent(new Event("change", { bubbles: true }));
    })()""")
    await choose(page, "Continue", "dialog footer")
    await noticed(page, "Nothing is uploaded.")
    assert paths_of(cluster, owner, bucket) == ["of uma.cfg", "of vic.cfg"]
    assert not faults(page, cluster.nodes[0])


async def test_folders_have_addresses_and_are_searched(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("wendy")
    bucket = new_bucket(cluster, token, "tree of wendy")
    deep = "lab é & co/50% <b>"
    for path in (
        "z.txt",
        "a.txt",
        f"{deep}/r1/startup-config.cfg",
        f"{deep}/r2/startup-config.cfg",
        "b/x.txt",
    ):
        stored_at(cluster, token, bucket, path)
    await open_bucket(page, cluster, token, bucket)
    await names_shown(page, ["b", "lab é & co", "a.txt", "z.txt"])
    for name, shown in (
        ("lab é & co", ["50% <b>"]),
        ("50% <b>", ["r1", "r2"]),
        ("r2", ["startup-config.cfg"]),
    ):
        links = "[...document.querySelectorAll('main tbody a')]"
        await page.value(f"{links}.find((each) => each.textContent === {json.dumps(name)}).click()")
        await names_shown(page, shown)
    crumbs = "[...document.querySelectorAll('.crumbs li')].map((each) => each.textContent)"
    assert await page.value(crumbs) == ["tree of wendy", "lab é & co", "50% <b>", "r2"]
    assert await page.value("document.title") == "r2 · tree of wendy · Filestore"
    copied = await page.value("location.href")
    await page.value("history.back()")
    await names_shown(page, ["r1", "r2"])
    await page.value("history.back()")
    await names_shown(page, ["50% <b>"])
    await page.value("history.forward()")
    await names_shown(page, ["r1", "r2"])
    await page.reload()
    await names_shown(page, ["r1", "r2"])
    await page.click("main input[type=search]")
    await page.type("STARTUP")
    await names_shown(page, ["startup-config.cfg", "startup-config.cfg"])
    folders = "[...document.querySelectorAll('main .in-folder')].map((each) => each.textContent)"
    assert await page.value(folders) == [f"{deep}/r1", f"{deep}/r2"]
    await page.value("document.querySelector('main .in-folder').click()")
    await names_shown(page, ["startup-config.cfg"])
    assert await page.value("document.querySelector('main input[type=search]').value") == ""
    await page.value("document.querySelector('.crumbs a').click()")
    await names_shown(page, ["b", "lab é & co", "a.txt", "z.txt"])
    await page.value(f"location.href = {json.dumps(copied)}")
    await names_shown(page, ["startup-config.cfg"])
    await show(page, "#/backups?q=startup", "main tbody tr")
    assert await page.value(f"{folders}.sort()") == [f"{deep}/r1", f"{deep}/r2"]
    assert not faults(page, cluster.nodes[0])


async def test_files_and_folders_are_moved_renamed_and_deleted(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("xena")
    bucket = new_bucket(cluster, token, "moves of xena")
    for path in ("a.txt", "b.txt", "lab/c.txt", "lab/r1/d.txt", "old/e.txt"):
        stored_at(cluster, token, bucket, path)
    await open_bucket(page, cluster, token, bucket)
    await mark(page, "lab", "a.txt")
    await choose(page, "Move…")
    await told(page, "3 files")
    await choose(page, "old", "dialog .folder-choice")
    await choose(page, "Move", "dialog footer")
    await closed(page)
    await names_shown(page, ["old", "b.txt"])
    assert paths_of(cluster, token, bucket) == [
        "b.txt",
        "old/a.txt",
        "old/e.txt",
        "old/lab/c.txt",
        "old/lab/r1/d.txt",
    ]
    await choose_in_menu(page, "old", "Move to a folder…")
    await choose(page, "old", "dialog .folder-choice")
    await choose(page, "Move", "dialog footer")
    await told(page, "A folder cannot be moved into itself")
    await page.press("Escape", 27)
    await closed(page)
    await choose_in_menu(page, "old", "Rename…")
    await told(page, "4 files")
    await page.value("document.querySelector('dialog input[name=name]').value = 'new'")
    await choose(page, "Rename", "dialog footer")
    await closed(page)
    await names_shown(page, ["new", "b.txt"])
    assert paths_of(cluster, token, bucket) == [
        "b.txt",
        "new/a.txt",
        "new/e.txt",
        "new/lab/c.txt",
        "new/lab/r1/d.txt",
    ]
    await show(page, f"#/buckets/{bucket}?folder=new", "main tbody tr")
    await choose_in_menu(page, "lab", "Delete…")
    await told(page, "Delete the folder?")
    await told(page, "2 files")
    await choose(page, "Delete 2 files", "dialog footer")
    await closed(page)
    await names_shown(page, ["a.txt", "e.txt"])
    assert paths_of(cluster, token, bucket) == ["b.txt", "new/a.txt", "new/e.txt"]
    assert not faults(page, cluster.nodes[0])


async def test_what_is_not_deleted_is_told_by_name(page: Page, cluster: Cluster) -> None:
    owner, token = cluster.user_token("yves"), cluster.user_token("zoe")
    bucket = new_bucket(cluster, owner, "shared by yves")
    grant = {"permission": "write", "principal_type": "user", "principal_id": "zoe"}
    assert cluster.post(f"/buckets/{bucket}/permissions", grant, token=owner).status == 201
    parent = stored_at(cluster, token, bucket, "lab/full.tar")
    stored_at(cluster, token, bucket, "lab/then.tar", parent=parent)
    stored_at(cluster, owner, bucket, "lab/of yves.tar")
    await open_bucket(page, cluster, token, bucket)
    await choose_in_menu(page, "lab", "Delete…")
    await told(page, "1 file belongs to other users: yves (1)")
    await page.click("dialog input[name=others]")
    await choose(page, "Delete 3 files", "dialog footer")
    await told(page, "Files that are not deleted")
    failed = "[...document.querySelectorAll('dialog .failed .located')].map((each) => each.textContent)"
    assert await page.value(failed) == ["of yves.tarlab"]
    assert paths_of(cluster, owner, bucket) == ["lab/of yves.tar"]
    assert not faults(page, cluster.nodes[0], told=("403", "409"))


async def test_reader_looks_and_downloads_and_is_offered_nothing_else(page: Page, cluster: Cluster) -> None:
    owner, token = cluster.user_token("abel"), cluster.user_token("bea")
    bucket = new_bucket(cluster, owner, "read by bea")
    grant = {"permission": "read", "principal_type": "user", "principal_id": "bea"}
    assert cluster.post(f"/buckets/{bucket}/permissions", grant, token=owner).status == 201
    stored_at(cluster, owner, bucket, "lab/a.txt")
    await open_bucket(page, cluster, token, bucket)
    await page.until("!document.querySelector('main input[type=file]')")
    await names_shown(page, ["lab"])
    await mark(page, "lab")
    buttons = "[...document.querySelectorAll('main .toolbar button')].map((each) => each.textContent)"
    assert await page.value(buttons) == ["Download as a zip…", "Clear"]
    await page.value("document.querySelector('[aria-label=\"Actions for lab\"]').click()")
    items = "[...document.querySelectorAll('[role=menuitem]')].map((each) => each.textContent)"
    assert await page.value(items) == ["Open", "Download as a zip…"]
    await choose(page, "Open", "[role=menu]")
    await names_shown(page, ["a.txt"])
    assert not faults(page, cluster.nodes[0])


async def test_folder_that_is_dropped_keeps_its_folders(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.user_token("cleo")
    bucket = new_bucket(cluster, token, "drops of cleo")
    (tmp_path / "lab" / "r1").mkdir(parents=True)
    (tmp_path / "lab" / "empty").mkdir()
    (tmp_path / "lab" / "r1" / "startup-config.cfg").write_bytes(b"1")
    (tmp_path / "lab" / "notes.txt").write_bytes(b"2")
    (tmp_path / "alone.txt").write_bytes(b"3")
    await open_bucket(page, cluster, token, bucket, "in")
    await page.drop(tmp_path / "lab", tmp_path / "alone.txt")
    await told(page, "1 folder is empty")
    await choose(page, "Upload", "dialog footer")
    await noticed(page, "3 files are stored.")
    expected = ["in/alone.txt", "in/lab/notes.txt", "in/lab/r1/startup-config.cfg"]
    assert paths_of(cluster, token, bucket) == expected
    assert not faults(page, cluster.nodes[0])


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_folders_and_their_dialogs_are_usable_at_every_width(
    page: Page, cluster: Cluster, axe_script: str, tmp_path: Path, theme: str
) -> None:
    token = cluster.user_token(f"dora-{theme}")
    bucket = new_bucket(cluster, token, theme + "x" * 100)
    deep = f"lab/{'r' * 200}"
    for path in (f"{deep}/{'c' * 200}.cfg", f"{deep}/r1/a.cfg", "lab/b.cfg"):
        stored_at(cluster, token, bucket, path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "b.cfg").write_bytes(b"new")
    await open_bucket(page, cluster, token, bucket, deep)
    found = await look_at(page, "folder", theme, axe_script)
    for text, ready in (
        ("Move to a folder…", "dialog .folder-choice button"),
        ("Download as a zip…", "dialog p[role=status]"),
        ("Rename…", "dialog p[role=status]"),
        ("Delete…", "dialog p[role=status]"),
    ):
        await choose_in_menu(page, "r1", text)
        await page.until(f"document.querySelector('{ready}')")
        found += await look_at(page, f"dialog {text}", theme, axe_script)
        await page.press("Escape", 27)
        await closed(page)
        await page.value("new Promise(requestAnimationFrame)")  # what is resized closes its menus
    await page.shape(1280, theme=theme)
    await show(page, f"#/buckets/{bucket}?q=cfg", "main .in-folder")
    found += await look_at(page, "search", theme, axe_script)
    await page.give_files("input[name=folder]", tmp_path / "lab")
    await page.until("document.querySelector('dialog footer.kept')")
    found += await look_at(page, "dialog upload", theme, axe_script)
    await choose(page, "Upload", "dialog footer")
    await told(page, "1 name is already there")
    found += await look_at(page, "dialog names", theme, axe_script)
    assert not found
    assert not faults(page, cluster.nodes[0])


# What a member answers that has no folders, or a cluster that is not wholly upgraded.
WITHOUT_FOLDERS = """void ((asked) => (globalThis.fetch = (where, more) => {
  if (!/[/]folders|[?&]path=/.test(where)) return asked(where, more);
  const body = JSON.stringify({ code: "unavailable", error: "x", details: "Not all are upgraded." });
  return Promise.resolve(new Response(body, { status: 503 }));
}))(fetch)"""


async def test_cluster_without_folders_shows_files_and_takes_uploads_as_before(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    token = cluster.user_token("eric")
    bucket = new_bucket(cluster, token, "old of eric")
    for path in ("lab/a.cfg", "b.cfg"):
        stored_at(cluster, token, bucket, path)
    (tmp_path / "b.cfg").write_bytes(b"new")
    await page.shape(1280)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await page.value(WITHOUT_FOLDERS)
    await show(page, f"#/buckets/{bucket}", "main tbody tr")
    await names_shown(page, ["a.cfg", "b.cfg"])
    await show(page, f"#/buckets/{bucket}?folder=lab", "main .banner.warn")
    await names_shown(page, ["a.cfg", "b.cfg"])
    await show(page, f"#/buckets/{bucket}", "main tbody tr")
    await page.give_files("input[name=files]", tmp_path / "b.cfg")
    await choose(page, "Upload", "dialog footer")
    await noticed(page, "b.cfg is stored.")
    assert paths_of(cluster, token, bucket) == ["b.cfg", "b.cfg", "lab/a.cfg"]
    assert not faults(page, cluster.nodes[0])
