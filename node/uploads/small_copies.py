"""Copies of small blobs for other nodes: many in one request, for `node/peerapi/blobs.py`.

Up to REQUESTS_MAX requests to a node are in progress. A blob that arrives then waits, and is sent with the
next request, together with all that arrived meanwhile. For the event loop.
"""

import asyncio
import hashlib
import struct
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter

from node.peer.client import PeerClient, PeerFailed
from runtime.lifetime import end_tasks

PATH: Final = "/small-blobs"
REQUESTS_MAX: Final = 2  # in progress to one node: while it syncs one, the next arrives
REQUEST_BYTES_MAX: Final = 1 << 20
REQUEST_BLOBS_MAX: Final = 256
WAITING_BYTES_MAX: Final = 16 << 20  # for one node
ANSWER_S: Final = 3.0  # for a peer to sync its present batch, and this one
_HEAD: Final = struct.Struct(f">{hashlib.sha256().digest_size}sI")  # sha256, length of the content


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """A blob that was not stored there yet, and the future of its sender."""

    sha256: str
    content: bytes
    done: asyncio.Future[None]


class SmallCopies:
    """The copies of small blobs from one node to all others. `close` ends those in progress."""

    def __init__(self, peers: PeerClient, sent_bytes: Counter) -> None:
        self._peers, self._sent_bytes = peers, sent_bytes
        self._to: dict[str, _Peer] = {}

    def put(self, node_id: str, sha256: str, content: bytes) -> asyncio.Future[None]:
        """Return a future that is done when that node has the blob durably; PeerFailed otherwise."""
        peer = self._to.get(node_id)
        if peer is None:
            peer = self._to[node_id] = _Peer(node_id, self._peers, self._sent_bytes)
        return peer.put(sha256, content)

    async def close(self) -> None:
        """End all requests."""
        for peer in self._to.values():
            await peer.close()


class _Peer:
    """The small blobs that one node is to receive."""

    def __init__(self, node_id: str, peers: PeerClient, sent_bytes: Counter) -> None:
        self._node_id, self._peers, self._sent_bytes = node_id, peers, sent_bytes
        self._waiting = deque[_Copy]()
        self._waiting_bytes = 0
        self._requests = set[asyncio.Task[None]]()

    def put(self, sha256: str, content: bytes) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiting_bytes + len(content) > WAITING_BYTES_MAX:
            done.set_exception(PeerFailed(self._node_id, "is too slow for small blobs"))
            done.exception()
            return done
        self._waiting.append(_Copy(sha256, content, done))
        self._waiting_bytes += len(content)
        if len(self._requests) < REQUESTS_MAX:
            self._begin()
        return done

    async def close(self) -> None:
        await end_tasks(self._requests)

    def _begin(self) -> None:
        request = asyncio.create_task(self._run(), name="small copies")
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _run(self) -> None:
        """Send waiting blobs until there are none."""
        while batch := self._batch():
            try:
                await self._send(batch)
            except BaseException as error:
                failure = error if isinstance(error, PeerFailed) else PeerFailed(self._node_id, str(error))
                for each in batch:
                    if not each.done.done():
                        each.done.set_exception(_another(failure))
                        each.done.exception()  # retrieved, even if no caller waits
                if not isinstance(error, PeerFailed):
                    raise
            else:
                for each in batch:
                    if not each.done.done():
                        each.done.set_result(None)

    def _batch(self) -> list[_Copy]:
        """Return the next blobs to send; skip those whose callers have given up."""
        batch, batch_bytes = list[_Copy](), 0
        while self._waiting and len(batch) < REQUEST_BLOBS_MAX and batch_bytes < REQUEST_BYTES_MAX:
            copy = self._waiting.popleft()
            self._waiting_bytes -= len(copy.content)
            if not copy.done.done():
                batch.append(copy)
                batch_bytes += len(copy.content)
        return batch

    async def _send(self, batch: Sequence[_Copy]) -> None:
        body = encode_small_blobs([(each.sha256, each.content) for each in batch])
        asked = self._peers.request(
            self._node_id,
            "POST",
            PATH,
            headers={"Content-Length": str(len(body))},
            body=_whole(body),
            answer_timeout_s=ANSWER_S,
        )
        async with asked as answer:
            if answer.status != 200:
                raise PeerFailed(
                    self._node_id, f"answered {answer.status} to small copies", is_full=answer.status == 507
                )
        self._sent_bytes.inc(sum(len(each.content) for each in batch))


def encode_small_blobs(blobs: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the body of a request: for each blob its SHA-256, its length, big-endian, and its content."""
    parts = list[bytes]()
    for sha256, content in blobs:
        parts += _HEAD.pack(bytes.fromhex(sha256), len(content)), content
    return b"".join(parts)


def decode_small_blobs(body: bytes) -> list[tuple[str, bytes]]:
    """Decode small blobs.

    Raises ValueError for a body that ends within a blob, or content that does not hash to its name.
    """
    blobs, at = list[tuple[str, bytes]](), 0
    with suppress(struct.error):
        while at < len(body):
            digest, length = _HEAD.unpack_from(body, at)
            content = body[at + _HEAD.size : at + _HEAD.size + length]
            at += _HEAD.size + length
            if at > len(body) or hashlib.sha256(content).digest() != digest:
                break
            blobs.append((digest.hex(), content))
        else:
            return blobs
    raise ValueError("the body is cut off, or a blob does not have the SHA-256 that it is sent under")


async def _whole(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def _another(failure: PeerFailed) -> PeerFailed:
    """Return a new error for each caller, as raising one adds to it."""
    return PeerFailed(failure.node_id, failure.reason, is_full=failure.is_full, is_silent=failure.is_silent)
