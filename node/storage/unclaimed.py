"""Blobs that came to this node and that the log has not been seen to know since.

    DIR/unclaimed/SHA256   empty; its time is that of the last arrival

A note is left before a blob gets its name, whoever brings it: an upload that ends here, a copy of another
node, a pull. The completion that was to claim it may be refused, or its process killed: then nothing else
says that the blob is here for nothing. `node/custody/orphans.py` asks the log, and takes notes away. They
survive the process and are not synced: what a power cut takes is found by the comparison with the log
(`node/custody/compare.py`). All calls block.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from node.base.identifiers import is_sha256
from node.diskio.fs import storage_error, unlink

DIRECTORY = "unclaimed"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Note:
    """A blob came; `at_ns` since the epoch, of the last time."""

    sha256: str
    at_ns: int


def note_unclaimed(directory: int, sha256: str) -> None:
    """Leave a note before the blob is put into place.

    A disk that takes no note takes no blob, or is no reason to refuse one.
    """
    with suppress(OSError):
        descriptor = os.open(sha256, _FLAGS, 0o600, dir_fd=directory)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)


def list_unclaimed(directory: int, limit: int) -> list[Note]:
    """Some of the notes, at most `limit`. Raises FilestoreError."""
    try:
        with os.scandir(directory) as entries:
            return list(islice(_notes(entries), limit))
    except OSError as error:
        raise storage_error(error) from error


def is_latest(directory: int, note: Note) -> bool:
    """Whether the blob has not come once more. Raises FilestoreError."""
    try:
        return os.stat(note.sha256, dir_fd=directory, follow_symlinks=False).st_mtime_ns == note.at_ns
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error) from error


def forget_unclaimed(directory: int, note: Note) -> None:
    """Take the note away, unless the blob has come once more. Raises FilestoreError."""
    try:
        if is_latest(directory, note):
            unlink(note.sha256, parent=directory)
    except OSError as error:
        raise storage_error(error) from error


def _notes(entries: Iterator[os.DirEntry[str]]) -> Iterator[Note]:
    for entry in entries:
        with suppress(OSError):  # it may just have gone
            if is_sha256(entry.name) and entry.is_file(follow_symlinks=False):
                yield Note(entry.name, entry.stat(follow_symlinks=False).st_mtime_ns)
