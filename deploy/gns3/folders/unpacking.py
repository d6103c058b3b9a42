"""Read the archive of a folder, and make the folder again. An archive may be hostile: it is checked strictly.

Every member is below one folder, its parent is a directory that came before, and no name comes twice. A hard
link names a file that came before. There are no device nodes. So nothing is written outside of the folder,
provided that it is a new one in a place where no other user can write.
"""

import errno
import os
import tarfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import cache
from grp import getgrnam
from pathlib import Path
from pwd import getpwnam
from typing import BinaryIO, Final
from urllib.parse import unquote_to_bytes

from ca.errors import Conflict, Forbidden
from deploy.gns3.folders.entries import FolderEntry, Kind
from deploy.gns3.folders.packing import BLOCK_BYTES, FORMAT, PIECE_BYTES, VERSION, XATTR, text_of

RECORDS_BYTES_MAX: Final = 8 << 20  # of one header; Linux allows 64 KiB for all attributes of most files
MAP_BYTES_MAX: Final = 64 << 20  # of the map of a sparse file
_KINDS: Final[dict[bytes, Kind]] = {
    tarfile.DIRTYPE: "directory",
    tarfile.REGTYPE: "file",
    tarfile.LNKTYPE: "file",
    tarfile.SYMTYPE: "link",
    tarfile.FIFOTYPE: "pipe",
}

Records = dict[str, bytes]


class ArchiveRejected(Conflict):
    """An archive that is not one of a folder, or has something that does not belong in one."""


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """An entry of an archive. `spans`: where its content is (start, stop), and where each part has to go."""

    entry: FolderEntry
    spans: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FolderArchive:
    """An archive whose headers were read. `comments`: the records of its global header."""

    name: str
    members: tuple[ArchiveMember, ...]
    comments: dict[str, str]

    @property
    def entries(self) -> list[FolderEntry]:
        """Return the entries, parents before their children."""
        return [member.entry for member in self.members]

    def chosen(self, path: str) -> list[ArchiveMember]:
        """Return a member, all that is below it, and its parents. A hard link to another one is a file.

        Raises KeyError if there is no such member.
        """
        by_path = {member.entry.path: member for member in self.members}
        wanted = by_path[path].entry.path
        parents = {"", *(wanted[:at] for at, letter in enumerate(wanted) if letter == "/")}
        chosen = {
            name: member
            for name, member in by_path.items()
            if name in parents or name == wanted or name.startswith(f"{wanted}/" if wanted else "")
        }
        firsts: dict[str, str] = {}
        for name, member in chosen.items():
            twin = member.entry.twin
            if twin and twin not in chosen:
                first = firsts.setdefault(twin, name)
                spans = by_path[twin].spans if first == name else ()
                chosen[name] = ArchiveMember(
                    replace(member.entry, twin="" if first == name else first), spans
                )
        return list(chosen.values())


def read_archive(file: BinaryIO, *, members_max: int = 0) -> FolderArchive:
    """Read all headers of an archive, or the first `members_max`; contents are passed over by seeking.

    Blocks. Raises ArchiveRejected, and what the file raises.
    """
    try:
        return _read(file, members_max)
    except (tarfile.HeaderError, ValueError, InvalidOperation, UnicodeDecodeError, OverflowError) as error:
        raise ArchiveRejected(f"It is no archive of a folder, or it is damaged: {error}.") from error


def _read(file: BinaryIO, members_max: int) -> FolderArchive:
    is_global, records, _ = _next_header(file)
    if not is_global or records.get(FORMAT) != VERSION.encode():
        raise ArchiveRejected("It is no archive of a folder.")
    comments = {key: text_of(value) for key, value in records.items()}
    members: list[ArchiveMember] = []
    kinds: dict[str, FolderEntry] = {}
    root = ""
    while not members_max or len(members) < members_max:
        is_global, records, info = _next_header(file)
        if is_global:
            raise ArchiveRejected("It has a second global header.")
        if info is None:
            break
        name = text_of(
            records.get("GNU.sparse.name", records.get("path", os.fsencode(info.name)))
        ).removesuffix("/")
        root = root or name
        path = _path_in(root, name)
        member = _member(file, info, records, root, path)
        _check(member.entry, kinds)
        kinds[path] = member.entry
        if member.entry.twin:
            first = kinds[member.entry.twin]
            member = ArchiveMember(replace(member.entry, size=first.size))
        members.append(member)
    if not members:
        raise ArchiveRejected("It is empty.")
    return FolderArchive(root, tuple(members), comments)


