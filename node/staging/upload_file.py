"""One upload in progress: bytes taken in, synced, rolled back, and put into place at the end.

The files, and the order of writes that makes an offset true: see `node/staging/upload_store.py`. Blocking.
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
SYNC_BYTES = 32 * 1024 * 1024  # so many new bytes are worth a sync
SYNC_S = 5.0  # and so old a byte is, however few came since: what a crash costs a slow client
UNSYNCED_BYTES_MAX = 4 * SYNC_BYTES  # further ahead of the disk nobody writes; a crash costs no more
BESIDE_BYTES = 1 << 20  # so many new bytes are worth a second thread
PREALLOCATED_BYTES = 64 << 20  # room that is reserved at once, so that a large file lies in few pieces

_log = logging.getLogger(__name__)


class UploadFile(ContentFile):
    """The bytes of one upload on this disk, for one caller until `close`. Not for two threads at once.

    Once it is `broken`, everything raises Internal until it is closed and opened again, which goes back to
    the last durable offset, syncs that anew, and reads it back from the disk.

    Beyond SYNC_BYTES or SYNC_S a sync runs behind while more bytes come; everything that looks back waits for
    it first.
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
        """Made by `UploadStore.open` only, which calls `recover` too. `data` is -1 once it is `finished`.

        `is_new`: no name of it is durable.
        """
        unsynced = (directory, blobs.uploads_directory) if is_new else ()
        super().__init__(blobs, data, name="data", directory=directory, unsynced=unsynced)
        self.file_uuid = file_uuid
        self.size_bytes: int | None = None
        self.finished = finished
        self.with_md5 = with_md5
        self.epoch = epoch  # of the log, in which these bytes came
        self._give_back = give_back
        self._record = record
        self._hasher = SegmentHasher(with_md5=with_md5)
        self._md5_finished = ""
        self._withheld: Checkpoint | None = None
        self._durable = self._hasher.checkpoint()
        self._unsynced_bytes = 0
        self._unsynced_since_s = 0.0
        self._clock_s = clock_s
        self._behind = threads.behind()
        self._parallel = parallel
        self._behind_target = self._durable
        self._head_start = HeadStart(self._disk, data)
        self.prefix: PrefixHash | None = None  # of bytes that are here still; for the event loop
        self._allocated_bytes: int | None = 0  # up to where room was reserved; None: not to be had here

    @property
    def offset(self) -> int:
        """How many bytes were written and hashed; not all of them may be durable."""
        return self.finished.size_bytes if self.finished else self._hasher.size_bytes

    @property
    def durable_offset(self) -> int:
        """How many bytes survive a crash: what clients may be told. Any thread may read it."""
        finished = self.finished
        return finished.size_bytes if finished else self._record.offset

    @property
    def sendable_offset(self) -> int:
        """How many bytes other nodes may be sent: none of a piece whose checksum is not known to be right."""
        held = self._withheld  # another thread may give it up
        return self.offset if held is None else held.size_bytes

    @property
    def sha256(self) -> str:
        """The hash of the bytes up to `offset`, 64 lower-case hexadecimal digits."""
        return self.finished.sha256 if self.finished else self._hasher.sha256()

    def require_room(self, size_bytes: int) -> None:
        """Raises InsufficientStorage when the disk has no room for a content of this size, from its start."""
        self._blobs.require_room(size_bytes - max(self.offset, self._allocated_bytes or 0))

    def append(self, *buffers: Octets) -> int:
        """Takes the next bytes, all or none; returns the new offset.

        Begins to sync by itself, and waits for the disk only when it is UNSYNCED_BYTES_MAX behind. Raises
        PayloadTooLarge beyond the declared size, Conflict after `finish`; InsufficientStorage and Internal
        when the disk refuses: the upload then stands at its durable offset, or is broken after a failed sync.
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
        """Makes what has come durable but for what is withheld; returns the durable offset.

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
        """Lets a thread of the store's do what `sync` does; does nothing while one is at it.

        `durable_offset` tells when it has; the next call here raises what went wrong.
        """
        self._require_usable()
        if self.finished or self._behind.is_running:
            return
        self._end_behind()
        if self._unsynced_bytes:
            self._behind_target = self._withheld or self._hasher.checkpoint()
            self._behind.begin(partial(self._make_durable, self._recording(self._behind_target)))
            self._head_start.asked(self.offset)
            self._unsynced_bytes = 0  # none that this sync was not begun for

    def withhold(self) -> None:
        """The durable offset stays here until `release`: before bytes whose checksum nobody has looked at.

        So neither a crash nor a status request takes bytes for good that were not checked.
        """
        self._require_writable()
        self._withheld = self._hasher.checkpoint()

    def release(self) -> None:
        """The bytes were checked, or are a part of what will be."""
        self._withheld = None

    def drop_withheld(self) -> None:
        """Drops what came since `withhold`: it came without its end, so nobody can check it any more."""
        if self._withheld is not None and not self.broken:
            self.rollback_to(self._withheld.size_bytes)

    def rollback_to(self, offset: int) -> None:
        """Drops the bytes from `offset` on, such as a piece whose checksum was wrong.

        Nothing is withheld then. Going below the durable offset records that first: bytes that come later in
        the same place must not count as those that were durable. Does nothing if a failed write went further
        back. Raises Internal.
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
        """Notes durably that the bytes are those of this epoch. Raises InsufficientStorage or Internal."""
        if epoch == self.epoch:
            return
        with storage_errors():
            opened = open_or_create(EPOCH_FILE, parent=self._directory)
            with closing(OffsetRecord(opened, self._disk, self.file_uuid)) as record:
                record.write(epoch)
            self._disk.fsync(self._directory)
        self.epoch = epoch

    def duplicate(self) -> int:
        """A descriptor of the bytes, for pread only; the caller closes it. It outlives `finish` and `close`.

        Raises BlobMissing or BlobDamaged for finished content that is no more.
        """
        if self.finished is None:
            return os.dup(self._data)
        with self._blobs.open(self.finished.sha256) as blob:
            return os.dup(blob.fd)

    def finish(self, expected_sha256: str | None = None) -> FinishedBlob:
        """Puts the content into the blob store, durable; asked again, after a crash too, answers the same.

        Raises OffsetMismatch when bytes are missing; ChecksumMismatch, and the content is dropped, when the
        hash is another; InsufficientStorage or Internal, and the upload is broken; Unavailable when somebody
        has taken its file away, which whoever opens it next finds out.
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
        """Finished content gives way to its first bytes, `prefix`: the next `open` finds these, durable.

        One step: until the data has its name, what is finished counts, and the offset does not. Raises
        InsufficientStorage or Internal.
        """
        assert self.finished is not None
        self.broken = True  # the files tell from now on, whatever becomes of this
        with storage_errors():
            self._allocated_bytes = 0  # what was reserved is the finished content's
            if prefix:
                self._blobs.require_room(len(prefix))
            with self._blobs.incoming(prefix, is_final=False) as name:
                self._record.write(len(prefix))
                os.rename(name, "data", src_dir_fd=self._blobs.uploads_directory, dst_dir_fd=self._directory)
            self._disk.fsync(self._directory)
            os.unlink("finished", dir_fd=self._directory)  # what is left of it keeps a blob for nothing

    def md5(self) -> str:
        """The MD5 of finished content, 32 lower-case hexadecimal digits; "" unless it was asked for.

        After a restart the content is read again for it. Raises Internal; BlobMissing or BlobDamaged.
        """
        assert self.finished is not None
        if self.with_md5 and not self._md5_finished:
            with self._blobs.open(self.finished.sha256) as blob:
                self._md5_finished = md5_of(blob)
        return self._md5_finished

    def close(self) -> None:
        """Gives the upload back to the store; what was not synced may be gone at the next `open`.

        What is still withheld is dropped.
        """
        try:
            self.drop_withheld()
        finally:
            self._give_back(self)

    def recover(
        self, previous: "UploadFile | None" = None, *, known: SegmentHasher | None = None, bytes_max: int = 0
    ) -> None:
        """Hashes what is on disk, from where `known` stands.

        After `previous` broke the disk itself is read, and must hash as before. Raises Unreadable;
        HashingUnfinished after `bytes_max`, unless that is 0.
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
        before = None if previous is None else previous._durable  # the same class: no outsider looks in
        if before and before.size_bytes == self.offset and before.sha256.hexdigest() != self.sha256:
            _log.error("upload %s: the disk lost synced bytes; it starts over", self.file_uuid)
            self.rollback_to(0)

    def hashed(self) -> SegmentHasher | None:
        """The state after durable bytes, for who opens it again; this is not used any more then."""
        if self._hasher.size_bytes > self._record.offset:
            self._hasher.restore(self._durable)
        is_known = not (self.broken or self.finished or self._behind.is_running)
        return self._hasher if is_known and self._hasher.size_bytes <= self._record.offset else None

    def close_descriptors(self) -> None:
        """For the store: nothing of this object works after it."""
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
        """The steps of `finish`; a crash between two leaves the data, or the blob and its record."""
        blobs = self._blobs
        if self.finished:
            blobs.sync_placement(found.sha256)
            return
        if (self._allocated_bytes or 0) > found.size_bytes:
            os.ftruncate(self._data, found.size_bytes)  # gives the room behind the end back
        self._end_behind()
        blobs.seal(self._data)  # the sync of all that came: from here on `finished` says how much that is
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
        """Writes and hashes; MD5, which takes longest, beside the rest where that is worth a thread."""
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
            self._head_start.written(offset, self._durable.size_bytes, self.size_bytes)
            self._hasher.update_sums(buffer)  # at once: it is in the processor's cache still

    def _preallocate(self, stop: int) -> None:
        """Reserves room from its end when bytes up to `stop` need it; a full disk tells at the write."""
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
        """Begins the next sync when it is time, and takes note of the one before. Raises as `sync` does."""
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
        """Waits for the sync that is under way. When it failed the upload is broken, and this raises."""
        with self._breaking():
            if self._behind.end():
                self._durable = self._behind_target

    def _go_back(self, checkpoint: Checkpoint, offset: int | None = None) -> None:
        """Cuts the data to `offset`, the checkpoint's by default; hashes what lies between the two again."""
        target = checkpoint.size_bytes if offset is None else offset
        self._withheld, self.prefix = None, None
        self._head_start.cut(target)
        self._allocated_bytes = None if self._allocated_bytes is None else target
        self.broken = True  # unless it gets there
        with storage_errors():
            os.ftruncate(self._data, target)
        self._hasher.restore(checkpoint)
        self.hash_until(self._hasher, target)
        self.broken = False

    def _require_writable(self) -> None:
        self._require_usable()
        if self.finished:
            raise Conflict("The upload is finished.")
