"""Gives what root makes in a member's directory to its user. Shared by options and moves of nodes.

A member runs as that user, and would not start with a certificate that only root can read.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

_NOT_OURS: Final = frozenset({"lost+found"})  # of a file system, whose top a data directory may be
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hand_over_ownership(context: click.Context, _parameter: click.Parameter, directory: Path) -> Path:
    """For an option that names a directory: the owner of it has, in the end, what the command makes there."""
    context.call_on_close(lambda: hand_over(directory))
    return directory


def hand_over(directory: Path) -> None:
    """Give what root owns in a directory to the owner of it, as far as root's directories go.

    Nothing where this is not root, or root is that owner. The owner may write there meanwhile: no link is
    followed, and nothing is given that has a second name, which may be elsewhere.
    """
    if os.geteuid() != 0:
        return
    with suppress(OSError):  # there is none
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if (owner := os.fstat(descriptor)).st_uid != 0:
                _give(descriptor, owner)
        finally:
            os.close(descriptor)


def _give(directory: int, owner: os.stat_result) -> None:
    for name in sorted(set(os.listdir(directory)) - _NOT_OURS):
        with suppress(OSError):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if found.st_uid != 0 or found.st_dev != owner.st_dev:
                continue
            if stat.S_ISDIR(found.st_mode):
                _give_directory(name, directory, owner)
            elif found.st_nlink == 1:
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=directory, follow_symlinks=False)


def _give_directory(name: str, directory: int, owner: os.stat_result) -> None:
    """Change the owner of the contents first: until then no other user can change anything there."""
    descriptor = os.open(name, _OPEN, dir_fd=directory)
    try:
        _give(descriptor, owner)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)
