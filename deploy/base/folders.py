"""Folders of a bucket on the command line: the files in and below them, and which names exist."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Final

from deploy.base.lookup import find_bucket
from filestore_client import AsyncClient
from filestore_client.base.errors import FilestoreError, InvalidRequest, NotFound
from filestore_client.base.paths import forms_of
from filestore_client.base.records import FileSummary
from filestore_client.file_batch import for_each
from filestore_client.kinds import is_utf8
from metadata.model.records import DEFAULT_BUCKET_ID

_BY_NAME_MAX: Final = 3  # names in one folder that are looked up one by one
_LOOK_S: Final = 10.0  # an upload waits no longer for names that are there already

Place = tuple[str, str]  # a folder, "" for the top, and a name in it


async def bucket_id_of(client: AsyncClient, bucket: str) -> str:
    """Return the id of the bucket with this name or id, that of the default bucket for ""."""
    return (await find_bucket(client, bucket)).bucket_id if bucket else DEFAULT_BUCKET_ID


def path_of(named: str) -> str:
    """Return a folder that a person names as the API has it. Raises InvalidRequest."""
    path = named.strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise InvalidRequest(f"{named}: a folder has no parts such as '', '.' and '..'.")
    return path


async def files_below(client: AsyncClient, bucket_id: str, path: str) -> list[FileSummary]:
    """Return the files in a folder and below it. Raises NotFound if there are none."""
    files = [file async for file in client.files.in_bucket(bucket_id, path=path or "/", recursive="1")]
    if not files:
        raise NotFound(f"There is no file in a folder {path or '/'!r} that you can access.")
    return files


async def names_there(
    client: AsyncClient, bucket_id: str, wanted: Collection[Place], at_once: int
) -> dict[Place, list[FileSummary]]:
    """Return the available files that have one of the wanted names already, as far as they can be listed.

    A folder that does not exist costs no request of its own, however many files are wanted in it.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for folder, name in wanted:
        if is_utf8(folder + name):  # others are refused when they are uploaded
            names[folder].add(name)
    found: dict[Place, list[FileSummary]] = defaultdict(list)

    async def look(place: Place) -> None:
        folder, name = place
        narrowed = {"path": folder or "/", "status": "available"}
        for form in forms_of(name):
            async for file in client.files.in_bucket(bucket_id, name=form, **narrowed):
                if file.filename in names[folder]:
                    found[folder, file.filename].append(file)

    # The upload itself says what is wrong with the cluster.
    with suppress(FilestoreError, TimeoutError):
        async with asyncio.timeout(_LOOK_S):
            existing = [folder async for folder in _existing(client, bucket_id, set(names))]
            await for_each(
                [place for each in existing for place in _lookups(each, names[each])], look, at_once
            )
    return dict(found)


def _lookups(folder: str, names: Collection[str]) -> list[Place]:
    """Return what to ask for: each name, or with "" all names of a folder."""
    return [(folder, "")] if folder and len(names) > _BY_NAME_MAX else [(folder, name) for name in names]


async def _existing(client: AsyncClient, bucket_id: str, wanted: set[str]) -> AsyncIterator[str]:
    """Yield the wanted folders that exist."""
    waiting = deque([""])
    while waiting:
        folder = waiting.popleft()
        if folder in wanted:
            yield folder
        start = f"{folder}/" if folder else ""
        if any(each.startswith(start) and each != folder for each in wanted):
            async for below in client.files.folders(bucket_id, folder):
                if any(each == below.path or each.startswith(f"{below.path}/") for each in wanted):
                    waiting.append(below.path)
