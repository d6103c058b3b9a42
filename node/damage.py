"""What happens to a local blob that is found damaged: it goes out of service at once.

From then on this node says that it does not have the blob, so nobody counts the copy and any member may put a
new one here. The bytes are kept in quarantine. Repair is not built yet: a new copy comes when the same
content is uploaded again.
"""

import logging

from ca.errors import FilestoreError
from node.blobs import BlobStore
from node.disk import DiskWorkers
from node.metrics import NodeMetrics
from node.segments import SEGMENT_BYTES, BlobDamaged

_log = logging.getLogger(__name__)


async def withdraw(disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics, damage: BlobDamaged) -> None:
    """Take what was found damaged out of service. A disk that refuses even that is logged."""
    if damage.segment is not None:
        metrics.damaged_segments.inc()
    facts = {"sha256": damage.sha256, "reason": damage.why}
    try:
        moved = await disk.run(blobs.quarantine, damage.sha256, damage)
    except FilestoreError as error:
        _log.error("a damaged blob cannot be moved", extra=facts | {"disk": error.details})
        return
    if moved:
        metrics.quarantined_blobs.inc()
        _log.error("a damaged blob went to quarantine", extra=facts)


async def verify_blob(disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics, sha256: str) -> int:
    """The size of a blob of which every byte is sound; what was read lately is not read again.

    One segment is one job for the disk's threads, so that others get their turn. Raises BlobMissing;
    BlobDamaged, and the blob is withdrawn; FilestoreError.
    """
    try:
        blob = await disk.run(blobs.open, sha256)
        try:
            for start in range(0, blob.size_bytes, SEGMENT_BYTES):
                stop = min(start + SEGMENT_BYTES, blob.size_bytes)
                await disk.run(blob.verify_range, start, stop)
            return blob.size_bytes
        finally:
            blob.close()
    except BlobDamaged as damage:
        await withdraw(disk, blobs, metrics, damage)
        raise
