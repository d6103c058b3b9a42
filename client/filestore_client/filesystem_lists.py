"""Lists of the file system for fsspec: buckets, folders and files, and which file a path means.

Tested by tests/cluster/test_client_filesystem.py.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar

from fsspec.core import has_magic
from fsspec.spec import AbstractFileSystem

from filestore_client.base.errors import InvalidRequest, NotFound
from filestore_client.base.records import Bucket, FileSummary, Folder
from filestore_client.blocking import Client
from filestore_client.filesystem_paths import (
    Entry,
    Place,
    as_list,
    folders_above,
    is_by_id,
    is_directory,
    joined,
    of_bucket,
    of_file,
    of_folder,
    place_of,
    stripped,
)

BUCKET_KEPT_S: Final = 5.0  # what a name stands for is known this long: otherwise each call asks twice
T = TypeVar("T")


class Lists:
    """The lists of a cluster, by path. Raises FileNotFoundError, and what the client does."""

    def __init__(self, client: Client) -> None:
        self._files, self._buckets = client.files.inner, client.buckets.inner
        self._known: dict[str, tuple[float, Bucket]] = {}

    async def buckets(self) -> list[Bucket]:
        """Return the buckets. One with a "/" in its name has no path here."""
        return [bucket async for bucket in self._buckets.list() if "/" not in bucket.name]

    async def bucket(self, name: str, *, is_fresh: bool = False) -> Bucket:
        """Return the bucket of this name. `is_fresh`: ask the cluster even if it is known."""
        asked_s, known = self._known.get(name, (0.0, None))
        if known is not None and not is_fresh and time.monotonic() - asked_s < BUCKET_KEPT_S:
            return known
        asked_s = time.monotonic()
        found = await self._buckets.find(name) if name else None
        if found is None:
            self.forget(name)
            raise FileNotFoundError(name)
        self._known[name] = (asked_s, found)
        return found

    def forget(self, name: str) -> None:
        """Forget what the name of a bucket stands for."""
        self._known.pop(name, None)

    async def versions(self, place: Place) -> list[FileSummary]:
        """Return the available files of a path, oldest first, or the one that it names exactly."""
        named = {"path": place.folder or "/", "name": place.name}
        files = await self._listed(place.bucket, status="available", **named)
        return [file for file in files if place.file_uuid in ("", file.file_uuid)]

    async def below(self, place: Place, *, status: str = "available") -> list[FileSummary]:
        """Return the files in a folder or bucket and everywhere below it, oldest first."""
        inside = {"path": place.inside, "recursive": "1"} if place.inside else {}
        return await self._listed(place.bucket, status=status, **inside)

    async def is_folder(self, place: Place) -> bool:
        """Return whether a file is in this folder, or below it. One that is being uploaded counts too."""

        async def has_files(bucket: Bucket) -> bool:
            files = self._files.in_bucket(bucket.bucket_id, path=place.inside, limit="1")
            return await _has_any(files)

        async def has_folders(bucket: Bucket) -> bool:
            return await _has_any(self._files.folders(bucket.bucket_id, place.inside))

        async def either(bucket: Bucket) -> bool:
            return any(await asyncio.gather(has_files(bucket), has_folders(bucket)))

        if not place.inside or place.file_uuid:
            return not place.inside
        return await self._with_bucket(place.bucket, either)

    async def entry(self, place: Place) -> Entry | None:
        """Describe what is at a place: the newest file of the path, or else the folder; None for neither."""
        if not place.bucket:
            return of_folder("")
        if not place.name:
            return of_bucket(await self.bucket(place.bucket, is_fresh=True))
        if files := await self.versions(place):
            return of_file(place.bucket, files[-1])
        if await self.is_folder(place):
            return of_folder(joined(place.bucket, place.inside))
        return None

    async def required(self, path: str) -> Entry:
        """Describe a path. Raises FileNotFoundError."""
        entry = await self.entry(place_of(path))
        if entry is None:
            raise FileNotFoundError(stripped(path))
        return entry

    async def children(self, place: Place) -> list[Entry]:
        """Describe what is directly in a folder or bucket, by name: the newest file of each name."""

        async def both(bucket: Bucket) -> tuple[list[FileSummary], list[str]]:
            files = self._files.in_bucket(bucket.bucket_id, path=place.inside or "/", status="available")
            folders = self._files.folders(bucket.bucket_id, place.inside)
            return await asyncio.gather(_all(files), _names(folders))

        files, folders = await self._with_bucket(place.bucket, both)
        newest = {file.filename: of_file(place.bucket, file) for file in files}
        paths = (joined(place.bucket, place.inside, name) for name in folders)
        found = [*newest.values(), *(of_folder(path) for path in paths if not is_by_id(path))]
        return sorted(found, key=lambda entry: str(entry["name"]))

    async def tree(self, place: Place, maxdepth: int | None = None) -> dict[str, Entry]:
        """Describe the files and folders below a place, by path: the newest file of each path.

        It is one list, however many folders there are; for the first level it is that of `children`.
        """
        if maxdepth == 1:
            return {entry["name"]: entry for entry in await self.children(place)}
        files = await self.below(place)
        start = len(place.inside) + 1 if place.inside else 0

        def is_shown(inside: str) -> bool:
            return maxdepth is None or inside.count("/", start) < maxdepth

        folders = sorted(folders_above((file.path for file in files), place.inside))
        paths = (joined(place.bucket, inside) for inside in folders if is_shown(inside))
        found = {path: of_folder(path) for path in paths if not is_by_id(path)}
        for file in files:
            if is_shown(joined(file.path, file.filename)):
                entry = of_file(place.bucket, file)
                found[entry["name"]] = entry
        return found

    async def _listed(self, bucket_name: str, **filters: str) -> list[FileSummary]:
        async def listed(bucket: Bucket) -> list[FileSummary]:
            return await _all(self._files.in_bucket(bucket.bucket_id, **filters))

        return await self._with_bucket(bucket_name, listed)

    async def _with_bucket(self, name: str, work: Callable[[Bucket], Awaitable[T]]) -> T:
        """Do this with a bucket; once more if what was known of it is no longer true."""
        known = await self.bucket(name)
        try:
            return await work(known)
        except NotFound:
            fresh = await self.bucket(name, is_fresh=True)
        try:
            return await work(fresh)
        except NotFound as error:
            raise FileNotFoundError(name) from error


class ListedFileSystem(AbstractFileSystem):
    """The part of the file system that only looks."""

    root_marker = ""

    def __init__(self, client: Client, **options: Any) -> None:
        super().__init__(**options)
        self.client = client
        self._lists = Lists(client)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """The path without `filestore://`, and without slashes at its ends."""
        return [stripped(each) for each in path] if isinstance(path, list) else stripped(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The buckets, or the folders and files that are directly in a bucket or folder, by name.

        Of several files with one name it is the newest. Of a file, that file.
        """
        place = place_of(path)
        if not place.bucket:
            found = [of_bucket(bucket) for bucket in self._run(self._lists.buckets())]
        else:
            found = [] if place.file_uuid else self._run(self._lists.children(place))
        if place.name and not found:
            entry = self.info(path)
            found = [] if is_directory(entry) else [entry]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> Entry:
        """Describe a path: `name`, `size`, `type`, and for files `file_uuid`, `sha256`, `created`."""
        return self._run(self._lists.required(path))

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether a path exists. Raises the errors of Client if that is unknown."""
        return self._described(path) is not None

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """The files in a directory and everywhere below it, from one list. Of a file, that file."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        place = place_of(path)
        try:
            found = self._below(place, maxdepth)
        except FileNotFoundError:
            found = {}
        if not withdirs:
            found = {name: entry for name, entry in found.items() if not is_directory(entry)}
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def _below(self, place: Place, maxdepth: int | None) -> dict[str, Entry]:
        """Describe what is below a place, and the directory there; or the file. Raises FileNotFoundError."""
        found: dict[str, Entry] = {}
        if not place.bucket:
            for bucket in self._run(self._lists.buckets()):
                if maxdepth == 1:
                    found[bucket.name] = of_bucket(bucket)
                else:
                    found |= self._below(Place(bucket.name), maxdepth and maxdepth - 1)
            return found
        if not place.file_uuid:
            found = self._run(self._lists.tree(place, maxdepth))
        if found or not place.name:
            return {joined(place.bucket, place.inside): of_folder(joined(place.bucket, place.inside))} | found
        entry = self._run(self._lists.entry(place))
        return {} if entry is None else {entry["name"]: entry}

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **_: Any,
    ) -> Any:
        """The bytes of the files in a directory and below it, from one list: the newest of each path."""
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: entry["size"] for name, entry in found.items()}
        return sum(sizes.values()) if total else sizes

    def expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> list[str]:
        """Return the paths that patterns stand for. A path that exists as it is is no pattern."""
        return sorted(self._expanded(path, recursive, maxdepth))

    def _expanded(self, path: Any, recursive: bool, maxdepth: int | None) -> dict[str, Entry | None]:
        """Return the same with what is known of each. Raises FileNotFoundError if there is none."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        found: dict[str, Entry | None] = {}
        for each in as_list(path):
            literal = self._described(each) if recursive or has_magic(each) else None
            if has_magic(each) and literal is None:
                matched = self.glob(each, maxdepth=maxdepth, detail=True)
                found |= matched
                inner = [name for name, entry in matched.items() if is_directory(entry)]
                depth = maxdepth and maxdepth - 1
            else:
                if literal is not None or not recursive:
                    found[each] = literal
                inner = [each]
                depth = maxdepth
            for directory in inner if recursive and depth != 0 else ():
                found |= self.find(directory, depth, withdirs=True, detail=True)
        if not found:
            raise FileNotFoundError(path)
        return found

    def _described(self, path: str) -> Entry | None:
        """Describe a path; None if there is nothing, and for a path that no file can have."""
        try:
            return self._run(self._lists.entry(place_of(path)))
        except (FileNotFoundError, InvalidRequest):
            return None

    def created(self, path: str) -> datetime:
        """When the file was made."""
        return datetime.fromisoformat(self.info(path)["created"])

    def modified(self, path: str) -> datetime:
        """Return the time of creation, as content never changes."""
        return self.created(path)

    def checksum(self, path: str) -> str:
        """The sha256 of the content."""
        return str(self.info(path)["sha256"])

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.client.files.loop.run(work)


async def exists(lists: Lists, place: Place) -> bool:
    """Return whether something is at a place. A path that no file can have is none."""
    try:
        return await lists.entry(place) is not None
    except (FileNotFoundError, InvalidRequest):
        return False


async def _all(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


async def _names(folders: AsyncIterator[Folder]) -> list[str]:
    """Return their names; none of a server of release 0.1.0, which knows no folders."""
    try:
        return [folder.name async for folder in folders]
    except NotFound:
        return []


async def _has_any(items: AsyncIterator[object]) -> bool:
    with suppress(NotFound):  # as above
        async for _ in items:
            return True
    return False
