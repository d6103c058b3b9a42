"""The Python client stores files in folders, whichever way their bytes go."""

import os
import secrets
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filestore_client import Client
from filestore_client.base.errors import InvalidRequest
from filestore_client.base.records import FileRecord
from tests.cluster.connections import async_client_of
from tests.cluster.harness import Cluster

pytestmark = pytest.mark.usefixtures("own_memory")

SMALL, LARGE = os.urandom(1000), os.urandom(200 << 10)
PARTED = os.urandom(16 << 20)
Route = Callable[[Client, Path, dict[str, Any]], FileRecord | None]


def unique() -> str:
    return f"lab-{secrets.token_hex(6)}"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def write(client: Client, _: Path, fields: dict[str, Any]) -> FileRecord | None:
    with client.files.open("r.cfg", "wb", **fields) as file:
        file.write(LARGE)
    return file.record


ROUTES: dict[str, Route] = {
    "small": lambda client, path, fields: client.files.upload(written(path, SMALL), **fields),
    "large": lambda client, path, fields: client.files.upload(written(path, LARGE), **fields),
    "parts": lambda client, path, fields: client.files.upload(written(path, PARTED), parallel=2, **fields),
    "bytes": lambda client, _, fields: client.files.upload(SMALL, filename="r.cfg", **fields),
    "stream": lambda client, _, fields: client.files.upload(iter([LARGE]), filename="r.cfg", **fields),
    "identified": lambda client, _, fields: client.files.upload(
        iter([LARGE]), filename="r.cfg", identity=fields["path"], **fields
    ),
    "created first": lambda client, _, fields: client.files.upload(
        SMALL, filename="r.cfg", created=lambda _: None, **fields
    ),
    "open": write,
}


@pytest.mark.parametrize("route", ROUTES)
def test_file_is_in_the_folder_whichever_way_it_goes(client: Client, tmp_path: Path, route: str) -> None:
    folder = f"{unique()}/r ä%"
    record = ROUTES[route](client, tmp_path / "r.cfg", {"path": folder})
    assert record is not None
    assert (record.filename, record.path) == ("r.cfg", folder)
    (listed,) = client.files.in_bucket(record.bucket_id, path=folder)
    assert (listed.file_uuid, listed.path) == (record.file_uuid, folder)
    client.files.delete(record.file_uuid)


def test_same_file_goes_into_two_folders(client: Client, tmp_path: Path) -> None:
    path = written(tmp_path / "startup-config.cfg", SMALL)
    top = unique()
    records = [client.files.upload(path, path=f"{top}/{name}") for name in ("r1", "r2")]
    assert [record.path for record in records] == [f"{top}/r1", f"{top}/r2"]
    assert [each.path for each in client.files.folders(records[0].bucket_id, top)] == [
        f"{top}/r1",
        f"{top}/r2",
    ]


def test_file_is_found_by_name_and_folder(client: Client) -> None:
    name, top = unique(), unique()
    at_top = client.files.upload(SMALL, filename=name)
    within = client.files.upload(SMALL, filename=name, path=f"{top}/é")
    for path, wanted in ((None, within), ("", at_top), (f"/{top}/é/", within), (top, None)):
        found = client.files.find(name, path=path)
        assert (found and found.file_uuid) == (wanted and wanted.file_uuid)
    found = client.files.find(name, path=unicodedata.normalize("NFD", f"{top}/é"))
    assert found is not None
    assert found.file_uuid == within.file_uuid
    moved = client.files.update(within.file_uuid, path=top)
    assert moved.path == top
    assert [record.file_uuid for record in client.files.named(name, path=top)] == [within.file_uuid]


async def test_asyncio_client_has_folders_too(cluster: Cluster) -> None:
    name, top = unique(), unique()
    async with async_client_of(cluster) as client:
        record = await client.files.upload(SMALL, filename=name, path=top)
        assert await client.files.find(name, path=top) is not None
        assert [folder.name async for folder in client.files.folders(record.bucket_id, "")].count(top) == 1


def test_content_that_is_known_needs_no_second_look(client: Client, tmp_path: Path) -> None:
    record = client.files.upload(SMALL, filename=unique())
    content = client.files.stat(record.file_uuid)
    assert b"".join(client.files.read(record.file_uuid, 10, 20, content=content)) == SMALL[10:20]
    client.files.download(record.file_uuid, tmp_path / "copy", content=content)
    assert (tmp_path / "copy").read_bytes() == SMALL


@pytest.mark.parametrize("bad", ["a/../b", "a//b", "x" * 256, "a\udc80"])
def test_path_that_no_file_can_have_is_refused(client: Client, tmp_path: Path, bad: str) -> None:
    path = written(tmp_path / "r.cfg", SMALL)
    for content in (path, SMALL):
        with pytest.raises(InvalidRequest, match="path"):
            client.files.upload(content, filename="r.cfg", path=bad)
