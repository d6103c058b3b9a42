"""Take a local blob that is found damaged out of service at once.

From then on this node reports that it does not have the blob, so the copy does not count, and any member may
store a new one here. The bytes are kept in quarantine, and a note is left for custody
(`node/custody/custody.py`), which reports the loss to the log: the cluster makes a new copy. If the disk
allows neither, both are kept in memory (`node/storage/out_of_service.py`).
"""

import logging
from collections.abc import Awaitable, Callable

from ca.errors import FilestoreError
from node.base.metrics import NodeMetrics
from node.diskio.executor import DiskWorkers
from node.storage.blob_files import DAMAGED
from node.storage.blobs import BlobStore
from node.storage.loss_notes import note_lost
from node.storage.out_of_service import Loss, RemovedFile
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobDamaged, BlobMissing, OpenBlob, WholeRead, segment_count

Pace = Callable[[int], Awaitable[None]]  # is called with the number of bytes that are read next

_log = logging.getLogger(__name__)


async def remove_from_service(
    disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics, damage: BlobDamaged
) -> None:
    """Take a damaged blob out of service, whether the disk allows moving it or not."""
    if damage.segment is not None:
        metrics.damaged_segments.inc()
    if await disk.run(_quarantine, blobs, damage):
        _count_quarantined(metrics, damage)


async def miss(disk: DiskWorkers, blobs: BlobStore, sha256: str) -> None:
    """Leave a note about a blob that should be here and is not."""
    await disk.run(note_lost, blobs, Loss(sha256, "missing"))


async def retry_quarantine(disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics) -> None:
    """Move files that are out of service and still in place to quarantine, if the disk allows it now."""
    removed = blobs.out_of_service.all()
    for file in removed:
        if await disk.run(_quarantine_removed, blobs, file):
            _count_quarantined(metrics, file.damage)
    known = {file.damage.sha256 for file in removed}
    for sha256 in sorted(blobs.poison.names(DAMAGED) - known):
        damage = await disk.run(_quarantine_unopened, blobs, sha256)
        if damage is not None:
            _count_quarantined(metrics, damage)


async def _at_once(_size_bytes: int) -> None:
    """Do not wait between two segments."""


def _verify_segment(blob: OpenBlob, index: int, whole: WholeRead) -> bool:
    return blob.verify_segment(index, whole)


async def read_whole(
    disk: DiskWorkers,
    blob: OpenBlob,
    *,
    pace: Pace = _at_once,
    verify: Callable[[OpenBlob, int, WholeRead], bool] = _verify_segment,
) -> WholeRead:
    """Read every segment of a blob, and compare the checksums and the name.

    Each segment is one job for the threads of the disk, so that other work is not held up; `pace` is awaited
    before each. Raises BlobDamaged, FilestoreError.
    """
    whole = blob.begin()
    for index in range(segment_count(blob.size_bytes)):
        start, stop = blob.segment_range(index)
        await pace(stop - start)
        if not await disk.run(verify, blob, index, whole):
            raise blob.damage_error(f"segment {index} does not match its checksum", segment=index)
    blob.require_name(whole)
    return whole


async def verify_blob(
    disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics, sha256: str, *, pace: Pace = _at_once
) -> int:
    """Return the size of a blob after checking every byte and its name.

    Segments that were read lately are not read again. As in `read_whole`, one segment is one job, and `pace`
    is awaited before each. Raises BlobMissing; BlobDamaged, and the blob is removed from service;
    FilestoreError.
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
        return await disk.run(blobs.size_bytes, sha256)  # the blob may have been deleted meanwhile
    except BlobDamaged as damage:
        await remove_from_service(disk, blobs, metrics, damage)
        raise


async def affirm_sound(
    disk: DiskWorkers, blobs: BlobStore, metrics: NodeMetrics, sha256: str, *, pace: Pace = _at_once
) -> int | None:
    """Return the size of a sound blob, which is then kept for a while; None if there is none.

    It is read as by `verify_blob`. Raises FilestoreError.
    """
    try:
        size_bytes = await verify_blob(disk, blobs, metrics, sha256, pace=pace)
    except (BlobMissing, BlobDamaged):
        return None
    return size_bytes if await disk.run(blobs.affirm, sha256) else None


def _quarantine(blobs: BlobStore, damage: BlobDamaged) -> bool:
    """Move the damaged blob to quarantine; return whether that was possible.

    The note comes second: custody would find the blob in its place and remove the note. If it cannot be
    moved, this process keeps in memory that it must not be served.
    """
    sha256, stays = damage.sha256, False
    if damage.chunk:  # custody repairs it; until then no reader gets it
        blobs.cold.note_damaged(damage.chunk)
        return False
    try:
        if not Quarantine(blobs).take(sha256, damage):
            return False
    except FilestoreError as error:
        stays = _remove_from_service(blobs, damage, error)
    note_lost(blobs, Loss(sha256, "damaged", damage.file if stays else None))
    return not stays


def _remove_from_service(blobs: BlobStore, damage: BlobDamaged, error: FilestoreError) -> bool:
    """Remove a damaged file from service that cannot be moved; return whether it is still in its place."""
    try:
        stays = blobs.remove_from_service(damage)
    except FileNotFoundError:  # it was moved, and a later step failed
        return False
    except OSError:
        stays = True  # readers cannot open it either
    if stays and damage.sha256 not in blobs.poison.names(DAMAGED):
        facts = {"sha256": damage.sha256, "reason": damage.why, "disk": error.details}
        _log.error("a damaged blob cannot be moved to quarantine, and is out of service", extra=facts)
        blobs.poison.note(DAMAGED, damage.sha256, error)
    return stays


def _quarantine_removed(blobs: BlobStore, file: RemovedFile) -> bool:
    """Move a removed file to quarantine; return whether it was moved. Another file in its place stays."""
    damage = file.damage

    def is_another() -> bool:
        return not file.is_of(*blobs.identity(damage.sha256))

    try:
        moved = Quarantine(blobs).take(damage.sha256, damage, unless=is_another)
    except FilestoreError:
        return False  # as before: it is reported as unusable
    if not moved:  # gone, or another
        blobs.out_of_service.forget(damage.sha256)
        blobs.poison.clear(DAMAGED, damage.sha256)
    return moved


def _quarantine_unopened(blobs: BlobStore, sha256: str) -> BlobDamaged | None:
    """Quarantine a file that could not be opened; return its fault if it persists and the file was moved."""
    try:
        blobs.open(sha256).close()
    except BlobDamaged as damage:
        try:
            return damage if Quarantine(blobs).take(sha256, damage) else None
        except FilestoreError:
            return None
    except FilestoreError:
        return None
    except BlobMissing:
        pass
    blobs.poison.clear(DAMAGED, sha256)
    return None


def _count_quarantined(metrics: NodeMetrics, damage: BlobDamaged) -> None:
    metrics.quarantined_blobs.inc()
    _log.error(
        "a damaged blob was moved to quarantine", extra={"sha256": damage.sha256, "reason": damage.why}
    )
