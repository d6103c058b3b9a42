"""What happens to a local blob that is found damaged: it goes out of service at once.

From then on this node says that it does not have the blob, so nobody counts the copy and any member may put a
new one here. The bytes are kept in quarantine, and a note is left for custody (`node/custody.py`), which
reports the loss to the log: the cluster makes a new copy.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ca.errors import FilestoreError
from node.blobs import BlobStore
from node.disk import DiskWorkers
from node.lost import note_lost
from node.metrics import NodeMetrics
from node.quarantine import Quarantine
from node.segments import BlobDamaged, OpenBlob, WholeRead, segment_count

Pace = Callable[[int], Awaitable[None]]  # told how many bytes are read next

_log = logging.getLogger(__name__)


async def withdraw(disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics, damage: BlobDamaged) -> None:
    """Take what was found damaged out of service. A disk that refuses even that is logged."""
    if damage.segment is not None:
        metrics.damaged_segments.inc()
    facts = {"sha256": damage.sha256, "reason": damage.why}
    try:
        moved = await disk.run(_set_aside, blobs, damage)
    except FilestoreError as error:
        _log.error("a damaged blob cannot be moved", extra=facts | {"disk": error.details})
        return
    if moved:
        metrics.quarantined_blobs.inc()
        _log.error("a damaged blob went to quarantine", extra=facts)


async def miss(disk: DiskWorkers, blobs: BlobStore, sha256: str) -> None:
    """Leave a note about a blob that should be here and is not."""
    try:
        await disk.run(note_lost, blobs, sha256, "missing")
    except FilestoreError as error:
        _log.error("a missing blob cannot be noted", extra={"sha256": sha256, "disk": error.details})


async def _at_once(_size_bytes: int) -> None:
    """The pace of who waits for nothing."""


async def read_whole(
    disk: DiskWorkers,
    blob: OpenBlob,
    *,
    pace: Pace = _at_once,
    verify: Callable[[OpenBlob, int, WholeRead], bool] = OpenBlob.verify_segment,
) -> WholeRead:
    """Every segment of a blob is as its checksum says, and all of it as its name says, or BlobDamaged is
    raised.

    One segment is one job for the disk's threads, so that others get their turn; before each `pace` is
    awaited. Raises FilestoreError.
    """
    whole = blob.begin()
    for index in range(segment_count(blob.size_bytes)):
        start, stop = blob.segment_range(index)
        await pace(stop - start)
        if not await disk.run(verify, blob, index, whole):
            raise blob.damaged(f"segment {index} does not match its checksum", segment=index)
    blob.require_name(whole)
    return whole


async def verify_blob(
    disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics, sha256: str, *, pace: Pace = _at_once
) -> int:
    """The size of a blob of which every byte is sound, and what its name says; what was read lately is not
    read again.

    As with `read_whole`, one segment is one job, and before each `pace` is awaited. Raises BlobMissing;
    BlobDamaged, and the blob is withdrawn; FilestoreError.
    """
    try:
        blob = await disk.open(blobs.open, sha256)
        try:
            if not blob.has_its_name():
                blob.trust(await read_whole(disk, blob, pace=pace))
            else:
                for index in range(segment_count(blob.size_bytes)):
                    start, stop = blob.segment_range(index)
                    await pace(stop - start)
                    await disk.run(blob.verify_range, start, stop)
        finally:
            blob.close()
        return await disk.run(blobs.size_bytes, sha256)  # which may have gone while it was read
    except BlobDamaged as damage:
        await withdraw(disk, blobs, metrics, damage)
        raise


def _set_aside(blobs: BlobStore, damage: BlobDamaged) -> bool:
    """The note comes second: custody would find the blob in its place and take the note away."""
    try:
        moved = Quarantine(blobs).take(damage.sha256, damage)
    except FilestoreError:  # it may be moved all the same, or be as good as gone
        with suppress(FilestoreError):
            note_lost(blobs, damage.sha256, "damaged")
        raise
    if moved:
        note_lost(blobs, damage.sha256, "damaged")
    return moved
