"""The entries of a folder in a stable order, and the digest that shows a change of any of them.

The folder belongs to people who may not read what this process may read, and who may change it meanwhile. So
every step is relative to an open directory, and no symbolic link is followed.
"""

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from ca.errors import Conflict

Kind = Literal["directory", "file", "link", "pipe"]

DEPTH_MAX: Final = 200  # of folders; each holds a descriptor while it is read
SETTLED_NS: Final = 100_000_000  # a later change of a file has another time than one that is this old
_KINDS: Final[dict[int, Kind]] = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
}
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderChanges(Conflict):
    """A folder is written to while it is read."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One name of a folder. `path` is relative, "" for the folder itself.

    `target` is that of a symbolic link; `twin` is the first name of the same file, if this is another one.
    The last four fields are facts of the disk, which an archive does not have.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int = 0
    mtime_ns: int = 0
    target: str = ""
    twin: str = ""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    ctime_ns: int = field(default=0, compare=False)
    device: int = field(default=0, compare=False)
    inode: int = field(default=0, compare=False)
    is_sparse: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class FolderScan:
    """The entries of a folder. Parents come before their entries, and files named `first` before all others.

    `left_out`: names of device nodes. Sockets are left out too, as the program that made one makes it again.
    """

    name: str
    entries: tuple[FolderEntry, ...]
    left_out: tuple[str, ...]
    begun_ns: int

    @property
    def size_bytes(self) -> int:
        """The size of all files, each counted once."""
        return sum(entry.size for entry in self.entries if not entry.twin)

    def is_on(self, device: int) -> bool:
        """Whether all of it is on this device: no other file system or subvolume is in its place or below."""
        return all(entry.device == device for entry in self.entries)

    def digest(self, *, passing: Iterable[str] = (), by_content: Iterable[tuple[str, bytes]] = ()) -> str:
        """Return 40 hexadecimal digits, which differ after any change of an entry.

        `passing`: names in the folder itself that do not count. `by_content`: files whose given bytes count
        instead of their times. The times of the folder itself do not count. A file that was changed just
        before the scan gives a digest that no other scan gives: a later change may have the same time.
        """
        contents, newest_ns, ignored = dict(by_content), 0, {*passing}
        found = hashlib.sha256()
        for entry in self.entries:
            if entry.path in ignored:
                continue
            facts: tuple[object, ...] = (entry.path, entry.kind, entry.mode, entry.uid, entry.gid)
            facts += (entry.target, entry.twin, entry.xattrs)
            if entry.path in contents:
                facts += (hashlib.sha256(contents[entry.path]).digest(),)
            elif entry.path:
                facts += (entry.size, entry.mtime_ns, entry.ctime_ns)
                newest_ns = max(newest_ns, entry.ctime_ns)
            found.update(repr(facts).encode("utf-8", "surrogateescape"))
        if newest_ns > self.begun_ns - SETTLED_NS:
            found.update(str(self.begun_ns).encode("ascii"))
        return found.hexdigest()[:40]


@contextmanager
def opened_folder(path: str | Path, *, at: int | None = None) -> Iterator[int]:
    """Open a folder, relative to the descriptor `at`. Raises OSError, also for a symbolic link."""
    descriptor = os.open(path, _DIRECTORY, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def scan(
    descriptor: int, name: str, *, first: str = "", keep: Callable[[str], bool] | None = None
) -> FolderScan:
    """Look at all entries of an open folder. `first`: the ending of the names that come first.

    `keep`: look only at files in the folder itself, with names that it accepts.

    Blocks. Raises OSError for what cannot be read, FolderChanges, Conflict for folders that are too deep.
    """
    begun_ns = time.time_ns()
    entries: list[FolderEntry] = []
    left_out: list[str] = []
    names: dict[tuple[int, int], str] = {}
    root = _entry("", os.fstat(descriptor), descriptor, ".")
    assert root is not None
    names_here = os.listdir(descriptor)
    if keep is not None:
        names_here = [each for each in names_here if keep(each) and not (_is_folder(descriptor, each))]
    for path, found in ((root.path, root), *_below(descriptor, names_here, "", first, 0)):
        if found is None:
            left_out.append(path)
            continue
        entry = found
        if entry.kind == "file":
            key = entry.device, entry.inode
            if (earlier := names.setdefault(key, path)) != path:
                entry = replace(entry, twin=earlier)
        entries.append(entry)
    return FolderScan(name, tuple(entries), tuple(left_out), begun_ns)


def open_file(folder: int, entry: FolderEntry) -> int:
    """Open a file of a scan. Raises FolderChanges if another file is there by now, OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(entry.path, flags, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _changed(entry.path) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _changed(entry.path) from error
        raise
    facts = os.fstat(descriptor)
    if (facts.st_dev, facts.st_ino) != (entry.device, entry.inode):
        os.close(descriptor)
        raise _changed(entry.path)
    return descriptor


def _is_folder(descriptor: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)


def _changed(path: str) -> FolderChanges:
    return FolderChanges(f"{path or 'The folder'} was changed while it was read.")


def _below(
    descriptor: int, names: list[str], prefix: str, first: str, depth: int
) -> Iterator[tuple[str, FolderEntry | None]]:
    """Each path below an open folder with its entry; None for a device node."""
    if depth > DEPTH_MAX:
        raise Conflict(f"There are more than {DEPTH_MAX} folders in each other.")
    for name in sorted(names, key=lambda each: (not (first and each.endswith(first)), each)):
        path = prefix + name
        try:
            facts = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISSOCK(facts.st_mode):
                continue
            entry = _entry(path, facts, descriptor, name)
            yield path, entry
            if entry is None or entry.kind != "directory":
                continue
            with opened_folder(name, at=descriptor) as child:
                if os.fstat(child).st_ino != facts.st_ino:
                    raise _changed(path)
                yield from _below(child, os.listdir(child), f"{path}/", "", depth + 1)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _changed(path) from error


def _entry(path: str, facts: os.stat_result, folder: int, name: str) -> FolderEntry | None:
    """The entry of this name in an open folder; None for a device node."""
    kind = _KINDS.get(stat.S_IFMT(facts.st_mode))
    if kind is None:
        return None
    is_file = kind == "file"
    return FolderEntry(
        path=path,
        kind=kind,
        mode=stat.S_IMODE(facts.st_mode),
        uid=facts.st_uid,
        gid=facts.st_gid,
        size=facts.st_size if is_file else 0,
        mtime_ns=facts.st_mtime_ns,
        target=os.readlink(name, dir_fd=folder) if kind == "link" else "",
        xattrs=_xattrs(f"/proc/self/fd/{folder}/{name}"),
        ctime_ns=facts.st_ctime_ns,
        device=facts.st_dev,
        inode=facts.st_ino,
        is_sparse=is_file and facts.st_blocks * 512 < facts.st_size,
    )


def _xattrs(path: str) -> tuple[tuple[str, bytes], ...]:
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
        return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA):
            return ()
        raise
