"""Blob replicas on one disk: small ones in packs, others as files of their own or as chunks (cold).

Other modules need not know which of these a blob is. A blob that arrived while the cluster had members of an
older release is a file of any size. If a blob has a file, its cold form is not read. All calls block.
"""

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from ca.errors import ChecksumMismatch, FilestoreError, Internal
from node.cold.manifests import COLD
from node.cold.reads import ReadLog
from node.diskio.durable import Disk, Octets, write_all
from node.diskio.fs import read_whole, storage_error, storage_errors, unlink
from node.packs.rows import PackedBlob
from node.packs.store import BLOB_BYTES_MAX
from node.storage.blob_files import PACKS, SIDECAR, BlobFiles, require_sha256
from node.storage.cold_blobs import ColdBlobs
from node.storage.content_file import ContentFile
from node.storage.packed_blobs import PackedBlobs, damage_error, identity_of
from node.storage.segments import (
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
    OpenBlob,
    SegmentHasher,
    SegmentSums,
    segment_digest,
)
from node.storage.unclaimed import UnclaimedBlobs
from node.storage.verified_segments import TrustedSegments

SYNC_BYTES = 64 << 20  # so that `IncomingBlob.finish` waits only for the rest


class IncomingBlob(ContentFile):
    """A replica that another node sends: its bytes in order, its name and size known.

    It ends with `finish`, `abort` or the process. Not for two threads at once.
    """

    def __init__(self, blobs: BlobFiles, expected: FinishedBlob) -> None:
        with storage_errors():
            name, data = blobs.create_incoming()
        super().__init__(blobs, data, name=name, directory=blobs.uploads_directory)
        self._expected = expected
        self._hasher = SegmentHasher()
        self._unsynced_bytes = 0

    @property
    def offset(self) -> int:
        """Return how many bytes have arrived."""
        return self._hasher.size_bytes

    def write(self, buffer: Octets) -> None:
        """Write the next bytes. Raises ChecksumMismatch beyond the size; InsufficientStorage, Internal."""
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
        """Check size and sha256, and put the blob into place; durable on return.

        Raises ChecksumMismatch, InsufficientStorage or Internal, and then keeps nothing.
        """
        try:
            self._require_usable()
            self._install(self._hasher, self._expected)
        finally:
            self.abort()
        return self._expected

    def abort(self) -> None:
        """Remove the bytes, unless the blob is in place already. May be called twice."""
        descriptor, self._data = self._data, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._name:
            self._blobs.leftovers.remove(self._name)

    def _place(self, blob: FinishedBlob, sums: SegmentSums) -> None:
        super()._place(blob, sums)
        self._name = ""  # the file has the name of the blob now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class BlobStore(BlobFiles):
    """The blobs of one directory. One per process and directory. For any thread."""

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk | None = None,
        trusted: TrustedSegments | None = None,
        maker: str = "",
        is_leftover: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        """Open the store; see `BlobFiles`. Raises OSError."""
        super().__init__(directory, disk=disk, trusted=trusted, maker=maker, is_leftover=is_leftover)
        self.packed = PackedBlobs(directory, self.disk, self.trusted)
        self.cold = ColdBlobs(directory, self)
        self.unclaimed = UnclaimedBlobs(self.unclaimed_directory, self.packed)
        self.reads = ReadLog(self.areas, maker)
        self.opened.asked = self.reads.note

    def close(self) -> None:
        """Close the store; blobs that were handed out stay readable."""
        self.cold.close()
        super().close()
        self.packed.close()

    def open(self, sha256: str, *, is_afresh: bool = False) -> OpenBlob:
        """Open a blob for reading; the caller closes it. Raises as `BlobFiles.open` does.

        `is_afresh`: bytes that are read at once, as of small content, come from the medium.
        """
        require_sha256(sha256)
        try:
            blob = self.packed.open(sha256, is_afresh=is_afresh)
        except BlobDamaged as damage:
            if damage.file is None or not self.out_of_service.covers_packed(sha256, damage.file):
                raise
            blob = None
        except OSError as error:
            return self._open_file(sha256, storage_error(error))
        if blob is not None and self.out_of_service.covers_packed(sha256, blob.identity()):
            blob.close()
            blob = None
        return self._open_unpacked(sha256) if blob is None else blob

    def has_name(self, sha256: str) -> bool:
        """Return whether a pack, a file or a manifest has the name of the blob. Raises FilestoreError."""
        if self._packed(sha256) is not None or self.has_file(sha256):
            return True
        with storage_errors():
            return self.cold.has_name(sha256)

    def has_file(self, sha256: str) -> bool:
        """Return whether a file has the name of the blob. Raises FilestoreError."""
        return super().has_name(sha256)

    def has(self, sha256: str) -> bool:
        """Return whether the blob is here, without reading any of it. Raises FilestoreError."""
        try:
            self.size_bytes(sha256)
        except (BlobMissing, BlobDamaged):
            return False
        return True

    def size_bytes(self, sha256: str) -> int:
        """Return the size of the blob, for a packed one without reading it. Raises as `open` does."""
        try:
            found = self._packed(sha256)
        except FilestoreError as error:
            with self._open_file(sha256, error) as blob:
                return blob.size_bytes
        if found is None or self.out_of_service.covers_packed(sha256, identity_of(found)):
            return super().size_bytes(sha256)
        try:
            if self.packed.is_within_pack(found):
                return found.length
        except OSError as error:
            raise storage_error(error) from error
        if self._packed(sha256) != found:  # it was moved to another pack meanwhile, or removed
            return self.size_bytes(sha256)
        raise damage_error(found)

    def iterate(self) -> Iterator[str]:
        """Yield the names of all blobs, ascending, each once."""
        latest = ""
        for sha256 in heapq.merge(super().iterate(), self._packed_names(), self._cold_names()):
            if sha256 != latest:
                yield sha256
            latest = sha256

    def delete(self, sha256: str, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Remove the blob, as `BlobFiles.delete` does."""
        removed = False
        if self._packed(sha256) is not None:
            try:
                removed = self.packed.remove(sha256, unless=unless)
            except OSError as error:
                raise storage_error(error) from error
            self.forget(sha256)
            if not removed:
                return False
        removed |= super().delete(sha256, unless=unless)
        with storage_errors():
            was_removed = removed
            removed |= self.cold.remove(sha256, unless=lambda: not was_removed and unless())
        self.forget(sha256)
        return removed

    def note_purged(self, sha256: str) -> None:
        """Have the packs of a blob rewritten soon after its deletion, so that its bytes do not stay there."""
        try:
            self.packed.store.index.note_purged([bytes.fromhex(sha256)])
            self.cold.note_purged(sha256)
        except OSError as error:
            raise storage_error(error) from error

    def affirm(self, sha256: str) -> bool:
        """Keep the blob for a while, as `BlobFiles.affirm` does."""
        require_sha256(sha256)
        try:
            if self.packed.affirm(sha256) or super().affirm(sha256) or self.cold.affirm(sha256):
                return True
            return super().affirm(sha256)  # a cold blob may have become a file meanwhile
        except OSError as error:
            raise storage_error(error) from error

    def affirmed_at_s(self, sha256: str) -> float:
        """Return when `affirm` was last called, otherwise when the blob arrived; since the epoch.

        Raises BlobMissing.
        """
        found = self._packed(sha256)
        if found is not None:
            return found.affirmed_at_ns / 1e9
        cold = self._cold_identity(sha256)
        return super().affirmed_at_s(sha256) if cold is None else cold[1] / 1e9

    def mark(self, sha256: str) -> tuple[int, int] | None:
        """Return a mark that changes when the blob arrives again or is affirmed; None if it is missing."""
        found = self._packed(sha256)
        if found is not None:
            return found.place.offset, found.affirmed_at_ns
        cold = self._cold_identity(sha256)
        return super().mark(sha256) if cold is None else (cold[0][1], cold[1])

    def identity(self, sha256: str) -> tuple[tuple[int, int], int]:
        """Return the identity of the blob, as `BlobFiles.identity` does."""
        found = self.packed.find(sha256)
        if found is not None:
            return identity_of(found), 0  # a record is written only once
        try:
            return super().identity(sha256)
        except FileNotFoundError:
            return self.cold.identity(sha256)

    def open_file(self, sha256: str) -> OpenBlob:
        """Open a blob that is a file. Raises as `open` does."""
        return super().open(sha256)

    def replace_by_cold(self, sha256: str, *, file: tuple[int, int], manifest: tuple[int, int]) -> bool:
        """Remove the file of a blob whose cold form is in place and proved; durable on return.

        Return False if it is another file, or another manifest, than these (device and inode): the content
        arrived again, or was deleted. Raises FilestoreError.
        """
        with storage_errors(), suppress(FileNotFoundError), self.placing, self.leaf(sha256) as leaf:
            identity, _ = self.cold.identity(sha256)
            if identity != manifest or super().identity(sha256)[0] != file:
                return False
            affirmed_at_ns = os.stat(sha256 + SIDECAR, dir_fd=leaf, follow_symlinks=False).st_mtime_ns
            self.cold.manifests.touch(sha256, affirmed_at_ns)
            unlink(sha256, parent=leaf)
            unlink(sha256 + SIDECAR, parent=leaf)
            self.forget(sha256)
            self.syncs.sync(self.disk, leaf, sha256[:4])
            return True
        return False

    def receive(self, expected_sha256: str, size_bytes: int) -> IncomingBlob:
        """Begin to receive content of known name and size, such as a replica from a peer."""
        require_sha256(expected_sha256)
        return IncomingBlob(self, FinishedBlob(expected_sha256, size_bytes))

    def install(self, blob: FinishedBlob, sums: SegmentSums, *, source: str, parent: int) -> None:
        """Give the content its name, as `BlobFiles.install` does, or add it to a pack; `source` is gone then.

        Raises OSError, or Internal if the disk returns other bytes.
        """
        if not self.packed.is_packable(blob.size_bytes):
            super().install(blob, sums, source=source, parent=parent)
            if blob.size_bytes <= BLOB_BYTES_MAX:  # in place of a packed blob, which may be damaged
                self.packed.remove(blob.sha256, unless=lambda: False)
            self.cold.remove(blob.sha256, unless=lambda: not self.has_file(blob.sha256))
            return
        content = read_whole(source, parent=parent, bytes_max=blob.size_bytes)
        if len(content) != blob.size_bytes or (content and segment_digest(content) != sums.digests):
            raise Internal("The disk of the node does not return the bytes that were written.")
        self._pack(blob.sha256, content)
        unlink(source, parent=parent)

    def pack(self, blobs: Sequence[tuple[str, Octets]]) -> None:
        """Store small blobs together, which hash to their names; all are durable on return.

        Raises InsufficientStorage or OSError, and then none is.
        """
        self.require_room(sum(len(content) for _, content in blobs))
        if self.packed.takes_new():
            self.packed.put(blobs)
            for sha256, _ in blobs:
                self.forget(sha256)
            return
        for sha256, content in blobs:  # this process does not know yet that all members read packs
            with self.receive(sha256, len(content)) as writer:
                writer.write(content)
                writer.finish()

    def sync_placement(self, sha256: str) -> None:
        """Make the name of the blob durable again; a packed one always is. Raises OSError."""
        if self.packed.find(sha256) is None:
            super().sync_placement(sha256)

    def _cold_identity(self, sha256: str) -> tuple[tuple[int, int], int] | None:
        """Return the identity of a cold blob; None if the blob has a file. Raises FilestoreError."""
        with storage_errors(), suppress(FileNotFoundError):
            if not self.has_file(sha256):
                return self.cold.identity(sha256)
        return None

    def _open_unpacked(self, sha256: str) -> OpenBlob:
        """Open a file or a cold blob, as `open` does."""
        try:
            return super().open(sha256)
        except BlobMissing:
            with storage_errors(), suppress(BlobMissing):
                return self.cold.open(sha256)
            return super().open(sha256)  # a cold blob may have become a file meanwhile

    def _open_file(self, sha256: str, failure: FilestoreError) -> OpenBlob:
        """Open a blob that is a file, while the index of the packs is unusable.

        Raises `failure` if there is none.
        """
        try:
            return self._open_unpacked(sha256)
        except BlobMissing:
            raise failure from None

    def _pack(self, sha256: str, content: Octets) -> None:
        """Store the blob in a pack. Raises OSError."""
        self.packed.put([(sha256, content)])
        self.forget(sha256)

    def _packed(self, sha256: str) -> PackedBlob | None:
        """Return the position of a packed blob, or None. Raises FilestoreError."""
        require_sha256(sha256)
        try:
            return self.packed.find(sha256)
        except OSError as error:
            raise storage_error(error) from error

    def look_again(self) -> None:
        """Try again what could not be listed or opened, as `BlobFiles.look_again` does."""
        super().look_again()
        if self.poison.names(PACKS):
            for _ in self._packed_names():
                pass
        if self.poison.names(COLD):
            for _ in self._cold_names():
                pass

    def are_indexes_usable(self) -> bool:
        """Return whether no index of packs was found damaged."""
        chunks = self.cold.chunks.opened
        return self.packed.store.index.is_usable and (chunks is None or chunks.index.is_usable)

    def heal(self) -> bool:
        """Rebuild the damaged indexes like `PackStore.heal`; return whether any was. Raises OSError."""
        chunks = self.cold.chunks.opened
        is_healed = chunks is not None and chunks.heal()
        return self.packed.heal() or is_healed

    def drop_changed(self) -> None:
        """Close blobs that are kept open and that another process has deleted. Raises OSError."""
        self.opened.drop_changed()
        self.packed.drop_gone()
        if (chunks := self.cold.chunks.opened) is not None:
            chunks.drop_gone()

    def _packed_names(self) -> Iterator[str]:
        with self.poison.skipping(PACKS, ""):
            yield from self.packed.names()

    def _cold_names(self) -> Iterator[str]:
        with self.poison.skipping(COLD, ""):
            yield from self.cold.manifests.names()
