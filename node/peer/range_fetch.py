"""Fetch the segments that a partial replica lacks from several nodes at once.

Ranges of RANGE_SEGMENTS are queued, ascending. Each worker takes one and requests it from the most promising
node. Verified segments are kept, the rest of the range is queued again. A node that cuts off a response, or
sends nothing for STALL_S, pauses, and is dropped if that happens STRIKES_MAX times in a row. A node that
sends wrong bytes is dropped at once, and asked to read that segment again: if its disk is at fault, it takes
the replica out of service.

The sha256 of the whole is computed behind the writers, from the disk, so it is ready soon after the last
byte.

Tested by tests/unit/node/peer/test_blob_fetching.py.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from ca.errors import Unavailable
from node.base.metrics import NodeMetrics
from node.base.spans import Span
from node.diskio.executor import DiskWorkers, write_overlapped
from node.peer.client import PeerClient, PeerFailed, pieces
from node.peer.source_choice import REST_S_MIN, NodeAddress, NodeChoice
from node.storage.partial_blob import Partial, SegmentMismatch, SpanWriter
from node.storage.segments import SEGMENT_BYTES, SegmentHasher

RANGE_SEGMENTS = 4  # 16 MiB: the cost of a request is negligible, and little is repeated after a failure
RANGES_AT_ONCE = 4  # of one blob; each holds two pieces of at most READ_BUFFER_BYTES
READ_BUFFER_BYTES = 512 << 10
STALL_S = 5.0  # without a byte; a source reads one segment before its first
RANGE_S_MAX = 64.0  # for one range: 256 KiB/s, below which another source or the next attempt is better
CHECK_TIMEOUT_S = 5.0  # for a source to read one segment again
STRIKES_MAX = 3
HASHED_BYTES = 4 * SEGMENT_BYTES  # in one job for the disk's threads

Pace = Callable[[int], Awaitable[None]]  # returns when this many bytes are within the budget

_log = logging.getLogger(__name__)


class SourcesFailed(Unavailable):
    """No node that was asked for a blob could give it. `sources`: those that were asked."""

    def __init__(self, details: str, sources: Iterable[str]) -> None:
        super().__init__(details, retry_after_s=2)
        self.sources = sorted(sources)


@dataclass(slots=True)
class Fetch:
    """One fetch under way. `failed`: sources that did not give what they were asked for."""

    pace: Pace | None
    moved: Callable[[int], None]  # called with how many bytes were read, received or hashed
    failed: set[str] = field(default_factory=set)

    async def keep_pace(self, size_bytes: int) -> None:
        """Wait until this many bytes are within the budget."""
        if self.pace is not None:
            await self.pace(size_bytes)
        self.moved(size_bytes)

    async def count(self, size_bytes: int) -> None:
        """Count bytes like a pace, without waiting."""
        self.moved(size_bytes)


@dataclass(frozen=True, slots=True)
class FetchContext:
    """The services that a fetch needs."""

    peers: PeerClient
    disk: DiskWorkers
    metrics: NodeMetrics


async def gather(
    context: FetchContext, partial: Partial, sources: Sequence[str], fetch: Fetch
) -> SegmentHasher:
    """Fetch every missing segment; return a hasher of the whole content as it is on the disk.

    `sources`: nodes that have it, the best first. Raises SourcesFailed if none of them is left,
    InsufficientStorage, Internal. Verified segments are kept, unless the disk failed.
    """
    gathering = _Gathering(context, partial, sources, fetch)
    try:
        async with asyncio.TaskGroup() as group:
            hashing = group.create_task(gathering.hash())
            for _ in range(min(RANGES_AT_ONCE, len(gathering.waiting))):
                group.create_task(gathering.work())
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None
    return hashing.result()


def split(missing: Iterable[Span]) -> list[Span]:
    """Ranges of at most RANGE_SEGMENTS, ascending."""
    return [
        (first, min(first + RANGE_SEGMENTS, stop))
        for start, stop in missing
        for first in range(start, stop, RANGE_SEGMENTS)
    ]


class _Gathering:
    """Ranges that wait, and the workers that take them."""

    def __init__(self, context: FetchContext, partial: Partial, sources: Sequence[str], fetch: Fetch) -> None:
        self._context = context
        self._partial = partial
        self._sources = sources
        self._fetch = fetch
        self._choice = NodeChoice(sources)
        self._running = 0
        self._changed = asyncio.Event()
        self.waiting = deque(split(partial.missing_segments()))

    async def work(self) -> None:
        """Range after range until nothing is left. Raises Unavailable when no source is."""
        while (span := await self._next()) is not None:
            self._running += 1
            try:
                await self._bring(*span)
            finally:
                self._running -= 1
                self._wake()

    async def hash(self) -> SegmentHasher:
        """Follow the workers from the beginning of the content to its end."""
        hasher, size_bytes = SegmentHasher(), self._partial.blob.size_bytes
        while hasher.size_bytes < size_bytes:
            changed = self._changed
            stop = min(self._partial.prefix_bytes, hasher.size_bytes + HASHED_BYTES)
            if stop > hasher.size_bytes:
                before = hasher.size_bytes
                await self._context.disk.run(self._partial.hash_until, hasher, stop)
                await self._fetch.count(hasher.size_bytes - before)
            else:
                await changed.wait()
        return hasher

    async def _next(self) -> Span | None:
        """A range to ask for; None once all have come. A range under way may yet come back."""
        while True:
            changed = self._changed
            if self.waiting and self._choice.any_awake():
                return self.waiting.popleft()
            if self.waiting:
                await asyncio.sleep(REST_S_MIN)
            elif self._running:
                await changed.wait()
            else:
                return None

    async def _bring(self, first: int, stop: int) -> None:
        """Fetch one range from one source; put the missing part of it back into the queue."""
        writer = await self._context.disk.run(self._partial.writer, first, stop)
        if self._choice.is_empty:  # the last one was dropped since this range left the line
            raise self._none_left()
        source = self._choice.take()
        started_s = time.monotonic()
        failure: PeerFailed | SegmentMismatch | None = None
        try:
            await self._receive(source.url, writer)
        except (PeerFailed, SegmentMismatch) as error:
            failure = error
        finally:
            self._choice.release(source)
        sound_bytes = (writer.verified - first) * SEGMENT_BYTES
        self._choice.record_throughput(source, sound_bytes, time.monotonic() - started_s)
        if writer.verified > first:
            await self._context.disk.run(self._partial.keep, first, writer.verified)
        if failure is None:
            self._succeeded(source)
            return
        self.waiting.appendleft((writer.verified, stop))
        if isinstance(failure, PeerFailed):
            self._struck(source, failure)
        else:
            await self._denounce(source, failure)

    async def _receive(self, node_id: str, writer: SpanWriter) -> None:
        """Raises PeerFailed, SegmentMismatch; InsufficientStorage, Internal."""
        blob, start, stop = self._partial.blob, writer.offset, writer.stop_bytes
        asked = self._context.peers.request(
            node_id,
            "GET",
            f"/blobs/{blob.sha256}",
            headers={"Range": f"bytes={start}-{stop - 1}"},
            answer_timeout_s=STALL_S,
            read_buffer_bytes=READ_BUFFER_BYTES,
        )
        try:
            async with asyncio.timeout(RANGE_S_MAX), asked as answer:
                found = answer.headers.get("Content-Range", "")
                if answer.status != 206 or found != f"bytes {start}-{stop - 1}/{blob.size_bytes}":
                    raise PeerFailed(node_id, f"answered {answer.status}")
                await write_overlapped(self._context.disk, self._counted(node_id, answer), writer.write)
        except TimeoutError as error:
            raise PeerFailed(node_id, "sends too slowly") from error
        if not writer.is_complete:
            raise PeerFailed(node_id, "ended early")

    async def _counted(self, node_id: str, answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        received_bytes = self._context.metrics.replica_bytes.labels("received")
        async for piece in pieces(node_id, answer):
            received_bytes.inc(len(piece))
            # Piece by piece: whole ranges would come in bursts, which clients of either node would notice.
            # Bytes that are not accepted here are not sent there.
            await self._fetch.keep_pace(len(piece))
            yield piece

    def _succeeded(self, source: NodeAddress) -> None:
        self._choice.note_success(source)

    def _struck(self, source: NodeAddress, failure: PeerFailed) -> None:
        """Ranges that one event ends together count once."""
        if self._choice.is_resting(source):
            return
        _log.warning("a source of a blob failed", extra=self._facts(source, failure.reason))
        self._fetch.failed.add(source.url)
        self._choice.note_failure(source)
        if source.failures >= STRIKES_MAX and not self._choice.drop(source):
            raise self._none_left()

    async def _denounce(self, source: NodeAddress, mismatch: SegmentMismatch) -> None:
        _log.error("a source sends damaged bytes", extra=self._facts(source, str(mismatch)))
        self._fetch.failed.add(source.url)
        others_are_left = self._choice.drop(source)
        self._wake()  # the range need not wait for what follows
        path = f"/blobs/{self._partial.blob.sha256}?segment={mismatch.index}"
        with suppress(PeerFailed):
            asked = self._context.peers.request(source.url, "HEAD", path, answer_timeout_s=CHECK_TIMEOUT_S)
            async with asked:
                pass
        if not others_are_left:
            raise self._none_left()

    def _facts(self, source: NodeAddress, reason: str) -> dict[str, str]:
        return {"sha256": self._partial.blob.sha256, "peer": source.url, "reason": reason}

    def _none_left(self) -> SourcesFailed:
        return SourcesFailed("No node that has this blob can send it now.", self._sources)

    def _wake(self) -> None:
        """Wake the waiting tasks."""
        self._changed.set()
        self._changed = asyncio.Event()


def first_failure(failures: BaseExceptionGroup) -> BaseException:
    """The failure that ended the others."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
