"""Create the copies of a blob on other nodes; the only place that does.

The members of an upload's chain (`node/uploads/chain.py`) have all bytes when it ends: they put them into
place. If that is not enough, and for small content, the finished blob is sent to all peers at once. Small
content in memory is sent together with others (`node/uploads/small_copies.py`), by the same rules.

A copy counts when the peer has answered that it is whole, verified by sha256 and durable; an older copy
counts when the peer has read it and found it sound. Once enough copies count, those without progress are
abandoned: a peer that hangs does not delay the client.

Tested by tests/cluster/test_chain.py.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ca.errors import Unavailable
from metadata.model.records import HEALTHY, BlobRecord
from metadata.protocol.queries import FindBlob
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from node.base.metrics import NodeMetrics
from node.diskio.executor import DiskWorkers
from node.peer.client import STALL_TIMEOUT_S, PeerClient, PeerFailed
from node.peer.request_body import Piece
from node.storage.blob_reader import read_blob
from node.storage.blobs import BlobStore
from node.storage.damage import remove_from_service
from node.storage.segments import BlobDamaged, FinishedBlob
from node.uploads.chain_link import LinkTerms
from node.uploads.small_copies import SmallCopies
from runtime.lifetime import end_tasks
from runtime.time_limits import PATIENCE_S, SPARE_S, bounded_s, is_client_waiting, note_progress

ASK_TIMEOUT_S = 5.0  # for a peer to report whether it has a blob: it opens two files
SYNC_S = 10.0  # after its last byte: a peer has at most 64 MiB left to sync, on a slow disk
FINISH_S = 30.0  # for a member to put its bytes into place; one that hashes them first continues
VERIFY_S = 20.0  # for a peer to read an older copy; what it has read is trusted for an hour
VERIFY_BYTES_PER_S = 50_000_000  # of a disk with other readers: less content gets less of that time
ASKED_BYTES_MIN = 64 << 10  # below this, sending the copy costs less than asking for one
GRACE_S = 5.0  # without progress, for a copy that the write quorum no longer needs
KNOWN_ASKED_MAX = 8  # nodes that are asked whether they have it already: more than replicas are wanted
SUBSTITUTES_MAX = 4  # nodes outside the placement that are tried if too few of the placement accept a copy

_MAYBE_BLOB: type[BlobRecord | None] = BlobRecord | None  # type: ignore[assignment]  # msgspec takes unions
_log = logging.getLogger(__name__)


class _Attempt:
    """One copy in transfer to one node.

    `quiet_until_s`: until then silence is no reason to abandon it; `works_until_s`: the same while a client
    waits.
    """

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.quiet_until_s = self.works_until_s = 0.0
        self.moved_at_s = asyncio.get_running_loop().time()

    def allow(self, timeout_s: float) -> None:
        """Allow its next step this much time."""
        self.quiet_until_s = asyncio.get_running_loop().time() + timeout_s

    def note_progress(self, *, works_s: float = 0.0) -> None:
        """Record progress, also of the request; `works_s`: the usual duration of its next step."""
        self.moved_at_s = asyncio.get_running_loop().time()
        self.works_until_s = self.moved_at_s + works_s
        note_progress(allow_s=works_s)


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
        metrics: NodeMetrics,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._view = view
        self._blobs = blobs
        self._peers = peers
        self._disk = disk
        self._metrics = metrics
        self.small_copies = SmallCopies(peers, metrics.replica_bytes.labels("sent"))

    async def finish(self, terms: LinkTerms, blob: FinishedBlob, members: Sequence[str]) -> list[str]:
        """Return those of these members with all bytes of the upload that have put them into place.

        Once enough have, those that hang are abandoned.
        """
        needed = self._view.current.write_quorum - 1
        return await self._try_all(members, needed, lambda attempt: self._finish_member(attempt, terms, blob))

    async def _finish_member(self, attempt: _Attempt, terms: LinkTerms, blob: FinishedBlob) -> bool:
        path = terms.path("finish", sha256=blob.sha256, size=str(blob.size_bytes))
        attempt.allow(ASK_TIMEOUT_S)
        try:
            async with self._peers.ask(attempt.node_id, "POST", path, within_s=FINISH_S) as answer:
                if answer.status != 200:
                    raise PeerFailed(attempt.node_id, f"answered {answer.status} to the end of an upload")
        except PeerFailed as failure:
            facts = {"peer": attempt.node_id, "sha256": blob.sha256, "reason": failure.reason}
            _log.warning("a member did not finish an upload", extra=facts)
            return False
        return True

    async def spread_small(
        self, blob: FinishedBlob, content: bytes, placement: Sequence[str], here: Awaitable[None]
    ) -> list[str]:
        """Spread small content like `spread`, while this disk stores it: done when `here` is done.

        The nodes of the placement receive it with other small content, without being asked first. If one of
        them fails or is slow, others are asked as for any content.
        """
        awake = [name for name in placement if name != self._node_id and name not in self._peers.silent]
        needed = self._view.current.write_quorum - 1
        copying = asyncio.create_task(self._copy_to(awake, blob, needed=needed, content=content))
        try:
            await here  # an error of this disk is reported at once, even if other nodes hang
            made = await copying
        finally:
            await end_tasks([copying])
        return await self.spread(blob, placement, made=made)

    async def spread(
        self, blob: FinishedBlob, placement: Sequence[str], *, made: Sequence[str] = ()
    ) -> list[str]:
        """Return the nodes that hold this blob durably now, this one first; at least the write quorum.

        `made`: other nodes known to have it. Content that enough nodes have already is not copied. The nodes
        of the placement are tried first, then others one by one, then those of the placement that were silent
        lately. Raises Unavailable if too few copies can be made; finished copies stay, and the next attempt
        finds them.
        """
        write_quorum = self._view.current.write_quorum
        enough = max(write_quorum, min(self._view.current.replicas, len(placement)))
        holders = [self._node_id, *made]
        if len(holders) < enough:
            holders += await self._known_holders(blob, without=holders, needed=enough - len(holders))
        if len(holders) >= enough:
            return holders
        silent = self._peers.silent
        wanted = [node_id for node_id in placement if node_id not in holders]
        awake = [node_id for node_id in wanted if node_id not in silent]
        rounds = [awake, *([substitute] for substitute in self._substitutes(holders, placement))]
        rounds.append([node_id for node_id in wanted if node_id in silent])
        last = next((tried for tried in reversed(rounds) if tried), awake)
        for tried in rounds:
            needed = write_quorum - len(holders)
            if needed > 0 or tried is awake:
                holders += await self._copy_to(tried, blob, needed=needed, is_last=tried is last)
        if not await self._disk.run(self._blobs.has, blob.sha256):
            raise Unavailable("The copy on this node was found damaged. Ask for the offset and try again.")
        if len(holders) < write_quorum:
            raise Unavailable(
                f"Only {len(holders)} of the {write_quorum} required durable copies could be created. "
                "The bytes are kept. To try again, send an empty piece at the end of the content.",
                retry_after_s=2,
            )
        return holders

    def _substitutes(self, holders: Sequence[str], placement: Sequence[str]) -> list[str]:
        known = sorted(node.node_id for node in self._view.current.nodes if node.takes_replicas)
        known.sort(key=self._peers.silent.__contains__)
        return [name for name in known if name not in holders and name not in placement][:SUBSTITUTES_MAX]

    async def _known_holders(self, blob: FinishedBlob, *, without: Sequence[str], needed: int) -> list[str]:
        """Return other nodes that hold this content according to the log and confirm it.

        A few are asked: there may be as many as nodes, and each reads all of it. Once `needed` have
        confirmed, no other is awaited.
        """
        query = FindBlob(sha256=blob.sha256)
        record = await self._metadata.read(query, _MAYBE_BLOB)
        if record is None or record.size_bytes != blob.size_bytes:
            return []
        healthy = {node.node_id for node in self._view.current.nodes if node.state == HEALTHY}
        held = [node_id for node_id in record.replicas if node_id not in without]
        held = [node_id for node_id in held if node_id not in self._peers.silent]
        held.sort(key=lambda node_id: node_id not in healthy)
        return await self._try_all(held[:KNOWN_ASKED_MAX], needed, lambda attempt: self._holds(attempt, blob))

    async def _copy_to(
        self,
        node_ids: Sequence[str],
        blob: FinishedBlob,
        *,
        needed: int | None = None,
        is_last: bool = False,
        content: bytes | None = None,
    ) -> list[str]:
        """Return those of these nodes that accepted a copy.

        Once `needed` have (default: all), stalled ones are abandoned. `is_last`: no others can be tried after
        them, so a client's patience may end with them. `content`: all of it, if it is small.
        """
        enough = len(node_ids) if needed is None else needed
        patience_s = PATIENCE_S if is_last else SPARE_S
        return await self._try_all(node_ids, enough, lambda each: self._copy(each, blob, content), patience_s)

    async def _try_all(
        self,
        node_ids: Sequence[str],
        needed: int,
        work: Callable[[_Attempt], Coroutine[Any, Any, bool]],
        patience_s: float = SPARE_S,
    ) -> list[str]:
        """Return the nodes for which `work` returned True.

        Once `needed` are, those without progress are abandoned; while a client waits also before that, after
        `patience_s`.
        """
        copies = {asyncio.create_task(work(attempt)): attempt for attempt in map(_Attempt, node_ids)}
        try:
            for left in await _until_enough(copies, needed, patience_s):
                self._peers.silent.note(copies[left].node_id)
        finally:
            await end_tasks(copies)
        return [attempt.node_id for copy, attempt in copies.items() if not copy.cancelled() and copy.result()]

    async def _holds(self, attempt: _Attempt, blob: FinishedBlob) -> bool:
        """Return whether the node has a sound copy: it reports one at once, and again after reading it."""
        path = f"/blobs/{blob.sha256}"
        try:
            if not await self._affirms(attempt, blob, path, ASK_TIMEOUT_S):
                return False
            attempt.note_progress(works_s=min(blob.size_bytes / VERIFY_BYTES_PER_S, VERIFY_S))
            return await self._affirms(attempt, blob, f"{path}?verify=1", VERIFY_S)
        except PeerFailed as failure:
            facts = {"peer": attempt.node_id, "reason": failure.reason}
            _log.warning("peer does not answer", extra=facts)
            return False

    async def _affirms(self, attempt: _Attempt, blob: FinishedBlob, path: str, timeout_s: float) -> bool:
        attempt.allow(timeout_s)
        async with self._peers.ask(attempt.node_id, "HEAD", path, within_s=timeout_s) as answer:
            return answer.status == 200 and answer.headers.get("Content-Length") == str(blob.size_bytes)

    async def _copy(self, attempt: _Attempt, blob: FinishedBlob, content: bytes | None) -> bool:
        is_asked = content is None and blob.size_bytes >= ASKED_BYTES_MIN
        if is_asked and await self._holds(attempt, blob):
            return True
        facts = {"peer": attempt.node_id, "sha256": blob.sha256}
        try:
            if content is None:
                return await self._send(attempt, blob)
            await self.small_copies.put(attempt.node_id, blob.sha256, content)
            return True
        except PeerFailed as failure:
            _log.warning("copy failed", extra=facts | {"reason": str(failure)})
            return False
        except asyncio.CancelledError:
            _log.warning("copy given up", extra=facts)
            raise

    async def _send(self, attempt: _Attempt, blob: FinishedBlob) -> bool:
        async with self._peers.request(
            attempt.node_id,
            "PUT",
            f"/blobs/{blob.sha256}",
            headers={"Content-Length": str(blob.size_bytes)},
            body=self._pieces(attempt, blob),
            answer_timeout_s=STALL_TIMEOUT_S,
        ) as answer:
            if answer.status != 200:
                raise PeerFailed(attempt.node_id, f"answered {answer.status} to a copy")
        return True

    async def _pieces(self, attempt: _Attempt, blob: FinishedBlob) -> AsyncGenerator[Piece, None]:
        """Yield the content from this disk, and record the attempt's progress."""
        sent_bytes = self._metrics.replica_bytes.labels("sent")
        attempt.allow(GRACE_S)
        try:
            reading = read_blob(self._disk, self._blobs, blob.sha256, 0, blob.size_bytes)
            async with aclosing(reading):
                async for piece in reading:
                    yield piece
                    attempt.allow(GRACE_S)
                    attempt.note_progress()
                    sent_bytes.inc(len(piece))
        except BlobDamaged as damage:
            await remove_from_service(self._disk, self._blobs, self._metrics, damage)
            raise
        attempt.allow(SYNC_S)  # all is sent: now the peer syncs the rest of it


