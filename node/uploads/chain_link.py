"""One link of a chain: an upload's file on this disk, streamed to the next member of the chain as it grows.

The link tails the file: it reads the bytes between its own position and the end of the file. So no byte waits
in memory, and a slow member is only behind. Catching up after a loss is the same as following live. Bytes
with an unverified checksum are not readable yet.

On the wire it is one PUT over the peer port, in both directions at once. The body carries the bytes. The
response reports, a line at a time, what is durable at the member and at those behind it. The body begins
after the response, so that the member can receive it past its HTTP parser. Before the first byte both agree,
by sha256, on the offset of their common prefix. A member that has more goes back, and one with other bytes
starts over.

An older link must not undo what a newer one brought. A stalled node in the middle of a chain may start its
link after the holder has bypassed it, and would make the member go back below what the holder has counted
since. So the holder numbers its links; the number travels along the chain, and a member rejects numbers below
the highest that it has seen. The numbers belong to one run of the holder's process. Within an epoch of the
log the holder is one node, so a run that was followed by another is over. A restarted member knows no
numbers, and has bytes of this epoch that the holder may have counted. It accepts links only from the holder
itself, whose older links ended with their connections.

Tested by tests/unit/node/uploads/test_links.py.
"""

import asyncio
import itertools
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Struct
from prometheus_client import Counter

from ca.errors import Conflict, InsufficientStorage, InvalidRequest
from node.diskio.executor import DiskWorkers
from node.diskio.pagecache import read_cached
from node.peer.client import PeerClient, PeerFailed, pieces
from node.peer.request_body import ByteSpan, Piece
from node.staging.resumed_hash import PrefixHash
from node.staging.upload_file import UploadFile
from runtime.json_files import decode_foreign

READ_BYTES = 64 << 10  # these bytes are encrypted while they are in a core's cache
SPAN_BYTES = 512 << 10  # sent as one chunk
TELL_S = 0.5  # how often a member sends a sign of life
SILENCE_S = 3.0  # a silent member is abandoned, even one that hashes its bytes: it continues with that
STALL_S = 3.0  # it answers, but accepts none of the waiting bytes
END_S = 40.0  # it has all bytes but does not report them durable: some 16 MiB on a busy disk
HASH_BYTES = 64 << 20  # per job for the disk's threads; a cancelled link waits for its job
MARK_BYTES = 1 << 20  # the prefix hash is stored this often, so that few bytes must be read back
MARKS_MAX = 1024
LINE_BYTES_MAX = 16 << 10
# Whose newest link is known; the least recently used is dropped, some 300 bytes each.
UPLOADS_MAX: Final = 4096
RUNS_MAX: Final = 16  # ended runs in one epoch of an upload; the oldest is dropped
OFFSET_HEADER, SHA256_HEADER = "Upload-Offset", "Upload-Sha256"

_TOKEN: Final = re.compile(r"([0-9a-f]{16})-([0-9]{1,15})", re.ASCII)
_RUN: Final = os.urandom(8).hex()
_numbers: Final = itertools.count(1)


def next_fencing_token() -> str:
    """Return the name of another link that this process starts as a holder."""
    return f"{_RUN}-{next(_numbers)}"


class LinkReport(Struct, frozen=True, kw_only=True):
    """One line of a member's response. `durable`: bytes by node, itself and those behind it.

    `lost`: nodes behind it that failed. `ended`: the last line; all that was sent is durable at `durable`.
    `full`: the last line; there is no room for more.
    """

    received_bytes: int
    durable: dict[str, int]
    lost: list[str] = []
    ended: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """The terms of the upload for a member. `epoch` fences: older ones are rejected.

    `acknowledged_offset`: the offset in the log. A member with this many bytes and different ones behind them
    keeps them. `proposed_offset`: the offset that the log may have by now, from a report without a reply.
    `fencing_token`: the link's number among those of the holder; "" for none. `is_relayed`: a node in the
    middle of the chain asks, on behalf of the holder.
    """

    file_uuid: str
    epoch: int
    with_md5: bool
    acknowledged_offset: int = 0
    fencing_token: str = ""
    proposed_offset: int = 0
    is_relayed: bool = False

    def path(self, action: str, **more: str) -> str:
        """Return the path and query of a request about the upload on a peer port, under these terms."""
        fields = {
            "epoch": str(self.epoch),
            "md5": str(int(self.with_md5)),
            "acknowledged": str(self.acknowledged_offset),
            "proposed": str(self.proposed_offset),
            **({"laid": self.fencing_token} if self.fencing_token else {}),
            **({"relayed": "1"} if self.is_relayed else {}),
            **more,
        }
        return f"/uploads/{self.file_uuid}/{action}?{urlencode(fields)}"


