"""Folders of a bucket as a person uses them in the console, and trees of files to upload."""

import io
import json
import random
import time
import zipfile
from pathlib import Path
from typing import Any, Final

from tests.browser.chromium import Page
from tests.browser.console_pages import QUIET, choose, open_console, show, sign_in
from tests.cluster.harness import Cluster

NAMES: Final = "[...document.querySelectorAll('main tbody .file-name')].map((each) => each.textContent)"
FILES_PER_FOLDER: Final = 8


def make_tree(place: Path, *, folders: int, files: int = FILES_PER_FOLDER, seed: int) -> dict[str, bytes]:
    """Write a tree of that many folders with `files` each; return its contents by path from `place.parent`.

    Two thirds of the folders have another one around them. It also has a link and an empty folder, which no
    browser uploads.
    """
    chance = random.Random(seed)
    contents: dict[str, bytes] = {}
    for number in range(folders):
        folder = place / f"site {number % 7}" / f"r{number}" / ("backup é" if number % 3 else "")
        folder.mkdir(parents=True)
        for file in range(files):
            name = "startup-config.cfg" if file == 0 else f"show-{file}.txt"
            content = chance.randbytes(chance.choice((0, 1, 200, 5_000)))
            (folder / name).write_bytes(content)
            contents[str((folder / name).relative_to(place.parent))] = content
    big = chance.randbytes(3_000_000)  # more than is asked for ahead
    (place / "disk.bin").write_bytes(big)
    contents[f"{place.name}/disk.bin"] = big
    (place / "nothing in it").mkdir()
    return contents


def stored_at(
    cluster: Cluster, token: str, bucket: str, path: str, content: bytes = b"x", *, parent: str = ""
) -> str:
    """Store a file under this path, its folders before its name, and return its file_uuid."""
    folder, _, name = path.rpartition("/")
    fields: dict[str, Any] = {"filename": name, "bucket_id": bucket, "path": folder}
    typed = {"backup_type": "incremental" if parent else "full", "parent_backup_uuid": parent}
    made = cluster.post("/backups", {**fields, **typed, "size_bytes": len(content)}, token=token)
    assert made.status == 201, made.body
    stored = cluster.request("PUT", made.json["upload_url"], content=content, token=token)
    assert stored.status == 200, stored.body
    return str(made.json["file_uuid"])


def new_bucket(cluster: Cluster, token: str, name: str) -> str:
    return str(cluster.post("/buckets", {"name": name}, token=token).json["bucket_id"])


def files_of(cluster: Cluster, token: str, bucket: str) -> list[tuple[str, str, str]]:
    """Path, state and id of each file of a bucket, by path."""
    found, where = [], f"/buckets/{bucket}/files"
    while where:
        answer = cluster.get(where, token=token)
        for file in answer.json["files"]:
            whole = "/".join(part for part in (file["path"], file["filename"]) if part)
            found.append((whole, file["status"], file["file_uuid"]))
        where = answer.headers.get("link", "").partition("<")[2].partition(">")[0].removeprefix("/api/v1")
    return sorted(found)


def paths_of(cluster: Cluster, token: str, bucket: str) -> list[str]:
    return [path for path, _, _ in files_of(cluster, token, bucket)]


def labelled(label: str) -> str:
    """JavaScript: what has this label in the page."""
    every = "[...document.querySelectorAll('main [aria-label]')]"
    return f"{every}.find((each) => each.ariaLabel === {json.dumps(label)})"


async def names_shown(page: Page, expected: list[str]) -> None:
    """Wait until the list shows just these names, in this order."""
    written = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    await page.until(f"{QUIET} && JSON.stringify({NAMES}) === {json.dumps(written)}")


async def open_bucket(page: Page, cluster: Cluster, token: str, bucket: str, folder: str = "") -> None:
    """Sign in, and open a bucket or a folder of it."""
    await page.shape(1280)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    query = f"?folder={folder}" if folder else ""
    await show(page, f"#/buckets/{bucket}{query}", "main .table-box")


async def choose_in_menu(page: Page, name: str, text: str) -> None:
    """Choose from the menu of the row with this name."""
    button = labelled(f"Actions for {name}")
    await page.until(button)
    await page.value(f"{button}.click()")
    await choose(page, text, "[role=menu]")


async def mark(page: Page, *names: str) -> None:
    """Select the rows with these names."""
    for name in names:
        box = labelled(f"Select {name}")
        await page.until(box)
        await page.value(f"{box}.click()")


async def told(page: Page, text: str) -> None:
    """Wait until a dialog says this."""
    uppermost = "[...document.querySelectorAll('dialog')].at(-1)"
    await page.until(f"{uppermost}?.textContent.includes({json.dumps(text)})")


async def noticed(page: Page, text: str) -> None:
    """Wait until a notice says this."""
    await page.until(f"document.querySelector('.notices').textContent.includes({json.dumps(text)})")


async def noticed_in_the_end(page: Page, notice: str, progress: str) -> float:
    """Wait until a notice says this, while `progress` changes now and then; return the seconds it took."""
    begun_s, seen = time.monotonic(), ""
    is_noticed = f"document.querySelector('.notices').textContent.includes({json.dumps(notice)})"
    while not await page.value(is_noticed):
        await page.until(f"{is_noticed} || ({progress}) !== {json.dumps(seen)}")
        seen = await page.value(progress)
    return time.monotonic() - begun_s


async def all_stored(page: Page, count: int) -> float:
    """Wait until so many files are stored; return the seconds that it took."""
    badges = "document.querySelectorAll('.uploads .badge.good').length"
    stored = f"(document.querySelector('.sum')?.textContent || '') + {badges}"  # of many, not all have a row
    return await noticed_in_the_end(page, f"{count:,} files are stored.", stored)


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Return the contents of a zip by name, each of which is there once."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert opened.testzip() is None
        names = opened.namelist()
        assert len(names) == len(set(names))
        return {name: opened.read(name) for name in names}
