"""An upload at the node that holds it: its file, its chain, and what the log says of it.

The log says what clients were told; see `node/uploads/chain.py` for what then holds. The file may have more:
bytes of a request whose end nobody acknowledged. They are valid as long as the file's epoch is the log's, and
are settled by the next request; after a takeover, and after bytes were dropped, the file is cut to the log's
offset before anything else.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from ca.errors import (
    Conflict,
    FilestoreError,
    InsufficientStorage,
    Internal,
    NotFound,
    OffsetMismatch,
    PayloadTooLarge,
    Unavailable,
)
from coordinator.model.records import VM, Caller, UploadRecord
from coordinator.model.time_limits import moved
from node.staging.opening import opened_in_steps
from node.staging.upload_file import Unreadable, Upload
from node.storage.segments import BlobDamaged, BlobMissing
from node.uploads.chain import BEHIND_BYTES_MAX, Chain
from node.uploads.chain_link import MARK_BYTES, LinkSource, LinkTerms
from node.uploads.context import UploadContext
from node.uploads.handover import hand_over, known_nodes
from node.uploads.recorded import Overtaken, RecordedUpload
from node.uploads.reserving import RESERVED_AHEAD_BYTES, reserve_ahead, reserved_stop
from node.uploads.takeover import give_up, own_prefix

SMALL_BYTES = 4 << 20  # content up to this is copied when it is complete: a chain would cost more than it
REPORT_BYTES = 16 << 20  # what the loss of the holder costs a client, about
REPORT_GAP_S = 0.25  # or what comes within it: every coordinator syncs a report, and shares the machine
REPORT_S = 2.0  # after so long fewer bytes are reported too: what a lost holder costs a slow client
RENEW_S = 30.0  # without new bytes: the expiry moves on, and a deleted file ends the request
EMPTY_SHA256 = hashlib.sha256().hexdigest()

_log = logging.getLogger(__name__)


def is_report_due(new_bytes: int, since_s: float) -> bool:
    """Whether the log should hear of so many new bytes, so long after the last report."""
    if new_bytes >= REPORT_BYTES:
        return since_s >= REPORT_GAP_S
    return (new_bytes > 0 and since_s >= REPORT_S) or since_s >= RENEW_S


class Holding:
    """One request's use of the upload that this node holds. `close` it.

    `kept` is the file, None once the upload has ended; `made` the members that have all bytes durably, after
    `settle`.
    """

    def __init__(self, services: UploadContext, caller: Caller, record: UploadRecord) -> None:
        self.kept: Upload | None = None
        self.made: list[str] = []
        self._services, self._caller = services, caller
        self._recorded = RecordedUpload(services, caller, record)
        self._loop = asyncio.get_running_loop()
        self._source: LinkSource | None = None
        self._chain: Chain | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._reported_at_s = self._loop.time()
        self._marked_offset = 0
        self._told_stop = 0
        self._synced_at_s = time.monotonic()

    @property
    def record(self) -> UploadRecord:
        """The newest from the log."""
        return self._recorded.record

    @property
    def upload(self) -> Upload:
        """The file. Only while `kept`."""
        assert self.kept is not None
        return self.kept

    @property
    def terms(self) -> LinkTerms:
        """What members must know."""
        record = self.record
        return LinkTerms(
            record.file_uuid,
            record.epoch,
            record.kind == VM,
            record.offset_bytes,
            proposed_offset=self._recorded.proposed_offset,
        )

    async def reserve(self, size_bytes: int, *, is_told: bool = False) -> None:
        """Have the log reserve so much of the bucket's quota, unless it has. `is_told`: no more comes now.

        Raises NO_ROOM, Overtaken.
        """
        self._told_stop = size_bytes if is_told else self._told_stop
        if size_bytes > reserved_stop(self.record):
            await self._end_report()  # one after the other: the log takes no older offset
        if size_bytes > reserved_stop(self.record):
            await self._report(self.record.offset_bytes, self.record.prefix_sha256, reserve_bytes=size_bytes)

    async def open(self) -> None:
        """Open the file, and bring it to where the log stands in a new epoch.

        After a restart of the node this hashes it, for OPEN_S at most. Raises Unavailable when there is more
        to hash, or when another node must go on, PayloadTooLarge when there is more of it than was declared.
        """
        self.kept = await self._opened()
        await self._enter()
        size_bytes = self.record.size_bytes
        if size_bytes is not None and self.upload.offset > size_bytes:
            raise PayloadTooLarge(f"There are {self.upload.offset} bytes already, more than {size_bytes}.")
        self.upload.size_bytes = size_bytes

    async def _opened(self) -> Upload:
        """What lies here; what the disk does not give back counts as lost.

        Of any size: an older epoch's may be longer than what was declared since.
        """
        uploads, record, disk = self._services.uploads, self.record, self._services.disk

        async def opened() -> Upload:
            file_uuid, with_md5 = record.file_uuid, record.kind == VM
            if uploads.opens_quickly(file_uuid, record.offset_bytes):
                return await disk.run(uploads.open, file_uuid, None, with_md5=with_md5)
            step = partial(uploads.open, file_uuid, None, with_md5=with_md5)
            return await opened_in_steps(disk, lambda most: step(hash_bytes_max=most))

        try:
            return await opened()
        except Unreadable:
            await self._give_up()
            await disk.run(uploads.discard, record.file_uuid)
            return await opened()

    async def _enter(self) -> None:
        record, disk = self.record, self._services.disk
        if self.upload.epoch == record.epoch:
            # An earlier request may have proposed all of it, and got no answer yet.
            self._recorded.proposed_offset = max(record.offset_bytes, self.upload.offset)
            if self.upload.offset < record.offset_bytes:
                await self._recover(self.upload.offset)
            elif not await self._has_acknowledged():
                await self._recover(0)
            return
        if self.upload.finished is not None and self.upload.offset != record.offset_bytes:
            await self._reopen(record.offset_bytes)
        if self.upload.finished is None:
            await disk.run(self.upload.rollback_to, record.offset_bytes)
        if self.upload.offset < record.offset_bytes or record.prefix_sha256 not in ("", self.upload.sha256):
            await self._recover(0)
        await disk.run(self.upload.enter_epoch, self.record.epoch)

    async def _has_acknowledged(self) -> bool:
        """Whether the acknowledged bytes are those that the log knows: a disk may give others back."""
        record = self.record
        if not record.offset_bytes or not record.prefix_sha256:
            return True
        if self.upload.offset == record.offset_bytes:
            return self.upload.sha256 == record.prefix_sha256
        try:
            own_sha256 = await own_prefix(self._services, record.file_uuid, record.offset_bytes)
            return own_sha256 == record.prefix_sha256
        except (NotFound, Internal):
            return False

    async def discard(self) -> None:
        """The upload has ended: its file goes, now or when the sweep comes by."""
        await self._end_chain()
        if self.kept is not None:
            self.kept.close()
            self.kept = None
        try:
            await self._services.disk.run(self._services.uploads.discard, self.record.file_uuid)
        except FilestoreError as error:
            facts = {"file_uuid": self.record.file_uuid, "reason": error.details}
            _log.warning("the files of an upload that has ended are left", extra=facts)

    async def close(self) -> None:
        """Give everything back. Bytes that were not settled stay in the file."""
        await self._end_chain()
        if self.kept is not None:
            self.kept.close()

    def written(self) -> None:
        """After each append, in its thread: lets the links have the bytes, and marks and syncs them."""
        upload = self.upload
        if self._source is None:
            if SMALL_BYTES < upload.offset <= reserved_stop(self.record):
                self._source = LinkSource(self._services.disk, upload)
                self._loop.call_soon_threadsafe(self._start_chain)
            return
        unsynced_bytes = upload.sendable_offset - upload.durable_offset
        since_s = time.monotonic() - self._synced_at_s
        if (unsynced_bytes >= REPORT_BYTES and since_s >= REPORT_GAP_S) or since_s >= REPORT_S:
            upload.begin_sync()
            self._synced_at_s = time.monotonic()
        mark = None
        if upload.offset - self._marked_offset >= MARK_BYTES or upload.durable_offset == upload.offset:
            mark = (upload.offset, upload.sha256)
            self._marked_offset = upload.offset
        sendable_offset = min(upload.sendable_offset, reserved_stop(self.record))
        self._loop.call_soon_threadsafe(self._source.move, sendable_offset, mark)

    async def keep_up(self) -> None:
        """Between pieces of a body: reports what is due, and waits while the quorum is far behind.

        Raises Unavailable or InsufficientStorage without a quorum of members; what the log refuses (deleted,
        revoked, beyond the quota); Overtaken.
        """
        enough = max(self._told_stop, reserved_stop(self.record) - RESERVED_AHEAD_BYTES // 2)
        if self.upload.offset > max(enough, SMALL_BYTES // 2):
            await reserve_ahead(self.reserve, self.upload.offset)
        if self._reporting is not None and self._reporting.done():
            reporting, self._reporting = self._reporting, None
            reporting.result()
        if self._chain is None:
            return
        self._chain.require()
        if self._reporting is None and self._is_report_due(self._chain):
            self._reporting = asyncio.create_task(self._report_underway(), name="progress of an upload")
        sendable_offset = min(self.upload.sendable_offset, reserved_stop(self.record))
        if sendable_offset - self._chain.quorum_offset() > BEHIND_BYTES_MAX:
            await self._chain.reach(sendable_offset - BEHIND_BYTES_MAX)

    async def declare(self, size_bytes: int) -> None:
        """Fix the size. Raises Conflict when it has another by now; Overtaken."""
        await self._recorded.declare(size_bytes)
        self.upload.size_bytes = size_bytes

    async def settle(self) -> None:
        """Make what came durable, here and on the write quorum, and have the log say so; ends the chain.

        Raises FilestoreError when that cannot be done; Overtaken.
        """
        durable_offset = await self._services.disk.run(self.upload.sync)
        moved()
        if durable_offset == self.record.offset_bytes and self._chain is None:
            return
        assert durable_offset == self.upload.offset, "no piece is on hold when bytes are settled"
        await self.reserve(durable_offset)
        if self._source is None:
            self._source = await self._open_source()
            self._start_chain()
        assert self._chain is not None
        self._source.move(durable_offset, (durable_offset, self.upload.sha256))
        self._chain.end()
        await self._end_report()
        await self._chain.reach(durable_offset)
        if durable_offset != self.record.offset_bytes:
            await self._report(durable_offset, self.upload.sha256)
        await self._chain.linger()
        self.made = [name for name, stop in self._chain.durable().items() if stop == durable_offset]
        await self._end_chain()

    async def rewind(self, offset: int, sha256: str) -> None:
        """Drop the bytes from `offset` on; `sha256`: of those before it.

        The log first, if it was told more: no copy may have less than it says. Raises FilestoreError, and
        then nothing is dropped; Overtaken.
        """
        await self._end_chain()
        if self.upload.finished is not None and offset == self.upload.offset:
            return  # nothing came after it
        record = self.record
        if offset < max(record.offset_bytes, self._recorded.proposed_offset):
            if offset > record.offset_bytes:  # it may have been told more, in a report that got no answer
                offset, sha256 = record.offset_bytes, record.prefix_sha256
            await self._recorded.rewind(offset, sha256)
        if self.upload.finished is not None:
            assert offset == 0, "finished content goes as a whole"
        await self._cut(offset)

    async def drop_unrecorded(self) -> None:
        """Drop what the log was never told of, for a caller that may not have it told anything any more."""
        await self._end_chain()
        stop = max(self.record.offset_bytes, self._recorded.proposed_offset)
        if self.upload.offset > stop:
            await self._cut(stop)

    async def _cut(self, stop: int) -> None:
        """The file ends there from now on, in the epoch of the log."""
        if self.upload.finished is not None:
            await self._reopen(stop)
        await self._services.disk.run(self.upload.rollback_to, stop)
        await self._services.disk.run(self.upload.enter_epoch, self.record.epoch)
        self._marked_offset = 0

    async def _open_source(self) -> LinkSource:
        """Raises OffsetMismatch when the disk has lost finished content, which is dropped then."""
        try:
            return LinkSource(self._services.disk, self.upload)
        except (BlobMissing, BlobDamaged) as error:
            await self.drop_lost(error)

    async def drop_lost(self, error: BlobMissing | BlobDamaged) -> NoReturn:
        """This disk has lost finished content.

        Raises Unavailable if other nodes have, or may have, what is acknowledged of it; OffsetMismatch when
        it has to come again.
        """
        await self._recover(0)
        raise OffsetMismatch("The disk has lost this content; send it again.", offset=0) from error

    async def _reopen(self, stop: int) -> None:
        """Open it anew, with its first `stop` bytes: finished content gives way."""
        finished, self.kept = self.upload, None
        self.kept = await self._services.disk.run(self._services.uploads.reopen, finished, stop)
        self.kept.size_bytes = self.record.size_bytes

    async def _recover(self, sound_offset: int) -> None:
        """This disk has lost acknowledged bytes: another node goes on, or the client sends them again."""
        await self._give_up()
        if self.upload.finished is not None:
            await self._reopen(sound_offset)
        else:
            await self._services.disk.run(self.upload.rollback_to, sound_offset)
        await self.rewind(sound_offset, self.upload.sha256 if sound_offset else EMPTY_SHA256)

    async def _give_up(self) -> None:
        """Raises Unavailable if other nodes have, or may have, what is acknowledged and lost here."""
        if not self.record.offset_bytes:
            return
        _log.error("acknowledged bytes of an upload are lost", extra={"file_uuid": self.record.file_uuid})
        if await give_up(self._services, self._caller, self.record):
            raise Unavailable("Another node goes on with this upload: ask again.", retry_after_s=1)

    async def hand_over(self, expected_bytes: int = 0) -> str:
        """This disk takes no more: the node that holds the upload now, "" when no other can.

        `expected_bytes`: the size of the content if that is known and not declared yet. Raises
        what the log refuses; Overtaken.
        """
        await self._end_chain()
        if not self.record.offset_bytes and self._recorded.proposed_offset:
            await self._recorded.rewind(0, EMPTY_SHA256)  # no late report may come true elsewhere
        try:
            return await hand_over(
                self._services, self._caller, self.record, self._sent_to, expected_bytes=expected_bytes
            )
        except Conflict as error:
            raise Overtaken(error.details) from error

    async def _sent_to(self, node_id: str) -> bool:
        """Send a node outside the placement what is acknowledged: whether it has that durably."""
        record = self.record
        if self.kept is None or self.upload.broken or self.upload.offset < record.offset_bytes:
            return False
        self._source = await self._open_source()
        self._source.move(record.offset_bytes)
        self._start_chain([node_id], needed=1)
        assert self._chain is not None
        self._chain.end()
        try:
            await self._chain.reach(record.offset_bytes)
        except (Unavailable, InsufficientStorage):
            return False
        finally:
            made = self._chain.durable()
            await self._end_chain()
        return made.get(node_id) == record.offset_bytes

    def _start_chain(self, members: Sequence[str] | None = None, *, needed: int | None = None) -> None:
        """To the members of the placement, or to these."""
        assert self._source is not None
        if self.record.prefix_sha256:
            self._source.know(self.record.offset_bytes, self.record.prefix_sha256)
        self._chain = Chain(
            node_id=self._services.node_id,
            peers=self._services.peers,
            view=self._services.api.view,
            metrics=self._services.metrics,
            source=self._source,
            terms=self.terms,
            placement=self.record.placement if members is None else members,
            needed=needed,
        )
        self._chain.start()

    async def _end_chain(self) -> None:
        chain, reporting, source = self._chain, self._reporting, self._source
        self._chain, self._reporting, self._source = None, None, None
        if reporting is not None:
            reporting.cancel()
            await asyncio.wait({reporting})
        if chain is not None:
            await chain.close()
        elif source is not None:
            source.close()

    async def _end_report(self) -> None:
        """Wait for the one that is under way. Raises what it is refused with."""
        if self._reporting is not None:
            reporting, self._reporting = self._reporting, None
            await reporting

    def _is_report_due(self, chain: Chain) -> bool:
        new_bytes = self._reportable_offset(chain) - self.record.offset_bytes
        return is_report_due(new_bytes, self._loop.time() - self._reported_at_s)

    def _reportable_offset(self, chain: Chain) -> int:
        """What the write quorum has: nodes that do not leave, as soon as that is news."""
        staying_offset = chain.quorum_offset(staying=True)
        is_news = staying_offset > self.record.offset_bytes
        return min(self.upload.durable_offset, staying_offset if is_news else chain.quorum_offset())

    async def _report_underway(self) -> None:
        """A coordinator that does not answer does not stop the bytes; a refusal does."""
        assert self._chain is not None
        assert self._source is not None
        self._reported_at_s = self._loop.time()
        mark = self._source.mark_below(self._reportable_offset(self._chain))
        if mark is not None and mark[0] == self.record.size_bytes:
            mark = None  # the request that brought the last bytes has not looked at them yet
        with suppress(Unavailable):
            if mark is not None and mark[0] > self.record.offset_bytes:
                await self._report(*mark)
            elif self.record.prefix_sha256 or not self.record.offset_bytes:
                await self._report(self.record.offset_bytes, self.record.prefix_sha256)

    async def _report(self, offset: int, sha256: str, *, reserve_bytes: int = 0) -> None:
        placement = self._placement(offset)
        await self._recorded.report(offset, sha256, placement=placement, reserve_bytes=reserve_bytes)

    def _placement(self, offset: int) -> list[str]:
        """The new placement when the present one is no longer the right one; [] leaves it.

        That is so when a node outside it has the bytes, or enough have them without one that leaves. The log
        takes none that names a node which was removed since.
        """
        chain = self._chain
        if chain is None:
            return []
        present = self.record.placement
        durable = [name for name, stop in chain.durable().items() if stop >= offset]
        staying = [name for name in durable if not chain.leaves(name)]
        is_enough = len(staying) >= self._services.api.view.current.write_quorum - 1
        having = staying if is_enough else durable
        leaving = [name for name in present[1:] if is_enough and chain.leaves(name)]
        if set(having) <= set(present) and not leaving:
            return []
        rest = [name for name in present[1:] if name not in having and name not in leaving]
        others = known_nodes(self._services, rest)
        return [present[0], *having, *others][: max(len(present), 1 + len(having))]
