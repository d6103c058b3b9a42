"""Blobs with only damaged copies: repair makes them whole first. Apart from plans of copies."""

from collections.abc import AsyncIterator

from coordinator.reconcile.context import ReconcileContext
from metadata.model.replica_records import DamagedBlob, DamagedPage, ShortBlob
from metadata.protocol.queries import ListDamagedBlobs

PAGE_ROWS = 100


async def damaged_blobs(context: ReconcileContext) -> AsyncIterator[ShortBlob]:
    """Yield all of them, by sha256, as repair plans for them: no node holds them."""
    query = ListDamagedBlobs(gone=False, limit=PAGE_ROWS)
    while True:
        page = await context.ask(query, DamagedPage)
        for blob in page.blobs:
            yield to_short_blob(blob, wanted=context.facts().replicas)
        if not page.more:
            return
        query = ListDamagedBlobs(gone=False, after=page.blobs[-1].sha256, limit=PAGE_ROWS)


def is_any_damaged(context: ReconcileContext) -> bool:
    """Return whether there is one."""
    return bool(context.ask_applied(ListDamagedBlobs(gone=False, limit=1), DamagedPage).blobs)


def to_short_blob(blob: DamagedBlob, *, wanted: int) -> ShortBlob:
    """Convert to a blob that lacks all its replicas."""
    return ShortBlob(
        sha256=blob.sha256,
        size_bytes=blob.size_bytes,
        missing=wanted + 1,
        holders=[],
        doomed=blob.doomed,
        damaged=blob.copies,
    )
