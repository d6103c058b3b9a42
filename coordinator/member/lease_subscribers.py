"""The asyncio shell around the leader's cache leases.

It holds the writers that wait for subscribers, and the subscribers that wait for news.

All decisions are made in `coordinator.member.record_leases`. A subscriber's call waits here until keys are
blocked, so that a write only waits for one exchange with the nodes. The end of blocks is reported a little
later, many of them together.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from coordinator.member.record_leases import LEASE_S, Block, CacheLeases
from coordinator.raft.core import NotLeader
from metadata.protocol.calls import FollowCall, FollowReply
from metadata.protocol.invalidation import Keys

POLL_S = 0.5  # a call without news is answered after this: a quarter of a lease
PUBLISH_DELAY_S = 0.05  # after the end of a block; until then its records are not cached


class LeaseSubscribers:
    """Everything on the event loop.

    `leadership`: the term that this member leads, 0 if none, and the leader. `read_barrier` as the driver's.
    """

    def __init__(
        self,
        leadership: Callable[[], tuple[int, str]],
        read_barrier: Callable[[], Awaitable[None]],
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        self._leadership = leadership
        self._read_barrier = read_barrier
        self._leases = CacheLeases(lease_s=lease_s)
        self._news = asyncio.Event()  # a new one for each piece of news
        self._waiting: dict[Block, asyncio.Event] = {}
        self._publish_timer: asyncio.TimerHandle | None = None

    @property
    def subscribers(self) -> int:
        """Return how many processes hold a lease of this leader."""
        return self._leases.live(at_s=time.monotonic())

    def observe(self) -> None:
        """Notice whether this member leads.

        Called often: a new leader's first write may have to wait from then on.
        """
        term, _ = self._leadership()
        if self._leases.lead(term, at_s=time.monotonic()):
            for waiting in self._waiting.values():
                waiting.set()
            self._publish()

    async def clear(self, keys: Keys) -> Block:
        """Return when no node caches anything of these keys; they stay blocked until `release`.

        Raises NotLeader, Unavailable. The caller sets the deadline.
        """
        self._require_leader()
        block = self._leases.block(keys, at_s=time.monotonic())
        self._waiting[block] = freed = asyncio.Event()
        self._publish()
        try:
            while (wait_s := self._leases.wait_s(block, at_s=time.monotonic())) > 0:
                freed.clear()
                await _until(freed, wait_s)
                self._require_leader()
                if block.term != self._leases.term:
                    raise NotLeader(self._leadership()[1])
        except BaseException:
            self.release(block)
            raise
        finally:
            del self._waiting[block]
        return block

    def release(self, block: Block) -> None:
        """End a block, as its command was applied here, or never will be by this leader."""
        if self._leases.release(block) and self._publish_timer is None:
            self._publish_timer = asyncio.get_running_loop().call_later(PUBLISH_DELAY_S, self._publish)

    async def follow(self, call: FollowCall) -> FollowReply:
        """Return the answer to a subscriber. Raises NotLeader, Unavailable."""
        received_at_s = time.monotonic()
        term = self._require_leader()
        if call.is_leaving:
            self._free(self._leases.leave(call.subscriber))
            return self._leases.news(call.subscriber)
        self._free(self._leases.acknowledge(call.subscriber, call.term, call.acknowledged))
        is_due = self._leases.is_due(call.subscriber, at_s=received_at_s)
        if is_due:
            await self._read_barrier()
        if not self._leases.is_behind(call.term, call.acknowledged):
            await _until(self._news, POLL_S if call.acknowledged == self._leases.version else PUBLISH_DELAY_S)
        if self._require_leader() != term:
            raise NotLeader(self._leadership()[1])
        if not is_due:
            return self._leases.news(call.subscriber)
        return self._leases.grant(call.subscriber, call.term, call.acknowledged, received_at_s=received_at_s)

    def _free(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if (freed := self._waiting.get(block)) is not None:
                freed.set()

    def _require_leader(self) -> int:
        """Return the term that this member leads. Raises NotLeader."""
        self.observe()
        if not self._leases.term:
            raise NotLeader(self._leadership()[1])
        return self._leases.term

    def _publish(self) -> None:
        if self._publish_timer is not None:
            self._publish_timer.cancel()
            self._publish_timer = None
        self._news.set()
        self._news = asyncio.Event()


async def _until(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until it is set, for `timeout_s` at most."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
