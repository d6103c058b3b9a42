"""Copies of folders that stand still while they are read, made without copying bytes.

A snapshot has all folders of a directory at one moment. One of btrfs is made here; another program can make
one of LVM or ZFS. Where there is none, each file is copied by reflink (btrfs, XFS and others): a file is as
at one moment, and the files of a folder are moments apart. Snapshots of btrfs and copies are made in the
directory WORK among the folders, on the same file system.
"""

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.gns3.folders.entries import FolderChanges, FolderEntry, FolderScan, open_file, opened_folder

WORK: Final = ".filestore"  # readable for GNS3, which looks into every folder of projects
_SNAPSHOT: Final = "snapshot"
_FICLONE: Final = 0x40049409
# linux/btrfs.h: a descriptor, the number of a transaction, flags, limits, a name
_SNAP_CREATE: Final = 0x50009417
_SNAP_DESTROY: Final = 0x5000940F
_CREATE: Final = struct.Struct("=qQQ32x4040s")
_DESTROY: Final = struct.Struct("=q4088s")
_READ_ONLY: Final = 2
_SUBVOLUME_INODE: Final = 256  # of the root of every subvolume


@contextmanager
def work_in(directory: Path) -> Iterator[int | None]:
    """Open WORK, and remove what an earlier run left in it. No other user can write to it.

    None if this user cannot make it.
    """
    with suppress(OSError):
        (directory / WORK).mkdir(mode=0o755)
    try:
        descriptor = os.open(directory / WORK, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    is_ours = False
    try:
        facts = os.fstat(descriptor)
        is_ours = facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
        if is_ours:
            remove_snapshot(descriptor)
            for name in os.listdir(descriptor):
                shutil.rmtree(f"/proc/self/fd/{descriptor}/{name}", ignore_errors=True)
        yield descriptor if is_ours else None
    finally:
        if is_ours:
            remove_snapshot(descriptor)
        os.close(descriptor)


def make_snapshot(directory: Path, work: int) -> Path | None:
    """Make a read-only snapshot; return where `directory` is in it. None where that is not possible."""
    subvolume = _subvolume_of(directory)
    if subvolume is None:
        return None
    try:
        with opened_folder(subvolume) as source:
            fcntl.ioctl(
                work, _SNAP_CREATE, bytearray(_CREATE.pack(source, 0, _READ_ONLY, _SNAPSHOT.encode()))
            )
    except OSError:
        return None
    return Path(f"/proc/self/fd/{work}/{_SNAPSHOT}") / directory.relative_to(subvolume)


def is_new_snapshot(snapshot: Path, directory: Path) -> bool:
    """Whether a snapshot of a directory was made, by another program, since the last call for this directory.

    WORK has another time after each call. False if there is none, and if this user has no WORK.
    """
    try:
        before = (directory / WORK).lstat()
        os.utime(directory / WORK, ns=(before.st_atime_ns, time.time_ns()), follow_symlinks=False)
        return (snapshot / WORK).lstat().st_mtime_ns == before.st_mtime_ns
    except OSError:
        return False


def remove_snapshot(work: int) -> None:
    """Remove the snapshot, if there is one and this process may."""
    with suppress(OSError):
        fcntl.ioctl(work, _SNAP_DESTROY, bytearray(_DESTROY.pack(0, _SNAPSHOT.encode())))


def _subvolume_of(directory: Path) -> Path | None:
    """The root of the subvolume that a directory is in, as far as its inode tells."""
    device = directory.stat().st_dev
    for each in (directory, *directory.parents):
        facts = each.stat()
        if facts.st_dev != device:
            return None
        if facts.st_ino == _SUBVOLUME_INODE:
            return each
    return None


@contextmanager
def copied_by_reflink(
    scan: FolderScan, folder: int, work: int
) -> Iterator[tuple[FolderScan, Callable[[FolderEntry], int]] | None]:
    """Copy all files of a folder by reflink: the scan with their sizes, and what opens a copy.

    None where the file system has no reflinks. Files that are gone by then are left out, and so is what
    was made since the scan. Blocks. Raises OSError.
    """
    place = f"/proc/self/fd/{work}/copies"
    Path(place).mkdir(0o700)
    try:
        entries = _clone_all(scan, folder, place)
        if entries is None:
            yield None
            return
        numbers = {entry.path: number for number, entry in enumerate(scan.entries)}

        def open_copy(entry: FolderEntry) -> int:
            return os.open(f"{place}/{numbers[entry.path]}", os.O_RDONLY | os.O_CLOEXEC)

        yield replace(scan, entries=tuple(entries)), open_copy
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _clone_all(scan: FolderScan, folder: int, place: str) -> list[FolderEntry] | None:
    entries: list[FolderEntry] = []
    gone: dict[str, str] = {}  # the first name of a file, and the name that has its place; "" before one has
    for number, entry in enumerate(scan.entries):
        if entry.kind != "file":
            entries.append(entry)
            continue
        first = gone.get(entry.twin, entry.twin)
        if first:
            entries.append(replace(entry, twin=first))
            continue
        try:
            source = open_file(folder, entry)
        except FolderChanges:
            gone[entry.twin or entry.path] = ""
            continue
        if entry.twin:
            gone[entry.twin] = entry.path
        target = os.open(f"{place}/{number}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(target, _FICLONE, source)
            facts, copy = os.fstat(source), os.fstat(target)
            is_sparse = copy.st_blocks * 512 < copy.st_size
            copied = replace(entry, twin="", size=copy.st_size, mtime_ns=facts.st_mtime_ns)
            entries.append(replace(copied, is_sparse=is_sparse))
        except OSError:  # no reflinks here; of an empty file they need none
            return None
        finally:
            os.close(target)
            os.close(source)
    return entries
