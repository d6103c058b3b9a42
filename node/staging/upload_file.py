"""One upload in progress: its bytes are received, synced, rolled back, and put into place at the end.

`node/staging/upload_store.py` describes the files, and the order of writes that makes an offset true.
Blocking.

Tested by tests/unit/node/staging/test_upload_syncing.py.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import Self

from ca.errors import (
    ChecksumMismatch,
    Conflict,
    FilestoreError,
    OffsetMismatch,
    PayloadTooLarge,
    Unavailable,
)
from node.diskio.durable import Octets, OffsetRecord, write_all
from node.diskio.fs import storage_errors
from node.diskio.parallel import ParallelParts
from node.diskio.writeback import FlushThreads, HeadStart
from node.staging.resumed_hash import HashingUnfinished, PrefixHash
from node.storage.blobs import BlobStore
from node.storage.content_file import ContentFile, open_or_create
from node.storage.segments import (
    SEGMENT_BYTES,
    Checkpoint,
    FinishedBlob,
    SegmentHasher,
    encode_finished,
    md5_of,
)

EPOCH_FILE = "epoch"
SYNC_BYTES = 32 * 1024 * 1024  # sync after this many new bytes
SYNC_S = 5.0  # or when a byte is this old: the most that a crash costs a slow client
UNSYNCED_BYTES_MAX = 4 * SYNC_BYTES  # writers wait beyond this; a crash costs no more
BESIDE_BYTES = 1 << 20  # this many new bytes are worth a second thread
PREALLOCATED_BYTES = 64 << 20  # reserved at once, so that a large file has few fragments

_log = logging.getLogger(__name__)


class UploadFile(ContentFile):
    """The bytes of one upload on this disk, for one caller until `close`. Not for two threads at once.

    Once it is `broken`, everything raises Internal until it is closed and opened again. That returns to the
    last durable offset, syncs it again, and reads it back from the disk.

    Beyond SYNC_BYTES or SYNC_S a sync runs in the background while more bytes arrive. Every call that depends
    on durable bytes waits for it first.
    """

    def __init__(
        self,
        blobs: BlobStore,
        file_uuid: str,
        *,
        give_back: Callable[["UploadFile"], None],
        threads: FlushThreads,
        parallel: ParallelParts,
        clock_s: Callable[[], float] = time.monotonic,
        directory: int,
        data: int,
        is_new: bool,
        record: OffsetRecord,
        finished: FinishedBlob | None,
        with_md5: bool,
        epoch: int = 0,
    ) -> None:
        """Created by `UploadStore.open` only, which also calls `recover`. `data` is -1 once it is `finished`.

        `is_new`: none of its names is durable.
        """
        unsynced = (directory, blobs.uploads_directory) if is_new else ()
        super().__init__(blobs, data, name="data", directory=directory, unsynced=unsynced)
        self.file_uuid = file_uuid
        self.size_bytes: int | None = None
        self.finished = finished
        self.with_md5 = with_md5
        self.epoch = epoch  # the epoch of the log in which these bytes arrived
        self._give_back = give_back
        self._record = record
        self._hasher = SegmentHasher(with_md5=with_md5)
        self._md5_finished = ""
        self._withheld: Checkpoint | None = None
        self._durable = self._hasher.checkpoint()
        self._unsynced_bytes = 0
        self._unsynced_since_s = 0.0
        self._clock_s = clock_s
        self._behind = threads.for_file()
        self._parallel = parallel
        self._behind_target = self._durable
        self._head_start = HeadStart(self._disk, data)
        self.prefix: PrefixHash | None = None  # of bytes that are still here; for the event loop
        # Room is reserved up to here; None: the file system cannot reserve.
        self._allocated_bytes: int | None = 0

    @property
    def offset(self) -> int:
        """Return how many bytes were written and hashed; not all of them may be durable."""
        return self.finished.size_bytes if self.finished else self._hasher.size_bytes

    @property
    def durable_offset(self) -> int:
        """Return how many bytes survive a crash, so may be reported to clients. Any thread may read it."""
        finished = self.finished
        return finished.size_bytes if finished else self._record.offset

    @property
    def sendable_offset(self) -> int:
        """Return how many bytes may be sent to other nodes: none of a piece whose checksum is unverified."""
        held = self._withheld  # another thread may set it to None
        return self.offset if held is None else held.size_bytes

    @property
    def sha256(self) -> str:
        """Return the hash of the bytes up to `offset`, 64 lower-case hexadecimal digits."""
        return self.finished.sha256 if self.finished else self._hasher.sha256()

    def require_room(self, size_bytes: int) -> None:
        """Raise InsufficientStorage if the disk has no room for content of this size, from its start."""
        self._blobs.require_room(size_bytes - max(self.offset, self._allocated_bytes or 0))

    def append(self, *buffers: Octets) -> int:
        """Write the next bytes, all or none; return the new offset.

        Starts a sync when one is due, and waits for the disk only when it is UNSYNCED_BYTES_MAX behind.
        Raises PayloadTooLarge beyond the declared size, Conflict after `finish`; InsufficientStorage and
        Internal if the disk refuses. The upload is then at its durable offset, or broken after a failed sync.
        """
        self._require_writable()
        offset, size_bytes = self.offset, sum(map(len, buffers))
        if self.size_bytes is not None and offset + size_bytes > self.size_bytes:
            raise PayloadTooLarge(f"The upload was declared with {self.size_bytes} bytes.")
        self._preallocate(offset + size_bytes)
        try:
            self.require_room(offset + size_bytes)
            with storage_errors():
                self._take(buffers, offset, size_bytes)
        except FilestoreError:
            self._end_behind()
            self._go_back(self._durable)
            raise
        if not self._unsynced_bytes:
            self._unsynced_since_s = self._clock_s()
        self._unsynced_bytes += size_bytes
        self._sync_behind()
        return self.offset

    def sync(self) -> int:
        """Make all bytes durable that are not withheld; return the durable offset.

        Raises InsufficientStorage or Internal; the upload is broken then.
        """
        self._require_usable()
        if self.finished:
            return self.durable_offset
        self._end_behind()
        target = self._withheld or self._hasher.checkpoint()
        with self._breaking():
            self._make_durable(self._recording(target), is_synced=not self._unsynced_bytes)
        self._unsynced_bytes = 0
        self._durable = target
        return target.size_bytes

    def begin_sync(self) -> None:
        """Let a thread of the store do what `sync` does; do nothing while one is running.

        `durable_offset` shows when it has finished; the next call here raises its error.
        """
        self._require_usable()
        if self.finished or self._behind.is_running:
            return
        self._end_behind()
        if self._unsynced_bytes:
            self._behind_target = self._withheld or self._hasher.checkpoint()
            self._behind.begin(partial(self._make_durable, self._recording(self._behind_target)))
            self._head_start.note_sync(self.offset)
            self._unsynced_bytes = 0  # all are part of this sync

    def withhold(self) -> None:
        """Hold the durable offset until `release`: the next bytes have a checksum that is not verified yet.

        So neither a crash nor a status request makes unverified bytes final.
        """
        self._require_writable()
        self._withheld = self._hasher.checkpoint()

    def release(self) -> None:
        """Allow the bytes to become durable: they were verified, or belong to a whole that will be."""
        self._withheld = None

    def drop_withheld(self) -> None:
        """Drop the bytes since `withhold`: their end did not arrive, so their checksum cannot be verified."""
        if self._withheld is not None and not self.broken:
            self.rollback_to(self._withheld.size_bytes)

    def rollback_to(self, offset: int) -> None:
        """Drop the bytes from `offset` on, such as a piece with a wrong checksum.

        Nothing is withheld then. An offset below the durable one is recorded first: bytes that arrive later
        in the same place must not count as the durable ones. Does nothing if a failed write has returned
        further. Raises Internal.
        """
        self._require_writable()
        assert offset >= 0
        if offset >= self.offset:
            self._withheld = None
            return
        self._end_behind()
        known = (self._withheld, self._durable, SegmentHasher(with_md5=self.with_md5).checkpoint())
        nearest = max((c for c in known if c and c.size_bytes <= offset), key=lambda c: c.size_bytes)
        with self._breaking():
            if offset < self._record.offset:
                self._record.write(offset)
        self._go_back(nearest, offset)
        if offset < self._durable.size_bytes:
            self._durable = self._hasher.checkpoint()

    def enter_epoch(self, epoch: int) -> None:
        """Record durably that the bytes are those of this epoch. Raises InsufficientStorage or Internal."""
        if epoch == self.epoch:
            return
        with storage_errors():
            opened = open_or_create(EPOCH_FILE, parent=self._directory)
            with closing(OffsetRecord(opened, self._disk, self.file_uuid)) as record:
                record.write(epoch)
            self._disk.fsync(self._directory)
        self.epoch = epoch

    def duplicate(self) -> int:
        """Return a descriptor of the bytes, for pread only; the caller closes it.

        It outlives `finish` and `close`. Raises BlobMissing or BlobDamaged if finished content is gone.
        """
        if self.finished is None:
            return os.dup(self._data)
        with self._blobs.open(self.finished.sha256) as blob:
            return os.dup(blob.fd)

    def finish(self, expected_sha256: str | None = None) -> FinishedBlob:
        """Put the content into the blob store, durable; when repeated, also after a crash, return the same.

        Raises OffsetMismatch if bytes are missing; ChecksumMismatch, and the content is dropped, if its hash
        differs; InsufficientStorage or Internal, and the upload is broken; Unavailable if the file was
        removed, which the next opening notices as well.
        """
        self._require_usable()
        if self.size_bytes is not None and self.offset != self.size_bytes:
            details = f"The upload has {self.offset} of {self.size_bytes} bytes."
            raise OffsetMismatch(details, offset=self.durable_offset)
        found = FinishedBlob(self.sha256, self.offset)
        if expected_sha256 is not None and expected_sha256 != found.sha256:
            if self.finished is None:
                self.rollback_to(0)
            raise ChecksumMismatch(
                f"The content has SHA-256 {found.sha256}, but {expected_sha256} was declared."
            )
        assert self._withheld is None
        with self._breaking():
            try:
                self._settle(found)
            except FileNotFoundError as error:
                self.broken = True
                details = "This node has lost the file of the upload. Ask again."
                raise Unavailable(details, retry_after_s=1) from error
        return found

    def give_way(self, prefix: bytes) -> None:
        """Replace finished content by its first bytes, `prefix`: the next `open` finds these, durable.

        One step: until the data has its name, the finished content counts, and the offset does not. Raises
        InsufficientStorage or Internal.
        """
        assert self.finished is not None
        self.broken = True  # from now on only the files count, also after a failure
        with storage_errors():
            self._allocated_bytes = 0  # the reserved room belongs to the finished content
            if prefix:
                self._blobs.require_room(len(prefix))
            with self._blobs.incoming(prefix, is_final=False) as name:
                self._record.write(len(prefix))
                os.rename(name, "data", src_dir_fd=self._blobs.uploads_directory, dst_dir_fd=self._directory)
            self._disk.fsync(self._directory)
            # A remaining record would keep the blob without need.
            os.unlink("finished", dir_fd=self._directory)

    def md5(self) -> str:
        """Return the MD5 of finished content, 32 lower-case hexadecimal digits; "" unless it was requested.

        After a restart the content is read again for it. Raises Internal; BlobMissing or BlobDamaged.
        """
        assert self.finished is not None
        if self.with_md5 and not self._md5_finished:
            with self._blobs.open(self.finished.sha256) as blob:
                self._md5_finished = md5_of(blob)
        return self._md5_finished

    def close(self) -> None:
        """Return the upload to the store. Bytes that were not synced may be gone at the next `open`.

        Bytes that are still withheld are dropped.
        """
        try:
            self.drop_withheld()
        finally:
            self._give_back(self)

    def recover(
        self, previous: "UploadFile | None" = None, *, known: SegmentHasher | None = None, bytes_max: int = 0
    ) -> None:
        """Hash the bytes on the disk that follow the state `known`.

        After `previous` broke, all are read from the disk, and must have the same hash as before. Raises
        Unreadable; HashingUnfinished after `bytes_max`, unless that is 0.
        """
        if self.finished is not None:
            return
        stop = self._record.offset
        if previous is not None:
            os.posix_fadvise(self._data, 0, 0, os.POSIX_FADV_DONTNEED)
        elif known is not None and known.size_bytes <= stop and known.with_md5 == self.with_md5:
            self._hasher = known
        if bytes_max and previous is None and stop - self._hasher.size_bytes > bytes_max:
            self.hash_until(self._hasher, self._hasher.size_bytes + bytes_max)
            raise HashingUnfinished("This node is still reading its bytes of the upload.", retry_after_s=1)
        self.hash_until(self._hasher, stop)
        self._durable = self._hasher.checkpoint()
        # Of the same class, so private access is fine.
        before = None if previous is None else previous._durable
        if before and before.size_bytes == self.offset and before.sha256.hexdigest() != self.sha256:
            _log.error("upload %s: the disk lost synced bytes; it starts over", self.file_uuid)
            self.rollback_to(0)

    def take_hasher(self) -> SegmentHasher | None:
        """Return the state after durable bytes, for the next opening; this object is unusable then."""
        if self._hasher.size_bytes > self._record.offset:
            self._hasher.restore(self._durable)
        is_known = not (self.broken or self.finished or self._behind.is_running)
        return self._hasher if is_known and self._hasher.size_bytes <= self._record.offset else None

    def close_descriptors(self) -> None:
        """Close the descriptors, for the store; this object is unusable afterwards."""
        self.broken = True
        self._behind.drop()
        self._record.close()
        for descriptor in (self._data, self._directory):
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self, found: FinishedBlob) -> None:
        """Do the steps of `finish`; a crash between two leaves the data, or the blob and its record."""
        blobs = self._blobs
        if self.finished:
            blobs.sync_placement(found.sha256)
            return
        if (self._allocated_bytes or 0) > found.size_bytes:
            os.ftruncate(self._data, found.size_bytes)  # frees the room behind the end
        self._end_behind()
        blobs.seal(self._data)  # this syncs all bytes: from here on `finished` says how many they are
        with blobs.incoming(encode_finished(found, self.file_uuid)) as record:
            os.rename(record, "finished", src_dir_fd=blobs.uploads_directory, dst_dir_fd=self._directory)
        self._unsynced = self._unsynced or (self._directory,)
        self.sync_names()
        blobs.install(found, self._hasher.sums(), source=self._name, parent=self._directory)
        self._disk.fsync(self._directory)
        self.finished = found
        self._md5_finished = self._hasher.md5()
        os.close(self._data)
        self._data = -1

    def _take(self, buffers: Sequence[Octets], offset: int, size_bytes: int) -> None:
        """Write and hash the bytes; MD5 takes longest and runs in parallel if that is worth a thread."""
        if self.with_md5 and size_bytes >= BESIDE_BYTES:
            take_md5 = partial(self._hasher.update_md5, buffers)
            self._parallel.run(partial(self._write, buffers, offset), take_md5)
            return
        self._write(buffers, offset)
        self._hasher.update_md5(buffers)

    def _write(self, buffers: Sequence[Octets], offset: int) -> None:
        for buffer in buffers:
            write_all(self._disk, self._data, buffer, offset)
            offset += len(buffer)
            self._head_start.note_written(offset, self._durable.size_bytes, self.size_bytes)
            self._hasher.update_sums(buffer)  # at once, while it is in the processor's cache

    def _preallocate(self, stop: int) -> None:
        """Reserve more room at the end if bytes up to `stop` need it; a full disk shows at the write."""
        if self._allocated_bytes is None or stop <= self._allocated_bytes or stop < SEGMENT_BYTES:
            return
        end = stop + PREALLOCATED_BYTES
        if self.size_bytes is not None:
            end = min(end, self.size_bytes)
        if self._blobs.room_bytes() < end - self.offset:
            return
        try:
            self._disk.preallocate(self._data, self.offset, end - self.offset)
            self._allocated_bytes = end
        except OSError:
            self._allocated_bytes = None

    def _sync_behind(self) -> None:
        """Start the next sync if one is due, and handle the result of the one before.

        Raises as `sync` does.
        """
        if self._behind.is_running and self._unsynced_bytes < UNSYNCED_BYTES_MAX:
            return
        self._end_behind()
        is_old = self._clock_s() - self._unsynced_since_s >= SYNC_S
        if self._unsynced_bytes >= SYNC_BYTES or is_old:
            self.begin_sync()

    def _recording(self, target: Checkpoint) -> Callable[[], None] | None:
        """Return the call that records that the checkpoint is durable, or None if it is recorded."""
        is_recorded = target.size_bytes == self._record.offset
        return None if is_recorded else partial(self._record.write, target.size_bytes)

    def _end_behind(self) -> None:
        """Wait for the sync that is running. If it failed, the upload is broken, and this raises."""
        with self._breaking():
            if self._behind.end():
                self._durable = self._behind_target

    def _go_back(self, checkpoint: Checkpoint, offset: int | None = None) -> None:
        """Cut the data to `offset`, by default the checkpoint's; hash the bytes between the two again."""
        target = checkpoint.size_bytes if offset is None else offset
        self._withheld, self.prefix = None, None
        self._head_start.cut(target)
        self._allocated_bytes = None if self._allocated_bytes is None else target
        self.broken = True  # unless all steps succeed
        with storage_errors():
            os.ftruncate(self._data, target)
        self._hasher.restore(checkpoint)
        self.hash_until(self._hasher, target)
        self.broken = False

    def _require_writable(self) -> None:
        self._require_usable()
        if self.finished:
            raise Conflict("The upload is finished.")
