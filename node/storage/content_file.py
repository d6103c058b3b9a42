"""The file that receives content, of an upload or of a replica, until it has its place among the blobs.

This module alone implements the order of writes that makes a promise true. First the bytes are synced, and
the first time also the names that lead to them. Then a record of the number of bytes is written and synced
itself. A failed sync is never repeated: the kernel may have dropped the pages, and would report the second
try as a success. The file is `broken` then, and makes no further promise.

The three kinds of content differ in the order of their bytes, in what proves them, and in the record:

    an upload (`node/staging/upload_file.py`)       at its end    sha256 of pieces, and of all    an offset
    a replica that is pulled (`partial_blob.py`)    anywhere      sums of segments, sha256        spans
    a replica that is pushed (`blobs.py`)           at its end    sha256 of all                   none

Tested by tests/unit/node/storage/test_content_power_loss.py.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ca.errors import ChecksumMismatch
from node.diskio.fs import READ_FLAGS, DiskFailed, closing_descriptor, storage_error
from node.storage.blob_files import BlobFiles
from node.storage.segments import FinishedBlob, SegmentHasher, SegmentSums

OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Unreadable(DiskFailed):
    """The disk does not return the bytes that were written."""


class ContentFile:
    """A file below a temporary name. Blocks. Its owner prevents that two threads write at once."""

    def __init__(
        self, blobs: BlobFiles, data: int, *, name: str, directory: int, unsynced: Sequence[int] = ()
    ) -> None:
        """Open content with descriptor `data`, called `name` in `directory`.

        `unsynced`: the directories whose names a power cut may take away, the innermost first.
        """
        self.broken = False
        self._blobs, self._disk = blobs, blobs.disk
        self._data, self._name, self._directory = data, name, directory
        self._unsynced = unsynced

    def hash_until(self, hasher: SegmentHasher, stop: int) -> None:
        """Hash the bytes on the disk, from the position of the hasher to `stop`. Raises Unreadable."""
        try:
            hasher.update_from(self._data, stop)
        except (OSError, EOFError) as error:
            raise Unreadable("The disk does not return the bytes that were written.") from error

    def sync_names(self) -> None:
        """Make the name of the file durable, so that it survives a power cut. Raises OSError."""
        for directory in self._unsynced:
            self._disk.fsync(directory)
        self._unsynced = ()

    def _make_durable(self, record: Callable[[], None] | None, *, is_synced: bool = False) -> None:
        """Make all written bytes durable, then what `record` writes about them.

        Raises OSError, and the file is broken then. `is_synced`: nothing was written since the last sync.
        """
        if not is_synced:
            self._disk.fdatasync(self._data)
        if record is not None:
            self.sync_names()
            record()

    def _install(self, hasher: SegmentHasher, expected: FinishedBlob) -> None:
        """Make the content the blob, durable on return. `hasher` has processed all of it.

        Raises ChecksumMismatch if its hash differs; InsufficientStorage or Internal, and the file is broken
        then.
        """
        found = FinishedBlob(hasher.sha256(), hasher.size_bytes)
        if found != expected:
            raise ChecksumMismatch(f"The content is {found.size_bytes} bytes with sha256 {found.sha256}.")
        with self._breaking():
            self._place(found, hasher.sums())

    def _place(self, blob: FinishedBlob, sums: SegmentSums) -> None:
        """Move the content into its place. Raises OSError."""
        self._blobs.seal(self._data)
        self._blobs.install(blob, sums, source=self._name, parent=self._directory)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Mark the file broken if a disk call in here fails, as the state on the disk is then unknown.

        Raises the `storage_error`.
        """
        try:
            yield
        except OSError as error:
            self.broken = True
            raise storage_error(error) from error

    def _require_usable(self) -> None:
        if self.broken:
            raise DiskFailed(
                "An earlier write failed. The durable bytes are determined when the file is opened again."
            )


def open_or_create(name: str, *, parent: int) -> int:
    """Open or create a file for reading and writing. Raises OSError."""
    try:
        return os.open(name, OPEN_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        return os.open(name, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=parent)


def open_content(name: str, *, parent: int) -> int:
    """Open existing content, also if an unfinished `install` has sealed it."""
    with suppress(FileNotFoundError), closing_descriptor(os.open(name, READ_FLAGS, dir_fd=parent)) as found:
        if not os.fstat(found).st_mode & stat.S_IWUSR:
            os.fchmod(found, 0o600)
    return open_or_create(name, parent=parent)
