"""Send responses that are known as soon as the request's head has arrived, bypassing aiohttp.

The work of aiohttp for each request (a task, a dozen objects) costs more than a small response. So a
connection passes arriving bytes to a responder, but only while it is idle: no request is running, aiohttp's
parser contains no byte of a request, and everything sent before has left. The responder accepts exactly one
whole head without a body, or nothing; then aiohttp gets the same bytes as if nothing had happened.
"""

import asyncio
import functools
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Final

from aiohttp import web
from msgspec import Struct

from web.internals.aiohttp_server import ServerConnection

Send = Callable[[ServerConnection], Coroutine[object, object, None]]

HEAD_BYTES_MAX: Final = 64 << 10  # of a head that arrives in pieces; beyond this its end is not searched
CLIENT_GONE: Final = 499  # in logs and metrics only: the client went before it had its answer
_END_OF_HEAD: Final = b"\r\n\r\n"
_log = logging.getLogger("filestore.http")


class DirectAnswer(Struct, frozen=True, kw_only=True):
    """An answer to one GET.

    `send` sends all of it, or what is left; without `send`, `pieces` are written at once; without either it
    was sent already. `route` is the template and `path` the text for metrics and logs, `size_bytes` the size
    of head and body.
    """

    request_id: str
    route: str
    path: str
    status: int
    size_bytes: int
    pieces: tuple[bytes, ...] = ()
    send: Send | None = None


Responder = Callable[[bytes, asyncio.Transport], DirectAnswer | None]
DIRECT: Final[web.AppKey[Responder]] = web.AppKey("direct")  # the one that is asked, of an application


class Boundary:
    """Track whether a parser is between two requests, judging from its input and output.

    This is known while one request at a time arrives, with a declared length and nothing after it. After
    anything else the state of this connection is unknown, as the parser may contain a part of a request.
    """

    __slots__ = ("_head", "_is_known", "_left_bytes", "is_at_body")

    def __init__(self) -> None:
        self._head = b""
        self._is_known = True
        self._left_bytes = 0  # of the last request's body
        self.is_at_body = False  # whether what arrives next is the start of the last request's body

    @property
    def is_reached(self) -> bool:
        """Whether what arrives next is the start of a request."""
        return self._is_known and not self._head and not self._left_bytes

    def fed(self, data: bytes, *, requests: int, body_bytes: int | None) -> None:
        """`data` went into the parser, and `requests` came out.

        `body_bytes` is how long the body of the last of them is, None where its head does not tell.
        """
        self.is_at_body = self.is_at_body and not data and requests == 0
        if not self._is_known:
            return
        if self._left_bytes:
            self._left_bytes -= len(data)
            self._is_known = requests == 0 and self._left_bytes >= 0
            return
        head = self._head + data
        if requests == 0 and len(head) <= HEAD_BYTES_MAX:
            self._head = head
            return
        self._head = b""
        head_bytes = _head_bytes(head) if requests == 1 else 0
        self.is_at_body = head_bytes == len(head) and body_bytes != 0
        self._left_bytes = head_bytes + (body_bytes or 0) - len(head)
        self._is_known = bool(head_bytes) and body_bytes is not None and self._left_bytes >= 0


def _head_bytes(data: bytes) -> int:
    """How long the head is that `data` begins with, 0 where others could read that in another way."""
    size_bytes = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
    is_plain = size_bytes >= len(_END_OF_HEAD) and data[:1] not in (b"\r", b"\n")
    return size_bytes if is_plain and data.find(b"\n\n", 0, size_bytes) < 0 else 0


class DirectConnection(ServerConnection):
    """A connection that can answer past aiohttp. Code that feeds the parser also calls `boundary.fed`."""

    def _prepare_direct(self) -> None:
        """Make the attributes of this class. It is called before anything else of the connection."""
        self.boundary = Boundary()
        self.sending: asyncio.Task[None] | None = None  # a direct answer that has not ended
        self._deferred = b""
        self._is_delivering = False
        self._unsent_bytes = 0

    @abstractmethod
    def direct_began(self, sending: asyncio.Task[None]) -> None:
        """A direct answer has begun that is not sent at once."""

    @abstractmethod
    def direct_ended(self, answer: DirectAnswer, *, status: int, size_bytes: int, duration_s: float) -> None:
        """A direct answer was sent, or broke off; `status` is CLIENT_GONE then."""

    def defer(self, data: bytes) -> bool:
        """Keep bytes that cannot be looked at now, for a turn of the loop or while a direct answer runs.

        aiohttp's task comes back to wait for the next request only after the turn in which it answered the
        last one, or in which the connection began; a quick client is there before. Of what comes behind a
        running answer there is at most what had been read already.
        """
        if self.sending is None and not self._deferred:
            if self._is_delivering or not self.is_between_turns:
                return False
            self.loop.call_soon(self._deliver)
        self._deferred += data
        return True

    def _deliver(self) -> None:
        deferred, self._deferred = self._deferred, b""
        if self.transport is not None and deferred:
            self._is_delivering = True
            self.data_received(deferred)
            self._is_delivering = False

    def answer_directly(self, respond: Responder, data: bytes) -> bool:
        """Whether these bytes were a request that is answered, or will be."""
        transport = self.transport
        is_idle = self.boundary.is_reached and self.is_ready()
        if not is_idle or transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size():
            return False  # the ordinary path watches a client that has not received the last response
        started_s = time.perf_counter()
        answer = respond(data, transport)
        if answer is None:
            return False
        self.count_request()
        if answer.send is None:
            pieces = answer.pieces
            if len(pieces) == 1:
                transport.write(pieces[0])
            elif pieces:
                transport.writelines(pieces)
            self.start_idle_timer()
            spent_s = time.perf_counter() - started_s
            self.direct_ended(answer, status=answer.status, size_bytes=answer.size_bytes, duration_s=spent_s)
            return True
        self.stop_idling()
        self.pause_transport_reading()
        self.sending = self.loop.create_task(answer.send(self))
        self.sending.add_done_callback(functools.partial(self._sent, answer, started_s))
        self.direct_began(self.sending)
        return True

    def _sent(self, answer: DirectAnswer, started_s: float, sending: asyncio.Task[None]) -> None:
        """A direct answer with a task of its own has ended, maybe before all of it was sent."""
        problem = None if sending.cancelled() else sending.exception()
        is_whole = not sending.cancelled() and problem is None
        if problem is not None and not isinstance(problem, ConnectionError):
            _log.warning("request not served", exc_info=problem, extra={"request_id": answer.request_id})
        self.sending = None
        self.direct_ended(
            answer,
            status=answer.status if is_whole else CLIENT_GONE,
            size_bytes=answer.size_bytes if is_whole else 0,
            duration_s=time.perf_counter() - started_s,
        )
        if self.transport is None:
            return
        if not is_whole:
            self.transport.abort()
            return
        self.start_idle_timer()
        self.resume_transport_reading()
        self._deliver()

    def close_idle(self) -> None:
        """Close a connection that was idle for too long, but not before the client has taken its last answer.

        As long as the client takes some of it in every period the connection stays. A client that takes
        nothing is cut off: closing would wait for it without end.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or not self.is_waiting:
            return
        unsent_bytes, earlier_bytes = transport.get_write_buffer_size(), self._unsent_bytes
        self._unsent_bytes = unsent_bytes
        if unsent_bytes and unsent_bytes == earlier_bytes:
            transport.abort()
        elif unsent_bytes:
            self.restart_idle_timer()
