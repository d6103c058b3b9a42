"""Holding this node's disk against the log, in both directions, and what lies in quarantine as well.

What the log names and the disk lacks is put back from quarantine or reported lost. What the log wants and
does not name this node for is added. What it does not know, or no file refers to, waits a day for whoever is
about to say so, goes to quarantine, and from there for good after a week. Nothing is deleted that the log
might still want.
"""

import logging
from contextlib import aclosing
from typing import Final

from coordinator.held_pages import held_pages
from coordinator.queries import FindBlob, ListReplicas
from coordinator.records import BlobRecord
from coordinator.replica_records import HeldReplica, ReplicaPage
from node.damage import verify_blob, withdraw
from node.inventory import Look, Names, look
from node.keeping import PAGE_BLOBS, Means, Pass
from node.losses import Losses
from node.lost import Reason
from node.pins import finished_blobs, is_within
from node.reporting import Reporter
from node.segments import BlobDamaged, BlobMissing

UNKNOWN_S: Final = 86_400.0  # for whoever is about to say that the blob is needed
QUARANTINE_MS: Final = 7 * 86_400_000
FOUND_MAX: Final = 100_000  # blobs that one pass keeps in memory; the next one finds the rest
_UNKNOWN: Final = ("unknown", "unreferenced")

_MAYBE_BLOB: type[BlobRecord | None] = BlobRecord | None  # type: ignore[assignment]  # msgspec takes unions
_log = logging.getLogger(__name__)


