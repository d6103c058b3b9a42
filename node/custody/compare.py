"""Compare this node's disk, including quarantine, with the log, in both directions.

A replica that the log lists but the disk lacks is restored from quarantine or reported lost. A blob that the
log wants, without listing this node for it, is added. A blob that the log does not know, or that no file
refers to, is kept for a day, as another process may be about to record it. It is then moved to quarantine,
and deleted after a week. If that would affect too many blobs at once, an operator is asked; after another
week it is done without an answer. A blob that the log might still want is never deleted.

Everything is examined, however much there is. Of blobs that must be counted before any action, FOUND_MAX
names are kept in memory, and the rest is searched again after them. Reading whole blobs comes last: it may
take hours, and a scheduled pass then gives way to an ordered one.

Tested by tests/unit/node/custody/test_custody.py.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from ca.errors import FilestoreError
from metadata.model.records import BlobRecord
from metadata.model.replica_records import HeldReplica, ReplicaPage
from metadata.model.safety_limits import SAFETY_WAIT_S
from metadata.protocol.queries import FindBlob, ListReplicas, held_pages
from node.custody.context import PAGE_BLOBS, CustodyContext, Pass
from node.custody.loss_repair import LossRepair
from node.custody.reporter import Reporter
from node.storage.blob_files import READS, REPLICAS, STRAYS
from node.storage.damage import remove_from_service, verify_blob
from node.storage.inventory import BlobCheck, Names, check_blob, remove_lone_sidecars
from node.storage.loss_notes import Reason
from node.storage.pins import finished_blobs
from node.storage.quarantine import QUARANTINED
from node.storage.segments import BlobDamaged, BlobMissing

UNKNOWN_S: Final = 86_400.0  # as another process may be about to record that the blob is needed
QUARANTINE_MS: Final = 7 * 86_400_000
FOUND_MAX: Final = 100_000  # names that a pass keeps in memory
WAIT_S: Final = 1.0  # for a copy in quarantine, before it is looked whether an order has come
_UNKNOWN: Final = ("unknown", "unreferenced")

_MAYBE_BLOB: type[BlobRecord | None] = BlobRecord | None  # type: ignore[assignment]  # msgspec takes unions
_log = logging.getLogger(__name__)


class Comparison:
    """Compares again and again; remembers what in quarantine has been read and is not sound."""

    def __init__(self, context: CustodyContext, reporter: Reporter, losses: LossRepair) -> None:
        self._context = context
        self._reporter = reporter
        self._losses = losses
        self._unsound: set[tuple[str, int]] = set()

    async def compare(self, run: Pass) -> None:
        """Compare the disk with the log once.

        It counts looked, missing, restored, unknown, quarantined, added, purged; compared: 1 once all
        replicas that the log lists here were examined, and missing ones reported; then read_bytes. `listed`
        grows with each page of any list.

        Raises Stopped if too much would be removed at once; Superseded; FilestoreError, OSError.
        """
        run.add(looked=0, missing=0, restored=0, unknown=0, quarantined=0, added=0, purged=0, read_bytes=0)
        await self._losses.settle_notes()
        held = (await self._context.replicas()).replicas
        await self._settle_missing(run, held)
        wanted = await self._settle_unknown(run, held)
        await self._purge_unknown(run)
        for upper in range(256):
            await self._context.disk.run(remove_lone_sidecars, self._context.blobs, f"{upper:02x}")
        run.add(compared=1)
        if wanted:
            await self._settle_wanted(run)
        await self._settle_quarantine(run)
        for sha256 in sorted(self._context.blobs.poison.names(READS)):  # the next scrub may be far
            with self._context.blobs.poison.skipping(READS, sha256):
                await self._is_sound(sha256, run)

    async def _settle_missing(self, run: Pass, held: int) -> None:
        """Handle replicas that the log lists for this node but that are missing. All are checked first."""
        absent, count = await self._absent(run)
        run.add(missing=count)
        run.require_few(count, held, "are damaged or missing")
        while absent:
            for first in range(0, len(absent), PAGE_BLOBS):
                await self._settle_absent(absent[first : first + PAGE_BLOBS], run)
            if count <= len(absent):
                return
            absent, count = await self._absent(run, after=absent[-1].sha256)

    async def _absent(self, run: Pass, after: str = "") -> tuple[list[BlobCheck], int]:
        """Find listed replicas after `after` that are missing: the first FOUND_MAX, and their number.

        They are counted page by page, as the leader gives up a pass whose counts do not change.
        """
        context, absent, count = self._context, list[BlobCheck](), 0
        pages = held_pages(self._list, context.node_id, rows=PAGE_BLOBS, after=after)
        async with aclosing(pages):
            async for replicas in pages:
                looks = await context.disk.run(_look_at, context, replicas)
                found = [seen for seen in looks if not seen.is_whole]
                absent += found[: FOUND_MAX - len(absent)]
                count += len(found)
                run.add(looked=0 if after else len(looks), listed=len(looks))
        return absent, count

    async def _settle_absent(self, looks: list[BlobCheck], run: Pass) -> None:
        context, found = self._context, list[tuple[str, Reason]]()
        for seen in looks:
            if seen.damage is not None:
                await remove_from_service(context.disk, context.blobs, context.metrics, seen.damage)
            found.append((seen.sha256, "missing" if seen.damage is None else "damaged"))
        restored, _ = await self._losses.settle(found)
        run.add(restored=restored)

    async def _settle_unknown(self, run: Pass, held: int) -> int:
        """Handle blobs here that the log does not know, or that no file refers to.

        Returns how many other blobs here the log wants, without listing this node for them.
        """
        overdue, old, count, states = await self._old(run)
        unknown = sum(states.get(state, 0) for state in _UNKNOWN)
        run.add(unknown=unknown)
        await self._quarantine_all(overdue, run)
        run.require_few(count, max(sum(states.values()), held), "are unknown to the log")
        while old:
            await self._quarantine_all(old, run)
            if count <= len(old):
                break
            _, old, count, _ = await self._old(run, after=old[-1])
        return states.get("wanted", 0)

    async def _quarantine_all(self, sha256s: list[str], run: Pass) -> None:
        for first in range(0, len(sha256s), PAGE_BLOBS):
            await self._quarantine_page(sha256s[first : first + PAGE_BLOBS], run)

    async def _old(self, run: Pass, after: str = "") -> tuple[list[str], list[str], int, dict[str, int]]:
        """Find blobs that have been unknown for long.

        Returns some of those that do not wait for an answer any more, and the first FOUND_MAX of the others
        after `after`. Also returns how many there are, and how many blobs of each state were examined.
        """
        context, overdue, old, count, states = self._context, list[str](), list[str](), 0, dict[str, int]()
        finished = await context.disk.run(finished_blobs, context.blobs)
        async for sha256, state in self._lying(run, after):
            states[state] = states.get(state, 0) + 1
            if (
                state not in _UNKNOWN
                or sha256 in finished
                or await context.disk.run(_is_young, context, sha256)
            ):
                continue
            if len(overdue) < FOUND_MAX and await context.disk.run(_is_overdue, context, sha256):
                overdue.append(sha256)
                continue
            count += 1
            if len(old) < FOUND_MAX:
                old.append(sha256)
        return overdue, old, count, states

    async def _lying(self, run: Pass, after: str = "") -> AsyncIterator[tuple[str, str]]:
        """Each blob on the disk behind `after`, and what the log says of it here."""
        context, names = self._context, Names(self._context.blobs, after=after)
        while page := await context.disk.run(names.page, PAGE_BLOBS):
            known = await context.states_in_log(page)
            run.add(listed=len(page))
            for sha256 in page:
                yield sha256, known.get(sha256, "unknown")

    async def _quarantine_page(self, sha256s: list[str], run: Pass) -> None:
        """Move blobs to quarantine, and tell the log, so that processes that saw them before are rejected."""
        context, moved = self._context, list[str]()
        known = await context.states_in_log(sha256s)  # some time has passed
        finished = await context.disk.run(finished_blobs, context.blobs)
        for sha256 in sha256s:
            if known.get(sha256, "unknown") not in _UNKNOWN or sha256 in finished:
                continue
            if await context.disk.run(_take_old, context, sha256):
                moved.append(sha256)
                context.record("blob.quarantine", sha256, "unknown")
        if moved:
            await self._reporter.report_lost(moved, "missing")
            run.add(quarantined=len(moved))
            context.metrics.unknown_blobs.inc(len(moved))
            _log.warning(
                "blobs that are unknown to the log were moved to quarantine", extra={"count": len(moved)}
            )

    async def _settle_wanted(self, run: Pass) -> None:
        """Add replicas here that the log wants but does not list for this node, if they are intact."""
        async for sha256, state in self._lying(run):
            if state != "wanted":
                continue
            with self._context.blobs.poison.skipping(READS, sha256):
                as_of = await self._log_index()  # known before it is read
                if await self._is_sound(sha256, run):
                    run.add(added=await self._losses.add(sha256, as_of))

    async def _purge_unknown(self, run: Pass) -> None:
        """Delete blobs in quarantine that are of no use."""
        async for entry, state in self._quarantined():
            if state in _UNKNOWN and self._is_old(entry):
                with self._context.blobs.poison.skipping(QUARANTINED, entry[0]):
                    await self._purge(entry, state, run)

    async def _settle_quarantine(self, run: Pass) -> None:
        """Handle blobs in quarantine that the log wants on this node."""
        async for entry, state in self._quarantined():
            if state not in ("held", "wanted"):
                continue
            with self._context.blobs.poison.skipping(QUARANTINED, entry[0]):
                await self._restore(entry, state, run)
                if await self._is_superfluous(entry, state, run):
                    await self._purge(entry, state, run)

    async def _quarantined(self) -> AsyncIterator[tuple[tuple[str, int], str]]:
        """Each copy in quarantine: its name, since when, and what the log says of it here."""
        context = self._context
        entries = await context.disk.run(context.quarantine.names)
        self._unsound &= set(entries)
        for first in range(0, len(entries), PAGE_BLOBS):
            page = entries[first : first + PAGE_BLOBS]
            known = await context.states_in_log([sha256 for sha256, _ in page])
            for entry in page:
                yield entry, known.get(entry[0], "unknown")

    async def _restore(self, entry: tuple[str, int], state: str, run: Pass) -> None:
        """Restore a blob that is not in service; a copy that proved unsound before is not read again."""
        sha256 = entry[0]
        is_here = await self._context.disk.run(self._context.blobs.has, sha256)
        if is_here or entry in self._unsound:
            return
        while (is_restored := await self._losses.restored(sha256, WAIT_S, run)) is None:
            run.require_current()
        if not is_restored:
            self._unsound.add(entry)
            return
        is_added = await self._losses.add(sha256, await self._log_index())  # it may have been reported lost
        run.add(restored=1, added=is_added and state == "wanted")

    async def _is_superfluous(self, entry: tuple[str, int], state: str, run: Pass) -> bool:
        """Return whether a blob in quarantine is useless, although the log wants its content."""
        if not self._is_old(entry):
            return False
        if state == "held":  # a whole one has taken its place
            return await self._is_sound(entry[0], run)
        if state != "wanted" or entry not in self._unsound:
            return False
        # Damaged bytes are kept until enough nodes have better ones for a file to be available.
        blob = await self._context.metadata.read(FindBlob(sha256=entry[0]), _MAYBE_BLOB)
        return blob is not None and blob.has_quorum

    def _is_old(self, entry: tuple[str, int]) -> bool:
        at_s = min(self._context.clock_s(), self._context.kept_s())
        return at_s * 1000 - entry[1] >= QUARANTINE_MS

    async def _purge(self, entry: tuple[str, int], state: str, run: Pass) -> None:
        context = self._context
        run.add(purged=await context.disk.run(context.quarantine.purge, entry[0]))
        context.record("blob.purge", entry[0], state)
        if state == "wanted":  # the log may count on what was sound in it
            await self._reporter.report_lost([entry[0]], "missing")

    async def _is_sound(self, sha256: str, run: Pass) -> bool:
        context = self._context

        async def pace(size_bytes: int) -> None:
            run.require_current()
            await context.budget.take(size_bytes)
            run.add(read_bytes=size_bytes)

        try:
            await verify_blob(context.disk, context.blobs, context.metrics, sha256, pace=pace)
        except (BlobMissing, BlobDamaged):
            return False
        return True

    async def _log_index(self) -> int:
        """One that is known before what follows is looked at. Raises FilestoreError."""
        return (await self._list(ListReplicas(node_id=self._context.node_id, limit=1))).log_index

    async def _list(self, query: ListReplicas) -> ReplicaPage:
        return await self._context.metadata.read(query, ReplicaPage)


def _look_at(context: CustodyContext, replicas: list[HeldReplica]) -> list[BlobCheck]:
    """Return what the disk knows about these replicas."""
    found = []
    for replica in replicas:
        with context.blobs.poison.skipping(REPLICAS, replica.sha256):
            found.append(check_blob(context.blobs, replica.sha256, replica.size_bytes))
    return found


def _is_young(context: CustodyContext, sha256: str) -> bool:
    """Return whether another process may be about to record that the blob is needed."""
    with context.blobs.poison.skipping(REPLICAS, sha256):
        return context.is_affirmed(sha256, UNKNOWN_S)
    return True  # nothing is done with what cannot be looked at


def _is_overdue(context: CustodyContext, sha256: str) -> bool:
    """Return whether the wait for an operator's answer has been too long, so that it is done without one."""
    with context.blobs.poison.skipping(REPLICAS, sha256):
        return not context.is_affirmed(sha256, UNKNOWN_S + SAFETY_WAIT_S)
    return False


def _take_old(context: CustodyContext, sha256: str) -> bool:
    """Whether it is out of service now, be it that a power cut may bring it back."""
    with context.blobs.poison.skipping(STRAYS, sha256):
        try:
            return context.quarantine.take(sha256, unless=lambda: _is_young(context, sha256))
        except FilestoreError:
            if context.blobs.has_name(sha256):
                raise
            return True
    return False
