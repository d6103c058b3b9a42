"""Blobs that came and that the log has not been seen to know. Shared by the store and orphans.

    DIR/unclaimed/SHA256   empty; its time is that of the last arrival

A note is left before a blob gets its name, whoever brings it: an upload that ends here, a copy of another
node, a pull; of a packed blob it lies in the index of the packs. The completion that was to claim it may be
refused, or its process killed: then nothing else says that the blob is here for nothing.
`node/custody/orphans.py` asks the log, and takes notes away. They survive the process and are not synced:
what a power cut takes is found by the comparison with the log (`node/custody/compare.py`). All calls block.
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


class UnclaimedBlobs:
    """The notes of one store. Raises FilestoreError, from every call, when the disk refuses."""

    def __init__(self, directory: int, packed: PackedBlobs) -> None:
        """`directory`: a descriptor of that of the notes."""
        self._directory, self._packed = directory, packed

    def some(self, limit: int) -> list[Note]:
        """At most `limit` of them, of files and of packed blobs."""
        try:
            with os.scandir(self._directory) as entries:
                found = list(islice(_notes(entries), limit))
            return found + [Note(*each) for each in self._packed.unclaimed(limit - len(found))]
        except OSError as error:
            raise storage_error(error) from error

    def is_latest(self, note: Note) -> bool:
        """Whether the blob has not come once more."""
        return note.at_ns in self._times(note.sha256)

    def forget(self, note: Note) -> None:
        """Take the note away, unless the blob has come once more."""
        try:
            self._packed.forget_unclaimed(note.sha256, note.at_ns)
            if note.at_ns in self._times(note.sha256):
                unlink(note.sha256, parent=self._directory)
        except OSError as error:
            raise storage_error(error) from error

    def forget_all(self, sha256: str) -> None:
        """Take the notes of a blob away, whenever it came. Raises OSError."""
        for at_ns in self._times(sha256):
            self.forget(Note(sha256, at_ns))

    def _times(self, sha256: str) -> set[int]:
        """When it came, by the notes that there are."""
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
        with suppress(OSError):  # it may just have gone
            if is_sha256(entry.name) and entry.is_file(follow_symlinks=False):
                yield Note(entry.name, entry.stat(follow_symlinks=False).st_mtime_ns)
