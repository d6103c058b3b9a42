"""A folder as an uncompressed pax tar, which GNU tar unpacks too. The same folder gives the same bytes.

Beyond POSIX it uses what GNU tar and star write: extended attributes (`SCHILY.xattr.`) and the map of a
sparse file, version 1.0. The names of members begin with the name of the folder. A global header comes first
and names the format.
"""

import os
import posixpath
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from grp import getgrgid
from pwd import getpwuid
from typing import Final
from urllib.parse import quote

from deploy.gns3.folders.entries import FolderChanges, FolderEntry, FolderScan

FORMAT: Final = "FILESTORE.folder"  # the keyword of the global header; its value is the version of the format
VERSION: Final = "1"
XATTR: Final = "SCHILY.xattr."
BLOCK_BYTES: Final = 512
PIECE_BYTES: Final = 1 << 20
_TYPES: Final = {
    "directory": tarfile.DIRTYPE,
    "file": tarfile.REGTYPE,
    "link": tarfile.SYMTYPE,
    "pipe": tarfile.FIFOTYPE,
}
_PLAIN: Final = "".join(chr(code) for code in range(128) if chr(code) not in "%=")  # as GNU tar

Open = Callable[[FolderEntry], int]  # a descriptor of the content of a file, which its caller closes


def pack(scan: FolderScan, open_entry: Open, *, comments: Mapping[str, str]) -> Generator[bytes, None, None]:
    """Yield the archive in pieces of PIECE_BYTES; the last one may be smaller.

    `comments`: further records of the global header. Blocks. Raises FolderChanges if a file does not have
    the size that it had in the scan, OSError, and what `open_entry` raises.
    """
    held = bytearray()
    for part in _parts(scan, open_entry, comments):
        held += part
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def _parts(scan: FolderScan, open_entry: Open, comments: Mapping[str, str]) -> Iterator[bytes]:
    yield tarfile.TarInfo.create_pax_global_header({FORMAT: VERSION, **comments})
    for entry in scan.entries:
        if entry.kind != "file" or entry.twin:
            yield _header(scan, entry)
            continue
        descriptor = open_entry(entry)
        try:
            if os.fstat(descriptor).st_size != entry.size:
                raise FolderChanges(f"{entry.path} was written to while it was read.")
            yield from _file(scan, entry, descriptor)
        finally:
            os.close(descriptor)
    yield bytes(2 * BLOCK_BYTES)


def _file(scan: FolderScan, entry: FolderEntry, descriptor: int) -> Iterator[bytes]:
    spans = _spans(descriptor, entry.size) if entry.is_sparse else [(0, entry.size)]
    size = sum(stop - start for start, stop in spans)
    if size == entry.size:
        yield _header(scan, entry, size=size)
    else:
        numbers = [len(spans) + 1, *(each for start, stop in spans for each in (start, stop - start))]
        listed = "".join(f"{number}\n" for number in (*numbers, entry.size, 0)).encode("ascii")
        listed += bytes(-len(listed) % BLOCK_BYTES)
        yield _header(scan, entry, size=len(listed) + size, is_sparse=True)
        yield listed
    for start, stop in spans:
        at = start
        while at < stop:
            part = os.pread(descriptor, min(PIECE_BYTES, stop - at), at)
            if not part:
                raise FolderChanges(f"{entry.path} became shorter while it was read.")
            at += len(part)
            yield part
    yield bytes(-size % BLOCK_BYTES)


def _header(scan: FolderScan, entry: FolderEntry, *, size: int = 0, is_sparse: bool = False) -> bytes:
    name = _member(scan, entry.path)
    records = {
        f"{XATTR}{quote(os.fsencode(key), safe=_PLAIN)}": text_of(value) for key, value in entry.xattrs
    }
    seconds, nanoseconds = divmod(entry.mtime_ns, 1_000_000_000)
    if nanoseconds or not 0 <= seconds < 8**11:
        sign = "-" if entry.mtime_ns < 0 else ""
        seconds_told, rest = divmod(abs(entry.mtime_ns), 1_000_000_000)
        records["mtime"] = f"{sign}{seconds_told}.{rest:09d}"
    if is_sparse:
        records |= {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name}
        records["GNU.sparse.realsize"] = str(entry.size)
        name = posixpath.join(posixpath.dirname(name), "GNUSparseFile.0", posixpath.basename(name))
    info = tarfile.TarInfo(name)
    info.type = tarfile.LNKTYPE if entry.twin else _TYPES[entry.kind]
    info.linkname = _member(scan, entry.twin) if entry.twin else entry.target
    info.mode, info.uid, info.gid, info.size = entry.mode, entry.uid, entry.gid, size
    info.mtime = seconds if 0 <= seconds < 8**11 else 0
    info.uname, info.gname = _user(entry.uid), _group(entry.gid)
    info.pax_headers = records
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _member(scan: FolderScan, path: str) -> str:
    return f"{scan.name}/{path}" if path else scan.name


def text_of(value: bytes) -> str:
    """Return a name or a target as the entries of a folder have it."""
    return value.decode("utf-8", "surrogateescape")


def _spans(descriptor: int, size: int) -> list[tuple[int, int]]:
    """The parts of a file that are not holes, as the first byte and the one after the last."""
    spans: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # ENXIO: there is only a hole left
            break
        at = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        if start < at:
            spans.append((start, at))
    return spans


@cache
def _user(uid: int) -> str:
    """The name of a user of this machine, "" for a number without one."""
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return ""


@cache
def _group(gid: int) -> str:
    try:
        return getgrgid(gid).gr_name
    except KeyError:
        return ""
