"""Uploads in progress: bytes that arrive in pieces, and how many of them are durable.

    DIR/uploads/UUID/data       the bytes so far
    DIR/uploads/UUID/offset     how many of them survive a power cut: two slots, written in turn
    DIR/uploads/UUID/finished   sha256 and size, once the content was found whole; in place before it moves

The order that makes an offset true: data is synced, then the offset is written, then the offset is synced. A
restart cuts the data to the recorded offset and hashes it again. All calls block: they belong into worker
threads. An `Upload` is held by one caller at a time; the store may be used from any thread.
"""

import logging
import os
import re
import threading
from collections import OrderedDict
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from ca.errors import (
    ChecksumMismatch,
    Conflict,
    Internal,
    NotFound,
    OffsetMismatch,
    PayloadTooLarge,
    Unavailable,
    UploadLocked,
)
from node.blobs import (
    INCOMING,
    BlobStore,
    open_directory,
    read_whole,
    remove_tree,
    storage_error,
)
from node.segments import (
    FINISHED_BYTES,
    SLOT_SPACING_BYTES,
    Checkpoint,
    Disk,
    FinishedBlob,
    Octets,
    OffsetRecord,
    SegmentHasher,
    decode_finished,
    encode_finished,
    write_all,
)

SYNC_BYTES = 64 * 1024 * 1024  # what a crash can cost a client that never pauses
OPEN_UPLOADS_MAX = 128  # two descriptors each

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_log = logging.getLogger(__name__)


