"""How long clients waited around each fault: by two streams of requests, of writes and of reads.

Both go through one client that knows all members and sends a node's heartbeats, as a process of a node does.
Each stream asks one thing after the other, so its longest gap is what a user waited who came at the worst
moment and asked again at once.
"""

import asyncio
import bisect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from metadata.protocol.calls import CALL_TIMEOUT_S
from metadata.rpc.client import MetadataClient
from tests.chaos.clients import Client, Workload

AIM_S = 2.5  # neither writes nor reads should wait for longer, whatever one fault it is
AFTERWARDS_S = 1.0  # what is waited for so soon after a fault is mended belongs to it
PAUSE_S = 0.02  # between two requests of a stream


@dataclass(frozen=True)
class Window:
    """A fault, from its beginning until it is mended, on the clock of the ledger."""

    name: str
    victim: str  # and whether it led
    began_at: float
    mended_at: float
    is_hasty: bool = False  # it began before all members were back from the fault before

    def __str__(self) -> str:
        return (
            f"{self.began_at:.2f}..{self.mended_at:.2f} {self.name} {self.victim}".rstrip()
            + " (hasty)" * self.is_hasty
        )


@dataclass
class Streams:
    """What they were answered, and when. `run` until `stop`."""

    workload: Workload
    metadata: MetadataClient
    writes: list[float] = field(default_factory=list)  # when each was acknowledged
    reads: list[float] = field(default_factory=list)
    is_over: bool = False

    async def run(self) -> None:
        """Ask, one thing after the other, until `stop`."""
        writer, reader = (
            Client(f"{kind}-stream", self.metadata, is_writer=kind == "write", timeout_s=CALL_TIMEOUT_S)
            for kind in ("write", "read")
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask(lambda: self.workload.write(writer), self.writes))
            group.create_task(self._ask(lambda: self.workload.read(reader), self.reads))

    def stop(self) -> None:
        """Ask nothing more."""
        self.is_over = True

    def around(self, window: Window) -> tuple[float, float]:
        """The longest gap of writes and of reads that overlaps this fault, in seconds; after the end."""
        until = window.mended_at + AFTERWARDS_S
        writes_s, reads_s = (
            longest_gap_s(each, window.began_at, until) for each in (self.writes, self.reads)
        )
        return writes_s, reads_s

    async def _ask(self, ask: Callable[[], Awaitable[bool]], answered_at: list[float]) -> None:
        while not self.is_over:
            if await ask():
                answered_at.append(self.workload.ledger.now_s())
            await asyncio.sleep(PAUSE_S)


def longest_gap_s(answered_at: Sequence[float], begin: float, end: float) -> float:
    """The longest time between two answers, in their order, of those that overlap begin..end.

    Before the first answer and after the last it is counted from `begin` and to `end`.
    """
    first = max(bisect.bisect_right(answered_at, begin) - 1, 0)
    last = bisect.bisect_left(answered_at, end) + 1
    near = list(answered_at[first:last])
    moments = [min(begin, *near[:1]), *near, max(end, *near[-1:])] if near else [begin, end]
    return max(later - earlier for earlier, later in itertools.pairwise(moments))
