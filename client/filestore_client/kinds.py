"""The kinds of file: the path of each in the API, and how to recognise its content.

A content is recognised by its first bytes: the magic numbers of disk images, and the directory of a zip.
"""

import mimetypes
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, Final, Generic, TypeVar

from filestore_client.base.errors import InvalidRequest
from filestore_client.base.records import Backup, FileRecord, FileSummary, Image, Kind, Project

R = TypeVar("R", bound=FileRecord)

DEFAULT_BUCKET_ID: Final = "00000000-0000-0000-0000-000000000000"
HEAD_BYTES: Final = 34 << 10  # an ISO image says what it is behind 32 KiB
_MAGIC: Final = (  # format, position, bytes
    ("qcow2", 0, b"QFI\xfb"),
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"# Disk DescriptorFile"),
    ("vdi", 0x40, b"\x7f\x10\xda\xbe"),
    ("vhdx", 0, b"vhdxfile"),
    ("vpc", 0, b"conectix"),
    ("iso", 0x8001, b"CD001"),
)
_BOOT_SECTOR: Final = (510, b"\x55\xaa")  # of a raw disk; other things end their first sector so as well
_RAW_NAMES: Final = (".img", ".raw")
# What such a name says counts where the content says nothing.
_PROJECT_NAMES: Final = frozenset({".gns3p", ".gns3project"})
_IMAGE_NAMES: Final = frozenset({".qcow2", ".vmdk", ".vdi", ".vhdx", ".iso"})
_PROJECT_MEMBER: Final = "project.gns3"
_ENCODINGS: Final = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "compress": "application/x-compress",
}


@dataclass(frozen=True)
class FileKind(Generic[R]):
    """One kind: its name, its path and the name of its lists in the API, and its records."""

    name: Kind
    path: str
    listed_as: str
    record: type[R]


PROJECT: Final = FileKind[Project]("project", "/api/v1/project-files", "project_files", Project)
IMAGE: Final = FileKind[Image]("image", "/api/v1/vms", "vms", Image)
BACKUP: Final = FileKind[Backup]("backup", "/api/v1/backups", "backups", Backup)


class _Kinds(dict[str, FileKind[Any]]):
    def __missing__(self, name: str) -> FileKind[Any]:
        raise InvalidRequest(f"kind: {name!r} is unknown; use {', '.join(self)}.")


# By their names. Raises InvalidRequest for a name of none.
KINDS: Final[Mapping[str, FileKind[Any]]] = _Kinds({kind.name: kind for kind in (PROJECT, IMAGE, BACKUP)})


def image_format(head: bytes, name: str = "") -> str:
    """The format of the disk image that begins with these bytes, "" when they are of none that is known."""
    for found, position, magic in _MAGIC:
        if head.startswith(magic, position):
            return found
    position, magic = _BOOT_SECTOR
    is_named_so = name.lower().endswith(_RAW_NAMES)
    return "raw" if is_named_so and head.startswith(magic, position) else ""


def kind_of(file: BinaryIO, name: str) -> Kind:
    """The kind of an open file by its content; it stands where it stood then. Raises OSError."""
    start = file.tell()
    try:
        head = file.read(HEAD_BYTES)
        if image_format(head, name):
            return "image"
        if head.startswith(b"PK\x03\x04") and _has_project(file):
            return "project"
        return _kind_of_name(name)
    finally:
        file.seek(start)


def _kind_of_name(name: str) -> Kind:
    ending = PurePath(name.lower()).suffix
    return "project" if ending in _PROJECT_NAMES else "image" if ending in _IMAGE_NAMES else "backup"


def content_type_of(name: str) -> str:
    """The media type that a name stands for. What it was packed with last decides: `a.tar.gz` is gzip."""
    guessed, encoding = mimetypes.guess_type(name)
    if encoding is not None:
        return _ENCODINGS.get(encoding, "application/octet-stream")
    return guessed or "application/octet-stream"


def new_record_fields(kind: Kind, name: str, head: bytes, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a new record: those given, and what the kind needs, out of name and content.

    Raises InvalidRequest for a kind that there is not, a field that the kind does not have, and text that is
    not UTF-8.
    """
    fields: dict[str, Any] = {"filename": name, "content_type": content_type_of(name)}
    kind = KINDS[kind].name
    for field, value in given.items():
        if field not in KINDS[kind].record.__struct_fields__:
            raise InvalidRequest(f"{field}: a {kind} has no such field.")
        if isinstance(value, str) and not is_utf8(value):
            raise InvalidRequest(f"{field}: the text is not UTF-8.")
    if kind == "project":
        fields["project_id"] = PurePath(name).stem or name
    elif kind == "image":
        fields |= {"virt_type": "qemu", "format": image_format(head, name) or "raw"}
    else:
        fields["backup_type"] = "full"
    return fields | {field: value for field, value in given.items() if value is not None}


def is_wanted(file: FileSummary, filters: Mapping[str, str]) -> bool:
    """Return whether a file of a bucket has the `name` and is in the `path` of these filters."""
    if filters.get("name", "") not in ("", file.filename):
        return False
    folder = filters.get("path", "").strip("/")
    if filters.get("recursive"):
        return file.path == folder or not folder or file.path.startswith(folder + "/")
    return file.path == folder or not filters.get("path")


def is_utf8(text: str) -> bool:
    """Return whether a text, such as the name of a local file, is valid UTF-8."""
    return not any("\udc80" <= letter <= "\udcff" for letter in text)


def _has_project(file: BinaryIO) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return _PROJECT_MEMBER in archive.NameToInfo
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return False