class LinkSource:
    """The source of links: the file of an upload, up to the sendable offset. For the event loop."""

    def __init__(self, disk: DiskWorkers, upload: UploadFile) -> None:
        """Open the file, which blocks briefly. No request may write the upload meanwhile."""
        self.limit = upload.sendable_offset
        self.ended = False
        self._disk = disk
        self._upload = upload
        self._fd = upload.duplicate()
        self._readers = 0
        self._closed = False
        self._marks = OrderedDict([(upload.offset, upload.sha256)])
        self._moved = asyncio.Event()

    def move(self, limit: int, mark: tuple[int, str] | None = None) -> None:
        """Allow links to send up to `limit`. `mark`: an offset and the sha256 of the bytes before it."""
        self.limit = limit
        if mark is not None:
            self._marks[mark[0]] = mark[1]
            if len(self._marks) > MARKS_MAX:
                self._marks.popitem(last=False)
        self._wake()

    def know(self, offset: int, sha256: str) -> None:
        """Add the known sha256 of the first `offset` bytes, which need not be read for it then."""
        self._marks[offset] = sha256

    def end(self) -> None:
        """Note that no more bytes arrive."""
        self.ended = True
        self._wake()

    @property
    def hashed_bytes(self) -> int:
        """Return how far this node has hashed its bytes to compare them with a member's; 0 if not needed."""
        prefix = self._upload.prefix
        return 0 if prefix is None else prefix.size_bytes

    def mark_below(self, stop: int) -> tuple[int, str] | None:
        """Return the last mark that is not above `stop`."""
        return max((mark for mark in self._marks.items() if mark[0] <= stop), default=None)

    async def wait_for_bytes(self, position: int) -> bool:
        """Wait until there are bytes at `position`; return False if none will arrive."""
        while self.limit <= position:
            if self.ended:
                return False
            await self._moved.wait()
        return True

    def span(self, position: int) -> "_Span":
        """Return some bytes from `position`, which is below the limit."""
        return _Span(self, position, min(position + SPAN_BYTES, self.limit))

    def read_now(self, start: int, stop: int) -> bytes:
        """Return up to READ_BYTES from `start` on if they are in memory, as just written bytes are."""
        return b"" if self._closed else read_cached(self._fd, start, min(READ_BYTES, stop - start))

    async def read(self, start: int, stop: int) -> bytes:
        """Read bytes from the file. Raises OSError, EOFError."""
        async with self._reading() as descriptor:
            piece = await self._disk.run(os.pread, descriptor, min(READ_BYTES, stop - start), start)
        if not piece:
            raise EOFError("the upload went back")
        return piece

    async def prefix_sha256(self, stop: int) -> str:
        """Return the sha256 of the first `stop` bytes, marked or computed. Raises OSError, EOFError."""
        known = self._marks.get(stop)
        if known is not None:
            return known
        prefix = self._upload.prefix
        if prefix is None or prefix.is_busy or prefix.size_bytes > stop:
            prefix = self._upload.prefix = PrefixHash()
        with prefix.used():
            while prefix.size_bytes < stop:
                async with self._reading() as descriptor:
                    until = min(stop, prefix.size_bytes + HASH_BYTES)
                    await self._disk.run(prefix.read_until, descriptor, until)
            return prefix.sha256()

    def close(self) -> None:
        """Close the descriptor once no read is running. May be called twice."""
        self._closed = True
        if not self._readers and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[int]:
        if self._closed:
            raise EOFError("the upload was closed")
        self._readers += 1
        try:
            yield self._fd
        finally:
            self._readers -= 1
            if self._closed:
                self.close()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