def _next_header(file: BinaryIO) -> tuple[bool, Records, tarfile.TarInfo | None]:
    """The next member with its extended records; None for the end. True: a global header."""
    records: Records = {}
    while True:
        block = _exactly(file, BLOCK_BYTES)
        if not any(block):
            if records or any(_exactly(file, BLOCK_BYTES)):
                raise ArchiveRejected("It ends in the middle.")
            return False, {}, None
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.type not in (tarfile.XHDTYPE, tarfile.XGLTYPE):
            return False, records, info
        if records or not 0 < info.size <= RECORDS_BYTES_MAX:
            raise ArchiveRejected("It has a header that is too large.")
        records = _records(_exactly(file, info.size + -info.size % BLOCK_BYTES)[: info.size])
        if info.type == tarfile.XGLTYPE:
            return True, records, None


def _records(raw: bytes) -> Records:
    found: Records = {}
    at = 0
    while at < len(raw):
        space = raw.index(b" ", at)
        stop = at + int(raw[at:space])
        if not space < stop <= len(raw) or raw[stop - 1 : stop] != b"\n":
            raise ValueError("an extended header has a wrong length")
        key, separator, value = raw[space + 1 : stop - 1].partition(b"=")
        if not separator:
            raise ValueError("an extended header has no value")
        found[text_of(key)] = value
        at = stop
    return found


def _path_in(root: str, name: str) -> str:
    """The path in the folder. Raises ArchiveRejected for one that is not in it."""
    if "/" in root or root in ("", ".", "..") or root.startswith(".") or "\0" in name:
        raise ArchiveRejected(f"It has the member {name!r}.")
    if name == root:
        return ""
    path = name.removeprefix(f"{root}/")
    if path == name or any(part in ("", ".", "..") for part in path.split("/")):
        raise ArchiveRejected(f"It has the member {name!r}.")
    return path


def _check(entry: FolderEntry, known: dict[str, FolderEntry]) -> None:
    """Raise ArchiveRejected for an entry that cannot come after the known ones."""
    parent = known.get(entry.path.rpartition("/")[0])
    if entry.path in known or (entry.path and (parent is None or parent.kind != "directory")):
        raise ArchiveRejected(f"The member {entry.path!r} comes twice, or not in a directory.")
    if not entry.path and entry.kind != "directory":
        raise ArchiveRejected("Its first member is no directory.")
    if entry.twin:
        first = known.get(entry.twin)
        if first is None or first.kind != "file" or first.twin:
            raise ArchiveRejected(f"The hard link {entry.path!r} names no file that came before.")


def _member(file: BinaryIO, info: tarfile.TarInfo, records: Records, root: str, path: str) -> ArchiveMember:
    """A member; the file is then after its content."""
    kind = _KINDS.get(info.type)
    if kind is None:
        raise ArchiveRejected(f"The member {path!r} has the type {info.type!r}.")
    linked = text_of(records.get("linkpath", os.fsencode(info.linkname)))
    is_twin, is_link = info.type == tarfile.LNKTYPE, info.type == tarfile.SYMTYPE
    if "\0" in linked or (is_link and not linked):
        raise ArchiveRejected(f"The member {path!r} has no target.")
    size = int(records.get("size", info.size)) if info.type == tarfile.REGTYPE else 0
    if size < 0:
        raise ValueError("a size is negative")
    start = file.tell()
    spans: tuple[tuple[int, int, int], ...] = ((start, start + size, 0),) if size else ()
    real_size = size
    if "GNU.sparse.major" in records:
        real_size = int(records["GNU.sparse.realsize"])
        spans = _sparse_spans(file, start + size, real_size)
    file.seek(start + size + -size % BLOCK_BYTES)
    entry = FolderEntry(
        path=path,
        kind=kind,
        mode=info.mode & 0o7777,
        uid=_uid(text_of(records.get("uname", os.fsencode(info.uname))), int(records.get("uid", info.uid))),
        gid=_gid(text_of(records.get("gname", os.fsencode(info.gname))), int(records.get("gid", info.gid))),
        size=real_size,
        mtime_ns=int(Decimal(text_of(records.get("mtime", str(info.mtime).encode()))) * 1_000_000_000),
        target=linked if is_link else "",
        twin=_path_in(root, linked) if is_twin else "",
        xattrs=tuple(
            (os.fsdecode(unquote_to_bytes(key.removeprefix(XATTR).encode("utf-8", "surrogateescape"))), value)
            for key, value in records.items()
            if key.startswith(XATTR)
        ),
    )
    return ArchiveMember(entry, spans)


def _sparse_spans(file: BinaryIO, stop: int, real_size: int) -> tuple[tuple[int, int, int], ...]:
    """Return the parts of a sparse file in order. Its map comes before them."""
    listed, lines, wanted = bytearray(), 0, 1
    while lines < wanted:
        block = _exactly(file, BLOCK_BYTES)
        listed += block
        lines += block.count(b"\n")
        if len(listed) > MAP_BYTES_MAX:
            raise ArchiveRejected("It has a map of a sparse file that is too large.")
        if wanted == 1 and lines:
            wanted = 1 + 2 * int(listed[: listed.index(b"\n")])
    numbers = [int(line) for line in bytes(listed).split(b"\n")[1:wanted]]
    at, end, spans = file.tell(), 0, list[tuple[int, int, int]]()
    for place, length in zip(numbers[::2], numbers[1::2], strict=True):
        if place < end or length < 0 or place + length > real_size:
            raise ValueError("the map of a sparse file is not in order")
        if length:
            spans.append((at, at + length, place))
        at, end = at + length, place + length
    if at != stop:
        raise ValueError("the map of a sparse file does not fit its content")
    return tuple(spans)


