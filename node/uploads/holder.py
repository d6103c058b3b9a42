"""The node's exclusive right to write an upload: its file, its copies, and its record in the log.

The log has the offset that is acknowledged to clients; `node/uploads/chain.py` says what holds then. The file
may have more: unacknowledged bytes of an earlier request. They are valid as long as the file's epoch is the
log's, and are settled by the next request. After a takeover, and after bytes were dropped, the file is first
cut to the log's offset.
"""

import hashlib
import logging
from contextlib import suppress
from functools import partial
from typing import NoReturn

from ca.errors import (
    Conflict,
    FilestoreError,
    Forbidden,
    Gone,
    Internal,
    NotFound,
    OffsetMismatch,
    PayloadTooLarge,
    Unauthorized,
)
from metadata.model.records import VM, Caller, UploadRecord
from node.staging.resumed_hash import open_in_steps
from node.staging.upload_file import UploadFile
from node.storage.content_file import Unreadable
from node.storage.segments import BlobDamaged, BlobMissing
from node.uploads.chain_link import LinkTerms
from node.uploads.progress import NO_ROOM, Overtaken, UploadProgress
from node.uploads.services import NodeServices
from node.uploads.succession import give_up, hand_over, own_prefix
from runtime.time_limits import note_progress

EMPTY_SHA256 = hashlib.sha256().hexdigest()

_log = logging.getLogger(__name__)


