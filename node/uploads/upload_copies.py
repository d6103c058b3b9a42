"""Copies of unfinished uploads that the leading coordinator orders, as a node is about to leave.

An order names the acknowledged bytes in the log: their number, sha256 and epoch. This node reads its bytes
before it confirms them. It fetches missing bytes from the sources, one after the other, and they count only
if all together have that sha256. Without sources nothing is changed. An upload that a request writes now is
left alone. As in `node/peer/pulls.py`, the work belongs to no request, and ends if it was not requested for
LINGER_S.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from prometheus_client import Counter

from ca.errors import Conflict, FilestoreError, NotFound, Unavailable
from node.base.metrics import NodeMetrics
from node.base.shared_work import SharedWork, StillRunning
from node.diskio.executor import DiskWorkers
from node.peer.client import STALL_TIMEOUT_S, PeerClient, PeerFailed, pieces
from node.peer.range_fetch import Pace
from node.staging.resumed_hash import open_in_steps, read_prefix
from node.staging.upload_file import UploadFile
from node.staging.upload_store import UploadStore
from node.uploads.write_locks import UploadLocks
from runtime.bounds import Count, Text
from web.headers.ranges import SIZE_BYTES_MAX

ANSWER_S: Final = 20.0
LINGER_S: Final = 60.0
COPIES_MAX: Final = 64  # ordered at once
TURNS: Final = 2  # fetched at once
SOURCES_MAX: Final = 16

CopyStanding = Literal["here", "absent", "running", "busy"]
_Sources = Annotated[list[Text], Meta(max_length=SOURCES_MAX)]
_Key = tuple[str, str]  # file_uuid and order
_log = logging.getLogger(__name__)


class CopyOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ordered copy. `with_md5`: of a VM image. Without `sources`: only check."""

    epoch: Count
    offset_bytes: Annotated[int, Meta(ge=0, le=SIZE_BYTES_MAX)]
    prefix_sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")]
    with_md5: bool
    sources: _Sources = []


