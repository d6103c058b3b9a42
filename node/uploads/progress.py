"""The progress of an upload while its holder writes it: at the members, and in the log.

Bytes go along a chain (`node/uploads/chain.py`) as soon as they may be sent. The holder reports to the log
from time to time how many bytes the write quorum has durably, and the log's offset is acknowledged. Every
report names the epoch in which the holder knows the upload. The log rejects reports of an older epoch, and a
reply counts only while it names this node as the holder.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from msgspec import UNSET

from ca.errors import (
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    PayloadTooLarge,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from metadata.model.records import VM, Caller, UploadRecord
from metadata.protocol.commands import DeclareSize, RecordProgress, RewindUpload
from node.staging.upload_file import UploadFile
from node.uploads.chain import BEHIND_BYTES_MAX, Chain
from node.uploads.chain_link import MARK_BYTES, LinkSource, LinkTerms
from node.uploads.services import NodeServices
from node.uploads.succession import known_nodes
from runtime.lifetime import end_tasks
from runtime.time_limits import note_progress
from web.headers.ranges import SIZE_BYTES_MAX

SMALL_BYTES = 4 << 20  # smaller content is copied when it is complete: a chain would cost more
REPORT_BYTES = 16 << 20  # about what a client loses with the holder
REPORT_GAP_S = 0.25  # the shortest interval: every coordinator syncs a report, and shares the machine
REPORT_S = 2.0  # the longest interval with new bytes: what a slow client loses with the holder
RENEW_S = 30.0  # without new bytes: extends the expiry, and notices a deleted file
RESERVED_AHEAD_BYTES = 16 << 20  # for a body of undeclared length
NO_ROOM = (PayloadTooLarge, RateLimited)  # the log's errors if the quota has no room, or not yet


class Overtaken(Exception):
    """The log says that another node holds the upload, or holds it in a later epoch. Nothing is lost."""


def is_report_due(new_bytes: int, since_s: float) -> bool:
    """Return whether to report this many new bytes to the log, this long after the last report."""
    if new_bytes >= REPORT_BYTES:
        return since_s >= REPORT_GAP_S
    return (new_bytes > 0 and since_s >= REPORT_S) or since_s >= RENEW_S


class UploadProgress:
    """Reports on one upload to the members and the log. It begins with the first bytes; `end` it.

    `record` is the newest from the log; `proposed_offset` is the offset that the log may have by now, from a
    report without a reply.
    """

    def __init__(self, services: NodeServices, caller: Caller, record: UploadRecord) -> None:
        self.record = record
        self.proposed_offset = record.offset_bytes
        self._services, self._caller = services, caller
        self._loop = asyncio.get_running_loop()
        self._source: LinkSource | None = None
        self._chain: Chain | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._reported_at_s = self._loop.time()
        self._synced_at_s = time.monotonic()
        self._marked_offset = 0
        self._announced_bytes = 0

    @property
    def is_running(self) -> bool:
        """Return whether bytes are being sent to members now."""
        return self._chain is not None

    @property
    def terms(self) -> LinkTerms:
        """Return what members must know."""
        record = self.record
        return LinkTerms(
            record.file_uuid,
            record.epoch,
            record.kind == VM,
            record.offset_bytes,
            proposed_offset=self.proposed_offset,
        )

    async def reserve(self, size_bytes: int, *, is_announced: bool = False) -> None:
        """Make the log reserve this much of the bucket's quota, unless it has.

        `is_announced`: the request says that its content ends there. Raises NO_ROOM, Overtaken.
        """
        self._announced_bytes = size_bytes if is_announced else self._announced_bytes
        if size_bytes > reserved_stop(self.record):
            await self._end_report()  # one after the other: the log rejects a lower offset
        record = self.record
        if size_bytes > reserved_stop(record):
            await self._report(record.offset_bytes, record.prefix_sha256, reserve_bytes=size_bytes)

    async def _reserve_ahead(self, offset: int) -> None:
        """Reserve quota for more bytes than arrived, or just for those if the bucket is nearly full.

        The log itself reserves a declared size. Without one, the holder reserves before other nodes get
        bytes. Raises NO_ROOM.
        """
        try:
            await self.reserve(min(offset + RESERVED_AHEAD_BYTES, SIZE_BYTES_MAX))
        except NO_ROOM:
            await self.reserve(offset)

    def note_written(self, file: UploadFile) -> None:
        """After each append, in its thread: allow the links to send the bytes, and mark and sync them."""
        if self._source is None:
            if SMALL_BYTES < file.offset <= reserved_stop(self.record):
                self._source = LinkSource(self._services.disk, file)
                self._loop.call_soon_threadsafe(self._start_chain)
            return
        unsynced_bytes = file.sendable_offset - file.durable_offset
        since_s = time.monotonic() - self._synced_at_s
        if (unsynced_bytes >= REPORT_BYTES and since_s >= REPORT_GAP_S) or since_s >= REPORT_S:
            file.begin_sync()
            self._synced_at_s = time.monotonic()
        mark = None
        if file.offset - self._marked_offset >= MARK_BYTES or file.durable_offset == file.offset:
            mark = (file.offset, file.sha256)
            self._marked_offset = file.offset
        self._loop.call_soon_threadsafe(self._source.move, self._sendable_offset(file), mark)

    async def keep_up(self, file: UploadFile) -> None:
        """Between pieces of a body: report what is due, and wait while the quorum is far behind.

        Raises Unavailable or InsufficientStorage without a quorum of members; what the log refuses (deleted,
        revoked, beyond the quota); Overtaken.
        """
        reserved_bytes = reserved_stop(self.record) - RESERVED_AHEAD_BYTES // 2
        if file.offset > max(self._announced_bytes, reserved_bytes, SMALL_BYTES // 2):
            await self._reserve_ahead(file.offset)
        if self._reporting is not None and self._reporting.done():
            reporting, self._reporting = self._reporting, None
            reporting.result()
        if self._chain is None:
            return
        self._chain.require()
        if self._reporting is None and self._is_report_due(file, self._chain):
            report = self._report_underway(file, self._chain)
            self._reporting = asyncio.create_task(report, name="progress of an upload")
        sendable_offset = self._sendable_offset(file)
        if sendable_offset - self._chain.quorum_offset() > BEHIND_BYTES_MAX:
            await self._chain.reach(sendable_offset - BEHIND_BYTES_MAX)

    async def settle(self, file: UploadFile) -> list[str]:
        """Bring the write quorum and the log to the end of a durable file; return the members that have all.

        Raises FilestoreError if that is impossible; BlobMissing or BlobDamaged if finished content is gone;
        Overtaken.
        """
        offset = file.offset
        if self._source is None:
            self._source = LinkSource(self._services.disk, file)
            self._start_chain()
        assert self._chain is not None
        self._source.move(offset, (offset, file.sha256))
        self._chain.end()
        await self._end_report()
        await self._chain.reach(offset)
        if offset != self.record.offset_bytes:
            await self._report(offset, file.sha256)
        await self._chain.linger()
        durable = self._chain.durable()
        await self.end()
        return [name for name, stop in durable.items() if stop == offset]

    async def send_acknowledged(self, file: UploadFile, node_id: str) -> bool:
        """Send the acknowledged bytes to a node outside the placement; return whether it has them durably.

        Raises BlobMissing or BlobDamaged if finished content is gone.
        """
        offset = self.record.offset_bytes
        self._source = LinkSource(self._services.disk, file)
        self._source.move(offset)
        self._start_chain([node_id], needed=1)
        assert self._chain is not None
        self._chain.end()
        try:
            await self._chain.reach(offset)
        except (Unavailable, InsufficientStorage):
            return False
        finally:
            durable = self._chain.durable()
            await self.end()
        return durable.get(node_id) == offset

    async def end(self) -> None:
        """End the chain, and a running report. May be called twice."""
        chain, reporting, source = self._chain, self._reporting, self._source
        self._chain, self._reporting, self._source = None, None, None
        self._marked_offset = 0
        if reporting is not None:
            await end_tasks([reporting])
        if chain is not None:
            await chain.close()
        elif source is not None:
            source.close()

    async def rewind(self, offset: int, sha256: str) -> None:
        """Enter a new epoch, in which the log rejects earlier proposals that arrive late.

        Raises as `settle`.
        """
        command = RewindUpload(
            caller=self._caller,
            file_uuid=self.record.file_uuid,
            node_id=self._services.node_id,
            epoch=self.record.epoch,
            offset_bytes=offset,
            prefix_sha256=sha256,
        )
        await self._propose(command)
        self.proposed_offset = offset

    async def declare(self, size_bytes: int) -> None:
        """Fix the size. Raises Conflict if another was declared meanwhile; Overtaken."""
        command = DeclareSize(caller=self._caller, file_uuid=self.record.file_uuid, size_bytes=size_bytes)
        record = await self._services.api.metadata.propose(command, UploadRecord)
        if record.epoch != self.record.epoch:
            raise Overtaken("the size was declared in a later epoch")
        self._adopt(record)

    def _start_chain(self, members: Sequence[str] | None = None, *, needed: int | None = None) -> None:
        """Start a chain to the members of the placement, or to `members`."""
        assert self._source is not None
        record = self.record
        if record.prefix_sha256:
            self._source.know(record.offset_bytes, record.prefix_sha256)
        self._chain = Chain(
            node_id=self._services.node_id,
            peers=self._services.peers,
            view=self._services.api.view,
            metrics=self._services.metrics,
            source=self._source,
            terms=self.terms,
            placement=record.placement if members is None else members,
            needed=needed,
        )
        self._chain.start()

    def _sendable_offset(self, file: UploadFile) -> int:
        return min(file.sendable_offset, reserved_stop(self.record))

    async def _end_report(self) -> None:
        """Wait for the running report. Raises its error."""
        if self._reporting is not None:
            reporting, self._reporting = self._reporting, None
            await reporting

    def _is_report_due(self, file: UploadFile, chain: Chain) -> bool:
        new_bytes = self._reportable_offset(file, chain) - self.record.offset_bytes
        return is_report_due(new_bytes, self._loop.time() - self._reported_at_s)

    def _reportable_offset(self, file: UploadFile, chain: Chain) -> int:
        """Return the offset of the write quorum: of nodes that do not leave, as soon as it increases."""
        staying_offset = chain.quorum_offset(staying=True)
        is_news = staying_offset > self.record.offset_bytes
        return min(file.durable_offset, staying_offset if is_news else chain.quorum_offset())

    async def _report_underway(self, file: UploadFile, chain: Chain) -> None:
        """Ignore a coordinator that does not answer, as the bytes may continue; raise a rejection."""
        assert self._source is not None
        self._reported_at_s = self._loop.time()
        record = self.record
        mark = self._source.mark_below(self._reportable_offset(file, chain))
        if mark is not None and mark[0] == record.size_bytes:
            mark = None  # the request that brought the last bytes has not verified them yet
        with suppress(Unavailable):
            if mark is not None and mark[0] > record.offset_bytes:
                await self._report(*mark)
            else:
                await self._report(record.offset_bytes, record.prefix_sha256)

    async def _report(self, offset: int, sha256: str, *, reserve_bytes: int = 0) -> None:
        """Let the log acknowledge the bytes before `offset`.

        Raises FilestoreError if the log refuses, Unavailable if it does not answer, Overtaken.
        """
        record, proposed_before = self.record, self.proposed_offset
        self.proposed_offset = max(proposed_before, offset)
        command = RecordProgress(
            caller=self._caller,
            file_uuid=record.file_uuid,
            node_id=self._services.node_id,
            offset_bytes=offset,
            epoch=record.epoch,
            prefix_sha256=sha256,
            placement=self._placement(offset),
            reserve_bytes=reserve_bytes,
        )
        try:
            await self._propose(command)
        except (Forbidden, Unauthorized, *NO_ROOM):
            self.proposed_offset = proposed_before  # it was rejected for good
            raise
        except InvalidRequest as error:  # not the client's fault: our view was older than a removal
            raise Unavailable("A node of this upload was just removed.", retry_after_s=1) from error

    async def _propose(self, command: RecordProgress | RewindUpload) -> None:
        try:
            self._adopt(await self._services.api.metadata.propose(command, UploadRecord))
        except Conflict as error:
            raise Overtaken(error.details) from error

    def _adopt(self, record: UploadRecord) -> None:
        """Adopt the record that the log answered with. Raises Overtaken if another node holds it."""
        if record.placement[:1] != [self._services.node_id]:
            raise Overtaken("the upload has ended, or another node holds it")
        note_progress()
        self.record = record

    def _placement(self, offset: int) -> list[str]:
        """Return the new placement if the present one is no longer right; [] leaves it unchanged.

        It changes if a node outside it has the bytes, or if enough nodes have them without a leaving one. The
        log rejects a placement with a node that was removed since.
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


def reserved_stop(record: UploadRecord) -> int:
    """Return the offset below which nodes may have bytes of the upload; SIZE_BYTES_MAX without a bound."""
    if record.size_bytes is not None or record.reserved_bytes is UNSET:
        return SIZE_BYTES_MAX
    return record.reserved_bytes
