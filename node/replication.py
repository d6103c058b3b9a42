"""How copies of a blob are made: the one place that knows.

Today the finished blob goes to all peers at once.

A copy counts when the peer has answered that it is whole, verified by sha256 and durable. Copying while the
upload still runs (a chain, see the byte-path notes in the design) is not built yet: an upload that has not
ended lives on one node only.
"""

import asyncio
import logging
from collections.abc import Sequence

from ca.errors import Unavailable
from coordinator.client import MetadataClient
from coordinator.queries import FindBlob
from coordinator.records import BlobRecord
from coordinator.view import View
from node.blobs import BlobStore, FinishedBlob
from node.disk import DiskWorkers
from node.peers import STALL_TIMEOUT_S, PeerClient, PeerFailed
from node.reading import read_blob

ASK_TIMEOUT_S = 5.0  # for a peer to say whether it holds a blob: it opens two files
SYNC_BYTES_PER_S = 20_000_000  # a slow disk; a peer syncs the whole copy between its last byte and its answer
SUBSTITUTES_MAX = 4  # nodes outside the placement that are tried when too few of the placement take a copy

_MAYBE_BLOB: type[BlobRecord | None] = BlobRecord | None  # type: ignore[assignment]  # msgspec takes unions
_log = logging.getLogger(__name__)


class Replication:
    """Copies of this node's blobs on other nodes."""

    def __init__(
        self,
        *,
        node_id: str,
        metadata: MetadataClient,
        view: View,
        blobs: BlobStore,
        peers: PeerClient,
        disk: DiskWorkers,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._view = view
        self._blobs = blobs
        self._peers = peers
        self._disk = disk

    async def spread(self, blob: FinishedBlob, placement: Sequence[str]) -> list[str]:
        """The nodes that hold this blob durably now, this one first; at least the write quorum.

        Content that enough nodes hold already is not copied again. Raises Unavailable when too few can be
        had; copies that were made stay, and the next attempt finds them.
        """
        write_quorum = self._view.current.write_quorum
        holders = [self._node_id, *await self._known_holders(blob)]
        if len(holders) >= max(write_quorum, min(self._view.current.replicas, len(placement))):
            return holders
        wanted = [node_id for node_id in placement if node_id not in holders]
        holders += await self._copy_to(wanted, blob)
        for substitute in self._substitutes(holders, placement):
            if len(holders) >= write_quorum:
                break
            holders += await self._copy_to([substitute], blob)
        if len(holders) < write_quorum:
            raise Unavailable(
                f"{len(holders)} of the {write_quorum} copies that must be durable could be made. "
                "The bytes are kept: send an empty piece at the end of the content to try again.",
                retry_after_s=2,
            )
        return holders

    def _substitutes(self, holders: Sequence[str], placement: Sequence[str]) -> list[str]:
        known = sorted(node.node_id for node in self._view.current.nodes if node.peer_port)
        return [name for name in known if name not in holders and name not in placement][:SUBSTITUTES_MAX]

    async def _known_holders(self, blob: FinishedBlob) -> list[str]:
        """Other nodes that the log names as holders of this content and that say so themselves."""
        query = FindBlob(sha256=blob.sha256)
        record = await self._metadata.read(query, _MAYBE_BLOB)
        if record is None or record.size_bytes != blob.size_bytes:
            return []
        others = [node_id for node_id in record.replicas if node_id != self._node_id]
        answers = await asyncio.gather(*(self._holds(node_id, blob) for node_id in others))
        return [node_id for node_id, holds in zip(others, answers, strict=True) if holds]

    async def _copy_to(self, node_ids: Sequence[str], blob: FinishedBlob) -> list[str]:
        """Which of these nodes took a copy."""
        answers = await asyncio.gather(*(self._copy(node_id, blob) for node_id in node_ids))
        return [node_id for node_id, took in zip(node_ids, answers, strict=True) if took]

    async def _holds(self, node_id: str, blob: FinishedBlob) -> bool:
        path = f"/blobs/{blob.sha256}"
        try:
            async with self._peers.request(node_id, "HEAD", path, answer_timeout_s=ASK_TIMEOUT_S) as answer:
                return answer.status == 200 and answer.headers.get("Content-Length") == str(blob.size_bytes)
        except PeerFailed as failure:
            _log.warning("peer does not answer", extra={"peer": node_id, "reason": failure.reason})
            return False

    async def _copy(self, node_id: str, blob: FinishedBlob) -> bool:
        if await self._holds(node_id, blob):
            return True
        try:
            return await self._send(node_id, blob)
        except PeerFailed as failure:
            _log.warning(
                "copy failed", extra={"peer": node_id, "sha256": blob.sha256, "reason": str(failure)}
            )
            return False

    async def _send(self, node_id: str, blob: FinishedBlob) -> bool:
        async with self._peers.request(
            node_id,
            "PUT",
            f"/blobs/{blob.sha256}",
            headers={"Content-Length": str(blob.size_bytes)},
            body=read_blob(self._disk, self._blobs, blob.sha256, 0, blob.size_bytes),
            answer_timeout_s=STALL_TIMEOUT_S + blob.size_bytes / SYNC_BYTES_PER_S,
        ) as answer:
            if answer.status != 200:
                raise PeerFailed(node_id, f"answered {answer.status} to a copy")
        return True
