"""Pass a request on to the holder of the upload, streamed in both directions.

The holder is another node, over its peer port, or another worker of this node, over its Unix socket.

A client that waits for permission to send its body (`Expect: 100-continue`) waits for that of the holder, as
this node does: a rejection comes before any of the body.

The credential is passed on and verified there again. A request is passed on to a node once, and within a node
once. A header counts this, and a process that gets a request for another one rejects it, so two nodes with
different views cannot send it to and fro.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import aiohttp
import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from ca.errors import (
    CATALOGUE,
    FilestoreError,
    Internal,
    OffsetMismatch,
    RangeNotSatisfiable,
    Unavailable,
)
from node.packs.store import BLOB_BYTES_MAX
from node.peer.client import STALL_TIMEOUT_S, PeerFailed, pieces
from node.uploads.services import NodeServices
from node.uploads.succession import is_reachable
from runtime.time_limits import PATIENCE_S, note_progress
from web.app import ClientGone, body_batches, body_chunks, request_id
from web.internals.aiohttp_server import ServerConnection
from web.rate_limits import BodyPace
from web.request_body import waits_to_go_on
from web.web_access import CLIENT_ADDRESS, client_address

PASSED_ON = "Filestore-Passed-On"  # how often this request was passed on to a node; once at most
PASSED_WITHIN = "Filestore-Passed-Within"  # the same between the workers of one node
KEPT_BYTES_MAX = BLOB_BYTES_MAX  # of a body, to repeat it: the limit for small content
# A connection that the holder had closed fails within this time; a later end is meant.
KEPT_CONNECTION_S = 1.0
REFUSAL_BYTES_MAX = 64 << 10  # of an error response; ours have less than 1 KiB
_COMPLETION_TIMEOUT_S = 600.0  # after the last byte: the holder may sync, copy and commit a large file
_WATCH_S = 1.0  # between two looks at a holder that has not answered yet
_GONE_S = 0.5  # for the holder to accept the rest of a body whose client has disconnected
_LOOK_AGAIN_S = 0.2  # after no node reached it: the load may have been high for a moment
_START_S = 10.0  # for a worker that is starting; about two seconds on an idle machine
_NOT_PASSED = frozenset(
    {
        "connection", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "server", "te", "trailer", "transfer-encoding", "upgrade", PASSED_WITHIN.lower(),
    }
)  # RFC 9110, section 7.6.1: these belong to one connection  # fmt: skip

# These recognize what they have done; aiohttp repeats the others.
_REPEATED = (hdrs.METH_PATCH, hdrs.METH_PUT)
_ERRORS = {kind.code: kind for kind in CATALOGUE if kind not in (OffsetMismatch, RangeNotSatisfiable)}
_log = logging.getLogger(__name__)


class _Refused(msgspec.Struct, frozen=True):
    """The body of an error response."""

    code: str
    details: str


@dataclass(frozen=True, slots=True)
class HolderAddress:
    """The process that holds an upload, if it is not this one.

    `request` is that of PeerClient or Siblings, for this holder; `mark` is the header that prevents loops.
    `is_reachable`: None for a worker of this node, which lives as long as the node does.
    """

    name: str
    mark: str
    request: Callable[..., AbstractAsyncContextManager[aiohttp.ClientResponse]]
    is_reachable: Callable[[], Awaitable[bool]] | None = None


def node_holding(services: NodeServices, node_id: str) -> HolderAddress:
    """Return the address of another node."""
    request = partial(services.peers.request, node_id)
    return HolderAddress(f"Node {node_id}", PASSED_ON, request, partial(is_reachable, services, node_id))


def worker_holding(services: NodeServices, owner: int) -> HolderAddress:
    """Return the address of another worker of this node."""
    request = partial(services.siblings.request, owner, patience_s=_START_S)
    return HolderAddress(f"Worker {owner}", PASSED_WITHIN, request)


async def pass_on(
    request: web.Request,
    holder: HolderAddress,
    *,
    pace: BodyPace | None = None,
    path: str = "",
    answer_timeout_s: float = 0.0,
    from_peer: bool = False,
) -> web.StreamResponse:
    """Return the holder's response to this request, streamed. Other parameters as of `ask_holder`."""
    asking = ask_holder(
        request, holder, pace=pace, path=path, answer_timeout_s=answer_timeout_s, from_peer=from_peer
    )
    async with asking as answer:
        return await _return(request, holder, answer)


