"""Put whole folders of projects, or single files of them, back in the folder of projects of a GNS3 server.

This runs as root in a directory of another user, who may rename and replace everything in it meanwhile. So an
archive is unpacked into a directory that only root can write to, and put in its place by a rename relative to
open directories; no symbolic link is followed. The replaced folder is deleted at the end.

Tested by tests/gns3/test_local.py.
"""

import ctypes
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ca.errors import Conflict, Forbidden, NotFound
from deploy.base.printed import printable_name
from deploy.gns3.folders.entries import FolderEntry, opened_folder, scan
from deploy.gns3.folders.unpacking import ArchiveMember, FolderArchive, differences, read_archive, unpack
from deploy.gns3.local.projects import TOPOLOGY_ENDING

STAGING: Final = ".filestore-"  # readable for GNS3, so that the private folder is in it
_RENAME_EXCHANGE: Final = 2  # linux/fs.h


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """The effect of a restore. `path`: a single file or folder of the project, "" for all of it.

    `changes`: paths, each with what would happen to it, see `differences`. `is_there`: the project's folder.
    """

    archive: FolderArchive
    path: str
    members: list[ArchiveMember]
    changes: list[tuple[str, str]]
    is_there: bool

    @property
    def name(self) -> str:
        """The name of the project's folder."""
        return self.archive.name


def plan_folder(content: BinaryIO, directory: Path, path: str = "") -> FolderPlan:
    """Compare an archive with what is there. Nothing is changed. Blocks.

    Raises NotFound if the archive has no such path, ArchiveRejected, OSError.
    """
    archive = read_archive(content)
    path = path.strip("/")
    try:
        members = archive.chosen(path)
    except KeyError:
        raise NotFound(f"The backup has no file {printable_name(path)!r}.") from None
    present = _present(directory, archive.name)
    wanted = [member.entry for member in members]
    changes = differences(_within(wanted, path), _within(present or [], path))
    return FolderPlan(archive, path, members, changes, present is not None)


def put_back(content: BinaryIO, plan: FolderPlan, directory: Path) -> list[tuple[str, str]]:
    """Carry out a plan, and compare again: what still differs, such as attributes that the disk cannot have.

    Blocks. Raises Conflict if something else is in the place by then, Forbidden if this is not root, OSError.
    """
    with ExitStack() as stack:
        parent = stack.enter_context(opened_folder(directory))
        staging = stack.enter_context(_staging(parent))
        unpack(content, plan.members, staging, plan.name)
        os.sync()
        if plan.path:
            _move(*_deepest(stack, staging, parent, plan))
        elif plan.is_there:
            _move(staging, parent, plan.name)
        else:  # onto a folder that is there by now it fails
            os.rename(plan.name, plan.name, src_dir_fd=staging, dst_dir_fd=parent)
        os.sync()
        return differences(
            _within([member.entry for member in plan.members], plan.path),
            _within(_present(directory, plan.name) or [], plan.path),
        )


def _within(entries: list[FolderEntry], path: str) -> list[FolderEntry]:
    return [each for each in entries if not path or f"{each.path}/".startswith(f"{path}/")]


def _present(directory: Path, name: str) -> list[FolderEntry] | None:
    try:
        with opened_folder(directory / name) as folder:
            return list(scan(folder, name, first=TOPOLOGY_ENDING).entries)
    except FileNotFoundError:
        return None


@contextmanager
def _staging(parent: int) -> Iterator[int]:
    """A new directory on the same file system, where only this user can write; it is removed at the end."""
    name = f"{STAGING}{secrets.token_hex(8)}"
    os.mkdir(name, 0o755, dir_fd=parent)
    try:
        with opened_folder(name, at=parent) as outer:
            facts = os.fstat(outer)
            if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o022:
                raise Forbidden("The directory for the restore was replaced by another user's.")
            os.mkdir("new", 0o700, dir_fd=outer)
            with opened_folder("new", at=outer) as inner:
                try:
                    yield inner
                finally:
                    for each in os.listdir(inner):
                        _remove(f"/proc/self/fd/{inner}/{each}")
                    os.rmdir("new", dir_fd=outer)
    finally:
        with suppress(OSError):
            os.rmdir(name, dir_fd=parent)


def _remove(path: str) -> None:
    """Remove a folder or a file of the staging directory."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
    else:
        Path(path).unlink()


def _deepest(stack: ExitStack, staging: int, parent: int, plan: FolderPlan) -> tuple[int, int, str]:
    """Return what has to be moved: the open folder in the staging, that in the project, and the name.

    A parent that the project lacks is moved with all that is in it. Raises Conflict for a parent that is no
    folder.
    """
    source = stack.enter_context(opened_folder(plan.name, at=staging))
    target = stack.enter_context(opened_folder(plan.name, at=parent))
    *parents, last = plan.path.split("/")
    for name in parents:
        try:
            target = stack.enter_context(opened_folder(name, at=target))
        except FileNotFoundError:
            return source, target, name
        except OSError as error:
            told = f"{printable_name(name)} is no folder in the project: {error.strerror}."
            raise Conflict(told) from error
        source = stack.enter_context(opened_folder(name, at=source))
    return source, target, last


def _move(source: int, target: int, name: str) -> None:
    """Move a name into another folder, or exchange it with what has the name there, in one step."""
    try:
        os.stat(name, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = os.fsencode(name)
    if libc.renameat2(source, encoded, target, encoded, _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: this file system cannot exchange two names", name)
