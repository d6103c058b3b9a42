"""Read intact segments of a blob from all copies, if no node may have a complete one.

A damaged replica has single damaged segments, and the rest of it is intact. So every copy is a source here,
including those in quarantine. Copies with equal checksums form a party, and the checksums of the largest
party are used: a segment is returned only if it matches them, wherever it came from. The sha256 of the whole
proves the checksums before a blob is put into place; a client that reads content that cannot be completed any
more learns which bytes are missing, and gets no wrong ones.

Tested by tests/unit/node/content/test_misnamed_files.py.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ca.errors import Internal
from node.base.metrics import NodeMetrics
from node.base.spans import Coverage
from node.diskio.executor import DiskWorkers
from node.peer.client import PeerClient, PeerFailed, pieces
from node.peer.range_fetch import Pace, split
from node.storage.blobs import BlobStore
from node.storage.partial_blob import Partial
from node.storage.quarantine import Quarantine
from node.storage.segments import (
    SEGMENT_BYTES,
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
    SegmentSums,
    SidecarInvalid,
    decode_sidecar,
    read_segment,
    segment_digest,
    sidecar_bytes,
)

ANSWER_TIMEOUT_S: Final = 5.0  # for a peer to read one segment, and without progress after that
SEGMENT_S_MAX: Final = 20.0  # for all of it: 210 kB/s
STRIKES_MAX: Final = 2  # in a row, before a source is asked no more
PATH: Final = "/copies"  # at the peer port, see node/peerapi/blobs.py
SUMS_TIMEOUT_S: Final = 5.0  # for a source to open two files, and without progress after that
SUMS_S_MAX: Final = 30.0  # for all of its checksums: 2 MiB for a blob of 1 TiB

Party = tuple[SegmentSums, list[str]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Salvager:
    """The services that salvaging needs on one node."""

    node_id: str
    blobs: BlobStore
    peers: PeerClient
    disk: DiskWorkers
    metrics: NodeMetrics

    async def group_sources(self, blob: FinishedBlob, sources: Sequence[str]) -> list[Party]:
        """Copies that tell the same checksums, the largest party first.

        Raises FilestoreError for this disk.
        """
        answers = await asyncio.gather(*(self._sums(blob, source) for source in sources))
        return group_answers(zip(sources, answers, strict=True))

    def copies(self, blob: FinishedBlob, sums: SegmentSums, sources: Sequence[str]) -> "Copies":
        """The copies of these nodes, to read segments from that match `sums`."""
        return Copies(self, blob, sums, sources)

    async def _sums(self, blob: FinishedBlob, source: str) -> SegmentSums | None:
        """Return the checksums in a copy's sidecar; None if there are none, or they are unavailable."""
        if source == self.node_id:
            sums = await self.disk.run(local_sums, self.blobs, blob.sha256)
            return sums if sums is not None and sums.size_bytes == blob.size_bytes else None
        path = f"{PATH}/{blob.sha256}/sums"
        return await ask_sums(self.peers, source, path, blob, log_level=logging.INFO)

    async def segment(self, blob: FinishedBlob, source: str, index: int, digest: bytes) -> bytes | None:
        """A segment that a node says to match this checksum; None when its copies do not have it.

        Raises PeerFailed, FilestoreError for this disk.
        """
        if source == self.node_id:
            return await self.disk.run(local_segment, self.blobs, blob.sha256, index, digest)
        size_bytes = min(SEGMENT_BYTES, blob.size_bytes - index * SEGMENT_BYTES)
        path = f"{PATH}/{blob.sha256}/segments/{index}?xxh3={digest.hex()}"
        try:
            async with asyncio.timeout(SEGMENT_S_MAX):
                found = await self._ask(source, path, size_bytes)
        except TimeoutError as error:
            raise PeerFailed(source, "sends too slowly") from error
        self.metrics.replica_bytes.labels("received").inc(len(found))
        return found

    async def _ask(self, source: str, path: str, size_bytes: int) -> bytes:
        """An answer of that size. Raises PeerFailed."""
        asked = self.peers.request(source, "GET", path, answer_timeout_s=ANSWER_TIMEOUT_S)
        async with asked as answer:
            if answer.status != 200 or answer.content_length != size_bytes:
                raise PeerFailed(source, f"answered {answer.status}", is_absent=answer.status == 404)
            return b"".join([piece async for piece in pieces(source, answer)])


