"""Read the bytes of a download, from any source.

The sources are this node's disk, and its peers. The client notices no change between them.

If one fails in the middle, the next one continues at the byte where it stopped, so nothing is sent twice, and
nothing unverified at all. Before the first byte each source is asked once, as the client can repeat the
request. After that, the only alternative is to break the download off, so all are asked again, up to
ROUNDS_MAX times.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from ca.errors import FilestoreError, Unavailable
from node.content.damaged import read_damaged
from node.peer.client import PeerFailed
from node.peer.request_body import Piece
from node.sending.splice import Flow, bulk_pieces
from node.storage.blob_reader import read_blob
from node.storage.damage import miss, remove_from_service
from node.storage.segments import BlobDamaged, BlobMissing
from node.uploads.services import NodeServices

# Without a byte for this long, another replica is tried. A peer reads one segment before it answers: a slow
# disk takes a tenth of this.
ANSWER_TIMEOUT_S = 10.0
ROUNDS_MAX = 6  # through all sources; each may have been started a moment ago, or be busy
PAUSE_S = 1.0

_log = logging.getLogger(__name__)


class NoReplica(Unavailable):
    """None of the replicas that a record names can be read now."""


async def read_anywhere(
    services: NodeServices,
    sha256: str,
    replicas: Sequence[str],
    start: int,
    stop: int,
    *,
    size_bytes: int | None = None,
    pours: bool = True,
) -> AsyncGenerator[Piece | Flow, None]:
    """Yield bytes `start` to `stop` (excluded) of a blob that `replicas` hold. Close it when leaving early.

    `size_bytes`: its size in the log; a replica of another size is damaged.

    The bytes of a peer may come as a flow, which has to be poured before the next item is requested, unless
    the caller passes `pours` as False. Raises NoReplica if no source is left, possibly after some bytes.
    """
    first = start
    for source in _rounds(services, replicas):
        if source is None:
            salvaged = read_damaged(services, sha256, start, stop, is_first=start == first)
            async with aclosing(salvaged) as reading:
                async for content in reading:
                    start += len(content)
                    yield content
            if start == stop:
                return
            if start == first:
                break
            await asyncio.sleep(PAUSE_S)
            continue
        sent_bytes = services.metrics.download_bytes.labels("local" if source == services.node_id else "peer")
        try:
            span = start, stop, size_bytes
            async with aclosing(_read_from(services, source, sha256, span, pours=pours)) as reading:
                async for piece in reading:
                    if isinstance(piece, Flow):
                        piece.counters.append(sent_bytes)
                        yield piece
                        start += piece.poured_bytes
                    else:
                        start += len(piece)
                        yield piece
                        sent_bytes.inc(len(piece))
        except (BlobMissing, BlobDamaged, PeerFailed, FilestoreError) as failure:
            await note_failure(services, sha256, source, failure)
            continue
        if start == stop:
            return
        _log.warning("a replica ended early", extra={"sha256": sha256, "replica": source, "offset": start})
    raise NoReplica("No replica of this content can be read now.", retry_after_s=2)


async def read_pieces(
    services: NodeServices,
    sha256: str,
    replicas: Sequence[str],
    start: int,
    stop: int,
    *,
    size_bytes: int | None = None,
) -> AsyncGenerator[Piece, None]:
    """Yield the same bytes as pieces only, for callers that process them."""
    anywhere = read_anywhere(services, sha256, replicas, start, stop, size_bytes=size_bytes, pours=False)
    async with aclosing(anywhere) as reading:
        async for piece in reading:
            assert not isinstance(piece, Flow)
            yield piece


async def note_failure(services: NodeServices, sha256: str, source: str, failure: Exception) -> None:
    """Log that a replica could not serve; damage on this disk goes out of service."""
    _log.warning("replica failed", extra={"sha256": sha256, "replica": source, "reason": str(failure)})
    if isinstance(failure, PeerFailed) and failure.is_silent:
        services.peers.silent.note(source)
    if isinstance(failure, BlobDamaged):
        await remove_from_service(services.disk, services.blobs, services.metrics, failure)
    elif isinstance(failure, BlobMissing) and source == services.node_id:
        await miss(services.disk, services.blobs, sha256)


def _rounds(services: NodeServices, replicas: Sequence[str]) -> Iterator[str | None]:
    """Yield the sources in the order to ask them, None between two rounds."""
    for number in range(ROUNDS_MAX):
        if number:
            yield None
        yield from source_order(services, replicas)


def source_order(services: NodeServices, replicas: Sequence[str]) -> list[str]:
    """Return the replicas in the order to ask them.

    This node comes first, unless its disk hangs. The others come at random, so that no one of them carries
    all, and those that did not answer lately come last.
    """
    node_id = services.node_id
    others = [replica for replica in replicas if replica != node_id]
    random.shuffle(others)
    others.sort(key=services.peers.silent.__contains__)
    return [node_id, *others] if node_id in replicas and not services.disk.hangs() else others


async def _read_from(
    services: NodeServices, source: str, sha256: str, span: tuple[int, int, int | None], *, pours: bool
) -> AsyncGenerator[Piece | Flow, None]:
    """Yield bytes of one source. `span`: start, stop, and the size of the blob if known."""
    start, stop, size_bytes = span
    if source == services.node_id:
        async with aclosing(
            read_blob(services.disk, services.blobs, sha256, start, stop, size_bytes=size_bytes)
        ) as local:
            async for piece in local:
                yield piece
        return
    received = services.metrics.replica_bytes.labels("received")
    async with services.peers.request(
        source,
        "GET",
        f"/blobs/{sha256}",
        headers={"Range": f"bytes={start}-{stop - 1}"},
        answer_timeout_s=ANSWER_TIMEOUT_S,
    ) as answer:
        if answer.status != 206 or answer.content_length != stop - start:
            raise PeerFailed(source, f"answered {answer.status}")
        of = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if size_bytes is not None and of != str(size_bytes):
            raise PeerFailed(source, f"has {of} bytes instead of the recorded {size_bytes}")
        bulk_bytes = stop - start if pours else 0
        body = bulk_pieces(source, answer, bulk_bytes, received, stall_timeout_s=ANSWER_TIMEOUT_S)
        async with aclosing(body):
            async for taken in body:
                yield taken