@asynccontextmanager
async def ask_holder(
    request: web.Request,
    holder: HolderAddress,
    *,
    method: str = "",
    path: str = "",
    fields: Mapping[str, str] = MappingProxyType({}),
    pace: BodyPace | None = None,
    answer_timeout_s: float = 0.0,
    from_peer: bool = False,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Forward this request to the holder, and return its response; the body must keep to `pace`.

    `method`, `path`: those of the forwarded request, if they differ. `fields`: additional headers.
    `answer_timeout_s`: how long the response may take after the last byte, if that is longer. `from_peer`: as
    of `body_batches`. If the holder closes the connection at once, the request is repeated while no byte is
    lost: it may have closed a connection from the pool. Raises Unavailable if the holder cannot be reached,
    ClientGone.
    """
    if holder.mark in request.headers:
        raise Unavailable(f"{holder.name} holds this upload, but not all nodes know that yet.")
    headers = _onward_headers(request, holder, fields)
    body = _Body(request, pace, from_peer=from_peer)
    method, now_s = method or request.method, asyncio.get_running_loop().time
    until_s = now_s() + (KEPT_CONNECTION_S if method in _REPEATED else 0.0)

    def ask() -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return holder.request(
            method,
            path or request.rel_url.raw_path_qs,  # never the target as received, which may be a whole URL
            headers=headers,
            body=body.chunks() if request.body_exists else None,
            answer_timeout_s=max(answer_timeout_s, _answer_timeout_s(request)),
        )

    try:
        async with _while_reachable(holder), _while_client_stays(request, body), AsyncExitStack() as asked:
            try:
                answer = await asked.enter_async_context(ask())
            except PeerFailed as failure:
                is_kept_one = failure.is_hung_up and now_s() < until_s
                if not (is_kept_one and await body.can_be_sent_again()):
                    raise
                _log.info("asking again", extra={"peer": holder.name, "reason": failure.reason})
                answer = await asked.enter_async_context(ask())
            body.answer = answer
            yield answer
    except PeerFailed as failure:
        if body.error is not None:
            raise body.error from failure
        _log.warning("forwarding failed", extra={"peer": holder.name, "reason": failure.reason})
        raise Unavailable(
            f"{holder.name}, which holds this upload, cannot be reached.", retry_after_s=2
        ) from failure


def _onward_headers(
    request: web.Request, holder: HolderAddress, fields: Mapping[str, str]
) -> CIMultiDict[str]:
    named = request.headers.get(hdrs.CONNECTION, "").lower().split(",")
    left_out = _NOT_PASSED.union(name.strip() for name in named)
    kept = [(name, value) for name, value in request.headers.items() if name.lower() not in left_out]
    headers = CIMultiDict(kept)
    headers.update(fields)
    headers[holder.mark] = "1"
    headers["X-Request-Id"] = request_id(request)
    headers[CLIENT_ADDRESS] = client_address(request)
    if waits_to_go_on(request):  # the holder rejects it, or requests the first piece
        headers[hdrs.EXPECT] = "100-continue"
    return headers


async def refusal_of(holder: HolderAddress, answer: aiohttp.ClientResponse) -> FilestoreError:
    """Return the error in a holder's response. Raises PeerFailed if the response is cut off."""
    body = bytearray()
    async for piece in pieces(holder.name, answer):
        body += piece[: REFUSAL_BYTES_MAX - len(body)]
    try:
        refused = msgspec.json.decode(body, type=_Refused)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Internal(f"{holder.name} sent an unexpected response {answer.status}.")
    if refused.code == OffsetMismatch.code:
        return OffsetMismatch(refused.details, offset=int(answer.headers.get("Upload-Offset", "0")))
    error = _ERRORS.get(refused.code, Internal)(refused.details)
    error.headers |= {name: answer.headers[name] for name in ("Retry-After",) if name in answer.headers}
    return error


def _answer_timeout_s(request: web.Request) -> float:
    return STALL_TIMEOUT_S if request.method in ("GET", "DELETE") else _COMPLETION_TIMEOUT_S


class _Body:
    """The client's body in transfer to the holder.

    `error` is what ended it early: the HTTP client swallows that. An `answer` that has begun ends with it.
    `on_end` is called after its last byte was read, so never for a request without a body.
    """

    def __init__(self, request: web.Request, pace: BodyPace | None, *, from_peer: bool) -> None:
        self._request = request
        self._pace = pace
        self._from_peer = from_peer
        self._kept: list[bytes] | None = []  # all bytes read from it; None if they are too many
        self._kept_bytes = 0  # the sum of their lengths, as there may be many
        self._is_at_rest = asyncio.Event()  # set while it is not being read
        self._is_at_rest.set()
        self.answer: aiohttp.ClientResponse | None = None
        self.error: Exception | None = None
        self.is_taken = False  # all of it
        self.on_end: Callable[[], object] | None = None

    async def can_be_sent_again(self) -> bool:
        """Return whether `chunks` would begin with its first byte, after its present reader has ended."""
        await self._is_at_rest.wait()
        return self.error is None and self._kept is not None

    async def chunks(self) -> AsyncIterator[bytes]:
        self._is_at_rest.clear()
        try:
            yield b""  # sends the head at once, as the body may wait for the head of the response
            for chunk in self._kept or ():
                yield chunk
            async with aclosing(self._coming()) as coming:
                async for chunk in coming:
                    self._keep(chunk)
                    yield chunk
            self.is_taken = True
            if self.on_end is not None:
                self.on_end()
        except (FilestoreError, ConnectionError) as error:
            self.error = error
            if self.answer is not None:
                self.answer.close()
            raise
        finally:
            self._is_at_rest.set()

    async def _coming(self) -> AsyncGenerator[bytes, None]:
        if not self._from_peer:
            async with aclosing(body_chunks(self._request, self._pace)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        async with aclosing(body_batches(self._request, self._pace, from_peer=True)) as batches:
            async for batch in batches:
                yield b"".join(batch)

    def _keep(self, chunk: bytes) -> None:
        if self._kept is not None:
            self._kept.append(chunk)
            self._kept_bytes += len(chunk)
            if self.answer is not None or self._kept_bytes > KEPT_BYTES_MAX:
                self._kept = None


@asynccontextmanager
async def _while_client_stays(request: web.Request, body: _Body) -> AsyncIterator[None]:
    """End the enclosed work with ClientGone if the client goes away after its body; before, reading shows it.

    The holder sees this connection only. While that stands, the next request of the client is refused (423)
    rather than made to wait for the end of this one.
    """
    connection, loop = request.protocol, asyncio.get_running_loop()
    assert isinstance(connection, ServerConnection)
    try:
        async with asyncio.timeout(None) as limit:

            def look() -> None:
                if body.is_taken and request.transport is None and not limit.expired():
                    limit.reschedule(loop.time() + _GONE_S)

            connection.when_lost.add(look)
            body.on_end = look
            try:
                yield
            finally:
                body.on_end = None
                connection.when_lost.discard(look)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ClientGone("the client disconnected while the holder worked") from error


@asynccontextmanager
async def _while_reachable(holder: HolderAddress) -> AsyncIterator[None]:
    """End the enclosed work with PeerFailed if no node has reached the holder for a while.

    A holder that has lost its power, or hangs, keeps its connections: only its silence shows that.
    """
    if holder.is_reachable is None:
        yield
        return
    try:
        async with asyncio.timeout(None) as limit:
            watch = asyncio.create_task(_watch(holder.is_reachable, limit), name=f"watch of {holder.name}")
            try:
                yield
            finally:
                watch.cancel()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise PeerFailed(holder.name, "no longer reached") from error


async def _watch(is_reachable: Callable[[], Awaitable[bool]], limit: asyncio.Timeout) -> None:
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.sleep(_WATCH_S)
                while not await is_reachable():
                    await asyncio.sleep(_LOOK_AGAIN_S)
            note_progress()
    limit.reschedule(asyncio.get_running_loop().time())


async def _return(
    request: web.Request, holder: HolderAddress, answer: aiohttp.ClientResponse
) -> web.StreamResponse:
    """Return the head of the response, then its body as it arrives.

    Raises PeerFailed only before the head is sent.
    """
    headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in _NOT_PASSED]
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    if "close" in answer.headers.get(hdrs.CONNECTION, "").lower():  # the reason to close applies here too
        response.force_close()
    response.headers.extend(headers)
    try:
        await response.prepare(request)
        async for piece in pieces(holder.name, answer):
            await response.write(piece)
        await response.write_eof()
    except ConnectionResetError as error:
        raise ClientGone("the client disconnected while a response was being forwarded") from error
    except PeerFailed as failure:
        raise Unavailable(
            str(failure)
        ) from failure  # too late for a response: the shell breaks the connection
    return response
