"""Downloads over several connections: ranges, each from the node that promises most.

A node that fails or falls silent loses its range to another. At the end, when no range waits, a free
connection takes over what a much slower one would still be long about. Every range is asked under the
entity tag that the download began with (If-Match), so that bytes of two contents never meet.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from filestore_client.base.errors import Internal, PreconditionFailed
from filestore_client.base.node_choice import NodeAddress, NodeChoice
from filestore_client.base.paths import content_path
from filestore_client.base.records import Content
from filestore_client.base.retry import TRY_AGAIN
from filestore_client.base.spans import Coverage, Span
from filestore_client.base.transport import Transport

CONNECTIONS = 4
CONNECTIONS_MAX = 16
SEGMENT_BYTES = 4 << 20  # what a node verifies at once: a range that ends inside one has it read twice
RANGE_BYTES_MIN = 8 << 20
RANGE_BYTES_MAX = 32 << 20
RANGES_PER_CONNECTION = 4  # so that a slow connection ends up with fewer of them
BUFFER_BYTES = 512 << 10  # per connection; aiohttp holds twice as much before it stops reading
STALL_TIMEOUT_S = 15.0  # a node may spend 10 s on a peer that is silent before it asks the next
SLOW_S = 2.0  # what lasts longer than this is worth another connection
LOOK_S = 0.25
MUCH_FASTER = 4
TAKEN_BYTES_MIN = 256 << 10


class RangeSink(Protocol):
    """The target of a download's bytes, in any order.

    A Protocol, as the tests of rates have memory in the place of a `PartialFile`.
    """

    @property
    def coverage(self) -> Coverage:
        """Return the spans that have arrived."""

    async def write_at(self, offset: int, part: bytes) -> None:
        """Keep these bytes; they count as there when this returns."""


@dataclass(slots=True, eq=False)
class RangeFetch:
    """A range under way: `at` is the first byte that has not come. `limit` ends it when it is overdue."""

    node: NodeAddress
    start: int
    at: int
    stop: int
    began_at_s: float
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))

    def bytes_per_s(self, now_s: float) -> float:
        """Since it began, the wait for the answer included."""
        return (self.at - self.start) / max(now_s - self.began_at_s, 1e-6)

    def remaining_s(self, now_s: float) -> float:
        """How long it will go on at this rate. 0 while it is too young to tell."""
        if now_s - self.began_at_s < SLOW_S / 2:
            return 0.0
        return (self.stop - self.at) / max(self.bytes_per_s(now_s), 1e-6)


async def download_ranges(
    transport: Transport, file_uuid: str, content: Content, sink: RangeSink, *, connections: int = CONNECTIONS
) -> None:
    """Give the sink what it lacks of the content. The caller compares the checksum.

    Raises FilestoreError: the server's refusal, PreconditionFailed when the content is another now, or
    Unavailable when nothing went forward until the deadline; OSError of the sink.
    """
    spans = split(sink.coverage.gaps(content.size_bytes), connections)
    download = _Download(transport, file_uuid, content, sink, spans)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(connections, len(spans))):
                group.create_task(download.work())
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None


def first_failure(failures: BaseExceptionGroup) -> BaseException:
    """The failure that ended the others."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def split(missing: Iterable[Span], connections: int) -> list[Span]:
    """Split into ranges for this number of connections, ascending; one range if little is missing.

    They end where a node's segments end, if they can.
    """
    gaps = list(missing)
    share = sum(stop - start for start, stop in gaps) // (connections * RANGES_PER_CONNECTION)
    size = min(max(share, RANGE_BYTES_MIN), RANGE_BYTES_MAX) // SEGMENT_BYTES * SEGMENT_BYTES
    ranges: list[Span] = []
    for start, stop in gaps:
        while start < stop:
            end = min((start // SEGMENT_BYTES) * SEGMENT_BYTES + size, stop)
            ranges.append((start, end))
            start = end
    return ranges


class _Download:
    """Ranges that wait, ranges under way, and the workers' choice between them."""

    def __init__(
        self, transport: Transport, file_uuid: str, content: Content, sink: RangeSink, spans: Sequence[Span]
    ) -> None:
        self._transport = transport
        self._path = content_path(file_uuid)
        self._content = content
        self._sink = sink
        self._nodes = NodeChoice(transport.urls)
        self._limits = transport.limits()
        self._waiting = deque(spans)
        self._running: list[RangeFetch] = []
        self._changed = asyncio.Event()

    async def work(self) -> None:
        """One connection: range after range until nothing is left."""
        while (span := await self._next()) is not None:
            fetch = self._begin(*span)
            failure: Exception | None = None
            try:
                await self._fetch(fetch)
                self._nodes.note_success(fetch.node)
            except TRY_AGAIN as error:
                failure = error
            finally:
                self._end(fetch)
            if failure is not None and fetch.at < fetch.stop:
                self._nodes.note_failure(fetch.node)
                self._limits.check(failure)
                if not self._nodes.any_awake():
                    await self._limits.pause(failure)

    async def _next(self) -> Span | None:
        """A range to ask for; None once everything has come."""
        while True:
            if self._waiting:
                return self._waiting.popleft()
            if not self._running:
                return None
            if (taken := self._take_over()) is not None:
                return taken
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()

    def _begin(self, start: int, stop: int) -> RangeFetch:
        fetch = RangeFetch(self._nodes.take(), start=start, at=start, stop=stop, began_at_s=time.monotonic())
        self._running.append(fetch)
        return fetch

    def _end(self, fetch: RangeFetch) -> None:
        self._running.remove(fetch)
        self._measure(fetch)
        self._nodes.release(fetch.node)
        if fetch.at < fetch.stop:
            self._waiting.appendleft((fetch.at, fetch.stop))
        self._changed.set()

    def _measure(self, fetch: RangeFetch) -> None:
        self._nodes.record_throughput(fetch.node, fetch.at - fetch.start, time.monotonic() - fetch.began_at_s)

    def _take_over(self) -> Span | None:
        """Some or all of what the slowest range still lacks, so that both would end at the same time."""
        now_s = time.monotonic()
        slowest = max(self._running, key=lambda fetch: fetch.remaining_s(now_s))
        if slowest.remaining_s(now_s) < SLOW_S:
            return None
        self._measure(slowest)
        own, other = self._nodes.best_bytes_per_s(), slowest.bytes_per_s(now_s)
        lacking = slowest.stop - slowest.at
        retained = int(lacking * other / (own + other))
        if own >= MUCH_FASTER * other and retained < TAKEN_BYTES_MIN:
            retained = 0
        elif min(retained, lacking - retained) < TAKEN_BYTES_MIN:
            return None
        taken = (slowest.at + retained, slowest.stop)
        slowest.stop = slowest.at + retained
        if retained == 0:
            slowest.limit.reschedule(asyncio.get_running_loop().time())
        return taken

    async def _fetch(self, fetch: RangeFetch) -> None:
        headers = {"If-Match": f'"{self._content.sha256}"', "Range": f"bytes={fetch.at}-{fetch.stop - 1}"}
        async with (
            fetch.limit,
            self._transport.exchange(
                "GET",
                self._path,
                url=fetch.node.url,
                headers=headers,
                answer_timeout_s=STALL_TIMEOUT_S,
                read_bufsize=BUFFER_BYTES,
            ) as response,
        ):
            self._check(response, fetch)
            async for part in response.content.iter_any():
                await self._sink.write_at(fetch.at, part)
                fetch.at += len(part)
                self._limits.note_progress()
                if fetch.at >= fetch.stop:
                    return

    def _check(self, response: aiohttp.ClientResponse, fetch: RangeFetch) -> None:
        """Check that these are the requested bytes, and of the same content as the others."""
        expected = f"bytes {fetch.at}-{fetch.stop - 1}/{self._content.size_bytes}"
        found = response.headers.get("Content-Range", "")
        if response.headers.get("ETag") != f'"{self._content.sha256}"':
            raise PreconditionFailed(f"{fetch.node.url} now has other content. No part of it was kept.")
        if response.status != 206 or found != expected:
            raise Internal(
                f"{fetch.node.url} answered {response.status} {found!r} when asked for {expected!r}."
            )