class Copies:
    """Copies of one blob that are read segment by segment. Not for two callers at once."""

    def __init__(
        self, salvager: Salvager, blob: FinishedBlob, sums: SegmentSums, sources: Sequence[str]
    ) -> None:
        self._salvager = salvager
        self._blob = blob
        self._sums = sums
        # This disk first: what lies here costs the others nothing.
        self._sources = sorted(dict.fromkeys(sources), key=lambda source: source != salvager.node_id)
        self._strikes: dict[str, int] = {}

    async def segment(self, index: int) -> bytes | None:
        """A segment that matches its checksum; None when no copy that answers has it."""
        for source in list(self._sources):
            found = await self._from(source, index, self._sums.digest(index))
            if found is not None:
                self._prefer(source)
                return found
        return None

    async def _from(self, source: str, index: int, digest: bytes) -> bytes | None:
        try:
            found = await self._salvager.segment(self._blob, source, index, digest)
        except PeerFailed as failure:
            if not failure.is_absent:
                self._strike(source, failure)
            return None
        except Internal as failure:  # this disk: others may have it
            _log.warning("a copy cannot be read", extra={"reason": failure.details})
            return None
        self._strikes.pop(source, None)
        return found if found is not None and self._is_it(found, digest) else None

    def _is_it(self, found: bytes, digest: bytes) -> bool:
        """Content of one segment has its name, too: checksums may be those of another blob."""
        if self._blob.size_bytes <= SEGMENT_BYTES:
            return hashlib.sha256(found).hexdigest() == self._blob.sha256
        return segment_digest(found) == digest

    def _strike(self, source: str, failure: PeerFailed) -> None:
        self._strikes[source] = self._strikes.get(source, 0) + 1
        if self._strikes[source] >= STRIKES_MAX:
            self._sources.remove(source)
        facts = {"sha256": self._blob.sha256, "peer": source, "reason": failure.reason}
        _log.warning("a copy could not be read", extra=facts)

    def _prefer(self, source: str) -> None:
        """Ask this source first for the next segment, as it probably has it too."""
        self._sources.remove(source)
        self._sources.insert(0, source)


def local_sums(blobs: BlobStore, sha256: str) -> SegmentSums | None:
    """Return the checksums of this node's copy, in service or not.

    None if they are unusable. Blocks. Raises FilestoreError.
    """
    try:
        with blobs.open(sha256) as blob:
            return blob.sums
    except (BlobMissing, BlobDamaged):
        copy = Quarantine(blobs).open(sha256)
    if copy is None:
        return None
    with copy:
        return copy.sums


def local_segment(blobs: BlobStore, sha256: str, index: int, digest: bytes) -> bytes | None:
    """A segment from this node's copies that matches this checksum (8 bytes, XXH3).

    The copies are in service or in quarantine.

    None when there is none. Blocks. Raises FilestoreError.
    """
    try:
        with blobs.open(sha256) as blob:
            found = read_segment(blob.fd, index, blob.size_bytes)
    except (BlobMissing, BlobDamaged):
        found = None
    if found is not None and segment_digest(found) == digest:
        return found
    copy = Quarantine(blobs).open(sha256)
    if copy is None:
        return None
    with copy:
        found = copy.read_segment(index)
    return found if found is not None and segment_digest(found) == digest else None


async def fill(disk: DiskWorkers, partial: Partial, copies: Copies, pace: Pace) -> None:
    """Bring the segments that a partial replica lacks and a copy has, one by one.

    The copies are this node's own damaged one, before anything is asked of others, and damaged ones of others
    when no node holds the blob whole. `partial.missing_segments()` returns the missing ones afterwards.

    Raises InsufficientStorage, Internal.
    """
    for first, stop in split(partial.missing_segments()):
        written = Coverage()  # of segments
        for index in range(first, stop):
            content = await copies.segment(index)
            if content is not None:
                await pace(len(content))
                writer = await disk.run(partial.writer, index, index + 1)
                await disk.run(writer.write, content)
                written.add(index, index + 1)
        for span in written.spans:
            await disk.run(partial.keep, *span)


def group_answers(answers: Iterable[tuple[str, SegmentSums | None]]) -> list[Party]:
    """Group nodes that tell the same checksums of a blob's segments, of a replica or of a damaged copy.

    The largest party is first, and is tried first; the sha256 of the whole proves it in the end. In each, the
    nodes are in the order given. None is no answer.
    """
    parties: dict[SegmentSums, list[str]] = {}
    for source, sums in answers:
        if sums is not None:
            parties.setdefault(sums, []).append(source)
    return sorted(parties.items(), key=lambda party: -len(party[1]))


async def ask_sums(
    peers: PeerClient, source: str, path: str, blob: FinishedBlob, *, log_level: int
) -> SegmentSums | None:
    """Return a node's checksums for the segments of a blob at this path.

    None if the node has none, or cannot answer, which is logged.
    """
    try:
        async with asyncio.timeout(SUMS_S_MAX):
            return await _ask(peers, source, path, blob.size_bytes)
    except (PeerFailed, SidecarInvalid, TimeoutError) as failure:
        facts = {"sha256": blob.sha256, "peer": source, "path": path, "reason": str(failure)}
        _log.log(log_level, "a node does not send the checksums of a blob", extra=facts)
        return None


async def _ask(peers: PeerClient, source: str, path: str, size_bytes: int) -> SegmentSums:
    async with peers.request(source, "GET", path, answer_timeout_s=SUMS_TIMEOUT_S) as answer:
        if answer.status != 200 or answer.content_length != sidecar_bytes(size_bytes):
            raise PeerFailed(source, f"answered {answer.status}")
        raw = b"".join([piece async for piece in pieces(source, answer)])
    return decode_sidecar(raw, size_bytes)
