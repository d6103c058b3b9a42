"""Removes the directories of uploads that have ended. Apart from requests: a task of its own.

Such uploads expired, were deleted, or finished before a crash. The log is asked first, in bounded queries; an
upload in use is never removed. Each worker of a node sweeps its own uploads: only it knows whether they are
in use, and only it can seal the pack that it appends to, which custody then rewrites. Files that the disk
does not let it remove are skipped (`node/diskio/unusable_paths.py`), and tried again each time.

Tested by tests/cluster/test_node_process.py.
"""

import logging

from ca.errors import Unavailable, UploadLocked
from metadata.protocol.queries import LiveUploads
from node.diskio.unusable_paths import WORK
from node.storage.blob_files import INCOMING
from node.storage.damage import retry_quarantine
from node.storage.leftovers import AREA
from node.storage.quarantine import Quarantine
from node.uploads.services import NodeServices
from runtime.background import Work
from runtime.clock import boot_time_s

SWEEP_S = 60.0
QUESTION_IDS_MAX = 500  # the limit of one LiveUploads query
# Half-written files that were not written to for this long: a process died, or a disk refused.
STALE_S = 3600.0

_log = logging.getLogger(__name__)


async def keep_swept(services: NodeServices) -> None:
    """Sweep at start and each minute, for ever."""

    async def look() -> None:
        # A failed pull need not be requested again: a new failure reports it.
        services.blobs.poison.clear(WORK, "pull")
        await services.disk.run(services.blobs.leftovers.retry)
        await services.disk.run(services.blobs.leftovers.find_stale, INCOMING, STALE_S, at_s=boot_time_s())
        await services.disk.run(services.blobs.look_again)
        await services.disk.run(Quarantine(services.blobs).look_again)
        await retry_quarantine(services.disk, services.blobs, services.metrics)
        await services.fetches.clean()
        await sweep(services)
        await services.disk.run(services.blobs.packed.store.seal_if_mostly_dead)

    trouble = "the sweep of uploads was interrupted"  # the log cannot be asked, or no file be opened
    await Work("sweep of uploads", look, every_s=SWEEP_S, trouble=trouble).run()


async def sweep(services: NodeServices) -> int:
    """Discard what no live upload needs; return how many.

    Raises FilestoreError if the log cannot be asked.
    """
    listed = await services.disk.run(services.uploads.list_uuids)
    present = [file_uuid for file_uuid in listed if services.siblings.owner(file_uuid) is None]
    discarded = 0
    for first in range(0, len(present), QUESTION_IDS_MAX):
        batch = present[first : first + QUESTION_IDS_MAX]
        live = frozenset(await services.api.metadata.read(LiveUploads(file_uuids=batch), list[str]))
        for file_uuid in batch:
            if file_uuid not in live:
                discarded += await _discard(services, file_uuid)
    return discarded


async def _discard(services: NodeServices, file_uuid: str) -> bool:
    """Discard an upload under the lock of requests, so that none begins to write it."""
    if services.locks.is_locked(file_uuid):
        return False
    gone = False
    try:
        async with services.locks.lock(file_uuid, lambda: True, lambda: None):
            with services.blobs.poison.skipping(AREA, file_uuid):
                gone = await services.disk.run(services.uploads.discard, file_uuid)
    except (UploadLocked, Unavailable):  # it, or the table of uploads, is in use: the next sweep tries again
        return False
    if gone:
        _log.info("discarded the bytes of an ended upload", extra={"file_uuid": file_uuid})
    return gone
