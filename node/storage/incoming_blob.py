"""A blob on its way into the store in one piece, known by name and size, such as a replica from a peer.

All calls block: they belong into worker threads.
"""

import hashlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from ca.errors import ChecksumMismatch
from node.diskio.durable import Disk, Octets, write_all
from node.diskio.fs import storage_error, unlink
from node.storage.segments import FinishedBlob, SegmentHasher, SegmentSums

SYNC_BYTES = 64 << 20


class BlobPlace(Protocol):
    """Where the blob goes: the store, as far as a writer needs it.

    A Protocol, as `node.storage.blob_files`, which has the one class of this kind, imports this module.
    """

    disk: Disk
    uploads_directory: int

    def create_incoming(self) -> tuple[str, int]:
        """A new empty file below `uploads_directory`: its name and descriptor."""

    def seal(self, descriptor: int) -> None:
        """Make what was written durable, and the file read-only."""

    def install(self, blob: FinishedBlob, sums: SegmentSums, *, source: str, parent: int) -> None:
        """Give the content its name, durably."""


class ReplicaWriter(Protocol):
    """Content on its way into the store; `finish` or `abort` ends it. Not for two threads at once."""

    @property
    def offset(self) -> int:
        """How many bytes have come."""

    def write(self, buffer: Octets) -> None:
        """Take the next bytes. Raises ChecksumMismatch beyond the size; InsufficientStorage."""

    def finish(self) -> FinishedBlob:
        """Check size and sha256, and put the blob into place; durable on return.

        Raises ChecksumMismatch, InsufficientStorage or Internal; nothing is kept then.
        """

    def abort(self) -> None:
        """Remove what has come, unless it is in place already; again is harmless."""

    def __enter__(self) -> Self:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class SmallBlobWriter:
    """The same for a small blob, which is kept in memory until all of it is here."""

    def __init__(self, put: Callable[[str, bytes], None], expected: FinishedBlob) -> None:
        """`put` stores it under its name. Raises OSError."""
        self._put, self._expected = put, expected
        self._content = bytearray()

    @property
    def offset(self) -> int:
        """How many bytes have come."""
        return len(self._content)

    def write(self, buffer: Octets) -> None:
        """Takes the next bytes. Raises ChecksumMismatch beyond the size."""
        if self.offset + len(buffer) > self._expected.size_bytes:
            raise ChecksumMismatch(f"The content is longer than its {self._expected.size_bytes} bytes.")
        self._content += buffer

    def finish(self) -> FinishedBlob:
        """Checks size and sha256, and stores the blob, durably. Raises as `ReplicaWriter` has it."""
        content = bytes(self._content)
        found = FinishedBlob(hashlib.sha256(content).hexdigest(), len(content))
        if found != self._expected:
            raise ChecksumMismatch(f"The content is {found.size_bytes} bytes with sha256 {found.sha256}.")
        try:
            self._put(found.sha256, content)
        except OSError as error:
            raise storage_error(error) from error
        return found

    def abort(self) -> None:
        """Forgets what has come."""
        self._content.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class BlobWriter:
    """A `ReplicaWriter` for a blob that becomes a file."""

    def __init__(self, store: BlobPlace, expected: FinishedBlob) -> None:
        self._store = store
        self._expected = expected
        self._hasher = SegmentHasher()
        self._unsynced_bytes = 0
        try:
            self._name, self._fd = store.create_incoming()
        except OSError as error:
            raise storage_error(error) from error

    @property
    def offset(self) -> int:
        """How many bytes have come."""
        return self._hasher.size_bytes

    def write(self, buffer: Octets) -> None:
        """Writes and hashes the next bytes. Raises ChecksumMismatch beyond the size; InsufficientStorage."""
        if self.offset + len(buffer) > self._expected.size_bytes:
            raise ChecksumMismatch(f"The content is longer than its {self._expected.size_bytes} bytes.")
        try:
            write_all(self._store.disk, self._fd, buffer, self.offset)
        except OSError as error:
            self.abort()
            raise storage_error(error) from error
        self._hasher.update(buffer)
        self._unsynced_bytes += len(buffer)
        if self._unsynced_bytes >= SYNC_BYTES:
            self._sync()

    def finish(self) -> FinishedBlob:
        """Checks size and sha256, and puts the blob into place; durable on return.

        Raises ChecksumMismatch, InsufficientStorage or Internal; nothing is kept then. A failed sync is never
        tried again on the same file: the kernel may have dropped the pages, and a second one would lie.
        """
        found = FinishedBlob(self._hasher.sha256(), self.offset)
        try:
            if found != self._expected:
                raise ChecksumMismatch(f"The content is {found.size_bytes} bytes with sha256 {found.sha256}.")
            self._store.seal(self._fd)
            directory = self._store.uploads_directory
            self._store.install(found, self._hasher.sums(), source=self._name, parent=directory)
        except OSError as error:
            raise storage_error(error) from error
        finally:
            self.abort()
        return found

    def _sync(self) -> None:
        """So that whoever waits for `finish` waits for the rest only."""
        try:
            self._store.disk.fdatasync(self._fd)
        except OSError as error:
            self.abort()
            raise storage_error(error) from error
        self._unsynced_bytes = 0

    def abort(self) -> None:
        """Removes what has come, unless it is in place already; again is harmless."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)
            unlink(self._name, parent=self._store.uploads_directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
