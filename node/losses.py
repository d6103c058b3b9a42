"""Replicas that this node should have and does not: put back from quarantine if sound, else reported lost."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from node.keeping import PAGE_BLOBS, Means
from node.lost import Reason, forget_lost, list_lost
from node.quarantine import QuarantinedBlob
from node.reporting import Reporter
from node.segments import SEGMENT_BYTES

READ_BYTES: Final = 4 * SEGMENT_BYTES  # in one job for the disk's threads
UNSOUND_MAX: Final = 10_000  # names that are remembered; more are only read again
_log = logging.getLogger(__name__)


class Losses:
    """What is missing on one node. One caller at a time works, the others wait."""

    def __init__(self, means: Means, reporter: Reporter) -> None:
        self._means = means
        self._reporter = reporter
        self._turn = asyncio.Lock()
        self._unsound: OrderedDict[str, tuple[int, int]] = OrderedDict()  # read whole, and of no use

    async def settle_notes(self) -> None:
        """What processes of this node have met. Raises FilestoreError when the log cannot be asked."""
        while notes := await self._means.disk.run(list_lost, self._means.blobs, PAGE_BLOBS):
            await self.settle(notes)

    async def settle(self, found: Sequence[tuple[str, Reason]]) -> tuple[int, int]:
        """Put back or report each that is not here; how many of either. Notes about them are taken away."""
        async with self._turn:
            absent: dict[Reason, list[str]] = {"missing": [], "damaged": []}
            restored = 0
            for sha256, reason in found:
                if await self._means.disk.run(self._means.blobs.has, sha256):
                    continue
                if await self.restore(sha256):
                    restored += 1
                else:
                    absent[reason].append(sha256)
            # Of what is damaged somebody may have been told that it is here; of what is not there, nobody.
            known = await self._means.known(absent["missing"]) if absent["missing"] else {}
            absent["missing"] = [name for name in absent["missing"] if known.get(name) == "held"]
            for reason, sha256s in absent.items():
                if sha256s:
                    await self._report(sha256s, reason)
            for sha256, _ in found:
                await self._means.disk.run(forget_lost, self._means.blobs, sha256)
        return restored, sum(len(sha256s) for sha256s in absent.values())

    async def restore(self, sha256: str, *, moved: Callable[[int], None] | None = None) -> bool:
        """Put a blob back from quarantine; False if it is not there or not sound. Raises FilestoreError.

        What was found to be unsound is not read again. `moved` is told of each piece that was read.
        """
        means = self._means
        quarantined = await means.disk.open(means.quarantine.open, sha256)
        if quarantined is None:
            return False
        try:
            if self._unsound.get(sha256) == quarantined.identity:
                return False
            sound = await self._is_read(quarantined, moved) and await means.disk.run(quarantined.put_back)
            if not sound:
                self._remember_unsound(sha256, quarantined.identity)
        finally:
            quarantined.close()
        if sound:
            means.metrics.replicas_restored.inc()
            means.record("replica.restore", sha256, "ok")
            _log.warning("a blob was put back from quarantine", extra={"sha256": sha256})
        return sound

    def _remember_unsound(self, sha256: str, identity: tuple[int, int]) -> None:
        self._unsound[sha256] = identity
        while len(self._unsound) > UNSOUND_MAX:
            self._unsound.popitem(last=False)

    async def _is_read(self, quarantined: QuarantinedBlob, moved: Callable[[int], None] | None) -> bool:
        while quarantined.offset < quarantined.size_bytes:
            size_bytes = min(READ_BYTES, quarantined.size_bytes - quarantined.offset)
            await self._means.budget.take(size_bytes)
            if not await self._means.disk.run(quarantined.read, size_bytes):
                return False
            if moved is not None:
                moved(size_bytes)
        return True

    async def _report(self, sha256s: Sequence[str], reason: Reason) -> None:
        lost = await self._reporter.lost(sha256s, reason)
        self._means.metrics.replicas_lost.labels(reason).inc(lost.replicas)
        for sha256 in sha256s:
            self._means.record("replica.lost", sha256, reason)
        facts = {"count": len(sha256s), "replicas": lost.replicas, "reason": reason}
        _log.error("replicas were reported lost", extra=facts)
        if lost.blobs:
            _log.critical("files have lost their last replica", extra={"count": lost.blobs})
