"""`filestore://BUCKET/FOLDER/NAME` for fsspec, and so for pandas, dask, zarr, pyarrow and others.

Buckets are directories of the root, and folders are directories in them. A folder exists as long as a file is
in it or below it: writing a file makes its folders, `mkdir` of one in a bucket changes nothing, and a folder
whose last file is deleted is gone, as in object stores.

Names are not unique: a path means the newest available file with the name, and
`filestore://BUCKET/FOLDER/NAME?id=FILE_UUID` is exact. Writing creates a new file and keeps the ones
before, which `rm` deletes with it and `mv` moves with it. A file and a folder may have the same path: `info`
describes the file, `ls` and `find` list the folder. There are no transactions. fsspec's own documentation
says what each method does.

A `with` statement that is left by an exception stores nothing, however its file was opened and wrapped.

Tested by tests/cluster/test_client_filesystem.py.
"""

import errno
import os
from collections.abc import Callable
from typing import Any, ClassVar

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import get_compression, has_magic

from filestore_client.base.records import FileSummary, Kind
from filestore_client.blocking import Client
from filestore_client.client import connection_from_environment
from filestore_client.filesystem_files import CompressedFile, ReadFile, WrittenFile
from filestore_client.filesystem_lists import ListedFileSystem
from filestore_client.filesystem_paths import (
    Entry,
    Place,
    absolute,
    below,
    is_by_id,
    is_directory,
    joined,
    place_of,
    record_fields,
    stripped,
)
from filestore_client.filesystem_trees import Pair, Plan, Trees, content_of, new_file_fields


