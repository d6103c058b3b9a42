"""Bytes of content that no node holds whole, segment by segment.

They come from damaged copies (`node/peer/salvage.py`).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from ca.errors import FilestoreError, Unavailable
from metadata.model.records import BlobRecord
from metadata.protocol.queries import FindBlob
from node.peer.salvage import Copies, Salvager
from node.storage.blob_reader import PIECE_BYTES
from node.storage.segments import SEGMENT_BYTES, FinishedBlob
from node.uploads.services import NodeServices
from runtime.bounds import Span

SPANS_SHOWN_MAX: Final = 5
START_S_MAX: Final = 5.0  # to learn who has copies and what is in them
_MAYBE_BLOB: type[BlobRecord | None] = BlobRecord | None  # type: ignore[assignment]  # msgspec takes unions

_log = logging.getLogger(__name__)


class BytesGone(Unavailable):
    """Some of the requested bytes are in no copy; others of this content can be read."""


async def read_damaged(
    services: NodeServices, sha256: str, start: int, stop: int, *, is_first: bool
) -> AsyncGenerator[bytes, None]:
    """Yield bytes from `start` on, as far as they can be read now, at most to `stop` (excluded).

    `is_first`: nothing was sent yet, so an error can still be reported. In that case, raises BytesGone if
    some of these bytes are in no copy.
    """
    copies, gone = await _copies(services, sha256)
    lost = [(max(start, first), min(stop, after)) for first, after in gone if first < stop and after > start]
    if is_first and lost:
        raise BytesGone(describe(lost))
    if copies is None:
        return
    sent_bytes = services.metrics.download_bytes.labels("peer")
    while start < stop:
        index = start // SEGMENT_BYTES
        content = await copies.segment(index)
        if content is None:
            _log.error("bytes are in no copy that answers", extra={"sha256": sha256, "offset": start})
            return
        offset = index * SEGMENT_BYTES
        until = min(stop, offset + len(content))
        while start < until:
            piece = content[start - offset : min(start + PIECE_BYTES, until) - offset]
            yield piece
            sent_bytes.inc(len(piece))
            start += len(piece)


def describe(gone: Sequence[Span]) -> str:
    """Describe bytes that are in no copy, for a client."""
    shown = ", ".join(f"{start}-{stop - 1}" for start, stop in gone[:SPANS_SHOWN_MAX])
    more = " and more" if len(gone) > SPANS_SHOWN_MAX else ""
    what = f"Bytes {shown}{more} of this content"
    return f"{what} are damaged on every node that had them. Other ranges of the content can be read."


async def _copies(services: NodeServices, sha256: str) -> tuple[Copies | None, Sequence[Span]]:
    """Return the copies of a blob to read from, and the spans that none of them has."""
    try:
        async with asyncio.timeout(START_S_MAX):
            record = await services.api.metadata.read(FindBlob(sha256=sha256), _MAYBE_BLOB)
            if record is None:
                return None, []
            # The log may not know of a replica that was found damaged a moment ago.
            sources = list(dict.fromkeys([*record.replicas, *record.damaged]))
            salvager = Salvager(
                services.node_id, services.blobs, services.peers, services.disk, services.metrics
            )
            blob = FinishedBlob(sha256, record.size_bytes)
            parties = await salvager.group_sources(blob, sources)
    except (FilestoreError, TimeoutError) as failure:
        _log.warning(
            "cannot find out which copies are damaged", extra={"sha256": sha256, "reason": str(failure)}
        )
        return None, []
    if not parties:
        return None, record.gone
    return salvager.copies(blob, parties[0][0], sources), record.gone