def _exactly(file: BinaryIO, length: int) -> bytes:
    part = file.read(length)
    if len(part) != length:
        raise ArchiveRejected("It ends in the middle.")
    return part


def content_of(file: BinaryIO, member: ArchiveMember) -> Iterator[bytes]:
    """Yield the content of a member without its holes. Blocks. Raises ArchiveRejected."""
    for start, stop, _ in member.spans:
        file.seek(start)
        for at in range(start, stop, PIECE_BYTES):
            yield _exactly(file, min(PIECE_BYTES, stop - at))


def unpack(file: BinaryIO, members: Sequence[ArchiveMember], folder: int, name: str) -> None:
    """Make a new folder `name` of members in an open folder, which no other user can write to.

    Extended attributes that the file system does not know are left out. Blocks. Raises Forbidden if this
    process may not set an owner, ArchiveRejected if the content ends early, OSError.
    """
    root = f"/proc/self/fd/{folder}/{name}"
    try:
        for member in members:
            _make(file, member, root)
        for member in reversed(members):
            if member.entry.kind == "directory":
                _set_facts(_place(root, member.entry.path), member.entry)
    except PermissionError as error:
        raise Forbidden(f"{error.strerror}: {error.filename}. Run this command as root.") from error


def _make(file: BinaryIO, member: ArchiveMember, root: str) -> None:
    entry = member.entry
    path = _place(root, entry.path)
    if entry.kind == "directory":
        Path(path).mkdir(0o700)
        return  # its facts come last: a new entry changes its times, and its mode may forbid writing
    if entry.twin:
        os.link(_place(root, entry.twin), path, follow_symlinks=False)
        return
    if entry.kind == "link":
        Path(path).symlink_to(entry.target)
    elif entry.kind == "pipe":
        os.mkfifo(path, 0o600)
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _write(file, member, descriptor)
        finally:
            os.close(descriptor)
    _set_facts(path, entry)


def _write(file: BinaryIO, member: ArchiveMember, descriptor: int) -> None:
    for start, stop, place in member.spans:
        file.seek(start)
        at = start
        while at < stop:
            part = _exactly(file, min(PIECE_BYTES, stop - at))
            written = 0
            while written < len(part):
                written += os.pwrite(descriptor, part[written:], place + at - start + written)
            at += len(part)
    os.ftruncate(descriptor, member.entry.size)


def _set_facts(path: str, entry: FolderEntry) -> None:
    """Set owner, attributes, mode and time in this order: a new owner resets others of them."""
    facts = os.lstat(path)
    if (facts.st_uid, facts.st_gid) != (entry.uid, entry.gid):
        os.lchown(path, entry.uid, entry.gid)
    for key, value in entry.xattrs:
        try:
            os.setxattr(path, key, value, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
    if entry.kind != "link":
        Path(path).chmod(entry.mode)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


def _place(root: str, path: str) -> str:
    return f"{root}/{path}" if path else root


def differences(wanted: Collection[FolderEntry], present: Collection[FolderEntry]) -> list[tuple[str, str]]:
    """Compare what an archive has with what a folder has: paths, each with what would happen to it. Pure.

    It is `new`, `removed`, or a list of: type, content (by size and time), mode, owner, links, attributes.
    """
    here = {entry.path: entry for entry in present}
    told: list[tuple[str, str]] = []
    for entry in wanted:
        other = here.pop(entry.path, None)
        if other is None:
            told.append((entry.path, "new"))
        elif entry != other:
            told.append((entry.path, ", ".join(_changed(entry, other))))
    return sorted([*told, *((path, "removed") for path in here)])


def _changed(entry: FolderEntry, other: FolderEntry) -> Iterator[str]:
    if entry.kind != other.kind:
        yield "type"
        return
    if entry.kind == "file" and (entry.size, entry.mtime_ns) != (other.size, other.mtime_ns):
        yield "content"
    elif entry.mtime_ns != other.mtime_ns:
        yield "time"
    if entry.mode != other.mode:
        yield "mode"
    if (entry.uid, entry.gid) != (other.uid, other.gid):
        yield "owner"
    if (entry.target, entry.twin) != (other.target, other.twin):
        yield "links"
    if entry.xattrs != other.xattrs:
        yield "attributes"


@cache
def _uid(name: str, number: int) -> int:
    """The user of this name on this machine, or the number."""
    with suppress(KeyError):
        return getpwnam(name).pw_uid
    return number


@cache
def _gid(name: str, number: int) -> int:
    with suppress(KeyError):
        return getgrnam(name).gr_gid
    return number
