"""Delete replicas that the log has marked for deletion: read the list, act, report; then the next list.

A replica is spared if another process may be about to rely on it (`node/storage/pins.py`), or if it is wanted
again and complete. A copy in quarantine is deleted with the replica, unless it is wanted. A file that was
deleted before its report was answered is simply missing when the list is read again: this is how the work
continues after `kill -9`.

Tested by tests/unit/node/custody/test_custody.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal

from ca.errors import Conflict, FilestoreError, Unavailable
from metadata.model.replica_records import Dropped, ReplicaToDelete
from node.base.shared_work import SharedWork
from node.custody.context import PAGE_BLOBS, CustodyContext, Pass
from node.custody.reporter import Reporter
from node.storage.blob_files import DROPS
from node.storage.loss_notes import forget_lost
from node.storage.pins import PIN_S, finished_blobs

CONFLICTS_MAX: Final = 10  # of one pass or replica: with reports that came late, or whose answer was lost

RETAIN_S: Final = 4.0  # a page of deletions, and its report; shorter than who asks waits
RETAINED_MAX: Final = 64  # at once
_SIBLINGS: Final = 16  # names that differ in the last digit alone

Outcome = Literal["dropped", "spared", "left"]
_log = logging.getLogger(__name__)


class Dropping:
    """The deletions of one node. Only one list is read, processed and reported at a time."""

    def __init__(self, context: CustodyContext, reporter: Reporter) -> None:
        self._context = context
        self._reporter = reporter
        self._turn = asyncio.Lock()
        self._retaining = SharedWork[str, bool]("retained replicas", at_most=RETAINED_MAX)

    async def drop_marked(self, run: Pass) -> None:
        """Delete all that is marked now. Counts dropped, bytes, spared, left (could not be deleted).

        Raises Stopped when that is too much at once, unless the node is draining; FilestoreError, OSError.
        """
        context = self._context
        run.add(dropped=0, bytes=0, spared=0, left=0)
        page = await self._reporter.to_delete(after="", limit=1)
        if page.replicas and not context.is_draining:
            held = await context.replicas()
            run.require_few(held.doomed, held.doomed + held.replicas, "are to be deleted")
        conflicts, after, more = 0, "", bool(page.replicas)
        listed = set[str]()  # of what could not be deleted before
        while more:
            try:
                after, more = await self._drop_page(after, run, listed)
            except Conflict:
                conflicts += 1
                if conflicts > CONFLICTS_MAX:
                    raise
        context.blobs.poison.keep(DROPS, listed)  # the others shall not be deleted any more

    async def retain(self, sha256: str) -> bool:
        """Make the log withdraw the mark for deletion of a replica that is needed again.

        Returns whether it is here and not marked for deletion. A missing one is reported as dropped, so that
        it can be stored again.

        It continues without a caller, as a list is read only after the previous report was answered. Raises
        Unavailable if that takes longer than RETAIN_S; FilestoreError, OSError.
        """
        return await self._retaining.join(sha256, partial(self._retain, sha256), answer_s=RETAIN_S)

    async def close(self) -> None:
        """End abandoned work."""
        await self._retaining.close()

    async def _retain(self, sha256: str) -> bool:
        context = self._context
        for _ in range(CONFLICTS_MAX):
            is_here = await context.disk.run(context.blobs.affirm, sha256)  # pins it: then it is spared
            async with self._turn:
                page = await self._reporter.to_delete(after=sha256[:-1], limit=_SIBLINGS)
                marked = [replica for replica in page.replicas if replica.sha256 == sha256]
                if not marked:
                    return is_here
                with suppress(Conflict):  # also of our own report, if its answer was lost
                    return (await self._work_off(page.log_index, marked, Pass())).spared > 0
        raise Unavailable("Other reports of this node interfere.")

    async def _drop_page(self, after: str, run: Pass, listed: set[str]) -> tuple[str, bool]:
        """Process the next page after `after`; return its last blob, and whether there may be more.

        Replicas that were left are not tried again in this pass, and are added to `listed`. Raises Conflict.
        """
        async with self._turn:
            page = await self._reporter.to_delete(after=after, limit=PAGE_BLOBS)
            if not page.replicas:
                return after, False
            await self._work_off(page.log_index, page.replicas, run)
            left = self._context.blobs.poison.names(DROPS)
            listed.update(replica.sha256 for replica in page.replicas if replica.sha256 in left)
            return page.replicas[-1].sha256, True

    async def _work_off(self, log_index: int, replicas: Sequence[ReplicaToDelete], run: Pass) -> Dropped:
        context = self._context
        finished = await context.disk.run(finished_blobs, context.blobs)
        done: dict[Outcome, list[str]] = {"dropped": [], "spared": [], "left": []}
        for replica in replicas:
            must_stay = replica.wanted or replica.sha256 in finished
            done[await context.disk.run(_drop, context, replica, must_stay)].append(replica.sha256)
        reply = await self._reporter.report_dropped(log_index, dropped=done["dropped"], spared=done["spared"])
        run.add(dropped=reply.dropped, bytes=reply.bytes, spared=reply.spared, left=len(done["left"]))
        context.metrics.replicas_dropped.inc(reply.dropped)
        for sha256 in done["dropped"]:
            context.record("replica.drop", sha256, "ok")
        _log.info(
            "deleted replicas that were marked for deletion",
            extra={name: len(names) for name, names in done.items()},
        )
        return reply


def _drop(context: CustodyContext, replica: ReplicaToDelete, must_stay: bool) -> Outcome:
    """Durable on return. Blocks."""
    blobs, quarantine, sha256 = context.blobs, context.quarantine, replica.sha256
    spared = False

    def is_spared() -> bool:
        nonlocal spared
        pinned = must_stay or context.is_affirmed(sha256, PIN_S)
        spared = pinned and blobs.has(sha256)
        return spared

    try:
        if replica.purged:
            blobs.note_purged(sha256)
        try:
            blobs.delete(sha256, unless=is_spared)
        except FilestoreError:  # a directory in its place, say: what can be moved can be deleted from there
            if spared or not quarantine.take(sha256):
                raise
        if spared:
            blobs.poison.clear(DROPS, sha256)
            return "spared"
        if not replica.wanted:  # damaged bytes are kept as long as others may not have better ones
            quarantine.purge(sha256)
        forget_lost(blobs, sha256)
    except FilestoreError as error:
        blobs.poison.note(DROPS, sha256, error)
        return "left"
    blobs.poison.clear(DROPS, sha256)
    return "dropped"
