"""The blobs out of service on one disk: damaged replicas, and blobs that the log does not know.

A blob in quarantine does not count, but its intact segments are sent to nodes without another source
(`node/peer/salvage.py`). It is restored if its bytes match its name and a replica is wanted here; it is
deleted for good by `purge`. One copy is kept per name: a later one takes the place of the earlier. All calls
block: they belong into worker threads, and may come from several at once.

Tested by tests/unit/node/storage/test_packed_damage.py.
"""

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from metadata.model.identifiers import is_sha256
from node.base.spans import Coverage, Span
from node.diskio.fs import READ_FLAGS, read_whole, remove_tree, storage_error, unlink
from node.packs.rows import PackedBlob
from node.storage.blob_files import SIDECAR, require_sha256
from node.storage.blobs import BlobStore
from node.storage.packed_blobs import identity_of, memory_descriptor, sums_of
from node.storage.segments import (
    DIGEST_BYTES,
    SEGMENT_BYTES,
    BlobDamaged,
    FinishedBlob,
    SegmentSums,
    SidecarInvalid,
    decode_sidecar_alone,
    encode_sidecar,
    read_segment,
    segment_digest,
)

SIDECAR_BYTES_MAX: Final = 64 << 20  # of a blob of 32 TiB

_NAME = "quarantine"  # of its directory, among those that could not be synced
AREA, QUARANTINED = (
    "quarantine",
    "kept",
)  # areas of `UnusablePaths`: files that cannot be examined, restored or purged


