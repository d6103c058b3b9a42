"""Fetch damaged chunks from other nodes, as bytes of a blob that has them, and store them again.

A reader, the scrub or a collection has left a note about each (`ColdBlobs.note_damaged`). A chunk that no
other node can send costs the replicas that need it: they go out of service, as a damaged file does.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from typing import Final

from metadata.model.records import BlobRecord
from metadata.protocol.queries import FindBlob
from node.cold.chunks import ChunkMissing
from node.cold.manifest import ContentChunk
from node.custody.context import CustodyContext
from node.diskio.fs import storage_errors
from node.peer.client import PeerClient, PeerFailed, pieces
from node.storage.damage import remove_from_service
from node.storage.segments import BlobDamaged

CHUNKS_AT_ONCE: Final = 100
ANSWER_TIMEOUT_S: Final = 10.0
CHUNK_S_MAX: Final = 30.0
TRIES: Final = 3  # before the replicas with the chunk go out of service
RETRY_S: Final = 20.0
TRIED_MAX: Final = 10_000
RECORDED_MAX: Final = 1_000  # lines of housekeeping.log for one chunk: the replicas that needed it

_MAYBE_BLOB: type[BlobRecord | None] = BlobRecord | None  # type: ignore[assignment]  # msgspec takes unions
_log = logging.getLogger(__name__)


class ChunkRepair:
    """Repairs the chunks of one node. For one event loop."""

    def __init__(self, context: CustodyContext, peers: PeerClient) -> None:
        self._context, self._peers = context, peers
        self._tries = Counter[bytes]()
        self._rests_until_s = float("-inf")

    async def repair_noted(self) -> int:
        """Repair chunks with a note, or take replicas out of service; return how many notes were settled.

        Raises FilestoreError, OSError.
        """
        context, cold = self._context, self._context.blobs.cold
        now_s = asyncio.get_running_loop().time()
        noted = await context.disk.run(cold.damaged_chunks, CHUNKS_AT_ONCE)
        if not noted or (now_s < self._rests_until_s and all(each in self._tries for each in noted)):
            return 0
        left = set(noted)
        for chunk_id in noted:
            if await context.disk.run(self._is_sound, chunk_id):
                left.discard(chunk_id)
        places = await context.disk.run(lambda: list(cold.users_of(left))) if left else []
        settled = 0
        for chunk_id in noted:
            users = [(name, place) for name, found in places for place in found if place.id == chunk_id]
            if chunk_id not in left or not users or await self._fetch(users):
                await self._settle(chunk_id)
            elif not await self._give_up(chunk_id, users):
                continue
            settled += 1
        self._rests_until_s = now_s + RETRY_S
        return settled

    async def _fetch(self, users: list[tuple[str, ContentChunk]]) -> bool:
        """Store a chunk again with the bytes of another node; return whether one has sent them."""
        context, chunk = self._context, users[0][1]
        for sha256, place in users:
            record = await context.metadata.read(FindBlob(sha256=sha256), _MAYBE_BLOB)
            for source in record.replicas if record is not None else ():
                if source == context.node_id:
                    continue
                content = await self._ask(source, sha256, place)
                if content is None or hashlib.sha256(content).digest() != chunk.id:
                    continue
                with storage_errors():
                    await context.disk.run(context.blobs.cold.chunks.put, [(chunk.id, content)])
                context.metrics.chunks_repaired.inc()
                facts = {"chunk": chunk.id.hex(), "peer": source, "blobs": len(users)}
                _log.warning("a damaged chunk was fetched from another node", extra=facts)
                for name, _ in users[:RECORDED_MAX]:
                    context.record("chunk.repair", name, source)
                return True
        return False

    async def _ask(self, source: str, sha256: str, chunk: ContentChunk) -> bytes | None:
        headers = {"Range": f"bytes={chunk.start}-{chunk.stop - 1}"}
        await self._context.budget.take(chunk.size_bytes)
        try:
            async with asyncio.timeout(CHUNK_S_MAX):
                asked = self._peers.request(
                    source, "GET", f"/blobs/{sha256}", headers=headers, answer_timeout_s=ANSWER_TIMEOUT_S
                )
                async with asked as answer:
                    if answer.status != 206 or answer.content_length != chunk.size_bytes:
                        return None
                    return b"".join([piece async for piece in pieces(source, answer)])
        except (PeerFailed, TimeoutError) as failure:
            facts = {"peer": source, "chunk": chunk.id.hex(), "reason": str(failure)}
            _log.warning("a node does not send a chunk", extra=facts)
            return None

    async def _give_up(self, chunk_id: bytes, users: list[tuple[str, ContentChunk]]) -> bool:
        """Count a failed try; after the last one, take the replicas with the chunk out of service.

        Return whether that was the last one.
        """
        context = self._context
        if len(self._tries) > TRIED_MAX:
            self._tries.clear()
        self._tries[chunk_id] += 1
        if self._tries[chunk_id] < TRIES:
            return False
        for sha256, _ in users:
            with context.blobs.poison.skipping("chunks", sha256):
                file, _ = await context.disk.run(context.blobs.cold.identity, sha256)
                why = f"its chunk {chunk_id.hex()} is damaged, and no node has sent it"
                damage = BlobDamaged(sha256, why, file=file)
                await remove_from_service(context.disk, context.blobs, context.metrics, damage)
        await self._settle(chunk_id)
        return True

    async def _settle(self, chunk_id: bytes) -> None:
        del self._tries[chunk_id]
        await self._context.disk.run(self._context.blobs.cold.forget_damaged, chunk_id)

    def _is_sound(self, chunk_id: bytes) -> bool:
        """Return whether a chunk can be read from the medium now. Raises FilestoreError."""
        try:
            with storage_errors():
                self._context.blobs.cold.chunks.get(chunk_id, is_afresh=True, trusts=False)
        except ChunkMissing:
            return False
        return True
