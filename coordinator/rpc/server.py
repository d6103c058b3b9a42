"""The serving side of the peer port: WebSockets for calls and Raft messages of members.

The certificate identifies the caller, and is checked for every message that arrives: an open connection ends
with the certificate that opened it, and that of a coordinator with its next start. Only for a new certificate
may a node ask with an expired one: it was switched off when it should have been renewed. Any coordinator of
the cluster that was not removed may send Raft messages, also one that this member does not know yet: a member
that lags must accept the appends of a leader that joined meanwhile (Ongaro 2014, 4.1).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from ca.errors import FilestoreError, Internal, InvalidRequest, Unauthorized, Unavailable
from ca.identity import Role
from ca.tls import Peer, peer_identity
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import Message
from coordinator.rpc.call_metrics import ServedCalls
from coordinator.rpc.raft_wire import messages_in
from metadata.model.providers import ProviderUnavailable
from metadata.model.rules import NotInForce
from metadata.protocol.calls import AnyCall, RenewCall
from metadata.protocol.commands import Reply
from metadata.rpc import instances, wire
from metadata.rpc.deadlines import Deadlines
from metadata.rpc.instances import Instance
from metadata.rpc.websocket import PING_S, Outbox, OutboxFull, end
from runtime.clock import now_ms
from runtime.lifetime import end_tasks
from runtime.logs import REQUEST_ID
from web.responses import ClientGone

CALLS_AT_ONCE_MAX = 2048  # on one connection
RECALL_TIMEOUT_S = 2.0  # one change of the log, while the node waits for its connection
CLOSE_TIMEOUT_S = 1.0  # for a peer to close the connection

_REPLY = msgspec.msgpack.Decoder(Reply)
_OVERDUE = "There was no majority within the deadline."
_log = logging.getLogger(__name__)


class Refused(Exception):
    """The state machine rejected the call: a reply with the code of an error."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


def value_of(reply: bytes) -> bytes:
    """Return the value, in MessagePack, of an encoded Reply. Raises Refused."""
    decoded = _REPLY.decode(reply)
    if decoded.refusal:
        raise Refused(decoded.refusal, decoded.details)
    return bytes(decoded.value)


CallHandler = Callable[[Peer, AnyCall], Awaitable[bytes]]
Admission = Callable[[str, Instance], Awaitable[None]]