class Comparison:
    """Compares again and again; remembers what in quarantine has been read and is not sound."""

    def __init__(self, means: Means, reporter: Reporter, losses: Losses) -> None:
        self._means = means
        self._reporter = reporter
        self._losses = losses
        self._unsound: set[tuple[str, int]] = set()

    async def compare(self, run: Pass) -> None:
        """Once. Counts looked, missing, restored, unknown, quarantined, added, purged.

        Raises Stopped when too much would be given up at once; FilestoreError, OSError.
        """
        run.add(looked=0, missing=0, restored=0, unknown=0, quarantined=0, added=0, purged=0)
        await self._losses.settle_notes()
        held = (await self._means.replicas()).replicas
        await self._settle_missing(run, held)
        await self._settle_unknown(run, held)
        await self._settle_quarantine(run)

    async def _settle_missing(self, run: Pass, held: int) -> None:
        """What the log names this node for. All is looked at before anything is done."""
        means, absent = self._means, list[Look]()
        async with aclosing(held_pages(self._list, means.node_id, rows=PAGE_BLOBS)) as pages:
            async for replicas in pages:
                looks = await means.disk.run(_look_at, means, replicas)
                run.add(looked=len(looks))
                absent += [seen for seen in looks if not seen.is_whole]
                if len(absent) >= FOUND_MAX:
                    break
        run.require_few(len(absent), held, "are damaged or not there")
        run.add(missing=len(absent))
        for first in range(0, len(absent), PAGE_BLOBS):
            found: list[tuple[str, Reason]] = []
            for seen in absent[first : first + PAGE_BLOBS]:
                if seen.damage is not None:
                    await withdraw(means.disk, means.blobs, means.metrics, seen.damage)
                found.append((seen.sha256, "missing" if seen.damage is None else "damaged"))
            restored, _ = await self._losses.settle(found)
            run.add(restored=restored)

    async def _settle_unknown(self, run: Pass, held: int) -> None:
        """What lies here and the log does not name this node for."""
        means, seen, old = self._means, 0, list[str]()
        names = Names(means.blobs)
        while page := await means.disk.run(names.page, PAGE_BLOBS):
            as_of = await self._log_index()
            known = await means.known(page)
            seen += len(page)
            for sha256 in page:
                state = known.get(sha256, "unknown")
                if state == "wanted":
                    await self._add(sha256, as_of, run)
                elif state in _UNKNOWN:
                    run.add(unknown=1)
                    if len(old) < FOUND_MAX and not await means.disk.run(_is_young, means, sha256):
                        old.append(sha256)
        finished = await means.disk.run(finished_blobs, means.blobs)
        old = [sha256 for sha256 in old if sha256 not in finished]
        run.require_few(len(old), max(seen, held), "are not known to the log")
        for first in range(0, len(old), PAGE_BLOBS):
            await self._put_aside(old[first : first + PAGE_BLOBS], run)

    async def _put_aside(self, sha256s: list[str], run: Pass) -> None:
        """Into quarantine. The log hears of it, so that nobody is believed who saw them before."""
        means, moved = self._means, list[str]()
        known = await means.known(sha256s)  # some time has passed
        for sha256 in sha256s:
            if known.get(sha256, "unknown") in _UNKNOWN and await means.disk.run(_take_old, means, sha256):
                moved.append(sha256)
                means.record("blob.quarantine", sha256, "unknown")
        if moved:
            await self._reporter.lost(moved, "missing")
            run.add(quarantined=len(moved))
            means.metrics.unknown_blobs.inc(len(moved))
            _log.warning("blobs that the log does not know went to quarantine", extra={"count": len(moved)})

    async def _settle_quarantine(self, run: Pass) -> None:
        means = self._means
        entries = await means.disk.run(means.quarantine.names)
        self._unsound &= set(entries)
        for first in range(0, len(entries), PAGE_BLOBS):
            page = entries[first : first + PAGE_BLOBS]
            as_of = await self._log_index()
            known = await means.known([sha256 for sha256, _ in page])
            for entry in page:
                state = known.get(entry[0], "unknown")
                if state in ("held", "wanted"):
                    await self._restore(entry, run)
                if state == "wanted":
                    await self._add(entry[0], as_of, run)
                if await self._is_over(entry, state):
                    run.add(purged=await means.disk.run(means.quarantine.purge, entry[0]))
                    means.record("blob.purge", entry[0], state)

    async def _restore(self, entry: tuple[str, int], run: Pass) -> None:
        """Put back what is not in service; what was read before and is not sound is not read again."""
        is_here = await self._means.disk.run(self._means.blobs.has, entry[0])
        if is_here or entry in self._unsound:
            return
        await self._losses.settle_notes()  # what follows reads the whole blob: others need not wait for it
        if await self._losses.restore(entry[0]):
            run.add(restored=1)
        else:
            self._unsound.add(entry)

    async def _is_over(self, entry: tuple[str, int], state: str) -> bool:
        """Whether what lies in quarantine is of no use to anybody any more."""
        sha256, since_ms = entry
        if self._means.clock_s() * 1000 - since_ms < QUARANTINE_MS:
            return False
        if state in _UNKNOWN:
            return True
        if state == "held":  # a whole one has taken its place
            return await self._is_sound(sha256)
        if state != "wanted" or entry not in self._unsound:
            return False
        # Damaged bytes are kept as long as no node has better ones.
        blob = await self._means.metadata.read(FindBlob(sha256=sha256), _MAYBE_BLOB)
        return blob is not None and bool(blob.replicas)

    async def _add(self, sha256: str, as_of: int, run: Pass) -> None:
        """Tell the log of a blob that it wants, if it is sound. `as_of` was known before this look."""
        means = self._means
        await self._losses.settle_notes()  # as above
        if not await self._is_sound(sha256) or not await means.disk.run(means.blobs.affirm, sha256):
            return
        if await self._reporter.add(sha256, as_of):
            run.add(added=1)
            means.record("replica.add", sha256, "ok")

    async def _is_sound(self, sha256: str) -> bool:
        means, pace = self._means, self._means.budget.take
        try:
            await verify_blob(means.disk, means.blobs, means.metrics, sha256, pace=pace)
        except (BlobMissing, BlobDamaged):
            return False
        return True

    async def _log_index(self) -> int:
        """One that is known before what follows is looked at. Raises FilestoreError."""
        return (await self._list(ListReplicas(node_id=self._means.node_id, limit=1))).log_index

    async def _list(self, query: ListReplicas) -> ReplicaPage:
        return await self._means.metadata.read(query, ReplicaPage)


def _look_at(means: Means, replicas: list[HeldReplica]) -> list[Look]:
    return [look(means.blobs, replica.sha256, replica.size_bytes) for replica in replicas]


def _is_young(means: Means, sha256: str) -> bool:
    """Whether somebody may be about to say that it is needed."""
    return is_within(means.blobs, sha256, UNKNOWN_S, at_s=means.clock_s())


def _take_old(means: Means, sha256: str) -> bool:
    return means.quarantine.take(sha256, unless=lambda: _is_young(means, sha256))
