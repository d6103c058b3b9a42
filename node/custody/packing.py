"""Free the space of deleted small blobs: packs with much dead space are rewritten.

A pack is due if more than DEAD_SHARE of it is dead, or if a blob in it was deleted for good on purpose. Packs
that stayed small are due too, once there are SMALL_PACKS_MAX of them: each process leaves one when it ends.
Rewriting runs in steps of a megabyte, within the node's budget of bytes, and may stop after any step: the
copied blobs are in their new place then.

Rewriting a pack needs space for its live blobs before it frees any. A pack without live blobs needs none, so
it is deleted however full the disk is. The packs that wait for space are in `blocked`.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from node.base.metrics import PackGauges
from node.custody.context import CustodyContext
from node.packs.rows import PackFacts
from node.packs.store import PACK_BYTES_MAX, PackStore, is_mostly_dead

LOOK_S: Final = 30.0
SMALL_PACK_BYTES: Final = PACK_BYTES_MAX // 16
SMALL_PACKS_MAX: Final = 16

_log = logging.getLogger(__name__)


class BlockedPacks(NamedTuple):
    """Packs that cannot be rewritten for want of room.

    `dead_bytes`: what rewriting them would give back. `wanted_bytes`: how much more must be free before the
    first of them can be rewritten.
    """

    dead_bytes: int = 0
    wanted_bytes: int = 0


class Packing:
    """The packs of one node. `look` often, for ever."""

    def __init__(self, context: CustodyContext, opened: Callable[[], PackStore], gauges: PackGauges) -> None:
        """`opened` returns the store, which may be opened by that; `gauges` show it."""
        self.blocked = BlockedPacks()
        self._context, self._opened, self._gauges = context, opened, gauges
        self._due_at_s = float("-inf")

    async def do_due(self) -> None:
        """Rewrite what is due, if it is time. Raises FilestoreError, OSError: then it is tried again."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._due_at_s:
            return
        await self.rewrite_due()
        self._due_at_s = now_s + LOOK_S

    async def rewrite_due(self) -> int:
        """Bytes given back. Raises FilestoreError, OSError."""
        context, given_back = self._context, 0
        store = await context.disk.run(self._opened)
        await context.disk.run(store.seal_if_mostly_dead)
        packs, blocked = await context.disk.run(store.index.packs), list[tuple[int, PackFacts]]()
        purged = await context.disk.run(store.index.purged_packs)
        for pack in due_packs(packs, purged):
            room_bytes = await context.disk.run(context.blobs.room_bytes)
            if pack.live_blobs and pack.live_bytes >= room_bytes:
                blocked.append((pack.live_bytes + 1 - room_bytes, pack))
                continue
            given_back += await self._rewrite(store, pack)
        self.blocked = BlockedPacks(
            sum(pack.dead_bytes for _, pack in blocked), min((wanted for wanted, _ in blocked), default=0)
        )
        self._gauges.show(await context.disk.run(store.index.packs) if given_back else packs)
        return given_back

    async def _rewrite(self, store: PackStore, pack: PackFacts) -> int:
        context, at, written_bytes = self._context, 0, 0
        while step := await context.disk.run(store.copy_some, pack.number, at):
            at, copied_bytes = step
            written_bytes += copied_bytes
            await context.budget.take(2 * copied_bytes)  # read and written
        dropped_bytes = await context.disk.run(store.drop_if_empty, pack.number)
        if not dropped_bytes:
            return 0  # a damaged record is still there, or a blob was restored
        given_back = max(dropped_bytes - written_bytes, 0)
        self._gauges.given_back.inc(given_back)
        _log.info("a pack was rewritten", extra={"copied_bytes": written_bytes, "given_back": given_back})
        return given_back


def due_packs(packs: Sequence[PackFacts], purged: Collection[int] = ()) -> list[PackFacts]:
    """Return the packs to be rewritten, ordered by the space that they free for their cost.

    `purged`: numbers of packs that have to be, however little of them is dead.
    """
    sealed = [pack for pack in packs if pack.is_sealed]
    small = [pack for pack in sealed if pack.indexed_bytes < SMALL_PACK_BYTES]
    due = list(filter(is_mostly_dead, sealed))
    due += [pack for pack in sealed if pack.number in purged and pack.dead_bytes and pack not in due]
    if len(small) >= SMALL_PACKS_MAX:
        due += [pack for pack in small if pack not in due]
    return sorted(due, key=lambda pack: pack.live_bytes / max(pack.indexed_bytes, 1))
