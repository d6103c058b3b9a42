"""Deleting what the log has doomed here: read the list, act, report; then the next list.

What somebody may be about to count on is spared (`node/pins.py`), and so is what is wanted again, if it lies
here whole. A copy in quarantine goes with the replica, unless that is wanted. A file that is gone before the
report is answered is simply gone when the list is read again: this is how it goes on after `kill -9`.
"""

import logging
from typing import Final, Literal

from ca.errors import Conflict, FilestoreError
from coordinator.replica_records import DoomedPage, DoomedReplica
from node.keeping import PAGE_BLOBS, Means, Pass
from node.lost import forget_lost
from node.pins import PIN_S, finished_blobs, is_within
from node.reporting import Reporter

CONFLICTS_MAX: Final = 10  # of one pass: reports that come between are those of an earlier process

Outcome = Literal["dropped", "spared", "left"]
_log = logging.getLogger(__name__)


async def drop_doomed(means: Means, reporter: Reporter, run: Pass) -> None:
    """Drop all that is doomed now. Counts dropped, bytes, spared, left (could not be deleted).

    Raises Stopped when that is too much at once, unless the node is draining; FilestoreError, OSError.
    """
    run.add(dropped=0, bytes=0, spared=0, left=0)
    page = await reporter.doomed(after="", limit=PAGE_BLOBS)
    if page.replicas and not means.is_draining:
        held = await means.replicas()
        run.require_few(held.doomed, held.doomed + held.replicas, "are to be deleted")
    conflicts, after = 0, ""
    while page.replicas:
        try:
            await _work_off(means, reporter, run, page)
            after = page.replicas[-1].sha256  # what was left is not tried again in this pass
        except Conflict:
            conflicts += 1
            if conflicts > CONFLICTS_MAX:
                raise
        page = await reporter.doomed(after=after, limit=PAGE_BLOBS)


async def _work_off(means: Means, reporter: Reporter, run: Pass, page: DoomedPage) -> None:
    finished = await means.disk.run(finished_blobs, means.blobs)
    done: dict[Outcome, list[str]] = {"dropped": [], "spared": [], "left": []}
    for replica in page.replicas:
        is_kept = replica.wanted or replica.sha256 in finished
        done[await means.disk.run(_drop, means, replica, is_kept)].append(replica.sha256)
    told = await reporter.dropped(page.log_index, dropped=done["dropped"], spared=done["spared"])
    run.add(dropped=told.dropped, bytes=told.bytes, spared=told.spared, left=len(done["left"]))
    means.metrics.replicas_dropped.inc(told.dropped)
    for sha256 in done["dropped"]:
        means.record("replica.drop", sha256, "ok")
    _log.info("dropped doomed replicas", extra={name: len(names) for name, names in done.items()})


def _drop(means: Means, replica: DoomedReplica, is_kept: bool) -> Outcome:
    """Durable on return. Blocks."""
    blobs, quarantine, sha256 = means.blobs, means.quarantine, replica.sha256
    spared = False

    def is_spared() -> bool:
        nonlocal spared
        pinned = is_kept or is_within(blobs, sha256, PIN_S, at_s=means.clock_s())
        spared = pinned and blobs.has(sha256)
        return spared

    try:
        try:
            blobs.delete(sha256, unless=is_spared)
        except FilestoreError:  # a directory in its place, say: what can be moved can be deleted from there
            if not quarantine.take(sha256):
                raise
        if spared:
            return "spared"
        if not replica.wanted:  # damaged bytes are kept as long as others may not have better ones
            quarantine.purge(sha256)
        forget_lost(blobs, sha256)
    except FilestoreError as error:
        _log.error("a doomed replica stays", extra={"sha256": sha256, "reason": error.details})
        return "left"
    return "dropped"
