"""`filestore://BUCKET/NAME` for fsspec, and so for pandas, dask and others.

Buckets are directories of the root. A file is in its bucket under its name, which contains no '/'. Names are
not unique: a path means the newest available file with the name, and `filestore://BUCKET/NAME?id=FILE_UUID`
is exact. Writing creates a new file, and deleting the newest one makes the one before visible. There are no
deeper directories, and no transactions. fsspec's own documentation says what each method does.

A `with` statement that is left by an exception stores nothing, however its file was opened and wrapped.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import get_compression, has_magic
from fsspec.spec import AbstractFileSystem

from filestore_client.base.errors import Gone, NotFound
from filestore_client.base.records import Bucket, FileSummary, Kind
from filestore_client.blocking import Client
from filestore_client.client import connection_from_environment
from filestore_client.filesystem_files import CompressedFile, ReadFile, WrittenFile

_BY_ID = re.compile(r"([^/]+/.+)\?id=([0-9A-Fa-f-]{36})", re.DOTALL)  # a bucket may have such a name


class FilestoreFileSystem(AbstractFileSystem):
    """The files of a cluster, by bucket and name.

    `urls`, `root_pem`, `token`: as of Client; left out, as `Client.from_environment` finds them.
    `kind`: of new files. `auto_mkdir`: whether writing makes buckets that are missing.

    Raises what Client does, and FileNotFoundError.
    """

    protocol: ClassVar[str] = "filestore"
    root_marker = ""

    def __init__(
        self,
        urls: Any = None,
        *,
        root_pem: str | None = None,
        token: str | None = None,
        kind: Kind = "backup",
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        given = {"urls": urls, "root_pem": root_pem, "token": token}
        known = {name: value for name, value in given.items() if value is not None}
        if len(known) < len(given):
            known = connection_from_environment() | known
        self.client = Client(**known)
        self.kind = kind
        self.auto_mkdir = auto_mkdir

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """The path without `filestore://`, and without slashes at its ends."""
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return str(path).removeprefix("filestore://").strip("/")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The buckets, or the files of one: the newest of each name."""
        bucket_name, name, file_uuid = _parts(self._strip_protocol(path))
        if not bucket_name:
            buckets = self.client.buckets.list()  # one with a "/" in its name has no path here
            found = [_of_bucket(bucket) for bucket in buckets if "/" not in bucket.name]
        else:
            bucket = self._bucket(bucket_name)
            files = self._files(bucket, name, file_uuid)
            if name and not files:
                raise FileNotFoundError(path)
            found = [_of_file(bucket, file) for file in files.values()]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe a path: `name`, `size`, `type`, and for files `file_uuid`, `sha256`, `created`."""
        bucket_name, name, file_uuid = _parts(self._strip_protocol(path))
        if not bucket_name:
            return {"name": "", "size": 0, "type": "directory"}
        bucket = self._bucket(bucket_name)
        if not name:
            return _of_bucket(bucket)
        files = self._files(bucket, name, file_uuid)
        if name not in files:
            raise FileNotFoundError(path)
        return _of_file(bucket, files[name])

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether a path exists. Raises the errors of Client if that is unknown."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> list[str]:
        """Return the paths that patterns stand for. A path that exists as it is is no pattern."""
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        paths = [str(self._strip_protocol(each)) for each in given]
        literal = [each for each in paths if self._is_literal(each)]
        found = set(literal)
        if recursive:
            for bucket in (each for each in literal if "/" not in each):
                found.update(self.find(bucket, maxdepth=maxdepth, withdirs=True))
        others = [each for each in paths if each not in literal]
        if others or not literal:
            found.update(super().expand_path(others, recursive, maxdepth, **options))
        return sorted(found)

    def copy(self, path1: Any, path2: Any, *arguments: Any, **options: Any) -> None:
        """Copy what a path or a pattern stands for; see fsspec."""
        super().copy(*self._pair(path1, path2, self.isdir), *arguments, **options)

    def _is_literal(self, path: str) -> bool:
        """Return whether a path looks like a pattern and exists.

        Raises the errors of Client if that is unknown.
        """
        return has_magic(path) and (_BY_ID.fullmatch(path) is not None or self.exists(path))

    def _pair(self, source: Any, target: Any, is_directory: Callable[[str], bool]) -> tuple[Any, Any]:
        """Return lists of one for a file that looks like a pattern: fsspec would put it below `target`."""
        path = "" if isinstance(source, list) else self._strip_protocol(source)
        if "/" not in path or isinstance(target, list) or not self._is_literal(path):
            return source, target
        into = str(target)
        if into.endswith("/") or is_directory(into):
            into = into.rstrip("/") + "/" + self.info(path)["name"].rpartition("/")[2]
        return [path], [into]

    def created(self, path: str) -> datetime:
        """When the file was made."""
        return datetime.fromisoformat(self.info(path)["created"])

    def modified(self, path: str) -> datetime:
        """Return the time of creation, as content never changes."""
        return self.created(path)

    def checksum(self, path: str) -> str:
        """The sha256 of the content."""
        return str(self.info(path)["sha256"])

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:  # noqa: ARG002
        """Make a bucket. Raises FileExistsError, and OSError for a directory in a bucket."""
        bucket_name, name, _ = _parts(self._strip_protocol(path))
        if name:
            raise OSError(f"{path}: a bucket has no directories")
        if not bucket_name or self.client.buckets.find(bucket_name) is not None:
            raise FileExistsError(path)
        self.client.buckets.create(bucket_name)
        self.invalidate_cache()

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a bucket, unless it may exist."""
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str) -> None:
        """Delete an empty bucket. Raises FileNotFoundError, Conflict."""
        self.client.buckets.delete(self._bucket(self._strip_protocol(path)).bucket_id)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, and if `recursive` also buckets with their files. Not all buckets at once."""
        for each in self.expand_path(path, maxdepth=maxdepth):
            bucket_name, name, _ = _parts(each)
            if recursive and not bucket_name:
                raise ValueError("deleting every bucket is not done in one call")
            if name or not recursive:
                self.rm_file(each)
                continue
            for file in self.client.files.in_bucket(self._bucket(bucket_name).bucket_id):
                with suppress(NotFound, Gone):  # another client was faster
                    self.client.files.delete(file.file_uuid)
            self.rmdir(each)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Make an empty file. Raises NotImplementedError for other than that: content never changes."""
        if not truncate:
            raise NotImplementedError("the times of a file cannot be changed")
        self.pipe_file(path, b"")

    def rm_file(self, path: str) -> None:
        """Delete a file: the newest of its name, or the one that `?id=` names. Raises FileNotFoundError."""
        entry = self.info(path)
        if entry["type"] == "directory":
            raise IsADirectoryError(path)
        self.client.files.delete(entry["file_uuid"])

    _rm = rm_file

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **options: Any,
    ) -> Any:
        """Download what a path or a pattern stands for; see fsspec.

        Raises ValueError for a hidden file that the caller did not name.
        """
        given = [rpath] if isinstance(rpath, (str, os.PathLike)) else rpath
        named = {str(self._strip_protocol(each)) for each in given}
        buckets = {_parts(each)[0] for each in named}
        if recursive or any(has_magic(each) for each in named):
            for path in self.expand_path(rpath, recursive=recursive, maxdepth=maxdepth):
                bucket, name, _ = _parts(path)
                is_hidden = name.startswith(".") or (bucket.startswith(".") and bucket not in buckets)
                if path not in named and is_hidden:
                    raise ValueError(f"{path} is a hidden file; download it by its name")
        source, target = self._pair(rpath, lpath, os.path.isdir)
        return super().get(source, target, recursive, callback, maxdepth, **options)

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **_: Any
    ) -> None:
        """Download to a path or an open file: over several connections, and the checksum is compared."""
        entry = self.info(rpath)
        target = lpath if hasattr(lpath, "write") else outfile
        if entry["type"] == "directory":
            Path(lpath).mkdir(parents=True, exist_ok=True)
            return
        if target is None:
            target = Path(lpath)
            target.parent.mkdir(parents=True, exist_ok=True)
        callback.set_size(entry["size"])
        self.client.files.download(
            entry["file_uuid"], target, progress=lambda done_bytes, _: callback.absolute_update(done_bytes)
        )

    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **options: Any,
    ) -> None:
        """Upload a file, or resume its upload. A missing bucket is created."""
        bucket_name, name, _ = _parts(self._strip_protocol(rpath))
        if Path(lpath).is_dir():
            self.makedirs(rpath, exist_ok=True)
            return
        if not name:
            raise IsADirectoryError(rpath)
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(rpath)
        self.makedirs(bucket_name, exist_ok=True)
        callback.set_size(Path(lpath).stat().st_size)
        self.client.files.upload(
            Path(lpath),
            kind=self.kind,
            filename=name,
            bucket_id=self._bucket(bucket_name).bucket_id,
            progress=lambda done_bytes, _: callback.absolute_update(done_bytes),
            **_fields(options),
        )

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy through this machine. Equal content is stored once in the cluster."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while part := source.read(1 << 20):
                target.write(part)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Bytes `start` to `end` (excluded) of a file; those below 0 count from its end."""
        entry = self.info(path)
        if entry["type"] == "directory":
            raise IsADirectoryError(path)
        size_bytes = entry["size"]
        first = _absolute(start or 0, size_bytes)
        stop = size_bytes if end is None else _absolute(end, size_bytes)
        if first >= stop:
            return b""
        return b"".join(self.client.files.read(entry["file_uuid"], first, stop))

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
        path = self._strip_protocol(path)
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
        bucket_name, name, _ = _parts(path)
        if not name:
            raise IsADirectoryError(path)
        if self.auto_mkdir:
            self.makedirs(bucket_name, exist_ok=True)
        bucket_id = self._bucket(bucket_name).bucket_id
        files = self.client.files
        opening = files.inner.open(name, "wb", kind=self.kind, bucket_id=bucket_id, **_fields(options))
        return WrittenFile(self, path, files.loop.run(opening), files.loop)

    def _bucket(self, name: str) -> Bucket:
        """Raises FileNotFoundError."""
        found = self.client.buckets.find(name) if name else None
        if found is None:
            raise FileNotFoundError(name)
        return found

    def _files(self, bucket: Bucket, name: str, file_uuid: str) -> Mapping[str, FileSummary]:
        """The newest available file of each name, or of this one; or exactly one."""
        found: dict[str, FileSummary] = {}
        for file in self._listed(bucket, name):
            if (not name or file.filename == name) and file_uuid in ("", file.file_uuid):
                found[file.filename] = file  # in the order of their making
        return found

    def _listed(self, bucket: Bucket, name: str) -> Iterator[FileSummary]:
        filters = {"status": "available", **({"filename": name} if name else {})}
        try:
            yield from self.client.files.in_bucket(bucket.bucket_id, **filters)
        except NotFound as error:
            raise FileNotFoundError(bucket.name) from error


_FIELDS = frozenset({"retention_period", "content_type", "project_id", "virt_type", "format", "backup_type"})


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec that are fields of a new record."""
    return {name: value for name, value in options.items() if name in _FIELDS}


def _parts(path: str) -> tuple[str, str, str]:
    """Bucket, name and file_uuid, each "" where the path says none.

    Raises FileNotFoundError for deeper ones.
    """
    found = _BY_ID.fullmatch(path)
    plain, file_uuid = found.groups() if found else (path, "")
    bucket, _, name = plain.partition("/")
    if "/" in name:
        raise FileNotFoundError(path)
    return bucket, name, file_uuid.lower()


def _of_bucket(bucket: Bucket) -> dict[str, Any]:
    return {"name": bucket.name, "size": 0, "type": "directory", "bucket_id": bucket.bucket_id}


def _of_file(bucket: Bucket, file: FileSummary) -> dict[str, Any]:
    path = f"{bucket.name}/{file.filename}"
    return {
        "name": f"{path}?id={file.file_uuid}" if _BY_ID.fullmatch(path) else path,  # not another file's path
        "size": file.size_bytes,
        "type": "file",
        "file_uuid": file.file_uuid,
        "sha256": file.blob_sha256,
        "created": file.created_at,
        "content_type": file.content_type,
    }


def _absolute(position: int, size_bytes: int) -> int:
    return max(size_bytes + position, 0) if position < 0 else min(position, size_bytes)
