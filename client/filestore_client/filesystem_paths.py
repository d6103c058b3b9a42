"""Paths of the file system for fsspec, and the entries that describe what they name. No I/O here.

Tested by tests/cluster/test_client_filesystem.py.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from filestore_client.base.errors import InvalidRequest
from filestore_client.base.records import Bucket, FileSummary

Entry = dict[str, Any]
_BY_ID = re.compile(r"([^/]+/.+)\?id=([0-9A-Fa-f-]{36})", re.DOTALL)  # a bucket may have such a name
_FIELDS = frozenset({"retention_period", "content_type", "project_id", "virt_type", "format", "backup_type"})


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of a path: a bucket, a folder in it, a name in that, the id of one file; "" if it lacks one.

    The path of a folder reads like that of a file: `inside` is the folder then.
    """

    bucket: str
    folder: str = ""
    name: str = ""
    file_uuid: str = ""

    @property
    def inside(self) -> str:
        """The path within the bucket."""
        return joined(self.folder, self.name)


def stripped(path: Any) -> str:
    """Return the path without `filestore://`, and without slashes at its ends."""
    return str(path).removeprefix("filestore://").strip("/")


def as_list(path: Any) -> list[str]:
    """Return the paths that a caller gave, one or several, stripped."""
    given = [path] if isinstance(path, (str, os.PathLike)) else path
    return [stripped(each) for each in given]


def place_of(path: Any) -> Place:
    """Return what a path names. Raises InvalidRequest for folders that the API refuses."""
    plain = stripped(path)
    found = _BY_ID.fullmatch(plain)
    plain, file_uuid = found.groups() if found else (plain, "")
    bucket, _, inside = plain.partition("/")
    folder, _, name = inside.rpartition("/")
    for part in inside.split("/")[:-1]:
        if part in ("", ".", ".."):
            raise InvalidRequest(f"{path}: '{part}' is not the name of a folder.")
    return Place(bucket, folder, name, file_uuid.lower())


def is_by_id(path: str) -> bool:
    """Return whether a path names one file exactly."""
    return _BY_ID.fullmatch(path) is not None


def joined(*parts: str) -> str:
    """Return the path of these parts; those that are "" are left out."""
    return "/".join(part for part in parts if part)


def below(path: str, root: str) -> str:
    """Return the part of a path that is below `root`, "" if it is not below."""
    rest = path.removeprefix(root)
    return path if not root else rest[1:] if rest != path and rest.startswith("/") else ""


def of_bucket(bucket: Bucket) -> Entry:
    """Describe a bucket."""
    return {"name": bucket.name, "size": 0, "type": "directory", "bucket_id": bucket.bucket_id}


def of_folder(path: str) -> Entry:
    """Describe a folder, or the root."""
    return {"name": path, "size": 0, "type": "directory"}


def of_file(bucket_name: str, file: FileSummary) -> Entry:
    """Describe a file."""
    path = joined(bucket_name, file.path, file.filename)
    return {
        "name": f"{path}?id={file.file_uuid}" if is_by_id(path) else path,  # not another file's path
        "size": file.size_bytes,
        "type": "file",
        "file_uuid": file.file_uuid,
        "sha256": file.blob_sha256,
        "created": file.created_at,
        "content_type": file.content_type,
    }


def is_directory(entry: Entry) -> bool:
    """Return whether this describes a bucket, a folder or the root."""
    return bool(entry["type"] == "directory")


def folders_above(paths: Iterable[str], root: str) -> set[str]:
    """Return the folders below `root` that these are, with those between."""
    found: set[str] = set()
    for path in paths:
        while path != root and path not in found:
            found.add(path)
            path = path.rpartition("/")[0]
    return found


def record_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec that are fields of a new record."""
    return {name: value for name, value in options.items() if name in _FIELDS}


def absolute(position: int, size_bytes: int) -> int:
    """Return a position in a file; one below 0 counts from its end."""
    return max(size_bytes + position, 0) if position < 0 else min(position, size_bytes)