class Upload:
    """One upload, held by its caller until `close`. Not for two threads at once.

    A failed sync is never tried again: the kernel may have dropped the pages and would call the second try a
    success. The upload is then `broken`: everything raises Internal until it is closed and opened again,
    which goes back to the last durable offset, syncs that anew, and reads it back from the disk.
    """

    def __init__(
        self,
        store: "UploadStore",
        file_uuid: str,
        *,
        directory: int,
        data: int,
        record: OffsetRecord,
        finished: FinishedBlob | None,
    ) -> None:
        """Made by `UploadStore.open` only, which calls `recover` too. `data` is -1 once it is `finished`."""
        self.file_uuid = file_uuid
        self.size_bytes: int | None = None
        self.broken = False
        self.finished = finished
        self._store = store
        self._disk = store.blobs.disk
        self._directory, self._data, self._record = directory, data, record
        self._hasher = SegmentHasher()
        self._held: Checkpoint | None = None
        self._durable = self._hasher.checkpoint()
        self._unsynced_bytes = 0

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
    def sha256(self) -> str:
        """The hash of the bytes up to `offset`, 64 lower-case hexadecimal digits."""
        return self.finished.sha256 if self.finished else self._hasher.sha256()

    def append(self, buffer: Octets) -> int:
        """Takes the next bytes, all or none; returns the new offset. Syncs by itself every SYNC_BYTES.

        Raises PayloadTooLarge beyond the declared size, Conflict after `finish`; InsufficientStorage and
        Internal when the disk refuses: the upload then stands at its durable offset.
        """
        self._require_writable()
        if self.size_bytes is not None and self.offset + len(buffer) > self.size_bytes:
            raise PayloadTooLarge(f"The upload was declared with {self.size_bytes} bytes.")
        try:
            write_all(self._disk, self._data, buffer, self.offset)
        except OSError as error:
            self._go_back(self._durable)
            raise storage_error(error) from error
        self._hasher.update(buffer)
        self._unsynced_bytes += len(buffer)
        if self._unsynced_bytes >= SYNC_BYTES:
            self.sync()
        return self.offset

    def sync(self) -> int:
        """Makes what has come durable, as far as no `hold` forbids it; returns the durable offset.

        Raises InsufficientStorage or Internal; the upload is broken then.
        """
        self._require_usable()
        if self.finished:
            return self.durable_offset
        target = self._held or self._hasher.checkpoint()
        try:
            if self._unsynced_bytes:
                self._disk.fdatasync(self._data)
            if target.size_bytes != self._record.offset:
                self._record.write(target.size_bytes)
        except OSError as error:
            self.broken = True
            raise storage_error(error) from error
        self._unsynced_bytes = 0
        self._durable = target
        return target.size_bytes

    def hold(self) -> None:
        """Before a piece that comes with a checksum: the durable offset stays here until `release`.

        So neither a crash nor a status request takes bytes for good that were not checked.
        """
        self._require_writable()
        self._held = self._hasher.checkpoint()

    def release(self) -> None:
        """The piece was checked, or given up by `rollback_to`."""
        self._held = None

    def rollback_to(self, offset: int) -> None:
        """Drops the bytes from `offset` on, such as a piece whose checksum was wrong; ends a `hold`.

        Going below the durable offset records that first: bytes that come later in the same place must not
        count as those that were durable. Does nothing if a failed write went further back. Raises Internal.
        """
        self._require_writable()
        assert offset >= 0
        if offset >= self.offset:
            self._held = None
            return
        known = (self._held, self._durable, SegmentHasher().checkpoint())
        nearest = max((c for c in known if c and c.size_bytes <= offset), key=lambda c: c.size_bytes)
        try:
            if offset < self._record.offset:
                self._record.write(offset)
        except OSError as error:
            self.broken = True
            raise storage_error(error) from error
        self._go_back(nearest, offset)
        if offset < self._durable.size_bytes:
            self._durable = self._hasher.checkpoint()

    def finish(self, expected_sha256: str | None = None) -> FinishedBlob:
        """Puts the content into the blob store, durable; asked again, after a crash too, answers the same.

        Raises OffsetMismatch when bytes are missing; ChecksumMismatch, and the content is dropped, when the
        hash is another; InsufficientStorage or Internal, and the upload is broken.
        """
        self._require_usable()
        if self.size_bytes is not None and self.offset != self.size_bytes:
            details = f"The upload stands at {self.offset} of {self.size_bytes} bytes."
            raise OffsetMismatch(details, offset=self.durable_offset)
        found = FinishedBlob(self.sha256, self.offset)
        if expected_sha256 is not None and expected_sha256 != found.sha256:
            if self.finished is None:
                self.rollback_to(0)
            raise ChecksumMismatch(f"The content has sha256 {found.sha256}, declared was {expected_sha256}.")
        assert self._held is None
        try:
            self._settle(found)
        except OSError as error:
            self.broken = True
            raise storage_error(error) from error
        return found

    def close(self) -> None:
        """Gives the upload back to the store; what was not synced may be gone at the next `open`.

        A piece that is still on `hold` came without its end, so nobody can check it any more: it is dropped.
        """
        try:
            if self._held is not None and not self.broken:
                self.rollback_to(self._held.size_bytes)
        finally:
            self._store.give_back(self)

    def recover(self, previous: "Upload | None" = None) -> None:
        """Hashes what is on disk. Raises Internal when the disk cannot read it.

        After `previous` broke, the disk itself is read, not the page cache, and must hash as it did before.
        """
        if self.finished is not None:
            return
        try:
            if previous is not None:
                os.posix_fadvise(self._data, 0, 0, os.POSIX_FADV_DONTNEED)
            self._hasher.update_from(self._data, self._record.offset)
        except (OSError, EOFError) as error:
            raise Internal("The disk cannot read back what was uploaded.") from error
        self._durable = self._hasher.checkpoint()
        before = None if previous is None else previous._durable  # the same class: no outsider looks in
        if before and before.size_bytes == self.offset and before.sha256.hexdigest() != self.sha256:
            _log.error("upload %s: the disk lost synced bytes; it starts over", self.file_uuid)
            self.rollback_to(0)

    def close_descriptors(self) -> None:
        """For the store: nothing of this object works after it."""
        self.broken = True
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
        blobs = self._store.blobs
        if self.finished:
            blobs.sync_placement(found.sha256)
            return
        self.sync()
        blobs.seal(self._data)
        record = blobs.write_incoming(encode_finished(found))
        os.rename(record, "finished", src_dir_fd=blobs.uploads_directory, dst_dir_fd=self._directory)
        self._disk.fsync(self._directory)
        blobs.install(found, self._hasher.sums(), source="data", parent=self._directory)
        self._disk.fsync(self._directory)
        self.finished = found
        os.close(self._data)
        self._data = -1

    def _go_back(self, checkpoint: Checkpoint, offset: int | None = None) -> None:
        """Cuts the data to `offset`, the checkpoint's by default; hashes what lies between the two again."""
        target = checkpoint.size_bytes if offset is None else offset
        self._held = None
        try:
            os.ftruncate(self._data, target)
            self._hasher.restore(checkpoint)
            self._hasher.update_from(self._data, target)
        except (OSError, EOFError) as error:
            self.broken = True
            raise Internal("The disk cannot go back to an earlier offset.") from error

    def _require_usable(self) -> None:
        if self.broken:
            raise Internal("A disk write failed earlier; the upload goes on from its durable offset.")

    def _require_writable(self) -> None:
        self._require_usable()
        if self.finished:
            raise Conflict("The upload is finished.")


