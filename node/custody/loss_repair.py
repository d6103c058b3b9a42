"""Replicas that this node should have and does not: put back from quarantine if sound, else reported lost.

A report waits CHECK_S at most for the copy in quarantine to be read: the cluster makes another replica sooner
than a large one is read. One that proves to be sound after its report is put back all the same, and added.

Tested by tests/unit/node/custody/test_custody_beside.py.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from metadata.model.replica_records import Lost, ReplicaPage
from metadata.protocol.queries import ListReplicas
from node.custody.checking import Checks
from node.custody.context import PAGE_BLOBS, CustodyContext, Pass
from node.custody.damaged_copies import DamagedCopies
from node.custody.reporter import Reporter
from node.storage.blob_files import REPLICAS
from node.storage.loss_notes import Reason, forget_lost, list_lost, retry_notes

CHECK_S: Final = 5.0
RETRY_NOTES_S: Final = 60.0  # for notes that the disk did not let go
_log = logging.getLogger(__name__)


class LossRepair:
    """Repairs missing replicas of one node. One caller works at a time, the others wait; `close` it."""

    def __init__(self, context: CustodyContext, reporter: Reporter, copies: DamagedCopies) -> None:
        self._context = context
        self._reporter = reporter
        self._turn = asyncio.Lock()
        self._checks = Checks(context, self._add_late, copies.note)
        self._retried_at_s = float("-inf")

    async def settle_notes(self) -> None:
        """Handle the losses that processes of this node have noted.

        Raises FilestoreError if the log fails.
        """
        context, seen = self._context, set[str]()
        now_s = asyncio.get_running_loop().time()
        if now_s - self._retried_at_s >= RETRY_NOTES_S:
            self._retried_at_s = now_s
            await context.disk.run(retry_notes, context.blobs)
        while notes := await context.disk.run(list_lost, context.blobs, PAGE_BLOBS, besides=seen):
            seen.update(note.sha256 for note in notes)  # each once: one that the disk says nothing of stays
            await self.settle([(note.sha256, note.reason) for note in notes])

    async def settle(self, found: Sequence[tuple[str, Reason]]) -> tuple[int, int]:
        """Restore or report each missing replica; return both numbers. Notes about them are removed."""
        async with self._turn:
            absent: dict[Reason, list[str]] = {"missing": [], "damaged": []}
            looked = [(item, await self._is_here(item[0])) for item in found]
            gone = [item for item, is_here in looked if is_here is False]
            decided = await self._checks.wait_for_results([sha256 for sha256, _ in gone], CHECK_S)
            for sha256, reason in gone:
                if not decided.get(sha256):
                    absent[reason].append(sha256)
            # A damaged blob may have been affirmed to another process; a missing one was not.
            known = await self._context.states_in_log(absent["missing"]) if absent["missing"] else {}
            absent["missing"] = [name for name in absent["missing"] if known.get(name) == "held"]
            for reason, sha256s in absent.items():
                if sha256s:
                    await self._report(sha256s, reason)
            for (sha256, _), is_here in looked:
                if is_here is not None:
                    await self._context.disk.run(forget_lost, self._context.blobs, sha256)
        return sum(decided.values()), sum(len(sha256s) for sha256s in absent.values())

    async def restore(self, sha256: str, *, moved: Callable[[int], None]) -> bool:
        """Restore a blob from quarantine; False if it is missing or damaged. Raises FilestoreError.

        A copy that was found damaged is not read again. `moved` is called for each piece that was read.
        """
        return await self._checks.restore(sha256, moved=moved)

    async def restored(self, sha256: str, wait_s: float, run: Pass) -> bool | None:
        """Restore a blob like `restore`, within a time; None if it is still being read.

        `run` counts the bytes.
        """
        before = self._checks.read_bytes
        decided = await self._checks.wait_for_results([sha256], wait_s)
        run.add(read_bytes=self._checks.read_bytes - before)
        return decided.get(sha256)

    async def add(self, sha256: str, as_of: int) -> bool:
        """Tell the log of a sound blob that it wants; `as_of` was known before it was looked at."""
        if not await self._context.disk.run(self._context.blobs.affirm, sha256):
            return False
        if not await self._reporter.add(sha256, as_of):
            return False
        self._context.record("replica.add", sha256, "ok")
        return True

    async def close(self) -> None:
        """No copy is read any more."""
        await self._checks.close()

    async def _is_here(self, sha256: str) -> bool | None:
        """None when the disk says nothing about it."""
        with self._context.blobs.poison.skipping(REPLICAS, sha256):
            return await self._context.disk.run(self._context.blobs.has, sha256)
        return None

    async def _add_late(self, sha256: str) -> None:
        """Record a replica that is here again after it was reported lost. Raises FilestoreError."""
        query = ListReplicas(node_id=self._context.node_id, limit=1)
        async with self._turn:  # the report that went out meanwhile is answered first: it would refuse this
            page = await self._context.metadata.read(query, ReplicaPage)
            await self.add(sha256, page.log_index)

    async def _report(self, sha256s: Sequence[str], reason: Reason) -> None:
        readable = await self._context.disk.run(_readable, self._context, sha256s)
        gone = [sha256 for sha256 in sha256s if sha256 not in readable]
        reports: list[tuple[list[str], Reason]] = [(readable, "damaged"), (gone, "missing")]
        answers = [await self._reporter.report_lost(names, what) for names, what in reports if names]
        lost = Lost(
            replicas=sum(answer.replicas for answer in answers), blobs=sum(answer.blobs for answer in answers)
        )
        self._context.metrics.replicas_lost.labels(reason).inc(lost.replicas)
        for sha256 in sha256s:
            self._context.record("replica.lost", sha256, reason)
        facts = {"count": len(sha256s), "replicas": lost.replicas, "reason": reason}
        _log.error("replicas were reported lost", extra=facts)
        if lost.blobs:
            _log.critical("files have no complete replica any more", extra={"count": lost.blobs})


def _readable(context: CustodyContext, sha256s: Sequence[str]) -> list[str]:
    """Return the blobs with a readable copy in quarantine, sound or not. Blocks."""
    found = []
    for sha256 in sha256s:
        copy = context.quarantine.open(sha256)
        if copy is not None:
            copy.close()
            found.append(sha256)
    return found
