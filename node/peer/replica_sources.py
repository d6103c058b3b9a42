"""Parties: nodes that tell the same checksums of a blob's segments, of a replica or of a damaged copy.

What the largest party says is tried first; the sha256 of the whole proves it in the end.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from node.peer.client import PeerClient, PeerFailed, pieces
from node.storage.segments import FinishedBlob, SegmentSums, SidecarInvalid, decode_sidecar, sidecar_bytes

SUMS_TIMEOUT_S: Final = 5.0  # for a source to open two files, and without progress after that
SUMS_S_MAX: Final = 30.0  # for all of its checksums: 2 MiB for a blob of 1 TiB

Party = tuple[SegmentSums, list[str]]

_log = logging.getLogger(__name__)


def parties_of(answers: Iterable[tuple[str, SegmentSums | None]]) -> list[Party]:
    """The largest party first; in each, the nodes in the order given. None is no answer."""
    parties: dict[SegmentSums, list[str]] = {}
    for source, sums in answers:
        if sums is not None:
            parties.setdefault(sums, []).append(source)
    return sorted(parties.items(), key=lambda party: -len(party[1]))


async def ask_sums(
    peers: PeerClient, source: str, path: str, blob: FinishedBlob, *, log_level: int
) -> SegmentSums | None:
    """What a node says of the segments of a blob at this path.

    It is None when the node has none, or cannot say, which is logged.
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