class FilestoreFileSystem(ListedFileSystem):
    """The files of a cluster, by bucket, folder and name.

    `urls`, `root_pem`, `token`: as of Client; left out, as `Client.from_environment` finds them.
    `kind`: of new files. `auto_mkdir`: whether writing makes buckets that are missing. `of_others`: whether
    `rm` and `mv` change files of other users too, in the default bucket, and as an admin in any bucket.

    Raises what Client does, FileNotFoundError, and PermissionError before files of other users are changed.
    """

    protocol: ClassVar[str] = "filestore"

    def __init__(
        self,
        urls: Any = None,
        *,
        root_pem: str | None = None,
        token: str | None = None,
        kind: Kind = "backup",
        auto_mkdir: bool = False,
        of_others: bool = False,
        **options: Any,
    ) -> None:
        given = {"urls": urls, "root_pem": root_pem, "token": token}
        known = {name: value for name, value in given.items() if value is not None}
        if len(known) < len(given):
            known = connection_from_environment() | known
        super().__init__(Client(**known), **options)
        self._trees = Trees(self.client, self._lists, kind, of_others=of_others)
        self.kind = kind
        self.auto_mkdir = auto_mkdir

    def _plan(self) -> Plan:
        return Plan(self._described, self._expanded)

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **_: Any,
    ) -> None:
        """Copy what a path or a pattern stands for, trees with `recursive`; see fsspec."""
        plan = self._plan()
        plan.copy(*self._pair(path1, path2, self.isdir), recursive, maxdepth)
        self._make_buckets(plan.pairs, plan.entries)
        is_missing_ignored = on_error == "ignore" or (on_error is None and recursive)
        self._run(self._trees.copy(plan.pairs, plan.entries, is_missing_ignored=is_missing_ignored))

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> None:
        """Rename what a path or a pattern stands for, trees with `recursive`.

        All versions of a file move with it. If there is a file of the new name already, the moved one is the
        newest. Only what goes into another bucket is copied.
        """
        if path1 == path2:
            return
        plan = self._plan()
        plan.copy(*self._pair(path1, path2, self.isdir), recursive, maxdepth)
        if not plan.pairs:
            raise IsADirectoryError(path1)
        self._make_buckets(plan.pairs, plan.entries)
        self._run(self._trees.move(plan.pairs, plan.entries))
        for source, _target in plan.pairs:
            if not place_of(source).name and maxdepth is None:
                self.rm(source, recursive=True)

    def _make_buckets(self, pairs: list[Pair], entries: dict[str, Entry]) -> None:
        """Make the missing buckets that directories are copied to, and with `auto_mkdir` all."""
        targets = [
            place_of(target)
            for source, target in pairs
            if self.auto_mkdir or (source in entries and is_directory(entries[source]))
        ]
        for bucket in sorted({place.bucket for place in targets if self.auto_mkdir or not place.name}):
            self.makedirs(bucket, exist_ok=True)

    def _pair(self, source: Any, target: Any, is_directory_at: Callable[[str], bool]) -> tuple[Any, Any]:
        """Return lists of one for a file that looks like a pattern: fsspec would put it below `target`."""
        path = "" if isinstance(source, list) else stripped(source)
        if "/" not in path or isinstance(target, list) or not has_magic(path):
            return source, target
        entry = self._described(path)
        if entry is None or (is_directory(entry) and not is_by_id(path)):
            return source, target
        into = str(target)
        if into.endswith("/") or is_directory_at(into):
            into = into.rstrip("/") + "/" + entry["name"].rpartition("/")[2]
        return [path], [into]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Make a bucket. Raises FileExistsError for what exists.

        A folder in a bucket needs no making, and is there once a file is in it: for one this makes only its
        bucket, if that is missing, or without `create_parents` raises FileNotFoundError.
        """
        place = place_of(path)
        if not place.bucket or (place.name and self.exists(path)):
            raise FileExistsError(path)
        is_missing = self.client.buckets.find(place.bucket) is None
        if not place.name and not is_missing:
            raise FileExistsError(path)
        if place.name and is_missing and not create_parents:
            raise FileNotFoundError(place.bucket)
        if is_missing:
            self.client.buckets.create(place.bucket)
            self._lists.forget(place.bucket)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a bucket, unless it may exist; see `mkdir` for folders."""
        place = place_of(path)
        if exist_ok and place.name:
            path = place.bucket
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str) -> None:
        """Delete an empty bucket. Raises FileNotFoundError, Conflict; OSError for a folder that has files.

        No error for a folder without files, which does not exist.
        """
        place = place_of(path)
        bucket = self._run(self._lists.bucket(place.bucket, is_fresh=True))
        if place.name:
            entry = self._run(self._lists.entry(place))
            if entry is not None:
                is_file = not is_directory(entry)
                raise NotADirectoryError(path) if is_file else OSError(errno.ENOTEMPTY, "not empty", path)
            return
        self.client.buckets.delete(bucket.bucket_id)
        self._lists.forget(place.bucket)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, and if `recursive` also folders and buckets with their files.

        With every version of each file, and uploads that are under way in a folder. Not all buckets at once.
        """
        trees: list[str] = []
        found: list[tuple[str, list[FileSummary]]] = []
        for each in self.expand_path(path, maxdepth=maxdepth):
            place = place_of(each)
            if any(below(each, directory) for directory in trees):
                continue
            if recursive and not place.bucket:
                raise ValueError("deleting every bucket is not done in one call")
            if recursive and not place.file_uuid:
                found.append((each, self._below_or_at(each, place, maxdepth)))
                trees.append(each)
            else:
                found.append((each, self._versions(each, place)))
        for each, files in found:
            self._run(self._trees.require_own(each, files))
        for each, files in found:
            self._run(self._trees.delete(files))
            if each in trees and not place_of(each).name and maxdepth is None:
                self.rmdir(each)

    def _below_or_at(self, path: str, place: Place, maxdepth: int | None) -> list[FileSummary]:
        """Return the files at a place and below it, to this depth. Raises FileNotFoundError."""
        self._run(self._lists.bucket(place.bucket, is_fresh=True))
        files = self._run(self._lists.below(place, status=""))
        if maxdepth is not None:
            start = len(place.inside) + 1 if place.inside else 0
            insides = [(joined(file.path, file.filename), file) for file in files]
            files = [file for inside, file in insides if inside.count("/", start) < maxdepth]
        if place.name:
            files += self._run(self._lists.versions(place))
            if not files:
                self.info(path)
        return files

    def _versions(self, path: str, place: Place) -> list[FileSummary]:
        """Return the files of a path. Raises FileNotFoundError, IsADirectoryError."""
        self._run(self._lists.bucket(place.bucket, is_fresh=True))
        files = self._run(self._lists.versions(place)) if place.name else []
        if not files:
            self.info(path)
            raise IsADirectoryError(path)
        return files

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Make an empty file. Raises NotImplementedError for other than that: content never changes."""
        if not truncate:
            raise NotImplementedError("the times of a file cannot be changed")
        self.pipe_file(path, b"")

    def rm_file(self, path: str) -> None:
        """Delete a file with every version of it, or only the one that `?id=` names.

        Raises FileNotFoundError, IsADirectoryError.
        """
        files = self._versions(path, place_of(path))
        self._run(self._trees.require_own(path, files))
        self._run(self._trees.delete(files))

    _rm = rm_file

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        hidden: bool = False,
        **_: Any,
    ) -> None:
        """Download what a path or a pattern stands for, trees with `recursive`; see fsspec. Several at once.

        Raises ValueError for a hidden file or folder that the caller did not name, unless `hidden` is true.
        """
        plan = self._plan()
        source, target = self._pair(rpath, lpath, os.path.isdir)
        plan.get(source, target, recursive, maxdepth=maxdepth)
        if not hidden and (path := plan.hidden(rpath)):
            raise ValueError(f"{path} is hidden; download it by its name, or with hidden=True")
        callback.set_size(len(plan.pairs))
        self._run(self._trees.get(plan.pairs, plan.entries, callback))

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **_: Any
    ) -> None:
        """Download to a path or an open file: over several connections, and the checksum is compared."""
        is_file = hasattr(lpath, "write") or outfile is None
        self._run(self._trees.get_file(self.info(rpath), lpath if is_file else outfile, callback))

    def put(
        self,
        lpath: Any,
        rpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        """Upload files, trees with `recursive`; see fsspec. Several at once. Missing buckets are created.

        An empty local directory is not stored. The same call resumes an interrupted one.
        """
        plan = self._plan()
        plan.put(lpath, rpath, recursive, maxdepth=maxdepth)
        for bucket in sorted({place_of(target).bucket for _, target in plan.pairs}):
            self.makedirs(bucket, exist_ok=True)
        callback.set_size(len(plan.pairs))
        self._run(self._trees.put(plan.pairs, callback, options))

    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **options: Any,
    ) -> None:
        """Upload a file, or resume its upload. A missing bucket is created."""
        self.makedirs(place_of(rpath).bucket, exist_ok=True)
        self._run(self._trees.put_file(lpath, rpath, callback, {**options, "mode": mode}))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy through this machine. Equal content is stored once in the cluster."""
        pairs = [(stripped(path1), stripped(path2))]
        entries = {pairs[0][0]: self.info(path1)}
        self._make_buckets(pairs, entries)
        self._run(self._trees.copy(pairs, entries, is_missing_ignored=False))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Bytes `start` to `end` (excluded) of a file; those below 0 count from its end."""
        entry = self.info(path)
        if entry["type"] == "directory":
            raise IsADirectoryError(path)
        size_bytes = entry["size"]
        first = absolute(start or 0, size_bytes)
        stop = size_bytes if end is None else absolute(end, size_bytes)
        if first >= stop:
            return b""
        return b"".join(self.client.files.read(entry["file_uuid"], first, stop, content=content_of(entry)))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Make a file of these bytes. Mode `create` raises FileExistsError where there is one of the name."""
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        with self.open(path, "wb") as target:
            target.write(value)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """A file of the cluster; see fsspec. One that is left by an exception is not stored, in text too."""
        codec = get_compression(self._strip_protocol(path), compression)
        if codec is None or "r" in mode or "b" not in mode:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        return CompressedFile(super().open(path, mode, **options), codec)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """A file of the cluster, for `rb` and `wb`; `xb` raises FileExistsError where there is one."""
        path = stripped(path)
        if not options.get("autocommit", True):
            raise NotImplementedError("several files cannot become available at one moment")
        if mode == "rb":
            entry = self.info(path)
            if entry["type"] == "directory":
                raise IsADirectoryError(path)
            return ReadFile(self, path, entry, **options)
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        if mode not in ("wb", "xb"):
            raise ValueError(f"{path}: mode {mode!r} is none of rb, wb, xb: content never changes")
        place = place_of(path)
        if not place.name:
            raise IsADirectoryError(path)
        if self.auto_mkdir:
            self.makedirs(place.bucket, exist_ok=True)
        bucket_id = self._run(self._lists.bucket(place.bucket)).bucket_id
        fields = new_file_fields(place, bucket_id, self.kind) | record_fields(options)
        files = self.client.files
        opening = files.inner.open(fields.pop("filename"), "wb", **fields)
        return WrittenFile(self, path, files.loop.run(opening), files.loop)