async def _until_enough(
    copies: Mapping[asyncio.Task[bool], _Attempt], needed: int, patience_s: float
) -> Collection[asyncio.Task[bool]]:
    """Wait for the copies; once `needed` are made, only as long as the others make progress.

    While a client waits, only up to `patience_s` without progress before that, and SPARE_S after it.

    Returns the tasks without progress.
    """
    now_s = asyncio.get_running_loop().time
    enough_at_s: float | None = None
    pending = set(copies)
    while pending:
        if enough_at_s is None and sum(copy.result() for copy in copies if copy.done()) >= needed:
            enough_at_s = now_s()
            if needed > 0:
                note_progress()
        until_s = {copy: _given_up_at_s(copies[copy], enough_at_s, patience_s) for copy in pending}
        moving = [at_s for at_s in until_s.values() if at_s > now_s()]
        if not moving:
            return pending
        timeout_s = None if min(moving) == math.inf else min(moving) - now_s()
        _, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return pending


def _given_up_at_s(attempt: _Attempt, enough_at_s: float | None, patience_s: float) -> float:
    """Return when an attempt without progress is abandoned.

    `enough_at_s`: since when it is no longer needed.
    """
    ends_at_s = math.inf
    if enough_at_s is not None:
        ends_at_s = max(enough_at_s + GRACE_S, attempt.quiet_until_s)
    if is_client_waiting():
        waits_s = patience_s if enough_at_s is None else SPARE_S
        patient_until_s = asyncio.get_running_loop().time() + bounded_s(math.inf)
        working_until_s = max(attempt.moved_at_s + waits_s, attempt.works_until_s)
        ends_at_s = min(ends_at_s, working_until_s, patient_until_s)
    return ends_at_s