class UploadHolder:
    """One request's use of the upload that this node holds. `close` it.

    `whole_copies` are the members that have all bytes durably, after `settle`.
    """

    def __init__(self, services: NodeServices, caller: Caller, record: UploadRecord) -> None:
        self.services, self.caller = services, caller
        self.whole_copies: list[str] = []
        self._file: UploadFile | None = None
        self._progress = UploadProgress(services, caller, record)

    @property
    def record(self) -> UploadRecord:
        """Return the newest record from the log."""
        return self._progress.record

    @property
    def is_open(self) -> bool:
        """Return whether there is a file to write: not once the upload has ended."""
        return self._file is not None

    @property
    def file(self) -> UploadFile:
        """Return the bytes on this disk. Only while it `is_open`."""
        assert self._file is not None
        return self._file

    @property
    def is_complete(self) -> bool:
        """Return whether all declared bytes are here."""
        return self.record.size_bytes is not None and self.file.offset == self.record.size_bytes

    @property
    def terms(self) -> LinkTerms:
        """Return the terms for members."""
        return self._progress.terms

    async def open(self) -> None:
        """Open the file, and cut it to the offset in the log if the epoch is new.

        After a restart of the node this hashes the file, for OPEN_S at most. Raises Unavailable if there is
        more to hash, or if another node must continue; PayloadTooLarge if the file is longer than was
        declared.
        """
        self._file = await self._opened()
        await self._enter()
        size_bytes = self.record.size_bytes
        if size_bytes is not None and self.file.offset > size_bytes:
            raise PayloadTooLarge(f"There are already {self.file.offset} bytes, more than {size_bytes}.")
        self.file.size_bytes = size_bytes

    async def settle_at(self, offset: int) -> None:
        """Make sure that the next byte of the upload is that at `offset`.

        Unacknowledged bytes of an earlier request are settled first, or dropped if the client resumes at the
        offset that HEAD returned. Raises OffsetMismatch with the right offset, Unavailable.
        """
        acknowledged = self.record.offset_bytes
        if self.file.offset > acknowledged:
            if offset == acknowledged and (offset == 0 or self.file.finished is None):
                await self.rewind(offset, self.record.prefix_sha256 or EMPTY_SHA256)
            else:
                await self.settle()
        if self.file.offset != offset:
            stands_at = self.record.offset_bytes
            raise OffsetMismatch(f"The offset of this upload is {stands_at}.", offset=stands_at)

    async def reserve(self, size_bytes: int) -> None:
        """Reserve quota for content of undeclared size that will have at least this many bytes.

        Raises NO_ROOM if the bucket's quota has no room for them; Overtaken.
        """
        await self._progress.reserve(size_bytes, is_announced=True)

    async def declare(self, size_bytes: int) -> None:
        """Fix the size of an upload that began without one.

        Raises Conflict if another size was declared meanwhile; Overtaken.
        """
        await self._progress.declare(size_bytes)
        if self._file is not None:
            self._file.size_bytes = size_bytes

    async def declare_received(self) -> None:
        """Declare the number of received bytes as the size, as all of the content is here.

        If the bucket has no room for it, no byte is kept.
        """
        try:
            await self.declare(self.file.offset)
        except NO_ROOM:
            await self.roll_back(0, EMPTY_SHA256)
            raise

    def note_written(self) -> None:
        """Note written bytes; called after each append, in its thread."""
        self._progress.note_written(self.file)

    async def keep_up(self) -> None:
        """Report and wait as needed, between pieces of a body. Raises what `UploadProgress.keep_up` does."""
        await self._progress.keep_up(self.file)

    async def settle(self) -> None:
        """Make all bytes durable, here and on the write quorum, and record that in the log; end the chain.

        Raises FilestoreError if that is impossible, for example OffsetMismatch if the disk has lost finished
        content; Overtaken.
        """
        durable_offset = await self.services.disk.run(self.file.sync)
        note_progress()
        if durable_offset == self.record.offset_bytes and not self._progress.is_running:
            return
        assert durable_offset == self.file.offset, "no piece is withheld when bytes are settled"
        await self._progress.reserve(durable_offset)
        try:
            self.whole_copies = await self._progress.settle(self.file)
        except (BlobMissing, BlobDamaged) as error:
            await self.drop_lost(error)

    async def settle_received(self) -> None:
        """Settle the bytes of a failed request, if the caller may still write.

        Withheld bytes that may complete the content are dropped. Raises as `settle`.
        """
        if self.record.size_bytes in (None, self.file.offset):
            await self.services.disk.run(self.file.drop_withheld)
        self.file.release()
        try:
            await self.settle()
        except (Forbidden, Unauthorized, *NO_ROOM):
            await self.drop_unrecorded()

    async def keep(self, content: bytes) -> None:
        """Write all of the content, and settle it as `settle_received` does."""
        await self.services.disk.run(self.file.append, content)
        await self.settle_received()

    async def rewind(self, offset: int, sha256: str) -> None:
        """Drop the bytes from `offset` on; `sha256`: of those before it.

        The log comes first, if it may know of more: no copy may have less than the log says. Raises
        FilestoreError, and then no byte is dropped; Overtaken.
        """
        await self._progress.end()
        if self.file.finished is not None and offset == self.file.offset:
            return  # no bytes follow it
        record = self.record
        if offset < max(record.offset_bytes, self._progress.proposed_offset):
            if offset > record.offset_bytes:  # a report of more may be without a reply
                offset, sha256 = record.offset_bytes, record.prefix_sha256
            await self._progress.rewind(offset, sha256)
        if self.file.finished is not None:
            assert offset == 0, "finished content goes as a whole"
        await self._cut(offset)

    async def roll_back(self, offset: int, sha256: str) -> None:
        """Rewind; if the caller may no longer write, only to the offset in the log.

        The bytes are dropped even if the log does not answer, which is raised: a later request for the
        completion may name no digest.
        """
        try:
            await self.rewind(offset, sha256)
        except (Forbidden, Unauthorized, NotFound, Gone):
            await self.drop_unrecorded()
        except FilestoreError:
            with suppress(FilestoreError):
                await self.drop_unrecorded()
            raise

    async def drop_unrecorded(self) -> None:
        """Drop the bytes that the log cannot know of, for a caller whose reports it rejects."""
        await self._progress.end()
        stop = max(self.record.offset_bytes, self._progress.proposed_offset)
        if self.file.offset > stop:
            await self._cut(stop)

    async def drop_lost(self, error: BlobMissing | BlobDamaged) -> NoReturn:
        """Drop finished content that this disk has lost.

        Raises Overtaken if another node has the acknowledged bytes, Unavailable if one may have them,
        OffsetMismatch if they have to be sent again.
        """
        await self._recover(0)
        raise OffsetMismatch("The disk has lost this content. Send it again.", offset=0) from error

    async def hand_over(self, expected_bytes: int = 0) -> str:
        """Hand the upload over, as this disk accepts no more; return its new holder, "" if there is none.

        `expected_bytes`: the size of the content if that is known and not declared yet. Raises what the log
        refuses; Overtaken.
        """
        await self._progress.end()
        if not self.record.offset_bytes and self._progress.proposed_offset:
            await self._progress.rewind(0, EMPTY_SHA256)  # a late report must not be applied elsewhere
        send, record = self._send_acknowledged, self.record
        try:
            return await hand_over(self.services, self.caller, record, send, expected_bytes=expected_bytes)
        except Conflict as error:
            raise Overtaken(error.details) from error

    async def discard(self) -> None:
        """Delete the file of an ended upload, now or with the next sweep."""
        await self.close()
        self._file = None
        try:
            await self.services.disk.run(self.services.uploads.discard, self.record.file_uuid)
        except FilestoreError as error:
            facts = {"file_uuid": self.record.file_uuid, "reason": error.details}
            _log.warning("the files of an upload that has ended are left", extra=facts)

    async def close(self) -> None:
        """Release everything. Bytes that were not settled stay in the file."""
        await self._progress.end()
        if self._file is not None:
            self._file.close()

    async def _opened(self) -> UploadFile:
        """Open the local file; bytes that the disk does not return count as lost.

        The size is not checked: the file of an older epoch may be longer than a later declaration.
        """
        uploads, record, disk = self.services.uploads, self.record, self.services.disk
        step = partial(uploads.open, record.file_uuid, None, with_md5=record.kind == VM)

        async def opened() -> UploadFile:
            if uploads.opens_quickly(record.file_uuid, record.offset_bytes):
                return await disk.run(step)
            return await open_in_steps(disk, lambda most: step(hash_bytes_max=most))

        try:
            return await opened()
        except Unreadable:
            await self._give_up()
            await disk.run(uploads.discard, record.file_uuid)
            return await opened()

    async def _enter(self) -> None:
        """Bring the file to the offset and the epoch of the log."""
        record, disk = self.record, self.services.disk
        if self.file.epoch == record.epoch:
            # An earlier request may have proposed all of it, without a reply so far.
            self._progress.proposed_offset = max(record.offset_bytes, self.file.offset)
            if self.file.offset < record.offset_bytes:
                await self._recover(self.file.offset)
            elif not await self._has_acknowledged():
                await self._recover(0)
            return
        if self.file.finished is not None and self.file.offset != record.offset_bytes:
            await self._reopen(record.offset_bytes)
        if self.file.finished is None:
            await disk.run(self.file.rollback_to, record.offset_bytes)
        if self.file.offset < record.offset_bytes or record.prefix_sha256 not in ("", self.file.sha256):
            await self._recover(0)
        await disk.run(self.file.enter_epoch, self.record.epoch)

    async def _has_acknowledged(self) -> bool:
        """Return whether the acknowledged bytes have the hash in the log: a disk may return others."""
        record = self.record
        if not record.offset_bytes or not record.prefix_sha256:
            return True
        if self.file.offset == record.offset_bytes:
            return self.file.sha256 == record.prefix_sha256
        try:
            own_sha256 = await own_prefix(self.services, record.file_uuid, record.offset_bytes)
            return own_sha256 == record.prefix_sha256
        except (NotFound, Internal):
            return False

    async def _send_acknowledged(self, node_id: str) -> bool:
        """Send the acknowledged bytes to a node outside the placement; return whether it has them durably."""
        if self._file is None or self.file.broken or self.file.offset < self.record.offset_bytes:
            return False
        try:
            return await self._progress.send_acknowledged(self.file, node_id)
        except (BlobMissing, BlobDamaged) as error:
            await self.drop_lost(error)

    async def _cut(self, stop: int) -> None:
        """Cut the file, in the epoch of the log."""
        if self.file.finished is not None:
            await self._reopen(stop)
        await self.services.disk.run(self.file.rollback_to, stop)
        await self.services.disk.run(self.file.enter_epoch, self.record.epoch)

    async def _reopen(self, stop: int) -> None:
        """Open it again, with its first `stop` bytes, also if its content was finished."""
        finished, self._file = self.file, None
        self._file = await self.services.disk.run(self.services.uploads.reopen, finished, stop)
        self._file.size_bytes = self.record.size_bytes

    async def _recover(self, sound_offset: int) -> None:
        """Handle lost acknowledged bytes: another node continues, or the client sends them again."""
        await self._give_up()
        if self.file.finished is not None:
            await self._reopen(sound_offset)
        else:
            await self.services.disk.run(self.file.rollback_to, sound_offset)
        await self.rewind(sound_offset, self.file.sha256 if sound_offset else EMPTY_SHA256)

    async def _give_up(self) -> None:
        """Raise Overtaken if another node has the acknowledged bytes lost here: it is the holder now.

        Raises Unavailable if nodes that may have them do not answer.
        """
        if not self.record.offset_bytes:
            return
        _log.error("acknowledged bytes of an upload are lost", extra={"file_uuid": self.record.file_uuid})
        if await give_up(self.services, self.caller, self.record):
            raise Overtaken("this node has lost bytes of the upload: another one holds it now")