class UploadCopies(SharedWork[_Key, CopyStanding]):
    """The orders of one process."""

    def __init__(
        self,
        node_id: str,
        uploads: UploadStore,
        locks: UploadLocks,
        peers: PeerClient,
        disk: DiskWorkers,
        metrics: NodeMetrics,
        *,
        pace: Pace,
    ) -> None:
        """Prepare for orders. `pace` is awaited for each piece that arrives."""
        super().__init__("copies of uploads", at_most=COPIES_MAX, linger_s=LINGER_S, keep_s=LINGER_S)
        self._node_id = node_id
        self._uploads = uploads
        self._locks = locks
        self._peers = peers
        self._disk = disk
        self._received = metrics.replica_bytes.labels("received")
        self._pace = pace
        self._turns = asyncio.Semaphore(TURNS)

    async def give(self, file_uuid: str, order: CopyOrder, *, answer_s: float = ANSWER_S) -> CopyStanding:
        """Return the state of the order, after `answer_s` at most.

        `absent` means that these bytes are not here, `busy` that a request writes the upload here now.

        Raises its failure: Conflict for an old epoch, Unavailable, InsufficientStorage.
        """
        key = (file_uuid, repr(order))
        if key not in self and self._locks.is_locked(file_uuid):
            return "busy"
        try:
            return await self.join(key, partial(self._bring, file_uuid, order), answer_s=answer_s)
        except StillRunning:
            return "running"

    async def _bring(self, file_uuid: str, order: CopyOrder) -> CopyStanding:
        if await self._is_here(file_uuid, order):
            return "here"
        if not order.sources:
            return "absent"
        async with self._turns, self._locks.lock_until_wanted(file_uuid):
            # Its writer relies on them, and on the bytes behind them.
            if await self._is_here(file_uuid, order):
                return "here"
            return await self._copied(file_uuid, order)

    async def _copied(self, file_uuid: str, order: CopyOrder) -> CopyStanding:
        """Fetch the bytes.

        Raises Unavailable if no source returns them; Conflict for an old epoch.
        """
        async with self._opened(file_uuid, order) as upload:
            await self._disk.run(upload.require_room, order.offset_bytes)
            for source in order.sources:
                if source != self._node_id and await self._took(upload, source, order):
                    await self._disk.run(upload.sync)
                    return "here"
        raise Unavailable("None of the given nodes has these bytes.", retry_after_s=2)

    async def _took(self, upload: UploadFile, source: str, order: CopyOrder) -> bool:
        """Fetch missing bytes from a source; return whether all have the right hash. Raises FilestoreError.

        Earlier bytes may differ from the acknowledged ones: then all are fetched again.
        """
        for _ in range(2):
            began_at = upload.offset
            try:
                await self._receive(upload, source, order.offset_bytes)
            except PeerFailed as failure:
                facts = {"file_uuid": upload.file_uuid, "peer": source, "reason": failure.reason}
                _log.warning("cannot fetch a copy of an upload", extra=facts)
                return False
            if upload.sha256 == order.prefix_sha256:
                return True
            await self._disk.run(upload.rollback_to, 0)
            if not began_at:
                break
        facts = {"file_uuid": upload.file_uuid, "peer": source}
        _log.warning("a node sends bytes of an upload that differ from the acknowledged ones", extra=facts)
        return False

    async def _receive(self, upload: UploadFile, source: str, stop: int) -> None:
        """Receive bytes. Raises PeerFailed; earlier bytes stay."""
        coming = bytes_of_peer(self._peers, self._received, source, upload.file_uuid, upload.offset, stop)
        async with aclosing(coming):
            async for piece in coming:
                await self._pace(len(piece))
                await self._disk.run(upload.append, piece)
                self.count(len(piece))

    async def _is_here(self, file_uuid: str, order: CopyOrder) -> bool:
        """Read the bytes; return whether all are here. Raises Unavailable if unknown, FilestoreError."""
        if not order.offset_bytes:
            return True
        stop = order.offset_bytes
        step = partial(self._uploads.hash_prefix, file_uuid, stop)
        try:
            return await read_prefix(self._disk, step, stop, self.count) == order.prefix_sha256
        except NotFound:
            return False

    @asynccontextmanager
    async def _opened(self, file_uuid: str, order: CopyOrder) -> AsyncGenerator[UploadFile, None]:
        """Yield the upload, durable in the end. Raises Conflict for an old epoch."""
        step = partial(self._open_step, file_uuid, order)
        # The leader sees the progress.
        upload = await open_in_steps(self._disk, step, within_s=float("inf"))
        try:
            yield upload
        finally:
            with suppress(FilestoreError):
                await self._disk.run(upload.sync)
            upload.close()

    def _open_step(self, file_uuid: str, order: CopyOrder, hash_bytes_max: int) -> UploadFile:
        """Do a step of opening it. Blocks. Raises HashingUnfinished."""
        self.count(1)
        return _open(self._uploads, file_uuid, order, hash_bytes_max)


async def bytes_of_peer(
    peers: PeerClient,
    received_bytes: Counter,
    node_id: str,
    file_uuid: str,
    start: int,
    stop: int,
    *,
    answer_timeout_s: float = STALL_TIMEOUT_S,
) -> AsyncGenerator[bytes, None]:
    """Yield bytes of an upload on another node, `start` to `stop`. Raises PeerFailed."""
    path = f"/uploads/{file_uuid}?start={start}&stop={stop}"
    async with peers.request(node_id, "GET", path, answer_timeout_s=answer_timeout_s) as answer:
        if answer.status != 200:
            raise PeerFailed(node_id, f"answered {answer.status}")
        async for piece in pieces(node_id, answer):
            start += len(piece)
            if start > stop:
                raise PeerFailed(node_id, "sent too much")
            received_bytes.inc(len(piece))
            yield piece
    if start != stop:
        raise PeerFailed(node_id, "sent too little")


def _open(uploads: UploadStore, file_uuid: str, order: CopyOrder, hash_bytes_max: int) -> UploadFile:
    """Open an upload that can be continued, with only bytes that can belong to the ordered ones.

    Blocks. Raises HashingUnfinished.
    """
    upload = uploads.open(file_uuid, None, with_md5=order.with_md5, hash_bytes_max=hash_bytes_max)
    try:
        if order.epoch < upload.epoch:
            raise Conflict(f"This upload is in epoch {upload.epoch}.")
        if upload.finished is not None:
            upload = uploads.reopen(upload, 0)
        upload.size_bytes = None
        if upload.offset >= order.offset_bytes:
            upload.rollback_to(0)
        upload.enter_epoch(order.epoch)
    except BaseException:
        upload.close()
        raise
    return upload
