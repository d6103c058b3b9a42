"""Fetch the snapshot that the leader offers, piece by piece over the peer port, in the background.

The disk is only used in threads. Received pieces stay on disk: an interrupted transfer resumes, even after a
restart of this process.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from ca.errors import Conflict, NotFound, Unavailable
from coordinator.raft.messages import SnapshotMeta, SnapshotOffer
from coordinator.storage.snapshot_store import Chunk, IncomingSnapshot, SnapshotStore
from metadata.protocol.calls import SnapshotCall, SnapshotChunkCall
from metadata.rpc.client import MetadataClient
from metadata.rpc.websocket import end
from runtime.background import Work
from runtime.stopping import run_in_thread

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 2.0
FETCHED_S = 5.0  # a fetched snapshot is being installed for this long: a repeated offer is an echo
HEARD_S = 10.0  # during verification; the source waits six times as long for the receiver
PAUSES_MAX = 30  # without a piece, about a minute: then the leader offers again, or another one leads

_log = logging.getLogger(__name__)


class Fetcher:
    """`offer` says what to fetch; `run` fetches it and calls `fetched` once it is whole and verified."""

    def __init__(
        self,
        metadata: MetadataClient,
        snapshots: SnapshotStore,
        fetched: Callable[[SnapshotMeta], None],
        forbids: Callable[[], str] = str,
    ) -> None:
        """Prepare. `forbids` returns why this member's state must not be replaced by an unconfirmed one."""
        self._forbids = forbids
        self._metadata = metadata
        self._snapshots = snapshots
        self._fetched = fetched
        self._offer: SnapshotOffer | None = None
        self._arrived = asyncio.Event()
        self._done: tuple[SnapshotMeta | None, float] = (None, 0.0)  # the last fetched snapshot, and when

    def offer(self, offer: SnapshotOffer) -> None:
        """Accept an offer of the leader. A running fetch continues, unless the offer is newer."""
        done_meta, done_at = self._done
        if done_meta == offer.meta and time.monotonic() - done_at < FETCHED_S:
            return
        if self._offer != offer:
            self._offer = offer
            self._arrived.set()

    async def run(self) -> None:
        """Fetch offered snapshots, for ever."""
        trouble, arrived = "a snapshot was not fetched", self._arrived
        await Work("snapshots", self._step, first_s=None, event=arrived, retry_s=0.0, trouble=trouble).run()

    async def _step(self) -> None:
        if (offer := self._offer) is None:
            return
        try:
            if await self._fetch(offer):
                _log.info("fetched the snapshot at %d from %s", offer.meta.index, offer.source)
                self._done = (offer.meta, time.monotonic())
                if self._offer is offer:  # otherwise the newer one is about to replace it on the disk
                    self._fetched(offer.meta)
        finally:
            if self._offer is offer:
                self._offer = None  # a repeated offer has a reason

    async def _fetch(self, offer: SnapshotOffer) -> bool:
        """Fetch the snapshot; return False if another one was offered meanwhile.

        Raises NotFound if the source no longer has it, InvalidRequest for wrong bytes, Unavailable without
        any.
        """
        incoming = await asyncio.to_thread(self._snapshots.begin_incoming, offer.meta, offer.source)
        ahead: asyncio.Task[Chunk] | None = None  # the next piece is requested while one is written
        try:
            while not incoming.is_complete:
                if self._offer is not offer:
                    return False
                piece = await (ahead or self._piece(offer, incoming.offset))
                ahead, stop = None, piece.offset + len(piece.data)
                if piece.offset == incoming.offset and stop < piece.size_bytes:
                    ahead = asyncio.create_task(self._piece(offer, stop), name="the next piece of a snapshot")
                await asyncio.to_thread(incoming.add, piece)
        finally:
            if ahead is not None:
                await end(ahead)
        await verify(incoming, self._metadata, offer.source, offer.meta)
        if not incoming.is_vouched and (why := self._forbids()):
            raise Conflict(f"it would take the place of a state that may be right, as {why}")
        return True

    async def _piece(self, offer: SnapshotOffer, offset: int) -> Chunk:
        pause_s = PAUSE_S_MIN
        for _ in range(PAUSES_MAX - 1):
            try:
                return await self._asked(offer, offset)
            except NotFound:
                raise
            except Unavailable:
                if self._offer is not offer:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        return await self._asked(offer, offset)

    async def _asked(self, offer: SnapshotOffer, offset: int) -> Chunk:
        return await chunk_of(self._metadata, offer.source, offer.meta.index, offer.meta.term, offset)


async def verify(
    incoming: IncomingSnapshot, metadata: MetadataClient, source: str, meta: SnapshotMeta
) -> None:
    """Call `Incoming.finish`, and keep contact with the source meanwhile.

    It takes many minutes for a large snapshot. Without requests, the source would assume that the receiver is
    gone, delete the log after the snapshot, and make another one.
    """

    last = incoming.offset - 1

    async def be_heard() -> None:
        await chunk_of(metadata, source, meta.index, meta.term, last)

    # Verification continues even if this fails.
    hearing = Work("word of a snapshot", be_heard, every_s=HEARD_S, first_s=HEARD_S, level=logging.DEBUG)
    heard = asyncio.create_task(hearing.run(), name="reports of the verification")
    try:
        await run_in_thread(incoming.finish)
    finally:
        await end(heard)


async def snapshot_of(metadata: MetadataClient, source: str, index_min: int) -> SnapshotMeta | None:
    """Return the snapshot of at least this entry on one coordinator; None while it makes one.

    Raises Unavailable if it cannot, or does not answer.
    """
    answer = await metadata.ask_coordinator(source, SnapshotCall(index_min))
    return msgspec.msgpack.decode(answer, type=SnapshotMeta | None)


async def chunk_of(metadata: MetadataClient, source: str, index: int, term: int, offset: int) -> Chunk:
    """Return a piece of the snapshot that one coordinator offers.

    Raises NotFound if it is gone there, Unavailable if that coordinator does not answer.
    """
    answer = await metadata.ask_coordinator(source, SnapshotChunkCall(index, term, offset))
    return msgspec.msgpack.decode(answer, type=Chunk)
