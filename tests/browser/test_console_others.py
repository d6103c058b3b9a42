"""An admin sees the files of all users, and the console changes those of others only when they are chosen."""

from pathlib import Path

import pytest

from tests.api.expectations import DEFAULT_BUCKET
from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, show
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
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
CHOICES = """[...document.querySelectorAll('dialog .clashes select')].map(
  (each) => [each.value, [...each.options].map((option) => option.value).join(' ')].join(': '))"""


def put_for_both(cluster: Cluster, folder: str) -> str:
    """Store `mine` of the admin and `theirs` of hugo in a folder, and return the token of hugo."""
    token = cluster.user_token("hugo")
    stored_at(cluster, cluster.admin_token, DEFAULT_BUCKET, f"{folder}/mine", b"old")
    stored_at(cluster, token, DEFAULT_BUCKET, f"{folder}/theirs", b"old")
    return token


def in_folder(cluster: Cluster, token: str, folder: str) -> list[str]:
    """The paths below a folder of the default bucket."""
    found = paths_of(cluster, token, DEFAULT_BUCKET)
    return [path.removeprefix(f"{folder}/") for path in found if path.startswith(f"{folder}/")]


async def test_replace_for_all_leaves_files_of_others_alone(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    hugo = put_for_both(cluster, "replaced")
    files = [tmp_path / name for name in ("mine", "theirs")]
    for file in files:
        file.write_bytes(b"new")
    await open_bucket(page, cluster, cluster.admin_token, DEFAULT_BUCKET, "replaced")
    await page.give_files("input[name=files]", *files)
    await choose(page, "Upload", "dialog footer")
    await told(page, "1 file belongs to other users: hugo (1)")
    await page.value("""(() => {
      const all = document.querySelector("dialog select[name=all]");
      all.value = "replace";
      all.dispatchEvent(new Event("change", { bubbles: true }));
    })()""")
    await page.until(f"{CHOICES}[0].startsWith('replace')")
    assert await page.value(CHOICES) == ["replace: keep replace skip", "keep: keep replace skip"]
    await choose(page, "Continue", "dialog footer")
    await noticed(page, "2 files are stored.")
    await page.until("document.querySelectorAll('.uploads .badge.good').length === 2")
    assert in_folder(cluster, hugo, "replaced") == ["theirs"]
    assert not faults(page, cluster.nodes[0])


async def test_folder_is_deleted_with_files_of_others_only_if_they_are_included(
    page: Page, cluster: Cluster
) -> None:
    hugo = put_for_both(cluster, "emptied")
    await open_bucket(page, cluster, cluster.admin_token, DEFAULT_BUCKET)
    await choose_in_menu(page, "emptied", "Delete…")
    await told(page, "1 file belongs to other users: hugo (1)")
    await choose(page, "Delete 1 file", "dialog footer")
    await closed(page)
    assert in_folder(cluster, cluster.admin_token, "emptied") == ["theirs"]
    assert in_folder(cluster, hugo, "emptied") == ["theirs"]
    await choose_in_menu(page, "emptied", "Delete…")
    await told(page, "0 files")
    assert await page.value("document.querySelector('dialog footer button[type=submit]').disabled")
    await page.click("dialog input[name=others]")
    await choose(page, "Delete 1 file", "dialog footer")
    await closed(page)
    assert in_folder(cluster, cluster.admin_token, "emptied") == []
    assert not faults(page, cluster.nodes[0])


async def test_folder_is_renamed_with_own_files_only(page: Page, cluster: Cluster) -> None:
    put_for_both(cluster, "renamed")
    await open_bucket(page, cluster, cluster.admin_token, DEFAULT_BUCKET)
    await choose_in_menu(page, "renamed", "Rename…")
    await told(page, "1 file belongs to other users: hugo (1)")
    await page.value("document.querySelector('dialog input[name=name]').value = 'renamed again'")
    await choose(page, "Rename", "dialog footer")
    await closed(page)
    assert in_folder(cluster, cluster.admin_token, "renamed again") == ["mine"]
    assert in_folder(cluster, cluster.admin_token, "renamed") == ["theirs"]
    assert not faults(page, cluster.nodes[0])


async def test_list_of_a_kind_deletes_files_of_others_only_if_that_is_ticked(
    page: Page, cluster: Cluster
) -> None:
    put_for_both(cluster, "ticked")
    await open_bucket(page, cluster, cluster.admin_token, DEFAULT_BUCKET, "ticked")
    await show(page, "#/backups?q=ticked", "main tbody tr")
    await names_shown(page, ["theirs", "mine"])
    await mark(page, "mine", "theirs")
    await choose(page, "Delete…", "main .toolbar")
    await told(page, "1 file belongs to other users: hugo (1). Delete it.")
    await choose(page, "Delete 2 files", "dialog footer")
    assert await page.value("document.querySelector('dialog input[name=others]').matches(':invalid')")
    assert in_folder(cluster, cluster.admin_token, "ticked") == ["mine", "theirs"]
    await page.click("dialog input[name=others]")
    await choose(page, "Delete 2 files", "dialog footer")
    await closed(page)
    assert in_folder(cluster, cluster.admin_token, "ticked") == []
    assert not faults(page, cluster.nodes[0])


async def test_names_that_are_there_are_told_before_a_move(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("iris")
    bucket = new_bucket(cluster, token, "moves of iris")
    for path in ("a.cfg", "b.cfg", "lab/a.cfg", "lab/b.cfg"):
        stored_at(cluster, token, bucket, path)
    moved = {path: uuid for path, _, uuid in files_of(cluster, token, bucket)}
    await open_bucket(page, cluster, token, bucket)
    await mark(page, "a.cfg", "b.cfg")
    await choose(page, "Move…")
    await choose(page, "lab", "dialog .folder-choice")
    await choose(page, "Move", "dialog footer")
    await told(page, "2 names are already there")
    for name, choice in (("a.cfg", "replace"), ("b.cfg", "skip")):
        await page.value(f"""(() => {{
          const choice = document.querySelector('[aria-label="What happens to lab/{name}"]');
          choice.value = "{choice}";
          choice.dispatchEvent(new Event("change", {{ bubbles: true }}));
        }})()""")
    await choose(page, "Continue", "dialog footer")
    await closed(page)
    await names_shown(page, ["lab", "b.cfg"])
    assert [(path, uuid) for path, _, uuid in files_of(cluster, token, bucket)] == [
        ("b.cfg", moved["b.cfg"]),
        ("lab/a.cfg", moved["a.cfg"]),
        ("lab/b.cfg", moved["lab/b.cfg"]),
    ]
    await choose_in_menu(page, "b.cfg", "Rename…")
    await page.value("document.querySelector('dialog input[name=filename]').value = 'lab'")
    await choose(page, "Rename", "dialog footer")
    await closed(page)
    assert paths_of(cluster, token, bucket)[0] == "lab"
    assert not faults(page, cluster.nodes[0])
