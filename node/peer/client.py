"""Calls from this node to the peer ports of other nodes.

Dialled by address, verified by name, mutual TLS 1.3. The address is that of the view, which is up to a second
old; the coordinators are asked for a peer that joined since.

Every failure of a peer is a PeerFailed, so that callers choose another peer instead of examining the error.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from ca.errors import FilestoreError
from ca.hostnames import authority_of
from metadata.model.records import ClusterView, NodeRecord
from metadata.protocol.queries import GetView
from metadata.rpc.client import MetadataClient
from metadata.rpc.connector import Connector
from metadata.rpc.view import View
from node.peer.request_body import ByteSpan, PeerBody, Piece
from runtime.lifetime import end_tasks
from runtime.logs import REQUEST_ID

CONNECT_TIMEOUT_S = 3.0  # a live peer on a local network accepts in milliseconds
STALL_TIMEOUT_S = 30.0  # without one byte of progress a peer is given up; there is no limit on the whole
READ_BUFFER_BYTES = 256 * 1024  # per connection; the session stops reading at twice this
CONNECTIONS_MAX = 256  # to all peers together; a call beyond it waits for its turn
ASK_AGAIN_S = 3.0  # for a peer that was silent to write a few bytes to its disk, and to say so
REST_S: Final = 0.5  # before a silent peer is asked for the first time
REST_S_MAX: Final = 32.0
RELAPSE_S: Final = 60.0  # one that is silent again so soon has not come back for good
PEERS_MAX: Final = 256  # that are remembered; a cluster has fewer nodes

Ask = Callable[[str], Awaitable[bool]]


class PeerFailed(Exception):
    """A peer could not be reached, answered nonsense, or stalled. Another may do."""

    def __init__(
        self,
        node_id: str,
        reason: str,
        *,
        is_full: bool = False,
        is_absent: bool = False,
        is_silent: bool = False,
        is_hung_up: bool = False,
    ) -> None:
        """A call to a peer failed; four flags tell apart what the caller may do about it.

        `is_full`: it answers, and has no room. `is_absent`: it answers, and does not have what was asked for.
        `is_silent`: nothing came for as long as was waited. `is_hung_up`: the connection ended before the
        answer began, as one does that was kept from earlier requests while the peer closed it.
        """
        super().__init__(f"node {node_id}: {reason}")
        self.node_id = node_id
        self.reason = reason
        self.is_full = is_full
        self.is_absent = is_absent
        self.is_silent = is_silent
        self.is_hung_up = is_hung_up


class PeerClient:
    """One pooled session to all peers.

    `context` hands out the newest TLS context: certificates are renewed. `silent` knows the peers that did
    not answer lately, see `node/peer/client.py`; its readers choose others where they can.
    """

    def __init__(self, context: Callable[[], ssl.SSLContext], metadata: MetadataClient, view: View) -> None:
        self._context = context
        self._metadata = metadata
        self._view = view
        self._session: aiohttp.ClientSession | None = None
        self.silent = SilentPeers(self._is_back)

    async def start(self) -> None:
        """Open the session; must run inside the event loop."""
        assert self._session is None
        self._session = aiohttp.ClientSession(
            connector=Connector(limit=CONNECTIONS_MAX),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers={"User-Agent", "Accept-Encoding", "Content-Type"},
        )

    async def close(self) -> None:
        """End all connections."""
        await self.silent.close()
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def request(
        self,
        node_id: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: AsyncIterator[Piece | ByteSpan] | None = None,
        answer_timeout_s: float = STALL_TIMEOUT_S,
        read_buffer_bytes: int = READ_BUFFER_BYTES,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; return the response as soon as its head has arrived; read its body with `pieces`.

        `path` is sent as it is (already quoted). While `body` makes progress there is no deadline; after its
        last byte the answer must begin within `answer_timeout_s`, and so must each piece follow the one
        before. Up to twice `read_buffer_bytes` of unread data are buffered. Raises PeerFailed.
        """
        node = await self._find(node_id)
        try:
            response = await self._open(
                node, method, path, headers, body, answer_timeout_s, read_buffer_bytes
            )
        except PeerFailed as failure:
            if failure.is_silent:
                self.silent.note(node_id)
            raise
        try:
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    @asynccontextmanager
    async def ask(
        self, node_id: str, method: str, path: str, *, within_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a question without a body, whose response must begin `within_s` in total."""
        asked = self.request(node_id, method, path, answer_timeout_s=within_s)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(within_s):
                    answer = await stack.enter_async_context(asked)
            except TimeoutError as error:
                self.silent.note(node_id)
                raise PeerFailed(node_id, "does not answer", is_silent=True) from error
            yield answer

    async def _is_back(self, node_id: str) -> bool:
        """Whether a peer that was silent takes bytes again."""
        try:
            async with self.ask(node_id, "HEAD", "/room", within_s=ASK_AGAIN_S) as answer:
                return answer.status < 500
        except PeerFailed as failure:
            return not failure.is_silent  # a peer that is gone delays no caller

    async def _find(self, node_id: str) -> NodeRecord:
        try:
            node = await find_node(self._metadata, self._view, node_id)
        except FilestoreError as error:
            raise PeerFailed(node_id, error.details) from error
        if node is None or not node.peer_port:
            raise PeerFailed(node_id, "has no known peer port")
        return node

    async def _open(
        self,
        node: NodeRecord,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        body: AsyncIterator[Piece | ByteSpan] | None,
        answer_timeout_s: float,
        read_buffer_bytes: int,
    ) -> aiohttp.ClientResponse:
        assert self._session is not None
        return await open_request(
            self._session,
            node.node_id,
            method,
            _origin(node),
            path,
            headers=headers,
            body=body,
            answer_timeout_s=answer_timeout_s,
            read_buffer_bytes=read_buffer_bytes,
            context=self._context(),
            server_name=self._view.server_name(node.node_id),
        )


async def open_request(
    session: aiohttp.ClientSession,
    name: str,
    method: str,
    origin: str,
    path: str,
    *,
    headers: Mapping[str, str] | None,
    body: AsyncIterator[Piece | ByteSpan] | None,
    answer_timeout_s: float,
    read_buffer_bytes: int = READ_BUFFER_BYTES,
    context: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> aiohttp.ClientResponse:
    """Implement `PeerClient.request` for a known address of `name`. Raises PeerFailed."""
    try:
        if not path.startswith("/"):
            raise ValueError("no path: the rest of the address must not come out of it")
        async with asyncio.timeout(CONNECT_TIMEOUT_S + answer_timeout_s) as deadline:
            return await session.request(
                method,
                URL(origin + path, encoded=True),
                headers=_with_request_id(headers),
                data=None if body is None else PeerBody(_watched(body, deadline, answer_timeout_s)),
                ssl=context if context is not None else True,
                server_hostname=server_name,
                allow_redirects=False,
                read_bufsize=read_buffer_bytes,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=answer_timeout_s
                ),
            )
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        # ValueError: a path or a header of a client that HTTP cannot carry.
        is_silent = isinstance(error, TimeoutError)
        raise PeerFailed(name, _reason(error), is_silent=is_silent, is_hung_up=_is_hung_up(error)) from error


def _is_hung_up(error: Exception) -> bool:
    if isinstance(error, aiohttp.ClientConnectorError | TimeoutError):  # it never was, or is still there
        return False
    return isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)


def _with_request_id(headers: Mapping[str, str] | None) -> CIMultiDict[str]:
    """The headers with the id of the request that is served now, if there is one and they have none."""
    sent = CIMultiDict(headers or {})
    if request_id := REQUEST_ID.get():
        sent.setdefault("X-Request-Id", request_id)
    return sent


async def pieces(node_id: str, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The body of a peer's answer as it comes, twice the request's buffer at most. Raises PeerFailed."""
    while True:
        try:
            piece = await response.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PeerFailed(node_id, _reason(error), is_silent=isinstance(error, TimeoutError)) from error
        if not piece:
            return
        yield piece


async def _watched(
    body: AsyncIterator[Piece | ByteSpan], deadline: asyncio.Timeout, answer_timeout_s: float
) -> AsyncGenerator[Piece | ByteSpan, None]:
    """Pass the pieces on, with a deadline for the peer to accept each.

    The time of the source does not count.
    """
    loop = asyncio.get_running_loop()
    _move(deadline, None)
    try:
        async for piece in body:
            _move(deadline, loop.time() + STALL_TIMEOUT_S)
            yield piece
            _move(deadline, None)
    finally:
        if isinstance(body, AsyncGenerator):
            await body.aclose()
    _move(deadline, loop.time() + answer_timeout_s)


def _move(deadline: asyncio.Timeout, when: float | None) -> None:
    """Move the deadline, unless the answer came before the body ended: then its block is left already."""
    with suppress(RuntimeError):
        deadline.reschedule(when)


def _origin(node: NodeRecord) -> str:
    return f"https://{authority_of(node.address, node.peer_port)}"


def _reason(error: Exception) -> str:
    """Return the reason for a log. Only system messages are used: others may repeat URLs and raw bytes."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, OSError) else name


async def find_node(metadata: MetadataClient, view: View, node_id: str) -> NodeRecord | None:
    """The record of a node that peers can reach, or what is known of it; None for a stranger.

    Raises Unavailable when the view does not tell and the coordinators cannot be asked.
    """
    known = view.node(node_id)
    if known is not None and known.peer_port:
        return known
    newest = await metadata.read(GetView(), ClusterView)
    return next((node for node in newest.nodes if node.node_id == node_id), None)


@dataclass(slots=True)
class _Silence:
    """`task` checks for its end; None when it is over, at `ended_at_s`."""

    rest_s: float
    task: asyncio.Task[None] | None = None
    ended_at_s: float = 0.0


class SilentPeers:
    """Peers that did not answer recently, so that other requests need not wait for them.

    A call without any response, and a link of a chain without progress, show that a peer is silent. From then
    on it is asked in the background for something that needs its disk, and counts as before once it answers.
    A peer that becomes silent again soon after is left out for longer, each time twice as long. Silence is
    only a hint: a caller that needs the peer still asks it, but concurrently with others, not before them. So
    a process that was suspended itself, and considers all peers silent when it wakes up, loses nothing. `ask`
    checks whether a peer answers, within a bound; `close` ends it.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[str, _Silence] = {}

    def __contains__(self, node_id: str) -> bool:
        """Whether it did not answer lately."""
        known = self._known.get(node_id)
        return known is not None and known.task is not None

    def note(self, node_id: str) -> None:
        """It did not answer in time."""
        if node_id in self:
            return
        now_s = asyncio.get_running_loop().time()
        self._forget_before(now_s - RELAPSE_S)
        if len(self._known) >= PEERS_MAX:
            return
        before = self._known.get(node_id)
        rest_s = REST_S if before is None else min(2 * before.rest_s, REST_S_MAX)
        silence = self._known[node_id] = _Silence(rest_s)
        silence.task = asyncio.create_task(self._until_back(node_id, silence), name=f"silence of {node_id}")

    async def close(self) -> None:
        """Stop the background checks."""
        tasks = [known.task for known in self._known.values() if known.task is not None]
        self._known.clear()
        await end_tasks(tasks)

    async def _until_back(self, node_id: str, silence: _Silence) -> None:
        await asyncio.sleep(silence.rest_s)
        while not await self._ask(node_id):
            await asyncio.sleep(silence.rest_s)
        silence.task, silence.ended_at_s = None, asyncio.get_running_loop().time()

    def _forget_before(self, at_s: float) -> None:
        for node_id, known in list(self._known.items()):
            if known.task is None and known.ended_at_s < at_s:
                del self._known[node_id]
