"""Many files at once for the file system for fsspec: up, down, copied, renamed and deleted.

fsspec decides which file goes where, in `Plan`; this module carries it out, several files at a time.

Tested by tests/cluster/test_client_trees.py.
"""

import errno
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fsspec.core import has_magic
from fsspec.spec import AbstractFileSystem

from filestore_client.base.errors import Gone, NotFound
from filestore_client.base.records import Content, FileSummary, Kind, User
from filestore_client.blocking import Client
from filestore_client.file_batch import delete_files, for_each, with_owners
from filestore_client.filesystem_lists import Lists, exists
from filestore_client.filesystem_paths import (
    Entry,
    Place,
    as_list,
    below,
    is_directory,
    of_file,
    place_of,
    record_fields,
    stripped,
)
from filestore_client.kinds import DEFAULT_BUCKET_ID

Pair = tuple[str, str]  # source and target


class Plan(AbstractFileSystem):
    """Which file goes where by the rules of fsspec. Nothing is moved here.

    `pairs`: source and target of each file and directory; `entries`: of paths that were looked up.
    """

    cachable: ClassVar[bool] = False

    def __init__(
        self,
        describe: Callable[[str], Entry | None],
        expand: Callable[[Any, bool, int | None], Mapping[str, Entry | None]],
    ) -> None:
        """`describe`: the entry of a path, None if there is none. `expand`: see `FilestoreFileSystem`."""
        super().__init__()
        self._describe, self._expand = describe, expand
        self.pairs: list[Pair] = []
        self.entries: dict[str, Entry] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return [stripped(each) for each in path] if isinstance(path, list) else stripped(path)

    def isdir(self, path: str) -> bool:
        """Return whether this is a directory of the file system."""
        name = stripped(path)
        entry = self.entries.get(name) or self._describe(name)
        if entry is not None:
            self.entries[name] = entry
        return entry is not None and is_directory(entry)

    def expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> list[str]:
        """Return the paths that patterns stand for, and keep what is known of each."""
        found = self._expand(path, recursive, maxdepth)
        self.entries.update({name: entry for name, entry in found.items() if entry is not None})
        return sorted(found)

    def put_file(self, lpath: Any, rpath: str, **_: Any) -> None:
        """Note it."""
        self.pairs.append((str(lpath), stripped(rpath)))

    def get_file(self, rpath: str, lpath: Any, **_: Any) -> None:
        """Note it."""
        self.pairs.append((stripped(rpath), lpath))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Note it."""
        self.pairs.append((stripped(path1), stripped(path2)))

    def hidden(self, path: Any) -> str:
        """Return a source with a hidden name that the caller did not spell out in `path`, "" if none has."""
        given = as_list(path)
        roots = [self._root(each) for each in given]
        for source in sorted({source for source, _ in self.pairs} - {*given}):
            ways = [below(source, root) for root in roots if source == root or below(source, root)]
            if all(any(part.startswith(".") for part in way.split("/")) for way in ways or [source]):
                return source
        return ""

    def _root(self, given: str) -> str:
        """Return the part of a path that is no pattern."""
        if given in self.entries or not has_magic(given):
            return given
        return "/".join(itertools.takewhile(lambda part: not has_magic(part), given.split("/")))


class Trees:
    """Carries out plans. Raises FilestoreError, OSError: the first failure, which ends the others.

    `of_others`: whether files of other users are changed too; see `require_own`.
    """

    def __init__(self, client: Client, lists: Lists, kind: Kind, *, of_others: bool) -> None:
        self._files, self._lists, self._kind = client.files.inner, lists, kind
        self._users, self._of_others = client.users.inner, of_others
        self._user: User | None = None
        self._kinds: dict[str, Any] = {
            "project": client.projects.inner,
            "image": client.images.inner,
            "backup": client.backups.inner,
        }

    async def put(self, pairs: Sequence[Pair], callback: Any, options: Mapping[str, Any]) -> None:
        """Upload files, and resume their uploads. Buckets exist; directories need not be made."""

        async def put_one(pair: Pair) -> None:
            with callback.branched(*pair) as child:
                await self.put_file(*pair, child, options)
            callback.relative_update(1)

        await for_each(pairs, put_one)

    async def put_file(self, source: str, target: str, callback: Any, options: Mapping[str, Any]) -> None:
        """Upload a file, or resume its upload."""
        path, place = Path(source), place_of(target)
        if path.is_dir():
            return
        if not place.name:
            raise IsADirectoryError(target)
        if options.get("mode") == "create" and await exists(self._lists, place):
            raise FileExistsError(target)
        callback.set_size(path.stat().st_size)
        await self._files.upload(
            path,
            progress=lambda done_bytes, _: callback.absolute_update(done_bytes),
            **await self._new_file(place),
            **record_fields(options),
        )

    async def get(
        self, pairs: Sequence[tuple[str, Any]], entries: Mapping[str, Entry], callback: Any
    ) -> None:
        """Download files, and make directories."""

        async def get_one(pair: tuple[str, Any]) -> None:
            with callback.branched(*pair) as child:
                entry = entries.get(pair[0]) or await self._lists.required(pair[0])
                await self.get_file(entry, pair[1], child)
            callback.relative_update(1)

        await for_each(pairs, get_one)

    async def get_file(self, entry: Entry, target: Any, callback: Any) -> None:
        """Download to a path or an open file: over several connections, and the checksum is compared."""
        if is_directory(entry):
            Path(target).mkdir(parents=True, exist_ok=True)
            return
        if not hasattr(target, "write"):
            target = Path(target)
            target.parent.mkdir(parents=True, exist_ok=True)
        callback.set_size(entry["size"])
        await self._files.download(
            entry["file_uuid"],
            target,
            progress=lambda done_bytes, _: callback.absolute_update(done_bytes),
            content=content_of(entry),
        )

    async def copy(
        self, pairs: Sequence[Pair], entries: Mapping[str, Entry], *, is_missing_ignored: bool
    ) -> None:
        """Copy files through this machine. Raises FileNotFoundError for a missing bucket to copy to."""
        for bucket in sorted({place_of(target).bucket for _, target in pairs}):
            await self._lists.bucket(bucket)

        async def copy_one(pair: Pair) -> None:
            try:
                entry = entries.get(pair[0]) or await self._lists.required(pair[0])
                await self.copy_file(entry, place_of(pair[1]))
            except (FileNotFoundError, NotFound, Gone) as error:
                if not is_missing_ignored:
                    raise FileNotFoundError(pair[0]) from error

        await for_each(pairs, copy_one)

    async def copy_file(self, entry: Entry, target: Place) -> None:
        """Copy a file through this machine. Equal content is stored once in the cluster."""
        if is_directory(entry):
            return
        if not target.name:
            raise IsADirectoryError(target.bucket)
        content = self._files.read(entry["file_uuid"], content=content_of(entry))
        await self._files.upload(content, **await self._new_file(target))

    async def move(self, pairs: Sequence[Pair], entries: Mapping[str, Entry]) -> None:
        """Rename files with all their versions; into another bucket they are copied, and deleted here.

        Raises PermissionError before anything is moved; see `require_own`.
        """
        versions = await self._versions_of(pairs, entries)
        for source, files in versions.items():
            await self.require_own(source, files)

        async def move_one(pair: Pair) -> None:
            source, target = map(place_of, pair)
            if (source.bucket, source.inside) != (target.bucket, target.inside):
                await self._move_file(source, versions[pair[0]], target)

        await for_each([pair for pair in pairs if pair[0] in versions], move_one)

    async def _versions_of(
        self, pairs: Sequence[Pair], entries: Mapping[str, Entry]
    ) -> dict[str, list[FileSummary]]:
        """Return the files to move by their paths, oldest first: one list for each topmost directory."""
        found: dict[str, list[FileSummary]] = defaultdict(list)
        listed: list[str] = []
        for source, _ in sorted(pairs):
            if any(below(source, directory) for directory in listed):
                continue
            if is_directory(entries.get(source) or await self._lists.required(source)):
                listed.append(source)
                for file in await self._lists.below(place := place_of(source)):
                    found[of_file(place.bucket, file)["name"]].append(file)
            else:
                found[source] = await self._lists.versions(place_of(source))
        return found

    async def _move_file(self, source: Place, files: Sequence[FileSummary], target: Place) -> None:
        """Rename a file, oldest version first. The newest stays the newest, even if others have the name."""
        if not target.name:
            raise IsADirectoryError(target.bucket)
        if source.bucket != target.bucket:
            for file in files:
                await self.copy_file(of_file(source.bucket, file), target)
            await self.delete(files)
            return
        has_others = bool(await self._lists.versions(target))
        for file in files:
            await self._rename(file, target)
        if has_others and (await self._lists.versions(target))[-1].file_uuid != files[-1].file_uuid:
            await self.copy_file(of_file(source.bucket, files[-1]), target)
            await self.delete(files[-1:])

    async def _rename(self, file: FileSummary, target: Place) -> None:
        fields = {"filename": target.name}
        if file.path != target.folder:
            fields["path"] = target.folder or "/"
        await self._kinds.get(file.kind, self._files).update(file.file_uuid, **fields)

    async def delete(self, files: Sequence[FileSummary]) -> None:
        """Delete files, a backup after those that build on it. Raises Conflict if other files build on it."""
        for refusal in (await delete_files(files, self._files.delete)).values():
            raise refusal

    async def require_own(self, path: str, files: Sequence[FileSummary]) -> None:
        """Raises PermissionError if these files of a path belong to others who gave the caller no rights.

        In the default bucket the files of all users have one tree, and an admin may change all of them there
        and in the buckets of others.
        """
        if self._of_others or not files:
            return
        self._user = user = self._user or await self._users.whoami()
        bucket = await self._lists.bucket(place_of(path).bucket)
        is_admin = "admin" in user.roles and bucket.owner_id != user.user_id
        if bucket.bucket_id != DEFAULT_BUCKET_ID and not is_admin:
            return
        known = await with_owners(files, self._files.get)
        others = sorted({file.owner_id for file in known} - {user.user_id})
        if others:
            told = f"it has files of {', '.join(others)}; of_others=True changes them too"
            raise PermissionError(errno.EPERM, told, stripped(path))

    async def _new_file(self, place: Place) -> dict[str, Any]:
        """Return the fields of a new file there. Raises FileNotFoundError for a missing bucket."""
        return new_file_fields(place, (await self._lists.bucket(place.bucket)).bucket_id, self._kind)


def content_of(entry: Entry) -> Content:
    """Return what the client needs to know of a file before it reads it."""
    name = entry["name"].rpartition("/")[2]
    return Content(size_bytes=entry["size"], sha256=entry["sha256"], filename=name)


def new_file_fields(place: Place, bucket_id: str, kind: Kind) -> dict[str, Any]:
    """Return the fields of a new file there."""
    folder = {"path": place.folder} if place.folder else {}
    return {"kind": kind, "filename": place.name, "bucket_id": bucket_id, **folder}