@dataclass(frozen=True, slots=True)
class _Span:
    """A span of a source, for `node/peer/request_body.py`."""

    source: LinkSource
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def read_now(self, start: int) -> bytes:
        return self.source.read_now(self.start + start, self.stop)

    async def read(self, start: int) -> bytes:
        return await self.source.read(self.start + start, self.stop)


class Link:
    """A link to `members[0]`, which links to the rest.

    `durable` and `lost` have the last report; `on_change` is called when they change.
    """

    def __init__(
        self,
        peers: PeerClient,
        source: LinkSource,
        terms: LinkTerms,
        members: Sequence[str],
        *,
        on_change: Callable[[], None],
        sent: Counter,
    ) -> None:
        self.member, self.behind = members[0], list(members[1:])
        self.durable: dict[str, int] = {}
        self.lost: frozenset[str] = frozenset()
        self._peers, self._source, self._terms = peers, source, terms
        self._on_change, self._sent = on_change, sent
        self.is_hashing = False  # this node's bytes, to compare them with the member's
        self._is_answered = asyncio.Event()
        self._ended = self._is_full = False
        self._received_bytes = 0
        self._moved_at_s = 0.0

    async def run(self) -> None:
        """Send until the source ends and the member has reported that all is durable. Raises PeerFailed."""
        try:
            start = await self._agree()
            await self._send(start)
        except (OSError, EOFError) as error:
            raise PeerFailed(self.member, f"this disk: {error}") from error

    async def _agree(self) -> int:
        """Return the offset of the common prefix with the member, where the link begins.

        Bytes that are acknowledged, or may be, are never dropped on the way there: the write quorum may rest
        on them. So a node in the middle of a chain with fewer bytes waits until it can compare the member's.
        """
        acknowledged = self._terms.acknowledged_offset
        proposed = max(acknowledged, self._terms.proposed_offset)
        for limit in (max(self._source.limit, proposed), proposed, acknowledged):
            theirs, sha256 = await self._ask(limit)
            if not await self._source.wait_for_bytes(theirs - 1):
                raise PeerFailed(self.member, "has more bytes than were sent")
            self.is_hashing = True
            if sha256 == await self._source.prefix_sha256(theirs):
                self.is_hashing = False
                return theirs
            self.is_hashing = False
            if theirs <= acknowledged:
                break
        return 0

    async def _ask(self, limit: int) -> tuple[int, str]:
        """Make the member go back to `limit`; return its offset, and the sha256 of the bytes before it."""
        path = self._terms.path("agree", limit=str(limit))
        async with self._peers.ask(self.member, "POST", path, within_s=SILENCE_S) as answer:
            _require_taken(self.member, answer)
            theirs = _offset_of(self.member, answer.headers.get(OFFSET_HEADER, ""))
            sha256 = answer.headers.get(SHA256_HEADER, "")
        if theirs > limit:
            raise PeerFailed(self.member, "does not go back to an earlier offset")
        return theirs, sha256

    async def _send(self, start: int) -> None:
        waiting = {"start": str(start), "stop": str(max(start, self._source.limit))}
        path = self._terms.path("link", **waiting, behind=",".join(self.behind))
        async with AsyncExitStack() as stack:
            async with _within(self.member, SILENCE_S):
                sending = self._peers.request(
                    self.member, "PUT", path, body=self._body(start), answer_timeout_s=SILENCE_S
                )
                answer = await stack.enter_async_context(sending)
            _require_taken(self.member, answer)
            self._is_answered.set()
            await self._listen(answer)
        if not self._ended:
            reason = "has no room" if self._is_full else "closed the link"
            raise PeerFailed(self.member, reason, is_full=self._is_full)
        if self.durable.get(self.member) != self._source.limit:
            raise PeerFailed(self.member, "ended before it had all bytes")

    async def _body(self, start: int) -> AsyncIterator[Piece | ByteSpan]:
        position = start
        yield b""  # the response's head waits for the body
        await self._is_answered.wait()
        while await self._source.wait_for_bytes(position):
            span = self._source.span(position)
            yield span
            position = span.stop
            self._sent.inc(len(span))

    async def _listen(self, answer: aiohttp.ClientResponse) -> None:
        self._moved_at_s = asyncio.get_running_loop().time()
        rest = b""
        async for piece in pieces(self.member, answer):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise PeerFailed(self.member, "told nonsense")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            report = decode_foreign(line, LinkReport)
        except msgspec.MsgspecError as error:
            raise PeerFailed(self.member, "told nonsense") from error
        now_s = asyncio.get_running_loop().time()
        has_moved = (report.received_bytes, report.durable) != (self._received_bytes, self.durable)
        has_all = report.received_bytes >= self._source.limit
        if has_moved or (has_all and not self._source.ended):
            self._moved_at_s = now_s
        if now_s - self._moved_at_s > (END_S if has_all else STALL_S):
            raise PeerFailed(self.member, "accepts no bytes", is_silent=True)
        has_changed = (report.durable, frozenset(report.lost)) != (self.durable, self.lost)
        self._received_bytes, self.durable = report.received_bytes, report.durable
        self.lost = frozenset(report.lost)
        self._ended, self._is_full = report.ended, report.full
        if has_changed or report.ended:
            self._on_change()