class PeerPort:
    """The routes of the peer port.

    `handle` answers calls, `step` accepts Raft messages, `check` rejects removed and revoked members, `admit`
    other instances of a coordinator, `calls` counts. `recall` records a certificate that a restore has
    forgotten. A certificate is current if it is so by one of `clocks_ms`.
    """

    def __init__(
        self,
        handle: CallHandler,
        step: Callable[[Message], None],
        check: Callable[[Peer], None],
        calls: ServedCalls | None = None,
        admit: Admission | None = None,
        recall: Callable[[Peer], Awaitable[None]] | None = None,
        *,
        clocks_ms: Callable[[], Sequence[int]] = lambda: [now_ms()],
    ) -> None:
        self._handle = handle
        self._clocks_ms = clocks_ms
        self._admit = admit
        self._recall = recall
        self._step = step
        self._check = check
        self._calls = calls or ServedCalls(CollectorRegistry())
        self._sockets: set[web.WebSocketResponse] = set()
        self._is_closing = False

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the peer port."""
        return [web.get("/raft", self._raft), web.get("/rpc", self._rpc)]

    async def close(self) -> None:
        """End every connection and accept no new one: members must connect to another coordinator."""
        self._is_closing = True
        await asyncio.gather(*(_go_away(socket) for socket in self._sockets))

    async def _raft(self, request: web.Request) -> web.WebSocketResponse:
        peer = self._peer(request)
        _require_raft(peer)
        await self._admit_instance(peer, request)
        socket = await self._accept(request)
        try:
            async for data in _messages(socket):
                await self._admit_instance(self._peer(request), request)
                for message in messages_in(wire.decode(data)):
                    if message.source != peer.identity.id:
                        raise InvalidRequest(f"{peer.identity.uri} sent what it may not send here")
                    self._step(message)
        except FilestoreError as error:
            _log.warning("raft connection of %s ended: %s", peer.identity.uri, _reason(error))
        finally:
            self._sockets.discard(socket)
            await _go_away(socket)
        return socket

    async def _rpc(self, request: web.Request) -> web.WebSocketResponse:
        await self._recall_certificate(request)
        peer = self._peer(request, takes_expired=True)
        socket = await self._accept(request)
        outbox = Outbox()
        sender = asyncio.create_task(outbox.run(socket), name=f"answers to {peer.identity.id}")
        receiver = asyncio.create_task(
            self._serve(request, socket, outbox), name=f"calls of {peer.identity.id}"
        )
        try:
            await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(receiver)
            await end(sender)
            self._sockets.discard(socket)
            await _go_away(socket)
        return socket

    async def _serve(self, request: web.Request, socket: web.WebSocketResponse, outbox: Outbox) -> None:
        """Serve calls until the connection ends; unfinished answers are then dropped."""
        under_way = _RunningCalls(outbox)
        try:
            async for data in _messages(socket):
                peer = self._peer(request, takes_expired=True)
                is_current = self._is_current(peer)
                for frame in wire.decode(data):
                    if not isinstance(frame, wire.CallFrame):
                        raise InvalidRequest(f"{peer.identity.uri} sent what it may not send here")
                    await under_way.place()
                    under_way.begin(self._answer(peer, frame, under_way, is_current=is_current), frame)
        except FilestoreError as error:
            _log.warning("connection of %s ended: %s", request.remote, _reason(error))
        finally:
            await under_way.end()

    async def _answer(
        self, peer: Peer, frame: wire.CallFrame, under_way: "_RunningCalls", *, is_current: bool
    ) -> None:
        REQUEST_ID.set(frame.request_id)  # of this task alone
        call, value = None, b""
        status, details = wire.RETRY, _OVERDUE  # the same status as for an abandoned call
        started_s = time.monotonic()
        try:
            call = wire.decode_call(frame.call)
            if not is_current and not isinstance(call, RenewCall):
                raise Unavailable("The certificate of this node is not valid. It must be renewed first.")
            value = await self._handle(peer, call)
            status, details = wire.OK, ""
        except NotLeader as refusal:
            status, details = wire.NOT_LEADER, refusal.leader_id
        except Refused as refusal:
            status, details = refusal.code, refusal.details
        except Unavailable as error:
            # No other coordinator can do it, and this one not in a moment.
            is_for_later = isinstance(error, NotInForce | ProviderUnavailable)
            status, details = error.code if is_for_later else wire.RETRY, error.details
        except FilestoreError as error:
            status, details = error.code, error.details
        except TimeoutError:
            status, details = wire.RETRY, _OVERDUE
        except Exception:  # noqa: BLE001 - the edge: our own fault is answered, and logged for the operator
            _log.exception("a call of %s failed", peer.identity.uri)
            status, details = Internal.code, "A coordinator failed. See its log."
        finally:
            self._calls.count_call(peer, call, status, time.monotonic() - started_s)
        details = details[: wire.DETAILS_CHARS_MAX]
        try:
            under_way.answer(wire.AnswerFrame(frame.number, status, details, value))
        except wire.FrameTooLarge:
            _log.error("an answer to %s is too large", peer.identity.uri)
            under_way.answer(wire.AnswerFrame(frame.number, Internal.code, "The answer is too large.", b""))

    async def _admit_instance(self, peer: Peer, request: web.Request) -> None:
        """Raise Conflict if this is not the active instance of that coordinator.

        A later start of it may have connected meanwhile. Older versions do not name their instance.
        """
        if self._admit is not None and (instance := request.headers.get(instances.HEADER)) is not None:
            await self._admit(peer.identity.id, instances.parse_instance(instance))

    async def _accept(self, request: web.Request) -> web.WebSocketResponse:
        if self._is_closing:
            raise Unavailable("This coordinator is stopping.")
        socket = web.WebSocketResponse(heartbeat=PING_S, max_msg_size=wire.MESSAGE_BYTES_MAX, compress=False)
        try:
            await socket.prepare(request)
        except ConnectionError as error:
            raise ClientGone("the peer went away before it was answered") from error
        self._sockets.add(socket)
        return socket

    async def _recall_certificate(self, request: web.Request) -> None:
        """Record a forgotten certificate, before the first check of a connection.

        Raises Unavailable, and what `recall` raises.
        """
        if self._recall is None:
            return
        try:
            async with asyncio.timeout(RECALL_TIMEOUT_S):
                await self._recall(self._shown(request, takes_expired=True))
        except NotLeader as error:
            raise Unavailable("The leader must record this certificate first.") from error
        except TimeoutError as error:
            raise Unavailable(_OVERDUE) from error

    def _peer(self, request: web.Request, *, takes_expired: bool = False) -> Peer:
        """Return the caller.

        `takes_expired`: a node whose expired certificate can still be renewed is allowed.
        """
        peer = self._shown(request, takes_expired=takes_expired)
        self._check(peer)
        return peer

    def _shown(self, request: web.Request, *, takes_expired: bool) -> Peer:
        """Return the caller by its certificate alone, without checking the state."""
        if request.transport is None:
            raise Unauthorized("the connection is gone")
        peer, at_ms = peer_identity(request.transport), self._clocks_ms()[0]
        if not self._is_current(peer) and not (takes_expired and peer.may_renew(at_ms)):
            is_early = at_ms < peer.not_before_ms
            raise Unauthorized(f"the certificate {'is not valid yet' if is_early else 'has expired'}")
        if (header := request.headers.get(instances.HEADER)) is not None and peer.identity.role is Role.NODE:
            peer = replace(peer, instance=str(instances.parse_instance(header)))
        return peer

    def _is_current(self, peer: Peer) -> bool:
        return any(peer.is_current(at_ms) for at_ms in self._clocks_ms())


class _RunningCalls:
    """The calls of one connection that are being answered; an overdue call is answered as such."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._places = asyncio.Semaphore(CALLS_AT_ONCE_MAX)
        self._numbers: dict[asyncio.Task[None], int] = {}
        self._deadlines = Deadlines(self._give_up)

    async def place(self) -> None:
        """Return when one more call may begin, which must happen at once."""
        await self._places.acquire()

    def begin(self, answering: Coroutine[None, None, None], frame: wire.CallFrame) -> None:
        """Run a call in the place that was waited for; its time begins now."""
        task = asyncio.create_task(answering)
        self._numbers[task] = frame.number
        self._deadlines.set(task, frame.timeout_ms / 1000)
        task.add_done_callback(self._ended)

    def answer(self, frame: wire.AnswerFrame) -> None:
        """Send an answer, with the others of this moment. Raises wire.FrameTooLarge."""
        # The caller's deadline covers an answer without a place.
        with contextlib.suppress(OutboxFull):
            self._outbox.put(frame)
            if len(self._numbers) == 1:
                self._outbox.flush()  # there are no others

    async def end(self) -> None:
        """Abandon all calls without an answer."""
        self._deadlines.close()
        await end_tasks(self._numbers)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._numbers[task]
        self._deadlines.clear(task)
        self._places.release()

    def _give_up(self, task: asyncio.Task[None]) -> None:
        if task.cancel():  # otherwise it is done, and its answer being sent
            self.answer(wire.AnswerFrame(self._numbers[task], wire.RETRY, _OVERDUE, b""))


def _require_raft(peer: Peer) -> None:
    if peer.identity.role is not Role.COORDINATOR:
        raise Unauthorized(f"{peer.identity.uri} is no coordinator")


def _reason(error: FilestoreError) -> str:
    return error.reason if isinstance(error, Unauthorized) else error.details


async def _go_away(socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await socket.close(code=aiohttp.WSCloseCode.GOING_AWAY)


async def _messages(socket: web.WebSocketResponse) -> AsyncIterator[bytes]:
    # A pong to a lost peer raises in the loop itself; it only means the end of the connection.
    with contextlib.suppress(aiohttp.ClientConnectionResetError):
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            yield message.data
