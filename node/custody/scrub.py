"""Read every byte of every replica regularly, to find damage before the copy is needed.

A cycle goes through the blobs by name, within the node's budget of bytes, and the next one starts SCRUB_S
after its beginning. Its progress survives a restart. An order starts a cycle at once, with the whole budget;
an order during an ordered cycle is answered by that cycle. The page cache is bypassed, as its content says
nothing about the medium. Segments are compared with their checksums, and the whole with its name.

Before its first blob, a cycle compares each index of packs with itself and with each pack, in both
directions. Each process does so once too, to find what a crash has left. A wrong index is rebuilt
concurrently (`PackStore.heal`), and the cycle has a gap.

If a cycle finds a large part of the blobs damaged, it stops, ordered or not: memory, a controller or this
program may be at fault, instead of the disk.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ca.errors import FilestoreError, Unavailable
from ca.secretfiles import write_durable
from node.custody.context import PAGE_BLOBS, CustodyContext, Pass, Stopped, Superseded
from node.custody.loss_repair import LossRepair
from node.custody.orders import Order, Orders
from node.peer.rate_budget import Budget
from node.storage.blob_files import BLOBS, PACKS, READS
from node.storage.damage import read_whole, remove_from_service
from node.storage.inventory import Names
from node.storage.segments import BlobDamaged, BlobMissing, OpenBlob, WholeRead
from runtime.background import Work
from runtime.json_files import decode_foreign, decode_sealed, encode_sealed

SCRUB_S: Final = 30 * 86_400.0
UNHURRIED_RATE: Final = 20_000_000  # bytes per second without an order: 50 TB in 30 days
SAVE_S: Final = 60.0  # interval of saving the progress; this much is read again after a restart
STATE: Final = "state"  # an area of `PoisonItems`: small files next to the blobs
REST_S: Final = 60.0
TROUBLE_S: Final = 5.0

_log = logging.getLogger(__name__)


class Cycle(Struct, kw_only=True):
    """The progress of a cycle: everything up to the name `after` was read, and all of it when `is_over`.

    `before_ms`: everything else was read, or arrived, after this time.
    """

    began_at_ms: int
    before_ms: int = 0
    after: str = ""
    is_over: bool = False
    was_stopped: bool = False  # by too much damage
    has_gaps: bool = False  # something could not be read, and was passed over

    @property
    def since_ms(self) -> int:
        """All there is was read, or came, after that; 0 when it is not known."""
        is_whole = self.is_over and not (self.was_stopped or self.has_gaps)
        return self.began_at_ms if is_whole else self.before_ms

    def next(self, at_ms: int) -> "Cycle":
        """The cycle that begins now."""
        return Cycle(began_at_ms=at_ms, before_ms=self.since_ms)


class Scrubber:
    """Scrubs one disk; `run` does until it is cancelled."""

    def __init__(self, context: CustodyContext, losses: LossRepair, state: Path) -> None:
        self._context = context
        self._losses = losses
        self._state = state
        self._event = asyncio.Event()
        self.orders = Orders(self._event.set)
        self._own = Pass()  # of the scheduled cycle
        self._unhurried = Budget(rate_max=UNHURRIED_RATE, rate_min=UNHURRIED_RATE)
        self._saved_at_s = 0.0
        self._since_ms = 0
        self._newest: Cycle | None = None  # the last cycle that began, also if its state could not be written
        self._has_compared_packs = False

    @property
    def since_ms(self) -> int:
        """All replicas here were read, or came, after this time; 0 while that is not known."""
        return self._since_ms

    async def run(self) -> None:
        """Scrub for ever."""
        await self._context.view.wait_until_fresh()
        cycle = await self._context.disk.run(self._load)
        self._noted(cycle)
        self._context.metrics.custody_stops.note("scrub", is_stopped=cycle.was_stopped)
        self._newest = cycle
        await Work(
            "scrub",
            self._look_again,
            every_s=REST_S,
            event=self._event,
            retry_s=TROUBLE_S,
            retry_s_max=TROUBLE_S,
            trouble="scrubbing was interrupted",
            level=logging.ERROR,
            outcome=self._note_outcome,
        ).run()

    async def _look_again(self) -> None:
        assert self._newest is not None, "the state was loaded"
        if self._context.blobs.poison.names(STATE):
            await self._save(self._newest, at_once=True)
        await self.do_due(self._newest)

    def _note_outcome(self, error: Exception | None) -> None:
        """A trouble shows until the cycle has gone on, which `_save` notes."""
        if error is not None:
            self._context.metrics.custody_stops.note_trouble("scrub", error)

    async def do_due(self, cycle: Cycle) -> Cycle:
        """Do what is due now; return the cycle as it is then. Raises FilestoreError, OSError."""
        self._newest = cycle
        while ordered := self.orders.waiting():
            self._newest = cycle = await self._ordered(ordered, cycle)
        now_ms = int(self._context.clock_s() * 1000)
        if cycle.is_over and abs(now_ms - cycle.began_at_ms) >= SCRUB_S * 1000:
            self._newest = cycle = cycle.next(now_ms)
            self._own = Pass()
        if not cycle.is_over:
            await self._by_itself(cycle)
        elif not self._has_compared_packs:
            await self._compare_packs(None)
        return cycle

    async def _by_itself(self, cycle: Cycle) -> None:
        """Continue a scheduled cycle; a stopped one is over."""
        stops = self._context.metrics.custody_stops
        try:
            await self._go_on(cycle, None)
        except Stopped as reason:
            stops.note("scrub", is_stopped=True)
            _log.error("a custody pass stopped itself", extra={"kind": "scrub", "reason": str(reason)})
            cycle.is_over = cycle.was_stopped = True
            await self._save(cycle, at_once=True)
        else:
            if cycle.is_over:
                stops.note("scrub", is_stopped=False)

    async def _ordered(self, ordered: list[Order], before: Cycle) -> Cycle:
        """A whole cycle for these orders."""
        first = ordered[0]
        first.run.counts.clear()
        first.run.add(looked=0, bytes=0, damaged=0)
        for order in ordered:
            order.has_begun, order.run = True, first.run
        cycle = before.next(int(self._context.clock_s() * 1000))
        reason = ""
        try:
            await self._go_on(cycle, first)
        except Unavailable:  # it is still running, and is started again
            for order in ordered:
                order.has_begun = False
            raise
        except (FilestoreError, OSError, Stopped) as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            if cycle.is_over:
                self._context.metrics.custody_stops.note("scrub", is_stopped=False)
        while (oldest := self.orders.next()) is not None and oldest.run is first.run:
            oldest.end(reason)
        return cycle

    async def _go_on(self, cycle: Cycle, order: Order | None) -> None:
        """Continue to the end of the cycle, or until an order outside of it arrives."""
        context = self._context
        if not cycle.after or not self._has_compared_packs:
            cycle.has_gaps |= not await self._compare_packs(order)
        names = Names(context.blobs, after=cycle.after)
        held = (await context.replicas()).replicas
        while page := await context.disk.run(names.page, PAGE_BLOBS):
            for sha256 in page:
                if self._is_superseded(order):
                    return
                is_read = False
                try:
                    with context.blobs.poison.skipping(READS, sha256):
                        await self._read(sha256, order, held)
                        is_read = True
                except Superseded:
                    return
                cycle.has_gaps |= not is_read
                cycle.after = sha256
                await self._save(cycle)
        await self._losses.settle_notes()
        # Directories that could not be listed, and packs with unknown content.
        cycle.has_gaps |= bool(context.blobs.poison.names(BLOBS) | context.blobs.poison.names(PACKS))
        cycle.is_over = True
        await self._save(cycle, at_once=True)

    async def _compare_packs(self, order: Order | None) -> bool:
        """Compare the index of the packs with itself and with each of them, until an order comes.

        False if something is wrong, or cannot be read.
        """
        context, chunks = self._context, self._context.blobs.cold.chunks
        with context.blobs.poison.skipping(PACKS, ""):
            stores = [context.blobs.packed.store]
            if await context.disk.run(chunks.exists):
                stores.append(await context.disk.run(lambda: chunks.packs))
            for store in stores:
                await context.disk.run_long(store.index.require_sound)
                for pack in await context.disk.run(store.index.packs):
                    if self._is_superseded(order):
                        return True
                    await context.budget.take(await context.disk.run(store.check_pack, pack))
            self._has_compared_packs = True
            return True
        self._has_compared_packs = True
        return False

    def _is_superseded(self, order: Order | None) -> bool:
        for joining in self.orders.waiting():
            if order is None:
                return True
            joining.has_begun, joining.run = True, order.run
        return False

    async def _read(self, sha256: str, order: Order | None, held: int) -> None:
        context = self._context
        try:
            await self._verify(sha256, order)
        except BlobMissing:
            return
        except BlobDamaged as damage:
            await remove_from_service(context.disk, context.blobs, context.metrics, damage)
            run = self._own if order is None else order.run
            if damage.chunk:  # many replicas may have it, and one repair is enough
                run.add(with_damaged_chunks=1)
            else:
                run.add(damaged=1)
                run.require_few(run.counts["damaged"], held, "are damaged")
                await self._losses.settle_notes()
        if order is not None:
            order.run.add(looked=1)

    async def _verify(self, sha256: str, order: Order | None) -> None:
        """Verify a blob, and count the bytes while it is read.

        The sender of an order gives up a pass without progress, and one blob may take hours. Raises
        Superseded if an order arrives meanwhile; BlobMissing, BlobDamaged, FilestoreError.
        """
        context = self._context

        async def pace(size_bytes: int) -> None:
            await context.budget.take(size_bytes)
            if order is None:
                await self._unhurried.take(size_bytes)
                if self.orders.waiting():
                    raise Superseded
            context.metrics.scrubbed_bytes.inc(size_bytes)
            if order is not None:
                order.run.add(bytes=size_bytes)

        blob = await context.disk.open(context.blobs.open, sha256, is_afresh=True)
        try:
            await read_whole(context.disk, blob, pace=pace, verify=_verify_on_medium)
        finally:
            blob.close()

    def _load(self) -> Cycle:
        at_ms = int(self._context.clock_s() * 1000)
        with self._context.blobs.poison.skipping(STATE, self._state.name):
            try:
                raw = self._state.read_bytes()
                if not raw.startswith(b'{"crc32":'):  # until 0.3.0: 0.1.0 writes no checksum
                    return decode_foreign(raw, Cycle)
                return decode_sealed(raw, Cycle, of=self._context.node_id)
            except FileNotFoundError:
                return Cycle(began_at_ms=at_ms, before_ms=at_ms)  # a new node: what it holds comes later
            except msgspec.MsgspecError:
                _log.warning("the progress of scrubbing is unknown: it starts over")
        return Cycle(began_at_ms=at_ms)

    def _noted(self, cycle: Cycle) -> None:
        self._since_ms = cycle.since_ms
        self._context.metrics.scrubbed_since.set(cycle.since_ms / 1000)

    async def _save(self, cycle: Cycle, *, at_once: bool = False) -> None:
        self._noted(cycle)
        self._context.metrics.custody_stops.note_trouble("scrub", None)  # it continues
        now_s = asyncio.get_running_loop().time()
        if at_once or now_s - self._saved_at_s >= SAVE_S:
            self._saved_at_s = now_s
            written = encode_sealed(cycle, of=self._context.node_id)
            with self._context.blobs.poison.skipping(STATE, self._state.name):  # it is in memory all the same
                await self._context.disk.run(write_durable, self._state, written)


def _verify_on_medium(blob: OpenBlob, index: int, whole: WholeRead) -> bool:
    return blob.verify_on_medium(index, whole)