@asynccontextmanager
async def _within(member: str, timeout_s: float) -> AsyncIterator[None]:
    """Raise PeerFailed if the block takes longer."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise PeerFailed(member, "does not answer", is_silent=True) from error


def _require_taken(member: str, answer: aiohttp.ClientResponse) -> None:
    """Raise PeerFailed unless the member accepted the request."""
    if answer.status != 200:
        is_full = answer.status == InsufficientStorage.status
        raise PeerFailed(member, f"answered {answer.status} to a link", is_full=is_full)


def _offset_of(member: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise PeerFailed(member, "does not report its offset")
    return int(text)


@dataclass(slots=True)
class _Seen:
    epoch: int
    run: str
    number: int
    ended_runs: list[str] = field(default_factory=list)


class LinkFences:
    """The newest link to each upload, as a member knows it; forgotten with the process."""

    def __init__(self, *, uploads_max: int = UPLOADS_MAX) -> None:
        self._uploads_max = uploads_max
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def require_newest(
        self,
        file_uuid: str,
        epoch: int,
        fencing_token: str,
        *,
        is_relayed: bool = False,
        has_bytes: bool = False,
    ) -> None:
        """Record a link; a repeated one is not older. Raises Conflict, InvalidRequest.

        `fencing_token`: "" if the request belongs to no link, and has no order. `is_relayed`: the request
        comes from a node in the middle of the chain. `has_bytes`: this member has bytes of this epoch.
        """
        if not fencing_token:
            return
        match = _TOKEN.fullmatch(fencing_token)
        if match is None:
            raise InvalidRequest("laid: must be the name of a link.")
        run, number = match[1], int(match[2])
        seen = self._seen.get(file_uuid)
        if seen is None or seen.epoch < epoch:
            if is_relayed and has_bytes:
                raise Conflict("This node was restarted: the holder has to lay the link itself.")
            self._remember(file_uuid, _Seen(epoch, run, number))
            return
        if epoch < seen.epoch or run in seen.ended_runs or (run == seen.run and number < seen.number):
            raise Conflict("A newer link leads to this upload.")
        ended_runs = seen.ended_runs if run == seen.run else [*seen.ended_runs, seen.run][-RUNS_MAX:]
        self._remember(file_uuid, _Seen(epoch, run, number, ended_runs))

    def _remember(self, file_uuid: str, seen: _Seen) -> None:
        self._seen[file_uuid] = seen
        self._seen.move_to_end(file_uuid)
        if len(self._seen) > self._uploads_max:
            self._seen.popitem(last=False)
