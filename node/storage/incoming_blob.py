"""A replica that another node pushes: its bytes in order, known by name and size. It ends with the process.

All calls block: they belong into worker threads.
"""

import os
from typing import Self

from ca.errors import ChecksumMismatch
from node.diskio.durable import Octets, write_all
from node.diskio.fs import storage_errors
from node.storage.blob_files import BlobFiles
from node.storage.content_file import ContentFile
from node.storage.segments import FinishedBlob, SegmentHasher, SegmentSums

SYNC_BYTES = 64 << 20  # so that whoever waits for `finish` waits for the rest only


class IncomingBlob(ContentFile):
    """One of them; `finish` or `abort` ends it. Not for two threads at once."""

    def __init__(self, blobs: BlobFiles, expected: FinishedBlob) -> None:
        with storage_errors():
            name, data = blobs.create_incoming()
        super().__init__(blobs, data, name=name, directory=blobs.uploads_directory)
        self._expected = expected
        self._hasher = SegmentHasher()
        self._unsynced_bytes = 0

    @property
    def offset(self) -> int:
        """How many bytes have come."""
        return self._hasher.size_bytes

    def write(self, buffer: Octets) -> None:
        """Takes the next bytes. Raises ChecksumMismatch beyond the size; InsufficientStorage, Internal."""
        if self.offset + len(buffer) > self._expected.size_bytes:
            raise ChecksumMismatch(f"The content is longer than its {self._expected.size_bytes} bytes.")
        self._require_usable()
        with self._breaking():
            write_all(self._disk, self._data, buffer, self.offset)
            self._hasher.update(buffer)
            self._unsynced_bytes += len(buffer)
            if self._unsynced_bytes >= SYNC_BYTES:
                self._make_durable(None)
                self._unsynced_bytes = 0

    def finish(self) -> FinishedBlob:
        """Checks size and sha256, and puts the blob into place; durable on return.

        Raises ChecksumMismatch, InsufficientStorage or Internal; nothing is kept then.
        """
        try:
            self._require_usable()
            self._install(self._hasher, self._expected)
        finally:
            self.abort()
        return self._expected

    def abort(self) -> None:
        """Removes what has come, unless it is in place already; again is harmless."""
        descriptor, self._data = self._data, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._name:
            self._blobs.leftovers.remove(self._name)

    def _place(self, blob: FinishedBlob, sums: SegmentSums) -> None:
        super()._place(blob, sums)
        self._name = ""  # it has another one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()
