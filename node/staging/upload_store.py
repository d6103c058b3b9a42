"""Uploads in progress: bytes that arrive in pieces, and how many of them are durable.

    DIR/uploads/UUID/data       the bytes so far
    DIR/uploads/UUID/offset     how many of them survive a power cut: two slots in turn, with the UUID
    DIR/uploads/UUID/finished   sha256 and size, once the content was found whole; in place before it moves
    DIR/uploads/UUID/epoch      the epoch of the log in which the bytes came, in slots too; absent for 0

The order of writes that makes an offset true: the data is synced, the first time also the names of the files,
then the offset is written, then that is synced. A restart cuts the data to the recorded offset and hashes it
again.

All calls block: they belong into worker threads. An `UploadFile` has one user at a time; the store may be
used from any thread.
"""

import io
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress

from ca.errors import NotFound, PayloadTooLarge, Unavailable, UploadLocked
from metadata.model.identifiers import is_uuid
from node.diskio.durable import SLOT_SPACING_BYTES, Disk, OffsetRecord, write_all
from node.diskio.fs import (
    READ_FLAGS,
    closing_descriptor,
    open_directory,
    opened_directory,
    read_whole,
    storage_errors,
)
from node.diskio.parallel import ParallelParts
from node.diskio.writeback import FlushThreads
from node.staging.resumed_hash import HashedUploads, HashingUnfinished, PrefixHash
from node.staging.upload_file import EPOCH_FILE, UploadFile
from node.storage.blob_files import INCOMING
from node.storage.blobs import BlobStore
from node.storage.content_file import OPEN_FLAGS, open_content, open_or_create
from node.storage.leftovers import AREA
from node.storage.pins import FINISHED_BYTES, decode_finished
from node.storage.segments import (
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
)
from runtime.lifetime import descriptor_limit

PREFIX_BYTES_MAX = 4 << 20  # of finished content that becomes an upload again; larger content was final
QUICK_BYTES = 4 << 20  # read and hashed in a moment
OPEN_UPLOADS_MAX = 384  # three descriptors each; this node is the holder of one in three
OPEN_UPLOADS_SHARE = 20  # one for this many descriptors of the process, if that is less

_log = logging.getLogger(__name__)


