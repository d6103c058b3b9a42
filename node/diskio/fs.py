"""Files and directories below a directory's descriptor, and the errors of a failing disk.

No link is followed at any level, and new files are private to the node. All calls block.

Tested by tests/unit/node/diskio/test_unusable_paths.py.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ca.errors import FilestoreError, InsufficientStorage, Internal
from runtime.lifetime import out_of_descriptors

# O_NONBLOCK: a pipe that someone put in a file's place must not hang the thread that opens it.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
DEPTH_MAX = 8  # of a directory that is removed with all that is in it
# What a disk says that fails, or that the kernel has given up; other errors would be the same elsewhere.
FAILURES = frozenset({errno.EIO, errno.EROFS, errno.EUCLEAN, errno.ENXIO, errno.ENODEV, errno.ESTALE})
# What file systems answer when the medium is at fault; other errors say nothing about what was to be read.
MEDIUM_ERRORS = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EILSEQ, errno.ENODATA})
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(name: str, *, parent: int) -> int:
    """A descriptor of a directory below `parent`, which must not be a link. Raises OSError."""
    return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Closed at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_directory(name: str, *, parent: int) -> Iterator[int]:
    """Open a directory with `open_directory`, and close it at the end."""
    with closing_descriptor(open_directory(name, parent=parent)) as descriptor:
        yield descriptor


def mkdir(name: str, *, parent: int) -> bool:
    """Makes a directory below `parent`; False if it was there. Raises OSError."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def make_directory(name: str, *, parent: int) -> int:
    """A descriptor of a directory below `parent`, made if it is missing; a full disk opens one that is there.

    Raises OSError.
    """
    try:
        return open_directory(name, parent=parent)
    except FileNotFoundError:
        mkdir(name, parent=parent)
    return open_directory(name, parent=parent)


def read_whole(name: str, *, parent: int, bytes_max: int) -> bytes:
    """A small regular file's content, one byte over `bytes_max` at most. Raises OSError."""
    descriptor = os.open(name, READ_FLAGS, dir_fd=parent)
    try:
        content = bytearray()
        while len(content) <= bytes_max:
            chunk = os.read(descriptor, bytes_max + 1 - len(content))
            if not chunk:
                break
            content += chunk
        return bytes(content)
    finally:
        os.close(descriptor)


def unlink(name: str, *, parent: int) -> bool:
    """Removes a file below `parent`; False if it was not there. Raises OSError."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


def remove_tree(name: str, *, parent: int, depth_max: int = DEPTH_MAX) -> None:
    """Removes a file, a link, or a directory with what is in it below `parent`; links are never followed.

    Raises OSError, of a directory that is deeper than `depth_max` too: nothing of ours is.
    """
    try:
        descriptor = open_directory(name, parent=parent)
    except NotADirectoryError:
        unlink(name, parent=parent)
        return
    try:
        for inner in os.listdir(descriptor):
            try:
                os.unlink(inner, dir_fd=descriptor)
            except IsADirectoryError:
                if not depth_max:
                    raise
                remove_tree(inner, parent=descriptor, depth_max=depth_max - 1)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=parent)


class DiskFull(InsufficientStorage):
    """This node's disk has no room."""

    lasts = True


class DiskRefused(Internal):
    """This node's disk does not do what it is asked."""


class DiskFailed(DiskRefused):
    """This node's disk failed; another node may still accept the bytes."""

    lasts = True


def storage_error(error: OSError) -> FilestoreError:
    """Convert a failed disk call to an error for the caller: no room, no descriptor, or an internal error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("The disk of the node that was to store this is full.")
    message = f"The disk failed: {os.strerror(error.errno or errno.EIO)}."
    refused = DiskFailed(message) if error.errno in FAILURES else DiskRefused(message)
    return out_of_descriptors(error) or refused


@contextmanager
def storage_errors() -> Iterator[None]:
    """Convert disk errors of the enclosed code with `storage_error`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error) from error