class UploadStore:
    """The uploads of one blob store. For any thread; each upload has one holder at a time."""

    def __init__(self, blobs: BlobStore, *, open_max: int = OPEN_UPLOADS_MAX) -> None:
        assert open_max > 0
        self.blobs = blobs
        self._open_max = open_max
        self._lock = threading.Lock()
        self._held: dict[str, Upload | None] = {}  # None: being opened
        self._idle: OrderedDict[str, Upload] = OrderedDict()  # kept open so that going on needs no hashing

    def open(self, file_uuid: str, size_bytes: int | None) -> Upload:
        """The upload, new at offset 0 or where it durably stands, for this caller alone until `close`.

        `size_bytes` is the declared size of the whole; None leaves it as it was. After a restart the bytes on
        disk are hashed again, which takes as long as reading them. Raises UploadLocked while someone holds
        it, Unavailable when too many are held, PayloadTooLarge when it has more than `size_bytes` already.
        """
        _require_uuid(file_uuid)
        kept = self._reserve(file_uuid)
        try:
            upload = kept if kept is not None and not kept.broken else self._load(file_uuid, kept)
        except BaseException:
            self._cancel(file_uuid, kept)
            raise
        with self._lock:
            self._held[file_uuid] = upload
        if size_bytes is not None and upload.offset > size_bytes:
            upload.close()
            raise PayloadTooLarge(f"The upload has {upload.offset} bytes already, more than {size_bytes}.")
        upload.size_bytes = upload.size_bytes if size_bytes is None else size_bytes
        return upload

    def durable_offset(self, file_uuid: str) -> int:
        """How many bytes of the upload survive a crash; hashes nothing and waits for no holder.

        Raises NotFound; Unavailable or UploadLocked in the moment in which it is being opened.
        """
        _require_uuid(file_uuid)
        with self._lock:
            upload = self._held.get(file_uuid) or self._idle.get(file_uuid)
            if upload is not None:
                return upload.durable_offset
            if file_uuid in self._held:
                raise Unavailable("The upload is being opened.")
        kept = self._reserve(file_uuid)
        try:
            os.stat(file_uuid, dir_fd=self.blobs.uploads_directory, follow_symlinks=False)
            upload = kept or self._open_files(file_uuid)
            if kept is None:
                upload.close_descriptors()
            return upload.durable_offset
        except FileNotFoundError:
            raise NotFound("There is no such upload on this node.") from None
        except OSError as error:
            raise storage_error(error) from error
        finally:
            self._cancel(file_uuid, kept)

    def discard(self, file_uuid: str) -> bool:
        """Removes the upload and its bytes; False if there was none. Raises UploadLocked while it is held."""
        _require_uuid(file_uuid)
        kept = self._reserve(file_uuid)
        try:
            doomed = INCOMING + file_uuid  # renamed first: a crash leaves all of it, or none
            uploads = self.blobs.uploads_directory
            os.rename(file_uuid, doomed, src_dir_fd=uploads, dst_dir_fd=uploads)
            self.blobs.disk.fsync(uploads)
            remove_tree(doomed, parent=uploads)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error) from error
        finally:
            if kept is not None:
                kept.close_descriptors()
            self._cancel(file_uuid, None)
        return True

    def list_uuids(self) -> list[str]:
        """The uploads on this disk, ascending."""
        return sorted(name for name in os.listdir(self.blobs.uploads_directory) if _UUID.fullmatch(name))

    def give_back(self, upload: Upload) -> None:
        """What `Upload.close` calls; again is harmless."""
        with self._lock:
            if self._held.get(upload.file_uuid) is upload:
                del self._held[upload.file_uuid]
                self._idle[upload.file_uuid] = upload

    def close(self) -> None:
        """Closes every upload as it is: what was not synced is not promised."""
        with self._lock:
            for upload in (*self._held.values(), *self._idle.values()):
                if upload is not None:
                    upload.close_descriptors()
            self._held.clear()
            self._idle.clear()

    def _reserve(self, file_uuid: str) -> Upload | None:
        """Keeps others out, and makes room in the table; returns the upload if it was kept open."""
        with self._lock:
            if file_uuid in self._held:
                raise UploadLocked("Another request is writing this upload now.")
            if len(self._held) >= self._open_max:
                raise Unavailable(f"This node takes {self._open_max} uploads at a time.")
            kept = self._idle.pop(file_uuid, None)
            while len(self._held) + len(self._idle) >= self._open_max:
                self._idle.popitem(last=False)[1].close_descriptors()
            self._held[file_uuid] = None
            return kept

    def _cancel(self, file_uuid: str, kept: Upload | None) -> None:
        with self._lock:
            self._held.pop(file_uuid, None)
            if kept is not None:
                self._idle[file_uuid] = kept

    def _load(self, file_uuid: str, broken: Upload | None) -> Upload:
        try:
            upload = self._open_files(file_uuid)
        except OSError as error:
            raise storage_error(error) from error
        with self._lock:
            self._held[file_uuid] = upload  # its durable offset can be asked for while it is hashed
        try:
            upload.recover(broken)
        except BaseException:
            upload.close_descriptors()
            raise
        if broken is not None:
            broken.close_descriptors()
        return upload

    def _open_files(self, file_uuid: str) -> Upload:
        """Opens or creates the files, cuts the data to the durable offset, and makes both durable."""
        uploads, disk = self.blobs.uploads_directory, self.blobs.disk
        with ExitStack() as opened:
            directory = _open_or_make(file_uuid, parent=uploads)
            opened.callback(os.close, directory)
            finished = _read_finished(directory, self.blobs)
            record = OffsetRecord(_open_or_create("offset", parent=directory), disk)
            opened.callback(record.close)
            data = -1
            if finished is None:
                data = _open_or_create("data", parent=directory)
                opened.callback(os.close, data)
                _cut_to_durable(data, record, disk)
            record.confirm()
            for descriptor in (directory, uploads):
                disk.fsync(descriptor)
            opened.pop_all()
        return Upload(self, file_uuid, directory=directory, data=data, record=record, finished=finished)


