"""An upload as the log records it, and what its holder reports to the log: offsets, reservations, a size.

Every command names the epoch in which the holder knows the upload. The log refuses those of an older one, and
an answer counts only while it names this node as the holder.
"""

from collections.abc import Awaitable, Callable

from msgspec import UNSET

from ca.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    PayloadTooLarge,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.commands import DeclareSize, RecordProgress, RewindUpload
from node.uploads.services import NodeServices
from runtime.time_limits import moved
from web.headers.ranges import SIZE_BYTES_MAX

RESERVED_AHEAD_BYTES = 16 << 20  # for a body that does not tell its length
NO_ROOM = (PayloadTooLarge, RateLimited)  # what the log says when the quota has no room for more, or not yet


class Overtaken(Exception):
    """The log says that another node holds the upload, or holds it in a later epoch. Nothing is lost."""


class RecordedUpload:
    """`record` is the newest from the log; `proposed_offset` is what the log may say by now.

    A report of it may have got no answer.
    """

    def __init__(self, services: NodeServices, caller: Caller, record: UploadRecord) -> None:
        self.record = record
        self.proposed_offset = record.offset_bytes
        self._services, self._caller = services, caller

    async def report(self, offset: int, sha256: str, *, placement: list[str], reserve_bytes: int = 0) -> None:
        """Have the log acknowledge the bytes before `offset`. `placement`: [] leaves it as it is.

        Raises FilestoreError for what the log refuses, Unavailable when it does not answer, Overtaken.
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
            placement=placement,
            reserve_bytes=reserve_bytes,
        )
        try:
            await self._propose(command)
        except (Forbidden, Unauthorized, *NO_ROOM):
            self.proposed_offset = proposed_before  # it will not come true any more
            raise
        except InvalidRequest as error:  # no fault of the client's: our view was of before a removal
            raise Unavailable("A node of this upload was just removed.", retry_after_s=1) from error

    async def rewind(self, offset: int, sha256: str) -> None:
        """Rewind in a new epoch, so that later arrivals of older proposals are rejected.

        Raises as `report`.
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
        """Fix the size. Raises Conflict when it has another by now; Overtaken."""
        command = DeclareSize(caller=self._caller, file_uuid=self.record.file_uuid, size_bytes=size_bytes)
        record = await self._services.api.metadata.propose(command, UploadRecord)
        if record.epoch != self.record.epoch:
            raise Overtaken("the size was declared in a later epoch")
        self._adopt(record)

    async def _propose(self, command: RecordProgress | RewindUpload) -> None:
        try:
            self._adopt(await self._services.api.metadata.propose(command, UploadRecord))
        except Conflict as error:
            raise Overtaken(error.details) from error

    def _adopt(self, record: UploadRecord) -> None:
        """Adopt the log's answer, if this node still holds the upload. Raises Overtaken otherwise."""
        if record.placement[:1] != [self._services.node_id]:
            raise Overtaken("the upload has ended, or another node holds it")
        moved()
        self.record = record


def reserved_stop(record: UploadRecord) -> int:
    """Up to where there may be bytes of the upload on several nodes; SIZE_BYTES_MAX without a bound."""
    if record.size_bytes is not None or record.reserved_bytes is UNSET:
        return SIZE_BYTES_MAX
    return record.reserved_bytes


async def reserve_ahead(reserve: Callable[[int], Awaitable[None]], offset: int) -> None:
    """Reserve quota for more bytes than came; for those that came if the bucket is nearly full.

    The log itself reserves a declared size. If nobody declared one, the holder reserves before other nodes
    get bytes. Raises NO_ROOM.
    """
    try:
        await reserve(min(offset + RESERVED_AHEAD_BYTES, SIZE_BYTES_MAX))
    except NO_ROOM:
        await reserve(offset)