class UploadStore:
    """The directory of unfinished uploads: opens each for one user at a time. For any thread."""

    def __init__(
        self,
        blobs: BlobStore,
        *,
        open_max: int = OPEN_UPLOADS_MAX,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blobs = blobs
        self._open_max = max(1, min(open_max, descriptor_limit() // OPEN_UPLOADS_SHARE))
        self._clock_s = clock_s
        self._threads = FlushThreads()
        self._parallel = ParallelParts()
        self._hashed = HashedUploads()
        self._lock = threading.Lock()
        self._in_use: dict[str, UploadFile | None] = {}  # None: being opened
        self._idle: OrderedDict[str, UploadFile] = (
            OrderedDict()
        )  # kept open, so that resuming needs no hashing

    def open(
        self, file_uuid: str, size_bytes: int | None, *, with_md5: bool = False, hash_bytes_max: int = 0
    ) -> UploadFile:
        """Return the upload, new or at its durable offset, for this caller alone until `close`.

        `size_bytes` is the declared size of the whole; None leaves it unchanged. `with_md5` must be the same
        at every opening. After a restart the bytes on disk are hashed again, which takes as long as reading
        them. Raises UploadLocked while another request uses it, Unavailable if too many are in use,
        PayloadTooLarge if it has more than `size_bytes` already.
        """
        _require_uuid(file_uuid)
        idle = self._reserve(file_uuid)
        try:
            upload = idle
            if upload is None or upload.broken:
                upload = self._load(file_uuid, idle, with_md5, hash_bytes_max)
            assert upload.with_md5 == with_md5
        except BaseException:
            self._cancel(file_uuid, idle)
            raise
        with self._lock:
            self._in_use[file_uuid] = upload
        if size_bytes is not None and upload.offset > size_bytes:
            upload.close()
            raise PayloadTooLarge(f"The upload already has {upload.offset} bytes, more than {size_bytes}.")
        upload.size_bytes = upload.size_bytes if size_bytes is None else size_bytes
        return upload

    def opens_quickly(self, file_uuid: str, size_bytes: int) -> bool:
        """Return whether `open` has little to hash: the upload has few bytes here, or was kept open.

        Reads nothing and never waits.
        """
        with self._lock:
            idle = self._idle.get(file_uuid)
        unknown_bytes = size_bytes - self._hashed.known_bytes(file_uuid)
        return unknown_bytes <= QUICK_BYTES or (idle is not None and not idle.broken)

    def reopen(self, upload: UploadFile, stop: int) -> UploadFile:
        """Turn finished content into an upload of its first `stop` bytes, durable, for the same caller.

        After a takeover another node may have continued from there, and rely on this copy, so a crash leaves
        one or the other. Nothing is kept of more than PREFIX_BYTES_MAX, or if the disk has lost the content.
        Raises what `open` and `UploadFile.give_way` do.
        """
        size_bytes = upload.size_bytes
        try:
            upload.give_way(_prefix(upload, stop) if 0 < stop <= PREFIX_BYTES_MAX else b"")
        finally:
            upload.close()
        return self.open(upload.file_uuid, size_bytes, with_md5=upload.with_md5)

    def durable_offset(self, file_uuid: str) -> int:
        """Return how many bytes of the upload survive a crash; hash nothing and wait for no other user.

        Raises NotFound; Unavailable or UploadLocked while it is being opened.
        """
        _require_uuid(file_uuid)
        with self._lock:
            upload = self._in_use.get(file_uuid) or self._idle.get(file_uuid)
            if upload is not None:
                return upload.durable_offset
            if file_uuid in self._in_use:
                raise Unavailable("The upload is being opened.")
        idle = self._reserve(file_uuid)
        try:
            with storage_errors(), suppress(FileNotFoundError):
                os.stat(file_uuid, dir_fd=self.blobs.uploads_directory, follow_symlinks=False)
                upload = idle or self._open_files(file_uuid, with_md5=False)
                if idle is None:
                    upload.close_descriptors()
                return upload.durable_offset
        finally:
            self._cancel(file_uuid, idle)
        raise NotFound("There is no such upload on this node.")

    def epoch(self, file_uuid: str) -> int:
        """Return the newest epoch of bytes of the upload on this node; 0 if there are none.

        Raises Internal.
        """
        _require_uuid(file_uuid)
        with storage_errors(), suppress(FileNotFoundError), self._directory(file_uuid) as directory:
            return _read_slots(EPOCH_FILE, file_uuid, parent=directory, disk=self.blobs.disk)
        return 0

    def open_prefix(self, file_uuid: str, stop: int) -> io.FileIO:
        """Open the first `stop` bytes, durable here, without waiting for other users. The caller closes it.

        Raises NotFound if there are fewer; Internal.
        """
        _require_uuid(file_uuid)
        is_nowhere = suppress(FileNotFoundError, BlobMissing, BlobDamaged)
        with storage_errors(), is_nowhere, ExitStack() as opened:
            directory = opened.enter_context(self._directory(file_uuid))
            finished = _read_finished(file_uuid, directory, self.blobs)
            if finished is not None:
                data = opened.enter_context(self.blobs.open(finished.sha256)).whole_descriptor()
                durable_offset = finished.size_bytes
            else:
                data = os.open("data", READ_FLAGS, dir_fd=directory)
                durable_offset = _read_slots("offset", file_uuid, parent=directory, disk=self.blobs.disk)
            prefix = io.FileIO(data)
            if min(durable_offset, os.fstat(data).st_size) >= stop:
                return prefix
            prefix.close()
        raise NotFound("This node has fewer bytes of the upload.")

    def has_fewer(self, file_uuid: str, stop: int) -> bool:
        """Return whether the first `stop` bytes are not all here, by names and sizes alone.

        Raises Internal.
        """
        try:
            self.open_prefix(file_uuid, stop).close()
        except NotFound:
            return True
        return False

    def prefix_sha256(self, file_uuid: str, stop: int) -> str:
        """Return the sha256 of the first `stop` bytes, which are durable here.

        Reads them without waiting for other users. Raises NotFound if there are fewer; Internal.
        """
        prefix = PrefixHash()
        self.hash_prefix(file_uuid, stop, prefix, stop)
        return prefix.sha256()

    def hash_prefix(self, file_uuid: str, stop: int, prefix: PrefixHash, until: int) -> None:
        """Do a step of `prefix_sha256`, from the position of the hash to `until`, finally `stop`.

        Raises the same.
        """
        with storage_errors(), self.open_prefix(file_uuid, stop) as file:
            try:
                prefix.read_until(file.fileno(), until)
            except EOFError:
                raise NotFound("This node has fewer bytes of the upload.") from None

    def discard(self, file_uuid: str) -> bool:
        """Remove the upload and its bytes; return False if there was none.

        The removal is not synced. If a power cut brings the upload back, it has ended in the log and is
        swept. A new upload of the same name makes the removal durable with its first sync. Raises
        UploadLocked while it is in use.
        """
        _require_uuid(file_uuid)
        idle = self._reserve(file_uuid)
        self._hashed.take(file_uuid)
        try:
            with storage_errors(), suppress(FileNotFoundError):
                leaving = INCOMING + file_uuid  # renamed first: a crash leaves all of it, or nothing
                uploads = self.blobs.uploads_directory
                os.rename(file_uuid, leaving, src_dir_fd=uploads, dst_dir_fd=uploads)
                self.blobs.leftovers.remove(leaving)
                return True
        finally:
            if idle is not None:
                idle.close_descriptors()
            self._cancel(file_uuid, None)
        return False

    def list_uuids(self) -> list[str]:
        """Return the uploads on this disk, ascending; none if they cannot be listed."""
        names: list[str] = []
        with self.blobs.poison.skipping(AREA, ""):
            names = os.listdir(self.blobs.uploads_directory)
            self.blobs.poison.keep(AREA, names)
        return sorted(filter(is_uuid, names))

    def give_back(self, upload: UploadFile) -> None:
        """Give an upload back; called by `UploadFile.close`, and may be repeated."""
        with self._lock:
            if self._in_use.get(upload.file_uuid) is upload:
                del self._in_use[upload.file_uuid]
                self._idle[upload.file_uuid] = upload

    def close(self) -> None:
        """Close every upload as it is: bytes that were not synced are not promised."""
        with self._lock:
            for upload in (*self._in_use.values(), *self._idle.values()):
                if upload is not None:
                    upload.close_descriptors()
            self._in_use.clear()
            self._idle.clear()
        self._threads.close()
        self._parallel.close()

    def _reserve(self, file_uuid: str) -> UploadFile | None:
        """Lock out other users and make room in the table; return the upload if it was kept open."""
        with self._lock:
            if file_uuid in self._in_use:
                raise UploadLocked("Another request is writing this upload now.")
            if len(self._in_use) >= self._open_max:
                raise Unavailable(f"This node accepts at most {self._open_max} uploads at a time.")
            idle = self._idle.pop(file_uuid, None)
            while len(self._in_use) + len(self._idle) >= self._open_max:
                self._put_away(self._idle.popitem(last=False)[1])
            self._in_use[file_uuid] = None
            return idle

    def _cancel(self, file_uuid: str, idle: UploadFile | None) -> None:
        with self._lock:
            self._in_use.pop(file_uuid, None)
            if idle is not None:
                self._idle[file_uuid] = idle

    def _put_away(self, upload: UploadFile) -> None:
        """Close the files of an idle upload; keep the state of its hash."""
        if (hashed := upload.take_hasher()) is not None:
            self._hashed.keep(upload.file_uuid, hashed)
        upload.close_descriptors()

    def _directory(self, file_uuid: str) -> AbstractContextManager[int]:
        return opened_directory(file_uuid, parent=self.blobs.uploads_directory)

    def _load(
        self, file_uuid: str, broken: UploadFile | None, with_md5: bool, hash_bytes_max: int
    ) -> UploadFile:
        with storage_errors():
            upload = self._open_files(file_uuid, with_md5=with_md5)
        with self._lock:
            self._in_use[file_uuid] = upload  # its durable offset can be read while it is hashed
        known = self._hashed.take(file_uuid)
        try:
            upload.recover(broken, known=known, bytes_max=hash_bytes_max)
        except HashingUnfinished:
            self._put_away(upload)
            raise
        except BaseException:
            upload.close_descriptors()
            raise
        if broken is not None:
            broken.close_descriptors()
        return upload

    def _open_files(self, file_uuid: str, *, with_md5: bool) -> UploadFile:
        """Open or create the files, cut the data to the durable offset, and make both durable."""
        uploads, disk = self.blobs.uploads_directory, self.blobs.disk
        with ExitStack() as opened:
            directory, is_new = _open_or_make(file_uuid, parent=uploads)
            opened.callback(os.close, directory)
            finished = _read_finished(file_uuid, directory, self.blobs)
            record = OffsetRecord(open_or_create("offset", parent=directory), disk, file_uuid)
            opened.callback(record.close)
            data = -1
            if finished is None:
                data = open_content("data", parent=directory)
                opened.callback(os.close, data)
            epoch = 0
            if not is_new:  # a new upload promises nothing before its first sync
                record.confirm()  # before anything relies on it
                epoch = _read_slots(EPOCH_FILE, file_uuid, parent=directory, disk=disk, confirm=True)
                if finished is None:
                    _cut_to_durable(data, record, disk)
                else:  # before it is durable that the data has moved
                    self.blobs.sync_placement(finished.sha256)
                for descriptor in (directory, uploads):
                    disk.fsync(descriptor)
            opened.pop_all()
        return UploadFile(
            self.blobs,
            file_uuid,
            give_back=self.give_back,
            threads=self._threads,
            parallel=self._parallel,
            clock_s=self._clock_s,
            directory=directory,
            data=data,
            is_new=is_new,
            record=record,
            finished=finished,
            with_md5=with_md5,
            epoch=epoch,
        )


def _prefix(upload: UploadFile, stop: int) -> bytes:
    """Return the first bytes of finished content, as the disk returns them; fewer if there are fewer."""
    with suppress(BlobMissing, BlobDamaged, OSError), closing_descriptor(upload.duplicate()) as descriptor:
        return os.pread(descriptor, stop, 0)
    return b""


def _cut_to_durable(data: int, record: OffsetRecord, disk: Disk) -> None:
    """Cut the data to the recorded offset and make that durable.

    The last block is written again: after a failed sync the kernel may consider it clean though it never
    reached the disk. If the data is shorter than recorded, the disk has lost synced bytes, and none of them
    is trusted.
    """
    if os.fstat(data).st_size < record.offset:
        _log.error("an upload's data is shorter than its durable offset %d; it starts over", record.offset)
        record.write(0)
    os.ftruncate(data, record.offset)
    tail_bytes = record.offset % SLOT_SPACING_BYTES
    if tail_bytes:
        start = record.offset - tail_bytes
        write_all(disk, data, os.pread(data, tail_bytes, start), start)
    disk.fdatasync(data)


def _open_or_make(name: str, *, parent: int) -> tuple[int, bool]:
    """Open or create a directory; return its descriptor, and whether it is new."""
    try:
        return open_directory(name, parent=parent), False
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=parent)
        return open_directory(name, parent=parent), True


def _read_slots(name: str, file_uuid: str, *, parent: int, disk: Disk, confirm: bool = False) -> int:
    """Return the number in an OffsetRecord, durable from now on if `confirm` is set; 0 if there is none."""
    flags = OPEN_FLAGS if confirm else READ_FLAGS
    with suppress(FileNotFoundError), closing_descriptor(os.open(name, flags, dir_fd=parent)) as descriptor:
        record = OffsetRecord(descriptor, disk, file_uuid)
        if confirm:
            record.confirm()
        return record.offset
    return 0


def _read_finished(file_uuid: str, directory: int, blobs: BlobStore) -> FinishedBlob | None:
    """Return the blob of a completed `finish`: with a valid record, moved data, and an existing blob."""
    if "data" in os.listdir(directory):
        return None
    try:
        raw = read_whole("finished", parent=directory, bytes_max=FINISHED_BYTES)
    except FileNotFoundError:
        return None
    finished = decode_finished(raw, file_uuid)
    return finished if finished is not None and blobs.has(finished.sha256) else None


def _require_uuid(file_uuid: str) -> None:
    if not is_uuid(file_uuid):
        raise NotFound("There is no such upload.")