class Quarantine:
    """The quarantine of one blob store; holds nothing itself."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._directory = blobs.quarantine_directory

    def take(
        self,
        sha256: str,
        damage: BlobDamaged | None = None,
        *,
        unless: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Move the blob to quarantine; return False if it was not there.

        With `damage`, only the file that was found damaged is moved: if another file has its place now, that
        stays, and the result is False. The result is also False if `unless` returns True; it is called while
        no blob is placed or removed. Raises FilestoreError if the disk refuses. Calling it again makes an
        earlier move durable.
        """
        require_sha256(sha256)
        try:
            while (found := self._packed(sha256, damage)) is not None:
                if unless():
                    return False
                if self._take_packed(found, damage):
                    return True  # otherwise the blob arrived again meanwhile, or was affirmed
            with self._blobs.placing, self._blobs.leaf(sha256) as leaf:
                try:
                    facts = os.stat(sha256, dir_fd=leaf, follow_symlinks=False)
                except FileNotFoundError:
                    return self._is_moved_anew(sha256, leaf)
                if unless() or (damage is not None and not self._is_still(damage, facts)):
                    return False
                self._remove(sha256)
                os.rename(sha256, sha256, src_dir_fd=leaf, dst_dir_fd=self._directory)
                with suppress(FileNotFoundError):
                    name = sha256 + SIDECAR
                    if damage is not None and damage.is_other_content:
                        os.unlink(name, dir_fd=leaf)  # the sidecar would vouch for that content
                    else:
                        os.rename(name, name, src_dir_fd=leaf, dst_dir_fd=self._directory)
                self._blobs.forget(sha256)
                self._sync(sha256, leaf)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error) from error
        return True

    def names(self) -> list[tuple[str, int]]:
        """Return the names in quarantine, ascending, each with the time of its move in ms since the epoch."""
        poison, names, found = self._blobs.poison, list[str](), list[tuple[str, int]]()
        with poison.skipping(AREA, ""):
            names = sorted(filter(is_sha256, os.listdir(self._directory)))
            poison.keep(AREA, names)
            poison.keep(QUARANTINED, names)
        for name in names:
            with poison.skipping(AREA, name), suppress(FileNotFoundError):
                entry = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
                found.append((name, entry.st_ctime_ns // 1_000_000))
        return found

    def changed_at_ns(self) -> int:
        """Return when a file was last moved in or out, since the epoch; 0 if the disk does not report it.

        Lists nothing.
        """
        try:
            return os.fstat(self._directory).st_mtime_ns
        except OSError:
            return 0

    def look_again(self) -> None:
        """Try again the files that could not be examined."""
        if self._blobs.poison.names(AREA):
            self.names()

    def purge(self, sha256: str) -> bool:
        """Delete the blob from quarantine for good, durably; return False if it was not there.

        Raises FilestoreError.
        """
        require_sha256(sha256)
        try:
            with self._blobs.placing:
                removed = self._remove(sha256)
                if removed or self._blobs.syncs.is_due(_NAME):
                    self._blobs.syncs.sync(self._blobs.disk, self._directory, _NAME)
        except OSError as error:
            raise storage_error(error) from error
        return removed

    def open(self, sha256: str) -> "QuarantinedBlob | None":
        """Open a blob in quarantine to be read; None if there is none, or no readable file.

        A file that could not be moved is read in its original place.
        """
        require_sha256(sha256)
        found = self._open(sha256, self._directory)
        if found is None and self._blobs.out_of_service.names([sha256]):
            with suppress(OSError):
                found = self._open_packed(sha256)
                if found is None:
                    with self._blobs.leaf(sha256) as leaf:
                        found = self._open(sha256, leaf, is_moved=False)
        return found

    def _packed(self, sha256: str, damage: BlobDamaged | None) -> PackedBlob | None:
        """Return the record to move to quarantine, or None. Raises OSError."""
        for found in self._blobs.packed.copies(sha256):
            if damage is None or damage.file == identity_of(found):
                return found
        return None

    def _take_packed(self, found: PackedBlob, damage: BlobDamaged | None) -> bool:
        """Copy a record as it is on the disk, and remove it from the pack. Raises OSError.

        A crash between the two leaves both. If the blob arrived again meanwhile, no copy stays here.
        Nothing is copied from a pack that is missing or too short.
        """
        blobs, sha256 = self._blobs, found.sha256.hex()
        raw = blobs.packed.read_damaged(found)
        if found.length and not raw:
            return self._forget_packed(found)
        with blobs.incoming(raw) as content, blobs.incoming(encode_sidecar(sums_of(found))) as sidecar:
            with blobs.placing:
                self._remove(sha256)
                os.rename(content, sha256, src_dir_fd=blobs.uploads_directory, dst_dir_fd=self._directory)
                # Otherwise the sidecar would vouch for that content.
                if damage is None or not damage.is_other_content:
                    name = sha256 + SIDECAR
                    os.rename(sidecar, name, src_dir_fd=blobs.uploads_directory, dst_dir_fd=self._directory)
                else:
                    blobs.leftovers.remove(sidecar)
            blobs.syncs.sync(blobs.disk, self._directory, _NAME)
            if self._forget_packed(found):
                return True
            with blobs.placing:
                self._remove(sha256)
            return False

    def _forget_packed(self, found: PackedBlob) -> bool:
        is_gone = self._blobs.packed.remove_copy(found)
        if is_gone:
            self._blobs.forget(found.sha256.hex())
        return is_gone

    def _open_packed(self, sha256: str) -> "QuarantinedBlob | None":
        """Open the record that is out of service and still in its place."""
        for found in self._blobs.packed.copies(sha256):
            if self._blobs.out_of_service.covers_packed(sha256, identity_of(found)):
                descriptor = memory_descriptor(self._blobs.packed.read_damaged(found))
                sums = sums_of(found)
                return QuarantinedBlob(self._blobs, self._directory, sha256, descriptor, sums, is_moved=False)
        return None

    def _open(self, sha256: str, directory: int, *, is_moved: bool = True) -> "QuarantinedBlob | None":
        try:
            facts = os.stat(sha256, dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISREG(facts.st_mode):
                return None
            if not facts.st_mode & stat.S_IRUSR:  # another program has removed the permission to read
                os.chmod(sha256, 0o400, dir_fd=directory)
            descriptor = os.open(sha256, READ_FLAGS, dir_fd=directory)
        except OSError:
            return None
        if not (is_moved or self._blobs.out_of_service.covers(sha256, descriptor)):
            os.close(descriptor)
            return None
        sums = _sums(sha256, directory)
        return QuarantinedBlob(self._blobs, self._directory, sha256, descriptor, sums, is_moved=is_moved)

    def _is_moved_anew(self, sha256: str, leaf: int) -> bool:
        """Make an earlier move durable that was not; return whether there was one. Raises OSError."""
        syncs = self._blobs.syncs
        if not (syncs.is_due(_NAME) or syncs.is_due(sha256[:4])):
            return False
        self._sync(sha256, leaf)
        # FileNotFoundError: the file was not moved
        os.stat(sha256, dir_fd=self._directory, follow_symlinks=False)
        return True

    def _sync(self, sha256: str, leaf: int) -> None:
        blobs = self._blobs
        try:
            blobs.syncs.sync(blobs.disk, self._directory, _NAME)
        finally:  # each call remembers its own failure
            blobs.syncs.sync(blobs.disk, leaf, sha256[:4])

    def _is_still(self, damage: BlobDamaged, facts: os.stat_result) -> bool:
        """Return whether the file under the name is the one that was found damaged."""
        if damage.file is not None:
            return damage.file == (facts.st_dev, facts.st_ino)
        return not self._blobs.has(damage.sha256)

    def _remove(self, sha256: str) -> bool:
        unlink(sha256 + SIDECAR, parent=self._directory)
        try:
            remove_tree(sha256, parent=self._directory)
        except FileNotFoundError:
            return False
        return True


def _sums(sha256: str, directory: int) -> SegmentSums | None:
    """Return the checksums in the sidecar of a copy; None if they are unusable."""
    try:
        raw = read_whole(sha256 + SIDECAR, parent=directory, bytes_max=SIDECAR_BYTES_MAX)
        return decode_sidecar_alone(raw)
    except (OSError, SidecarInvalid):
        return None


class QuarantinedBlob:
    """A file in quarantine that is being read, piece by piece.

    The reading shows whether the content matches its name, and which segments do not match their checksums.
    """

    def __init__(
        self,
        blobs: BlobStore,
        directory: int,
        sha256: str,
        descriptor: int,
        sums: SegmentSums | None,
        *,
        is_moved: bool = True,
    ) -> None:
        """Begin to read a file with these checksums of its sidecar.

        `is_moved`: the file is in quarantine. Otherwise it is still in its original place.
        """
        self._blobs = blobs
        self._directory = directory
        self._sha256 = sha256
        self._fd = descriptor
        self._whole = hashlib.sha256()
        self._digests = bytearray()
        self._unreadable: set[int] = set()  # segments
        self.sums = sums
        self._is_moved = is_moved
        self.offset = 0  # this many bytes were read
        facts = os.fstat(descriptor)
        self.size_bytes = facts.st_size
        self.identity = facts.st_ino, facts.st_ctime_ns  # changes with any change of the file

    def read(self, size_bytes: int) -> None:
        """Read this many more bytes, in whole segments.

        Bytes that the medium does not return count as wrong. Raises FilestoreError.
        """
        stop = min(self.offset + size_bytes, self.size_bytes)
        while self.offset < stop:
            self._read_segment()

    def read_segment(self, index: int) -> bytes | None:
        """Read a segment with `node.storage.segments.read_segment`."""
        return read_segment(self._fd, index, self.size_bytes)

    def wrong_spans(self) -> list[Span]:
        """Return the spans that are known to be wrong so far, and at the end all that are missing."""
        if self.sums is None:
            wrong = sorted(self._unreadable)
        else:
            wrong = [
                index
                for index in range(len(self._digests) // DIGEST_BYTES)
                if index in self._unreadable
                or self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] != self.sums.digest(index)
            ]
        size_bytes = self.size_bytes if self.sums is None else self.sums.size_bytes
        spans = Coverage(
            (index * SEGMENT_BYTES, min((index + 1) * SEGMENT_BYTES, size_bytes))
            for index in wrong
            if index * SEGMENT_BYTES < size_bytes
        )
        if self.size_bytes < size_bytes:
            spans.add(self.size_bytes // SEGMENT_BYTES * SEGMENT_BYTES, size_bytes)
        return spans.spans

    def put_back(self) -> bool:
        """Put a file that was read to its end into service again, durably; return False if it is not sound.

        Raises FilestoreError.
        """
        if self.offset != self.size_bytes or self._unreadable or self._whole.hexdigest() != self._sha256:
            return False
        sums = SegmentSums(self.size_bytes, bytes(self._digests))
        if not self._is_moved:  # the disk could not read the file in its place
            return self.sums == sums and self._blobs.reinstate(self._sha256)
        try:
            named = os.stat(self._sha256, dir_fd=self._directory, follow_symlinks=False)
            if not os.path.samestat(named, os.fstat(self._fd)):
                return False
            self._blobs.seal(self._fd)
            blob = FinishedBlob(self._sha256, self.size_bytes)
            self._blobs.install(blob, sums, source=self._sha256, parent=self._directory)
            unlink(self._sha256 + SIDECAR, parent=self._directory)
            self._blobs.syncs.sync(self._blobs.disk, self._directory, _NAME)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error) from error
        return True

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _read_segment(self) -> None:
        """Read the next segment."""
        index = self.offset // SEGMENT_BYTES
        content = self.read_segment(index)
        if content is None:
            self._unreadable.add(index)
            self._digests += bytes(DIGEST_BYTES)
        else:
            self._whole.update(content)
            self._digests += segment_digest(content)
        self.offset = min((index + 1) * SEGMENT_BYTES, self.size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
