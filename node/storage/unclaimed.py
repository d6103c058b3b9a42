"""Blobs that arrived and that the log may not know. Shared by the store and orphans.

    DIR/unclaimed/SHA256   empty; its time is that of the last arrival

Before a blob gets its name, a note is left: for a finished upload, a copy from another node or a pull. The
note of a packed blob is in the index of the packs. If the completion that was to claim the blob is rejected,
or its process is killed, only the note says that the blob is not needed. `node/custody/orphans.py` asks the
log and removes notes. They survive the process and are not synced: the comparison with the log
(`node/custody/compare.py`) finds what a power cut takes. All calls block.

Tested by tests/unit/node/custody/test_orphans.py.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from metadata.model.identifiers import is_sha256
from node.diskio.fs import storage_error, unlink
from node.storage.packed_blobs import PackedBlobs

DIRECTORY = "unclaimed"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Note:
    """A note that a blob arrived; `at_ns`: when it last did, since the epoch."""

    sha256: str
    at_ns: int


def note_unclaimed(directory: int, sha256: str) -> None:
    """Leave a note before the blob is put into place.

    If the disk accepts no note, it accepts no blob either, or the note is not needed.
    """
    with suppress(OSError):
        descriptor = os.open(sha256, _FLAGS, 0o600, dir_fd=directory)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)


class UnclaimedBlobs:
    """The notes of one store. Each call raises FilestoreError if the disk refuses."""

    def __init__(self, directory: int, packed: PackedBlobs) -> None:
        """Use the notes in `directory`, a descriptor."""
        self._directory, self._packed = directory, packed

    def some(self, limit: int) -> list[Note]:
        """Return up to `limit` of them, of files and of packed blobs."""
        try:
            with os.scandir(self._directory) as entries:
                found = list(islice(_notes(entries), limit))
            return found + [Note(*each) for each in self._packed.list_unclaimed(limit - len(found))]
        except OSError as error:
            raise storage_error(error) from error

    def is_latest(self, note: Note) -> bool:
        """Return whether the blob has not arrived again."""
        return note.at_ns in self._times(note.sha256)

    def forget(self, note: Note) -> None:
        """Remove the note, unless the blob has arrived again."""
        try:
            self._packed.forget_unclaimed(note.sha256, note.at_ns)
            if note.at_ns in self._times(note.sha256):
                unlink(note.sha256, parent=self._directory)
        except OSError as error:
            raise storage_error(error) from error

    def forget_all(self, sha256: str) -> None:
        """Remove the notes of a blob, of any time. Raises OSError."""
        for at_ns in self._times(sha256):
            self.forget(Note(sha256, at_ns))

    def _times(self, sha256: str) -> set[int]:
        """Return when the blob arrived, according to its notes."""
        try:
            packed_at_ns = self._packed.unclaimed_at_ns(sha256)
            found = set() if packed_at_ns is None else {packed_at_ns}
            with suppress(FileNotFoundError):
                found.add(os.stat(sha256, dir_fd=self._directory, follow_symlinks=False).st_mtime_ns)
        except OSError as error:
            raise storage_error(error) from error
        return found


def _notes(entries: Iterator[os.DirEntry[str]]) -> Iterator[Note]:
    for entry in entries:
        with suppress(OSError):  # the note may just have been removed
            if is_sha256(entry.name) and entry.is_file(follow_symlinks=False):
                yield Note(entry.name, entry.stat(follow_symlinks=False).st_mtime_ns)