def _cut_to_durable(data: int, record: OffsetRecord, disk: Disk) -> None:
    """Cuts the data to the recorded offset and makes that durable.

    The last block is written again: after a failed sync the kernel may hold it as clean though it never
    reached the disk. Data shorter than recorded means that the disk lost what it had synced: none is trusted.
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


def _open_or_make(name: str, *, parent: int) -> int:
    try:
        return open_directory(name, parent=parent)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=parent)
        return open_directory(name, parent=parent)


def _open_or_create(name: str, *, parent: int) -> int:
    try:
        return os.open(name, _OPEN_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        return os.open(name, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=parent)
    except PermissionError:  # sealed by a `finish` that did not get further
        sealed = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        os.fchmod(sealed, 0o600)
        os.close(sealed)
        return os.open(name, _OPEN_FLAGS, dir_fd=parent)


def _read_finished(directory: int, blobs: BlobStore) -> FinishedBlob | None:
    """What a `finish` left, if it went through: a sound record, the data moved, the blob there."""
    if "data" in os.listdir(directory):
        return None
    try:
        raw = read_whole("finished", parent=directory, bytes_max=FINISHED_BYTES)
    except FileNotFoundError:
        return None
    finished = decode_finished(raw)
    return finished if finished is not None and blobs.has(finished.sha256) else None


def _require_uuid(file_uuid: str) -> None:
    if _UUID.fullmatch(file_uuid) is None:
        raise NotFound("There is no such upload.")
